//! What is left of every statement: a record when it begins and one when it ends.
//!
//! Given a statement's [`Trail`], hands its records to a thread that writes them to the sinks: the history of its workspace, a file whose
//! lines hold each other, standard output, a table. Never waits for a sink and never fails a statement: a record that finds no room is
//! lost, and how many were is told in the file and in `GET /status`. Never records a parameter's value or a secret that it can tell.

mod chain;
mod file;
mod history;
mod redact;
mod settings;
mod table;
mod trail;
mod writer;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use duck_contract::Code;
use duck_contract::audit::AuditRecord;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

pub use self::chain::{Broken, Found};
pub use self::file::{NotVerified, verify};
use self::history::History;
pub use self::settings::{Settings, TableSettings};
pub use self::table::{Gatherer, Inserts};
pub(crate) use self::trail::{Asked, Fate, Trail};
use self::writer::{Message, Writer};

/// For what waits to be written when the server ends.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Between two attempts at the same.
const CLOSE_PAUSE: Duration = Duration::from_millis(10);

/// The records of this server. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Audit(Option<Arc<Inner>>);

struct Inner {
    sender: SyncSender<Message>,
    statement_bytes_max: usize,
    shared: Arc<Shared>,
    waiting_max: usize,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

/// What the thread that writes has in common with who asks.
struct Shared {
    history: Mutex<History>,
    /// Records that found no room, and those that the file has not taken.
    lost: AtomicU64,
    unwritten: AtomicU64,
    taken: AtomicU64,
    waiting: AtomicU64,
    /// Number and hash of the last line.
    head: Mutex<Option<chain::Chain>>,
    table: Option<table::Feed>,
}

impl Audit {
    /// Opens the sinks. What comes with it is run to fill the table, where there is one.
    pub fn open(settings: &Settings) -> std::io::Result<(Audit, Option<Gatherer>)> {
        let nowhere = settings.path().is_none() && !settings.stdout && settings.table.is_none();
        if nowhere && settings.history_per_workspace_max == 0 {
            return Ok((Audit::off(), None));
        }
        let server = uuid::Uuid::now_v7().to_string();
        let (feed, gatherer) = settings
            .table
            .clone()
            .map(|table| table::table(table, server.clone()))
            .map_or((None, None), |(feed, gatherer)| (Some(feed), Some(gatherer)));
        let shared = Arc::new(Shared {
            history: Mutex::new(History::new(settings.history_per_workspace_max, settings.history_bytes_max)),
            lost: AtomicU64::new(0),
            unwritten: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            head: Mutex::new(None),
            table: feed,
        });
        let (sender, inbox) = sync_channel(settings.waiting_max);
        let (ends, ended) = oneshot::channel();
        let writer = Writer::open(settings, shared.clone(), &server)?;
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            writer.run(&inbox);
            drop(ends);
        })?;
        let inner = Inner {
            sender,
            statement_bytes_max: settings.statement_bytes_max,
            shared,
            waiting_max: settings.waiting_max,
            ended: Mutex::new(Some(ended)),
        };
        Ok((Audit(Some(Arc::new(inner))), gatherer))
    }

    /// Nothing is recorded.
    pub fn off() -> Audit {
        Audit(None)
    }

    /// A change that was refused before it had a permit.
    pub(crate) fn refused<'s>(&self, asked: Asked, statements: impl Iterator<Item = &'s str>, code: Code) {
        if let Some(inner) = self.0.as_ref().filter(|_| trail::is_refused_change(code.as_str())) {
            let record = trail::refused(asked, inner.redacted(statements), code);
            inner.put(Message::Record(Box::new(record)));
        }
    }

    /// The last records of a workspace, the newest first.
    pub fn history(&self, workspace: &str, limit: usize) -> Vec<AuditRecord> {
        let Some(inner) = &self.0 else { return Vec::new() };
        let history = inner.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
        let records = history.of(workspace, limit);
        drop(history);
        records.iter().map(|record| (**record).clone()).collect()
    }

    /// What operators have to know.
    pub fn status(&self) -> serde_json::Value {
        let Some(Inner { shared, waiting_max, .. }) = self.0.as_deref() else { return json!(null) };
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let head = shared.head.lock().unwrap_or_else(PoisonError::into_inner).clone();
        json!({
            "taken": read(&shared.taken),
            "waiting": read(&shared.waiting),
            "waiting_max": waiting_max,
            "lost": read(&shared.lost),
            "unwritten": read(&shared.unwritten),
            "head": head,
            "table": shared.table.as_ref().map(table::Feed::gauges),
        })
    }

    /// Completes when everything that was recorded so far is written, or after a while.
    pub async fn settle(&self) {
        let Some(inner) = &self.0 else { return };
        let until = Instant::now() + CLOSE_MAX;
        let (done, settled) = oneshot::channel();
        if inner.tell(Message::Settle(done), until).await {
            let _ = timeout_at(until, settled).await;
        }
    }

    /// Writes what waits and ends. What comes later is lost.
    pub async fn close(&self) {
        let Some(inner) = &self.0 else { return };
        let until = Instant::now() + CLOSE_MAX;
        let ended = inner.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (true, Some(ended)) = (inner.tell(Message::Close, until).await, ended) {
            let _ = timeout_at(until, ended).await;
        }
    }
}

impl Inner {
    fn redacted<'s>(&self, statements: impl Iterator<Item = &'s str>) -> String {
        redact::redacted(statements, self.statement_bytes_max)
    }

    /// Hands a record on, if there is room.
    fn put(&self, record: Message) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.try_send(record).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells the thread something as soon as there is room. Whether it was told.
    async fn tell(&self, mut message: Message, until: Instant) -> bool {
        loop {
            message = match self.sender.try_send(message) {
                Ok(()) => return true,
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(back)) => back,
            };
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(CLOSE_PAUSE).await;
        }
    }
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use duck_contract::Role;

    use super::*;

    pub(super) fn record(workspace: &str, id: &str) -> AuditRecord {
        let asked = Asked {
            request_id: id.into(),
            workspace: workspace.into(),
            subject: "s".into(),
            role: Role::Writer,
            arrived: Instant::now(),
            rule: None,
        };
        trail::refused(asked, "SELECT 1".into(), Code::WriteTargetClosed)
    }

    fn told(workspace: &str, id: &str) -> Message {
        Message::Record(Box::new(record(workspace, id)))
    }

    fn settings(path: &std::path::Path, waiting_max: usize) -> Settings {
        Settings { file: Some(path.to_owned()), waiting_max, ..Settings::default() }
    }

    #[tokio::test]
    async fn what_was_recorded_is_in_the_file_when_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (audit, _) = Audit::open(&settings(&path, 10_000)).unwrap();
        for n in 0..1_000 {
            audit.0.as_ref().unwrap().put(told("w", &n.to_string()));
        }
        audit.settle().await;
        assert_eq!(
            audit.history("w", 3).iter().map(|r| r.request_id.as_str()).collect::<Vec<_>>(),
            ["999", "998", "997"]
        );
        assert!(audit.history("v", 3).is_empty());
        audit.close().await;
        let found = verify(&[path], "").unwrap();
        // With the beginning of the file, and of the server, and its end.
        assert_eq!((found.lines, found.lost), (1_003, 0));
        assert_eq!(audit.status()["head"]["hash"], found.head);
        audit.0.as_ref().unwrap().put(told("w", "late"));
        assert_eq!(audit.status()["lost"], 1);
    }

    #[tokio::test]
    async fn a_sink_that_hangs_holds_up_nobody_and_the_loss_stands_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (audit, _) = Audit::open(&settings(&path, 5)).unwrap();
        let inner = audit.0.clone().unwrap();
        // The thread waits for this lock as it would for a disk.
        let held = inner.shared.history.lock().unwrap();
        let began = Instant::now();
        for n in 0..100 {
            inner.put(told("w", &n.to_string()));
        }
        assert!(began.elapsed() < Duration::from_secs(1));
        let lost = audit.status()["lost"].as_u64().unwrap();
        assert!((80..=95).contains(&lost), "{lost}");
        drop(held);
        audit.settle().await;
        inner.put(told("w", "after"));
        audit.close().await;
        let found = verify(&[path], "").unwrap();
        assert_eq!(found.lost, lost);
    }

    #[tokio::test]
    async fn a_file_that_takes_nothing_fails_nobody_and_its_loss_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let small = Settings { file_bytes_max: 4_096, files_max: 2, ..settings(&path, 1_000) };
        let (audit, _) = Audit::open(&small).unwrap();
        // What is full cannot be set aside: somebody made a folder of that name.
        std::fs::create_dir(folder.path().join("audit.jsonl.1")).unwrap();
        let inner = audit.0.clone().unwrap();
        let mut put = 0;
        while audit.status()["unwritten"] == 0 && put < 1_000 {
            inner.put(told("w", &put.to_string()));
            audit.settle().await;
            put += 1;
        }
        let unwritten = audit.status()["unwritten"].as_u64().unwrap();
        assert!(unwritten > 0);
        assert_eq!(audit.history("w", 1)[0].request_id, (put - 1).to_string());
        std::fs::remove_dir(folder.path().join("audit.jsonl.1")).unwrap();
        inner.put(told("w", "after"));
        audit.close().await;
        assert!(verify(&[path.clone(), folder.path().join("audit.jsonl.1")], "").unwrap().lost >= unwritten);
    }
}
