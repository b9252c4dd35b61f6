//! DuckDB's errors, sorted into codes, in words that may be shown.
//!
//! DuckDB is asked for errors as JSON, so the sorting goes by the exception's type. Only where one type covers several causes
//! (`HTTP`, `IO`, `Out of Memory`) does its text decide between them, and never about the worker's fate.

use duck_contract::Code;
use duck_contract::worker::{Cell, Failure, Spec};
use serde::Deserialize;

use crate::sys::duckdb::Error;

/// Longest message that is shown, in bytes.
const MESSAGE_BYTES_MAX: usize = 4_000;

/// What DuckDB's words must not carry out of a worker: the doors' addresses, the worker's credentials and directory, the
/// bucket.
#[derive(Clone)]
pub(crate) struct Scrub(Vec<(String, &'static str)>);

impl Scrub {
    /// `spec` once it is known.
    pub(crate) fn of(cell: &Cell, spec: Option<&Spec>) -> Self {
        let catalog = format!("127.0.0.1:{}", cell.catalog_port);
        let storage = format!("127.0.0.1:{}", cell.storage_port);
        let mut words: Vec<(String, &'static str)> = Vec::new();
        if let Some(Spec { bucket, prefix, .. }) = spec {
            words.push((format!("http://{storage}/{bucket}/{prefix}"), "<warehouse>/"));
            words.push((format!("s3://{bucket}/{prefix}"), "<warehouse>/"));
        }
        words.extend([
            (format!("http://{storage}"), "<store>"),
            (format!("http://{catalog}"), "<catalog>"),
            (storage, "<store>"),
            (catalog, "<catalog>"),
            (cell.keys.secret_access_key.clone(), "<secret>"),
            (cell.keys.access_key_id.clone(), "<key>"),
            (cell.keys.bearer.clone(), "<token>"),
            (cell.directory.clone(), "<spill>"),
        ]);
        Scrub(words)
    }

    /// The text without what must not be shown, cut to a bearable length.
    pub(crate) fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (secret, word) in &self.0 {
            if !secret.is_empty() && text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), word);
            }
        }
        text = without_logins(&text);
        if text.len() > MESSAGE_BYTES_MAX {
            let end = (0..=MESSAGE_BYTES_MAX).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
        text
    }
}

/// The text without what stands before an `@` in its URLs: somebody's name and password.
fn without_logins(text: &str) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let host = part.find(['/', ' ', '"', '\'']).unwrap_or(part.len());
        clean.push_str("://");
        clean.push_str(part[..host].rfind('@').map_or(part, |at| &part[at..]));
    }
    clean
}

/// What `errors_as_json` gives; unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Exception {
    #[serde(rename = "exception_type")]
    kind: String,
    #[serde(rename = "exception_message")]
    message: String,
    position: Option<String>,
}

impl Exception {
    /// Reads DuckDB's text: JSON, often behind `Binder Error: `, sometimes behind a sentence; or, from a few places, plain
    /// text behind its type.
    fn read(error: &Error) -> Exception {
        let text = &error.0;
        if let Some(start) = text.find("{\"exception_") {
            let mut stream = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Exception>();
            if let Some(Ok(exception)) = stream.next() {
                return exception;
            }
        }
        let (kind, message) = text.split_once(" Error: ").unwrap_or(("", text));
        let kind = kind.rsplit('\n').next().unwrap_or_default();
        Exception { kind: kind.to_owned(), message: message.to_owned(), position: None }
    }
}

/// The failure of this statement. A file that is missing is its own affair where it names one, and else the table's.
pub(crate) fn of_text(sql: &str, error: &Error, scrub: &Scrub) -> Failure {
    let mut failure = of_statement(error, scrub);
    let exception = Exception::read(error);
    let missing = matches!(exception.kind.as_str(), "HTTP" | "IO") && exception.message.contains("HTTP 404");
    if missing && !sql.to_ascii_lowercase().contains("s3://") {
        failure.code = Code::StorageUnavailable;
        "A file that the table consists of is not in the object store.".clone_into(&mut failure.message);
    }
    failure
}

/// The failure of a statement.
fn of_statement(error: &Error, scrub: &Scrub) -> Failure {
    let exception = Exception::read(error);
    let words = scrub.clean(&without_advice(&exception.message));
    let (code, message) = sort(&exception, words);
    Failure {
        code,
        message,
        position: exception.position.and_then(|p| p.parse().ok()),
        worn: worn(&exception.kind),
        detail: scrub.clean(&error.0),
    }
}

/// DuckDB's words up to where they advise what nobody can do here: to set, install or load something.
fn without_advice(text: &str) -> String {
    const ADVICE: [&str; 8] = [
        "INSTALL ",
        "\"SET ",
        "'SET ",
        "`SET ",
        "running: SET ",
        "\nSET ",
        "PRAGMA ",
        "the configuration option",
    ];
    let Some(at) = ADVICE.iter().filter_map(|advice| text.find(advice)).min() else { return text.to_owned() };
    let before = &text[..at];
    let end =
        [". ", ".\n", "! ", "!\n"].iter().filter_map(|end| before.rfind(end)).max().map_or(0, |end| end + 1);
    let mut words = before[..end].trim_end().to_owned();
    if words.is_empty() {
        "The engine as it is here cannot do this.".clone_into(&mut words);
    } else if words.contains("extension") {
        words.push_str(" Extensions cannot be loaded here.");
    }
    words
}

/// After these the engine's state or memory is in doubt. By type only.
fn worn(kind: &str) -> bool {
    matches!(kind, "Out of Memory" | "INTERNAL" | "FATAL")
}

fn sort(exception: &Exception, words: String) -> (Code, String) {
    let ours = |code, sentence: &str| (code, sentence.to_owned());
    let text = exception.message.as_str();
    match exception.kind.as_str() {
        "Parser" | "Syntax" => (Code::SqlSyntax, words),
        "Binder" | "Catalog" | "Dependency" if text.contains("HTTP") || text.contains("_5") => {
            remote(text, words)
        }
        "Binder" | "Catalog" | "Dependency" => (Code::SqlBinding, words),
        "Invalid Input" | "Invalid type" if text.contains("is not a valid Iceberg Type") => {
            (Code::NotSupported, words)
        }
        "Conversion" | "Mismatch Type" | "Invalid type" | "Unknown Type" | "Decimal" => {
            (Code::SqlType, words)
        }
        "Not implemented" => (Code::NotSupported, words),
        _ if text.contains("DEFAULT values are not supported for <V3") => ours(
            Code::NotSupported,
            "A column has a default only in a table that was made WITH ('format-version' = '3').",
        ),
        "Parameter Not Resolved" | "Parameter Not Allowed" => (Code::SqlParameters, words),
        "Permission" => ours(
            Code::OutsideWarehouse,
            "The statement reaches for something outside this workspace's warehouse, which no statement can.",
        ),
        "Out of Memory" if text.contains("max_temp_directory_size") => ours(
            Code::SpillExhausted,
            "The statement needs more disk for intermediate data than one may use. Read fewer rows or columns.",
        ),
        "Out of Memory" => ours(
            Code::OutOfMemory,
            "The statement needs more memory than an engine has. Read fewer rows or columns, or aggregate earlier.",
        ),
        "Invalid Configuration" if text.contains("iceberg table") => {
            ours(Code::SqlRuntime, "There is no Iceberg table at the place that the statement names.")
        }
        "IO" if text.contains("Permission denied") => ours(
            Code::OutsideWarehouse,
            "The statement reaches for something outside this workspace's warehouse, which no statement can.",
        ),
        "INTERRUPT" => ours(Code::Cancelled, "The statement was cancelled."),
        "INTERNAL" | "FATAL" => ours(Code::Internal, "The engine failed at this statement."),
        "HTTP"
        | "IO"
        | "Connection"
        | "Missing Extension"
        | "Extension Autoloading"
        | "Invalid Configuration" => remote(text, words),
        // A commit fails by what the catalog or the store said to it.
        "Transaction" | "TransactionContext" if text.contains("Failed to commit") => remote(text, words),
        _ if is_conflict(text) => conflict(),
        _ => (Code::SqlRuntime, words),
    }
}

/// A failure of one of several statements.
pub(crate) fn of_several(number: usize, mut failure: Failure) -> Failure {
    failure.message = format!("Statement {}: {}", number + 1, failure.message);
    failure
}

fn is_conflict(text: &str) -> bool {
    // These come with the same status, and running the statement again does not help.
    let other =
        ["AlreadyExistsException", "NamespaceNotEmptyException"].iter().any(|kind| text.contains(kind));
    !other && (text.contains("Conflict_409") || text.contains("CommitFailedException"))
}

fn conflict() -> (Code, String) {
    let sentence =
        "Somebody else changed the table at the same time; nothing of this statement was kept. Run it again.";
    (Code::CommitConflict, sentence.to_owned())
}

fn unknown() -> (Code, String) {
    let sentence = "The catalog never said whether the change was made. Read the table to see.";
    (Code::CommitUnknown, sentence.to_owned())
}

/// Errors of catalog and store come as text around an HTTP status.
fn remote(text: &str, words: String) -> (Code, String) {
    let has = |any: &[&str]| any.iter().any(|word| text.contains(word));
    let ours = |code, sentence: &str| (code, sentence.to_owned());
    if is_conflict(text) {
        return conflict();
    }
    if has(&["CommitStateUnknownException"]) {
        return unknown();
    }
    if has(&["/transactions/commit"]) && has(&["Could not connect", "Timeout", "timed out", "Failed to read"])
    {
        // The door was not heard to its end, so it may have said yes.
        return unknown();
    }
    if has(&["No space left on device", "File too large", "Disk quota exceeded"]) {
        return ours(
            Code::SpillExhausted,
            "There is no room on disk for the statement's intermediate data. Read fewer rows or columns.",
        );
    }
    if has(&["AlreadyExistsException"]) {
        return ours(Code::SqlBinding, "Something of that name exists already.");
    }
    if has(&["NamespaceNotEmptyException"]) {
        return ours(Code::SqlRuntime, "The schema is not empty.");
    }
    if has(&["outside the warehouse", "InvalidLocation", "HTTP 403", "Forbidden"]) {
        return ours(
            Code::OutsideWarehouse,
            "The statement reaches for something outside this workspace's warehouse, or changes what it may only read.",
        );
    }
    if has(&["HTTP 404", "NotFound_404", "Not Found", "No files found", "No such file"]) {
        return ours(Code::SqlRuntime, "A file or table that the statement names does not exist.");
    }
    if has(&["BadRequest_400", "HTTP 400"]) {
        return ours(
            Code::SqlRuntime,
            "The catalog or the store refused the request that the statement needs.",
        );
    }
    if has(&[
        "Could not connect",
        "HTTP 5",
        "_50",
        "Timeout",
        "timed out",
        "Failed to read",
        "Transferred a partial",
    ]) {
        let catalog = has(&["endpoint returned", "/v1/", "namespaces", "<catalog>"]);
        return if catalog {
            ours(Code::CatalogUnavailable, "The catalog does not answer. Try again in a moment.")
        } else {
            ours(Code::StorageUnavailable, "The object store does not answer. Try again in a moment.")
        };
    }
    (Code::SqlRuntime, words)
}

/// Whether DuckDB refused by its own rules of access.
pub(crate) fn is_permission(error: &Error) -> bool {
    Exception::read(error).kind == "Permission"
}

/// The failure of a worker that cannot even begin a statement: nothing was run, and this worker is not asked again.
pub(crate) fn unable_to_begin(detail: &str) -> Failure {
    let mut failure =
        ours(Code::EngineUnavailable, "The engine could not begin the statement. Try again in a moment.");
    failure.worn = true;
    detail.clone_into(&mut failure.detail);
    failure
}

/// The failure of a worker that does not become what it must be.
pub(crate) fn self_test(what: &str) -> Failure {
    Failure {
        code: Code::EngineUnavailable,
        message: "An engine could not be prepared.".to_owned(),
        position: None,
        worn: true,
        detail: format!("self-test: {what}"),
    }
}

/// A failure in words of ours.
pub(crate) fn ours(code: Code, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into(), position: None, worn: false, detail: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrub() -> Scrub {
        Scrub(vec![("s3://lakehouse/w_a/".to_owned(), "<warehouse>/"), ("sesame".to_owned(), "<secret>")])
    }

    fn code(text: &str) -> Code {
        of_statement(&Error(text.to_owned()), &scrub()).code
    }

    #[test]
    fn an_exception_is_sorted_by_its_type() {
        let text =
            r#"Binder Error: {"exception_type":"Binder","exception_message":"no column x","position":"7"}"#;
        let failure = of_statement(&Error(text.to_owned()), &scrub());
        assert_eq!((failure.code, failure.position, failure.worn), (Code::SqlBinding, Some(7), false));
        assert_eq!(failure.message, "no column x");
        assert_eq!(code("Parser Error: syntax error at or near \"selec\""), Code::SqlSyntax);
        assert_eq!(
            code(r#"{"exception_type":"Permission","exception_message":"Cannot access file \"/etc/x\""}"#),
            Code::OutsideWarehouse
        );
    }

    #[test]
    fn a_commit_fails_by_what_was_said_to_it() {
        let commit = |said: &str| {
            let text = format!("Failed to commit: Failed to commit Iceberg transaction: {said}");
            code(&format!(r#"{{"exception_type":"TransactionContext","exception_message":"{text}"}}"#))
        };
        let path = "'http://127.0.0.1:1/v1/p/transactions/commit'";
        assert_eq!(
            commit(&format!("Request returned HTTP 503 for HTTP POST to {path}")),
            Code::CatalogUnavailable
        );
        assert_eq!(
            commit(&format!("Request to {path} returned a non-200 status code (Conflict_409)")),
            Code::CommitConflict
        );
        let unknown = format!(
            "Request to {path} returned a non-200 status code (BadGateway_502). type: CommitStateUnknownException"
        );
        assert_eq!(commit(&unknown), Code::CommitUnknown);
        assert_eq!(
            commit(&format!("Timeout was reached error for HTTP POST to {path}")),
            Code::CommitUnknown
        );
    }

    #[test]
    fn a_type_that_iceberg_does_not_have_is_not_supported() {
        for (kind, message) in [
            ("Invalid Input", "Column type INTERVAL is not a valid Iceberg Type."),
            ("Invalid type", "Type JSON is not a valid Iceberg Type"),
        ] {
            let text = format!(r#"{{"exception_type":"{kind}","exception_message":"{message}"}}"#);
            assert_eq!(code(&text), Code::NotSupported, "{message}");
        }
    }

    #[test]
    fn nobody_is_told_to_do_what_cannot_be_done() {
        for (text, said) in [
            (
                "Function \"st_area\" is not in the catalog, but it exists in the spatial extension.\n\nPlease try installing \
                 and loading the spatial extension:\nINSTALL spatial;\nLOAD spatial;\n\n",
                "Function \"st_area\" is not in the catalog, but it exists in the spatial extension. Extensions cannot be \
                 loaded here.",
            ),
            (
                "Max expression depth limit of 1000 exceeded. Use \"SET max_expression_depth TO x\" to increase it.",
                "Max expression depth limit of 1000 exceeded.",
            ),
            ("To enable this use 'SET x = true;'", "The engine as it is here cannot do this."),
            ("syntax error at or near \"SET\"", "syntax error at or near \"SET\""),
            ("no column SETTING", "no column SETTING"),
        ] {
            assert_eq!(without_advice(text), said);
        }
    }

    #[test]
    fn memory_and_internal_errors_wear_a_worker_out() {
        for kind in ["Out of Memory", "INTERNAL", "FATAL"] {
            let text = format!(r#"{{"exception_type":"{kind}","exception_message":"m"}}"#);
            assert!(of_statement(&Error(text), &scrub()).worn, "{kind}");
        }
        // A statement can put any words into its error; they do not decide.
        let said = r#"Invalid Input Error: {"exception_type":"Invalid Input","exception_message":"Out of Memory INTERNAL"}"#;
        assert!(!of_statement(&Error(said.to_owned()), &scrub()).worn);
    }

    #[test]
    fn words_lose_what_must_not_be_shown() {
        let text = r#"{"exception_type":"Invalid Input","exception_message":"s3://lakehouse/w_a/t/x.parquet sesame"}"#;
        let failure = of_statement(&Error(text.to_owned()), &scrub());
        assert_eq!(failure.message, "<warehouse>/t/x.parquet <secret>");
        assert!(!failure.detail.contains("sesame"));
        for (text, clean) in [
            (r#"no access to "s3://u:hush@lake/x@y.csv" now"#, r#"no access to "s3://@lake/x@y.csv" now"#),
            ("http://h/a http://me@h", "http://h/a http://@h"),
            ("a@b: no URL", "a@b: no URL"),
        ] {
            assert_eq!(scrub().clean(text), clean);
        }
    }
}
