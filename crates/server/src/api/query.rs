//! `POST /query`.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::BytesMut;
use duck_contract::query::{ROW_COUNT_HEADER, TRUNCATED_HEADER, WRITE_HEADER, WriteReport};
use duck_contract::{Code, QueryRequest};
use futures::StreamExt;
use serde::de::DeserializeOwned;

use super::{RequestId, Service, authorization, problem};
use crate::fault::Fault;
use crate::query::{Answer, Rows, header_of};
use crate::results::Relay;

/// To send a body.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// Statements of one transaction.
const STATEMENTS_MAX: usize = 1_000;
/// How much of a body that is too large is read all the same.
const DISCARDED_BYTES_MAX: usize = 64 << 20;

pub(super) async fn query(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match run(&service, &id, &headers, body).await {
        Ok(answer) => respond(answer),
        Err(fault) => problem::answer(&fault, &id),
    }
}

async fn run(service: &Service, id: &RequestId, headers: &HeaderMap, body: Body) -> Result<Answer, Fault> {
    service.admits()?;
    let ask: QueryRequest = read(body, service.body_bytes_max, "query").await?;
    check(&ask)?;
    service.journey.run(authorization(headers), &id.id, id.chosen, id.arrived, ask).await
}

/// The request's body, by the contract and nothing else.
pub(super) async fn read<T: DeserializeOwned>(body: Body, bytes_max: usize, what: &str) -> Result<T, Fault> {
    let late = |_| Fault::new(Code::InvalidRequest, "The body was not sent in time.");
    let bytes = tokio::time::timeout(BODY_TIME_MAX, collect(body, bytes_max)).await.map_err(late)??;
    serde_json::from_slice(&bytes)
        .map_err(|e| Fault::new(Code::InvalidRequest, format!("The body is not a {what} request: {e}.")))
}

/// What the contract's types do not say.
pub(super) fn check(ask: &QueryRequest) -> Result<(), Fault> {
    let invalid = |sentence: &'static str| Err(Fault::new(Code::InvalidRequest, sentence));
    if ask.sql.is_some() != ask.statements.is_empty() {
        return invalid("Either `sql` or `statements` says what to run.");
    }
    if ask.statements.len() > STATEMENTS_MAX {
        return invalid("`statements` holds more than 1,000 statements.");
    }
    if ask.statements.len() > 1 && ask.params.is_some() {
        return invalid("`params` go with one statement.");
    }
    if ask.timeout_ms == Some(0) {
        return Err(Fault::new(Code::InvalidRequest, "`timeout_ms` must be at least 1."));
    }
    Ok(())
}

/// What is too large is read on for a while, so that a client which writes before it reads gets its answer.
async fn collect(body: Body, bytes_max: usize) -> Result<BytesMut, Fault> {
    let mut pieces = body.into_data_stream();
    let (mut bytes, mut seen) = (BytesMut::new(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece
            .map_err(|e| Fault::new(Code::InvalidRequest, "The body was not sent to its end.").because(e))?;
        seen += piece.len();
        if seen <= bytes_max {
            bytes.extend_from_slice(&piece);
        } else if seen > DISCARDED_BYTES_MAX {
            break;
        }
    }
    if seen <= bytes_max {
        return Ok(bytes);
    }
    Err(Fault::new(Code::RequestTooLarge, format!("The body is larger than {bytes_max} bytes.")))
}

fn respond(answer: Answer) -> Response {
    let (media_type, counts, write) = (answer.format.media_type(), answer.counts, answer.write);
    let will_tell = matches!(&answer.rows, Rows::Streamed(stream) if stream.may_write());
    let mut response = Response::new(match answer.rows {
        Rows::Whole(bytes) => Body::from(bytes),
        Rows::Streamed(stream) => Body::new(Relay::new(stream)),
    });
    describe(response.headers_mut(), media_type, counts, write.as_ref());
    if will_tell {
        response.headers_mut().append(header::TRAILER, HeaderValue::from_static("x-write"));
    }
    response
}

/// What an answer is, its counts, or that they will come, and what was changed.
pub(super) fn describe(
    headers: &mut HeaderMap,
    media_type: &'static str,
    counts: Option<(u64, bool)>,
    write: Option<&WriteReport>,
) {
    if let Some(report) = write.and_then(header_of) {
        headers.insert(WRITE_HEADER, report);
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    match counts {
        Some((rows, truncated)) => {
            headers.insert(ROW_COUNT_HEADER, HeaderValue::from(rows));
            headers
                .insert(TRUNCATED_HEADER, HeaderValue::from_static(if truncated { "true" } else { "false" }));
        }
        None => {
            headers.insert(header::TRAILER, HeaderValue::from_static("x-row-count, x-truncated"));
        }
    }
}
