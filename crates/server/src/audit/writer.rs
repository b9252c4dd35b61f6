//! The thread that writes. It alone waits for sinks.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use duck_contract::audit::{AuditEvent, AuditRecord};
use serde_json::json;
use tokio::sync::oneshot;

use super::chain::Chain;
use super::file::Book;
use super::settings::Settings;
use super::trail::Usage;
use super::{Shared, now};

/// Records that are written at once.
const BATCH_MAX: usize = 1_024;
/// How long it sleeps when nothing comes.
const LOOK: Duration = Duration::from_secs(1);
/// After something has come it waits for more: whoever hands over a record does not have to wake it meanwhile, which costs more than
/// the record. What a killed server loses is not older.
const GATHER: Duration = Duration::from_millis(5);
/// What a record takes in memory beside its text.
const RECORD_BYTES: usize = 512;

/// What the thread is told.
pub(super) enum Message {
    /// To write this, and to look at what its engine has used.
    Start(Box<AuditRecord>, Usage),
    /// To write this.
    Record(Box<AuditRecord>),
    /// To say when everything before is written.
    Settle(oneshot::Sender<()>),
    /// To write what is there and end.
    Close,
}

/// The sinks.
pub(super) struct Writer {
    shared: Arc<Shared>,
    book: Option<Book>,
    /// Lines of standard output hold each other, too, where there is no file.
    chain: Chain,
    stdout: bool,
    /// Of what was lost: so much is told.
    told: u64,
    faulty: bool,
}

impl Writer {
    /// Opens the file, where there is one.
    pub(super) fn open(settings: &Settings, shared: Arc<Shared>, server: &str) -> std::io::Result<Self> {
        let book = settings.path().map(|path| Book::open(path, settings)).transpose()?;
        let mut writer =
            Writer { shared, book, chain: Chain::new(), stdout: settings.stdout, told: 0, faulty: false };
        let version = env!("CARGO_PKG_VERSION");
        writer.write(vec![
            json!({"event": "opened", "recorded_at": now(), "server": server, "version": version})
                .to_string(),
        ]);
        Ok(writer)
    }

    /// Until it is told to close, or nobody is left who could tell it anything.
    pub(super) fn run(mut self, inbox: &Receiver<Message>) {
        let mut closing = false;
        while !closing {
            let first = match inbox.recv_timeout(LOOK) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if first.is_some() {
                std::thread::sleep(GATHER);
            }
            let (mut batch, mut settled) = (Vec::new(), Vec::new());
            for message in first.into_iter().chain(inbox.try_iter()).take(BATCH_MAX) {
                match message {
                    Message::Start(record, usage) => {
                        usage.look();
                        batch.push(*record);
                    }
                    Message::Record(record) => batch.push(*record),
                    Message::Settle(done) => settled.push(done),
                    Message::Close => closing = true,
                }
            }
            self.put(batch);
            self.sync(false);
            for done in settled {
                let _ = done.send(());
            }
        }
        self.write(vec![json!({"event": "closed", "recorded_at": now()}).to_string()]);
        self.sync(true);
    }

    fn put(&mut self, batch: Vec<AuditRecord>) {
        let records = batch.len() as u64;
        let mut texts = Vec::with_capacity(batch.len() + 1);
        for record in batch {
            // Text and numbers: this does not fail.
            let Ok(text) = serde_json::to_string(&record) else { continue };
            let bytes = text.len() * 2 + RECORD_BYTES;
            if record.event != AuditEvent::Start {
                let mut history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.keep(record.into(), bytes);
            }
            if let Some(table) = &self.shared.table {
                table.put(text.clone());
            }
            texts.push(text);
        }
        self.write(texts);
        self.shared.taken.fetch_add(records, Ordering::Relaxed);
        self.shared.waiting.fetch_sub(records, Ordering::Relaxed);
    }

    /// To file and standard output; before it, how many were lost since the last time.
    fn write(&mut self, mut texts: Vec<String>) {
        if self.book.is_none() && !self.stdout {
            return;
        }
        let lost = self.shared.lost.load(Ordering::Relaxed) + self.shared.unwritten.load(Ordering::Relaxed);
        let records = texts.len() as u64;
        if lost > self.told {
            texts.insert(
                0,
                json!({"event": "lost", "recorded_at": now(), "count": lost - self.told}).to_string(),
            );
        }
        if texts.is_empty() {
            return;
        }
        let outcome = if let Some(book) = &mut self.book {
            book.append(&texts).map(|lines| (lines, book.chain.clone()))
        } else {
            let lines = texts.iter().map(|text| self.chain.seal(text)).collect();
            Ok((lines, self.chain.clone()))
        };
        let lines = match outcome {
            Ok((lines, head)) => {
                self.told = lost;
                self.faulty = false;
                *self.shared.head.lock().unwrap_or_else(PoisonError::into_inner) = Some(head);
                lines
            }
            Err(e) => {
                self.shared.unwritten.fetch_add(records, Ordering::Relaxed);
                self.fault(&e);
                texts.into_iter().map(|text| text + "\n").collect()
            }
        };
        if self.stdout {
            let mut out = std::io::stdout().lock();
            // Whoever reads it may have gone; the file is there.
            let _ = out.write_all(lines.concat().as_bytes()).and_then(|()| out.flush());
        }
    }

    fn sync(&mut self, all: bool) {
        if let Some(Err(e)) = self.book.as_mut().map(|book| book.sync(all)) {
            self.fault(&e);
        }
    }

    /// Said once, until it is well again.
    fn fault(&mut self, error: &std::io::Error) {
        if !self.faulty {
            tracing::error!(%error, "the audit file is not written: records are lost and counted");
        }
        self.faulty = true;
    }
}
