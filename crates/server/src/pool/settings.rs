//! What can be set about the pool and its workers, and what is wrong with it.

use std::path::PathBuf;

use duck_contract::worker::SandboxMode;
use serde::{Deserialize, Serialize};

use super::nursery::Start;

/// What the workers are and how many there may be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The ceiling. Every (warehouse, role) in use is one.
    pub workers_max: usize,
    /// A worker that was idle for so long is ended, milliseconds.
    pub idle_ms_max: u64,
    /// A worker of this age is ended when it is idle, milliseconds.
    pub age_ms_max: u64,
    /// A worker that has run so many statements is ended when it is idle.
    pub statements_max: u64,
    /// A worker that uses more is killed, MiB; the backstop behind `worker.memory_mb_max`.
    pub resident_mb_max: u64,
    /// From birth to the report, milliseconds.
    pub start_ms_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            workers_max: 64,
            idle_ms_max: 300_000,
            age_ms_max: 3_600_000,
            statements_max: 100_000,
            resident_mb_max: 2_048,
            start_ms_max: 20_000,
        }
    }
}

/// What every worker is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerSettings {
    /// The `duck-worker` program; found beside this one when not set.
    pub program: Option<PathBuf>,
    /// The folder of the extension files; found beside the program or in the checkout when not set.
    pub extensions: Option<PathBuf>,
    /// Fork from a template, or spawn.
    pub start: Start,
    /// How much sandbox is needed.
    pub sandbox: SandboxMode,
    /// DuckDB's threads in a worker.
    pub threads: u32,
    /// DuckDB's `memory_limit`, MiB.
    pub memory_mb: u64,
    /// Hard limit on a worker's data segment (`RLIMIT_DATA`), MiB.
    pub memory_mb_max: u64,
    /// Intermediate data on disk, MiB.
    pub spill_mb_max: u64,
    /// The user that workers become when the server is root.
    pub uid: u32,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        WorkerSettings {
            program: None,
            extensions: None,
            start: Start::Fork,
            sandbox: SandboxMode::Require,
            threads: 2,
            memory_mb: 512,
            memory_mb_max: 1_536,
            spill_mb_max: 4_096,
            uid: 65_534,
        }
    }
}

impl Settings {
    /// Everything that is wrong with the settings.
    pub fn faults(&self) -> Vec<String> {
        if self.workers_max == 0 {
            vec!["pool.workers_max: 0 would run nothing".to_owned()]
        } else {
            Vec::new()
        }
    }
}

impl WorkerSettings {
    /// Everything that is wrong with the settings.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.threads == 0 {
            faults.push("worker.threads: at least 1".to_owned());
        }
        if self.memory_mb < 64 {
            faults.push("worker.memory_mb: at least 64".to_owned());
        }
        if self.memory_mb_max < self.memory_mb + 256 {
            faults.push("worker.memory_mb_max: at least 256 above worker.memory_mb".to_owned());
        }
        if self.uid == 0 {
            faults.push("worker.uid: workers do not run as root".to_owned());
        }
        faults
    }
}
