//! `/management/v1/warehouse`: where warehouses lie, and how one is made while the server runs.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Body, Segments};
use crate::refusal::Refusal;
use crate::work::parse;
use crate::{Catalog, Warehouse};

/// As Lakekeeper takes it; fields that mean nothing here (credentials, projects, delete profiles) are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct NewWarehouse {
    warehouse_name: String,
    storage_profile: StorageProfile,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct StorageProfile {
    #[serde(rename = "type")]
    kind: String,
    bucket: String,
    key_prefix: Option<String>,
}

pub(super) async fn create(
    State(catalog): State<Catalog>,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let new: NewWarehouse = parse(body).await?;
    if new.storage_profile.kind != "s3" {
        return Err(Refusal::bad_request("only storage profiles of type s3 are known here"));
    }
    let prefix = new.storage_profile.key_prefix.unwrap_or_default();
    let made = catalog.create_warehouse(&new.warehouse_name, &new.storage_profile.bucket, &prefix).await?;
    Ok((StatusCode::CREATED, Json(json!({"warehouse-id": made.id}))))
}

pub(super) async fn list(State(catalog): State<Catalog>) -> Result<Json<Value>, Refusal> {
    let warehouses = catalog.warehouses().await?;
    Ok(Json(json!({"warehouses": warehouses.iter().map(described).collect::<Vec<_>>()})))
}

pub(super) async fn one(
    State(catalog): State<Catalog>,
    Segments(id): Segments<String>,
) -> Result<Json<Value>, Refusal> {
    Ok(Json(described(&catalog.app.warehouse(&id).await?)))
}

fn described(warehouse: &Warehouse) -> Value {
    let key_prefix = Some(&warehouse.key_prefix).filter(|prefix| !prefix.is_empty());
    json!({
        "id": warehouse.id,
        "warehouse-id": warehouse.id,
        "name": warehouse.name,
        "storage-profile": {"type": "s3", "bucket": warehouse.bucket, "key-prefix": key_prefix},
        "delete-profile": {"type": "hard"},
        "status": "active",
    })
}
