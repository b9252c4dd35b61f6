//! What a statement answers: a result of DuckDB's, and its rows as Arrow batches.

use std::ffi::c_char;

use arrow::array::{RecordBatch, StructArray};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use libduckdb_sys as ffi;

use super::duckdb::{Error, Result, borrowed};
use super::types::{Column, LogicalType};

/// A result, filled or not.
pub(super) struct Answer(pub(super) ffi::duckdb_result);

impl Answer {
    pub(super) fn empty() -> Self {
        // SAFETY: duckdb_result is a plain C struct for which all zeroes is the documented empty state.
        Answer(unsafe { std::mem::zeroed() })
    }

    pub(super) fn error(&mut self) -> Error {
        // SAFETY: the result was filled by a call of DuckDB, or is empty.
        Error(unsafe { borrowed(ffi::duckdb_result_error(&raw mut self.0)) })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: destroying an empty or a filled result once is what the interface asks for.
        unsafe { ffi::duckdb_destroy_result(&raw mut self.0) }
    }
}

/// The rows of a running statement, batch by batch.
pub(crate) struct Rows<'p> {
    answer: Answer,
    options: ffi::duckdb_arrow_options,
    schema: SchemaRef,
    columns: Vec<Column>,
    _prepared: std::marker::PhantomData<&'p ()>,
}

impl Rows<'_> {
    pub(super) fn of(mut answer: Answer) -> Result<Self> {
        // SAFETY: the result is filled; every logical type is destroyed by `LogicalType`, the options by `Rows::drop`, and
        // the names live until the call that reads them has returned (they belong to the result).
        unsafe {
            let count = ffi::duckdb_column_count(&raw mut answer.0);
            let types: Vec<LogicalType> = (0..count)
                .map(|i| LogicalType(ffi::duckdb_column_logical_type(&raw mut answer.0, i)))
                .collect();
            let mut names: Vec<*const c_char> =
                (0..count).map(|i| ffi::duckdb_column_name(&raw mut answer.0, i)).collect();
            let columns = types
                .iter()
                .zip(&names)
                .map(|(t, n)| Column { name: borrowed(*n), type_name: t.name() })
                .collect();
            let mut raw_types: Vec<ffi::duckdb_logical_type> = types.iter().map(|t| t.0).collect();
            let mut rows = Rows {
                options: ffi::duckdb_result_get_arrow_options(&raw mut answer.0),
                answer,
                schema: Schema::empty().into(),
                columns,
                _prepared: std::marker::PhantomData,
            };
            let mut schema = FFI_ArrowSchema::empty();
            checked(ffi::duckdb_to_arrow_schema(
                rows.options,
                raw_types.as_mut_ptr(),
                names.as_mut_ptr(),
                count,
                (&raw mut schema).cast(),
            ))?;
            rows.schema = Schema::try_from(&schema).map_err(|e| arrow_error(&e))?.into();
            Ok(rows)
        }
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The next batch, up to 2,048 rows; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>> {
        // SAFETY: the result is alive; the chunk is destroyed once, after its conversion copied or took over its buffers;
        // the array that DuckDB filled is released by arrow's own struct.
        unsafe {
            let mut chunk = ffi::duckdb_fetch_chunk(self.answer.0);
            if chunk.is_null() {
                let error = self.answer.error();
                return if error.0.is_empty() { Ok(None) } else { Err(error) };
            }
            let rows = ffi::duckdb_data_chunk_get_size(chunk);
            let mut array = FFI_ArrowArray::empty();
            let converted =
                checked(ffi::duckdb_data_chunk_to_arrow(self.options, chunk, (&raw mut array).cast()));
            ffi::duckdb_destroy_data_chunk(&raw mut chunk);
            converted?;
            if rows == 0 {
                return Ok(None);
            }
            let fields = self.schema.fields().clone();
            let data = from_ffi_and_data_type(array, arrow::datatypes::DataType::Struct(fields))
                .map_err(|e| arrow_error(&e))?;
            let (_, columns, _) = StructArray::from(data).into_parts();
            RecordBatch::try_new(self.schema.clone(), columns).map(Some).map_err(|e| arrow_error(&e))
        }
    }
}

impl Drop for Rows<'_> {
    fn drop(&mut self) {
        // SAFETY: made by duckdb_result_get_arrow_options, freed once.
        unsafe { ffi::duckdb_destroy_arrow_options(&raw mut self.options) }
    }
}

fn arrow_error(error: &arrow::error::ArrowError) -> Error {
    Error(format!("arrow: {error}"))
}

/// Turns DuckDB's error data into a result, and frees it.
///
/// # Safety
/// `data` comes from a call that documents `duckdb_destroy_error_data` for it.
unsafe fn checked(mut data: ffi::duckdb_error_data) -> Result<()> {
    // SAFETY: the caller's promise; null is allowed by all three.
    unsafe {
        let failed = ffi::duckdb_error_data_has_error(data);
        let message = if failed { borrowed(ffi::duckdb_error_data_message(data)) } else { String::new() };
        ffi::duckdb_destroy_error_data(&raw mut data);
        if failed { Err(Error(message)) } else { Ok(()) }
    }
}
