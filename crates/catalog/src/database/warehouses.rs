//! Warehouses: a name, an id, and a place in the store that no other warehouse shares. They are never removed.

use rusqlite::{OptionalExtension as _, Row, Transaction, params};
use uuid::Uuid;

use crate::place::Place;
use crate::refusal::Refusal;
use crate::{Warehouse, WarehouseError};

/// More are refused: every new one is compared with all others.
const WAREHOUSES_MAX: usize = 10_000;

const COLUMNS: &str = "SELECT id, name, bucket, key_prefix FROM warehouses";

pub(crate) fn by_id(transaction: &Transaction<'_>, id: Uuid) -> Result<Warehouse, Refusal> {
    find(transaction, "id", &id.to_string())?.ok_or_else(|| Refusal::no_such_warehouse(&id.to_string()))
}

pub(crate) fn by_name(transaction: &Transaction<'_>, name: &str) -> Result<Warehouse, Refusal> {
    find(transaction, "name", name)?.ok_or_else(|| Refusal::no_such_warehouse(name))
}

fn find(
    transaction: &Transaction<'_>,
    column: &'static str,
    value: &str,
) -> Result<Option<Warehouse>, Refusal> {
    let mut statement = transaction.prepare_cached(&format!("{COLUMNS} WHERE {column} = ?1"))?;
    let found = statement.query_row([value], warehouse).optional()?;
    Ok(found)
}

pub(crate) fn all(transaction: &Transaction<'_>) -> Result<Vec<Warehouse>, Refusal> {
    let mut statement = transaction.prepare_cached(&format!("{COLUMNS} ORDER BY name"))?;
    let warehouses = statement.query_map([], warehouse)?.collect::<Result<_, _>>()?;
    Ok(warehouses)
}

/// The warehouse of that name at that place, made if there is none.
pub(crate) fn ensure(
    transaction: &Transaction<'_>,
    name: &str,
    place: &Place,
) -> Result<Result<Warehouse, WarehouseError>, Refusal> {
    let others = all(transaction)?;
    for other in &others {
        let elsewhere = root(other)?;
        if other.name == name {
            let same = elsewhere == *place;
            return Ok(if same { Ok(other.clone()) } else { Err(WarehouseError::Exists) });
        }
        if elsewhere.overlaps(place) {
            return Ok(Err(WarehouseError::Overlaps));
        }
    }
    if others.len() >= WAREHOUSES_MAX {
        return Ok(Err(WarehouseError::TooMany));
    }
    let made = Warehouse {
        id: Uuid::new_v4(),
        name: name.to_owned(),
        bucket: place.bucket().to_owned(),
        key_prefix: place.key().to_owned(),
    };
    transaction.execute(
        "INSERT INTO warehouses (id, name, bucket, key_prefix) VALUES (?1, ?2, ?3, ?4)",
        params![made.id.to_string(), made.name, made.bucket, made.key_prefix],
    )?;
    Ok(Ok(made))
}

/// Where a warehouse begins.
pub(crate) fn root(warehouse: &Warehouse) -> Result<Place, Refusal> {
    Place::new(&warehouse.bucket, &warehouse.key_prefix)
}

fn warehouse(row: &Row<'_>) -> rusqlite::Result<Warehouse> {
    let id: String = row.get(0)?;
    let id = id.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })?;
    Ok(Warehouse { id, name: row.get(1)?, bucket: row.get(2)?, key_prefix: row.get(3)? })
}
