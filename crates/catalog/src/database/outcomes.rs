//! Idempotency keys: the first settled outcome of a (warehouse, key) is the outcome, for half an hour.
//!
//! It is written in the transaction of the change itself, and every change looks for it there first. So however often,
//! however concurrently a change is sent under one key, `SQLite` lets one through and the others hear what it heard.

use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{OptionalExtension as _, Transaction, params};
use uuid::Uuid;

use super::Database;
use crate::refusal::Refusal;

/// How long an outcome is replayed.
const LIFETIME_S: i64 = 30 * 60;

/// What a change was answered. Already text, so that a replay is the same to the byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: u16,
    pub(crate) body: Option<String>,
    pub(crate) etag: Option<String>,
}

impl Outcome {
    /// Done, and nothing to say.
    pub(crate) fn no_content() -> Self {
        Outcome { status: 204, body: None, etag: None }
    }

    /// Done, and this is what became of it.
    pub(crate) fn ok(body: &impl serde::Serialize) -> Result<Self, Refusal> {
        let body = serde_json::to_string(body).map_err(Refusal::internal)?;
        Ok(Outcome { status: 200, body: Some(body), etag: None })
    }
}

/// Under which warehouse and idempotency key a change was sent.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) warehouse: Uuid,
    pub(crate) key: Option<String>,
}

/// The outcome of a change, and what this very attempt made; `None` if an earlier one had made it.
#[derive(Debug)]
pub(crate) struct Settled<T> {
    pub(crate) outcome: Outcome,
    pub(crate) made: Option<T>,
}

impl Database {
    /// The outcome already known for a ticket.
    pub(crate) async fn earlier(&self, ticket: &Ticket) -> Result<Option<Outcome>, Refusal> {
        if ticket.key.is_none() {
            return Ok(None);
        }
        let ticket = ticket.clone();
        self.read(move |transaction| find(transaction, &ticket)).await
    }

    /// Runs `f` and records its outcome in one transaction, or returns the outcome that is already known.
    pub(crate) async fn settle<T: Send + 'static>(
        &self,
        ticket: &Ticket,
        f: impl FnOnce(&Transaction<'_>) -> Result<(Outcome, T), Refusal> + Send + 'static,
    ) -> Result<Settled<T>, Refusal> {
        let ticket = ticket.clone();
        self.change(move |transaction| {
            if let Some(outcome) = find(transaction, &ticket)? {
                return Ok(Settled { outcome, made: None });
            }
            let (outcome, made) = f(transaction)?;
            store(transaction, &ticket, &outcome)?;
            Ok(Settled { outcome, made: Some(made) })
        })
        .await
    }
}

fn find(transaction: &Transaction<'_>, ticket: &Ticket) -> Result<Option<Outcome>, Refusal> {
    let Some(key) = &ticket.key else { return Ok(None) };
    let outcome = transaction
        .prepare_cached(
            "SELECT status, body, etag FROM outcomes WHERE warehouse = ?1 AND key = ?2 AND expires_at > ?3",
        )?
        .query_row(params![ticket.warehouse.to_string(), key, now_s()], |row| {
            Ok(Outcome { status: row.get(0)?, body: row.get(1)?, etag: row.get(2)? })
        })
        .optional()?;
    Ok(outcome)
}

fn store(transaction: &Transaction<'_>, ticket: &Ticket, outcome: &Outcome) -> Result<(), Refusal> {
    let Some(key) = &ticket.key else { return Ok(()) };
    let now = now_s();
    transaction.prepare_cached("DELETE FROM outcomes WHERE expires_at <= ?1")?.execute([now])?;
    transaction
        .prepare_cached(
            "INSERT INTO outcomes (warehouse, key, status, body, etag, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            ticket.warehouse.to_string(),
            key,
            outcome.status,
            outcome.body,
            outcome.etag,
            now + LIFETIME_S
        ])?;
    Ok(())
}

/// Seconds since 1970, the clock that outlives a restart.
pub(super) fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket { warehouse: Uuid::nil(), key: Some("k".to_owned()) }
    }

    fn outcome(status: u16) -> Outcome {
        Outcome { status, body: None, etag: None }
    }

    #[tokio::test]
    async fn the_first_outcome_of_a_key_stays() {
        let database = Database::open(std::path::Path::new(":memory:")).unwrap();
        let first = database.settle(&ticket(), |_| Ok((outcome(204), ()))).await.unwrap();
        let second = database.settle(&ticket(), |_| Ok((outcome(409), ()))).await.unwrap();
        assert!(first.made.is_some() && second.made.is_none());
        assert_eq!(second.outcome, outcome(204));
        assert_eq!(database.earlier(&ticket()).await.unwrap(), Some(outcome(204)));
    }

    #[tokio::test]
    async fn an_expired_outcome_is_forgotten_and_removed() {
        let database = Database::open(std::path::Path::new(":memory:")).unwrap();
        database.settle(&ticket(), |_| Ok((outcome(204), ()))).await.unwrap();
        database.change(|t| Ok(t.execute("UPDATE outcomes SET expires_at = 1", [])?)).await.unwrap();
        assert_eq!(database.earlier(&ticket()).await.unwrap(), None);
        let again = database.settle(&ticket(), |_| Ok((outcome(409), ()))).await.unwrap();
        assert!(again.made.is_some());
        let rows: i64 = database
            .read(|t| Ok(t.query_row("SELECT count(*) FROM outcomes", [], |row| row.get(0))?))
            .await
            .unwrap();
        assert_eq!(rows, 1);
    }

    #[tokio::test]
    async fn a_change_that_fails_leaves_neither_itself_nor_an_outcome() {
        let database = Database::open(std::path::Path::new(":memory:")).unwrap();
        let lost = database
            .settle::<()>(&ticket(), |t| {
                t.execute("INSERT INTO warehouses VALUES ('i', 'n', 'b', 'k')", [])?;
                Err(Refusal::internal("made to fail"))
            })
            .await;
        assert_eq!(lost.unwrap_err().status.as_u16(), 500);
        assert_eq!(database.earlier(&ticket()).await.unwrap(), None);
        let rows: i64 = database
            .read(|t| Ok(t.query_row("SELECT count(*) FROM warehouses", [], |row| row.get(0))?))
            .await
            .unwrap();
        assert_eq!(rows, 0);
    }
}
