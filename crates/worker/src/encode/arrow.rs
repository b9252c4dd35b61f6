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

/// The stream writer keeps its own writer, so bytes pass from there to the sink after each batch.
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
    pub(crate) fn start(rows: &Rows<'_>, sink: &mut Sink) -> Result<Self, Failure> {
        let writer =
            StreamWriter::try_new(Buffer::default(), &rows.schema()).map_err(|e| cannot_encode(&e))?;
        let mut encoder = ArrowEncoder(writer);
        encoder.pass_on(sink);
        Ok(encoder)
    }

    fn pass_on(&mut self, sink: &mut Sink) {
        // The two buffers swap when the sink's is empty, so bytes are copied only while an answer is small.
        let written = &mut self.0.get_mut().0;
        if sink.buffer().is_empty() {
            mem::swap(written, sink.buffer());
        } else {
            sink.buffer().append(written);
        }
    }
}

impl Encoder for ArrowEncoder {
    fn batch(&mut self, batch: &RecordBatch, sink: &mut Sink) -> Result<(), Failure> {
        self.0.write(batch).map_err(|e| cannot_encode(&e))?;
        self.pass_on(sink);
        sink.flush_full()
    }

    fn finish(&mut self, _: Outcome, sink: &mut Sink) -> Result<(), Failure> {
        self.0.finish().map_err(|e| cannot_encode(&e))?;
        self.pass_on(sink);
        Ok(())
    }
}
