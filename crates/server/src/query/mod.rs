//! The statement, on its worker.
//!
//! Given a [`Slot`], a [`Lease`] and a [`Statement`], hands on an [`Answer`] whose [`Rows`] own all of them until the last byte.
//! Dropping the rows stops the statement; one that does not stop within the grace is ended with its worker.

use std::time::Duration;

use bytes::Bytes;
use duck_contract::query::{ROW_COUNT_HEADER, TRUNCATED_HEADER};
use duck_contract::worker::{Failure, Statement};
use duck_contract::{Code, Format};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HOST, HeaderMap, TE};
use hyper::{Method, Request, Response};
use tokio::time::Instant;

use crate::fault::Fault;
use crate::limits::Slot;
use crate::pool::Lease;

/// A failure's body is a few sentences.
const FAILURE_BYTES_MAX: usize = 64 << 10;
/// How long to wait for an aborted worker's last words.
const LAST_WORDS_MAX: Duration = Duration::from_millis(200);

/// An answer that has begun.
pub struct Answer {
    /// How it is encoded.
    pub format: Format,
    /// Rows and truncation, where the whole answer fitted the first buffer; else they come as trailers.
    pub counts: Option<(u64, bool)>,
    /// The bytes.
    pub rows: Rows,
}

/// What carries the bytes, and what is held for them.
pub struct Rows {
    pub(crate) body: Incoming,
    pub(crate) run: Run,
    pub(crate) deadline: Instant,
}

/// A statement that was sent. Dropped before [`Run::finished`], it is stopped.
pub(crate) struct Run {
    id: String,
    grace: Duration,
    held: Option<(Lease, Slot)>,
    connection: Option<SendRequest<Full<Bytes>>>,
    finished: bool,
}

impl Run {
    /// The answer was read to its end: the worker and the connection are good for another.
    pub(crate) fn finished(&mut self) {
        self.finished = true;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let Some((lease, slot)) = self.held.take() else { return };
        if self.finished {
            if let Some(connection) = self.connection.take() {
                lease.worker().keep(connection);
            }
        } else {
            // Lease and slot stay taken until the statement has really ended.
            tokio::spawn(settle(lease, slot, std::mem::take(&mut self.id), self.grace));
        }
    }
}

/// Stops a statement, or ends its worker when it does not stop.
async fn settle(lease: Lease, slot: Slot, id: String, grace: Duration) {
    let stopped = tokio::time::timeout(grace, async {
        let request = request(Method::DELETE, &format!("/statement/{id}"), Bytes::new())?;
        let (answer, connection) = lease.worker().send(request).await?;
        answer.into_body().collect().await?;
        lease.worker().keep(connection);
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    })
    .await;
    if !matches!(stopped, Ok(Ok(()))) {
        tracing::warn!(
            request_id = id,
            worker = lease.worker().id,
            "the statement did not stop: its worker is ended"
        );
        lease.kill();
    }
    drop(slot);
}

/// Sends the statement and returns when its answer begins.
pub async fn run(
    slot: Slot,
    lease: Lease,
    statement: &Statement,
    deadline: Instant,
    grace: Duration,
) -> Result<Answer, Fault> {
    let internal = |e: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::Internal, "The statement could not be sent.").because(e)
    };
    let body = serde_json::to_vec(statement).map_err(|e| internal(e.into()))?;
    let request = request(Method::POST, "/statement", body.into()).map_err(internal)?;
    let worker = lease.worker().clone();
    let mut run =
        Run { id: statement.id.clone(), grace, held: Some((lease, slot)), connection: None, finished: false };
    let sent = tokio::time::timeout_at(deadline, worker.send(request)).await.map_err(|_| late())?;
    let (answer, connection) = match sent {
        Ok(sent) => sent,
        Err(e) => {
            // The process is gone, or about to be noticed as gone: there is nothing to stop.
            run.finished();
            return Err(lost(&worker).await.because(e));
        }
    };
    run.connection = Some(connection);
    if answer.status().is_success() {
        let counts = counts(answer.headers());
        return Ok(Answer {
            format: statement.format,
            counts,
            rows: Rows { body: answer.into_body(), run, deadline },
        });
    }
    let failure = tokio::time::timeout_at(deadline, failure(answer)).await.map_err(|_| late())??;
    if failure.worn
        && let Some((lease, _)) = &run.held
    {
        lease.retire();
    }
    run.finished();
    let mut fault = Fault::new(failure.code, failure.message).because(failure.detail);
    fault.position = failure.position;
    Err(fault)
}

/// The deadline passed.
pub(crate) fn late() -> Fault {
    Fault::new(Code::Timeout, "The deadline of the request passed.")
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

fn counts(headers: &HeaderMap) -> Option<(u64, bool)> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    Some((text(ROW_COUNT_HEADER)?.parse().ok()?, text(TRUNCATED_HEADER)? == "true"))
}

async fn failure(answer: Response<Incoming>) -> Result<Failure, Fault> {
    let odd = |e: Box<dyn std::error::Error + Send + Sync>| {
        Fault::new(Code::EngineLost, "The engine ended in the middle of the statement.").because(e)
    };
    let body = Limited::new(answer.into_body(), FAILURE_BYTES_MAX).collect().await.map_err(odd)?.to_bytes();
    serde_json::from_slice(&body).map_err(|e| odd(e.into()))
}

/// Why a worker went away, from what it said last. DuckDB ends its process when it cannot read a table's manifest, and says so
/// as JSON on standard error.
async fn lost(worker: &crate::pool::Worker) -> Fault {
    let _ = tokio::time::timeout(LAST_WORDS_MAX, worker.ended.cancelled()).await;
    let said = worker.last_words();
    let (code, sentence) = if said.contains("\"exception_type\":\"Permission\"") || said.contains("HTTP 403")
    {
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
