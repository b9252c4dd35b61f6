//! What runs now, and how to stop it; a warehouse made ready; what is taken and what is free.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use duck_contract::Code;
use duck_contract::query::QueriesAnswer;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::status::Place;
use super::{RequestId, Service, authorization, problem};
use crate::auth::Scope;
use crate::fault::Fault;

/// How much longer than the grace a cancellation is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

fn answer(result: Result<Value, Fault>, id: &RequestId) -> Response {
    match result {
        Ok(value) => Json(value).into_response(),
        Err(fault) => problem::answer(&fault, id),
    }
}

/// The caller's statements that are here now.
pub(super) async fn queries(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Query(place): Query<Place>,
) -> Response {
    match place.permit(&service, &headers).await {
        Ok(permit) => {
            let queries = service.journey.register.list(permit.warehouse.name()).await;
            Json(QueriesAnswer { queries }).into_response()
        }
        Err(fault) => problem::answer(&fault, &id),
    }
}

/// The warehouse whose statements the caller may see and stop; none for a trusted back end, who may do that with anybody's.
pub(super) async fn whose(service: &Service, headers: &HeaderMap) -> Result<Option<String>, Fault> {
    let journey = &service.journey;
    Ok(match journey.auth.verify(authorization(headers)).await?.scope() {
        Scope::Workspace(workspace) => Some(journey.governance.name_of(workspace)),
        Scope::Any => None,
    })
}

/// How long a cancellation is waited for.
pub(super) fn patience(service: &Service) -> Duration {
    Duration::from_millis(service.journey.settings.grace_ms) + PATIENCE
}

/// Stops a statement of the caller's; a trusted back end may stop anybody's.
pub(super) async fn cancel(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Path(victim): Path<String>,
) -> Response {
    let stop = async {
        let journey = &service.journey;
        let warehouse = whose(&service, &headers).await?;
        let gone = journey.register.stop(warehouse.as_deref(), &victim, patience(&service)).await;
        let gone = gone.ok_or_else(|| Fault::new(Code::NotFound, "No statement of that id is running."))?;
        let state = if gone { "cancelled" } else { "stopping" };
        Ok(json!({"request_id": victim, "state": state}))
    };
    answer(stop.await, &id)
}

/// Makes a warehouse's engine ready for queries to come.
pub(super) async fn warm(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Response {
    let warm = async {
        service.admits()?;
        let permit = Place::of_warehouse(name).permit(&service, &headers).await?;
        let began = Instant::now();
        service.journey.warm(&permit).await?;
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(json!({"warehouse": permit.warehouse.name(), "took_ms": ms}))
    };
    answer(warm.await, &id)
}

/// Opens a workspace whose writes have stopped by themselves: for those who operate the server.
pub(super) async fn reopen(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Response {
    let reopen = async {
        operator(&service, &headers).await?;
        let permit = Place::of_warehouse(name).permit(&service, &headers).await?;
        let was_stopped = service.journey.governance.writes().reopen(permit.warehouse.workspace());
        Ok(json!({"warehouse": permit.warehouse.name(), "was_stopped": was_stopped}))
    };
    answer(reopen.await, &id)
}

/// Only whoever has the service token, or everybody where nobody has to say who they are.
async fn operator(service: &Service, headers: &HeaderMap) -> Result<(), Fault> {
    match service.journey.auth.verify(authorization(headers)).await?.scope() {
        Scope::Any => Ok(()),
        Scope::Workspace(_) => Err(Fault::new(Code::NotFound, "This is for the service token.")),
    }
}

/// What is taken and what is free: for those who operate the server.
pub(super) async fn status(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
) -> Response {
    let status = async {
        let journey = &service.journey;
        operator(&service, &headers).await?;
        Ok(json!({
            "draining": service.is_draining(),
            "queries": journey.register.count(),
            "limits": journey.limits.gauges(),
            "pool": journey.pool.gauges(),
            "spares": journey.pool.spares(),
            "statements": journey.statements.gauges(),
            "writes": journey.governance.writes().status(),
            "audit": journey.audit.status(),
            "written_tables": journey.limits.tables.count(),
            "keys": journey.auth.gauges(),
        }))
    };
    answer(status.await, &id)
}
