//! Arrow IPC, the streaming format.

use std::io::{self, Write};
use std::mem;

use arrow::array::RecordBatch;
use arrow::ipc::writer::StreamWriter;
use duck_contract::worker::Failure;

use super::{Encoder, cannot_encode};
use crate::execute::Outcome;
use crate::sink::Sink;
use crate::sys::duckdb::Rows;

/// The stream writer keeps its own buffer. It swaps with the sink's when there is enough to send, so nothing is copied.
pub(crate) struct ArrowEncoder(StreamWriter<Buffer>);

#[derive(Default)]
struct Buffer(Vec<u8>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ArrowEncoder {
    pub(crate) fn start(rows: &Rows<'_>) -> Result<Self, Failure> {
        let writer =
            StreamWriter::try_new(Buffer::default(), &rows.schema()).map_err(|e| cannot_encode(&e))?;
        Ok(ArrowEncoder(writer))
    }

    fn pass_on(&mut self, sink: &mut Sink) {
        mem::swap(&mut self.0.get_mut().0, sink.buffer());
    }
}

impl Encoder for ArrowEncoder {
    fn batch(&mut self, batch: &RecordBatch, sink: &mut Sink) -> Result<(), Failure> {
        self.0.write(batch).map_err(|e| cannot_encode(&e))?;
        if self.0.get_ref().0.len() <= sink.bytes_max() {
            return Ok(());
        }
        self.pass_on(sink);
        sink.flush_full()
    }

    fn finish(&mut self, _: Outcome, sink: &mut Sink) -> Result<(), Failure> {
        self.0.finish().map_err(|e| cannot_encode(&e))?;
        self.pass_on(sink);
        Ok(())
    }
}
