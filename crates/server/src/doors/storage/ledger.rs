//! What workers wanted deleted.
//!
//! Given the keys of a DELETE, appends them to a file of JSON lines, and never deletes: `DuckDB` 1.5.5 deletes its data
//! files when the answer to a commit is lost, although the catalog may have committed. Maintenance decides later, with
//! the snapshots in hand. A line that could not be written is only an orphan that a listing finds.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use s3s::dto::{Timestamp, TimestampFormat};
use serde::{Deserialize, Serialize};

use super::settings::Settings;

/// A candidate for deletion, one line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// When the worker asked, RFC 3339 in UTC.
    pub at: String,
    /// The worker's warehouse.
    pub warehouse: String,
    /// The bucket.
    pub bucket: String,
    /// The key in it.
    pub key: String,
}

impl Candidate {
    pub(super) fn now(warehouse: &str, bucket: &str, key: &str) -> Self {
        let mut at = Vec::new();
        // Writing to memory does not fail, and a year beyond 9999 may stay empty.
        let _ = Timestamp::from(SystemTime::now()).format(TimestampFormat::DateTime, &mut at);
        let at = String::from_utf8_lossy(&at).into_owned();
        Self { at, warehouse: warehouse.into(), bucket: bucket.into(), key: key.into() }
    }
}

/// The file of candidates. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Ledger(Option<Arc<Book>>);

struct Book {
    path: PathBuf,
    bytes_max: u64,
    open: Mutex<Option<(File, u64)>>,
}

impl Ledger {
    /// The ledger that the settings describe.
    pub fn of(settings: &Settings) -> Self {
        Self::new(settings.ledger_path.as_deref(), settings.limits.ledger_bytes_max)
    }

    /// A ledger in this file, which is opened at the first candidate. Without a path, candidates stand in the log alone.
    pub fn new(path: Option<&Path>, bytes_max: u64) -> Self {
        Self(path.map(|path| Arc::new(Book { path: path.into(), bytes_max, open: Mutex::default() })))
    }

    /// Writes the candidates down and waits until they are on the disk. A failure is logged and otherwise passed over.
    pub(super) async fn write(&self, candidates: Vec<Candidate>) {
        let Some(book) = self.0.clone() else {
            tracing::info!(?candidates, "candidates for deletion, and no ledger to hold them");
            return;
        };
        let written = tokio::task::spawn_blocking(move || (book.append(&candidates), candidates)).await;
        match written {
            Ok((Ok(()), _)) => {}
            Ok((Err(error), candidates)) => {
                tracing::error!(%error, ?candidates, "the ledger of deletions was not written");
            }
            Err(error) => tracing::error!(%error, "the ledger of deletions was not written"),
        }
    }
}

impl Book {
    /// One lock for all: a rotation must not happen between two halves of a batch.
    fn append(&self, candidates: &[Candidate]) -> io::Result<()> {
        let mut lines = Vec::new();
        for candidate in candidates {
            serde_json::to_writer(&mut lines, candidate)?;
            lines.push(b'\n');
        }
        let mut slot = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut file, mut bytes) = match slot.take() {
            Some(open) => open,
            None => self.open()?,
        };
        if bytes > 0 && bytes + lines.len() as u64 > self.bytes_max {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            std::fs::rename(&self.path, aside)?;
            (file, bytes) = self.open()?;
        }
        file.write_all(&lines)?;
        file.sync_data()?;
        // Kept only after success: after a failure the file is opened anew.
        *slot = Some((file, bytes + lines.len() as u64));
        Ok(())
    }

    fn open(&self) -> io::Result<(File, u64)> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<Candidate> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn candidates_of_many_writers_are_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/ledger.jsonl");
        let ledger = Ledger::new(Some(&path), 1 << 20);
        let write = |n: u32| {
            let ledger = ledger.clone();
            async move { ledger.write(vec![Candidate::now("w_a", "lake", &format!("w_a/{n}\n\"")); 2]).await }
        };
        futures::future::join_all((0..50).map(write)).await;
        assert_eq!(lines(&path).len(), 100);
        assert!(lines(&path)[0].at.ends_with('Z'), "{}", lines(&path)[0].at);
    }

    #[tokio::test]
    async fn the_ledger_stays_within_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let ledger = Ledger::new(Some(&path), 500);
        for n in 0..50 {
            ledger.write(vec![Candidate::now("w_a", "lake", &format!("w_a/{n}"))]).await;
        }
        let aside = folder.path().join("ledger.jsonl.1");
        assert!(
            std::fs::metadata(&path).unwrap().len() <= 500 && std::fs::metadata(&aside).unwrap().len() <= 500
        );
        assert_eq!(lines(&path).last().unwrap().key, "w_a/49");
    }

    #[tokio::test]
    async fn a_ledger_that_cannot_be_written_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        Ledger::new(Some(folder.path()), 500).write(vec![Candidate::now("w_a", "lake", "w_a/x")]).await;
    }
}
