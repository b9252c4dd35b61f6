//! The worker's own lockdown, or none.

#[path = "../../src/lockdown.rs"]
mod real;

use duck_contract::worker::{Cell, Failure, Spec};

use crate::layers::{Layer, is_off};
use crate::sys::duckdb::Connection;

pub(crate) fn settings(spec: &Spec) -> Vec<String> {
    if is_off(Layer::Lockdown) || is_off(Layer::Settings) { Vec::new() } else { real::settings(spec) }
}

pub(crate) fn test(connection: &Connection, cell: &Cell, spec: &Spec) -> Result<(), Failure> {
    if is_off(Layer::Lockdown) { Ok(()) } else { real::test(connection, cell, spec) }
}
