//! How a client begins: a token for its credentials, and the prefix for its warehouse's name.

use std::collections::HashMap;

use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Form, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shared;
use super::extract::Words;
use super::page;
use crate::database::warehouses;
use crate::refusal::Refusal;

/// Told to clients, so that they do not try what is not here.
const ENDPOINTS: [&str; 16] = [
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/tables/rename",
    "POST /v1/{prefix}/transactions/commit",
    "GET /v1/config",
    "POST /v1/oauth/tokens",
];

/// `POST /catalog/v1/oauth/tokens`. Its errors have OAuth's shape (RFC 6749), not the catalog's.
pub(super) async fn token(
    State(app): Shared,
    headers: HeaderMap,
    form: Result<Form<HashMap<String, String>>, FormRejection>,
) -> Response {
    let form = match form {
        Ok(Form(form)) => form,
        Err(error) => return oauth_error(StatusCode::BAD_REQUEST, "invalid_request", &error.body_text()),
    };
    let said = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
    let basic = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let known = app.tokens.is_client(said("client_id"), said("client_secret"))
        || basic.is_some_and(|header| app.tokens.is_basic_client(header));
    if !known {
        return oauth_error(
            StatusCode::UNAUTHORIZED,
            "invalid_client",
            "the client is unknown or its secret wrong",
        );
    }
    if said("grant_type") != "client_credentials" {
        return oauth_error(
            StatusCode::BAD_REQUEST,
            "unsupported_grant_type",
            "only client_credentials is granted",
        );
    }
    let (token, expires_in) = app.tokens.issue();
    let body = json!({"access_token": token, "token_type": "bearer", "expires_in": expires_in});
    ([(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

fn oauth_error(status: StatusCode, error: &str, description: &str) -> Response {
    (status, Json(json!({"error": error, "error_description": description}))).into_response()
}

#[derive(Deserialize)]
pub(super) struct Named {
    warehouse: Option<String>,
}

/// `GET /catalog/v1/config?warehouse=NAME`.
pub(super) async fn config(
    State(app): Shared,
    headers: HeaderMap,
    Words(named): Words<Named>,
) -> Result<Json<Value>, Refusal> {
    let name = named.warehouse.ok_or_else(|| Refusal::bad_request("which warehouse?"))?;
    let warehouse = app.database.read(move |transaction| warehouses::by_name(transaction, &name)).await?;
    let mut overrides = serde_json::Map::new();
    if let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) {
        overrides.insert("uri".to_owned(), format!("http://{host}/catalog").into());
    }
    Ok(Json(json!({
        "defaults": {"prefix": warehouse.id, "rest-page-size": page::SIZE_DEFAULT.to_string()},
        "overrides": overrides,
        "endpoints": ENDPOINTS,
        "idempotency-key-lifetime": "PT30M",
    })))
}
