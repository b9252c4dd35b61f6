//! Every request that changes something goes through here: its idempotency key, and that it runs to its end.

use std::sync::Arc;

use axum::http::HeaderMap;

use super::App;
use crate::Warehouse;
use crate::database::{Outcome, Ticket};
use crate::refusal::Refusal;

const HEADER: &str = "idempotency-key";
const KEY_BYTES_MAX: usize = 128;

/// A change under way.
pub(super) struct Change {
    pub(super) app: Arc<App>,
    pub(super) warehouse: Warehouse,
    /// To be settled in the transaction that makes the change.
    pub(super) ticket: Ticket,
}

/// Runs `work` and answers with its outcome, or with the one that the request's key already has.
///
/// It runs on a task of its own: a client that hangs up must not leave a change half way, written but not settled.
pub(super) async fn run<F>(
    app: Arc<App>,
    headers: &HeaderMap,
    prefix: &str,
    work: impl FnOnce(Change) -> F + Send + 'static,
) -> Result<Outcome, Refusal>
where
    F: Future<Output = Result<Outcome, Refusal>> + Send,
{
    let key = key(headers)?;
    let prefix = prefix.to_owned();
    let task = tokio::spawn(async move {
        let _turn = app.changes.acquire().await.map_err(Refusal::internal)?;
        let warehouse = app.warehouse(&prefix).await?;
        let ticket = Ticket { warehouse: warehouse.id, key };
        if let Some(outcome) = app.database.earlier(&ticket).await? {
            return Ok(outcome);
        }
        match work(Change { app: app.clone(), warehouse, ticket: ticket.clone() }).await {
            Err(refusal) if refusal.is_settled() && ticket.key.is_some() => {
                let settled = app.database.settle(&ticket, move |_| Ok((refusal.outcome(), ()))).await?;
                Ok(settled.outcome)
            }
            other => other,
        }
    });
    task.await.map_err(Refusal::internal)?
}

fn key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(HEADER) else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= KEY_BYTES_MAX => Ok(Some(key.to_owned())),
        _ => Err(Refusal::bad_request(format!(
            "an idempotency key has 1 to {KEY_BYTES_MAX} visible characters"
        ))),
    }
}
