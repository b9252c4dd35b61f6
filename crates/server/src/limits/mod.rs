//! May they run now.
//!
//! Given a [`Permit`], hands on a [`Slot`], which its holder keeps until the last byte. Never lets one tenant hold more than its
//! share, never lets a queue grow without bound, never waits past the deadline, and never lets a tenant's first request wait behind
//! another's queue.

mod tables;
mod turns;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::Code;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use self::tables::{Tables, Turn};
use self::turns::{Entered, Turns};
use crate::fault::Fault;
use crate::governance::Permit;

/// How much runs at once, and how much may wait.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Statements at once.
    pub running_max: usize,
    /// Statements at once of one workspace.
    pub tenant_running_max: usize,
    /// Requests of one workspace that may wait.
    pub tenant_waiting_max: usize,
    /// Requests that may wait in all.
    pub waiting_max: usize,
    /// Longest wait, milliseconds.
    pub wait_ms_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            running_max: 64,
            tenant_running_max: 16,
            tenant_waiting_max: 64,
            waiting_max: 1_024,
            wait_ms_max: 10_000,
        }
    }
}

impl Settings {
    /// Everything that is wrong with the settings.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.running_max == 0 {
            faults.push("limits.running_max: 0 would run nothing".to_owned());
        }
        if self.tenant_running_max == 0 {
            faults.push("limits.tenant_running_max: 0 would run nothing".to_owned());
        }
        faults
    }
}

/// Admission. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Limits {
    /// Whose turn it is to write a table.
    pub tables: Tables,
    wait_max: Duration,
    turns: Arc<Mutex<Turns<oneshot::Sender<Slot>>>>,
}

/// How much there is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gauges {
    /// Statements that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Workspaces that have any of both.
    pub tenants: usize,
}

/// The right to run one statement. It ends when this is dropped, and goes to whose turn it is.
pub struct Slot {
    limits: Limits,
    tenant: String,
}

impl Limits {
    /// With nothing running.
    pub fn new(settings: Settings) -> Self {
        let wait_max = Duration::from_millis(settings.wait_ms_max);
        Limits { tables: Tables::default(), wait_max, turns: Arc::new(Mutex::new(Turns::new(settings))) }
    }

    /// Waits for a slot, at most as long as a client does that waits for its answer.
    pub async fn admit(&self, permit: &Permit, deadline: Instant) -> Result<Slot, Fault> {
        self.admit_by(permit, deadline.min(Instant::now() + self.wait_max)).await
    }

    /// Waits for a slot: for the tenant's own share, and for its turn among all tenants.
    pub async fn admit_by(&self, permit: &Permit, give_up: Instant) -> Result<Slot, Fault> {
        let tenant = permit.warehouse.name();
        let (sender, turn) = oneshot::channel();
        let entered = self.turns().enter(tenant, sender);
        let ticket = match entered {
            Entered::Runs => return Ok(Slot { limits: self.clone(), tenant: tenant.to_owned() }),
            Entered::Waits(ticket) => Queued { limits: self, tenant, ticket },
            Entered::TenantFull => return Err(busy(true)),
            Entered::ServerFull => return Err(busy(false)),
        };
        match tokio::time::timeout_at(give_up, turn).await {
            Ok(Ok(slot)) => Ok(slot),
            _ => Err(busy(ticket.leave())),
        }
    }

    /// How much there is now.
    pub fn gauges(&self) -> Gauges {
        let (running, waiting, tenants) = self.turns().count();
        Gauges { running, waiting, tenants }
    }

    fn turns(&self) -> MutexGuard<'_, Turns<oneshot::Sender<Slot>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy(own: bool) -> Fault {
    if own {
        let sentence = "Too many statements of this workspace are running. Try again in a moment.";
        Fault::new(Code::TenantBusy, sentence)
    } else {
        Fault::new(Code::ServerBusy, "The server runs as much as it may. Try again in a moment.")
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let next = self.limits.turns().done(&self.tenant);
        if let Some((tenant, turn)) = next {
            // Whoever has stopped waiting drops the slot, and that gives the turn to the next.
            drop(turn.send(Slot { limits: self.limits.clone(), tenant }));
        }
    }
}

/// A place in the queue. Dropped when its turn has come, or when whoever waited goes away.
struct Queued<'l> {
    limits: &'l Limits,
    tenant: &'l str,
    ticket: u64,
}

impl Queued<'_> {
    /// Whether it was the tenant's own share that was used up.
    fn leave(&self) -> bool {
        self.limits.turns().leave(self.tenant, self.ticket)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Auth, Settings as AuthSettings};
    use crate::governance::{Governance, Wish, Writes};

    fn permit(workspace: &str) -> Permit {
        let auth = Auth::new(AuthSettings { open: true, ..AuthSettings::default() }).unwrap();
        let caller = futures::executor::block_on(auth.verify(None)).unwrap();
        Governance::new("x", Writes::closed())
            .permit(&caller, Wish { workspace: Some(workspace), ..Wish::default() })
            .unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_at_its_cap_waits_for_itself_and_others_go_ahead() {
        let settings =
            Settings { running_max: 10, tenant_running_max: 1, tenant_waiting_max: 1, ..Settings::default() };
        let limits = Limits::new(settings);
        let held = limits.admit(&permit("a"), soon()).await.unwrap();
        assert!(limits.admit(&permit("b"), soon()).await.is_ok());
        assert_eq!(limits.admit(&permit("a"), soon()).await.err().unwrap().code, Code::TenantBusy);
        let again = permit("a");
        let waits = limits.admit(&again, soon());
        drop(held);
        assert!(waits.await.is_ok());
        assert_eq!(limits.gauges(), Gauges { running: 0, waiting: 0, tenants: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_server_refuses_at_the_deadline_and_a_full_queue_at_once() {
        let limits = Limits::new(Settings { running_max: 1, waiting_max: 0, ..Settings::default() });
        let _held = limits.admit(&permit("a"), soon()).await.unwrap();
        let before = Instant::now();
        assert_eq!(limits.admit(&permit("b"), soon()).await.err().unwrap().code, Code::ServerBusy);
        assert_eq!(before, Instant::now());
    }
}
