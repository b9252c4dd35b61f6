//! What workers are made of: what the template is told, and what each of them is.

use std::path::PathBuf;
use std::sync::Arc;

use duck_contract::worker::{Cell, Common, Keys};

use super::Places;
use super::settings::{Allowance, WorkerSettings};
use crate::doors::Passes;

/// Where the doors are, and what a worker must not reach.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// The catalog door.
    pub catalog: u16,
    /// The storage door.
    pub storage: u16,
    /// Something else that listens on loopback, for the self-test.
    pub forbidden: u16,
}

/// Everything that a start needs.
pub struct Forge {
    /// Issues the credentials.
    pub passes: Passes,
    /// Where the doors are.
    pub ports: Ports,
    /// Finds out where a warehouse lies.
    pub places: Arc<dyn Places>,
    /// What workers are told.
    pub settings: WorkerSettings,
    /// The schema that needs no name.
    pub default_schema: String,
    /// Longer than the catalog door takes to settle a change, seconds.
    pub http_timeout_s: u64,
    /// The folder for workers' directories and sockets.
    pub runtime: PathBuf,
}

impl Forge {
    /// What is the same for all workers, or at least for those of workspaces without a class of their own.
    pub(super) fn common(&self, extensions: PathBuf) -> Common {
        let usual = self.settings.allowance("");
        Common {
            extensions,
            threads: self.settings.threads_max(),
            front: std::process::id(),
            catalog_port: self.ports.catalog,
            default_schema: self.default_schema.clone(),
            http_timeout_s: self.http_timeout_s,
            memory_bytes: usual.memory_mb << 20,
            spill_bytes_max: usual.spill_mb_max << 20,
        }
    }

    /// What a worker with this allowance is confined to; its directory and its keys are not known yet.
    pub(super) fn cell(&self, allowance: Allowance) -> Cell {
        let Forge { ports, settings, .. } = self;
        Cell {
            directory: String::new(),
            catalog_port: ports.catalog,
            storage_port: ports.storage,
            forbidden_port: ports.forbidden,
            memory_bytes: allowance.memory_mb << 20,
            memory_bytes_max: allowance.memory_mb_max << 20,
            spill_bytes_max: allowance.spill_mb_max << 20,
            threads: allowance.threads,
            uid: rustix::process::geteuid().is_root().then_some(settings.uid),
            sandbox: settings.sandbox,
            keys: Keys::default(),
        }
    }
}
