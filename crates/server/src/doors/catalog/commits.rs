//! Which snapshots a commit adds to which tables, and whether they are there. Pure.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;

use super::routes::Route;
use super::upstream::{Answer, encode};

/// What a commit adds to one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected {
    /// Where the table is loaded from.
    pub(super) path: String,
    pub(super) snapshots: Vec<i64>,
}

/// What reading back has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The commit was made. Holds the answer to the (first) table's load.
    AllThere(Bytes),
    /// It was not made by now.
    NoneThere,
    /// Part of it was made, which an atomic catalog does not do.
    SomeThere,
    /// A table could not be read, or there is nothing to look for.
    Unreadable,
}

/// What one table has of what was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    All(Bytes),
    Some,
    None,
    Unreadable,
}

#[derive(Deserialize)]
struct Transaction {
    #[serde(rename = "table-changes")]
    table_changes: Vec<TableChange>,
}

#[derive(Deserialize)]
struct TableChange {
    identifier: Option<Identifier>,
    #[serde(default)]
    updates: Vec<Update>,
}

#[derive(Deserialize)]
struct Identifier {
    namespace: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Update {
    action: String,
    snapshot: Option<Snapshot>,
}

#[derive(Deserialize)]
struct Snapshot {
    #[serde(rename = "snapshot-id")]
    id: i64,
}

impl TableChange {
    fn snapshots(&self) -> Vec<i64> {
        let added = self.updates.iter().filter(|update| update.action == "add-snapshot");
        added.filter_map(|update| update.snapshot.as_ref()).map(|snapshot| snapshot.id).collect()
    }
}

/// Whether the body asks for a draft of a table.
pub(super) fn is_staged(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Create {
        #[serde(rename = "stage-create", default)]
        staged: bool,
    }
    serde_json::from_slice::<Create>(body).is_ok_and(|create| create.staged)
}

/// The tables a commit changes and the snapshots it adds there. Empty for what is no commit, or cannot be read as one.
pub(super) fn expected(route: Route, prefix: &str, segments: &[&str], body: &[u8]) -> Vec<Expected> {
    match (route, segments) {
        (Route::CommitTable, ["namespaces", namespace, "tables", table]) => {
            let change = serde_json::from_slice::<TableChange>(body);
            let path = format!("/v1/{prefix}/namespaces/{namespace}/tables/{table}");
            change.map(|change| vec![Expected { path, snapshots: change.snapshots() }]).unwrap_or_default()
        }
        (Route::CommitTransaction, _) => {
            let Ok(transaction) = serde_json::from_slice::<Transaction>(body) else { return Vec::new() };
            let table = |change: &TableChange| {
                let Identifier { namespace, name } = change.identifier.as_ref()?;
                let path = table_path(prefix, namespace, name);
                Some(Expected { path, snapshots: change.snapshots() })
            };
            // Without a name there is nothing to read back, so nothing may be concluded about the others either.
            transaction.table_changes.iter().map(table).collect::<Option<_>>().unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

fn table_path(prefix: &str, namespace: &[String], name: &str) -> String {
    format!("/v1/{prefix}/namespaces/{}/tables/{}", namespace_segment(namespace), encode(name))
}

/// The levels of a namespace as one path segment.
pub(super) fn namespace_segment(levels: &[String]) -> String {
    encode(&levels.join("\u{1f}"))
}

/// Whether a loaded table has these snapshots.
pub(super) fn look_for(snapshots: &[i64], answer: Answer) -> Found {
    #[derive(Deserialize)]
    struct Loaded {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        snapshots: Vec<Snapshot>,
        #[serde(default)]
        refs: HashMap<String, Snapshot>,
    }
    if answer.status == StatusCode::NOT_FOUND {
        return Found::None;
    }
    let loaded = answer.status.is_success().then(|| serde_json::from_slice::<Loaded>(&answer.body));
    let Some(Ok(Loaded { metadata })) = loaded else { return Found::Unreadable };
    let present: HashSet<i64> =
        metadata.snapshots.iter().chain(metadata.refs.values()).map(|snapshot| snapshot.id).collect();
    match snapshots.iter().filter(|id| present.contains(id)).count() {
        0 => Found::None,
        count if count == snapshots.len() => Found::All(answer.body),
        _ => Found::Some,
    }
}

/// What all tables together say.
pub(super) fn verdict(found: Vec<Found>) -> Verdict {
    let some = found.iter().any(|table| matches!(table, Found::All(_) | Found::Some));
    let unreadable = found.contains(&Found::Unreadable);
    let none = found.iter().all(|table| *table == Found::None);
    let all = found.iter().all(|table| matches!(table, Found::All(_)));
    match found.into_iter().next() {
        None => Verdict::Unreadable,
        Some(_) if none => Verdict::NoneThere,
        Some(Found::All(body)) if all => Verdict::AllThere(body),
        Some(_) if unreadable && !some => Verdict::Unreadable,
        Some(_) => Verdict::SomeThere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(body: &str) -> Answer {
        Answer { status: StatusCode::OK, body: body.to_owned().into() }
    }

    #[test]
    fn a_commit_s_snapshots_are_known_table_by_table() {
        let body = br#"{"table-changes":[
            {"identifier":{"namespace":["a","b c"],"name":"t/1"},"updates":[
                {"action":"add-snapshot","snapshot":{"snapshot-id":7,"manifest-list":"s3://x"}},
                {"action":"set-snapshot-ref","snapshot-id":7,"ref-name":"main"}]},
            {"identifier":{"namespace":["a"],"name":"u"},"updates":[{"action":"add-schema"}]}]}"#;
        let tables = expected(Route::CommitTransaction, "p", &["transactions", "commit"], body);
        assert_eq!(tables[0].path, "/v1/p/namespaces/a%1Fb%20c/tables/t%2F1");
        assert_eq!(
            (tables[0].snapshots.as_slice(), tables[1].snapshots.as_slice()),
            ([7].as_slice(), [].as_slice())
        );
        let body = br#"{"updates":[{"action":"add-snapshot","snapshot":{"snapshot-id":8}}]}"#;
        let tables = expected(Route::CommitTable, "p", &["namespaces", "n", "tables", "t"], body);
        assert_eq!(tables, [Expected { path: "/v1/p/namespaces/n/tables/t".into(), snapshots: vec![8] }]);
    }

    #[test]
    fn a_transaction_with_a_nameless_table_proves_nothing() {
        let body = br#"{"table-changes":[{"updates":[]},{"identifier":{"namespace":["a"],"name":"u"}}]}"#;
        assert_eq!(expected(Route::CommitTransaction, "p", &[], body), []);
    }

    #[test]
    fn a_table_is_asked_for_all_its_snapshots() {
        let body = r#"{"metadata":{"snapshots":[{"snapshot-id":1},{"snapshot-id":2}],"refs":{"main":{"snapshot-id":3,"type":"branch"}}}}"#;
        assert!(matches!(look_for(&[1, 3], loaded(body)), Found::All(_)));
        assert_eq!(look_for(&[1, 4], loaded(body)), Found::Some);
        assert_eq!(look_for(&[4], loaded(body)), Found::None);
        assert_eq!(look_for(&[4], loaded("{}")), Found::Unreadable);
        let gone = Answer { status: StatusCode::NOT_FOUND, body: Bytes::new() };
        assert_eq!(look_for(&[4], gone), Found::None);
        let trouble = Answer { status: StatusCode::BAD_GATEWAY, body: Bytes::new() };
        assert_eq!(look_for(&[4], trouble), Found::Unreadable);
    }

    #[test]
    fn a_commit_counts_only_when_every_table_has_it() {
        let all = || Found::All("first".into());
        assert_eq!(verdict(vec![all(), all()]), Verdict::AllThere("first".into()));
        assert_eq!(verdict(vec![Found::None, Found::None]), Verdict::NoneThere);
        assert_eq!(verdict(vec![all(), Found::None]), Verdict::SomeThere);
        assert_eq!(verdict(vec![Found::None, all()]), Verdict::SomeThere);
        assert_eq!(verdict(vec![all(), Found::Unreadable]), Verdict::SomeThere);
        assert_eq!(verdict(vec![Found::None, Found::Unreadable]), Verdict::Unreadable);
        assert_eq!(verdict(vec![]), Verdict::Unreadable);
    }
}
