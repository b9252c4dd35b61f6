//! Which statements are run, and what is said of the others.
//!
//! This is courtesy and hygiene, not a boundary: the doors and the sandbox decide what a worker can do. It makes a refusal early,
//! gives it a sentence, and keeps what one request does from being seen by the next.
//! Given the text, hands on a [`Reading`] before DuckDB sees it (`scan`); given DuckDB's own word for the kind, says whether it
//! is run. Why it is done so: docs/decisions/2026-11-29-statement-policy.md.

mod bounds;
mod intent;
mod names;
mod paths;
mod scan;
mod text;

use duck_contract::worker::{Failure, Intent, Statement, TextLimits};
use duck_contract::{Code, Params, Role};
use serde_json::Value as Json;

pub(crate) use names::Names;
pub(crate) use scan::Reading;

use crate::fault;
use crate::sys::duckdb::Kind;
use scan::Rules;
use text::{Token, unquoted};

/// What a worker knows of what it may run.
pub(crate) struct Policy {
    names: Names,
    /// The warehouse's place in the store, with a slash at its end.
    place: String,
    role: Role,
    /// The schema whose tables need no schema name.
    default_schema: String,
}

impl Policy {
    /// `place` is the warehouse's in the store, with a slash at its end.
    pub(crate) fn new(names: Names, place: String, role: Role, default_schema: String) -> Self {
        Policy { names, place, role, default_schema }
    }

    /// For whom statements are read.
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Reads the text, or refuses what is too much to read, what is never run by its first word, and what calls a function that
    /// is not for tenants. Before DuckDB reads it: its parser executes some of IMPORT and EXPORT.
    pub(crate) fn read(&self, sql: &str, limits: TextLimits) -> Result<Reading, Failure> {
        let reading = scan::scan(sql, Rules { names: &self.names, place: &self.place, limits })?;
        if let Some(sentence) = never_run(&reading.words) {
            return refused(sentence);
        }
        if reading.words.get(0) == Some("CREATE") {
            // What kind of thing it makes is known before DuckDB looks for the place.
            created(self.role, &reading.words)?;
        }
        if self.role == Role::Writer {
            intent::unsupported(sql)?;
        }
        Ok(reading)
    }

    /// What a statement that may be run is about to change.
    pub(crate) fn intent(&self, statement: &Statement) -> Result<Intent, Failure> {
        let texts = || statement.before.iter().chain([&statement.sql]).map(String::as_str);
        texts().try_for_each(|sql| self.read(sql, statement.text).map(drop))?;
        Ok(intent::intent(texts(), &self.default_schema))
    }

    /// Accepts the values of its parameters, or says why not.
    pub(crate) fn check_parameters(&self, reading: &Reading, params: Option<&Params>) -> Result<(), Failure> {
        let check = |value: &Json| match value {
            Json::String(text) if reading.files_by_parameter => paths::within(text, &self.place),
            _ => Ok(()),
        };
        match params {
            Some(Params::Positional(values)) => values.iter().try_for_each(check),
            Some(Params::Named(values)) => values.values().try_for_each(check),
            None => Ok(()),
        }
    }

    /// Accepts a statement that DuckDB says is of this kind, or says why not.
    pub(crate) fn check(&self, reading: &Reading, kind: Kind) -> Result<(), Failure> {
        check(self.role, kind, &reading.words)
    }
}

impl Reading {
    /// Whether it may name a table.
    pub(crate) fn names_tables(&self) -> bool {
        self.tables
    }

    /// Whether nothing follows a semicolon. DuckDB makes several statements of one PIVOT.
    pub(crate) fn is_one_statement(&self) -> bool {
        !self.several
    }
}

fn check(role: Role, kind: Kind, words: &Words) -> Result<(), Failure> {
    match kind {
        Kind::Select => Ok(()),
        Kind::Explain => explained(role, words),
        Kind::Insert | Kind::Update | Kind::Delete | Kind::Merge => writes(role),
        Kind::Create => created(role, words),
        Kind::Drop | Kind::Alter => match words.get(1) {
            Some("TABLE" | "SCHEMA" | "VIEW") => writes(role),
            _ => refused("Only tables and schemas can be altered or dropped."),
        },
        Kind::Other(_) => refused(never_run(words).unwrap_or("Statements of this kind are not available.")),
    }
}

/// What is said of a statement that is never run, by its first word.
fn never_run(words: &Words) -> Option<&'static str> {
    Some(match words.get(0)? {
        "ATTACH" | "DETACH" => {
            "ATTACH and DETACH are not available: the workspace's own warehouse is attached as `lake`."
        }
        "COPY" | "EXPORT" | "IMPORT" => {
            "COPY, EXPORT and IMPORT are not available: take the answer as Arrow, or create a table from read_parquet, read_csv \
             or read_json."
        }
        "INSTALL" | "LOAD" => "Extensions cannot be installed or loaded.",
        "SET" | "RESET" | "PRAGMA" | "USE" => {
            "Settings last for one request, so SET, RESET, PRAGMA and USE have nothing to act on. Name tables in full."
        }
        "BEGIN" | "START" | "COMMIT" | "ROLLBACK" | "ABORT" => {
            "Every request is a transaction of its own: send several statements as `statements`."
        }
        "PREPARE" | "EXECUTE" | "DEALLOCATE" => "Send the statement with `params` instead of preparing it.",
        "CALL" | "CHECKPOINT" | "VACUUM" | "ANALYZE" => "Statements of this kind are not available.",
        _ => return None,
    })
}

/// Accepts what DuckDB runs before a statement that it takes apart.
pub(crate) fn check_helper(kind: Kind) -> Result<(), Failure> {
    if kind == Kind::Create { Ok(()) } else { refused("Statements of this kind are not available.") }
}

fn writes(role: Role) -> Result<(), Failure> {
    if role == Role::Writer {
        return Ok(());
    }
    Err(fault::ours(Code::ReadOnly, "This statement changes data. Send it with `allow_writes`."))
}

fn refused<T>(sentence: &str) -> Result<T, Failure> {
    Err(fault::ours(Code::StatementRefused, sentence))
}

/// EXPLAIN ANALYZE runs what it explains, so that counts as what it is.
fn explained(role: Role, words: &Words) -> Result<(), Failure> {
    let inner = words
        .iter()
        .find(|w| !matches!(*w, "EXPLAIN" | "ANALYZE" | "FORMAT" | "JSON" | "TEXT" | "HTML" | "GRAPHVIZ"));
    match inner.map(|word| if word == "WITH" { words.verb.unwrap_or(word) } else { word }) {
        Some(
            "SELECT" | "WITH" | "FROM" | "VALUES" | "TABLE" | "DESCRIBE" | "SHOW" | "SUMMARIZE" | "PIVOT"
            | "UNPIVOT",
        ) => Ok(()),
        Some("INSERT" | "UPDATE" | "DELETE" | "MERGE") => writes(role),
        _ => refused("Only statements that read, INSERT, UPDATE, DELETE and MERGE can be explained."),
    }
}

/// CREATE makes tables and schemas in the warehouse, or temporary things that end with the request.
fn created(role: Role, words: &Words) -> Result<(), Failure> {
    let mut rest = words.iter().skip(1).skip_while(|w| matches!(*w, "OR" | "REPLACE")).peekable();
    if rest.next_if(|w| matches!(*w, "TEMP" | "TEMPORARY")).is_some() {
        return match rest.next() {
            Some("TABLE" | "VIEW" | "MACRO" | "FUNCTION") => Ok(()),
            _ => refused("Only tables, views and macros can be temporary."),
        };
    }
    match rest.next() {
        Some("TABLE" | "SCHEMA" | "VIEW") => writes(role)?,
        Some("SECRET" | "PERSISTENT") => return refused("Secrets cannot be created."),
        _ => {
            return refused("Only tables and schemas can be created, or temporary tables, views and macros.");
        }
    }
    let name = rest.find(|w| !matches!(*w, "IF" | "NOT" | "EXISTS"));
    match name {
        Some("MEMORY" | "TEMP" | "SYSTEM") if words.qualified => {
            refused("Tables are created in the warehouse (`lake`), not in the engine's memory.")
        }
        _ => Ok(()),
    }
}

/// The first words of a statement in capitals, without comments and quotation marks.
#[derive(Default)]
struct Words {
    first: Vec<String>,
    /// A dot follows some word.
    qualified: bool,
    /// What a statement with WITH does: the first such word outside of brackets.
    verb: Option<&'static str>,
}

const WORDS_MAX: usize = 16;
const WRITING: [&str; 4] = ["INSERT", "UPDATE", "DELETE", "MERGE"];

impl Words {
    /// Notes the next token, so many brackets deep.
    fn note(&mut self, token: Token<'_>, depth: usize) {
        if self.verb.is_none()
            && depth == 0
            && let Token::Word(word) = token
        {
            let is = |verb: &&str| verb.eq_ignore_ascii_case(word);
            self.verb = ["SELECT", "FROM", "VALUES", "TABLE"].into_iter().chain(WRITING).find(is);
        }
        if self.first.len() == WORDS_MAX {
            return;
        }
        match token {
            Token::Word(word) => self.first.push(word.to_uppercase()),
            Token::Quoted(word) => self.first.push(unquoted(word).to_uppercase()),
            Token::Sign('.') => self.qualified = true,
            _ => {}
        }
    }

    fn get(&self, index: usize) -> Option<&str> {
        self.first.get(index).map(String::as_str)
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        self.first.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests;
