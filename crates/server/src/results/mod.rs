//! Rows to the client.
//!
//! Given a [`Stream`], hands on a body that passes bytes as they are, without decoding them. Never ends well what ended badly: after
//! a failure, a cancellation and the deadline the body is an error, so the connection is cut and no closing part is sent. Never
//! holds an engine for a client that does not read: deadline and cancellation are looked after by a task of their own.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use duck_contract::Code;
use duck_contract::query::WRITE_HEADER;
use duck_contract::worker::Failure;
use http::HeaderValue;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::audit::{Fate, Trail};
use crate::doors::Errand;
use crate::fault::Fault;
use crate::query::{self, Known, Run, Stream};

/// The answer broke off, and this is why.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Broken(#[from] pub(crate) Fault);

/// Bytes on their way to a client. Writes one line to the log when it ends, however it ends.
pub struct Relay {
    body: Incoming,
    held: Arc<Mutex<Held>>,
    known: Option<Arc<Known>>,
    errand: Arc<Errand>,
    trail: Trail,
    counts: Option<(u64, bool)>,
    affected: Option<u64>,
    began: Instant,
    bytes: u64,
    span: tracing::Span,
    _guard: AbortOnDropHandle<()>,
}

/// What is given back when the answer has ended, or earlier when it must.
struct Held {
    run: Option<Run>,
    outcome: &'static str,
    /// Why, when it was not the engine that ended it.
    stopped: Option<Fault>,
}

impl Relay {
    /// Of this stream, logged under the current span.
    pub fn new(stream: Box<Stream>) -> Self {
        let Stream { body, run, errand, trail, deadline } = *stream;
        let known = run.entry().map(query::Entry::known);
        let stopped = run.entry().map(query::Entry::stopped);
        let held = Arc::new(Mutex::new(Held { run: Some(run), outcome: "client_gone", stopped: None }));
        let guarded = held.clone();
        let guard = tokio::spawn(async move {
            let stopped = async {
                match stopped {
                    Some(stopped) => stopped.await,
                    None => std::future::pending().await,
                }
            };
            let (outcome, fault) = tokio::select! {
                () = tokio::time::sleep_until(deadline) => ("timeout", query::late()),
                () = stopped => ("cancelled", query::cancelled()),
            };
            // A client that does not read does not ask for the next piece either, so this cannot wait for it.
            let mut held = lock(&guarded);
            (held.outcome, held.stopped) = (outcome, Some(fault));
            drop(held.run.take());
        });
        let span = tracing::Span::current();
        Relay {
            body,
            held,
            known,
            errand,
            trail,
            counts: None,
            affected: None,
            began: Instant::now(),
            bytes: 0,
            span,
            _guard: AbortOnDropHandle::new(guard),
        }
    }

    /// Whoever keeps the answer gives it up, for this reason.
    pub(crate) fn abandon(&mut self, fault: &Fault) {
        lock(&self.held).outcome = fault.code.as_str();
    }

    fn finish(&mut self) {
        let mut held = lock(&self.held);
        if let Some(mut run) = held.run.take() {
            run.finished();
            held.outcome = "ok";
        }
    }

    /// What was changed, for whoever may change something.
    fn report(&self) -> Option<HeaderValue> {
        query::header_of(&self.errand.report(true)?)
    }

    /// The statement failed after its first bytes. The engine has said so, and is as good as before unless it is worn.
    fn failed(&mut self, failure: Failure) -> Broken {
        if let Some(mut run) = lock(&self.held).run.take() {
            if failure.worn {
                run.doubted();
            }
            run.finished();
        }
        self.broken(query::failed(failure))
    }

    /// The engine broke off without a word.
    fn lost(&mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Broken {
        if let Some(run) = lock(&self.held).run.take() {
            run.doubted();
        }
        let fault = Fault::new(Code::EngineLost, "The engine ended in the middle of the statement.");
        self.broken(fault.because(cause))
    }

    /// Why there is no good end: what the engine says, unless it was told to stop.
    fn broken(&mut self, fault: Fault) -> Broken {
        let mut held = lock(&self.held);
        if let Some(stopped) = held.stopped.take() {
            return Broken(stopped);
        }
        held.outcome = fault.code.as_str();
        let _entered = self.span.enter();
        tracing::info!(code = fault.code.as_str(), cause = fault.chain(), "the answer broke off");
        Broken(fault)
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(mut frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.bytes += data.len() as u64;
                    if let Some(known) = &self.known {
                        known.sent(data.len());
                    }
                }
                if let Some(trailers) = frame.trailers_ref() {
                    let (counts, affected) = (query::counts(trailers), query::affected(trailers));
                    match query::end(trailers) {
                        // A body that has sent its trailers is not asked again.
                        Ok(()) => {
                            (self.counts, self.affected) = (counts, affected);
                            self.finish();
                            if let (Some(report), Some(trailers)) = (self.report(), frame.trailers_mut()) {
                                trailers.insert(WRITE_HEADER, report);
                            }
                        }
                        Err(Some(failure)) => return Poll::Ready(Some(Err(self.failed(failure)))),
                        Err(None) => return Poll::Ready(Some(Err(self.lost("no counts at the end")))),
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(e)) => Poll::Ready(Some(Err(self.lost(e)))),
            // A streamed answer ends with its trailers: this end came too early.
            None if lock(&self.held).outcome != "ok" => Poll::Ready(Some(Err(self.lost("no end")))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        self.errand.close();
        let mut held = lock(&self.held);
        drop(held.run.take());
        let (ms, bytes, outcome) = (self.began.elapsed().as_millis(), self.bytes, held.outcome);
        tracing::info!(outcome, bytes, send_ms = ms, "answer ended");
        self.trail.ends(Fate { outcome, counts: self.counts, affected: self.affected, bytes });
    }
}
