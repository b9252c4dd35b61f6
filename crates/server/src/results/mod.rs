//! Rows to the client.
//!
//! Given [`Rows`], hands on a body that passes bytes as they are, without decoding them. Never ends well what ended badly: after a
//! failure, and after the deadline, the body is an error, so the connection is cut and no closing part is sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::query::Rows;

/// The answer broke off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The engine ended, or the statement failed after its first rows.
    #[error("the engine broke off")]
    Engine(#[source] hyper::Error),
    /// The deadline passed in the middle.
    #[error("the deadline passed")]
    Deadline,
}

/// Bytes on their way to a client. Writes one line to the log when it ends, however it ends.
pub struct Relay {
    rows: Rows,
    deadline: Pin<Box<Sleep>>,
    began: Instant,
    bytes: u64,
    outcome: &'static str,
    span: tracing::Span,
}

impl Relay {
    /// Of these rows, logged under the current span.
    pub fn new(rows: Rows) -> Self {
        let deadline = Box::pin(tokio::time::sleep_until(rows.deadline));
        let span = tracing::Span::current();
        Relay { rows, deadline, began: Instant::now(), bytes: 0, outcome: "client_gone", span }
    }

    fn finish(&mut self) {
        self.rows.run.finished();
        self.outcome = "ok";
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            self.outcome = "timeout";
            return Poll::Ready(Some(Err(Broken::Deadline)));
        }
        match ready!(Pin::new(&mut self.rows.body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                // A body of known length is not asked again after its last byte, nor one that has sent its trailers.
                if self.rows.body.is_end_stream() || frame.is_trailers() {
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(e)) => {
                self.outcome = "engine_lost";
                Poll::Ready(Some(Err(Broken::Engine(e))))
            }
            None => {
                self.finish();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rows.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.rows.body.size_hint()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        let (ms, bytes, outcome) = (self.began.elapsed().as_millis(), self.bytes, self.outcome);
        tracing::info!(outcome, bytes, send_ms = ms, "answer ended");
    }
}
