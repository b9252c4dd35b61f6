//! The closed list of error codes, and the body of an error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::query::WriteReport;

/// Media type of an error's body (RFC 9457).
pub const PROBLEM_MEDIA_TYPE: &str = "application/problem+json";

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal;)*) => {
        /// Why a request failed, for machines. The list is closed: a code is never renamed, and a new one is a change of
        /// the contract.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// The code as it stands in a problem's `code`.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// The HTTP status that goes with the code.
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }
        }
    };
}

codes! {
    /// The request is not what the interface takes: malformed JSON, an unknown field or value, a number out of range.
    InvalidRequest = "invalid_request", 400;
    /// The body is larger than the server reads.
    RequestTooLarge = "request_too_large", 413;
    /// No such route, or nothing of that name that the caller may see.
    NotFound = "not_found", 404;
    /// The route exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", 405;

    /// No token, or one that does not hold: signature, time, algorithm, missing claims.
    Unauthenticated = "unauthenticated", 401;
    /// The token cannot be checked now: the keys of its issuer cannot be had.
    AuthUnavailable = "auth_unavailable", 503;
    /// The request names another warehouse than the token's workspace has.
    WarehouseMismatch = "warehouse_mismatch", 403;
    /// `allow_writes` was asked for and the token does not grant writing.
    WritesNotGranted = "writes_not_granted", 403;
    /// The service's policy lets nothing be written there: see the table and the rule in `detail`.
    WriteTargetClosed = "write_target_closed", 403;
    /// The catalog has no warehouse of that name.
    UnknownWarehouse = "unknown_warehouse", 404;
    /// The catalog says that the warehouse lies elsewhere in the store than this server is configured to expect.
    WarehousePlaceMismatch = "warehouse_place_mismatch", 502;

    /// There is no statement in `sql`.
    EmptyStatement = "empty_statement", 400;
    /// There is more than one statement in `sql`.
    MultipleStatements = "multiple_statements", 400;
    /// A statement of a kind that is never run here (ATTACH, CREATE SECRET, LOAD, …).
    StatementRefused = "statement_refused", 403;
    /// A statement that changes something, sent without `allow_writes`.
    ReadOnly = "read_only", 403;
    /// The statement reaches for something outside the caller's warehouse.
    OutsideWarehouse = "outside_warehouse", 403;
    /// Another request of this workspace with this id is running.
    RequestIdTaken = "request_id_taken", 409;
    /// The SQL does not parse.
    SqlSyntax = "sql_syntax", 400;
    /// A table, column, function or type that does not exist, or an expression that does not bind.
    SqlBinding = "sql_binding", 400;
    /// A value of the wrong type, or that cannot be converted.
    SqlType = "sql_type", 400;
    /// The statement failed while it ran, by its own doing (division, constraint, invalid input, …).
    SqlRuntime = "sql_runtime", 400;
    /// Parameters are missing, too many, or of a kind that cannot be bound.
    SqlParameters = "sql_parameters", 400;
    /// DuckDB cannot do this (on Iceberg, or at all) in this version.
    NotSupported = "not_supported", 422;
    /// The statement needs more memory than a worker has.
    OutOfMemory = "out_of_memory", 422;
    /// The statement spilled more than a worker may.
    SpillExhausted = "spill_exhausted", 422;
    /// Somebody else changed the table between reading and committing.
    CommitConflict = "commit_conflict", 409;
    /// The catalog never said whether the change was made.
    CommitUnknown = "commit_unknown", 502;
    /// The change was made, and then its answer was lost: see `write`. Do not send it again.
    AnswerLost = "answer_lost", 502;

    /// The result was asked for, and the statement has not ended yet.
    StatementRunning = "statement_running", 409;
    /// A statement was sent with the `request_id` of another one that is kept, which was not the same.
    RequestIdReused = "request_id_reused", 409;
    /// The statement was removed, or its time has passed: it and its result are not kept any more.
    StatementGone = "statement_gone", 410;
    /// The answer is larger than a kept result may be.
    ResultTooLarge = "result_too_large", 422;
    /// The statement ran, and there was no room to keep its answer: the workspace's share, the server's, or the disk is used up.
    ResultNotKept = "result_not_kept", 507;

    /// Too many requests of this workspace are running or waiting, or too many of its statements are kept.
    TenantBusy = "tenant_busy", 429;
    /// The server runs, or keeps, as much as it may.
    ServerBusy = "server_busy", 503;
    /// The server is shutting down; the statement was not started.
    Draining = "draining", 503;
    /// The deadline of the request passed.
    Timeout = "timeout", 504;
    /// The statement was cancelled.
    Cancelled = "cancelled", 499;

    /// The engine ended in the middle of the statement.
    EngineLost = "engine_lost", 502;
    /// No engine could be started.
    EngineUnavailable = "engine_unavailable", 503;
    /// The catalog does not answer, or answers with an error of its own.
    CatalogUnavailable = "catalog_unavailable", 503;
    /// The object store does not answer, or a file that a table names cannot be read.
    StorageUnavailable = "storage_unavailable", 503;
    /// A fault of ours.
    Internal = "internal", 500;
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The body of every error, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Why, for machines.
    pub code: Code,
    /// The HTTP status, repeated.
    pub status: u16,
    /// Why, for people: one public sentence, or DuckDB's own words on the statement.
    pub detail: String,
    /// The id under which the log has the rest.
    pub request_id: String,
    /// Where in `sql` the error was found, in characters from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// What became of the changes, where the request came with `allow_writes` and had begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<WriteReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_reads_back_as_it_was_written() {
        for code in Code::ALL {
            let text = serde_json::to_string(code).unwrap();
            assert_eq!(text, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<Code>(&text).unwrap(), *code);
            assert!((400..600).contains(&code.status()));
        }
    }
}
