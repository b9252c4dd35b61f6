//! `{"columns":[…],"rows":[[…],…],"row_count":n,"truncated":b}`, row by row.

use arrow::array::{Array, RecordBatch};
use arrow::json::writer::{EncoderOptions, NullableEncoder, make_encoder};
use duck_contract::query::Column;
use duck_contract::worker::Failure;

use super::{Encoder, cannot_encode};
use crate::execute::Outcome;
use crate::sink::Sink;
use crate::sys::duckdb::Rows;

pub(crate) struct JsonEncoder {
    options: EncoderOptions,
    first: bool,
}

impl JsonEncoder {
    pub(crate) fn start(rows: &Rows<'_>, sink: &mut Sink) -> Result<Self, Failure> {
        let columns: Vec<Column> = rows
            .columns()
            .iter()
            .map(|c| Column { name: c.name.clone(), type_name: c.type_name.clone() })
            .collect();
        let buffer = sink.buffer();
        buffer.extend_from_slice(b"{\"columns\":");
        serde_json::to_writer(&mut *buffer, &columns)
            .map_err(|e| cannot_encode(&arrow::error::ArrowError::JsonError(e.to_string())))?;
        buffer.extend_from_slice(b",\"rows\":[");
        Ok(JsonEncoder { options: EncoderOptions::default().with_explicit_nulls(true), first: true })
    }
}

impl Encoder for JsonEncoder {
    fn batch(&mut self, batch: &RecordBatch, sink: &mut Sink) -> Result<(), Failure> {
        let schema = batch.schema();
        let mut columns: Vec<NullableEncoder<'_>> = schema
            .fields()
            .iter()
            .zip(batch.columns())
            .map(|(field, array)| make_encoder(field, array.as_ref() as &dyn Array, &self.options))
            .collect::<Result<_, _>>()
            .map_err(|e| cannot_encode(&e))?;
        for row in 0..batch.num_rows() {
            let buffer = sink.buffer();
            buffer.extend_from_slice(if self.first { b"[" } else { b",[" });
            self.first = false;
            for (index, column) in columns.iter_mut().enumerate() {
                if index > 0 {
                    buffer.push(b',');
                }
                if column.is_null(row) {
                    buffer.extend_from_slice(b"null");
                } else {
                    column.encode(row, buffer);
                }
            }
            buffer.push(b']');
            sink.flush_full()?;
        }
        Ok(())
    }

    fn finish(&mut self, outcome: Outcome, sink: &mut Sink) -> Result<(), Failure> {
        let tail = format!("],\"row_count\":{},\"truncated\":{}}}", outcome.rows, outcome.truncated);
        sink.buffer().extend_from_slice(tail.as_bytes());
        Ok(())
    }
}
