//! The file of records: JSON lines that hold each other, over several files.
//!
//! Given texts, hands on the lines as they stand in the file. What is full is set aside as `FILE.1`, `FILE.2`, …, the higher the older.
//! Never goes on behind half a line: what was torn is taken off and told in a line of its own.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::chain::{Broken, Chain, Found, Walk};
use super::now;
use super::redact::cut;
use super::settings::Settings;

/// A line is not longer, so that the last one is found from the end.
pub(super) const LINE_BYTES_MAX: u64 = 1 << 20;
/// What of a torn line is told.
const TORN_BYTES_MAX: usize = 4 << 10;
/// A machine that loses its power loses records no older than this.
const SYNC: Duration = Duration::from_secs(1);

/// The file that is written.
pub(super) struct Book {
    path: PathBuf,
    bytes_max: u64,
    files_max: usize,
    /// None after a failure, and then it is opened anew.
    open: Option<Open>,
    /// The last line.
    pub(super) chain: Chain,
    /// The last line that the disk has taken.
    written: Chain,
    synced: Instant,
}

struct Open {
    file: File,
    bytes: u64,
    dirty: bool,
}

impl Book {
    /// Opens the file, or makes it, and goes on after its last line.
    pub(super) fn open(path: &Path, settings: &Settings) -> io::Result<Self> {
        let mut book = Book {
            path: path.to_owned(),
            bytes_max: settings.file_bytes_max,
            files_max: settings.files_max,
            open: None,
            chain: Chain::new(),
            written: Chain::new(),
            synced: Instant::now(),
        };
        book.ready()?;
        Ok(book)
    }

    /// Writes these JSON objects, each as a line: what stands there now. After a failure none of them counts as written.
    pub(super) fn append(&mut self, texts: &[String]) -> io::Result<Vec<String>> {
        self.ready()?;
        let mut lines = Vec::with_capacity(texts.len());
        let mut pending = String::new();
        let outcome = texts.iter().try_for_each(|text| {
            let bytes = self.open.as_ref().map_or(0, |open| open.bytes) + pending.len() as u64;
            if bytes > 0 && bytes + text.len() as u64 > self.bytes_max {
                self.write(&std::mem::take(&mut pending))?;
                self.rotate()?;
            }
            let line = self.chain.seal(text);
            pending.push_str(&line);
            lines.push(line);
            Ok(())
        });
        let outcome = outcome.and_then(|()| self.write(&pending));
        if outcome.is_err() {
            self.chain = self.written.clone();
            self.open = None;
        }
        outcome.map(|()| lines)
    }

    /// Sees to it that what was written a while ago, or all of it, is on the disk.
    pub(super) fn sync(&mut self, all: bool) -> io::Result<()> {
        let due = all || self.synced.elapsed() >= SYNC;
        if let Some(open) = self.open.as_mut().filter(|open| open.dirty && due) {
            open.file.sync_data()?;
            open.dirty = false;
            self.synced = Instant::now();
        }
        Ok(())
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let open = self.open.as_mut().ok_or_else(|| io::Error::other("the file is not open"))?;
        if let Err(e) = open.file.write_all(text.as_bytes()) {
            // Half a line would be told as torn: better there is none of it.
            let _ = open.file.set_len(open.bytes);
            return Err(e);
        }
        open.bytes += text.len() as u64;
        open.dirty = true;
        self.written = self.chain.clone();
        Ok(())
    }

    /// Opens the file where it is not.
    fn ready(&mut self) -> io::Result<()> {
        if self.open.is_some() {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let options = || {
            let mut options = OpenOptions::new();
            options.read(true).append(true).create(true).mode(0o600);
            options
        };
        let mut file = options().open(&self.path)?;
        let in_use = |_| io::Error::other(format!("{} is another server's", self.path.display()));
        file.try_lock().map_err(in_use)?;
        let Tail { whole, last, torn } = tail(&mut file)?;
        let Some(last) = last else {
            // Also where all there is is half a first line.
            file.set_len(0)?;
            self.open = Some(Open { file, bytes: 0, dirty: true });
            return self.begin();
        };
        if !torn.is_empty() {
            file.set_len(whole)?;
        }
        self.open = Some(Open { file, bytes: whole, dirty: true });
        match Chain::after(&last) {
            Some(chain) => (self.chain, self.written) = (chain.clone(), chain),
            // Somebody else's last line. It stays where it is, and what was written before does not hold ours.
            None => return self.rotate(),
        }
        if torn.is_empty() {
            return Ok(());
        }
        let (bytes, mut text) = (torn.len(), String::from_utf8_lossy(&torn).into_owned());
        cut(&mut text, TORN_BYTES_MAX);
        tracing::error!(bytes, "the last line of the audit file was torn");
        let line = self
            .chain
            .seal(&json!({"event": "torn", "recorded_at": now(), "count": bytes, "text": text}).to_string());
        self.write(&line)
    }

    /// The first line of a file.
    fn begin(&mut self) -> io::Result<()> {
        let text = json!({"event": "file", "recorded_at": now(), "previous": self.chain.hash}).to_string();
        let line = self.chain.seal(&text);
        self.write(&line)
    }

    /// Sets the file aside and begins another.
    fn rotate(&mut self) -> io::Result<()> {
        self.sync(true)?;
        let aside = |number: usize| {
            let mut name = OsString::from(&self.path);
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        let mut last = 1;
        while aside(last).exists() {
            last += 1;
        }
        for number in (1..last).rev() {
            if self.files_max > 0 && number + 1 >= self.files_max {
                std::fs::remove_file(aside(number))?;
            } else {
                std::fs::rename(aside(number), aside(number + 1))?;
            }
        }
        if self.files_max == 1 {
            std::fs::remove_file(&self.path)?;
        } else {
            std::fs::rename(&self.path, aside(1))?;
        }
        let file =
            OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&self.path)?;
        file.try_lock().map_err(io::Error::other)?;
        self.open = Some(Open { file, bytes: 0, dirty: true });
        self.begin()
    }
}

/// How a file ends.
struct Tail {
    /// Bytes up to the end of its last whole line.
    whole: u64,
    /// That line.
    last: Option<String>,
    /// What stands behind it.
    torn: Vec<u8>,
}

fn tail(file: &mut File) -> io::Result<Tail> {
    let length = file.seek(SeekFrom::End(0))?;
    let from = length.saturating_sub(2 * LINE_BYTES_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(2 * LINE_BYTES_MAX).read_to_end(&mut bytes)?;
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        return Ok(Tail { whole: 0, last: None, torn: bytes });
    };
    let begin = bytes[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let last = Some(String::from_utf8_lossy(&bytes[begin..end]).into_owned());
    Ok(Tail { whole: from + end as u64 + 1, last, torn: bytes.split_off(end + 1) })
}

/// The first line that does not hold.
#[derive(Debug, thiserror::Error)]
pub enum NotVerified {
    /// This is why.
    #[error("{}:{line}: {why}", file.display())]
    Broken {
        /// Where it stands.
        file: PathBuf,
        /// Which line of it, from 1.
        line: u64,
        /// Why it does not hold.
        why: Broken,
    },
    /// A file cannot be read.
    #[error("{}: {cause}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

/// Reads files as the server has written them, in whatever order they are named; notes whether a hash is that of one of their lines.
pub fn verify(files: &[PathBuf], wanted: &str) -> Result<Found, NotVerified> {
    let mut texts = Vec::with_capacity(files.len());
    for file in files {
        let unreadable = |cause| NotVerified::Unreadable { file: file.clone(), cause };
        let mut first = Vec::new();
        let opened = File::open(file).map_err(unreadable)?;
        io::BufRead::read_until(&mut io::BufReader::new(opened.take(LINE_BYTES_MAX)), b'\n', &mut first)
            .map_err(unreadable)?;
        let first = String::from_utf8_lossy(&first);
        texts.push((Chain::after(first.trim_end_matches('\n')).map_or(0, |chain| chain.seq), file));
    }
    texts.sort();
    let mut walk = Walk::looking_for(wanted);
    for (_, file) in texts {
        read(file, &mut walk)?;
    }
    Ok(walk.end())
}

fn read(file: &Path, walk: &mut Walk) -> Result<(), NotVerified> {
    let unreadable = |cause| NotVerified::Unreadable { file: file.to_owned(), cause };
    let mut reader = io::BufReader::new(File::open(file).map_err(unreadable)?);
    let mut bytes = Vec::new();
    for line in 1.. {
        let broken = |why| NotVerified::Broken { file: file.to_owned(), line, why };
        bytes.clear();
        let mut limited = io::Read::take(&mut reader, LINE_BYTES_MAX);
        if io::BufRead::read_until(&mut limited, b'\n', &mut bytes).map_err(unreadable)? == 0 {
            // An empty file has lost its first line.
            return if line == 1 { Err(broken(Broken::NoBeginning)) } else { Ok(()) };
        }
        let text = bytes.strip_suffix(b"\n").ok_or_else(|| broken(Broken::Torn))?;
        let text = std::str::from_utf8(text).map_err(|_| broken(Broken::Foreign))?;
        walk.line(text, line == 1).map_err(broken)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings(file_bytes_max: u64, files_max: usize) -> Settings {
        Settings { file_bytes_max, files_max, ..Settings::default() }
    }

    fn texts(numbers: std::ops::Range<u32>) -> Vec<String> {
        numbers.map(|n| json!({"event": "end", "request_id": n.to_string()}).to_string()).collect()
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn files_are_set_aside_when_full_and_hold_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/audit.jsonl");
        let mut book = Book::open(&path, &settings(2_000, 0)).unwrap();
        for n in 0..30 {
            book.append(&texts(n * 3..n * 3 + 3)).unwrap();
        }
        let all = files(path.parent().unwrap());
        let found = verify(&all, "").unwrap();
        assert!(all.len() > 4 && all.iter().all(|file| file.metadata().unwrap().len() <= 2_200), "{all:?}");
        assert_eq!(
            (found.lines, found.last, found.head),
            (90 + all.len() as u64, book.chain.seq, book.chain.hash)
        );
        assert!(all.iter().all(|file| file.metadata().unwrap().permissions().mode() & 0o777 == 0o600));
        // One alone holds, too; with one missing between them they do not.
        assert!(verify(&all[..1], "").is_ok());
        let gap: Vec<PathBuf> = all.into_iter().filter(|file| !file.ends_with("audit.jsonl.2")).collect();
        assert!(matches!(verify(&gap, ""), Err(NotVerified::Broken { line: 1, why: Broken::Hash, .. })));
    }

    #[test]
    fn only_so_many_files_are_kept_and_the_newest_of_them() {
        for files_max in 1..4 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("audit.jsonl");
            let mut book = Book::open(&path, &settings(1_000, files_max)).unwrap();
            for n in 0..50 {
                book.append(&texts(n..n + 1)).unwrap();
            }
            let all = files(folder.path());
            let found = verify(&all, "").unwrap();
            assert_eq!((all.len(), found.last), (files_max, book.chain.seq));
        }
    }

    #[test]
    fn after_a_restart_the_chain_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for n in 0..5 {
            Book::open(&path, &settings(1 << 20, 0)).unwrap().append(&texts(n..n + 2)).unwrap();
        }
        assert_eq!(verify(&[path], "").unwrap().lines, 11);
    }

    #[test]
    fn a_torn_line_is_told_and_breaks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        Book::open(&path, &settings(1 << 20, 0)).unwrap().append(&texts(0..3)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in [1, 20, 100] {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            let why = verify(std::slice::from_ref(&path), "").unwrap_err();
            assert!(matches!(why, NotVerified::Broken { line: 4, why: Broken::Torn, .. }), "{why}");
            Book::open(&path, &settings(1 << 20, 0)).unwrap().append(&texts(7..8)).unwrap();
            let found = verify(std::slice::from_ref(&path), "").unwrap();
            assert_eq!((found.lines, found.torn), (5, 1));
            assert!(std::fs::read_to_string(&path).unwrap().contains("\"text\":\"{\\\"seq\\\":4"));
        }
        // Half a first line is none.
        std::fs::write(&path, "{\"se").unwrap();
        Book::open(&path, &settings(1 << 20, 0)).unwrap();
        assert_eq!(verify(&[path], "").unwrap().lines, 1);
    }

    #[test]
    fn a_foreign_last_line_is_kept_and_not_gone_on_from() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, "not ours\n").unwrap();
        Book::open(&path, &settings(1 << 20, 0)).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join("audit.jsonl.1")).unwrap(), "not ours\n");
        assert!(verify(&[path], "").is_ok() && verify(&files(folder.path()), "").is_err());
    }

    #[test]
    fn two_servers_do_not_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let _one = Book::open(&path, &settings(1 << 20, 0)).unwrap();
        assert!(Book::open(&path, &settings(1 << 20, 0)).is_err());
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_an_error_and_the_next_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut book = Book::open(&path, &settings(1 << 20, 0)).unwrap();
        book.append(&texts(0..1)).unwrap();
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let bytes = book.open.as_ref().unwrap().bytes;
        let good = book.open.replace(Open { file: full, bytes, dirty: false });
        drop(good);
        assert!(book.append(&texts(1..3)).is_err());
        book.append(&texts(3..4)).unwrap();
        assert_eq!(verify(&[path], "").unwrap().lines, 3);
    }
}
