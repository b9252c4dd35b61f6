//! Where encoded bytes go: first into a buffer, then, when they are more than that holds, to the client.
//!
//! Given bytes from the thread that runs the statement, hands on a [`Head`] once (with the whole answer, or with its beginning)
//! and then pieces, as fast as the other side takes them. Never holds more than the buffer and a few pieces.

use bytes::Bytes;
use duck_contract::Code;
use duck_contract::worker::Failure;
use tokio::sync::{mpsc, oneshot};

use crate::execute::Outcome;
use crate::fault;

/// An answer up to this size is sent as one, with its counts in the headers.
const WHOLE_BYTES_MAX: usize = 1 << 20;
/// The size of a piece of a longer one.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces on their way.
pub(crate) const PIECES_MAX: usize = 2;

/// What is known when the answer begins.
pub(crate) enum Head {
    /// All of it.
    Whole(Bytes, Outcome),
    /// More than fits the buffer: pieces follow.
    Streamed,
}

/// A piece of a streamed answer.
pub(crate) enum Piece {
    Data(Bytes),
    /// The last one.
    End(Outcome),
    /// There is no good end, and this is why.
    Failed(Failure),
}

/// The writing side.
pub(crate) struct Sink {
    buffer: Vec<u8>,
    head: Option<oneshot::Sender<Result<Head, Failure>>>,
    pieces: mpsc::Sender<Piece>,
}

impl Sink {
    pub(crate) fn new(head: oneshot::Sender<Result<Head, Failure>>, pieces: mpsc::Sender<Piece>) -> Self {
        Sink { buffer: Vec::new(), head: Some(head), pieces }
    }

    /// The buffer to append to. Call [`Sink::flush_full`] after a row or a batch.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// With more than so many bytes in the buffer [`Sink::flush_full`] sends them.
    pub(crate) fn bytes_max(&self) -> usize {
        if self.head.is_some() { WHOLE_BYTES_MAX } else { PIECE_BYTES }
    }

    /// Sends what is there, if it is enough to be worth it. Waits for a client that is slower than the statement; an error
    /// when there is no client any more.
    pub(crate) fn flush_full(&mut self) -> Result<(), Failure> {
        if self.buffer.len() <= self.bytes_max() {
            return Ok(());
        }
        if let Some(head) = self.head.take() {
            head.send(Ok(Head::Streamed)).map_err(|_| gone())?;
        }
        self.send()
    }

    fn send(&mut self) -> Result<(), Failure> {
        // The next piece will be about as large; growing into it would copy it.
        let next = Vec::with_capacity(self.buffer.len() + (64 << 10));
        let data = Bytes::from(std::mem::replace(&mut self.buffer, next));
        self.pieces.blocking_send(Piece::Data(data)).map_err(|_| gone())
    }

    /// Ends the answer, well or not. A failure after the first byte is told in place of an end.
    pub(crate) fn end(mut self, result: Result<Outcome, Failure>) {
        // The client may have gone; then nobody is to be told.
        match (self.head.take(), result) {
            (Some(head), Ok(outcome)) => drop(head.send(Ok(Head::Whole(Bytes::from(self.buffer), outcome)))),
            (Some(head), Err(failure)) => drop(head.send(Err(failure))),
            (None, Ok(outcome)) => {
                if self.send().is_ok() {
                    drop(self.pieces.blocking_send(Piece::End(outcome)));
                }
            }
            (None, Err(failure)) => drop(self.pieces.blocking_send(Piece::Failed(failure))),
        }
    }
}

fn gone() -> Failure {
    fault::ours(Code::Cancelled, "The client went away.")
}
