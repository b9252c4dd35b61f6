//! What a statement is about to change, and what DuckDB 1.5.5 cannot do to an Iceberg table.
//!
//! Read from the text, so that the front can wait for its turn and a refusal comes before any file is written. A text that deceives
//! this only waits at the wrong place: the doors see what is really changed.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use duck_contract::Code;
use duck_contract::query::ChangeKind;
use duck_contract::worker::{CATALOG, Failure, Intent, Target};

use super::text::{Token, Tokens, unquoted};
use crate::fault;

/// A statement's pieces, with how many brackets are around each.
type Pieces<'s> = Vec<(Token<'s>, usize)>;

/// What one statement does to one thing.
#[derive(Debug, PartialEq)]
struct Change {
    verb: &'static str,
    target: Target,
    /// The table's own name, in lower case.
    name: String,
    /// A schema stands before it.
    qualified: bool,
}

const VERBS: [&str; 8] = ["INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "CREATE", "DROP", "ALTER"];
/// Where one of these stands first, outside of brackets, nothing is changed.
const READS: [&str; 9] =
    ["SELECT", "FROM", "VALUES", "TABLE", "DESCRIBE", "SHOW", "SUMMARIZE", "PIVOT", "UNPIVOT"];

/// The name of a temporary table that a statement makes, in lower case.
fn temporary(pieces: &Pieces<'_>) -> Option<String> {
    let mut tokens = pieces.iter().map(|(token, _)| *token);
    let mut made = tokens
        .by_ref()
        .map_while(word)
        .skip_while(|word| word == "OR" || word == "REPLACE" || word == "CREATE");
    if !matches!(made.next().as_deref(), Some("TEMP" | "TEMPORARY")) {
        return None;
    }
    let first = pieces.first().and_then(|(token, _)| word(*token));
    let name = pieces
        .iter()
        .filter_map(|(token, _)| name(*token))
        .find(|name| !MAKES.contains(&name.to_uppercase().as_str()))?;
    (first.as_deref() == Some("CREATE")).then(|| name.to_lowercase())
}

/// What stands between CREATE and a table's name.
const MAKES: [&str; 9] = ["CREATE", "OR", "REPLACE", "TEMP", "TEMPORARY", "TABLE", "IF", "NOT", "EXISTS"];

/// Whether an ALTER TABLE gives the table another name, behind the one that it has.
fn skip_to_rename<'s>(rest: impl Iterator<Item = Token<'s>>) -> bool {
    let words: Vec<Option<String>> = rest.take(2).map(word).collect();
    words == [Some("RENAME".to_owned()), Some("TO".to_owned())]
}

/// What statements are about to change together.
pub(super) fn intent<'s>(statements: impl Iterator<Item = &'s str>, default_schema: &str) -> Intent {
    let texts: Vec<Pieces<'s>> = statements.map(pieces).collect();
    let temporary: HashSet<String> = texts.iter().filter_map(temporary).collect();
    let changes: Vec<Change> = texts.iter().filter_map(|pieces| change(pieces, default_schema)).collect();
    // What is made for the request alone is nobody's table.
    let changes: Vec<Change> =
        changes.into_iter().filter(|change| change.qualified || !temporary.contains(&change.name)).collect();
    let inserts = !changes.is_empty() && changes.iter().all(|change| change.verb == "INSERT");
    let appends = inserts && are_only_targets(&texts, &changes);
    let mut targets = Vec::new();
    for target in changes.into_iter().map(|change| change.target) {
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    Intent { targets, appends }
}

/// Whether the tables that are changed are named as targets only: then they cannot be read.
fn are_only_targets(texts: &[Pieces<'_>], changes: &[Change]) -> bool {
    let mut named: HashMap<&str, (usize, usize)> = HashMap::new();
    for change in changes {
        named.entry(&change.name).or_default().0 += 1;
    }
    for (token, _) in texts.iter().flatten() {
        let mut count = |name: &str| {
            if let Some((_, found)) = named.get_mut(name) {
                *found += 1;
            }
        };
        match token {
            Token::Text(text) => text.value().to_lowercase().split(between_names).for_each(count),
            other => name(*other).iter().for_each(|name| count(&name.to_lowercase())),
        }
    }
    named.values().all(|(targets, found)| targets == found)
}

/// Refuses what would fail at the end, after its files were written, or in words that do not say what to do.
pub(super) fn unsupported(sql: &str) -> Result<(), Failure> {
    let pieces = pieces(sql);
    let outside: Vec<String> =
        pieces.iter().filter(|(_, depth)| *depth == 0).filter_map(|(token, _)| word(*token)).collect();
    let has = |words: &[&str]| outside.windows(words.len()).any(|window| window == words);
    let temporary = outside.iter().take(4).any(|word| word == "TEMP" || word == "TEMPORARY");
    let first = outside.iter().find(|word| VERBS.contains(&word.as_str())).map_or("", String::as_str);
    let sentence = match first {
        "CREATE" if temporary => return Ok(()),
        "CREATE" if has(&["OR", "REPLACE"]) => {
            "A table of the warehouse cannot be replaced in one step: DROP it, then CREATE it."
        }
        "CREATE" if has(&["CREATE", "VIEW"]) => {
            "Views cannot be kept in the warehouse: make a TEMP VIEW within the request, or a table."
        }
        "CREATE" if constrained(&pieces) => "Tables of the warehouse have no keys, checks or foreign keys.",
        "INSERT" if has(&["ON", "CONFLICT"]) || has(&["OR", "REPLACE"]) || has(&["OR", "IGNORE"]) => {
            "Tables of the warehouse have no keys, so nothing conflicts: use MERGE INTO with a condition."
        }
        "INSERT" | "UPDATE" | "DELETE" | "MERGE" if has(&["RETURNING"]) => {
            "RETURNING is not possible on tables of the warehouse: read the rows with a SELECT."
        }
        "ALTER" if has(&["SET", "NOT", "NULL"]) => "A column that may be null cannot be made NOT NULL.",
        "ALTER" if has(&["SET", "SORTED"]) || has(&["SORTED", "BY"]) => {
            "A table's sort order cannot be changed."
        }
        _ => return Ok(()),
    };
    Err(fault::ours(Code::NotSupported, sentence))
}

/// Whether a CREATE TABLE names a constraint. They stand one bracket deep.
fn constrained(pieces: &Pieces<'_>) -> bool {
    let words: Vec<String> =
        pieces.iter().filter(|(_, depth)| *depth == 1).filter_map(|(token, _)| word(*token)).collect();
    let has = |words_wanted: &[&str]| words.windows(words_wanted.len()).any(|window| window == words_wanted);
    has(&["PRIMARY", "KEY"])
        || has(&["FOREIGN", "KEY"])
        || words.iter().any(|word| ["UNIQUE", "REFERENCES", "CHECK"].contains(&word.as_str()))
}

fn pieces(sql: &str) -> Pieces<'_> {
    let (mut depth, mut found) = (0_usize, Vec::new());
    for token in Tokens::of(sql) {
        if token == Token::Sign(')') {
            depth = depth.saturating_sub(1);
        }
        found.push((token, depth));
        if token == Token::Sign('(') {
            depth += 1;
        }
    }
    found
}

/// A word that is not quoted, in capitals.
fn word(token: Token<'_>) -> Option<String> {
    match token {
        Token::Word(word) => Some(word.to_uppercase()),
        _ => None,
    }
}

/// A name, quoted or not.
fn name(token: Token<'_>) -> Option<Cow<'_, str>> {
    match token {
        Token::Word(word) => Some(word.into()),
        Token::Quoted(raw) => Some(unquoted(raw)),
        _ => None,
    }
}

fn between_names(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

fn change<'s>(pieces: &Pieces<'s>, default_schema: &str) -> Option<Change> {
    let outside = |(token, depth): &(Token<'s>, usize)| if *depth == 0 { word(*token) } else { None };
    let (at, verb) = pieces.iter().enumerate().find_map(|(at, piece)| {
        let word = outside(piece)?;
        let known = VERBS.iter().chain(&READS).find(|known| **known == word)?;
        Some((at, *known))
    })?;
    let mut rest = pieces[at + 1..].iter().map(|(token, _)| *token).peekable();
    let mut skip = |words: &[&str]| {
        let mut found = Vec::new();
        while let Some(word) =
            rest.peek().and_then(|token| word(*token)).filter(|word| words.contains(&word.as_str()))
        {
            found.push(word);
            rest.next();
        }
        found
    };
    let what = match verb {
        "INSERT" | "MERGE" => skip(&["OR", "REPLACE", "IGNORE", "INTO"]),
        "UPDATE" => Vec::new(),
        "DELETE" => skip(&["FROM"]),
        "TRUNCATE" => skip(&["TABLE"]),
        "CREATE" | "DROP" | "ALTER" => skip(&[
            "OR",
            "REPLACE",
            "TEMP",
            "TEMPORARY",
            "TABLE",
            "SCHEMA",
            "VIEW",
            "MACRO",
            "FUNCTION",
            "IF",
            "NOT",
            "EXISTS",
        ]),
        // It reads.
        _ => return None,
    };
    let has = |word: &str| what.iter().any(|found| found == word);
    if has("TEMP") || has("TEMPORARY") || has("MACRO") || has("FUNCTION") {
        return None;
    }
    let mut parts = Vec::new();
    while let Some(part) = rest.next().and_then(name) {
        parts.push(part);
        if rest.next_if(|token| *token == Token::Sign('.')).is_none() {
            break;
        }
    }
    if parts.len() > 1 && parts[0].eq_ignore_ascii_case(CATALOG) {
        parts.remove(0);
    }
    if has("SCHEMA") {
        let schema = parts.join(".");
        let target = Target { schema, table: None, kind: ChangeKind::Schema };
        return Some(Change { verb, target, name: String::new(), qualified: true });
    }
    let own = parts.pop()?;
    let qualified = !parts.is_empty();
    let schema = if parts.is_empty() { default_schema.to_owned() } else { parts.join(".") };
    let renames = verb == "ALTER" && skip_to_rename(rest);
    let kind = match verb {
        "CREATE" => ChangeKind::Create,
        "DROP" => ChangeKind::Drop,
        _ if renames => ChangeKind::Rename,
        _ => ChangeKind::Commit,
    };
    let name = own.to_lowercase();
    let target = Target { schema, table: Some(own.into_owned()), kind };
    Some(Change { verb, target, name, qualified })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sql: &str) -> Intent {
        intent(std::iter::once(sql), "datasets")
    }

    fn target(schema: &str, table: Option<&str>, kind: ChangeKind) -> Target {
        Target { schema: schema.into(), table: table.map(str::to_owned), kind }
    }

    #[test]
    fn what_a_statement_changes_is_read_from_its_text() {
        for (sql, expected) in [
            ("INSERT INTO t VALUES (1)", target("datasets", Some("t"), ChangeKind::Commit)),
            ("insert into lake.ds.\"T x\" (a) select 1", target("ds", Some("T x"), ChangeKind::Commit)),
            (
                "WITH a AS (SELECT 1), b AS (DELETE FROM x) INSERT INTO ds.t FROM a",
                target("ds", Some("t"), ChangeKind::Commit),
            ),
            ("/* c */ UPDATE ds.t SET a = 1", target("ds", Some("t"), ChangeKind::Commit)),
            ("DELETE FROM t USING u WHERE true", target("datasets", Some("t"), ChangeKind::Commit)),
            (
                "MERGE INTO a.b.t USING s ON true WHEN MATCHED THEN DELETE",
                target("a.b", Some("t"), ChangeKind::Commit),
            ),
            ("TRUNCATE t", target("datasets", Some("t"), ChangeKind::Commit)),
            ("TRUNCATE TABLE ds.t", target("ds", Some("t"), ChangeKind::Commit)),
            ("CREATE TABLE IF NOT EXISTS ds.t AS SELECT 1", target("ds", Some("t"), ChangeKind::Create)),
            ("CREATE SCHEMA IF NOT EXISTS lake.s", target("s", None, ChangeKind::Schema)),
            ("DROP SCHEMA s CASCADE", target("s", None, ChangeKind::Schema)),
            ("DROP TABLE IF EXISTS t", target("datasets", Some("t"), ChangeKind::Drop)),
            ("ALTER TABLE ds.t ADD COLUMN c INTEGER", target("ds", Some("t"), ChangeKind::Commit)),
            ("EXPLAIN ANALYZE INSERT INTO t SELECT 1", target("datasets", Some("t"), ChangeKind::Commit)),
            ("ALTER TABLE ds.t RENAME TO u", target("ds", Some("t"), ChangeKind::Rename)),
            ("ALTER TABLE ds.t RENAME COLUMN a TO b", target("ds", Some("t"), ChangeKind::Commit)),
        ] {
            assert_eq!(of(sql).targets, [expected], "{sql}");
        }
        for sql in [
            "SELECT 'INSERT INTO t'",
            "FROM t",
            "WITH a AS (SELECT 1) SELECT * FROM a",
            "CREATE TEMP TABLE t AS SELECT 1",
            "CREATE TEMPORARY MACRO m() AS 1",
            "",
            "INSERT INTO",
        ] {
            assert_eq!(of(sql).targets, [], "{sql}");
        }
    }

    #[test]
    fn an_append_is_an_insert_that_cannot_read_its_own_table() {
        for sql in [
            "INSERT INTO ds.t VALUES (1)",
            "INSERT INTO t SELECT * FROM u",
            "INSERT INTO t FROM 's3://x/u.parquet'",
        ] {
            assert!(of(sql).appends, "{sql}");
        }
        for sql in [
            "INSERT INTO t SELECT max(a) FROM T",
            "INSERT INTO ds.t SELECT * FROM query_table('ds.t')",
            "INSERT INTO t SELECT (SELECT count(*) FROM \"t\")",
            "UPDATE t SET a = 1",
            "DELETE FROM t",
            "CREATE TABLE t AS SELECT 1",
            "SELECT 1",
        ] {
            assert!(!of(sql).appends, "{sql}");
        }
        let together = |all: &[&'static str]| intent(all.iter().copied(), "ds");
        let twice =
            together(&["INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (2)"]);
        assert!(twice.appends && twice.targets.len() == 2);
        assert!(!together(&["INSERT INTO t VALUES (1)", "SELECT count(*) FROM t"]).appends);
        assert!(!together(&["INSERT INTO t VALUES (1)", "DELETE FROM u"]).appends);
        // What is temporary is no table of the warehouse.
        let mixed = together(&[
            "CREATE OR REPLACE TEMP TABLE x AS SELECT 1",
            "INSERT INTO X VALUES (2)",
            "INSERT INTO t FROM x",
        ]);
        assert_eq!((mixed.targets, mixed.appends), (vec![target("ds", Some("t"), ChangeKind::Commit)], true));
        let many = vec!["INSERT INTO t VALUES (1, 'a')"; 1_000];
        assert_eq!(together(&many).targets.len(), 1);
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_what_to_do_instead() {
        for sql in [
            "CREATE OR REPLACE TABLE t AS SELECT 1",
            "CREATE VIEW v AS SELECT 1",
            "CREATE TABLE t (a INTEGER PRIMARY KEY)",
            "CREATE TABLE t (a INTEGER, UNIQUE (a))",
            "CREATE TABLE t (a INTEGER CHECK (a > 1))",
            "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING",
            "INSERT OR REPLACE INTO t VALUES (1)",
            "INSERT INTO t VALUES (1) RETURNING a",
            "WITH a AS (SELECT 1) DELETE FROM t RETURNING *",
            "ALTER TABLE t ALTER COLUMN a SET NOT NULL",
            "ALTER TABLE t SET SORTED BY (a)",
        ] {
            assert_eq!(unsupported(sql).unwrap_err().code, Code::NotSupported, "{sql}");
        }
        for sql in [
            "CREATE OR REPLACE TEMP TABLE t AS SELECT 1",
            "CREATE TEMP VIEW v AS SELECT 1",
            "CREATE TABLE t (\"unique\" INTEGER, \"primary\" INTEGER)",
            "CREATE TABLE t AS SELECT 1 AS a",
            "INSERT INTO t SELECT 'ON CONFLICT', 'RETURNING'",
            "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET a = 1",
            "ALTER TABLE t ADD COLUMN a INTEGER",
            "SELECT 1",
        ] {
            assert!(unsupported(sql).is_ok(), "{sql}");
        }
    }
}
