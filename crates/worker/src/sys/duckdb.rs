//! DuckDB's C interface, as safe Rust for what a worker does: open, connect, split, prepare, bind, run, interrupt.
//!
//! Why not the `duckdb` crate: it cannot split text into statements without running them, tell a statement's type, bind by
//! name or stop at an error in mid-stream without a panic (docs/decisions/2026-11-29-duckdb-c-interface.md).

use std::ffi::{CStr, CString, c_char};
use std::sync::{Arc, Mutex, PoisonError};

use libduckdb_sys as ffi;

use super::rows::Answer;
pub(crate) use super::rows::Rows;
pub(crate) use super::types::{Kind, Value};

/// What DuckDB said. With `errors_as_json` it is JSON behind a prefix; `fault` reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Error(pub(crate) String);

impl Error {
    fn new(text: impl Into<String>) -> Self {
        Error(text.into())
    }
}

pub(super) type Result<T> = std::result::Result<T, Error>;

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| {
        Error::new(r#"{"exception_type":"Parser","exception_message":"the text holds a NUL character"}"#)
    })
}

/// Copies a C string that DuckDB keeps.
///
/// # Safety
/// `text` is null or a valid C string.
pub(super) unsafe fn borrowed(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Copies a C string that DuckDB gives away, and frees it.
///
/// # Safety
/// `text` is null or a valid C string that `duckdb_free` takes.
pub(super) unsafe fn given(text: *mut c_char) -> String {
    // SAFETY: the caller's promise; freed once, after the copy.
    unsafe {
        let copy = borrowed(text);
        ffi::duckdb_free(text.cast());
        copy
    }
}

/// An open DuckDB instance in memory. It closes with the last that uses it.
pub(crate) struct Database(Arc<Open>);

struct Open(ffi::duckdb_database);

// SAFETY: a database may be used from any thread at once (its own documentation); only connections may not.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Database {
    /// Opens an instance in memory with these settings.
    pub(crate) fn open(settings: &[(&str, &str)]) -> Result<Database> {
        let mut config = std::ptr::null_mut();
        let mut database = std::ptr::null_mut();
        let mut error: *mut c_char = std::ptr::null_mut();
        // SAFETY: every pointer is a local that outlives its call; config and error are freed exactly once.
        unsafe {
            if ffi::duckdb_create_config(&raw mut config) != ffi::duckdb_state_DuckDBSuccess {
                return Err(Error::new("out of memory"));
            }
            for (name, value) in settings {
                let (name, value) = (c_string(name)?, c_string(value)?);
                if ffi::duckdb_set_config(config, name.as_ptr(), value.as_ptr())
                    != ffi::duckdb_state_DuckDBSuccess
                {
                    ffi::duckdb_destroy_config(&raw mut config);
                    return Err(Error::new(format!("setting {} is not known", name.to_string_lossy())));
                }
            }
            let state = ffi::duckdb_open_ext(std::ptr::null(), &raw mut database, config, &raw mut error);
            ffi::duckdb_destroy_config(&raw mut config);
            if state != ffi::duckdb_state_DuckDBSuccess {
                return Err(Error::new(given(error)));
            }
        }
        Ok(Database(Arc::new(Open(database))))
    }

    /// A new connection: what another one made for itself (temporary tables, variables, settings) does not exist in it.
    pub(crate) fn connect(&self) -> Result<Connection> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the database is open for as long as `self` lives.
        if unsafe { ffi::duckdb_connect(self.0.0, &raw mut raw) } != ffi::duckdb_state_DuckDBSuccess {
            return Err(Error::new("a connection could not be made"));
        }
        Ok(Connection { raw, handle: Arc::new(Mutex::new(Some(Handle(raw)))) })
    }

    /// Lets threads of ours work for whatever statements run here.
    pub(crate) fn helpers(&self) -> Helpers {
        // SAFETY: the database is open for as long as `Helpers` holds it.
        Helpers { raw: unsafe { ffi::duckdb_create_task_state(self.0.0) }, _database: self.0.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once.
        unsafe { ffi::duckdb_close(&raw mut self.0) }
    }
}

/// Threads that work for the statements of a database.
pub(crate) struct Helpers {
    raw: ffi::duckdb_task_state,
    _database: Arc<Open>,
}

// SAFETY: the state is made to be shared by the threads that execute tasks and the one that ends them.
unsafe impl Send for Helpers {}
// SAFETY: as above.
unsafe impl Sync for Helpers {}

impl Helpers {
    /// Makes the calling thread one of them. Returns when they are dismissed.
    pub(crate) fn work(&self) {
        // SAFETY: the state is alive.
        unsafe { ffi::duckdb_execute_tasks_state(self.raw) }
    }

    /// Ends them all, those that have not begun as well.
    pub(crate) fn dismiss(&self) {
        // SAFETY: the state is alive.
        unsafe { ffi::duckdb_finish_execution(self.raw) }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        // SAFETY: made by `helpers`, destroyed once; who works borrows it, so nobody does any more.
        unsafe { ffi::duckdb_destroy_task_state(self.raw) }
    }
}

struct Handle(ffi::duckdb_connection);
// SAFETY: used for duckdb_interrupt and duckdb_query_progress only, which are made to be called from another thread, and only
// under the lock that the connection takes before it goes away.
unsafe impl Send for Handle {}

/// Stops what a connection is doing, from any thread. Does nothing once the connection is gone.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<Mutex<Option<Handle>>>);

impl Interrupt {
    pub(crate) fn fire(&self) {
        if let Some(handle) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: the connection is open: `Connection::drop` takes the handle out under this lock first.
            unsafe { ffi::duckdb_interrupt(handle.0) }
        }
    }

    /// How much of the statement is done, 0 to 100, by DuckDB's guess; none where it has no idea.
    pub(crate) fn percent(&self) -> Option<f64> {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as above; the call reads three atomics.
        let progress = unsafe { ffi::duckdb_query_progress(handle.as_ref()?.0) };
        (0.0..=100.0).contains(&progress.percentage).then_some(progress.percentage)
    }
}

/// A connection: one statement at a time, on one thread at a time.
pub(crate) struct Connection {
    raw: ffi::duckdb_connection,
    handle: Arc<Mutex<Option<Handle>>>,
}

// SAFETY: a connection may move between threads; it is not Sync, so it is never used by two at once.
unsafe impl Send for Connection {}

impl Connection {
    /// A way to stop this connection's statement.
    pub(crate) fn interrupt(&self) -> Interrupt {
        Interrupt(self.handle.clone())
    }

    /// Runs text of ours, one statement after the other up to the first that fails; rows, if any, are dropped.
    pub(crate) fn run(&self, sql: &str) -> Result<()> {
        let sql = c_string(sql)?;
        let mut result = Answer::empty();
        // SAFETY: the connection is open, `sql` and `result` outlive the call; `Answer` frees the result.
        let state = unsafe { ffi::duckdb_query(self.raw, sql.as_ptr(), &raw mut result.0) };
        if state == ffi::duckdb_state_DuckDBSuccess { Ok(()) } else { Err(result.error()) }
    }

    /// Splits text into statements by DuckDB's own parser. Runs none of them.
    pub(crate) fn split(&self, sql: &str) -> Result<Statements<'_>> {
        let sql = c_string(sql)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the connection is open, `sql` outlives the call; `Statements` frees what comes back, failed or not.
        let count = unsafe { ffi::duckdb_extract_statements(self.raw, sql.as_ptr(), &raw mut raw) };
        let statements = Statements { connection: self, raw, count };
        if count == 0 {
            // SAFETY: `raw` is what the call above made, and still alive.
            let error = unsafe { borrowed(ffi::duckdb_extract_statements_error(raw)) };
            if !error.is_empty() {
                return Err(Error(error));
            }
        }
        Ok(statements)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: made by `connect`, closed once; no interrupt can come any more.
        unsafe { ffi::duckdb_disconnect(&raw mut self.raw) }
    }
}

/// Text split into statements.
pub(crate) struct Statements<'c> {
    connection: &'c Connection,
    raw: ffi::duckdb_extracted_statements,
    count: u64,
}

impl<'c> Statements<'c> {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Prepares one: names and types are resolved, which may read from catalog and store; nothing is executed.
    pub(crate) fn prepare(&self, index: u64) -> Result<Prepared<'c>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: both handles are alive; `Prepared` frees what comes back, failed or not.
        let state = unsafe {
            ffi::duckdb_prepare_extracted_statement(self.connection.raw, self.raw, index, &raw mut raw)
        };
        let prepared = Prepared { _connection: self.connection, raw };
        if state == ffi::duckdb_state_DuckDBSuccess {
            return Ok(prepared);
        }
        // SAFETY: `raw` is alive inside `prepared`.
        Err(Error(unsafe { borrowed(ffi::duckdb_prepare_error(prepared.raw)) }))
    }
}

impl Drop for Statements<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `split`, freed once.
        unsafe { ffi::duckdb_destroy_extracted(&raw mut self.raw) }
    }
}

/// A prepared statement.
pub(crate) struct Prepared<'c> {
    _connection: &'c Connection,
    raw: ffi::duckdb_prepared_statement,
}

impl Prepared<'_> {
    pub(crate) fn kind(&self) -> Kind {
        // SAFETY: the statement is alive.
        match unsafe { ffi::duckdb_prepared_statement_type(self.raw) } {
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_SELECT => Kind::Select,
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_EXPLAIN => Kind::Explain,
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_INSERT => Kind::Insert,
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_UPDATE => Kind::Update,
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_DELETE => Kind::Delete,
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_MERGE_INTO => Kind::Merge,
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_CREATE => Kind::Create,
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_DROP => Kind::Drop,
            ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_ALTER => Kind::Alter,
            other => Kind::Other(other),
        }
    }

    /// The names of its parameters in their order; positional ones are called `1`, `2`, ….
    pub(crate) fn parameters(&self) -> Vec<String> {
        // SAFETY: the statement is alive, indexes are within its count; each name is freed by `given`.
        unsafe {
            let count = ffi::duckdb_nparams(self.raw);
            (1..=count).map(|i| given(ffi::duckdb_parameter_name(self.raw, i).cast_mut())).collect()
        }
    }

    /// Binds the parameter at `index`, counted from 1.
    pub(crate) fn bind(&self, index: u64, value: &Value) -> Result<()> {
        // SAFETY: the statement is alive; text is copied by DuckDB before the call returns.
        let state = unsafe {
            match value {
                Value::Null => ffi::duckdb_bind_null(self.raw, index),
                Value::Bool(b) => ffi::duckdb_bind_boolean(self.raw, index, *b),
                Value::Integer(i) => ffi::duckdb_bind_int64(self.raw, index, *i),
                Value::Double(d) => ffi::duckdb_bind_double(self.raw, index, *d),
                Value::Text(t) => {
                    ffi::duckdb_bind_varchar_length(self.raw, index, t.as_ptr().cast(), t.len() as u64)
                }
            }
        };
        if state == ffi::duckdb_state_DuckDBSuccess {
            return Ok(());
        }
        // SAFETY: the statement is alive.
        Err(Error(unsafe { borrowed(ffi::duckdb_prepare_error(self.raw)) }))
    }

    /// Runs it. A read is streamed: rows are made as they are fetched. Anything else has run to its end, commit and all,
    /// when this returns, since only then can its error be told.
    pub(crate) fn execute(&self) -> Result<Rows<'_>> {
        let mut answer = Answer::empty();
        // SAFETY: the statement is alive; `Answer` frees the result, failed or not; the pending result is freed here.
        let state = unsafe {
            if self.kind() == Kind::Select {
                let mut pending = std::ptr::null_mut();
                let mut state = ffi::duckdb_pending_prepared_streaming(self.raw, &raw mut pending);
                if state == ffi::duckdb_state_DuckDBSuccess {
                    state = ffi::duckdb_execute_pending(pending, &raw mut answer.0);
                } else {
                    let error = Error(borrowed(ffi::duckdb_pending_error(pending)));
                    ffi::duckdb_destroy_pending(&raw mut pending);
                    return Err(error);
                }
                ffi::duckdb_destroy_pending(&raw mut pending);
                state
            } else {
                ffi::duckdb_execute_prepared(self.raw, &raw mut answer.0)
            }
        };
        if state != ffi::duckdb_state_DuckDBSuccess {
            return Err(answer.error());
        }
        Rows::of(answer)
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `prepare`, freed once; no `Rows` outlives it.
        unsafe { ffi::duckdb_destroy_prepare(&raw mut self.raw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_statements_none_is_run_after_one_that_fails_and_its_error_is_told() {
        let connection = Database::open(&[("threads", "1")]).unwrap().connect().unwrap();
        connection.run("").unwrap();
        connection.run("CREATE TABLE a (i INT);INSERT INTO a VALUES (1);FROM a").unwrap();
        for fails in ["SET GLOBAL no_such_setting = 1", "SELECT error('only when it runs')"] {
            connection
                .run(&format!("{fails};CREATE TABLE never (i INT);SET GLOBAL default_order = 'desc'"))
                .unwrap_err();
            connection.run("FROM never").unwrap_err();
        }
    }
}
