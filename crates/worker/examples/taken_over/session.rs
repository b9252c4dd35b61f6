//! The worker's session, which is attached and tested as ever; the attacker keeps what it was told.

#[path = "../../src/session.rs"]
mod real;

use duck_contract::worker::{Cell, Failure, SandboxLevel, Spec};
pub(crate) use real::{place, quoted};

use crate::template::Template;

pub(crate) struct Embryo {
    real: real::Embryo,
    cell: Cell,
}

/// What there is to steal.
pub(crate) struct Session {
    _real: real::Session,
    pub(crate) cell: Cell,
    pub(crate) spec: Spec,
}

pub(crate) fn prepare(template: Template, cell: Cell, level: SandboxLevel) -> Result<Embryo, Failure> {
    Ok(Embryo { real: real::prepare(template, cell.clone(), level)?, cell })
}

impl Embryo {
    pub(crate) fn assign(self, spec: &Spec) -> Result<Session, Failure> {
        Ok(Session { _real: self.real.assign(spec)?, cell: self.cell, spec: spec.clone() })
    }
}
