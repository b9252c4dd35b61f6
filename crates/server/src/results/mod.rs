//! Rows to the client.
//!
//! Given a [`Stream`], hands on a body that passes bytes as they are, without decoding them. Never ends well what ended badly: after
//! a failure, a cancellation and the deadline the body is an error, so the connection is cut and no closing part is sent. Never
//! holds an engine for a client that does not read: deadline and cancellation are looked after by a task of their own.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::query::{Known, Run, Stream};

/// The answer broke off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The engine ended, the statement failed after its first rows, or it was stopped.
    #[error("the engine broke off")]
    Engine(#[source] hyper::Error),
    /// The statement was stopped while nobody read its answer.
    #[error("the statement was stopped: {0}")]
    Stopped(&'static str),
}

/// Bytes on their way to a client. Writes one line to the log when it ends, however it ends.
pub struct Relay {
    body: Incoming,
    held: Arc<Mutex<Held>>,
    known: Option<Arc<Known>>,
    began: Instant,
    bytes: u64,
    span: tracing::Span,
    _guard: AbortOnDropHandle<()>,
}

/// What is given back when the answer has ended, or earlier when it must.
struct Held {
    run: Option<Run>,
    outcome: &'static str,
}

impl Relay {
    /// Of this stream, logged under the current span.
    pub fn new(Stream { body, run, deadline }: Stream) -> Self {
        let known = run.entry().map(crate::query::Entry::known);
        let stopped = run.entry().map(crate::query::Entry::stopped);
        let held = Arc::new(Mutex::new(Held { run: Some(run), outcome: "client_gone" }));
        let guarded = held.clone();
        let guard = tokio::spawn(async move {
            let stopped = async {
                match stopped {
                    Some(stopped) => stopped.await,
                    None => std::future::pending().await,
                }
            };
            let outcome = tokio::select! {
                () = tokio::time::sleep_until(deadline) => "timeout",
                () = stopped => "cancelled",
            };
            // A client that does not read does not ask for the next piece either, so this cannot wait for it.
            let mut held = lock(&guarded);
            held.outcome = outcome;
            drop(held.run.take());
        });
        let span = tracing::Span::current();
        Relay {
            body,
            held,
            known,
            began: Instant::now(),
            bytes: 0,
            span,
            _guard: AbortOnDropHandle::new(guard),
        }
    }

    fn finish(&mut self) {
        let mut held = lock(&self.held);
        if let Some(mut run) = held.run.take() {
            run.finished();
            held.outcome = "ok";
        }
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
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.bytes += data.len() as u64;
                    if let Some(known) = &self.known {
                        known.sent(data.len());
                    }
                }
                // A body that has sent its trailers is not asked again.
                if frame.is_trailers() {
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(e)) => {
                let mut held = lock(&self.held);
                if let Some(run) = held.run.take() {
                    held.outcome = "engine_lost";
                    run.doubted();
                    return Poll::Ready(Some(Err(Broken::Engine(e))));
                }
                Poll::Ready(Some(Err(Broken::Stopped(held.outcome))))
            }
            // A streamed answer ends with its trailers: this end came too early.
            None => Poll::Ready(match lock(&self.held).run.take() {
                Some(run) => {
                    run.doubted();
                    Some(Err(Broken::Stopped("no end")))
                }
                None => None,
            }),
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
        let mut held = lock(&self.held);
        drop(held.run.take());
        let (ms, bytes, outcome) = (self.began.elapsed().as_millis(), self.bytes, held.outcome);
        tracing::info!(outcome, bytes, send_ms = ms, "answer ended");
    }
}
