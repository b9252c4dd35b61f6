//! Tables: list, create (also staged), load, rename, drop. Commits are next door.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::change::Change;
use super::extract::{Body, Segments, Words};
use super::namespaces::{check_name, joined, levels};
use super::page::Asked;
use super::{Shared, change};
use crate::database::tables::{self, NewTable};
use crate::database::{Outcome, warehouses};
use crate::place::Place;
use crate::refusal::Refusal;
use crate::table::{Creation, Identifier};
use crate::work::{judge, parse};

type Named = Segments<(String, String, String)>;

pub(super) async fn list(
    State(app): Shared,
    Segments((prefix, namespace)): Segments<(String, String)>,
    Words(asked): Words<Asked>,
) -> Result<Json<Value>, Refusal> {
    let id = app.warehouse(&prefix).await?.id;
    let page = asked.page()?;
    let (after, size, parent) = (page.after.clone(), page.size, namespace.clone());
    let names =
        app.database.read(move |transaction| tables::list(transaction, id, &parent, &after, size)).await?;
    let (names, token) = page.cut(names);
    let namespace = levels(&namespace);
    let identifiers: Vec<_> =
        names.iter().map(|name| json!({"namespace": namespace, "name": name})).collect();
    Ok(Json(json!({"identifiers": identifiers, "next-page-token": token})))
}

pub(super) async fn create(
    State(app): Shared,
    Segments((prefix, namespace)): Segments<(String, String)>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Outcome, Refusal> {
    change::run(app, &headers, &prefix, async |change| {
        let creation: Creation = parse(body).await?;
        check_name(&creation.name)?;
        if creation.stage_create {
            stage(change, namespace, creation).await
        } else {
            make(change, namespace, creation).await
        }
    })
    .await
}

/// Where a table of that uuid goes: where it wants to, if that is inside the warehouse, else below its root.
fn place(change: &Change, creation: &Creation, uuid: Uuid) -> Result<Place, Refusal> {
    let root = warehouses::root(&change.warehouse)?;
    let Some(wanted) = &creation.location else { return Ok(root.child(&uuid.to_string())) };
    let wanted = Place::parse(wanted)?;
    if wanted.is_strictly_within(&root) {
        Ok(wanted)
    } else {
        Err(Refusal::invalid_location("the location is outside the warehouse"))
    }
}

async fn metadata(creation: Creation, uuid: Uuid, location: Place) -> Result<String, Refusal> {
    judge(move || serde_json::to_string(&creation.metadata(uuid, &location)?).map_err(Refusal::internal))
        .await
}

/// Keeps the new table's metadata until a commit with `assert-create` finishes it.
async fn stage(change: Change, namespace: String, creation: Creation) -> Result<Outcome, Refusal> {
    let uuid = Uuid::now_v7();
    let location = place(&change, &creation, uuid)?;
    let name = creation.name.clone();
    let metadata = metadata(creation, uuid, location.clone()).await?;
    let id = change.warehouse.id;
    let staged = move |transaction: &rusqlite::Transaction<'_>| {
        tables::absent(transaction, id, &namespace, &name)?;
        tables::location_free(transaction, id, &location)?;
        tables::stage(transaction, id, &namespace, &name, uuid, &metadata)?;
        Ok((answer(None, &metadata)?, ()))
    };
    Ok(change.app.database.settle(&change.ticket, staged).await?.outcome)
}

async fn make(change: Change, namespace: String, creation: Creation) -> Result<Outcome, Refusal> {
    let uuid = Uuid::now_v7();
    let location = place(&change, &creation, uuid)?;
    let (id, parent, name, wanted) =
        (change.warehouse.id, namespace.clone(), creation.name.clone(), location.clone());
    // Looked at again when it is settled; here it saves writing a file for nothing.
    let possible = move |transaction: &rusqlite::Transaction<'_>| {
        tables::absent(transaction, id, &parent, &name)?;
        tables::location_free(transaction, id, &wanted)
    };
    change.app.database.read(possible).await?;

    let name = creation.name.clone();
    let metadata = metadata(creation, uuid, location.clone()).await?;
    let file = change.app.objects.write(&location, 0, metadata.clone()).await?;
    let written = file.clone();
    let made = move |transaction: &rusqlite::Transaction<'_>| {
        let table = NewTable { namespace: &namespace, name: &name, location: &location, metadata: &file };
        tables::insert(transaction, id, &table)?;
        Ok((answer(Some(&file), &metadata)?, ()))
    };
    change.settle_files(vec![written], made).await
}

impl Change {
    /// Settles a change that has written metadata files, and removes them when it is certain that nothing refers to
    /// them. After an error of `SQLite`'s that is not certain, and they stay.
    pub(super) async fn settle_files(
        &self,
        written: Vec<String>,
        f: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<(Outcome, ()), Refusal> + Send + 'static,
    ) -> Result<Outcome, Refusal> {
        let settled = self.app.database.settle(&self.ticket, f).await;
        let unused = match &settled {
            Ok(settled) => settled.made.is_none(),
            Err(refusal) => refusal.is_settled(),
        };
        if unused {
            self.app.objects.discard(written).await;
        }
        Ok(settled?.outcome)
    }
}

pub(super) async fn load(
    State(app): Shared,
    Segments((prefix, namespace, name)): Named,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let id = app.warehouse(&prefix).await?.id;
    // A table that is dropped, purged and made anew between the two reads has another file the second time.
    for _ in 0..2 {
        let (parent, table) = (namespace.clone(), name.clone());
        let table =
            app.database.read(move |transaction| tables::existing(transaction, id, &parent, &table)).await?;
        let etag = etag(&table.metadata);
        if has_already(&headers, &etag) {
            return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
        }
        if let Some(metadata) = app.objects.read(&table.metadata).await? {
            let metadata = std::str::from_utf8(&metadata).map_err(Refusal::internal)?;
            return Ok(answer(Some(&table.metadata), metadata)?.into_response());
        }
    }
    Err(Refusal::internal("a table's metadata file is missing"))
}

pub(super) async fn exists(
    State(app): Shared,
    Segments((prefix, namespace, name)): Named,
) -> Result<StatusCode, Refusal> {
    let id = app.warehouse(&prefix).await?.id;
    app.database.read(move |transaction| tables::existing(transaction, id, &namespace, &name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HowToDrop {
    purge_requested: Option<String>,
}

pub(super) async fn drop(
    State(app): Shared,
    Segments((prefix, namespace, name)): Named,
    Words(how): Words<HowToDrop>,
    headers: HeaderMap,
) -> Result<Outcome, Refusal> {
    // Clients write `true`, some write `True`.
    let purge = how.purge_requested.is_some_and(|said| said.eq_ignore_ascii_case("true"));
    change::run(app, &headers, &prefix, async move |change| {
        let id = change.warehouse.id;
        let dropped = move |transaction: &rusqlite::Transaction<'_>| {
            let table = tables::existing(transaction, id, &namespace, &name)?;
            tables::drop(transaction, &table)?;
            Ok((Outcome::no_content(), table.location))
        };
        let settled = change.app.database.settle(&change.ticket, dropped).await?;
        if let Some(location) = settled.made.filter(|_| purge) {
            change.app.objects.purge(&location).await;
        }
        Ok(settled.outcome)
    })
    .await
}

#[derive(Deserialize)]
struct Rename {
    source: Identifier,
    destination: Identifier,
}

pub(super) async fn rename(
    State(app): Shared,
    Segments(prefix): Segments<String>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Outcome, Refusal> {
    change::run(app, &headers, &prefix, async |change| {
        let rename: Rename = parse(body).await?;
        check_name(&rename.destination.name)?;
        let from = joined(&rename.source.namespace)?;
        let to = joined(&rename.destination.namespace)?;
        let id = change.warehouse.id;
        let renamed = move |transaction: &rusqlite::Transaction<'_>| {
            let (from, to) =
                ((from.as_str(), &*rename.source.name), (to.as_str(), &*rename.destination.name));
            tables::rename(transaction, id, from, to)?;
            Ok((Outcome::no_content(), ()))
        };
        Ok(change.app.database.settle(&change.ticket, renamed).await?.outcome)
    })
    .await
}

/// What a client is told of a table. The metadata goes out as it stands in its file, number by number.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Answer<'a> {
    metadata_location: Option<&'a str>,
    metadata: &'a RawValue,
    config: Nothing,
}

/// `{}`: no credentials and no endpoints are handed out.
#[derive(Serialize)]
struct Nothing {}

/// The answer about a table whose current metadata is this.
pub(super) fn answer(file: Option<&str>, metadata: &str) -> Result<Outcome, Refusal> {
    let metadata: &RawValue = serde_json::from_str(metadata).map_err(Refusal::internal)?;
    let mut outcome = Outcome::ok(&Answer { metadata_location: file, metadata, config: Nothing {} })?;
    outcome.etag = file.map(etag);
    Ok(outcome)
}

/// A metadata file never changes, so its name tells one state of a table from the next.
fn etag(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    format!("\"{}\"", name.trim_end_matches(".metadata.json"))
}

fn has_already(headers: &HeaderMap, etag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known
        .flat_map(|list| list.split(','))
        .map(|known| known.trim().trim_start_matches("W/"))
        .any(|known| known == etag || known == "*")
}
