//! What is told, and to whom: a table for people or JSON for machines on standard output, progress on a terminal.

use std::collections::BTreeMap;
use std::io;

use indicatif::ProgressBar;
use serde::Serialize;

use super::decide::{End, Recommendation};
use super::latency::Spread;
use super::measure;
use crate::terminal::{Terminal, tagged};

/// What one number of warehouses has shown.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Step {
    /// With so many warehouses.
    pub(super) warehouses: usize,
    /// Under this ceiling.
    pub(super) workers_max: usize,
    /// Workers at the end.
    pub(super) workers: usize,
    /// What each of them keeps when the queries have ended, MiB.
    pub(super) worker_mb: WorkerMemory,
    /// Server and all workers at their highest, MiB.
    pub(super) memory_mb: f64,
    /// Of it the process of server and clients, at the end.
    pub(super) server_mb: f64,
    /// First queries, each of a warehouse without a worker.
    pub(super) first_ms: Spread,
    /// Queries of the mix, when all warehouses had been asked.
    pub(super) warm_ms: Spread,
    /// The same by kind.
    pub(super) warm_ms_by_kind: BTreeMap<&'static str, Spread>,
    /// Of the mix.
    pub(super) queries_per_second: f64,
    /// All that failed, by code.
    pub(super) errors: BTreeMap<String, u64>,
    /// Idle workers that had to make room.
    pub(super) evictions: u64,
    /// Workers started.
    pub(super) starts: u64,
    /// Descriptors of the process of server and clients, at their highest.
    pub(super) fds: u64,
    /// The limit that it has broken, if any.
    pub(super) broken: Option<End>,
}

/// What workers hold, MiB.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct WorkerMemory {
    pub(super) mean: f64,
    pub(super) max: f64,
    pub(super) kind: measure::Kind,
}

/// Where it is told.
pub(super) struct Report {
    json: bool,
    terminal: Terminal,
}

impl Report {
    pub(super) fn new(json: bool) -> Report {
        Report { json, terminal: Terminal::new() }
    }

    /// Something begins that has so many parts.
    pub(super) fn begin(&self, what: String, parts: usize) -> ProgressBar {
        // In this order nothing in between looks wrong.
        self.terminal.bar.reset();
        self.terminal.bar.set_length(parts as u64);
        self.terminal.bar.set_message(what);
        self.terminal.bar.clone()
    }

    /// What is tried, for people.
    pub(super) fn head(&self, what: &str) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        let columns = COLUMNS.iter().map(|(name, width)| format!("{name:>width$}"));
        self.terminal.say(&format!("{what}\n\n{}", columns.collect::<Vec<_>>().join("  ")))
    }

    pub(super) fn step(&self, step: &Step) -> io::Result<()> {
        self.terminal.say(&if self.json { tagged("step", step)? } else { row(step) })
    }

    pub(super) fn end(self, recommendation: &Recommendation) -> io::Result<()> {
        self.terminal.bar.finish_and_clear();
        if self.json {
            return self.terminal.say(&tagged("recommendation", recommendation)?);
        }
        let Recommendation { workers_max, stopped, derived_from, .. } = recommendation;
        let set = workers_max.map_or("none".to_owned(), |workers| workers.to_string());
        self.terminal.say(&format!(
            "\nStopped by {}: {}\nRecommended pool.workers_max: {set}\n  from: {derived_from}",
            stopped.limit, stopped.text
        ))
    }
}

/// Names and widths.
const COLUMNS: [(&str, usize); 12] = [
    ("warehouses", 10),
    ("MiB/worker", 10),
    ("max", 6),
    ("MiB in all", 10),
    ("first p50", 9),
    ("p99 ms", 8),
    ("warm p50", 8),
    ("p99 ms", 8),
    ("queries/s", 9),
    ("evicted", 7),
    ("starts", 6),
    ("fds", 5),
];

fn row(step: &Step) -> String {
    let digit = |number: f64| format!("{number:.1}");
    let cells = [
        step.warehouses.to_string(),
        digit(step.worker_mb.mean),
        digit(step.worker_mb.max),
        format!("{:.0}", step.memory_mb),
        digit(step.first_ms.p50),
        digit(step.first_ms.p99),
        digit(step.warm_ms.p50),
        digit(step.warm_ms.p99),
        format!("{:.0}", step.queries_per_second),
        step.evictions.to_string(),
        step.starts.to_string(),
        step.fds.to_string(),
    ];
    let cells = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
    let errors = step.errors.iter().map(|(code, count)| format!("  {count} × {code}"));
    let shared = match step.worker_mb.kind {
        measure::Kind::Private => "",
        measure::Kind::Anonymous => "  (MiB/worker: shared pages, too)",
    };
    cells.collect::<Vec<_>>().join("  ") + shared + &errors.collect::<String>()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_step_is_one_row_or_one_object() {
        let step = Step {
            warehouses: 20,
            errors: BTreeMap::from([("tenant_busy".to_owned(), 3)]),
            ..Step::default()
        };
        assert!(row(&step).starts_with("        20  ") && row(&step).ends_with("  3 × tenant_busy"));
        let line: Value = serde_json::from_str(&tagged("step", &step).unwrap()).unwrap();
        assert_eq!((&line["kind"], &line["warehouses"]), (&json!("step"), &json!(20)));
        assert_eq!(line["worker_mb"]["kind"], json!("private"));
    }
}
