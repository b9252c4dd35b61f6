//! Rows to bytes.

pub(crate) mod arrow;
pub(crate) mod json;

use ::arrow::array::RecordBatch;
use ::arrow::error::ArrowError;
use duck_contract::Code;
use duck_contract::worker::Failure;

use crate::execute::Outcome;
use crate::fault;
use crate::sink::Sink;

/// Writes an answer in one format. The beginning is written on start.
pub(crate) trait Encoder {
    fn batch(&mut self, batch: &RecordBatch, sink: &mut Sink) -> Result<(), Failure>;
    /// The closing part: written on success only.
    fn finish(&mut self, outcome: Outcome, sink: &mut Sink) -> Result<(), Failure>;
}

fn cannot_encode(error: &ArrowError) -> Failure {
    let mut failure =
        fault::ours(Code::NotSupported, "A column's type cannot be sent in this format; cast it.");
    failure.detail = error.to_string();
    failure
}
