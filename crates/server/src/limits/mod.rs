//! May they run now.
//!
//! Given a [`Permit`], hands on a [`Slot`], which its holder keeps until the last byte. Never lets one tenant hold more than its
//! share, never lets a queue grow without bound, never waits past the deadline.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duck_contract::Code;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

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

/// Admission.
pub struct Limits {
    settings: Settings,
    running: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    tenants: Arc<Mutex<HashMap<String, Tenant>>>,
}

#[derive(Clone)]
struct Tenant {
    running: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    /// Requests that are here at all; the entry goes with the last.
    present: usize,
}

/// The right to run one statement. It ends when this is dropped.
pub struct Slot {
    _global: OwnedSemaphorePermit,
    _tenant: OwnedSemaphorePermit,
    _presence: Presence,
}

impl Limits {
    /// With nothing running.
    pub fn new(settings: Settings) -> Self {
        Limits {
            running: Arc::new(Semaphore::new(settings.running_max)),
            waiting: Arc::default(),
            tenants: Arc::default(),
            settings,
        }
    }

    /// Waits for a slot, first the tenant's own and then one of the server's: who has used up its share waits for itself.
    pub async fn admit(&self, permit: &Permit, deadline: Instant) -> Result<Slot, Fault> {
        let (presence, tenant) = self.enter(permit.warehouse.name());
        let give_up = deadline.min(Instant::now() + Duration::from_millis(self.settings.wait_ms_max));
        let own = wait(&tenant.running, &tenant.waiting, self.settings.tenant_waiting_max, give_up)
            .await
            .ok_or_else(|| {
                Fault::new(
                    Code::TenantBusy,
                    "Too many statements of this workspace are running. Try again in a moment.",
                )
            })?;
        let global =
            wait(&self.running, &self.waiting, self.settings.waiting_max, give_up).await.ok_or_else(
                || Fault::new(Code::ServerBusy, "The server runs as much as it may. Try again in a moment."),
            )?;
        Ok(Slot { _global: global, _tenant: own, _presence: presence })
    }

    fn enter(&self, name: &str) -> (Presence, Tenant) {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let tenant = tenants.entry(name.to_owned()).or_insert_with(|| Tenant {
            running: Arc::new(Semaphore::new(self.settings.tenant_running_max)),
            waiting: Arc::default(),
            present: 0,
        });
        tenant.present += 1;
        (Presence { tenants: self.tenants.clone(), name: name.to_owned() }, tenant.clone())
    }
}

async fn wait(
    semaphore: &Arc<Semaphore>,
    waiting: &Arc<AtomicUsize>,
    waiting_max: usize,
    give_up: Instant,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(permit) = semaphore.clone().try_acquire_owned() {
        return Some(permit);
    }
    let place = Queued(waiting.clone());
    if waiting.fetch_add(1, Ordering::AcqRel) >= waiting_max {
        return None;
    }
    let permit = tokio::time::timeout_at(give_up, semaphore.clone().acquire_owned()).await;
    drop(place);
    permit.ok()?.ok()
}

/// A place in a queue.
struct Queued(Arc<AtomicUsize>);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One request of a tenant; the tenant's entry goes with the last.
struct Presence {
    tenants: Arc<Mutex<HashMap<String, Tenant>>>,
    name: String,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tenant) = tenants.get_mut(&self.name) {
            tenant.present -= 1;
            if tenant.present == 0 {
                tenants.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Auth, Settings as AuthSettings};
    use crate::governance::{Governance, Wish};

    fn permit(workspace: &str) -> Permit {
        let caller = Auth::new(AuthSettings { open: true, ..AuthSettings::default() }).verify(None).unwrap();
        Governance::new("x").permit(&caller, Wish { workspace: Some(workspace), ..Wish::default() }).unwrap()
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
        assert!(limits.tenants.lock().unwrap().is_empty());
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
