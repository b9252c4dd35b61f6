//! The worker's own lockdown, or none.

#[path = "../../src/lockdown.rs"]
mod real;

use duck_contract::worker::{Cell, Failure, Spec};

use crate::layers::{Layer, is_off};
use crate::sys::duckdb::Connection;

/// Without it every place in every bucket is asked for at the storage door, with this worker's key.
pub(crate) fn scope(spec: &Spec) -> String {
    if is_off(Layer::Lockdown) { "s3://".to_owned() } else { real::scope(spec) }
}

pub(crate) fn settings(spec: &Spec) -> Vec<String> {
    if is_off(Layer::Lockdown) || is_off(Layer::Settings) { Vec::new() } else { real::settings(spec) }
}

pub(crate) fn test(connection: &Connection, cell: &Cell, spec: &Spec) -> Result<(), Failure> {
    if is_off(Layer::Lockdown) { Ok(()) } else { real::test(connection, cell, spec) }
}
