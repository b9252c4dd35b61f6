//! What a worker is told: always in the Iceberg error shape, never with an address or a secret of ours.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::json;

use super::upstream::{Answer, CatalogError};

const MESSAGE_CHARS_MAX: usize = 500;

/// An answer to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Reply {
    /// An error in the shape of the Iceberg REST API.
    pub(super) fn error(status: StatusCode, kind: &str, message: &str) -> Self {
        let error = json!({ "error": { "message": message, "type": kind, "code": status.as_u16() } });
        Self { status, body: error.to_string().into() }
    }

    pub(super) fn forbidden(message: &str) -> Self {
        Self::error(StatusCode::FORBIDDEN, "ForbiddenException", message)
    }

    pub(super) fn bad_request(message: &str) -> Self {
        Self::error(StatusCode::BAD_REQUEST, "BadRequestException", message)
    }

    /// The one answer that says neither yes nor no. Iceberg's own type for it, and one of its own statuses: 503 would say that
    /// nothing was done, and makes `DuckDB` 1.5.5 repeat the change and then report the number without the type.
    pub(super) fn unknown_outcome() -> Self {
        Self::error(
            StatusCode::BAD_GATEWAY,
            "CommitStateUnknownException",
            "the catalog has not said whether the change was made",
        )
    }

    pub(super) fn busy() -> Self {
        let message = "too many changes are under way";
        Self::error(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableException", message)
    }

    /// An answer of the catalog's that is no success. Of a refusal (4xx) the type and the scrubbed message pass; of trouble
    /// (5xx, or anything odd) only that there is some.
    pub(super) fn from_failure(answer: &Answer) -> Self {
        if answer.status.is_client_error() {
            // DuckDB stumbles over numbers that have no name.
            let named = answer.status.canonical_reason().is_some();
            let status = if named { answer.status } else { StatusCode::BAD_REQUEST };
            let said: Said = serde_json::from_slice(&answer.body).unwrap_or_default();
            let kind = said.error.kind.filter(|kind| is_identifier(kind));
            let message =
                said.error.message.map_or_else(|| "the catalog refused".into(), |text| scrubbed(&text));
            return Self::error(status, kind.as_deref().unwrap_or("BadRequestException"), &message);
        }
        let status = match answer.status.as_u16() {
            500 | 501 | 503 | 504 => answer.status,
            _ => StatusCode::BAD_GATEWAY,
        };
        let kind = match status {
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableException",
            _ => "InternalServerError",
        };
        Self::error(status, kind, "the catalog has a problem of its own")
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let typed = !self.body.is_empty();
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        if typed {
            let json = header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
        }
        response
    }
}

impl From<CatalogError> for Reply {
    fn from(error: CatalogError) -> Self {
        let (status, kind, message) = match error {
            CatalogError::UnknownWarehouse => {
                (StatusCode::NOT_FOUND, "NoSuchWarehouseException", "the catalog has no such warehouse")
            }
            CatalogError::Unavailable { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailableException",
                "the catalog is not available",
            ),
            CatalogError::LoginRefused { .. } => {
                (StatusCode::BAD_GATEWAY, "InternalServerError", "the catalog does not accept this server")
            }
            CatalogError::Unusable { .. } => (
                StatusCode::BAD_GATEWAY,
                "InternalServerError",
                "the catalog gave an answer that is of no use",
            ),
        };
        Self::error(status, kind, message)
    }
}

#[derive(Default, Deserialize)]
struct Said {
    #[serde(default)]
    error: SaidError,
}

#[derive(Default, Deserialize)]
struct SaidError {
    message: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

fn is_identifier(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The text without addresses and without end.
fn scrubbed(text: &str) -> String {
    let mut clean = String::new();
    for piece in text.split_inclusive(|c: char| c.is_whitespace() || "\"'`()<>[]{},".contains(c)) {
        if piece.contains("://") {
            clean.push_str("[address]");
            clean.extend(piece.chars().last().filter(|last| !last.is_alphanumeric() && *last != '/'));
        } else {
            clean.push_str(piece);
        }
    }
    clean.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: u16, body: &str) -> String {
        let answer = Answer::new(StatusCode::from_u16(status).unwrap(), body.to_owned());
        let reply = Reply::from_failure(&answer);
        format!("{} {}", reply.status.as_u16(), String::from_utf8_lossy(&reply.body))
    }

    #[test]
    fn a_refusal_passes_without_its_addresses() {
        let body = r#"{"error":{"message":"see http://10.0.0.7:8181/x, (s3://b/k) for t","type":"NoSuchTable","code":404,"stack":["at http://10.0.0.7"]}}"#;
        let said = failure(404, body);
        assert!(said.contains("see [address], ([address]) for t") && said.contains("NoSuchTable"), "{said}");
        assert!(!said.contains("10.0.0.7"), "{said}");
    }

    #[test]
    fn trouble_is_told_in_our_own_words() {
        for body in
            ["", "<html>nginx at 10.0.0.7", r#"{"error":{"message":"pg://u:p@h","type":"X","code":500}}"#]
        {
            let said = failure(500, body);
            assert!(said.starts_with("500 ") && said.contains("a problem of its own"), "{said}");
            assert!(!said.contains("10.0.0.7") && !said.contains("u:p"), "{said}");
        }
        assert!(failure(302, "").starts_with("502 "));
        assert!(failure(599, "").starts_with("502 "));
        assert!(failure(499, "").starts_with("400 "));
    }
}
