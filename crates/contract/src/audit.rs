//! The record of a statement: what a line of the audit file holds, and `GET /queries/history`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Role;
use crate::query::{TableChange, WriteState};

/// What is known of one statement when it begins, when it has ended, or when it was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    /// Which of the three.
    pub event: AuditEvent,
    /// When, RFC 3339 in UTC with milliseconds.
    pub recorded_at: String,
    /// The request's id; that of the statement for one that was sent to `/statements`.
    pub request_id: String,
    /// Whose data.
    pub workspace: String,
    /// Who asked: `sub` of the token, empty where it has none.
    pub subject: String,
    /// Whether it might write.
    pub role: Role,
    /// What was asked, without comments, without literals that are long or could be secret, and cut to a bound. Values of parameters are
    /// never in it.
    pub statement: String,
    /// Milliseconds from its arrival until it was its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<u64>,
    /// Milliseconds from there until it was sent to its engine: the engine's start, and a write's turn at its tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<u64>,
    /// How it ended; none of one that begins.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub end: Option<AuditEnd>,
}

/// Which moment of a statement a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditEvent {
    /// It is being sent to its engine. One without an [`AuditEvent::End`] was under way when the server was lost.
    Start,
    /// It has ended.
    End,
    /// It wanted to change something that its token or the policy does not open, and was not begun.
    Refused,
}

/// How a statement ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEnd {
    /// `ok`, the code of its problem, or `client_gone`.
    pub outcome: String,
    /// Milliseconds from its start to its end, with the sending of its answer.
    pub run_ms: u64,
    /// What it did, as the doors saw it; of one that was refused, what it wanted.
    pub kinds: Vec<AuditKind>,
    /// The tables whose metadata its engine was given meanwhile, `schema.table`.
    pub tables_read: Vec<String>,
    /// The tables that it changed, made or removed in the catalog.
    pub tables_written: Vec<String>,
    /// Each of its changes, with the snapshots before and after.
    pub changes: Vec<TableChange>,
    /// Whether those changes were made; none for one that might change nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_state: Option<WriteState>,
    /// There were more tables or changes than a record names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tables_cut: bool,
    /// Rows of its answer; none where it did not come to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Whether there were more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Rows that its changes affected, as the engine says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_affected: Option<u64>,
    /// Bytes of its answer.
    pub bytes: u64,
    /// Bytes that its engine read from the store meanwhile.
    pub store_bytes_read: u64,
    /// Bytes that it wrote there.
    pub store_bytes_written: u64,
    /// Requests of its engine to the store.
    pub store_calls: u64,
    /// Requests of its engine to the catalog.
    pub catalog_calls: u64,
    /// What its engine's processor time grew by, milliseconds in steps of ten; none where the engine is gone, and of a
    /// statement that ran for less than ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// The most memory that its engine ever had, bytes, with the code that all share; none where the processor time is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Other statements of the workspace were on its engine at the same time: tables read, bytes, calls, processor time and memory may be
    /// theirs.
    pub shared: bool,
    /// The rules of the service's policy that decided on its changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// How often it was run, where it might change something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

/// What a statement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditKind {
    /// It read, or computed without any table.
    Read,
    /// It changed rows.
    Write,
    /// It made, changed or removed tables or schemas.
    Ddl,
}

/// `GET /queries/history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryAnswer {
    /// The workspace's last statements that have ended or were refused, the newest first. This replica's, since its start.
    pub queries: Vec<AuditRecord>,
}
