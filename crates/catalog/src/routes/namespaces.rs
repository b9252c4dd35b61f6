//! Namespaces: list, create, load, properties, drop.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Body, Segments, Words};
use super::page::Asked;
use super::{Shared, change};
use crate::Warehouse;
use crate::database::namespaces::{self, Properties, SEPARATOR};
use crate::database::{Outcome, warehouses};
use crate::place::Place;
use crate::refusal::Refusal;
use crate::work::parse;

const LEVELS_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 255;
const LOCATION: &str = "location";

/// A namespace's levels, checked and joined.
pub(super) fn joined(levels: &[String]) -> Result<String, Refusal> {
    if levels.is_empty() || levels.len() > LEVELS_MAX {
        return Err(Refusal::bad_request(format!("a namespace has 1 to {LEVELS_MAX} levels")));
    }
    levels.iter().try_for_each(|level| check_name(level))?;
    Ok(levels.join(&SEPARATOR.to_string()))
}

/// Refuses a name that nobody could type. Any other goes: names never become part of a place.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
        return Err(Refusal::bad_request(format!(
            "a name has 1 to {NAME_BYTES_MAX} bytes and no control character"
        )));
    }
    Ok(())
}

/// The levels of a joined name.
pub(super) fn levels(name: &str) -> Vec<&str> {
    name.split(SEPARATOR).collect()
}

pub(super) async fn list(
    State(app): Shared,
    Segments(prefix): Segments<String>,
    Words(asked): Words<Asked>,
) -> Result<Json<Value>, Refusal> {
    let id = app.warehouse(&prefix).await?.id;
    let page = asked.page()?;
    let parent = asked.parent.unwrap_or_default();
    let (after, size) = (page.after.clone(), page.size);
    let names = app
        .database
        .read(move |transaction| namespaces::list(transaction, id, &parent, &after, size))
        .await?;
    let (names, token) = page.cut(names);
    let namespaces: Vec<_> = names.iter().map(|name| levels(name)).collect();
    Ok(Json(json!({"namespaces": namespaces, "next-page-token": token})))
}

#[derive(Deserialize)]
struct Creation {
    namespace: Vec<String>,
    #[serde(default)]
    properties: Properties,
}

pub(super) async fn create(
    State(app): Shared,
    Segments(prefix): Segments<String>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Outcome, Refusal> {
    change::run(app, &headers, &prefix, async |change| {
        let creation: Creation = parse(body).await?;
        let name = joined(&creation.namespace)?;
        check_location(&change.warehouse, &creation.properties)?;
        let warehouse = change.warehouse;
        let made = move |transaction: &rusqlite::Transaction<'_>| {
            namespaces::create(transaction, warehouse.id, &name, &creation.properties)?;
            Ok((Outcome::ok(&described(&warehouse, &name, &creation.properties)?)?, ()))
        };
        Ok(change.app.database.settle(&change.ticket, made).await?.outcome)
    })
    .await
}

pub(super) async fn load(
    State(app): Shared,
    Segments((prefix, name)): Segments<(String, String)>,
) -> Result<Json<Value>, Refusal> {
    let warehouse = app.warehouse(&prefix).await?;
    let id = warehouse.id;
    let namespace = app.database.read(move |transaction| namespaces::find(transaction, id, &name)).await?;
    Ok(Json(described(&warehouse, &namespace.name, &namespace.properties)?))
}

pub(super) async fn exists(
    State(app): Shared,
    Segments((prefix, name)): Segments<(String, String)>,
) -> Result<StatusCode, Refusal> {
    let id = app.warehouse(&prefix).await?.id;
    app.database.read(move |transaction| namespaces::find(transaction, id, &name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn drop(
    State(app): Shared,
    Segments((prefix, name)): Segments<(String, String)>,
    headers: HeaderMap,
) -> Result<Outcome, Refusal> {
    change::run(app, &headers, &prefix, async |change| {
        let id = change.warehouse.id;
        let dropped = move |transaction: &rusqlite::Transaction<'_>| {
            namespaces::drop(transaction, id, &name)?;
            Ok((Outcome::no_content(), ()))
        };
        Ok(change.app.database.settle(&change.ticket, dropped).await?.outcome)
    })
    .await
}

#[derive(Deserialize)]
struct Update {
    #[serde(default)]
    removals: Vec<String>,
    #[serde(default)]
    updates: Properties,
}

pub(super) async fn update(
    State(app): Shared,
    Segments((prefix, name)): Segments<(String, String)>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Outcome, Refusal> {
    change::run(app, &headers, &prefix, async |change| {
        let update: Update = parse(body).await?;
        if update.removals.iter().any(|removed| update.updates.contains_key(removed)) {
            return Err(Refusal::unprocessable("a property cannot be set and removed at once"));
        }
        check_location(&change.warehouse, &update.updates)?;
        let id = change.warehouse.id;
        let updated = move |transaction: &rusqlite::Transaction<'_>| {
            let mut namespace = namespaces::find(transaction, id, &name)?;
            let (removed, missing): (Vec<_>, Vec<_>) = update
                .removals
                .into_iter()
                .partition(|removed| namespace.properties.remove(removed).is_some());
            let updated: Vec<_> = update.updates.keys().cloned().collect();
            namespace.properties.extend(update.updates);
            namespaces::set_properties(transaction, namespace.id, &namespace.properties)?;
            Ok((Outcome::ok(&json!({"updated": updated, "removed": removed, "missing": missing}))?, ()))
        };
        Ok(change.app.database.settle(&change.ticket, updated).await?.outcome)
    })
    .await
}

/// A namespace as answered: with a location, which is the warehouse's root unless it was given another.
fn described(warehouse: &Warehouse, name: &str, properties: &Properties) -> Result<Value, Refusal> {
    let mut properties = properties.clone();
    if !properties.contains_key(LOCATION) {
        properties.insert(LOCATION.to_owned(), warehouses::root(warehouse)?.to_string());
    }
    Ok(json!({"namespace": levels(name), "properties": properties}))
}

fn check_location(warehouse: &Warehouse, properties: &Properties) -> Result<(), Refusal> {
    let Some(location) = properties.get(LOCATION) else { return Ok(()) };
    if Place::parse(location)?.is_within(&warehouses::root(warehouse)?) {
        Ok(())
    } else {
        Err(Refusal::invalid_location("the location is outside the warehouse"))
    }
}
