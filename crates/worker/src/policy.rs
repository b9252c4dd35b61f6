//! Which statements are run, and what is said of the others.
//!
//! This is courtesy, not a boundary: the doors and the sandbox decide what a worker can do. It makes a refusal early, and gives
//! it a sentence.

use duck_contract::worker::Failure;
use duck_contract::{Code, Role};

use crate::fault;
use crate::sys::duckdb::Kind;

/// Refuses what is never run by its first word, before DuckDB reads the text: its parser executes some of IMPORT and EXPORT.
pub(crate) fn check_text(sql: &str) -> Result<(), Failure> {
    never_run(&Words::of(sql)).map_or(Ok(()), refused)
}

/// Accepts a statement of this kind and text for a worker of this role, or says why not.
pub(crate) fn check(role: Role, kind: Kind, sql: &str) -> Result<(), Failure> {
    let words = Words::of(sql);
    match kind {
        Kind::Select => Ok(()),
        Kind::Explain => explained(role, &words),
        Kind::Insert | Kind::Update | Kind::Delete | Kind::Merge => writes(role),
        Kind::Create => created(role, &words),
        Kind::Drop | Kind::Alter => match words.get(1) {
            Some("TABLE" | "SCHEMA" | "VIEW") => writes(role),
            _ => refused("Only tables and schemas can be altered or dropped."),
        },
        Kind::Other(_) => refused(never_run(&words).unwrap_or("Statements of this kind are not available.")),
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
        "BEGIN" | "START" | "COMMIT" | "ROLLBACK" | "ABORT" => "Every request is a transaction of its own.",
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

fn refused(sentence: &str) -> Result<(), Failure> {
    Err(fault::ours(Code::StatementRefused, sentence))
}

/// EXPLAIN ANALYZE runs what it explains, so that counts as what it is.
fn explained(role: Role, words: &Words) -> Result<(), Failure> {
    let inner = words
        .iter()
        .find(|w| !matches!(*w, "EXPLAIN" | "ANALYZE" | "FORMAT" | "JSON" | "TEXT" | "HTML" | "GRAPHVIZ"));
    match inner {
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
struct Words {
    words: Vec<String>,
    /// A dot follows some word.
    qualified: bool,
}

const WORDS_MAX: usize = 16;

impl Words {
    fn of(sql: &str) -> Self {
        let mut found = Words { words: Vec::new(), qualified: false };
        for piece in Pieces(sql) {
            match piece {
                Piece::Word(word) => found.words.push(word.to_uppercase()),
                Piece::Sign('.') => found.qualified = true,
                Piece::Sign(_) | Piece::Text => {}
            }
            if found.words.len() == WORDS_MAX {
                break;
            }
        }
        found
    }

    fn get(&self, index: usize) -> Option<&str> {
        self.words.get(index).map(String::as_str)
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(String::as_str)
    }
}

/// Whether nothing follows a semicolon. DuckDB's parser has accepted the text already; it makes several statements of one PIVOT.
pub(crate) fn is_one_statement(sql: &str) -> bool {
    let mut ended = false;
    Pieces(sql).all(|piece| {
        let semicolon = matches!(piece, Piece::Sign(';'));
        let first = !ended || semicolon;
        ended |= semicolon;
        first
    })
}

/// What a text consists of, without blanks and comments.
enum Piece<'s> {
    /// A word, quoted or not.
    Word(&'s str),
    /// A literal in quotation marks or dollar signs.
    Text,
    /// Any other character.
    Sign(char),
}

struct Pieces<'s>(&'s str);

impl<'s> Iterator for Pieces<'s> {
    type Item = Piece<'s>;

    fn next(&mut self) -> Option<Piece<'s>> {
        loop {
            self.0 = self.0.trim_start();
            if self.0.starts_with("--") {
                self.0 = self.0.split_once('\n').map_or("", |(_, after)| after);
            } else if self.0.starts_with("/*") {
                self.0 = after_comment(self.0);
            } else {
                break;
            }
        }
        let text = self.0;
        let first = text.chars().next()?;
        let (piece, rest) = match first {
            '"' => text[1..]
                .split_once('"')
                .map_or((Piece::Word(&text[1..]), ""), |(w, rest)| (Piece::Word(w), rest)),
            '\'' => (Piece::Text, text[1..].split_once('\'').map_or("", |(_, rest)| rest)),
            '$' if text.starts_with("$$") => {
                (Piece::Text, text[2..].split_once("$$").map_or("", |(_, rest)| rest))
            }
            c if c.is_alphanumeric() || c == '_' => {
                let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
                (Piece::Word(&text[..end]), &text[end..])
            }
            c => (Piece::Sign(c), &text[c.len_utf8()..]),
        };
        self.0 = rest;
        Some(piece)
    }
}

/// What follows a block comment; they nest.
fn after_comment(text: &str) -> &str {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return &text[at..];
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(role: Role, kind: Kind, sql: &str) -> Option<Code> {
        check(role, kind, sql).err().map(|f| f.code)
    }

    #[test]
    fn a_reader_accepts_only_statements_that_read() {
        assert_eq!(code(Role::Reader, Kind::Select, "SELECT 1"), None);
        assert_eq!(code(Role::Reader, Kind::Explain, "EXPLAIN (ANALYZE) SELECT 1"), None);
        for (kind, sql) in [
            (Kind::Insert, "INSERT INTO t VALUES (1)"),
            (Kind::Create, "create /* x */ table t(i int)"),
            (Kind::Drop, "DROP TABLE t"),
            (Kind::Explain, "EXPLAIN ANALYZE DELETE FROM t"),
        ] {
            assert_eq!(code(Role::Reader, kind, sql), Some(Code::ReadOnly), "{sql}");
            assert_eq!(code(Role::Writer, kind, sql), None, "{sql}");
        }
    }

    #[test]
    fn a_semicolon_ends_a_statement_unless_it_is_text() {
        for one in [
            "PIVOT t ON c",
            "PIVOT t ON c; -- end\n ;",
            "SELECT ';' /* ; /* ; */ */, \";\", $$;$$",
            "SELECT 'it''s;'",
        ] {
            assert!(is_one_statement(one), "{one}");
        }
        for two in ["SELECT 1; SELECT 2", ";x", "PIVOT t ON c;/**/DROP TABLE t"] {
            assert!(!is_one_statement(two), "{two}");
        }
    }

    #[test]
    fn nobody_makes_secrets_or_tables_in_the_engine() {
        for (kind, sql) in [
            (Kind::Create, "CREATE SECRET s (TYPE s3)"),
            (Kind::Create, "CREATE OR REPLACE PERSISTENT SECRET s (TYPE s3)"),
            (Kind::Create, "CREATE MACRO f(x) AS x"),
            (Kind::Create, "CREATE TABLE IF NOT EXISTS \"memory\".main.t(i int)"),
            (Kind::Drop, "-- c\n DROP SECRET storage"),
            (Kind::Other(25), "ATTACH 'x' AS y"),
            (Kind::Explain, "EXPLAIN COPY t TO 's3://x'"),
        ] {
            assert_eq!(code(Role::Writer, kind, sql), Some(Code::StatementRefused), "{sql}");
        }
        assert_eq!(code(Role::Writer, Kind::Create, "CREATE TABLE memory(i int)"), None);
    }
}
