//! The worker's own policy, or none: whatever is sent is run, one statement after the other.

#[path = "../../src/policy/mod.rs"]
mod real;

use duck_contract::worker::{Failure, Intent, Statement, TextLimits};
use duck_contract::{Params, Role};
pub(crate) use real::Names;

use crate::layers::{Layer, is_off};
use crate::sys::duckdb::Kind;

pub(crate) struct Policy(real::Policy);

/// What the real one read, if it was asked.
pub(crate) struct Reading(Option<real::Reading>);

impl Policy {
    pub(crate) fn new(names: Names, place: String, role: Role, default_schema: String) -> Self {
        Policy(real::Policy::new(names, place, role, default_schema))
    }

    pub(crate) fn role(&self) -> Role {
        self.0.role()
    }

    /// Where nobody reads, nobody is told: the doors see what is changed.
    pub(crate) fn intent(&self, statement: &Statement) -> Result<Intent, Failure> {
        if is_off(Layer::Policy) { Ok(Intent::default()) } else { self.0.intent(statement) }
    }

    pub(crate) fn read(&self, sql: &str, limits: TextLimits) -> Result<Reading, Failure> {
        if is_off(Layer::Policy) {
            return Ok(Reading(None));
        }
        self.0.read(sql, limits).map(|reading| Reading(Some(reading)))
    }

    pub(crate) fn check_parameters(&self, reading: &Reading, params: Option<&Params>) -> Result<(), Failure> {
        reading.0.as_ref().map_or(Ok(()), |reading| self.0.check_parameters(reading, params))
    }

    pub(crate) fn check(&self, reading: &Reading, kind: Kind) -> Result<(), Failure> {
        reading.0.as_ref().map_or(Ok(()), |reading| self.0.check(reading, kind))
    }
}

impl Reading {
    /// Where nobody read, whoever wants a transaction begins one.
    pub(crate) fn names_tables(&self) -> bool {
        self.0.as_ref().is_some_and(real::Reading::names_tables)
    }

    /// Where nobody read, DuckDB's own count is what is run.
    pub(crate) fn is_one_statement(&self) -> bool {
        self.0.as_ref().is_none_or(real::Reading::is_one_statement)
    }
}

pub(crate) fn check_helper(kind: Kind) -> Result<(), Failure> {
    if is_off(Layer::Policy) { Ok(()) } else { real::check_helper(kind) }
}
