//! What a run that removes leaves on the disk: a lock, so that there is one at a time; each object, before it is deleted;
//! and how far it has come, so that the next one goes on where a killed one stopped.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::survey::Orphan;
use crate::doors::storage::stamp;

const LOCK: &str = "lock";
const JOURNAL: &str = "removed.jsonl";
const RUN: &str = "run.json";
const ENDED: &str = "ended";
/// What a run had finished that was killed longer ago is gone through again.
const RESUMED_AGE_MAX: Duration = Duration::from_hours(12);

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another run holds it.
    #[error("another run is at work in {0}")]
    Busy(PathBuf),
    /// It cannot be written.
    #[error("the journal in {0}: {1}")]
    Io(PathBuf, #[source] io::Error),
}

/// A run, as the next one finds it when this one is killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    id: Uuid,
    dropped: bool,
    /// The warehouses that it has begun.
    begun: BTreeSet<String>,
    /// Of these, those that it has finished.
    done: BTreeSet<String>,
}

/// The journal of the one run that may remove.
pub(super) struct Journal {
    dir: PathBuf,
    bytes_max: u64,
    run: Run,
    _lock: File,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    run: Uuid,
    warehouse: &'a str,
    bucket: &'a str,
    key: &'a str,
    bytes: u64,
    modified: String,
    table: Option<&'a str>,
}

impl Journal {
    /// Opens it for a run; goes on with one of the same kind that was killed.
    pub(super) fn open(dir: &Path, bytes_max: u64, dropped: bool) -> Result<Journal, JournalError> {
        let failed = |error| JournalError::Io(dir.to_owned(), error);
        std::fs::create_dir_all(dir).map_err(failed)?;
        let lock = File::create(dir.join(LOCK)).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => JournalError::Busy(dir.to_owned()),
            std::fs::TryLockError::Error(error) => failed(error),
        })?;
        let killed = killed(&dir.join(RUN)).filter(|run| run.dropped == dropped);
        let run = killed.unwrap_or_else(|| Run {
            id: Uuid::now_v7(),
            dropped,
            begun: BTreeSet::new(),
            done: BTreeSet::new(),
        });
        let journal = Journal { dir: dir.to_owned(), bytes_max, run, _lock: lock };
        journal.keep().map_err(failed)?;
        Ok(journal)
    }

    /// Whether a run that was killed had finished this warehouse.
    pub(super) fn is_done(&self, warehouse: &str) -> bool {
        self.run.done.contains(warehouse)
    }

    /// Whether a run had begun this warehouse and not come to its end. It comes last, because it may be what ended the run.
    pub(super) fn is_suspect(&self, warehouse: &str) -> bool {
        self.run.begun.contains(warehouse) && !self.is_done(warehouse)
    }

    /// Writes down what is about to be deleted, and waits until that is on the disk.
    pub(super) fn intend<'a>(
        &self,
        (warehouse, bucket): (&str, &str),
        orphans: &'a [Orphan],
        table: impl Fn(&'a Orphan) -> Option<&'a str>,
    ) -> io::Result<()> {
        let at = stamp(SystemTime::now());
        let mut lines = Vec::new();
        for orphan in orphans {
            let line = Line {
                at: at.clone(),
                run: self.run.id,
                warehouse,
                bucket,
                key: &orphan.object.key,
                bytes: orphan.object.bytes,
                modified: stamp(orphan.object.modified),
                table: table(orphan),
            };
            serde_json::to_writer(&mut lines, &line)?;
            lines.push(b'\n');
        }
        let path = self.dir.join(JOURNAL);
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        let bytes = file.metadata()?.len();
        if bytes > 0 && bytes + lines.len() as u64 > self.bytes_max {
            std::fs::rename(&path, self.dir.join(format!("{JOURNAL}.1")))?;
            file = OpenOptions::new().create(true).append(true).open(&path)?;
        }
        file.write_all(&lines)?;
        file.sync_data()
    }

    /// A warehouse is begun.
    pub(super) fn begins(&mut self, warehouse: &str) -> io::Result<()> {
        self.run.begun.insert(warehouse.to_owned());
        self.keep()
    }

    /// A warehouse is finished.
    pub(super) fn finished(&mut self, warehouse: &str) -> io::Result<()> {
        self.run.done.insert(warehouse.to_owned());
        self.keep()
    }

    /// The run has come to its end: the next one begins anew.
    pub(super) fn close(self) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(RUN))
    }

    fn keep(&self) -> io::Result<()> {
        let (path, new) = (self.dir.join(RUN), self.dir.join("run.json.new"));
        let mut file = File::create(&new)?;
        serde_json::to_writer(&mut file, &self.run)?;
        file.sync_data()?;
        std::fs::rename(new, path)
    }
}

/// A run that did not come to its end, unless that was too long ago.
fn killed(path: &Path) -> Option<Run> {
    let age = std::fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()?;
    let text = std::fs::read(path).ok().filter(|_| age < RESUMED_AGE_MAX)?;
    serde_json::from_slice(&text).ok()
}

/// Remembers that the schedule has run.
pub(super) fn note_end(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    File::create(dir.join(ENDED))?.write_all(stamp(SystemTime::now()).as_bytes())
}

/// When it has.
pub(super) fn last_end(dir: &Path) -> Option<SystemTime> {
    std::fs::metadata(dir.join(ENDED)).ok()?.modified().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::storage::Object;

    #[test]
    fn there_is_one_run_at_a_time_and_the_next_goes_on_where_a_killed_one_stopped() {
        let home = tempfile::tempdir().unwrap();
        let open = |dropped| Journal::open(home.path(), 1_000, dropped);
        let mut first = open(false).unwrap();
        first.finished("w_a").unwrap();
        assert!(matches!(open(false), Err(JournalError::Busy(_))));
        // As a killed one is.
        drop(first);
        let mut second = open(false).unwrap();
        assert!(second.is_done("w_a") && !second.is_done("w_b") && !second.is_suspect("w_b"));
        second.begins("w_b").unwrap();
        drop(second);
        let second = open(false).unwrap();
        assert!(second.is_suspect("w_b") && !second.is_suspect("w_a"));
        second.close().unwrap();
        let third = open(false).unwrap();
        assert!(!third.is_done("w_a"));
    }

    #[test]
    fn a_run_of_another_kind_begins_anew() {
        let home = tempfile::tempdir().unwrap();
        Journal::open(home.path(), 1_000, false).unwrap().finished("w_a").unwrap();
        assert!(!Journal::open(home.path(), 1_000, true).unwrap().is_done("w_a"));
    }

    #[test]
    fn what_is_about_to_go_is_written_down_within_the_bound() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::open(home.path(), 600, false).unwrap();
        let object = |key: &str| Object { key: key.into(), bytes: 7, modified: SystemTime::UNIX_EPOCH };
        for n in 0..9 {
            let orphan = Orphan { object: object(&format!("w_a/{n}")), table: None };
            journal.intend(("w_a", "lake"), &[orphan], |_| Some("s.t")).unwrap();
        }
        let text = std::fs::read_to_string(home.path().join(JOURNAL)).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&last["key"], &last["bytes"], &last["table"]),
            (&"w_a/8".into(), &7.into(), &"s.t".into())
        );
        let sizes =
            [JOURNAL, "removed.jsonl.1"].map(|name| std::fs::metadata(home.path().join(name)).unwrap().len());
        assert!(sizes.iter().all(|size| *size <= 600), "{sizes:?}");
    }
}
