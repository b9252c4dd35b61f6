//! The one error of this crate's routes, in the shape of the Iceberg REST specification.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use iceberg::ErrorKind;
use serde_json::json;

use crate::database::Outcome;

/// Why a request got no success: a status, the specification's name for it, and one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Refusal { status, kind, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestException", message)
    }

    pub(crate) fn invalid_location(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidLocation", message)
    }

    pub(crate) fn location_taken(location: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "LocationAlreadyTaken",
            format!("{location} overlaps another table's location"),
        )
    }

    pub(crate) fn unsupported_property(name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "UnsupportedPropertyException",
            format!("unsupported property: {name}"),
        )
    }

    pub(crate) fn unauthenticated() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "NotAuthorizedException",
            "the bearer token is missing, wrong or expired",
        )
    }

    pub(crate) fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFoundException", "no such route")
    }

    pub(crate) fn wrong_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowedException", "the route has no such method")
    }

    pub(crate) fn too_large() -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "PayloadTooLargeException",
            "the body is larger than this catalog reads",
        )
    }

    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "UnprocessableEntityException", message)
    }

    pub(crate) fn no_such_warehouse(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NoSuchWarehouseException", format!("no such warehouse: {name}"))
    }

    pub(crate) fn warehouse_conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "WarehouseConflictException", message)
    }

    pub(crate) fn no_such_namespace(name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NoSuchNamespaceException",
            format!("no such namespace: {}", readable(name)),
        )
    }

    pub(crate) fn namespace_not_empty(name: &str) -> Self {
        let message = format!("the namespace is not empty: {}", readable(name));
        Self::new(StatusCode::CONFLICT, "NamespaceNotEmptyException", message)
    }

    pub(crate) fn no_such_table(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NoSuchTableException", format!("no such table: {name}"))
    }

    pub(crate) fn already_exists(name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExistsException",
            format!("already exists: {}", readable(name)),
        )
    }

    pub(crate) fn commit_failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "CommitFailedException", message)
    }

    /// Something of ours broke. The cause goes to the log, never to the client.
    pub(crate) fn internal(cause: impl std::fmt::Display) -> Self {
        tracing::error!(%cause, "the catalog failed");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalServerError",
            "the catalog failed; its log says why",
        )
    }

    /// Whether asking again the same way must end the same way; only such refusals are remembered for replay.
    pub(crate) fn is_settled(&self) -> bool {
        self.status.is_client_error()
    }

    /// The refusal as an outcome that can be stored and replayed.
    pub(crate) fn outcome(&self) -> Outcome {
        let code = self.status.as_u16();
        let body = json!({"error": {"message": self.message, "type": self.kind, "code": code}});
        Outcome { status: code, body: Some(body.to_string()), etag: None }
    }
}

/// A namespace's levels as people write them; inside, they are joined by the unit separator.
fn readable(name: &str) -> String {
    name.replace('\u{1f}', ".")
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.outcome().into_response()
    }
}

impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        Refusal::internal(format_args!("SQLite: {error}"))
    }
}

impl From<iceberg::Error> for Refusal {
    fn from(error: iceberg::Error) -> Self {
        match error.kind() {
            ErrorKind::CatalogCommitConflicts => Refusal::commit_failed(error.message()),
            _ => Refusal::bad_request(error.message()),
        }
    }
}
