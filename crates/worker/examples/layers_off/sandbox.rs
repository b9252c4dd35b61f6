//! The worker's own sandbox, or none.

#[path = "../../src/sandbox.rs"]
mod real;

use duck_contract::worker::{Cell, SandboxLevel};
pub(crate) use real::{SandboxError, die_with_parent};

use crate::calls::Calls;
use crate::layers::{Layer, is_off};

/// Without it what is left is where a worker stands, which DuckDB needs, and when it ends.
pub(crate) fn enter(
    cell: &Cell,
    parent: u32,
    calls: &Result<Calls, String>,
) -> Result<SandboxLevel, SandboxError> {
    let claimed = is_off(Layer::Confinement);
    if !claimed && !is_off(Layer::Sandbox) {
        return real::enter(cell, parent, calls);
    }
    die_with_parent(parent)?;
    let entered = std::env::set_current_dir(&cell.directory);
    entered.map_err(|e| SandboxError::Step("enter own directory", e))?;
    Ok(SandboxLevel { landlock: claimed, seccomp: claimed, uid_dropped: false })
}

pub(crate) fn probe() -> Result<SandboxLevel, SandboxError> {
    if is_off(Layer::Sandbox) { Ok(SandboxLevel::default()) } else { real::probe() }
}
