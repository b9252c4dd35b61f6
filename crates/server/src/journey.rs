//! A query's journey, aloud.

use std::sync::Arc;
use std::time::Duration;

use duck_contract::worker::{Statement, TextLimits};
use duck_contract::{QueryRequest, StatementRequest};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::auth::Auth;
use crate::fault::Fault;
use crate::governance::{Governance, Permit, Wish};
use crate::limits::{Limits, Slot};
use crate::pool::Pool;
use crate::query::{self, Answer, Entry, Failed, Register};
use crate::statements::{Statements, Submitted};

/// Ceilings of one query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Rows in one answer.
    pub rows_max: u64,
    /// From arrival to the last byte, milliseconds; also what holds when the request says nothing.
    pub timeout_ms_max: u64,
    /// From the interrupt to the end of a worker that does not stop, milliseconds.
    pub grace_ms: u64,
    /// What a statement's text may be.
    pub text: TextLimits,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { rows_max: 100_000, timeout_ms_max: 300_000, grace_ms: 1_000, text: TextLimits::default() }
    }
}

impl Settings {
    /// Everything that is wrong with the settings. The text's upper ends are where reading it begins to cost seconds, or the stack.
    pub fn faults(&self) -> Vec<String> {
        let text = &self.text;
        let limits = [
            ("text.sql_bytes_max", text.sql_bytes_max, 16 << 20),
            ("text.nesting_max", text.nesting_max, 1_000),
            ("text.operators_max", text.operators_max, 1_000),
            ("text.arrows_max", text.arrows_max, 20),
            ("text.branches_max", text.branches_max, 50_000),
        ];
        let wrong = limits.into_iter().filter(|(_, value, most)| *value == 0 || value > most);
        let mut faults: Vec<String> =
            wrong.map(|(name, _, most)| format!("query.{name}: from 1 to {most}")).collect();
        for (name, value) in [("rows_max", self.rows_max), ("timeout_ms_max", self.timeout_ms_max)] {
            if value == 0 {
                faults.push(format!("query.{name}: at least 1"));
            }
        }
        faults
    }
}

/// The stages in their order.
pub struct Journey {
    /// Who is asking.
    pub auth: Auth,
    /// What they may do, and where.
    pub governance: Governance,
    /// May they run now.
    pub limits: Limits,
    /// On what.
    pub pool: Pool,
    /// What is here now.
    pub register: Register,
    /// What was sent to be kept.
    pub statements: Statements,
    /// Ceilings.
    pub settings: Settings,
}

impl Journey {
    /// Verify, govern, admit, lease, run. `watched`: somebody may ask how far it is.
    pub async fn run(
        &self,
        authorization: Option<&str>,
        id: &str,
        watched: bool,
        arrived: Instant,
        ask: QueryRequest,
    ) -> Result<Answer, Fault> {
        let deadline = self.deadline(arrived, ask.timeout_ms);
        let permit = self.permit(authorization, &ask)?;
        let entry = self.register.enter(&permit, id)?;
        let statement = self.statement(id, watched, ask);
        let stopped = entry.stopped();
        let answer = async {
            let slot = self.limits.admit(&permit, deadline).await?;
            self.proceed((entry, slot), &permit, &statement, deadline).await
        };
        unless(stopped, answer).await
    }

    /// Verify, govern, and the rest without whoever asks: the id under which the answer will be kept.
    pub fn submit(
        self: &Arc<Self>,
        authorization: Option<&str>,
        sent_by: &str,
        arrived: Instant,
        ask: StatementRequest,
    ) -> Result<String, Fault> {
        let deadline = self.deadline(arrived, ask.query.timeout_ms);
        let permit = self.permit(authorization, &ask.query)?;
        let pending = match self.statements.submit(&permit, sent_by, &ask)? {
            Submitted::Known(id) => return Ok(id),
            Submitted::New(pending) => pending,
        };
        let (journey, id) = (self.clone(), pending.id().to_owned());
        let entry = self.register.enter(&permit, &id)?;
        let statement = self.statement(&id, true, ask.query);
        let stopped = entry.stopped();
        let answer = async move {
            // Nobody waits for this one, so it can wait for its turn as long as it has time.
            let slot = journey.limits.admit_by(&permit, deadline).await?;
            journey.proceed((entry, slot), &permit, &statement, deadline).await
        };
        pending.keep(unless(stopped, answer));
        Ok(id)
    }

    fn permit(&self, authorization: Option<&str>, ask: &QueryRequest) -> Result<Permit, Fault> {
        let caller = self.auth.verify(authorization)?;
        let permit = self.governance.permit(&caller, wish(ask))?;
        tracing::info!(
            warehouse = permit.warehouse.name(),
            subject = caller.subject(),
            role = permit.role.as_str(),
            "admitted"
        );
        Ok(permit)
    }

    /// Lease, run; once more where another's doing was in the way.
    async fn proceed(
        &self,
        held: (Entry, Slot),
        permit: &Permit,
        statement: &Statement,
        deadline: Instant,
    ) -> Result<Answer, Fault> {
        let grace = Duration::from_millis(self.settings.grace_ms);
        let lease = self.pool.lease(permit, deadline).await?;
        let (entry, slot) = match query::run(held, lease, statement, deadline, grace).await {
            Ok(answer) => return Ok(answer),
            Err(Failed::Fault(fault)) => return Err(fault),
            Err(Failed::Bystander(entry, slot, fault)) => {
                tracing::warn!(cause = fault.chain(), "its engine ended by another's doing: once more");
                (entry, slot)
            }
        };
        let lease = self.pool.lease(permit, deadline).await?;
        query::run((entry, slot), lease, statement, deadline, grace).await.map_err(Fault::from)
    }

    /// Makes a warehouse's worker ready, for queries to come.
    pub async fn warm(&self, permit: &Permit) -> Result<(), Fault> {
        let deadline = self.deadline(Instant::now(), None);
        let _slot = self.limits.admit(permit, deadline).await?;
        self.pool.lease(permit, deadline).await.map(|_| ())
    }

    fn deadline(&self, arrived: Instant, timeout_ms: Option<u64>) -> Instant {
        let ms = timeout_ms.unwrap_or(u64::MAX).min(self.settings.timeout_ms_max);
        arrived + Duration::from_millis(ms)
    }

    fn statement(&self, id: &str, watched: bool, ask: QueryRequest) -> Statement {
        Statement {
            id: id.to_owned(),
            sql: ask.sql,
            params: ask.params,
            format: ask.format,
            watched,
            text: self.settings.text,
            rows_max: ask.max_rows.unwrap_or(u64::MAX).min(self.settings.rows_max),
        }
    }
}

/// The answer, or that somebody stopped it.
async fn unless(
    stopped: impl Future<Output = ()>,
    answer: impl Future<Output = Result<Answer, Fault>>,
) -> Result<Answer, Fault> {
    tokio::select! {
        answer = answer => answer,
        () = stopped => Err(query::cancelled()),
    }
}

fn wish(ask: &QueryRequest) -> Wish<'_> {
    Wish {
        warehouse: ask.warehouse.as_deref(),
        workspace: ask.workspace_id.as_deref(),
        writes: ask.allow_writes,
    }
}
