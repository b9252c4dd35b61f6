//! `{"columns":[…],"rows":[[…],…],"row_count":n,"truncated":b}`, row by row.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Decimal128Type, FieldRef};
use arrow::error::ArrowError;
use arrow::json::writer::{
    Encoder as ValueEncoder, EncoderFactory, EncoderOptions, NullableEncoder, make_encoder,
};
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
        let options =
            EncoderOptions::default().with_explicit_nulls(true).with_encoder_factory(Arc::new(AllDigits));
        Ok(JsonEncoder { options, first: true })
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

/// Arrow's own encoder cuts a HUGEINT, which comes as a decimal of 38 digits, where it has 39.
#[derive(Debug)]
struct AllDigits;

impl EncoderFactory for AllDigits {
    fn make_default_encoder<'a>(
        &self,
        _: &'a FieldRef,
        array: &'a dyn Array,
        _: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let DataType::Decimal128(_, scale) = *array.data_type() else { return Ok(None) };
        let values = array.as_primitive::<Decimal128Type>();
        let scale = usize::try_from(scale).unwrap_or(0);
        let encoder = Decimals { values: values.values(), scale };
        Ok(Some(NullableEncoder::new(Box::new(encoder), array.nulls().cloned())))
    }
}

struct Decimals<'a> {
    values: &'a [i128],
    scale: usize,
}

impl ValueEncoder for Decimals<'_> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        let value = self.values[index];
        let sign = if value < 0 { "-" } else { "" };
        let digits = format!("{:0width$}", value.unsigned_abs(), width = self.scale + 1);
        let (whole, part) = digits.split_at(digits.len() - self.scale);
        let point = if part.is_empty() { "" } else { "." };
        // Writing to a Vec does not fail.
        let _ = write!(out, "{sign}{whole}{point}{part}");
    }
}
