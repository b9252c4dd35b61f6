//! What can be set about the pool and its workers, what follows from the machine where it is not, and what is wrong with it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use duck_contract::worker::SandboxMode;
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::nursery::Start;

/// How many workers there may be, and what they may use together.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What the server and all its workers may use, MiB. Without it: nine tenths of the control group's limit or the machine's.
    pub memory_mb: Option<u64>,
    /// What of it is kept for the server itself, MiB.
    pub front_mb: u64,
    /// What an idle worker may keep, MiB. One that keeps more after its work is ended.
    pub idle_mb_max: u64,
    /// The ceiling. Every (warehouse, role) in use is one. Without it: as many idle ones as a quarter of the memory holds.
    pub workers_max: Option<usize>,
    /// Workers that are confined and wait for a warehouse.
    pub spares: usize,
    /// While others wait, a worker takes new statements for so long, milliseconds.
    pub turn_ms: u64,
    /// A worker that was idle for so long is ended, milliseconds.
    pub idle_ms_max: u64,
    /// A worker of this age is ended when it is idle, milliseconds.
    pub age_ms_max: u64,
    /// A worker that has run so many statements is ended when it is idle.
    pub statements_max: u64,
    /// From birth to the report, milliseconds.
    pub start_ms_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            memory_mb: None,
            front_mb: 512,
            idle_mb_max: 48,
            workers_max: None,
            spares: 2,
            turn_ms: 1_000,
            idle_ms_max: 300_000,
            age_ms_max: 3_600_000,
            statements_max: 100_000,
            start_ms_max: 20_000,
        }
    }
}

/// What every worker is told, and what those of some workspaces are told instead.
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
    /// The user that workers become when the server is root.
    pub uid: u32,
    /// Threads for the statements of a worker. Without it: the cores, at most 4.
    pub threads: Option<u32>,
    /// DuckDB's `memory_limit`, MiB. Without it: half of `memory_mb_max`.
    pub memory_mb: Option<u64>,
    /// Hard limit on a worker's data segment (`RLIMIT_DATA`), MiB. Without it: an eighth of what workers that work may use together.
    pub memory_mb_max: Option<u64>,
    /// Intermediate data on disk, MiB. Without it: what is free, divided among as many as can work at once.
    pub spill_mb_max: Option<u64>,
    /// Other values for some workspaces, by the name of their class.
    pub classes: BTreeMap<String, Class>,
}

/// What is different for some workspaces. What is not said is as for all.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Class {
    /// Which workspaces.
    pub workspaces: Vec<String>,
    /// As in `worker`.
    pub threads: Option<u32>,
    /// As in `worker`.
    pub memory_mb: Option<u64>,
    /// As in `worker`.
    pub memory_mb_max: Option<u64>,
    /// As in `worker`.
    pub spill_mb_max: Option<u64>,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        WorkerSettings {
            program: None,
            extensions: None,
            start: Start::Fork,
            sandbox: SandboxMode::Require,
            uid: 65_534,
            threads: None,
            memory_mb: None,
            memory_mb_max: None,
            spill_mb_max: None,
            classes: BTreeMap::new(),
        }
    }
}

/// What one worker may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowance {
    pub(super) threads: u32,
    pub(super) memory_mb: u64,
    pub(super) memory_mb_max: u64,
    pub(super) spill_mb_max: u64,
}

impl Settings {
    /// Sets what was not said by what the machine has.
    pub fn fill(&mut self, worker: &mut WorkerSettings, machine: Machine) {
        let memory = *self.memory_mb.get_or_insert(machine.memory_mb / 10 * 9);
        let workers = memory.saturating_sub(self.front_mb);
        let places = usize::try_from(workers / 4 / self.idle_mb_max.max(1)).unwrap_or(usize::MAX);
        self.workers_max.get_or_insert(places.clamp(4, 256));
        worker.threads.get_or_insert(machine.cores.clamp(1, 4));
        let hard = *worker.memory_mb_max.get_or_insert((self.working_mb() / 8).clamp(384, 4_096));
        worker.memory_mb.get_or_insert(soft(hard));
        let at_once = (self.working_mb() / hard.max(1)).clamp(1, 64);
        worker.spill_mb_max.get_or_insert((machine.disk_mb / 10 * 9 / at_once).clamp(256, 65_536));
    }

    /// What all workers that work may use together, MiB: the budget less the front's part and what idle workers and spares keep.
    pub(super) fn working_mb(&self) -> u64 {
        let places = (self.workers_max.unwrap_or(0) + self.spares) as u64;
        self.memory_mb.unwrap_or(0).saturating_sub(self.front_mb + places * self.idle_mb_max)
    }

    /// Everything that is wrong with the settings.
    pub fn faults(&self, worker: &WorkerSettings) -> Vec<String> {
        let mut faults = Vec::new();
        if self.workers_max == Some(0) {
            faults.push("pool.workers_max: 0 would run nothing".to_owned());
        }
        let working = self.working_mb();
        for (name, allowance) in worker.allowances() {
            if allowance.memory_mb_max > working {
                faults.push(format!(
                    "{name}.memory_mb_max: {} MiB are more than all workers may use together ({working} MiB: pool.memory_mb less \
                     pool.front_mb and pool.idle_mb_max for each of pool.workers_max and pool.spares)",
                    allowance.memory_mb_max
                ));
            }
        }
        faults
    }
}

/// DuckDB's limit below a hard one: much of what statements use is not counted by it.
fn soft(hard_mb: u64) -> u64 {
    (hard_mb / 2).min(hard_mb.saturating_sub(256)).max(64)
}

impl WorkerSettings {
    /// What a worker of this workspace may use.
    pub(super) fn allowance(&self, workspace: &str) -> Allowance {
        let class = self.classes.values().find(|class| class.workspaces.iter().any(|w| w == workspace));
        self.of(class.unwrap_or(&Class::default()))
    }

    fn of(&self, class: &Class) -> Allowance {
        let hard = class.memory_mb_max.or(self.memory_mb_max).unwrap_or(0);
        let own = class.memory_mb_max.map(soft);
        Allowance {
            threads: class.threads.or(self.threads).unwrap_or(1),
            memory_mb: class.memory_mb.or(own).or(self.memory_mb).unwrap_or(0),
            memory_mb_max: hard,
            spill_mb_max: class.spill_mb_max.or(self.spill_mb_max).unwrap_or(0),
        }
    }

    /// Of all workspaces and of each class, under the names they have in a file.
    fn allowances(&self) -> Vec<(String, Allowance)> {
        let classes =
            self.classes.iter().map(|(name, class)| (format!("worker.classes.{name}"), self.of(class)));
        std::iter::once(("worker".to_owned(), self.of(&Class::default()))).chain(classes).collect()
    }

    /// Among how many threads the template divides the work: what the most demanding class may use.
    pub(crate) fn threads_max(&self) -> u32 {
        self.allowances().iter().map(|(_, allowance)| allowance.threads).max().unwrap_or(1)
    }

    /// Everything that is wrong with the settings.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, allowance) in self.allowances() {
            if allowance.threads == 0 {
                faults.push(format!("{name}.threads: at least 1"));
            }
            if allowance.memory_mb < 64 {
                faults.push(format!("{name}.memory_mb: at least 64"));
            }
            if allowance.memory_mb_max < allowance.memory_mb + 256 {
                faults.push(format!("{name}.memory_mb_max: at least 256 above its memory_mb"));
            }
        }
        if self.uid == 0 {
            faults.push("worker.uid: workers do not run as root".to_owned());
        }
        let mut seen = std::collections::HashSet::new();
        for workspace in self.classes.values().flat_map(|class| &class.workspaces) {
            if !seen.insert(workspace) {
                faults.push(format!("worker.classes: {workspace} is in two of them"));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(memory_mb: u64) -> (Settings, WorkerSettings) {
        let (mut pool, mut worker) = (Settings::default(), WorkerSettings::default());
        pool.fill(&mut worker, Machine { memory_mb, cores: 2, disk_mb: 10_000 });
        (pool, worker)
    }

    #[test]
    fn front_idle_workers_and_those_that_work_never_add_up_to_more_than_the_budget() {
        for memory_mb in [2_048, 4_096, 24_576, 262_144] {
            let (pool, worker) = filled(memory_mb);
            assert_eq!(pool.faults(&worker), Vec::<String>::new(), "{memory_mb}");
            assert_eq!(worker.faults(), Vec::<String>::new(), "{memory_mb}");
            let hard = worker.memory_mb_max.unwrap();
            let at_once = pool.working_mb() / hard;
            let idle = (pool.workers_max.unwrap() + pool.spares) as u64 * pool.idle_mb_max;
            assert!(at_once >= 1 && pool.front_mb + idle + at_once * hard <= memory_mb, "{memory_mb}");
        }
    }

    #[test]
    fn a_class_says_only_what_is_different() {
        let (pool, mut worker) = filled(24_576);
        let class = Class { workspaces: vec!["acme".to_owned()], threads: Some(4), ..Class::default() };
        worker.classes.insert("large".to_owned(), class);
        let (acme, other) = (worker.allowance("acme"), worker.allowance("globex"));
        assert_eq!(acme, Allowance { threads: 4, ..other });
        assert_eq!(worker.threads_max(), 4);
        worker.classes.get_mut("large").unwrap().memory_mb_max = Some(8_000);
        assert_eq!(worker.allowance("acme").memory_mb, 4_000);
        worker.classes.get_mut("large").unwrap().memory_mb_max = Some(800_000);
        assert!(pool.faults(&worker)[0].contains("worker.classes.large.memory_mb_max"));
    }
}
