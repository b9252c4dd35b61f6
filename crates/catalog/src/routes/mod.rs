//! HTTP: which path leads where, who may come in, and how an outcome becomes an answer.

mod change;
mod commits;
mod extract;
mod management;
mod namespaces;
mod page;
mod session;
mod tables;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::database::{Database, Outcome, warehouses};
use crate::objects::Objects;
use crate::refusal::Refusal;
use crate::tokens::Tokens;
use crate::{Catalog, Warehouse};

/// A larger body is refused with 413.
const BODY_BYTES_MAX: usize = 8 << 20;

/// What every route shares.
pub(crate) struct App {
    pub(crate) database: Database,
    pub(crate) objects: Objects,
    pub(crate) tokens: Tokens,
    pub(crate) changes: Semaphore,
}

type Shared = State<Arc<App>>;

pub(crate) fn router(catalog: Catalog) -> Router {
    let app = catalog.app.clone();
    let management = Router::new()
        .route("/management/v1/warehouse", get(management::list).post(management::create))
        .route("/management/v1/warehouse/{id}", get(management::one))
        .with_state(catalog);
    let one_table = get(tables::load).head(tables::exists).post(commits::one).delete(tables::drop);
    let namespace = get(namespaces::load).head(namespaces::exists).delete(namespaces::drop);
    let guarded = Router::new()
        .route("/catalog/v1/config", get(session::config))
        .route("/catalog/v1/{prefix}/namespaces", get(namespaces::list).post(namespaces::create))
        .route("/catalog/v1/{prefix}/namespaces/{namespace}", namespace)
        .route("/catalog/v1/{prefix}/namespaces/{namespace}/properties", post(namespaces::update))
        .route("/catalog/v1/{prefix}/namespaces/{namespace}/tables", get(tables::list).post(tables::create))
        .route("/catalog/v1/{prefix}/namespaces/{namespace}/tables/{table}", one_table)
        .route("/catalog/v1/{prefix}/tables/rename", post(tables::rename))
        .route("/catalog/v1/{prefix}/transactions/commit", post(commits::many))
        .with_state(app.clone())
        .merge(management)
        .fallback(async || Refusal::no_route())
        .method_not_allowed_fallback(async || Refusal::wrong_method())
        .layer(from_fn_with_state(app.clone(), guard));
    Router::new()
        .route("/catalog/v1/oauth/tokens", post(session::token))
        .with_state(app)
        .merge(guarded)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// Lets in who holds a live token.
async fn guard(State(app): Shared, request: Request, next: Next) -> Response {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if header.is_some_and(|header| app.tokens.admits(header)) {
        next.run(request).await
    } else {
        Refusal::unauthenticated().into_response()
    }
}

impl App {
    /// The warehouse whose id stands in the path.
    async fn warehouse(&self, prefix: &str) -> Result<Warehouse, Refusal> {
        let id = id(prefix)?;
        self.database.read(move |transaction| warehouses::by_id(transaction, id)).await
    }
}

fn id(prefix: &str) -> Result<Uuid, Refusal> {
    prefix.parse().map_err(|_| Refusal::no_such_warehouse(prefix))
}

impl IntoResponse for Outcome {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        if self.body.is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(etag) = self.etag.and_then(|etag| HeaderValue::try_from(etag).ok()) {
            headers.insert(header::ETAG, etag);
        }
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, headers, self.body.unwrap_or_default()).into_response()
    }
}
