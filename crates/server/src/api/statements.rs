//! Statements that outlive their request: sent, looked at, fetched, ended.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use duck_contract::query::{QueryInfo, QueryState};
use duck_contract::statements::{
    OnWaitTimeout, StatementAnswer, StatementProgress, StatementResult, StatementState, StatementsAnswer,
};
use duck_contract::{Code, StatementRequest};
use serde::Deserialize;

use super::control::{patience, whose};
use super::query::{check, describe, read};
use super::status::Place;
use super::{RequestId, Service, authorization, is_request_id, problem};
use crate::fault::Fault;
use crate::statements::Seen;

/// `GET /statements/{id}?wait_ms=`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wait {
    wait_ms: u64,
}

/// Takes a statement, and waits for its end as long as the client wants.
pub(super) async fn submit(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match sent(service, &id, &headers, body).await {
        Ok(answer) => {
            let status = if answer.state.is_final() { StatusCode::OK } else { StatusCode::ACCEPTED };
            let place = HeaderValue::from_str(&format!("/statements/{}", answer.statement_id));
            let mut response = (status, Json(answer)).into_response();
            if let Ok(place) = place {
                response.headers_mut().insert(header::LOCATION, place);
            }
            response
        }
        Err(fault) => problem::answer(&fault, &id),
    }
}

async fn sent(
    service: Arc<Service>,
    id: &RequestId,
    headers: &HeaderMap,
    body: Body,
) -> Result<StatementAnswer, Fault> {
    service.admits()?;
    let ask: StatementRequest = read(body, service.body_bytes_max, "statement").await?;
    check(&ask.query)?;
    if !ask.request_id.as_deref().is_none_or(is_request_id) {
        let sentence = "`request_id` must be 1 to 64 letters, digits, `-` and `_`.";
        return Err(Fault::new(Code::InvalidRequest, sentence));
    }
    let (wait_ms, cancel) = (ask.wait_timeout_ms, ask.on_wait_timeout == OnWaitTimeout::Cancel);
    let statement = service.journey.submit(authorization(headers), &id.id, id.arrived, ask).await?;
    let seen = service.journey.statements.find(None, &statement)?;
    // A client that goes away meanwhile has said all the same what is to become of its statement.
    let waited = tokio::spawn(async move {
        if !service.journey.statements.wait(&seen, wait_ms).await && cancel {
            stop(&service, &seen).await;
        }
        let seen = service.journey.statements.find(None, &statement)?;
        Ok(told(&service, &seen).await)
    });
    let lost = |e| Fault::new(Code::Internal, "Nobody waits for the statement any more.").because(e);
    waited.await.map_err(lost)?
}

/// The caller's statements that are kept.
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Query(place): Query<Place>,
) -> Response {
    let permit = match place.permit(&service, &headers).await {
        Ok(permit) => permit,
        Err(fault) => return problem::answer(&fault, &id),
    };
    let warehouse = permit.warehouse.name();
    let running = service.journey.register.list(warehouse).await;
    let kept = service.journey.statements.list(warehouse);
    let of = |seen: &Seen| running.iter().find(|info| info.request_id == seen.facts.id);
    let statements = kept.iter().map(|seen| answer(seen, of(seen))).collect();
    Json(StatementsAnswer { statements }).into_response()
}

/// How a statement is, now or when it has ended.
pub(super) async fn one(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Path(statement): Path<String>,
    wait: Result<Query<Wait>, QueryRejection>,
) -> Response {
    let look = async {
        let Query(wait) = wait.map_err(|e| {
            Fault::new(Code::InvalidRequest, "`wait_ms` is a number of milliseconds.").because(e)
        })?;
        let warehouse = whose(&service, &headers).await?;
        let find = || service.journey.statements.find(warehouse.as_deref(), &statement);
        let seen = find()?;
        if seen.outcome.is_some() {
            return Ok(answer(&seen, None));
        }
        service.journey.statements.wait(&seen, wait.wait_ms).await;
        Ok(told(&service, &find()?).await)
    };
    respond(look.await, &id)
}

/// The bytes of a statement's answer.
pub(super) async fn result(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Path(statement): Path<String>,
) -> Response {
    let fetch = async {
        let warehouse = whose(&service, &headers).await?;
        let seen = service.journey.statements.find(warehouse.as_deref(), &statement)?;
        let kept = match seen.outcome {
            Some((outcome, _)) => outcome?,
            None => return Err(Fault::new(Code::StatementRunning, "The statement has not ended yet.")),
        };
        let (media_type, counts) = (kept.format.media_type(), (kept.row_count, kept.truncated));
        let (length, write) = (HeaderValue::from(kept.bytes), kept.write.clone());
        let mut response = Response::new(Body::from_stream(kept.read().await?));
        describe(response.headers_mut(), media_type, Some(counts), write.as_ref());
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        Ok(response)
    };
    fetch.await.unwrap_or_else(|fault| problem::answer(&fault, &id))
}

/// Cancels a statement that runs; forgets one that has ended.
pub(super) async fn end(
    State(service): State<Arc<Service>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    Path(statement): Path<String>,
) -> Response {
    let end = async {
        let warehouse = whose(&service, &headers).await?;
        let find = || service.journey.statements.find(warehouse.as_deref(), &statement);
        let seen = find()?;
        if seen.outcome.is_some() {
            service.journey.statements.remove(&seen);
            return Ok::<_, Fault>(answer(&seen, None));
        }
        stop(&service, &seen).await;
        Ok(told(&service, &find()?).await)
    };
    match end.await {
        // Whoever repeats it has what they wanted.
        Err(fault) if fault.code == Code::StatementGone => StatusCode::NO_CONTENT.into_response(),
        ended => respond(ended, &id),
    }
}

fn respond(answer: Result<StatementAnswer, Fault>, id: &RequestId) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(fault) => problem::answer(&fault, id),
    }
}

/// Stops a statement as `DELETE /queries/{id}` does, and waits until that is seen.
async fn stop(service: &Service, seen: &Seen) {
    let (patience, facts) = (patience(service), &seen.facts);
    let stop = async {
        service.journey.register.stop(Some(&facts.warehouse), &facts.id, patience).await;
        service.journey.statements.wait(seen, u64::MAX).await;
    };
    // An engine that is killed is gone within this; else the answer says that the statement still runs.
    let _ = tokio::time::timeout(patience + Duration::from_millis(100), stop).await;
}

/// What is known of a statement, with its engine's word while it runs.
async fn told(service: &Service, seen: &Seen) -> StatementAnswer {
    let info = match seen.outcome {
        Some(_) => None,
        None => service.journey.register.one(&seen.facts.warehouse, &seen.facts.id).await,
    };
    answer(seen, info.as_ref())
}

fn answer(seen: &Seen, info: Option<&QueryInfo>) -> StatementAnswer {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let outcome = seen.outcome.as_ref().map(|(outcome, _)| outcome);
    let waits = info.is_some_and(|info| info.state == QueryState::Waiting);
    StatementAnswer {
        statement_id: seen.facts.id.clone(),
        request_id: seen.facts.named.as_ref().map(|(name, _)| name.clone()),
        state: match outcome {
            Some(Ok(_)) => StatementState::Succeeded,
            Some(Err(fault)) if fault.code == Code::Cancelled => StatementState::Cancelled,
            Some(Err(_)) => StatementState::Failed,
            None if waits => StatementState::Waiting,
            None => StatementState::Running,
        },
        age_ms: ms(seen.facts.began.elapsed()),
        writes: seen.facts.writes,
        progress: info.filter(|_| outcome.is_none()).map(|info| StatementProgress {
            percent: info.percent,
            rows: info.rows,
            bytes: info.bytes,
        }),
        problem: outcome
            .and_then(|outcome| outcome.as_ref().err())
            .map(|fault| problem::of(fault, &seen.facts.sent_by)),
        result: outcome.and_then(|outcome| outcome.as_ref().ok()).map(|kept| StatementResult {
            format: kept.format,
            row_count: kept.row_count,
            truncated: kept.truncated,
            bytes: kept.bytes,
        }),
        expires_in_ms: seen.outcome.as_ref().map(|(_, left)| ms(*left)),
    }
}
