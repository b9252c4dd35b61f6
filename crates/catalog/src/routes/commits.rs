//! Commits, of one table or of several at once.
//!
//! First everything is read and decided, then every new metadata file is written, and last one transaction points all
//! tables at their new files, provided that each is still at the one that was read. So a reader never sees a table whose
//! file is not there, and never some tables of a commit without the others.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use futures::{StreamExt as _, TryStreamExt as _};
use iceberg::spec::TableMetadata;
use rusqlite::Transaction;
use serde::Deserialize;
use uuid::Uuid;

use super::change::Change;
use super::extract::{Body, Segments};
use super::namespaces::{check_name, joined};
use super::tables::answer;
use super::{App, Shared, change};
use crate::database::Outcome;
use crate::database::tables::{self, NewTable, Table};
use crate::place::Place;
use crate::refusal::Refusal;
use crate::table::Commit;
use crate::work::{judge, parse};

/// More tables in one transaction are refused.
const TABLES_MAX: usize = 100;
/// So many metadata files of one commit are read or written at once.
const FILES_AT_ONCE: usize = 8;

/// A commit and the table it is for.
struct Wanted {
    namespace: String,
    name: String,
    commit: Commit,
}

/// What a commit starts from.
enum Base {
    /// A table, and its current metadata file's content once that is read.
    Table(Table, bytes::Bytes),
    /// The metadata of a table that was staged.
    Staged(String),
}

/// What a table will be.
#[derive(Clone)]
struct Next {
    namespace: String,
    name: String,
    base: Option<Table>,
    uuid: Uuid,
    location: Place,
    metadata: String,
    /// Where the metadata is, once it is written.
    file: String,
}

/// `POST …/tables/{table}`.
pub(super) async fn one(
    State(app): Shared,
    Segments((prefix, namespace, name)): Segments<(String, String, String)>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Outcome, Refusal> {
    change::run(app, &headers, &prefix, async |change| {
        let commit: Commit = parse(body).await?;
        let nexts = prepare(&change, vec![Wanted { namespace, name, commit }]).await?;
        settle(&change, nexts, |nexts| match nexts {
            [next] => answer(Some(&next.file), &next.metadata),
            _ => Ok(Outcome::no_content()),
        })
        .await
    })
    .await
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Several {
    table_changes: Vec<Commit>,
}

/// `POST …/transactions/commit`.
pub(super) async fn many(
    State(app): Shared,
    Segments(prefix): Segments<String>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Outcome, Refusal> {
    change::run(app, &headers, &prefix, async |change| {
        let several: Several = parse(body).await?;
        let nexts = prepare(&change, named(several.table_changes)?).await?;
        settle(&change, nexts, |_| Ok(Outcome::no_content())).await
    })
    .await
}

/// Takes each commit with the name it carries; no two may be for one table.
fn named(commits: Vec<Commit>) -> Result<Vec<Wanted>, Refusal> {
    if commits.len() > TABLES_MAX {
        return Err(Refusal::bad_request(format!("a transaction changes at most {TABLES_MAX} tables")));
    }
    let mut seen = HashSet::new();
    let mut wanted = Vec::with_capacity(commits.len());
    for mut commit in commits {
        let identifier =
            commit.identifier.take().ok_or_else(|| Refusal::bad_request("a change names its table"))?;
        let namespace = joined(&identifier.namespace)?;
        if !seen.insert((namespace.clone(), identifier.name.clone())) {
            return Err(Refusal::bad_request("a transaction changes a table at most once"));
        }
        wanted.push(Wanted { namespace, name: identifier.name, commit });
    }
    Ok(wanted)
}

/// Reads what the commits start from, and decides what they lead to. Changes nothing.
async fn prepare(change: &Change, wanted: Vec<Wanted>) -> Result<Vec<Next>, Refusal> {
    let id = change.warehouse.id;
    let found = move |transaction: &Transaction<'_>| {
        wanted
            .into_iter()
            .map(|wanted| Ok((base(transaction, id, &wanted)?, wanted)))
            .collect::<Result<Vec<_>, _>>()
    };
    let found = change.app.database.read(found).await?;
    let read = futures::stream::iter(found)
        .map(|(base, wanted)| with_content(&change.app, base, wanted))
        .buffered(FILES_AT_ONCE)
        .try_collect::<Vec<_>>()
        .await?;
    judge(move || read.into_iter().map(|(base, wanted)| next(base, wanted)).collect()).await
}

fn base(transaction: &Transaction<'_>, warehouse: Uuid, wanted: &Wanted) -> Result<Base, Refusal> {
    match tables::find(transaction, warehouse, &wanted.namespace, &wanted.name)? {
        Some(table) => Ok(Base::Table(table, bytes::Bytes::new())),
        None if wanted.commit.creates() => {
            check_name(&wanted.name)?;
            let uuid = wanted.commit.assigned_uuid();
            tables::staged(transaction, warehouse, &wanted.namespace, &wanted.name, uuid).map(Base::Staged)
        }
        None => Err(Refusal::no_such_table(&wanted.name)),
    }
}

async fn with_content(app: &Arc<App>, base: Base, wanted: Wanted) -> Result<(Base, Wanted), Refusal> {
    let Base::Table(table, _) = base else { return Ok((base, wanted)) };
    let content = app.objects.read(&table.metadata).await?;
    let content = content.ok_or_else(|| Refusal::commit_failed("the table's metadata file is gone"))?;
    Ok((Base::Table(table, content), wanted))
}

/// Checks a commit's requirements and applies its updates.
fn next(base: Base, wanted: Wanted) -> Result<Next, Refusal> {
    let (table, metadata) = match base {
        Base::Table(table, content) => {
            let metadata: TableMetadata = serde_json::from_slice(&content).map_err(Refusal::internal)?;
            wanted.commit.check(Some(&metadata))?;
            let file = table.metadata.clone();
            (Some(table), wanted.commit.apply(metadata, Some(file))?)
        }
        Base::Staged(content) => {
            let metadata: TableMetadata = serde_json::from_str(&content).map_err(Refusal::internal)?;
            wanted.commit.check(None)?;
            (None, wanted.commit.apply(metadata, None)?)
        }
    };
    let text = serde_json::to_string(&metadata).map_err(Refusal::internal)?;
    // What could not be read back would end the table; better that this commit fails.
    serde_json::from_str::<TableMetadata>(&text).map_err(|error| Refusal::bad_request(error.to_string()))?;
    Ok(Next {
        namespace: wanted.namespace,
        name: wanted.name,
        base: table,
        uuid: metadata.uuid(),
        location: Place::parse(metadata.location())?,
        metadata: text,
        file: String::new(),
    })
}

/// Writes the files, and points the tables at them.
async fn settle(
    change: &Change,
    nexts: Vec<Next>,
    outcome: fn(&[Next]) -> Result<Outcome, Refusal>,
) -> Result<Outcome, Refusal> {
    let nexts = write(&change.app, nexts).await?;
    let id = change.warehouse.id;
    let files = nexts.iter().map(|next| next.file.clone()).collect();
    let settled = move |transaction: &Transaction<'_>| {
        nexts.iter().try_for_each(|next| point(transaction, id, next))?;
        Ok((outcome(&nexts)?, ()))
    };
    change.settle_files(files, settled).await
}

/// Writes every new metadata file, or leaves none behind.
async fn write(app: &Arc<App>, nexts: Vec<Next>) -> Result<Vec<Next>, Refusal> {
    let tried: Vec<_> = futures::stream::iter(nexts)
        .map(async |mut next| {
            let version = next.base.as_ref().map_or(0, |table| table.version + 1);
            next.file = app.objects.write(&next.location, version, next.metadata.clone()).await?;
            Ok(next)
        })
        .buffered(FILES_AT_ONCE)
        .collect()
        .await;
    let failed = tried.iter().find_map(|tried: &Result<Next, Refusal>| tried.as_ref().err().cloned());
    match failed {
        None => Ok(tried.into_iter().flatten().collect()),
        Some(refusal) => {
            app.objects.discard(tried.into_iter().flatten().map(|next| next.file).collect()).await;
            Err(refusal)
        }
    }
}

fn point(transaction: &Transaction<'_>, warehouse: Uuid, next: &Next) -> Result<(), Refusal> {
    if let Some(base) = &next.base {
        return tables::advance(transaction, base, &next.file);
    }
    let Next { namespace, name, location, file, .. } = next;
    if tables::find(transaction, warehouse, namespace, name)?.is_some() {
        return Err(Refusal::commit_failed("the table has been created meanwhile"));
    }
    tables::insert(transaction, warehouse, &NewTable { namespace, name, location, metadata: file })?;
    tables::unstage(transaction, next.uuid)
}
