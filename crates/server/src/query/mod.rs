//! The statement, on its worker.
//!
//! Given an [`Entry`] of the register, a [`Slot`], a [`Lease`] and an [`Order`], hands on an [`Answer`] whose [`Rows`] own all of
//! them until the engine's last byte. Dropping the rows stops the statement; one that does not stop within the grace is ended with
//! its worker, and whoever shared that worker by no fault of theirs may run once more.

mod beat;
mod register;
mod write;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use duck_contract::query::{OnConflict, QueryState, ROW_COUNT_HEADER, TRUNCATED_HEADER, WriteReport};
use duck_contract::worker::{AFFECTED_HEADER, FAILURE_TRAILER, Failure, Statement};
use duck_contract::{Code, Format, Role};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HOST, HeaderMap, TE};
use hyper::{Method, Request, Response};
use tokio::time::Instant;

pub(crate) use self::beat::Beat;
pub use self::register::Register;
pub(crate) use self::register::{Entry, Known};
pub(crate) use self::write::{header_of, told, truly, write};
use crate::audit::Trail;
use crate::doors::Errand;
use crate::fault::Fault;
use crate::governance::Permit;
use crate::limits::Slot;
use crate::pool::{Lease, Outgrown, Worker};

/// A failure's body is a few sentences.
const FAILURE_BYTES_MAX: usize = 64 << 10;
/// An answer that a worker sends as one is not larger.
const WHOLE_BYTES_MAX: usize = 2 << 20;
/// For a change that is under way to be settled, when its statement has failed already.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// How long to wait for an aborted worker's last words.
const LAST_WORDS_MAX: Duration = Duration::from_millis(200);

/// A statement, and under which conditions it is run.
pub(crate) struct Order {
    pub(crate) permit: Permit,
    /// What the doors see of it.
    pub(crate) errand: Arc<Errand>,
    /// What is left of it.
    pub(crate) trail: Trail,
    pub(crate) statement: Statement,
    pub(crate) on_conflict: OnConflict,
    pub(crate) deadline: Instant,
    /// From the interrupt to the end of a worker that does not stop.
    pub(crate) grace: Duration,
}

/// An answer that has begun.
pub struct Answer {
    /// How it is encoded.
    pub format: Format,
    /// Rows and truncation, where the answer is whole; else they come as trailers.
    pub counts: Option<(u64, bool)>,
    /// What was changed; for an answer that is not whole, it comes as a trailer.
    pub write: Option<WriteReport>,
    /// Rows that its changes affected, as the engine says.
    pub(crate) affected: Option<u64>,
    /// The bytes.
    pub rows: Rows,
}

/// The bytes of an answer.
pub enum Rows {
    /// All of them. Nothing is held for them any more.
    Whole(Bytes),
    /// More than that, as the engine makes them.
    Streamed(Box<Stream>),
}

/// What carries the bytes, and what is held for them.
pub struct Stream {
    pub(crate) body: Incoming,
    pub(crate) run: Run,
    pub(crate) errand: Arc<Errand>,
    pub(crate) trail: Trail,
    pub(crate) deadline: Instant,
}

impl Stream {
    /// Whether its end will say what was changed.
    pub(crate) fn may_write(&self) -> bool {
        self.errand.may_write()
    }
}

/// Why there is no answer.
pub(crate) enum Failed {
    /// This is why.
    Fault(Fault),
    /// Its engine ended by somebody else's doing, and nothing was answered or changed: it can be run once more.
    Bystander(Entry, Slot, Fault),
    /// Somebody else's commit was in the way, and nothing was changed: it can be run again, on the same engine.
    Conflict(Box<(Entry, Slot, Lease)>, Fault),
}

impl From<Failed> for Fault {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Fault(fault) | Failed::Bystander(_, _, fault) | Failed::Conflict(_, fault) => fault,
        }
    }
}

/// A statement that was sent. Dropped before [`Run::finished`], it is stopped.
pub(crate) struct Run {
    grace: Duration,
    held: Option<(Entry, Slot, Lease)>,
    /// It has ended when nothing is held for it any more.
    ending: (Arc<Errand>, Trail),
    connection: Option<SendRequest<Full<Bytes>>>,
    finished: bool,
}

impl Run {
    /// The answer was read to its end: the worker and the connection are good for another.
    pub(crate) fn finished(&mut self) {
        self.finished = true;
    }

    /// The worker broke off by itself: nobody else should get it.
    pub(crate) fn doubted(&self) {
        if let Some((_, _, lease)) = &self.held {
            lease.retire();
        }
    }

    /// What is known of it, and what completes when somebody tells it to stop.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.held.as_ref().map(|(entry, ..)| entry)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let Some((entry, slot, lease)) = self.held.take() else { return };
        if self.finished {
            if let Some(connection) = self.connection.take() {
                lease.worker().keep(connection);
            }
        } else {
            // All of it stays taken until the statement has really ended.
            tokio::spawn(settle((entry, slot, lease), self.ending.clone(), self.grace));
        }
    }
}

/// Stops a statement, or ends its worker when it does not stop.
async fn settle(
    (entry, slot, lease): (Entry, Slot, Lease),
    (errand, trail): (Arc<Errand>, Trail),
    grace: Duration,
) {
    entry.is(QueryState::Stopping);
    let stopped = tokio::time::timeout(grace, async {
        let request = request(Method::DELETE, &format!("/statement/{}", entry.id()), Bytes::new())?;
        let (answer, connection) = lease.worker().send(request).await?;
        answer.into_body().collect().await?;
        lease.worker().keep(connection);
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    })
    .await;
    if !matches!(stopped, Ok(Ok(()))) {
        tracing::warn!(
            request_id = entry.id(),
            worker = lease.worker().id,
            "the statement did not stop: its worker is ended"
        );
        lease.kill();
    }
    drop((lease, slot, entry));
    // A change may still be under way at the catalog door.
    errand.settled(SETTLED_MAX).await;
    drop(trail);
}

/// Sends the statement and returns when its answer begins.
pub(crate) async fn run((entry, slot): (Entry, Slot), lease: Lease, order: &Order) -> Result<Answer, Failed> {
    let (statement, deadline, grace) = (&order.statement, order.deadline, order.grace);
    let internal = |e: Box<dyn std::error::Error + Send + Sync>| {
        Failed::Fault(Fault::new(Code::Internal, "The statement could not be sent.").because(e))
    };
    let body = serde_json::to_vec(statement).map_err(|e| internal(e.into()))?;
    let request = request(Method::POST, "/statement", body.into()).map_err(internal)?;
    let worker = lease.worker().clone();
    entry.runs(&worker);
    order.trail.begins(&worker);
    let ending = (order.errand.clone(), order.trail.clone());
    let mut run = Run { grace, held: Some((entry, slot, lease)), ending, connection: None, finished: false };
    let sent = tokio::time::timeout_at(deadline, worker.send(request)).await;
    let (answer, connection) = match sent.map_err(|_| Failed::Fault(late()))? {
        Ok(sent) => sent,
        Err(e) => {
            let begun = e.begun;
            return Err(lost(run, &worker, begun, e.into()).await);
        }
    };
    run.connection = Some(connection);
    if answer.status().is_success() {
        let Some(counts) = counts(answer.headers()) else {
            if let Some(entry) = run.entry() {
                entry.is(QueryState::Sending);
            }
            let (errand, trail) = (order.errand.clone(), order.trail.clone());
            let stream = Stream { body: answer.into_body(), run, errand, trail, deadline };
            let (format, rows) = (statement.format, Rows::Streamed(Box::new(stream)));
            return Ok(Answer { format, counts: None, write: None, affected: None, rows });
        };
        let affected = affected(answer.headers());
        let whole = tokio::time::timeout_at(deadline, collect(answer, WHOLE_BYTES_MAX)).await;
        return match whole.map_err(|_| Failed::Fault(late()))? {
            Ok(bytes) => {
                run.finished();
                let (format, rows) = (statement.format, Rows::Whole(bytes));
                Ok(Answer { format, counts: Some(counts), write: None, affected, rows })
            }
            Err(e) => Err(lost(run, &worker, true, e).await),
        };
    }
    let failure = tokio::time::timeout_at(deadline, collect(answer, FAILURE_BYTES_MAX)).await;
    let failure = match failure.map_err(|_| Failed::Fault(late()))? {
        Ok(body) => serde_json::from_slice::<Failure>(&body).map_err(|e| internal(e.into()))?,
        Err(e) => return Err(lost(run, &worker, true, e).await),
    };
    if failure.worn {
        run.doubted();
    }
    run.finished();
    let code = failure.code;
    let fault = failed(failure);
    match run.held.take() {
        // The worker could not begin it.
        Some((entry, slot, _)) if code == Code::EngineUnavailable => {
            Err(Failed::Bystander(entry, slot, fault))
        }
        Some(held) if code == Code::CommitConflict => {
            if let Some(connection) = run.connection.take() {
                worker.keep(connection);
            }
            Err(Failed::Conflict(Box::new(held), fault))
        }
        held => {
            run.held = held;
            Err(Failed::Fault(fault))
        }
    }
}

/// What an engine says of a statement that failed.
pub(crate) fn failed(failure: Failure) -> Fault {
    let mut fault = Fault::new(failure.code, failure.message).because(failure.detail);
    fault.position = failure.position;
    fault
}

/// Whether a streamed answer has come to a good end; else why not, where the engine says it.
pub(crate) fn end(trailers: &HeaderMap) -> Result<(), Option<Failure>> {
    if counts(trailers).is_some() {
        return Ok(());
    }
    let said = trailers.get(FAILURE_TRAILER);
    Err(said.and_then(|said| serde_json::from_slice(said.as_bytes()).ok()))
}

/// The deadline passed.
pub(crate) fn late() -> Fault {
    Fault::new(Code::Timeout, "The deadline of the request passed.")
}

/// Somebody stopped it.
pub(crate) fn cancelled() -> Fault {
    Fault::new(Code::Cancelled, "The statement was cancelled.")
}

fn request(
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    Ok(Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "worker")
        .header(TE, "trailers")
        .body(Full::new(body))?)
}

/// Rows that changes affected, from headers or trailers.
pub(crate) fn affected(headers: &HeaderMap) -> Option<u64> {
    number(headers, AFFECTED_HEADER)
}

/// Rows and truncation, from headers or trailers.
pub(crate) fn counts(headers: &HeaderMap) -> Option<(u64, bool)> {
    let truncated = headers.get(TRUNCATED_HEADER)?.to_str().ok()? == "true";
    Some((number(headers, ROW_COUNT_HEADER)?, truncated))
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

async fn collect(
    answer: Response<Incoming>,
    bytes_max: usize,
) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    Ok(Limited::new(answer.into_body(), bytes_max).collect().await?.to_bytes())
}

/// What becomes of a statement whose worker went away: told why, or run once more where that is safe.
async fn lost(
    mut run: Run,
    worker: &Worker,
    begun: bool,
    cause: Box<dyn std::error::Error + Send + Sync>,
) -> Failed {
    // The process is gone, or about to be noticed as gone. One that still lives has closed its connection on us, and is not
    // trusted with another statement.
    let _ = tokio::time::timeout(LAST_WORDS_MAX, worker.ended()).await;
    run.doubted();
    run.finished();
    run.connection = None;
    let fault = reason(worker).because(cause);
    match run.held.take() {
        Some((entry, slot, lease)) => {
            drop(lease);
            let harmless = !begun || (entry.role() == Role::Reader && worker.was_shared());
            if harmless { Failed::Bystander(entry, slot, fault) } else { Failed::Fault(fault) }
        }
        None => Failed::Fault(fault),
    }
}

/// Why a worker went away, from what it said last. DuckDB ends its process when it cannot read a table's manifest, and says so
/// as JSON on standard error.
fn reason(worker: &Worker) -> Fault {
    let said = worker.last_words();
    let (code, sentence) = if worker.outgrown() == Some(Outgrown::Disk) {
        (
            Code::SpillExhausted,
            "The statement needs more disk for intermediate data than one may use. Read fewer rows or columns.",
        )
    } else if worker.outgrown() == Some(Outgrown::Memory) {
        (
            Code::OutOfMemory,
            "The statement needs more memory than an engine has. Read fewer rows or columns, or aggregate earlier.",
        )
    } else if said.contains("\"exception_type\":\"Permission\"") || said.contains("HTTP 403") {
        (
            Code::OutsideWarehouse,
            "A table's metadata names a file outside this workspace's warehouse, which no statement can read.",
        )
    } else if said.contains("\"exception_type\":\"HTTP\"") || said.contains("\"exception_type\":\"IO\"") {
        (Code::StorageUnavailable, "A file of a table's metadata could not be read from the object store.")
    } else {
        (Code::EngineLost, "The engine ended in the middle of the statement.")
    };
    Fault::new(code, sentence).because(if said.is_empty() { "it said nothing".to_owned() } else { said })
}
