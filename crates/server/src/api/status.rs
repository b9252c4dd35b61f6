//! How the server is, and what it knows of the caller's warehouse.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use duck_contract::Code;
use duck_contract::query::TablesAnswer;
use serde::Deserialize;
use serde_json::json;

use super::{Facts, RequestId, Service, authorization, problem};
use crate::auth::Scope;
use crate::fault::Fault;
use crate::governance::{Permit, Wish};

const DEEP_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Depth {
    deep: Option<String>,
}

/// Alive; with `?deep=1` also whether catalog and store answer.
pub(super) async fn health(State(service): State<Arc<Service>>, Query(depth): Query<Depth>) -> Response {
    if depth.deep.as_deref() != Some("1") {
        return Json(json!({"status": "ok"})).into_response();
    }
    let (catalog, store) = tokio::join!(
        tokio::time::timeout(DEEP_MAX, service.upstream.probe()),
        tokio::time::timeout(DEEP_MAX, service.store.probe()),
    );
    let (catalog, store) = (matches!(catalog, Ok(Ok(()))), matches!(store, Ok(Ok(()))));
    let word = |well: bool| if well { "ok" } else { "unavailable" };
    let status = if catalog && store { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({"status": word(catalog && store), "catalog": word(catalog), "storage": word(store)});
    (status, Json(body)).into_response()
}

/// Whether a balancer should send requests here.
pub(super) async fn ready(State(service): State<Arc<Service>>) -> Response {
    if service.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "draining"}))).into_response();
    }
    Json(json!({"status": "ready"})).into_response()
}

/// Whose tables, for callers that may name any workspace.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Place {
    warehouse: Option<String>,
    workspace_id: Option<String>,
}

impl Place {
    /// The one that a query's words name, if they do.
    pub(super) fn named(warehouse: Option<String>, workspace_id: Option<String>) -> Self {
        Place { warehouse, workspace_id }
    }

    /// The one of this name.
    pub(super) fn of_warehouse(name: String) -> Self {
        Place { warehouse: Some(name), workspace_id: None }
    }

    pub(super) async fn permit(&self, service: &Service, headers: &HeaderMap) -> Result<Permit, Fault> {
        let caller = service.journey.auth.verify(authorization(headers)).await?;
        let wish = Wish {
            warehouse: self.warehouse.as_deref(),
            workspace: self.workspace_id.as_deref(),
            writes: false,
        };
        service.journey.governance.permit(&caller, wish)
    }
}

/// The caller's tables, from the catalog.
pub(super) async fn tables(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Query(place): Query<Place>,
) -> Response {
    let answer = async {
        let permit = place.permit(&service, &headers).await?;
        let name = permit.warehouse.name();
        let tables = service.upstream.tables(name).await?;
        Ok::<_, Fault>(TablesAnswer { warehouse: name.to_owned(), tables })
    };
    match answer.await {
        Ok(tables) => Json(tables).into_response(),
        Err(fault) => problem::answer(&fault, &id),
    }
}

/// How this server is set up, and the caller's warehouse.
pub(super) async fn config(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Query(place): Query<Place>,
) -> Response {
    let answer = async {
        let caller = service.journey.auth.verify(authorization(&headers)).await?;
        let named = place.warehouse.is_some() || place.workspace_id.is_some();
        let warehouse = if named || matches!(caller.scope(), Scope::Workspace(_)) {
            Some(place.permit(&service, &headers).await?.warehouse)
        } else {
            None
        };
        let schemas = match &warehouse {
            Some(warehouse) => schemas(&service, warehouse.name()).await?,
            None => Vec::new(),
        };
        // Others' identity providers are no tenant's affair.
        let issuers = matches!(caller.scope(), Scope::Any).then_some(&service.facts.issuers);
        Ok::<_, Fault>(json!({
            "auth": service.facts.auth,
            "issuers": issuers,
            "warehouse": warehouse.as_ref().map(crate::governance::Warehouse::name),
            "schemas": schemas,
            "default_schema": service.facts.default_schema,
            "writes_granted": caller.may_write(),
            "writes": warehouse.as_ref().map(|w| service.journey.governance.writes().about(w.workspace())),
            "storage": service.facts.storage,
            "warnings": warnings(&service.facts),
            "credential_vending": false,
            "sandbox": service.sandbox,
            "rows_max": service.journey.settings.rows_max,
            "timeout_ms_max": service.journey.settings.timeout_ms_max,
            "versions": {"duck_server": env!("CARGO_PKG_VERSION"), "duckdb": "1.5.5"},
        }))
    };
    match answer.await {
        Ok(config) => Json(config).into_response(),
        Err(fault) => problem::answer(&fault, &id),
    }
}

/// What is allowed, and better otherwise.
fn warnings(facts: &Facts) -> Vec<&'static str> {
    if facts.storage == "s3" && !facts.readers_key {
        return vec!["readers use the key that may write: set storage.ro_access_key_id"];
    }
    Vec::new()
}

async fn schemas(service: &Service, warehouse: &str) -> Result<Vec<String>, Fault> {
    match service.upstream.schemas(warehouse).await {
        Ok(schemas) => Ok(schemas),
        Err(e) => {
            let fault = Fault::from(e);
            // A workspace without a warehouse may still ask how the server is set up.
            if fault.code == Code::UnknownWarehouse { Ok(Vec::new()) } else { Err(fault) }
        }
    }
}
