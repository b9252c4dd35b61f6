//! Deadlines around every question to the store.
//!
//! Given a question and a [`Plan`], asks within the deadlines, repeats what is worth repeating within the budget, and
//! hands on an answer or a [`Fault`]. Never asks a store that has just hung.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use http::StatusCode;
use object_store::client::{HttpError, HttpErrorKind};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::breaker::{Admission, Breaker, Need, RetryBudget};
use super::settings::Limits;

/// Pause before the first second attempt; doubles after that.
const BACKOFF_MS: u64 = 50;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the storage backend did not answer in time")]
    Deadline,
    #[error("the storage backend hung a moment ago and is not asked again yet")]
    Resting,
    #[error(transparent)]
    Upstream(#[from] object_store::Error),
}

impl Fault {
    /// The HTTP status of the store's answer, where there was one. `object_store` 0.14.2 keeps it in the text alone.
    pub(super) fn status(&self) -> Option<StatusCode> {
        let Self::Upstream(error) = self else { return None };
        let text = error.to_string();
        let (_, rest) = text.split_once("status code: ")?;
        rest.get(..3)?.parse().ok()
    }

    /// The store was not reached, or hung up.
    fn is_silence(&self) -> bool {
        match self {
            Self::Deadline => true,
            Self::Resting => false,
            Self::Upstream(error) => {
                let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
                while let Some(error) = cause {
                    if let Some(error) = error.downcast_ref::<HttpError>() {
                        return matches!(error.kind(), HttpErrorKind::Connect | HttpErrorKind::Timeout);
                    }
                    cause = error.source();
                }
                false
            }
        }
    }

    /// A second attempt may end better.
    pub(super) fn is_passing(&self) -> bool {
        let Self::Upstream(error) = self else { return matches!(self, Self::Deadline) };
        match self.status() {
            Some(status) => status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS,
            None => matches!(error, object_store::Error::Generic { .. }),
        }
    }
}

/// How long and how often to ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) attempts_max: u32,
    pub(super) attempt: Duration,
    pub(super) total: Duration,
    pub(super) need: Need,
}

impl Plan {
    /// A read: two attempts within the first-byte deadline.
    pub(super) fn read(limits: &Limits) -> Self {
        let total = Duration::from_millis(limits.first_byte_ms_max);
        Self { attempts_max: 2, attempt: total, total, need: Need::Plain }
    }

    /// A read whose failure would abort the engine.
    pub(super) fn manifest(limits: &Limits) -> Self {
        Self {
            attempts_max: limits.avro_attempts_max.max(1),
            attempt: Duration::from_millis(limits.first_byte_ms_max),
            total: Duration::from_millis(limits.avro_ms_max),
            need: Need::Dire,
        }
    }

    /// A body of this size on its way to the store. Putting the same bytes twice does no harm.
    pub(super) fn body(limits: &Limits, bytes: u64) -> Self {
        let total = limits.body_deadline(bytes);
        Self { attempts_max: 2, attempt: total, total, need: Need::Plain }
    }

    /// Something that is not to be done twice.
    pub(super) fn once(ms: u64) -> Self {
        let total = Duration::from_millis(ms);
        Self { attempts_max: 1, attempt: total, total, need: Need::Plain }
    }
}

/// What is known of one store's health. All requests to the store go through here.
pub(super) struct Health {
    breaker: Mutex<Breaker>,
    budget: Mutex<RetryBudget>,
}

impl Health {
    pub(super) fn new(limits: &Limits) -> Self {
        let open_for = Duration::from_millis(limits.breaker_open_ms);
        let probe_for = Duration::from_millis(limits.first_byte_ms_max);
        Self {
            breaker: Mutex::new(Breaker::new(open_for, probe_for)),
            budget: Mutex::new(RetryBudget::full()),
        }
    }

    /// Asks, and asks again where the plan, the budget and the fault allow it. The last outcome decides about the
    /// breaker: a single lost connection is no hang.
    pub(super) async fn ask<T, F>(&self, plan: Plan, mut question: impl FnMut() -> F) -> Result<T, Fault>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let trial = Trial::begin(self, plan.need)?;
        let end = Instant::now() + plan.total;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let fault = match timeout_at(end.min(Instant::now() + plan.attempt), question()).await {
                Ok(Ok(answer)) => {
                    lock(&self.budget).earn();
                    trial.answered();
                    return Ok(answer);
                }
                Ok(Err(error)) => Fault::Upstream(error),
                Err(_) => Fault::Deadline,
            };
            let pause = Duration::from_millis(BACKOFF_MS << attempts.min(6));
            let time_left = Instant::now() + pause < end;
            if attempts < plan.attempts_max
                && fault.is_passing()
                && time_left
                && lock(&self.budget).take(plan.need)
            {
                sleep(pause).await;
                continue;
            }
            if fault.is_silence() {
                trial.hung();
            } else {
                trial.answered();
            }
            return Err(fault);
        }
    }

    /// The body with a deadline between its pieces. Only waiting for the store counts, not waiting for the worker.
    /// A body that stops ends with an error, which cuts the worker's connection.
    pub(super) fn watch(
        self: Arc<Self>,
        body: BoxStream<'static, object_store::Result<Bytes>>,
        idle: Duration,
    ) -> BoxStream<'static, Result<Bytes, Fault>> {
        futures::stream::try_unfold((self, body), move |(health, mut body)| async move {
            match timeout(idle, body.next()).await {
                Ok(Some(piece)) => Ok(Some((piece?, (health, body)))),
                Ok(None) => Ok(None),
                Err(_) => {
                    lock(&health.breaker).hung(Instant::now());
                    Err(Fault::Deadline)
                }
            }
        })
        .inspect_err(|fault| tracing::warn!(%fault, "the storage backend stopped in the middle of an answer"))
        .boxed()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request's permission to ask. Dropped without an outcome, it makes room for another probe.
struct Trial<'a> {
    health: &'a Health,
    admission: Admission,
    settled: bool,
}

impl<'a> Trial<'a> {
    /// A dire need is always let in: one slow answer must not abort every engine that reads a manifest just then.
    fn begin(health: &'a Health, need: Need) -> Result<Self, Fault> {
        let admitted = lock(&health.breaker).admit(Instant::now());
        let dire = (need == Need::Dire).then_some(Admission::Probe);
        let admission = admitted.or(dire).ok_or(Fault::Resting)?;
        Ok(Self { health, admission, settled: false })
    }

    fn answered(mut self) {
        self.settled = true;
        lock(&self.health.breaker).answered(self.admission);
    }

    fn hung(mut self) {
        self.settled = true;
        lock(&self.health.breaker).hung(Instant::now());
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if !self.settled {
            lock(&self.health.breaker).abandoned(self.admission, Instant::now());
        }
    }
}
