//! `/statements`: a statement that outlives the request which sent it, and whose answer is kept for a while.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Format, Problem, QueryRequest};

/// A statement to run, and how long to wait for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatementRequest {
    /// What to run, as for `POST /query`. `timeout_ms` is the statement's own deadline, whoever waits for it.
    #[serde(flatten)]
    pub query: QueryRequest,
    /// Milliseconds to wait for the end before answering; 0 answers at once. The server has a ceiling of its own.
    #[serde(default = "wait_timeout_ms")]
    pub wait_timeout_ms: u64,
    /// What becomes of a statement that has not ended by then.
    #[serde(default)]
    pub on_wait_timeout: OnWaitTimeout,
    /// A name of the client's own, so that a request can be repeated: while the workspace's statement of this name is kept, the same
    /// request gets that one, and another request is refused. 1 to 64 letters, digits, `-` and `_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), pattern("^[A-Za-z0-9_-]+$"))]
    pub request_id: Option<String>,
}

fn wait_timeout_ms() -> u64 {
    10_000
}

/// What becomes of a statement that has not ended within the time to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnWaitTimeout {
    /// It goes on.
    #[default]
    Continue,
    /// It is cancelled.
    Cancel,
}

/// `POST /statements`, `GET /statements/{id}` and `DELETE /statements/{id}`: how a statement is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatementAnswer {
    /// The statement's name in its routes, also in `GET /queries` while it runs.
    pub statement_id: String,
    /// The client's own name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// How far it is.
    pub state: StatementState,
    /// Milliseconds since it arrived.
    pub age_ms: u64,
    /// Whether it may write.
    pub writes: bool,
    /// While it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<StatementProgress>,
    /// Why there is no result, when it has failed or was cancelled. Its `request_id` is that of the request which sent the statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// What there is to fetch, when it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<StatementResult>,
    /// Milliseconds until it is forgotten with its result; none before it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

/// How far a statement is. The last three are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StatementState {
    /// For its turn, or for an engine.
    Waiting,
    /// Its answer is being made.
    Running,
    /// Its answer is kept.
    Succeeded,
    /// There is a problem instead.
    Failed,
    /// Somebody stopped it.
    Cancelled,
}

impl StatementState {
    /// Whether it stays as it is.
    pub fn is_final(self) -> bool {
        !matches!(self, StatementState::Waiting | StatementState::Running)
    }
}

/// How far a running statement is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatementProgress {
    /// DuckDB's guess at how much is done, 0 to 100; null where it has none.
    pub percent: Option<f64>,
    /// Rows of the answer so far.
    pub rows: u64,
    /// Bytes of the answer that are kept so far.
    pub bytes: u64,
}

/// What `GET /statements/{id}/result` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatementResult {
    /// How it is encoded.
    pub format: Format,
    /// How many rows there are.
    pub row_count: u64,
    /// Whether there were more than `max_rows`.
    pub truncated: bool,
    /// Its size.
    pub bytes: u64,
}

/// `GET /statements`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatementsAnswer {
    /// The caller's statements that are kept, the oldest first.
    pub statements: Vec<StatementAnswer>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_a_query_and_how_long_to_wait_and_nothing_else() {
        let read = |text: &str| serde_json::from_str::<StatementRequest>(text);
        let plain = read(r#"{"sql": "SELECT 1", "format": "json", "params": [1]}"#).unwrap();
        assert_eq!((plain.query.format, plain.wait_timeout_ms), (Format::Json, 10_000));
        let all = r#"{"sql": "", "wait_timeout_ms": 0, "on_wait_timeout": "cancel", "request_id": "a"}"#;
        assert_eq!(read(all).unwrap().on_wait_timeout, OnWaitTimeout::Cancel);
        let unknown = read(r#"{"sql": "SELECT 1", "wait_timeout": 1}"#).unwrap_err().to_string();
        assert!(unknown.contains("wait_timeout"), "{unknown}");
    }
}
