//! Whether the snapshots that a commit adds to its tables are there. Pure.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;

use super::upstream::{Answer, encode};
use crate::doors::Table;

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
struct Snapshot {
    #[serde(rename = "snapshot-id")]
    id: i64,
}

impl Expected {
    pub(super) fn of(prefix: &str, Table { namespace, name }: &Table, snapshots: Vec<i64>) -> Self {
        let path =
            format!("/v1/{prefix}/namespaces/{}/tables/{}", namespace_segment(namespace), encode(name));
        Self { path, snapshots }
    }
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
        Answer::new(StatusCode::OK, body.to_owned())
    }

    #[test]
    fn a_table_is_loaded_from_where_its_names_say() {
        let table = Table { namespace: vec!["a".into(), "b c".into()], name: "t/1".into() };
        assert_eq!(Expected::of("p", &table, vec![7]).path, "/v1/p/namespaces/a%1Fb%20c/tables/t%2F1");
    }

    #[test]
    fn a_table_is_asked_for_all_its_snapshots() {
        let body = r#"{"metadata":{"snapshots":[{"snapshot-id":1},{"snapshot-id":2}],"refs":{"main":{"snapshot-id":3,"type":"branch"}}}}"#;
        assert!(matches!(look_for(&[1, 3], loaded(body)), Found::All(_)));
        assert_eq!(look_for(&[1, 4], loaded(body)), Found::Some);
        assert_eq!(look_for(&[4], loaded(body)), Found::None);
        assert_eq!(look_for(&[4], loaded("{}")), Found::Unreadable);
        let gone = Answer::new(StatusCode::NOT_FOUND, Bytes::new());
        assert_eq!(look_for(&[4], gone), Found::None);
        let trouble = Answer::new(StatusCode::BAD_GATEWAY, Bytes::new());
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
