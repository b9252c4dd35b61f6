//! The only place where an error becomes HTTP.

use axum::Extension;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use duck_contract::code::PROBLEM_MEDIA_TYPE;
use duck_contract::{Code, Problem};

use super::RequestId;
use crate::fault::Fault;

/// When to try again, seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// The answer for a fault. Writes the cause to the log, and only there.
pub(super) fn answer(fault: &Fault, id: &RequestId) -> Response {
    let code = fault.code;
    if code.status() >= 500 {
        tracing::warn!(code = code.as_str(), cause = fault.chain(), "{}", fault.sentence);
    } else {
        tracing::info!(code = code.as_str(), cause = fault.chain(), "refused");
    }
    let problem = of(fault, &id.id);
    let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = (status, Json(problem)).into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_MEDIA_TYPE));
    match code {
        Code::Unauthenticated => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Code::TenantBusy
        | Code::ServerBusy
        | Code::Draining
        | Code::AuthUnavailable
        | Code::CatalogUnavailable
        | Code::StorageUnavailable
        | Code::EngineUnavailable => {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        _ => {}
    }
    answer
}

/// What a client is told of a fault, and where to look for the rest.
pub(super) fn of(fault: &Fault, request_id: &str) -> Problem {
    Problem {
        code: fault.code,
        status: fault.code.status(),
        detail: fault.sentence.clone().into_owned(),
        request_id: request_id.to_owned(),
        position: fault.position,
        write: fault.write.as_deref().cloned(),
    }
}

pub(super) async fn not_found(Extension(id): Extension<RequestId>) -> Response {
    answer(&Fault::new(Code::NotFound, "There is no such route."), &id)
}

pub(super) async fn method_not_allowed(Extension(id): Extension<RequestId>) -> Response {
    answer(&Fault::new(Code::MethodNotAllowed, "The route does not take this method."), &id)
}
