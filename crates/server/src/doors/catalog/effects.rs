//! What a request to the catalog would change, table by table. Pure.
//!
//! It is read as the catalog reads it, and whatever cannot be is not sent on: rights are given for what is understood.

use bytes::Bytes;
use duck_contract::query::ChangeKind;
use serde::Deserialize;

use super::reply::Reply;
use super::routes::{Route, levels, name};
use crate::doors::{Effect, Table};

#[derive(Deserialize)]
struct Transaction {
    #[serde(rename = "table-changes")]
    table_changes: Vec<Commit>,
}

#[derive(Deserialize)]
struct Commit {
    identifier: Option<Identifier>,
    #[serde(default)]
    requirements: Vec<Requirement>,
    #[serde(default)]
    updates: Vec<Update>,
}

#[derive(Deserialize)]
struct Identifier {
    namespace: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Requirement {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "ref", default)]
    reference: Option<String>,
    #[serde(rename = "snapshot-id", default)]
    snapshot: Option<i64>,
}

#[derive(Deserialize)]
struct Update {
    action: String,
    #[serde(rename = "ref-name", default)]
    reference: Option<String>,
    #[serde(rename = "snapshot-id", default)]
    refers_to: Option<i64>,
    #[serde(default)]
    snapshot: Option<Snapshot>,
}

#[derive(Deserialize)]
struct Snapshot {
    #[serde(rename = "snapshot-id")]
    id: i64,
}

#[derive(Deserialize)]
struct Create {
    name: String,
    #[serde(rename = "stage-create", default)]
    staged: bool,
}

#[derive(Deserialize)]
struct Namespace {
    namespace: Vec<String>,
}

#[derive(Deserialize)]
struct Rename {
    source: Identifier,
    destination: Identifier,
}

const MAIN: &str = "main";

/// What a request says.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// What it would change.
    pub(super) effects: Vec<Effect>,
    /// The tables that a commit changes, and the snapshots that it adds to each, in the order of the effects.
    pub(super) added: Vec<(Table, Vec<i64>)>,
    /// It makes a draft of a table, which the completing commit makes real.
    pub(super) staged: bool,
}

impl Reading {
    fn commits(&mut self, table: Table, change: &Commit) -> Result<(), Reply> {
        self.effects.push(commit(table.clone(), change)?);
        let added = change.updates.iter().filter(|update| update.action == "add-snapshot");
        let snapshots = added.filter_map(|update| update.snapshot.as_ref()).map(|snapshot| snapshot.id);
        self.added.push((table, snapshots.collect()));
        Ok(())
    }
}

/// Tables of one transaction.
const TABLES_MAX: usize = 100;

/// What a request of a route that needs a writer would change.
pub(super) fn read(route: Route, segments: &[&str], body: &Bytes) -> Result<Reading, Reply> {
    let reading = understood(route, segments, body)?;
    let effects = &reading.effects;
    let mut tables = effects.iter().flat_map(|effect| [effect.table(), effect.becomes.clone()]).flatten();
    let schemas = effects.iter().all(|effect| effect.namespace.iter().all(|level| is_clear(level)));
    if effects.is_empty()
        || effects.len() > TABLES_MAX
        || !schemas
        || !tables.all(|table| is_clear_table(&table))
    {
        return Err(unclear());
    }
    Ok(reading)
}

fn is_clear_table(table: &Table) -> bool {
    table.namespace.iter().chain([&table.name]).all(|name| is_clear(name))
}

/// Whether a name is one, and the same, for whoever compares it: with rules, where a dot stands between schema and table, and in the
/// catalog, which may not regard characters that nobody sees.
fn is_clear(name: &str) -> bool {
    let unseen = |c: char| {
        matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
    };
    !name.is_empty() && !name.chars().any(|c| c.is_control() || unseen(c) || "./\\".contains(c))
}

fn understood(route: Route, segments: &[&str], body: &Bytes) -> Result<Reading, Reply> {
    let mut reading = Reading::default();
    match (route, segments) {
        (Route::CreateTable, ["namespaces", namespace, "tables"]) => {
            let Create { name, staged } = parsed(body)?;
            reading.effects.push(plain(ChangeKind::Create, levels(namespace), Some(name)));
            reading.staged = staged;
        }
        (Route::CommitTable, ["namespaces", namespace, "tables", table]) => {
            let table = Table { namespace: levels(namespace), name: name(table) };
            let change: Commit = parsed(body)?;
            let named = change.identifier.as_ref();
            if named.is_some_and(|named| named.namespace != table.namespace || named.name != table.name) {
                return Err(unclear());
            }
            reading.commits(table, &change)?;
        }
        (Route::CommitTransaction, _) => {
            for mut change in parsed::<Transaction>(body)?.table_changes {
                let Identifier { namespace, name } = change.identifier.take().ok_or_else(unclear)?;
                reading.commits(Table { namespace, name }, &change)?;
            }
        }
        (Route::Change, ["namespaces"]) => {
            let Namespace { namespace } = parsed(body)?;
            reading.effects.push(plain(ChangeKind::Schema, namespace, None));
        }
        (Route::Change, ["namespaces", namespace] | ["namespaces", namespace, "properties"]) => {
            reading.effects.push(plain(ChangeKind::Schema, levels(namespace), None));
        }
        (Route::Change, ["namespaces", namespace, "tables", table]) => {
            reading.effects.push(plain(ChangeKind::Drop, levels(namespace), Some(name(table))));
        }
        (Route::Change, ["tables", "rename"]) => {
            let Rename { source, destination: Identifier { namespace, name } } = parsed(body)?;
            let renamed = plain(ChangeKind::Rename, source.namespace, Some(source.name));
            reading.effects.push(Effect { becomes: Some(Table { namespace, name }), ..renamed });
        }
        // A route that is new here has to say what it changes.
        _ => return Err(unclear()),
    }
    Ok(reading)
}

fn plain(kind: ChangeKind, namespace: Vec<String>, table: Option<String>) -> Effect {
    Effect { kind, namespace, table, becomes: None, snapshot: None, base: None }
}

fn commit(table: Table, commit: &Commit) -> Result<Effect, Reply> {
    let creates = commit.requirements.iter().any(|requirement| requirement.kind == "assert-create");
    if !creates && commit.updates.iter().any(|update| update.action == "set-location") {
        // Rights to write files follow a table's location.
        return Err(Reply::forbidden("a table does not move"));
    }
    let on_main = |reference: &Option<String>| reference.as_deref() == Some(MAIN);
    let base = commit
        .requirements
        .iter()
        .find(|asserted| asserted.kind == "assert-ref-snapshot-id" && on_main(&asserted.reference));
    let new = commit
        .updates
        .iter()
        .rev()
        .find(|update| update.action == "set-snapshot-ref" && on_main(&update.reference));
    let kind = if creates { ChangeKind::Create } else { ChangeKind::Commit };
    let (snapshot, base) =
        (new.and_then(|update| update.refers_to), base.and_then(|asserted| asserted.snapshot));
    Ok(Effect { snapshot, base, ..plain(kind, table.namespace, Some(table.name)) })
}

fn parsed<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Reply> {
    serde_json::from_slice(body).map_err(|_| unclear())
}

fn unclear() -> Reply {
    Reply::bad_request("it is not clear what the change would change")
}

/// What a table's metadata says of where it lies and how it is now.
#[derive(Deserialize)]
pub(super) struct Loaded {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    location: Option<String>,
    #[serde(rename = "current-snapshot-id", default)]
    current: Option<i64>,
}

impl Loaded {
    pub(super) fn of(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    pub(super) fn location(&self) -> Option<&str> {
        self.metadata.location.as_deref()
    }

    /// Some catalogs say -1 for a table without a snapshot.
    pub(super) fn current(&self) -> Option<i64> {
        self.metadata.current.filter(|id| *id != -1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str) -> Table {
        Table { namespace: vec!["n".into()], name: name.into() }
    }

    fn of(route: Route, segments: &[&str], body: &'static str) -> Vec<Effect> {
        read(route, segments, &Bytes::from(body)).unwrap().effects
    }

    #[test]
    fn a_commit_changes_what_it_names_and_knows_what_it_is_based_on() {
        let body = r#"{"table-changes":[{"identifier":{"namespace":["n"],"name":"t"},
            "requirements":[{"type":"assert-table-uuid","uuid":"u"},{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":6}],
            "updates":[{"action":"add-snapshot","snapshot":{"snapshot-id":7}},{"action":"set-snapshot-ref","ref-name":"main","type":"branch","snapshot-id":7}]},
            {"identifier":{"namespace":["n"],"name":"u"},"requirements":[{"type":"assert-create"}],"updates":[]}]}"#;
        let found = of(Route::CommitTransaction, &["transactions", "commit"], body);
        assert_eq!(
            (found[0].table(), found[0].kind, found[0].snapshot, found[0].base),
            (Some(table("t")), ChangeKind::Commit, Some(7), Some(6))
        );
        assert_eq!((found[1].table(), found[1].kind), (Some(table("u")), ChangeKind::Create));
    }

    #[test]
    fn a_commit_s_snapshots_are_known_table_by_table() {
        let body = r#"{"table-changes":[
            {"identifier":{"namespace":["a","b c"],"name":"t"},"updates":[
                {"action":"add-snapshot","snapshot":{"snapshot-id":7,"manifest-list":"s3://x"}},
                {"action":"set-snapshot-ref","snapshot-id":7,"ref-name":"main"}]},
            {"identifier":{"namespace":["n"],"name":"u"},"updates":[{"action":"add-schema"}]}]}"#;
        let added =
            read(Route::CommitTransaction, &["transactions", "commit"], &Bytes::from(body)).unwrap().added;
        let first = Table { namespace: vec!["a".into(), "b c".into()], name: "t".into() };
        assert_eq!(added, [(first, vec![7]), (table("u"), vec![])]);
        let body = Bytes::from(r#"{"updates":[{"action":"add-snapshot","snapshot":{"snapshot-id":8}}]}"#);
        let one = read(Route::CommitTable, &["namespaces", "n", "tables", "t"], &body).unwrap();
        assert_eq!(one.added, [(table("t"), vec![8])]);
    }

    #[test]
    fn only_a_draft_is_staged() {
        let staged = |body: &'static str| {
            read(Route::CreateTable, &["namespaces", "n", "tables"], &Bytes::from(body)).unwrap().staged
        };
        assert!(staged(r#"{"name":"t","stage-create":true}"#));
        assert!(!staged(r#"{"name":"t"}"#) && !staged(r#"{"name":"t","stage-create":false}"#));
    }

    #[test]
    fn names_are_read_as_the_path_spells_them() {
        let found = of(Route::CommitTable, &["namespaces", "a%1Fb", "tables", "%C3%BC"], "{}");
        assert_eq!(
            found[0].table(),
            Some(Table { namespace: vec!["a".into(), "b".into()], name: "ü".into() })
        );
        let found = of(Route::Change, &["namespaces", "n", "tables", "t"], "");
        assert_eq!((found[0].kind, found[0].table()), (ChangeKind::Drop, Some(table("t"))));
    }

    #[test]
    fn a_rename_changes_one_name_and_makes_the_other() {
        let body =
            r#"{"source":{"namespace":["n"],"name":"t"},"destination":{"namespace":["m"],"name":"u"}}"#;
        let found = of(Route::Change, &["tables", "rename"], body);
        let becomes = Table { namespace: vec!["m".into()], name: "u".into() };
        assert_eq!((found[0].table(), found[0].becomes.clone()), (Some(table("t")), Some(becomes)));
    }

    #[test]
    fn what_is_not_understood_is_not_sent_on() {
        for (route, segments, body) in [
            (
                Route::CommitTransaction,
                ["transactions", "commit"].as_slice(),
                r#"{"table-changes":[{"updates":[]}]}"#,
            ),
            (Route::CommitTransaction, &["transactions", "commit"], r#"{"changes":[]}"#),
            // Two readers of it may take two different names.
            (Route::CreateTable, &["namespaces", "n", "tables"], r#"{"name":"t","name":"u"}"#),
            (Route::Change, &["tables", "rename"], r#"{"source":{"namespace":["n"],"name":"t"}}"#),
            (Route::Change, &["somewhere"], "{}"),
            (Route::CommitTransaction, &["transactions", "commit"], r#"{"table-changes":[]}"#),
            (
                Route::CommitTable,
                &["namespaces", "n", "tables", "t"],
                r#"{"identifier":{"namespace":["n"],"name":"u"},"updates":[]}"#,
            ),
            // One level here, two for a catalog that joins them by that sign; a name that some cannot tell from `audit`.
            (Route::Change, &["namespaces"], r#"{"namespace":["a\u001fb"]}"#),
            (Route::CreateTable, &["namespaces", "n", "tables"], r#"{"name":"au\u00addit"}"#),
            (Route::CreateTable, &["namespaces", "a.b", "tables"], r#"{"name":"t"}"#),
            (
                Route::CommitTable,
                &["namespaces", "n", "tables", "t"],
                r#"{"updates":[{"action":"set-location","location":"s3://lake/w_a/x"}]}"#,
            ),
        ] {
            assert!(read(route, segments, &Bytes::from(body)).is_err(), "{body}");
        }
    }
}
