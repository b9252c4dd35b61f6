//! `POST /query`: what a client sends and what comes back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Media type of an Arrow answer: the Arrow IPC streaming format.
pub const ARROW_MEDIA_TYPE: &str = "application/vnd.apache.arrow.stream";
/// Header or trailer: how many rows the answer holds.
pub const ROW_COUNT_HEADER: &str = "x-row-count";
/// Header or trailer: `true` when there were more rows than `max_rows`.
pub const TRUNCATED_HEADER: &str = "x-truncated";
/// Header or trailer of an answer to a request with `allow_writes`: a [`WriteReport`] in JSON.
pub const WRITE_HEADER: &str = "x-write";
/// Header on every answer, and in every log line.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// One statement, or one transaction of several, to run in the caller's warehouse.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueryRequest {
    /// Exactly one SQL statement. This or `statements` is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql: Option<String>,
    /// Statements that are one transaction: all of them are made, or none. The answer is that of the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<String>,
    /// The warehouse by its full name. With a workspace's token it may be left out and must otherwise agree with it; with
    /// the service token this or `workspace_id` is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warehouse: Option<String>,
    /// The workspace whose warehouse is meant; only with the service token or without authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    /// How the answer is encoded.
    #[serde(default)]
    pub format: Format,
    /// At most so many rows are sent; the server has a ceiling of its own. More are cut off and `truncated` is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u64>,
    /// Asks for an engine that may write. Needs the write grant in the token.
    #[serde(default)]
    pub allow_writes: bool,
    /// What becomes of a change that somebody else's commit was in the way of.
    #[serde(default, skip_serializing_if = "OnConflict::is_default")]
    pub on_conflict: OnConflict,
    /// Values for `?`, `$1` (a list) or `$name` (an object).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Params>,
    /// Milliseconds from arrival to the last byte; the server has a ceiling of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<u64>,
}

/// What becomes of a change that somebody else's commit was in the way of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// An append (an INSERT that does not read its own table) is run again, which changes nothing of what it means; anything else
    /// fails with `commit_conflict`.
    #[default]
    RetryAppends,
    /// Whatever it is, it is run again, on what the table holds then.
    Retry,
    /// It fails with `commit_conflict`.
    Fail,
}

impl OnConflict {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How an answer is encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Arrow IPC stream. Row count and truncation are headers, or trailers when the answer is larger than 1 MiB.
    #[default]
    Arrow,
    /// One [`JsonAnswer`].
    Json,
}

impl Format {
    /// The `Content-Type` of an answer in this format.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Arrow => ARROW_MEDIA_TYPE,
            Format::Json => "application/json",
        }
    }
}

/// Values for a statement's parameters: null, boolean, number or string.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Params {
    /// For `?` and `$1`, in their order.
    Positional(Vec<Value>),
    /// For `$name`.
    Named(Map<String, Value>),
}

/// An answer in JSON. It is streamed; the closing part is written only on success, so a failure cannot be parsed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JsonAnswer {
    /// The columns in their order.
    pub columns: Vec<Column>,
    /// One list of values a row, in the order of the columns.
    pub rows: Vec<Vec<Value>>,
    /// How many rows there are.
    pub row_count: u64,
    /// Whether there were more than `max_rows`.
    pub truncated: bool,
    /// What was changed, when the request came with `allow_writes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<WriteReport>,
}

/// What became of the changes of a request, as the catalog has it and not as the SQL says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WriteReport {
    /// Whether they were made.
    pub state: WriteState,
    /// Rows that were inserted, updated or deleted, where the engine told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_affected: Option<u64>,
    /// The tables and schemas that were changed, in the order of the changes.
    pub changes: Vec<TableChange>,
    /// How often the statement was run: more than once when somebody else's commit was in the way.
    pub attempts: u32,
}

/// Whether a request's changes were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WriteState {
    /// All that were sent to the catalog were made, and none of them was refused.
    Made,
    /// None was made: the tables are as they were before, as far as this request goes.
    NotMade,
    /// Those in `changes` were made, and a later one was not.
    Partly,
    /// The catalog has not said. Look for the snapshots in `changes` in the tables' histories.
    Unknown,
}

/// A change of one table or schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TableChange {
    /// The schema; a nested namespace is joined by dots.
    pub schema: String,
    /// The table; none where the schema itself was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// What was done.
    pub kind: ChangeKind,
    /// The snapshot that the table got, a number of 64 bits as text; none where its rows did not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// The snapshot that it had before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_snapshot_id: Option<String>,
}

/// What a change does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// A table was made.
    Create,
    /// A table's rows or shape were changed.
    Commit,
    /// A table was removed.
    Drop,
    /// A table got another name.
    Rename,
    /// A schema was made, changed or removed.
    Schema,
}

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Column {
    /// Its name; names may repeat.
    pub name: String,
    /// DuckDB's name of its type, such as `DECIMAL(10,2)` or `INTEGER[]`.
    #[serde(rename = "type")]
    pub type_name: String,
}

/// `GET /queries`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueriesAnswer {
    /// The caller's statements that are here now, the oldest first.
    pub queries: Vec<QueryInfo>,
}

/// A statement that is here now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueryInfo {
    /// The id under which it can be cancelled.
    pub request_id: String,
    /// How far it is.
    pub state: QueryState,
    /// Milliseconds since it arrived.
    pub age_ms: u64,
    /// Whether it may write.
    pub writes: bool,
    /// DuckDB's guess at how much is done, 0 to 100; null where it has none, and for requests that came without an id of their own
    /// (`X-Request-Id`).
    pub percent: Option<f64>,
    /// Rows that were encoded so far.
    pub rows: u64,
    /// Bytes that were sent so far.
    pub bytes: u64,
    /// What the engine uses that runs it, together with the workspace's other statements there.
    pub memory_bytes: Option<u64>,
}

/// How far a statement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueryState {
    /// For its turn, or for an engine.
    Waiting,
    /// Nothing was answered yet.
    Running,
    /// Its answer is being sent.
    Sending,
    /// It was told to stop.
    Stopping,
}

/// `GET /tables`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TablesAnswer {
    /// The caller's warehouse.
    pub warehouse: String,
    /// Its tables, sorted.
    pub tables: Vec<TableName>,
}

/// A table by its SQL names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct TableName {
    /// The schema; a nested namespace is joined by dots.
    pub schema: String,
    /// The table's name in it.
    pub name: String,
}
