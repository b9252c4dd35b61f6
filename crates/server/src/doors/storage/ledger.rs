//! What workers wanted deleted.
//!
//! Given the keys of a DELETE, appends them to a file of JSON lines, and never deletes: `DuckDB` 1.5.5 deletes its data
//! files when the answer to a commit is lost, although the catalog may have committed. Maintenance decides later, with
//! the snapshots in hand. A line that could not be written is only an orphan that a listing finds.
//!
//! Whoever writes, sets aside or shortens the file holds its lock, and looks again whether it still is the file at the
//! path: so maintenance may put a shorter one in its place while servers append, and no line is lost.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
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
        let at = stamp(SystemTime::now());
        Self { at, warehouse: warehouse.into(), bucket: bucket.into(), key: key.into() }
    }
}

/// A time as the ledger writes it, RFC 3339 in UTC: earlier times are lesser texts.
pub fn stamp(at: SystemTime) -> String {
    let mut text = Vec::new();
    // Writing to memory does not fail, and a year beyond 9999 may stay empty.
    let _ = Timestamp::from(at).format(TimestampFormat::DateTime, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The file of candidates. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Ledger(Option<Arc<Book>>);

struct Book {
    path: PathBuf,
    bytes_max: u64,
    open: Mutex<Option<File>>,
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
        let mut file = held(&self.path, slot.take())?;
        let bytes = file.metadata()?.len();
        if bytes > 0 && bytes + lines.len() as u64 > self.bytes_max {
            std::fs::rename(&self.path, aside(&self.path))?;
            file = held(&self.path, None)?;
        }
        file.write_all(&lines)?;
        file.sync_data()?;
        file.unlock()?;
        // Kept only after success: after a failure the file is opened anew, and the lock is gone with it.
        *slot = Some(file);
        Ok(())
    }
}

/// Where a full ledger is set aside.
fn aside(path: &Path) -> PathBuf {
    let mut aside = path.to_owned().into_os_string();
    aside.push(".1");
    aside.into()
}

/// The file at the path, locked: this one if it is still there, else the one that has taken its place.
fn held(path: &Path, mut open: Option<File>) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    for _ in 0..TURNS_MAX {
        let file = match open.take() {
            Some(file) => file,
            None => OpenOptions::new().create(true).append(true).open(path)?,
        };
        file.lock()?;
        let ours = file.metadata()?;
        if std::fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
    Err(io::Error::other("another file took the ledger's place again and again"))
}

/// How often another file may have taken the ledger's place while its lock was awaited.
const TURNS_MAX: usize = 16;

/// Calls `each` with the candidates of a ledger and of what it has set aside, the oldest first. A ledger that is not there
/// has none; a line that is none is passed over.
pub fn candidates(path: &Path, mut each: impl FnMut(Candidate)) -> io::Result<()> {
    [aside(path), path.to_owned()].iter().try_for_each(|path| {
        lines(path, |line| {
            if let Ok(candidate) = serde_json::from_str(line) {
                each(candidate);
            }
            Ok(())
        })
    })
}

/// Takes the candidates out of a ledger that are `done`; all other lines stay. How many went.
pub fn settle(path: &Path, done: impl Fn(&Candidate) -> bool) -> io::Result<u64> {
    if !path.exists() && !aside(path).exists() {
        return Ok(0);
    }
    // Who holds this lock may rewrite both: only who holds it sets aside.
    let _held = held(path, None)?;
    Ok(shorten(&aside(path), &done)? + shorten(path, &done)?)
}

fn shorten(path: &Path, done: &impl Fn(&Candidate) -> bool) -> io::Result<u64> {
    let mut shorter = path.to_owned().into_os_string();
    shorter.push(".new");
    let mut gone = 0;
    let mut file = BufWriter::new(File::create(&shorter)?);
    lines(path, |line| {
        if serde_json::from_str(line).is_ok_and(|candidate| done(&candidate)) {
            gone += 1;
            return Ok(());
        }
        file.write_all(line.as_bytes())?;
        file.write_all(b"\n")
    })?;
    file.flush()?;
    file.get_ref().sync_data()?;
    if gone > 0 {
        std::fs::rename(shorter, path)?;
    } else {
        std::fs::remove_file(shorter)?;
    }
    Ok(gone)
}

fn lines(path: &Path, mut each: impl FnMut(&str) -> io::Result<()>) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => BufReader::new(file?),
    };
    file.split(b'\n').try_for_each(|line| each(&String::from_utf8_lossy(&line?)))
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

    /// Many servers append while maintenance takes out what is done: every line is either done or still there.
    #[test]
    fn no_line_is_lost_while_the_ledger_is_shortened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let done = |candidate: &Candidate| candidate.key.ends_with("even");
        let mut taken = 0;
        std::thread::scope(|scope| {
            let path = &path;
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    scope.spawn(move || {
                        let Ledger(book) = Ledger::new(Some(path), 1 << 20);
                        for n in 0..100 {
                            let parity = if n % 2 == 0 { "even" } else { "odd" };
                            let key = format!("{writer}-{n}-{parity}");
                            book.as_ref().unwrap().append(&[Candidate::now("w_a", "lake", &key)]).unwrap();
                        }
                    })
                })
                .collect();
            while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                taken += settle(path, done).unwrap();
            }
        });
        taken += settle(&path, done).unwrap();
        let left = lines(&path);
        assert_eq!((taken, left.len()), (200, 200));
        assert!(left.iter().all(|candidate| candidate.key.ends_with("odd")));
    }

    #[tokio::test]
    async fn what_is_set_aside_is_read_and_shortened_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let ledger = Ledger::new(Some(&path), 500);
        for n in 0..9 {
            ledger.write(vec![Candidate::now("w_a", "lake", &format!("w_a/{n}"))]).await;
        }
        let keys = || {
            let mut keys = Vec::new();
            candidates(&path, |candidate| keys.push(candidate.key)).unwrap();
            keys
        };
        let before = keys();
        assert!(before.len() > 3 && before.is_sorted() && aside(&path).exists(), "{before:?}");
        let gone = settle(&path, |candidate| candidate.key != "w_a/8").unwrap();
        assert_eq!((gone, keys()), (before.len() as u64 - 1, vec!["w_a/8".to_owned()]));
    }

    #[test]
    fn an_earlier_time_is_a_lesser_text() {
        let at = |ms| stamp(SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(ms));
        assert_eq!(at(1_000), "1970-01-01T00:00:01.000Z");
        assert!(at(999) < at(1_000) && at(1_000) < at(1_001) && at(86_399_999) < at(86_400_000));
    }

    #[tokio::test]
    async fn a_ledger_that_cannot_be_written_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        Ledger::new(Some(folder.path()), 500).write(vec![Candidate::now("w_a", "lake", "w_a/x")]).await;
    }
}
