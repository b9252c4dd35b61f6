//! What a handler takes out of a request; a request that does not have it is refused in the specification's shape.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// The decoded segments of the path that have a name.
pub(super) struct Segments<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let found = Path::<T>::from_request_parts(parts, state).await;
        found.map(|Path(found)| Segments(found)).map_err(|error| Refusal::bad_request(error.body_text()))
    }
}

/// What stands behind the question mark.
pub(super) struct Words<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Words<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let found = Query::<T>::from_request_parts(parts, state).await;
        found.map(|Query(found)| Words(found)).map_err(|error| Refusal::bad_request(error.body_text()))
    }
}

/// The whole body, unread. Whatever its `Content-Type` says, it is taken for JSON.
pub(super) struct Body(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        Bytes::from_request(request, state).await.map(Body).map_err(|error| {
            if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
                Refusal::too_large()
            } else {
                Refusal::bad_request(error.body_text())
            }
        })
    }
}
