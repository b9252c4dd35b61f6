//! The answer, kept.
//!
//! Given a [`Permit`] and the promise of an [`Answer`], hands on an id at once and the answer when somebody asks for it. A statement
//! here outlives its request: it holds slot, lease and engine until its answer is whole, and then a bounded file at most. Every one of
//! them ends, and what is over its time is gone, with its file. Never shows a statement to another workspace, not even that there is
//! one.

mod book;
mod settings;
mod space;
mod spool;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duck_contract::{Code, QueryRequest, Role, StatementRequest};
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use uuid::Uuid;

pub use self::book::Facts;
use self::book::{Admitted, Book, Bounds, Found};
pub use self::settings::Settings;
use self::space::{Room, Space};
pub use self::spool::Kept;
use self::spool::SMALL_BYTES;
use crate::doors::Errand;
use crate::fault::Fault;
use crate::governance::Permit;
use crate::query::{self, Answer};

/// How often it is looked for what is over its time. Whoever asks for it is told before.
const ROUND: Duration = Duration::from_secs(1);

/// Of a failure's sentence.
const FAULT_BYTES_MAX: usize = 4 << 10;

/// A statement as it is now.
pub type Seen = book::Seen<Arc<Kept>>;

/// All kept statements. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Statements(Arc<Inner>);

struct Inner {
    settings: Settings,
    folder: PathBuf,
    book: Mutex<Book<Arc<Kept>>>,
    space: Space,
    /// Tells whether two requests of one name are the same.
    same: RandomState,
    running: TaskTracker,
    closing: CancellationToken,
}

/// How much there is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gauges {
    /// Statements that are kept.
    pub kept: usize,
    /// Those among them that have not ended.
    pub running: usize,
    /// What their answers take, or may still take, bytes.
    pub bytes: u64,
}

/// What became of a statement that was sent.
pub enum Submitted {
    /// It is to be run.
    New(Pending),
    /// It was sent before, under this id.
    Known(String),
}

/// A statement that has its place and not yet its answer. One that is dropped has failed.
pub struct Pending {
    statements: Statements,
    id: String,
    /// None once it has ended.
    room: Option<Room>,
}

impl Statements {
    /// Makes the folder, which must not be there, and looks after what is over its time.
    pub fn open(settings: Settings, folder: PathBuf) -> io::Result<Self> {
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let bounds = Bounds {
            count_max: settings.count_max,
            tenant_count_max: settings.tenant_count_max,
            keep: Duration::from_millis(settings.keep_ms_max),
        };
        let sizes = settings.sizes();
        let inner = Arc::new(Inner {
            settings,
            folder,
            book: Mutex::new(Book::new(bounds)),
            space: Space::new(sizes.all, sizes.tenant),
            same: RandomState::new(),
            running: TaskTracker::new(),
            closing: CancellationToken::new(),
        });
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(ROUND).await;
                let Some(inner) = weak.upgrade() else { return };
                inner.book(|_, _| ());
            }
        });
        Ok(Statements(inner))
    }

    /// Takes a place for a statement, and room for a small answer; or finds the one that was sent before under the same name.
    pub(crate) fn submit(
        &self,
        permit: &Permit,
        sent_by: &str,
        ask: &StatementRequest,
    ) -> Result<Submitted, Fault> {
        let warehouse = permit.warehouse.name();
        let facts = Facts {
            // In the order of time, and not to be guessed.
            id: Uuid::now_v7().to_string(),
            warehouse: warehouse.to_owned(),
            named: ask.request_id.clone().map(|name| (name, self.0.print(&ask.query))),
            sent_by: sent_by.to_owned(),
            writes: permit.role == Role::Writer,
            began: Instant::now(),
        };
        let id = facts.id.clone();
        let room = || self.0.space.room(warehouse, SMALL_BYTES);
        match self.0.book(|book, _| book.admit(facts, room)) {
            Admitted::New(room) => {
                Ok(Submitted::New(Pending { statements: self.clone(), id, room: Some(room) }))
            }
            Admitted::Known(id) => Ok(Submitted::Known(id)),
            Admitted::NameTaken => {
                let sentence = "Another statement of this workspace was sent with this `request_id`.";
                Err(Fault::new(Code::RequestIdReused, sentence))
            }
            Admitted::TenantFull => {
                let sentence =
                    "As many statements of this workspace are kept as may be. Delete what was fetched.";
                Err(Fault::new(Code::TenantBusy, sentence))
            }
            Admitted::ServerFull => {
                Err(Fault::new(Code::ServerBusy, "The server keeps as many statements as it may."))
            }
        }
    }

    /// A statement, for a caller of this warehouse, or of any.
    pub fn find(&self, warehouse: Option<&str>, id: &str) -> Result<Seen, Fault> {
        match self.0.book(|book, now| book.find(warehouse, id, now)) {
            Found::Here(seen) => Ok(seen),
            Found::Gone => {
                Err(Fault::new(Code::StatementGone, "The statement and its result are not kept any more."))
            }
            Found::Nothing => Err(Fault::new(Code::NotFound, "There is no statement of that id.")),
        }
    }

    /// A warehouse's statements, the oldest first.
    pub fn list(&self, warehouse: &str) -> Vec<Seen> {
        self.0.book(|book, now| book.list(warehouse, now))
    }

    /// Waits until a statement has ended, so many milliseconds at most. Whether it has.
    pub async fn wait(&self, seen: &Seen, ms: u64) -> bool {
        let patience = Duration::from_millis(ms.min(self.0.settings.wait_ms_max));
        tokio::time::timeout(patience, seen.end.cancelled()).await.is_ok()
    }

    /// Forgets a statement that has ended, with its answer.
    pub fn remove(&self, seen: &Seen) {
        drop(self.0.book(|book, now| book.remove(&seen.facts.id, now)));
    }

    /// How much there is now.
    pub fn gauges(&self) -> Gauges {
        let (kept, running) = self.0.book(|book, _| book.count());
        Gauges { kept, running, bytes: self.0.space.bytes() }
    }

    /// Completes when every statement has ended. For when no new ones come.
    pub async fn idle(&self) {
        self.0.running.close();
        self.0.running.wait().await;
    }

    /// Ends every statement.
    pub async fn close(&self) {
        self.0.closing.cancel();
        self.idle().await;
    }
}

impl Inner {
    /// Acts on the book when it is true. What that forgets is let go outside of the lock: files are removed then.
    fn book<T>(&self, act: impl FnOnce(&mut Book<Arc<Kept>>, Instant) -> T) -> T {
        let now = Instant::now();
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let over = book.expire(now);
        let answer = act(&mut book, now);
        drop(book);
        drop(over);
        answer
    }

    /// What two requests have in common when they ask for the same. Where they ask it is known from the warehouse.
    fn print(&self, ask: &QueryRequest) -> u64 {
        let QueryRequest {
            sql,
            statements,
            warehouse: _,
            workspace_id: _,
            format,
            max_rows,
            allow_writes,
            on_conflict,
            params,
            timeout_ms,
        } = ask;
        let params = serde_json::to_string(params).unwrap_or_default();
        let what = (sql, statements, params);
        self.same.hash_one((what, format.media_type(), max_rows, allow_writes, on_conflict, timeout_ms))
    }
}

impl Pending {
    /// Its id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Sees the statement to its end, whoever waits for it.
    pub(crate) fn keep(
        mut self,
        errand: Arc<Errand>,
        answer: impl Future<Output = Result<Answer, Fault>> + Send + 'static,
    ) {
        let span = tracing::info_span!("statement", statement_id = self.id);
        let inner = self.statements.0.clone();
        let running = inner.running.clone();
        let kept = async move {
            let room = self.room.take();
            let whole = async {
                let internal = || Fault::new(Code::Internal, "The statement has ended already.");
                let path = self.statements.0.folder.join(&self.id);
                let bytes_max = self.statements.0.settings.sizes().result;
                spool::put(answer.await?, room.ok_or_else(internal)?, path, bytes_max).await
            };
            let outcome = tokio::select! {
                outcome = whole => outcome,
                () = inner.closing.cancelled() => {
                    Err(Fault::new(Code::Draining, "The server was shut down before the statement had ended."))
                }
            };
            let outcome = match outcome {
                Ok(kept) => Ok(kept),
                // The statement may have made its change before its answer found no room.
                Err(fault) => Err(query::truly(fault, &errand).await),
            };
            self.ends(outcome.map(Arc::new));
        };
        running.spawn(kept.instrument(span));
    }

    fn ends(&self, outcome: Result<Arc<Kept>, Fault>) {
        match &outcome {
            Ok(kept) => tracing::info!(outcome = "ok", bytes = kept.bytes, "statement ended"),
            Err(fault) => {
                tracing::info!(outcome = fault.code.as_str(), cause = fault.chain(), "statement ended");
            }
        }
        let outcome = outcome.map_err(|fault| short(&fault));
        self.statements.0.book(|book, now| book.finish(&self.id, outcome, now));
    }
}

/// What is kept of a failure. The log has the rest, and the memory of many is bounded.
fn short(fault: &Fault) -> Fault {
    let end = fault.sentence.floor_char_boundary(FAULT_BYTES_MAX);
    let mut short = Fault::new(fault.code, fault.sentence[..end].to_owned());
    short.position = fault.position;
    short.write.clone_from(&fault.write);
    short
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The first word holds: this is one only where there was none.
        let fault = || Fault::new(Code::Internal, "The statement ended without an outcome.");
        self.statements.0.book(|book, now| book.finish(&self.id, Err(fault()), now));
    }
}
