//! `GET /queries/history`: what a workspace's last statements were.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use duck_contract::audit::HistoryAnswer;
use serde::Deserialize;

use super::status::Place;
use super::{RequestId, Service, problem};

/// Where nobody says how many.
const LIMIT: usize = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Ask {
    warehouse: Option<String>,
    workspace_id: Option<String>,
    limit: Option<usize>,
}

/// The caller's last statements, the newest first.
pub(super) async fn history(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Query(ask): Query<Ask>,
) -> Response {
    match Place::named(ask.warehouse, ask.workspace_id).permit(&service, &headers).await {
        Ok(permit) => {
            let limit = ask.limit.unwrap_or(LIMIT);
            let queries = service.journey.audit.history(permit.warehouse.workspace(), limit);
            Json(HistoryAnswer { queries }).into_response()
        }
        Err(fault) => problem::answer(&fault, &id),
    }
}
