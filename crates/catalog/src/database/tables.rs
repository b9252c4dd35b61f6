//! Tables and staged tables: which name leads to which metadata file.

use rusqlite::{OptionalExtension as _, Transaction, params};
use uuid::Uuid;

use super::namespaces;
use super::outcomes::now_s;
use crate::place::Place;
use crate::refusal::Refusal;

/// A staged table that nobody finishes is forgotten after a day.
const STAGED_LIFETIME_S: i64 = 24 * 3600;

/// A table as the catalog knows it.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) id: i64,
    pub(crate) location: String,
    /// Where the current metadata file is.
    pub(crate) metadata: String,
    /// How many commits it has seen.
    pub(crate) version: i64,
}

/// A table that does not exist yet.
pub(crate) struct NewTable<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) location: &'a Place,
    pub(crate) metadata: &'a str,
}

/// The table of that name; `None` if only the namespace exists.
pub(crate) fn find(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    namespace: &str,
    name: &str,
) -> Result<Option<Table>, Refusal> {
    let namespace = namespaces::find(transaction, warehouse, namespace)?.id;
    let table = transaction
        .prepare_cached(
            "SELECT id, location, metadata, version FROM tables WHERE namespace = ?1 AND name = ?2",
        )?
        .query_row(params![namespace, name], |row| {
            Ok(Table { id: row.get(0)?, location: row.get(1)?, metadata: row.get(2)?, version: row.get(3)? })
        })
        .optional()?;
    Ok(table)
}

/// The table of that name, which must exist.
pub(crate) fn existing(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    namespace: &str,
    name: &str,
) -> Result<Table, Refusal> {
    find(transaction, warehouse, namespace, name)?.ok_or_else(|| Refusal::no_such_table(name))
}

/// Refuses a name that a table already has.
pub(crate) fn absent(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    namespace: &str,
    name: &str,
) -> Result<(), Refusal> {
    match find(transaction, warehouse, namespace, name)? {
        Some(_) => Err(Refusal::already_exists(name)),
        None => Ok(()),
    }
}

/// The names in a namespace that sort after `after`; one more than `count`, when there are.
pub(crate) fn list(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    namespace: &str,
    after: &str,
    count: usize,
) -> Result<Vec<String>, Refusal> {
    let namespace = namespaces::find(transaction, warehouse, namespace)?.id;
    let mut statement = transaction.prepare_cached(
        "SELECT name FROM tables WHERE namespace = ?1 AND name > ?2 ORDER BY name LIMIT ?3",
    )?;
    let names = statement
        .query_map(params![namespace, after, super::limit(count)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok(names)
}

/// Refuses a location inside another table's, or around one.
pub(crate) fn location_free(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    location: &Place,
) -> Result<(), Refusal> {
    let mut statement = transaction.prepare_cached("SELECT location FROM tables WHERE warehouse = ?1")?;
    let mut taken = statement.query([warehouse.to_string()])?;
    while let Some(row) = taken.next()? {
        let other: String = row.get(0)?;
        if Place::parse(&other)?.overlaps(location) {
            return Err(Refusal::location_taken(&location.to_string()));
        }
    }
    Ok(())
}

pub(crate) fn insert(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    table: &NewTable<'_>,
) -> Result<(), Refusal> {
    absent(transaction, warehouse, table.namespace, table.name)?;
    location_free(transaction, warehouse, table.location)?;
    let namespace = namespaces::find(transaction, warehouse, table.namespace)?.id;
    transaction.execute(
        "INSERT INTO tables (warehouse, namespace, name, location, metadata, version) VALUES (?1, ?2, ?3, ?4, ?5, 0)",
        params![
            warehouse.to_string(),
            namespace,
            table.name,
            table.location.to_string(),
            table.metadata
        ],
    )?;
    Ok(())
}

/// Points a table at its next metadata file, provided that it still points at the one the commit was made from.
pub(crate) fn advance(transaction: &Transaction<'_>, base: &Table, metadata: &str) -> Result<(), Refusal> {
    let moved = transaction
        .prepare_cached(
            "UPDATE tables SET metadata = ?3, version = version + 1 WHERE id = ?1 AND metadata = ?2",
        )?
        .execute(params![base.id, base.metadata, metadata])?;
    if moved == 0 {
        return Err(Refusal::commit_failed("the table has changed meanwhile"));
    }
    Ok(())
}

pub(crate) fn rename(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    from: (&str, &str),
    to: (&str, &str),
) -> Result<(), Refusal> {
    let table = existing(transaction, warehouse, from.0, from.1)?;
    absent(transaction, warehouse, to.0, to.1)?;
    let namespace = namespaces::find(transaction, warehouse, to.0)?.id;
    transaction.execute(
        "UPDATE tables SET namespace = ?2, name = ?3 WHERE id = ?1",
        params![table.id, namespace, to.1],
    )?;
    Ok(())
}

pub(crate) fn drop(transaction: &Transaction<'_>, table: &Table) -> Result<(), Refusal> {
    transaction.execute("DELETE FROM tables WHERE id = ?1", [table.id])?;
    Ok(())
}

/// Keeps a staged table until it is finished, and forgets those that never were.
pub(crate) fn stage(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    namespace: &str,
    name: &str,
    uuid: Uuid,
    metadata: &str,
) -> Result<(), Refusal> {
    let namespace = namespaces::find(transaction, warehouse, namespace)?.id;
    let now = now_s();
    transaction.execute("DELETE FROM staged WHERE expires_at <= ?1", [now])?;
    transaction.execute(
        "INSERT INTO staged (uuid, namespace, name, metadata, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![uuid.to_string(), namespace, name, metadata, now + STAGED_LIFETIME_S],
    )?;
    Ok(())
}

/// The metadata of a staged table: the one of that uuid, else the last one staged under the name.
pub(crate) fn staged(
    transaction: &Transaction<'_>,
    warehouse: Uuid,
    namespace: &str,
    name: &str,
    uuid: Option<Uuid>,
) -> Result<String, Refusal> {
    let namespace = namespaces::find(transaction, warehouse, namespace)?.id;
    transaction
        .query_row(
            "SELECT metadata FROM staged
             WHERE namespace = ?1 AND name = ?2 AND uuid = coalesce(?3, uuid) AND expires_at > ?4
             ORDER BY rowid DESC LIMIT 1",
            params![namespace, name, uuid.map(|uuid| uuid.to_string()), now_s()],
            |row| row.get(0),
        )
        .optional()?
        .ok_or_else(|| Refusal::no_such_table(name))
}

pub(crate) fn unstage(transaction: &Transaction<'_>, uuid: Uuid) -> Result<(), Refusal> {
    transaction.execute("DELETE FROM staged WHERE uuid = ?1", [uuid.to_string()])?;
    Ok(())
}
