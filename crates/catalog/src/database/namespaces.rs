//! Namespaces. Here a name is its levels joined by U+001F, as it stands in a path.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension as _, Transaction, params};
use uuid::Uuid;

use crate::refusal::Refusal;

pub(crate) const SEPARATOR: char = '\u{1f}';

/// What clients keep with a namespace.
pub(crate) type Properties = BTreeMap<String, String>;

/// A namespace as stored.
pub(crate) struct Namespace {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) properties: Properties,
}

pub(crate) fn find(transaction: &Transaction<'_>, warehouse: Uuid, name: &str) -> Result<Namespace, Refusal> {
    let (id, properties): (i64, String) = transaction
        .prepare_cached("SELECT id, properties FROM namespaces WHERE warehouse = ?1 AND name = ?2")?
        .query_row(params![warehouse.to_string(), name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?
        .ok_or_else(|| Refusal::no_such_namespace(name))?;
    let properties = serde_json::from_str(&properties).map_err(Refusal::internal)?;
    Ok(Namespace { id, name: name.to_owned(), properties })
}

/// The names directly below `parent` (empty: the top) that sort after `after`; one more than `count`, when there are.
pub(crate) fn list(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    parent: &str,
    after: &str,
    count: usize,
) -> Result<Vec<String>, Refusal> {
    if !parent.is_empty() {
        find(transaction, warehouse, parent)?;
    }
    let mut statement = transaction.prepare_cached(
        "SELECT name FROM namespaces WHERE warehouse = ?1 AND parent = ?2 AND name > ?3 ORDER BY name LIMIT ?4",
    )?;
    let names = statement
        .query_map(params![warehouse.to_string(), parent, after, super::limit(count)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok(names)
}

pub(crate) fn create(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    name: &str,
    properties: &Properties,
) -> Result<(), Refusal> {
    let parent = name.rsplit_once(SEPARATOR).map_or("", |(parent, _)| parent);
    if !parent.is_empty() {
        find(transaction, warehouse, parent)?;
    }
    let made = transaction.execute(
        "INSERT OR IGNORE INTO namespaces (warehouse, name, parent, properties) VALUES (?1, ?2, ?3, ?4)",
        params![warehouse.to_string(), name, parent, written(properties)?],
    )?;
    if made == 0 { Err(Refusal::already_exists(name)) } else { Ok(()) }
}

pub(crate) fn set_properties(
    transaction: &Transaction<'_>,
    namespace: i64,
    properties: &Properties,
) -> Result<(), Refusal> {
    transaction.execute(
        "UPDATE namespaces SET properties = ?2 WHERE id = ?1",
        params![namespace, written(properties)?],
    )?;
    Ok(())
}

pub(crate) fn drop(transaction: &Transaction<'_>, warehouse: Uuid, name: &str) -> Result<(), Refusal> {
    let namespace = find(transaction, warehouse, name)?;
    let inhabited: bool = transaction.query_row(
        "SELECT EXISTS (SELECT 1 FROM tables WHERE namespace = ?1)
             OR EXISTS (SELECT 1 FROM namespaces WHERE warehouse = ?2 AND parent = ?3)",
        params![namespace.id, warehouse.to_string(), name],
        |row| row.get(0),
    )?;
    if inhabited {
        return Err(Refusal::namespace_not_empty(name));
    }
    transaction.execute("DELETE FROM namespaces WHERE id = ?1", [namespace.id])?;
    Ok(())
}

fn written(properties: &Properties) -> Result<String, Refusal> {
    serde_json::to_string(properties).map_err(Refusal::internal)
}
