//! A query's journey, aloud.

use std::sync::Arc;
use std::time::Duration;

use duck_contract::query::OnConflict;
use duck_contract::worker::{Statement, TextLimits};
use duck_contract::{Code, Format, Params, QueryRequest, Role, StatementRequest};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use crate::audit::{Asked, Audit, Fate, Inserts};
use crate::auth::Auth;
use crate::fault::Fault;
use crate::governance::{Governance, Permit, Wish};
use crate::limits::{Limits, Slot};
use crate::pool::{Lease, Pool};
use crate::query::{self, Answer, Entry, Failed, Order, Register, Rows};
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
    /// What is left of each.
    pub audit: Audit,
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
        let permit = self.permit(authorization, id, arrived, &ask).await?;
        let entry = self.register.enter(&permit, id)?;
        let order = self.order(permit, id, watched, arrived, ask);
        let stopped = entry.stopped();
        let answer = async {
            let slot = self.limits.admit(&order.permit, order.deadline).await?;
            order.trail.admitted();
            self.proceed((entry, slot), &order).await
        };
        self.conclude(unless(stopped, answer).await, &order).await
    }

    /// Verify, govern, and the rest without whoever asks: the id under which the answer will be kept.
    pub async fn submit(
        self: &Arc<Self>,
        authorization: Option<&str>,
        sent_by: &str,
        arrived: Instant,
        ask: StatementRequest,
    ) -> Result<String, Fault> {
        let permit = self.permit(authorization, sent_by, arrived, &ask.query).await?;
        let pending = match self.statements.submit(&permit, sent_by, &ask)? {
            Submitted::Known(id) => return Ok(id),
            Submitted::New(pending) => pending,
        };
        let (journey, id) = (self.clone(), pending.id().to_owned());
        let entry = self.register.enter(&permit, &id)?;
        let order = self.order(permit, &id, true, arrived, ask.query);
        pending.keep(order.errand.clone(), async move {
            let stopped = entry.stopped();
            let answer = async {
                // Nobody waits for this one, so it can wait for its turn as long as it has time.
                let slot = journey.limits.admit_by(&order.permit, order.deadline).await?;
                order.trail.admitted();
                journey.proceed((entry, slot), &order).await
            };
            journey.conclude(unless(stopped, answer).await, &order).await
        });
        Ok(id)
    }

    async fn permit(
        &self,
        authorization: Option<&str>,
        id: &str,
        arrived: Instant,
        ask: &QueryRequest,
    ) -> Result<Permit, Fault> {
        let caller = self.auth.verify(authorization).await?;
        let refused = |fault: &Fault| {
            let workspace = self.governance.meant(&caller, wish(ask));
            let asked = Asked {
                request_id: id.to_owned(),
                workspace: workspace.to_owned(),
                subject: caller.subject().to_owned(),
                role: Role::Writer,
                arrived,
                rule: Some(self.governance.writes().rule_of(workspace)),
            };
            self.audit.refused(asked, statements(ask), fault.code);
        };
        let permit = self.governance.permit(&caller, wish(ask)).inspect_err(refused)?;
        tracing::info!(
            warehouse = permit.warehouse.name(),
            subject = caller.subject(),
            role = permit.role.as_str(),
            "admitted"
        );
        Ok(permit)
    }

    /// Lease, run; once more where another's doing was in the way.
    async fn proceed(&self, held: (Entry, Slot), order: &Order) -> Result<Answer, Fault> {
        let lease = self.pool.lease(&order.permit, &order.errand, order.deadline).await?;
        let (entry, slot) = match self.execute(held, lease, order).await {
            Err(Failed::Bystander(entry, slot, fault)) if order.errand.is_untouched() => {
                tracing::warn!(cause = fault.chain(), "its engine ended by another's doing: once more");
                (entry, slot)
            }
            outcome => return outcome.map_err(Fault::from),
        };
        let lease = self.pool.lease(&order.permit, &order.errand, order.deadline).await?;
        self.execute((entry, slot), lease, order).await.map_err(Fault::from)
    }

    async fn execute(&self, held: (Entry, Slot), lease: Lease, order: &Order) -> Result<Answer, Failed> {
        match order.permit.role {
            Role::Reader => query::run(held, lease, order).await,
            Role::Writer => query::write(held, lease, order, &self.limits.tables).await,
        }
    }

    /// Says what the doors saw of the changes; a workspace whose writes go wrong too often is stopped.
    async fn conclude(&self, outcome: Result<Answer, Fault>, order: &Order) -> Result<Answer, Fault> {
        let outcome = query::told(outcome, &order.errand).await;
        match &outcome {
            Ok(Answer { rows: Rows::Whole(bytes), counts, affected, .. }) => order.trail.ends(Fate {
                outcome: "ok",
                counts: *counts,
                affected: *affected,
                bytes: bytes.len() as u64,
            }),
            // Whoever carries it says how it ends.
            Ok(_) => {}
            Err(fault) => order.trail.fails(fault),
        }
        if let Err(fault) = &outcome
            && is_unhealthy(fault, order)
        {
            self.governance.writes().failed(order.permit.warehouse.workspace());
        }
        outcome
    }

    /// Makes a warehouse's worker ready, for queries to come.
    pub async fn warm(&self, permit: &Permit) -> Result<(), Fault> {
        let deadline = self.deadline(Instant::now(), None);
        let _slot = self.limits.admit(permit, deadline).await?;
        self.pool.lease(permit, &permit.errand(), deadline).await.map(|_| ())
    }

    fn deadline(&self, arrived: Instant, timeout_ms: Option<u64>) -> Instant {
        let ms = timeout_ms.unwrap_or(u64::MAX).min(self.settings.timeout_ms_max);
        arrived + Duration::from_millis(ms)
    }

    fn order(&self, permit: Permit, id: &str, watched: bool, arrived: Instant, ask: QueryRequest) -> Order {
        let deadline = self.deadline(arrived, ask.timeout_ms);
        let (errand, grace) = (permit.errand(), Duration::from_millis(self.settings.grace_ms));
        let asked = Asked {
            request_id: id.to_owned(),
            workspace: permit.warehouse.workspace().to_owned(),
            subject: permit.subject.clone(),
            role: permit.role,
            arrived,
            rule: permit.writ().map(|writ| writ.given_by().to_owned()),
        };
        let trail = self.audit.trail(asked, &errand, statements(&ask));
        let mut before = ask.statements;
        let statement = Statement {
            id: id.to_owned(),
            sql: ask.sql.or_else(|| before.pop()).unwrap_or_default(),
            before,
            params: ask.params,
            format: ask.format,
            watched,
            text: self.settings.text,
            rows_max: ask.max_rows.unwrap_or(u64::MAX).min(self.settings.rows_max),
        };
        Order { permit, errand, trail, statement, on_conflict: ask.on_conflict, deadline, grace }
    }
}

/// What the service itself writes goes the same way as anybody's, and leaves no record: else each would leave another.
#[async_trait::async_trait]
impl Inserts for Journey {
    async fn insert(&self, workspace: &str, sql: &str, parameter: Option<String>) -> Result<(), Fault> {
        let permit = self.governance.own(workspace, "audit")?;
        let id = format!("audit-{}", Uuid::now_v7());
        let entry = self.register.enter(&permit, &id)?;
        let ask = QueryRequest {
            sql: Some(sql.to_owned()),
            statements: Vec::new(),
            warehouse: None,
            workspace_id: None,
            format: Format::Json,
            max_rows: None,
            allow_writes: true,
            on_conflict: OnConflict::RetryAppends,
            params: parameter.map(|text| Params::Positional(vec![text.into()])),
            timeout_ms: None,
        };
        let order = Order { trail: Audit::untold(), ..self.order(permit, &id, false, Instant::now(), ask) };
        let answer = async {
            let slot = self.limits.admit_by(&order.permit, order.deadline).await?;
            self.proceed((entry, slot), &order).await
        };
        query::told(answer.await, &order.errand).await.map(drop)
    }
}

/// Failures that a healthy workspace's writes do not have: others' commits in the way in spite of repetitions, an outcome that nobody
/// knows.
fn is_unhealthy(fault: &Fault, order: &Order) -> bool {
    let in_the_way = order.errand.attempts() > 1 && order.errand.conflict().is_some();
    match fault.code {
        Code::CommitUnknown => true,
        Code::CommitConflict | Code::Timeout => in_the_way,
        _ => false,
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

/// What it asks for, in its order.
fn statements(ask: &QueryRequest) -> impl Iterator<Item = &str> {
    ask.statements.iter().chain(&ask.sql).map(String::as_str)
}

fn wish(ask: &QueryRequest) -> Wish<'_> {
    Wish {
        warehouse: ask.warehouse.as_deref(),
        workspace: ask.workspace_id.as_deref(),
        writes: ask.allow_writes,
    }
}
