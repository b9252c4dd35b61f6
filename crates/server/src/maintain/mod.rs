//! What failed, rolled back or was killed leaves objects in the store that no table needs: finds them and, when it is told to,
//! removes them.
//!
//! Given warehouses, hands on what they hold, table by table, and deletes what no snapshot of any of their tables refers to
//! and what is older than the grace. It is no stage of a query: it goes to catalog and store past the doors, under our own
//! login, and it is **the only place of the system that deletes**. Whatever is not understood is kept: one table of a warehouse
//! that cannot be read keeps all of it.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `judge` | which object may go: plain decisions |
//! | `survey` | what is known of a warehouse, bounded, as plain data |
//! | `metadata` | which files metadata, manifest lists and manifests name |
//! | `walk` | goes through a table's metadata |
//! | `warehouse` | one warehouse from its name to what was removed, in the order that is safe beside writers |
//! | `journal` | one run at a time, written down before it deletes, resumed when it was killed |
//! | `report` | what is told |
//! | `schedule` | the same inside a server |

mod journal;
mod judge;
mod metadata;
mod report;
mod schedule;
mod settings;
mod survey;
#[cfg(test)]
mod survey_tests;
mod walk;
mod warehouse;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::Serialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::journal::Journal;
pub use self::journal::JournalError;
use self::report::Report;
pub use self::schedule::schedule;
pub use self::settings::Settings;
use self::warehouse::Found;
pub use self::warehouse::Mode;
use crate::doors::catalog::Upstream;
use crate::doors::storage::{Store, settle, stamp};
use crate::pool::Places;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What maintenance works with.
pub struct Keeper {
    /// The catalog.
    pub upstream: Arc<Upstream>,
    /// The store.
    pub store: Store,
    /// Where warehouses lie.
    pub places: Arc<dyn Places>,
    /// What is set.
    pub settings: Settings,
    /// The ledgers of deletions of all servers, as far as they are known here.
    pub ledgers: Vec<PathBuf>,
    /// With what the names of our warehouses begin.
    pub named: String,
}

/// What is looked at, and what is done with it.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // flags of a command line
pub struct Options {
    /// The configuration file (TOML). Without it only the environment counts.
    #[arg(long, conflicts_with = "dir")]
    pub config: Option<PathBuf>,
    /// The folder of a `dev` server, which has to run.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// A warehouse by its name in the catalog; may be given again.
    #[arg(long = "warehouse", required_unless_present = "all", conflicts_with = "all")]
    warehouses: Vec<String>,
    /// Every warehouse with the configured prefix that the catalog lists.
    #[arg(long)]
    all: bool,
    /// Remove what is found. Without it nothing is removed.
    #[arg(long)]
    remove: bool,
    /// Count folders of tables that the catalog does not show as orphans, too: tables that were dropped, or never finished.
    #[arg(long)]
    dropped: bool,
    /// Another replica's ledger of deletions; may be given again.
    #[arg(long = "ledger")]
    pub ledgers: Vec<PathBuf>,
    /// Name every orphan.
    #[arg(long)]
    list: bool,
    /// Memory of this process, MiB: metadata that need more end it.
    #[arg(long, default_value_t = 2_048, value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    memory_mb_max: u64,
    /// Print one JSON object a table and one a warehouse, and one at the end.
    #[arg(long)]
    json: bool,
}

/// What a run has come to.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    warehouses: u64,
    /// Finished by an earlier run that was killed.
    skipped: u64,
    orphans: u64,
    orphan_bytes: u64,
    removed: u64,
    removed_bytes: u64,
    failed: u64,
    /// Lines taken out of the ledgers.
    settled: u64,
    #[serde(skip)]
    mode: Mode,
}

/// The command: tells of each warehouse as it goes, and fails at the end if one could not be gone through.
pub async fn command(keeper: &Keeper, options: &Options, stop: &CancellationToken) -> Result<(), Failed> {
    let bytes = Some(options.memory_mb_max << 20);
    // Refused only where the limit is lower already.
    let _ = setrlimit(Resource::Data, Rlimit { current: bytes, maximum: bytes });
    let report = Report::new(options.json);
    let mode = Mode { remove: options.remove, dropped: options.dropped, list: options.list };
    let names = if options.all { keeper.warehouses().await? } else { options.warehouses.clone() };
    let mut faults = Vec::new();
    let told = |name: &str, outcome: &Result<Found, Failed>| match outcome {
        Ok(found) => {
            if !found.whole || found.failed > 0 {
                faults.push(format!("{name}: not all of it could be judged or removed"));
            }
            report.found(found)
        }
        Err(error) => {
            faults.push(format!("{name}: {error}"));
            Ok(())
        }
    };
    let summary = keeper.run(&names, mode, (stop, &report.terminal.bar), told).await?;
    report.end(&summary)?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

impl Keeper {
    /// All of our warehouses that the catalog lists, sorted.
    async fn warehouses(&self) -> Result<Vec<String>, Failed> {
        let mut names = self.upstream.warehouses().await?;
        names.retain(|name| name.starts_with(&self.named));
        names.sort();
        Ok(names)
    }

    /// One warehouse after the other. What cannot be gone through is told, and does not keep the others from it.
    async fn run(
        &self,
        names: &[String],
        mode: Mode,
        (stop, bar): (&CancellationToken, &ProgressBar),
        mut told: impl FnMut(&str, &Result<Found, Failed>) -> io::Result<()>,
    ) -> Result<Summary, Failed> {
        let mut journal = if mode.remove { Some(self.journal(mode)?) } else { None };
        let mut summary = Summary { mode, ..Summary::default() };
        let mut judged = HashMap::new();
        let mut names: Vec<_> = names.iter().collect();
        names.sort_by_key(|name| journal.as_ref().is_some_and(|journal| journal.is_suspect(name)));
        for name in names {
            if stop.is_cancelled() {
                break;
            }
            if journal.as_ref().is_some_and(|journal| journal.is_done(name)) {
                summary.skipped += 1;
                continue;
            }
            if let Some(journal) = &mut journal {
                journal.begins(name)?;
            }
            let time = Duration::from_secs(self.settings.warehouse_s_max);
            let work = warehouse::maintain(self, name, mode, journal.as_ref(), (stop, bar));
            // Given up between any two steps, it has done no harm.
            let outcome = timeout(time, work).await.unwrap_or_else(|_| Err("it took too long".into()));
            told(name, &outcome)?;
            let Ok(found) = outcome else { continue };
            summary.add(&found);
            if let (Some(journal), true) = (&mut journal, found.whole && found.failed == 0 && !found.more) {
                journal.finished(name)?;
                judged.insert(name.clone(), stamp(found.cutoff));
            }
        }
        if let Some(journal) = journal {
            summary.settled = self.settle(judged).await?;
            if !stop.is_cancelled() {
                journal.close()?;
            }
        }
        Ok(summary)
    }

    fn journal(&self, mode: Mode) -> Result<Journal, Failed> {
        let dir = self.settings.dir.as_ref().ok_or("removing needs maintain.dir or storage.ledger_path")?;
        Ok(Journal::open(dir, self.settings.journal_bytes_max, mode.dropped)?)
    }

    /// Takes out of the ledgers what was judged: it is gone, or in use, and then a listing will find it when that ends.
    async fn settle(&self, judged: HashMap<String, String>) -> Result<u64, Failed> {
        let ledgers = self.ledgers.clone();
        let settle_all = move || -> io::Result<u64> {
            let done =
                |warehouse: &str, at: &str| judged.get(warehouse).is_some_and(|cutoff| at <= cutoff.as_str());
            ledgers.iter().map(|path| settle(path, |line| done(&line.warehouse, &line.at))).sum()
        };
        Ok(tokio::task::spawn_blocking(settle_all).await??)
    }
}

impl Summary {
    fn add(&mut self, found: &Found) {
        let tallies = found.tables.iter().map(|table| &table.tally).chain([&found.outside]);
        for tally in tallies {
            self.orphans += tally.orphans;
            self.orphan_bytes += tally.orphan_bytes;
        }
        self.warehouses += 1;
        self.removed += found.removed;
        self.removed_bytes += found.removed_bytes;
        self.failed += found.failed;
    }
}
