//! HTTP in, answers out. The only folder that knows axum.
//!
//! Given a socket and a [`Service`], hands each request to its route under a request id and a span. Never logs a header or a
//! statement.

mod control;
mod history;
mod problem;
mod query;
mod socket;
mod statements;
mod status;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{delete, get, post};
use duck_contract::Code;
use duck_contract::query::REQUEST_ID_HEADER;
use duck_contract::worker::SandboxLevel;
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

pub use self::socket::Patient;
use crate::auth::IssuerFacts;
use crate::doors::{catalog, storage};
use crate::fault::Fault;
use crate::journey::Journey;

/// A longer id than this is replaced by one of ours.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// What the routes share.
pub struct Service {
    /// `POST /query`, `POST /statements`.
    pub journey: Arc<Journey>,
    /// The real catalog, for `/tables`, `/config` and the deep health check.
    pub upstream: Arc<catalog::Upstream>,
    /// The real store, for the deep health check.
    pub store: Arc<storage::Store>,
    /// What confines the workers.
    pub sandbox: SandboxLevel,
    /// What `/config` says besides.
    pub facts: Facts,
    /// Set when the server is about to end.
    pub draining: AtomicBool,
    /// The largest body of a request, bytes.
    pub body_bytes_max: usize,
}

/// What is known at start.
#[derive(Debug, Clone)]
pub struct Facts {
    /// How callers prove who they are.
    pub auth: Vec<&'static str>,
    /// Whose tokens are accepted.
    pub issuers: Vec<IssuerFacts>,
    /// `local`, `memory` or `s3`.
    pub storage: &'static str,
    /// Readers have a key to the store that may only read.
    pub readers_key: bool,
    /// The schema that needs no name.
    pub default_schema: String,
}

impl Service {
    /// From now on nothing new is started.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    fn admits(&self) -> Result<(), Fault> {
        if self.is_draining() {
            let sentence = "The server is shutting down; the statement was not started.";
            return Err(Fault::new(Code::Draining, sentence));
        }
        Ok(())
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// The id under which a request is known.
#[derive(Debug, Clone)]
struct RequestId {
    id: Arc<str>,
    /// The client chose it, so that it can ask for its statement.
    chosen: bool,
    /// When its head was there: deadlines count from here, and not from the end of a slow body.
    arrived: Instant,
}

/// One list for the router and for whoever has to look at every route: a test that forgets one fails.
macro_rules! routes {
    ($($method:ident $path:literal => $handler:path;)*) => {
        /// Every route: its method and its path.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path),)*];

        fn routes() -> Router<Arc<Service>> {
            Router::new()$(.route($path, $method($handler)))*
        }
    };
}

routes! {
    post "/query" => query::query;
    get "/queries" => control::queries;
    get "/queries/history" => history::history;
    delete "/queries/{id}" => control::cancel;
    post "/statements" => statements::submit;
    get "/statements" => statements::list;
    get "/statements/{id}" => statements::one;
    delete "/statements/{id}" => statements::end;
    get "/statements/{id}/result" => statements::result;
    post "/warehouses/{name}/warm" => control::warm;
    post "/warehouses/{name}/reopen" => control::reopen;
    get "/status" => control::status;
    get "/health" => status::health;
    get "/ready" => status::ready;
    get "/tables" => status::tables;
    get "/config" => status::config;
}

/// The routes, and what surrounds them all.
pub fn router(service: Arc<Service>) -> Router {
    routes()
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(middleware::from_fn(identified))
        .with_state(service)
}

/// The id that a client gave its request, so that it can cancel it before it is answered; only letters, digits, `-` and `_`.
fn id_of(request: &Request) -> Option<Arc<str>> {
    let id = request.headers().get(REQUEST_ID_HEADER)?.to_str().ok()?;
    is_request_id(id).then(|| id.into())
}

fn is_request_id(text: &str) -> bool {
    let sound = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    (1..=REQUEST_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(sound)
}

/// Gives every request an id, a span and a line in the log.
async fn identified(mut request: Request, next: Next) -> Response {
    let chosen = id_of(&request);
    let (id, chosen) =
        (chosen.clone().unwrap_or_else(|| Uuid::now_v7().to_string().into()), chosen.is_some());
    let span = tracing::info_span!("request", request_id = %id, method = %request.method(), path = request.uri().path());
    let arrived = Instant::now();
    request.extensions_mut().insert(RequestId { id: id.clone(), chosen, arrived });
    let mut answer = next.run(request).instrument(span.clone()).await;
    let (status, ms) = (answer.status().as_u16(), arrived.elapsed().as_millis());
    span.in_scope(|| tracing::info!(status, ms, "answered"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        answer.headers_mut().insert(REQUEST_ID_HEADER, id);
    }
    answer
}

/// The `Authorization` header as text; one that is not text is as good as none.
fn authorization(headers: &axum::http::HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap_or("not text"))
}
