//! On what: (warehouse, role) → a leased worker.
//!
//! Given a [`Permit`] and an errand, hands on a [`Lease`]: a hit, an attach under way that is joined, or a start. Never more workers than the
//! ceiling, never more that work than there is memory for, never two for one key, never ends a worker that is leased. A start is
//! detached from the request that wanted it: when that client gives up, the next one finds the worker.

mod forge;
mod install;
mod machine;
mod numbers;
mod nursery;
mod settings;
mod spares;
mod state;
mod usage;
mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::worker::{Cell, Spec};
use duck_contract::{Code, Role};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use self::forge::{Forge, Ports};
pub use self::install::probe;
pub use self::machine::Machine;
use self::numbers::{Number, Numbers};
pub use self::nursery::Start;
use self::nursery::{Nursery, Recipe};
use self::settings::Allowance;
pub use self::settings::{Class, Settings, WorkerSettings};
use self::spares::Spares;
pub use self::state::Gauges;
use self::state::{Ceilings, State, Step};
pub(crate) use self::worker::{Outgrown, Worker};
use crate::doors::{Errand, OnErrand, Place, Visitor};
use crate::fault::Fault;
use crate::governance::Permit;
use crate::limits::Turn;

/// How often idle and outgrown workers are looked for.
const ROUND: Duration = Duration::from_millis(100);
/// So many rounds apart even those are looked at that have long been idle.
const ROUNDS_APART: usize = 10;
/// How long a burst is told what the last start has failed of, so that it does not hammer a broken catalog.
const GRUDGE: Duration = Duration::from_secs(1);
/// To see the process of an evicted worker end before another takes its place.
const EVICTION_MAX: Duration = Duration::from_secs(1);

/// Knows where warehouses lie in the store.
#[async_trait::async_trait]
pub trait Places: Send + Sync {
    /// Where the configuration says that a warehouse of this name would lie, if it says so.
    fn expected(&self, warehouse: &str) -> Option<Place>;

    /// The place of a warehouse; an error if there is none, or if the catalog disagrees with the configuration.
    async fn place_of(&self, warehouse: &str) -> Result<Place, Fault>;
}

/// What a worker is for: a warehouse, in a role. Readers of one warehouse share a worker. Each of its writers has one alone, so
/// that the doors know for whom a change is made; those are numbered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    warehouse: String,
    role: Role,
    number: usize,
}
type Started = watch::Receiver<Option<Result<Arc<Worker>, Fault>>>;
type Workers = State<Key, Arc<Worker>, Started, Fault>;

/// The workers. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    state: Mutex<Workers>,
    writers: Numbers,
    changed: Notify,
    nursery: Nursery,
    spares: Spares,
    forge: Forge,
    start_ms_max: u64,
    idle_bytes_max: u64,
    next_id: AtomicU64,
}

impl Pool {
    /// With no workers. Returns when the template is warm. Both settings are filled.
    pub async fn open(settings: Settings, forge: Forge) -> std::io::Result<Pool> {
        let program = install::program(&forge.settings)?;
        let extensions = install::extensions(&forge.settings, &program)?;
        let recipe = Recipe { start: forge.settings.start, program, common: forge.common(extensions) };
        let nursery = tokio::task::spawn_blocking(move || Nursery::open(recipe))
            .await
            .map_err(std::io::Error::other)??;
        let pool = Pool(Arc::new(Inner {
            state: Mutex::new(State::new(ceilings(&settings))),
            writers: Numbers::default(),
            changed: Notify::new(),
            nursery,
            spares: Spares::new(settings.spares),
            forge,
            start_ms_max: settings.start_ms_max,
            idle_bytes_max: settings.idle_mb_max << 20,
            next_id: AtomicU64::new(1),
        }));
        pool.0.fill_spares().await;
        let rounds = Arc::downgrade(&pool.0);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(ROUND);
            for whole in (0..ROUNDS_APART).map(|round| round == 0).cycle() {
                tick.tick().await;
                let Some(inner) = rounds.upgrade() else { return };
                inner.round(whole).await;
            }
        });
        Ok(pool)
    }

    /// A worker for this permit, until the deadline. What it does while it is leased, it does on this errand.
    pub async fn lease(
        &self,
        permit: &Permit,
        errand: &Arc<Errand>,
        deadline: Instant,
    ) -> Result<Lease, Fault> {
        let warehouse = permit.warehouse.name().to_owned();
        let number = match permit.role {
            Role::Reader => None,
            Role::Writer => Some(self.0.writers.take(&warehouse)),
        };
        let key = Key { warehouse, role: permit.role, number: number.as_ref().map_or(0, Number::value) };
        let allowance = self.0.forge.settings.allowance(permit.warehouse.workspace());
        let lease = tokio::time::timeout_at(deadline, self.obtain(&key, allowance)).await;
        let late = || Fault::new(Code::Timeout, "The deadline passed before an engine was ready.");
        let mut lease = lease.unwrap_or_else(|_| Err(late()))?;
        (lease.sent, lease.number) = (Some(lease.worker.sent(errand.clone())), number);
        Ok(lease)
    }

    async fn obtain(&self, key: &Key, allowance: Allowance) -> Result<Lease, Fault> {
        let mut standing = Standing { inner: &self.0, ticket: None };
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            // From here on a change is not missed, even before the await below.
            changed.as_mut().enable();
            let mut started = match self.0.step(key, allowance, &mut standing.ticket) {
                Step::Hit(worker) => return Ok(Lease::of(self.0.clone(), key.clone(), worker)),
                Step::Join(started) => started,
                Step::Refuse(fault) => return Err(fault),
                _ => {
                    changed.await;
                    continue;
                }
            };
            let outcome = started.wait_for(Option::is_some).await.ok().and_then(|r| r.clone());
            match outcome {
                // It may have been taken and evicted in between; then the next round starts another.
                Some(Ok(_)) => {}
                Some(Err(fault)) => return Err(fault),
                None => return Err(Fault::new(Code::EngineUnavailable, "No engine could be started.")),
            }
        }
    }

    /// How much there is now.
    pub fn gauges(&self) -> Gauges {
        self.0.state().gauges(Instant::now())
    }

    /// The processes of the workers that are ready.
    pub fn pids(&self) -> Vec<i32> {
        self.0.state().ready(Instant::now()).into_iter().map(|(_, _, worker, _)| worker.pid).collect()
    }

    /// Processes that wait for a warehouse.
    pub fn spares(&self) -> usize {
        self.0.spares.count()
    }

    /// Ends every worker that nobody leases, and hands out no more.
    pub fn drain(&self) {
        let ended = self.0.state().close();
        drop(ended);
        self.0.spares.close();
        self.0.nursery.retire();
        self.0.changed.notify_waiters();
    }

    /// Ends all workers and the template they come from.
    pub async fn close(&self) {
        self.drain();
        let inner = self.0.clone();
        let _ = tokio::task::spawn_blocking(move || inner.nursery.close()).await;
    }
}

fn unable(e: std::io::Error) -> Fault {
    Fault::new(Code::EngineUnavailable, "No engine could be started.").because(e)
}

fn ceilings(settings: &Settings) -> Ceilings {
    let duration = Duration::from_millis;
    Ceilings {
        workers_max: settings.workers_max.unwrap_or(1),
        memory_max: settings.working_mb() << 20,
        turn: duration(settings.turn_ms),
        idle: duration(settings.idle_ms_max),
        age: duration(settings.age_ms_max),
        statements_max: settings.statements_max,
    }
}

/// A place in the line. Left when this is dropped.
struct Standing<'p> {
    inner: &'p Inner,
    ticket: Option<u64>,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.inner.state().leave(ticket);
            self.inner.changed.notify_waiters();
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, Workers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides, and begins a start where one is due: then there is something to join.
    fn step(
        self: &Arc<Self>,
        key: &Key,
        allowance: Allowance,
        ticket: &mut Option<u64>,
    ) -> Step<Arc<Worker>, Started, Fault> {
        let memory = allowance.memory_mb_max << 20;
        let mut state = self.state();
        let step = state.want(key, memory, *ticket, Instant::now());
        *ticket = if let Step::Wait(ticket) = &step { Some(*ticket) } else { None };
        let evicted = match step {
            Step::Start => None,
            Step::Evict(victim) => Some(victim),
            other => return other,
        };
        let (sender, started) = watch::channel(None);
        state.starting(key.clone(), started.clone(), memory);
        drop(state);
        self.spares.pause();
        let (inner, key) = (self.clone(), key.clone());
        tokio::spawn(async move {
            let outcome = inner.start(&key, allowance, evicted).await.map(Arc::new);
            let outcome = inner.enter(&key, outcome);
            sender.send_replace(Some(outcome));
            inner.changed.notify_waiters();
        });
        Step::Join(started)
    }

    /// Puts what was started, or why not, where everybody finds it.
    fn enter(self: &Arc<Self>, key: &Key, outcome: Result<Arc<Worker>, Fault>) -> Result<Arc<Worker>, Fault> {
        match &outcome {
            Ok(worker) => {
                if !self.state().started(key, worker.clone(), worker.id, Instant::now()) {
                    return Err(Fault::new(Code::Draining, "The server is shutting down."));
                }
                let (inner, worker) = (Arc::downgrade(self), Arc::downgrade(worker));
                let key = key.clone();
                tokio::spawn(async move { farewell(inner, key, worker).await });
            }
            Err(fault) => {
                // A workspace that has no warehouse may get one any moment, and its first query must find it.
                let until = (fault.code != Code::UnknownWarehouse).then(|| Instant::now() + GRUDGE);
                self.state().failed(key, fault.clone(), until);
            }
        }
        outcome
    }

    async fn start(
        self: &Arc<Self>,
        Key { warehouse: name, role, .. }: &Key,
        allowance: Allowance,
        evicted: Option<Arc<Worker>>,
    ) -> Result<Worker, Fault> {
        let began = Instant::now();
        let cell = self.forge.cell(allowance);
        let process = async {
            if let Some(victim) = evicted {
                victim.kill();
                let _ = tokio::time::timeout(EVICTION_MAX, victim.ended()).await;
            }
            match self.spares.take(&cell) {
                Some(spare) => Ok((spare, true)),
                None => Ok((self.bear(cell.clone()).await.map_err(unable)?, false)),
            }
        };
        let verified = self.forge.places.place_of(name);
        let worker = if let Some(place) = self.forge.places.expected(name) {
            // The configuration's word, which the catalog has to confirm before anybody gets this worker.
            let assigned = async { self.assign(process.await?, &cell, name, *role, place).await };
            tokio::try_join!(verified, assigned)?.1
        } else {
            let (place, process) = tokio::try_join!(verified, process)?;
            self.assign(process, &cell, name, *role, place).await?
        };
        let ms = began.elapsed().as_millis();
        tracing::info!(worker = worker.id, pid = worker.pid, warehouse = %name, role = role.as_str(), ms, "worker ready");
        Ok(worker)
    }

    /// Tells the doors, and then the process, which warehouse it is for. One that has waited may have died meanwhile, without a word to
    /// anybody: then a newborn takes its place.
    async fn assign(
        &self,
        (spare, has_waited): (worker::Spare, bool),
        cell: &Cell,
        warehouse: &str,
        role: Role,
        place: Place,
    ) -> Result<Worker, Fault> {
        let spec = Spec { role, bucket: place.bucket.clone(), prefix: place.prefix.clone() };
        let visitor = || Visitor::new(warehouse, place.clone(), role);
        match spare.become_worker(cell, &spec, visitor(), self.start_ms_max).await {
            Err(fault) if has_waited && fault.code == Code::EngineUnavailable => {
                tracing::warn!(error = %fault, "a spare worker could not be used");
                let newborn = self.bear(cell.clone()).await.map_err(unable)?;
                newborn.become_worker(cell, &spec, visitor(), self.start_ms_max).await
            }
            told => told,
        }
    }

    async fn bear(&self, cell: Cell) -> std::io::Result<worker::Spare> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let pass = self.forge.passes.issue();
        worker::Spare::bear(id, &self.nursery, &self.forge.runtime, cell, pass).await
    }

    /// Replaces spares that were taken or have died.
    async fn fill_spares(&self) {
        // Every workspace without a class of its own has this one.
        let cell = self.forge.cell(self.forge.settings.allowance(""));
        while self.spares.want(&cell) {
            match self.bear(cell.clone()).await {
                Ok(spare) => self.spares.put(spare),
                Err(e) => {
                    self.spares.give_up();
                    tracing::warn!(error = %e, "no spare worker");
                    return;
                }
            }
        }
    }

    /// Ends what is idle or old or has kept too much, kills what has outgrown its limit. What has been idle for a while is looked at in a
    /// `whole` round only.
    async fn round(&self, whole: bool) {
        let now = Instant::now();
        let mut ended = self.state().expire(now);
        let ready = self.state().ready(now);
        for (key, id, worker, idle) in ready {
            let Some(idle) = idle else {
                worker.kill_if_outgrown();
                continue;
            };
            if (whole || idle < 2 * ROUND)
                && worker.memory_bytes().is_some_and(|bytes| bytes > self.idle_bytes_max)
            {
                // It may have been leased in between; then it is out of the pool, and ends after that.
                ended.extend(self.state().retire(&key, id));
            }
        }
        drop(ended);
        // Time alone changes things, too: a worker that nobody came for is held no longer.
        self.changed.notify_waiters();
        self.fill_spares().await;
    }
}

/// Takes a worker out of the pool when its process has ended.
async fn farewell(inner: std::sync::Weak<Inner>, key: Key, worker: std::sync::Weak<Worker>) {
    let Some(end) = worker.upgrade().map(|w| w.ended()) else { return };
    end.await;
    let Some(inner) = inner.upgrade() else { return };
    let Some(worker) = worker.upgrade() else { return };
    let taken = inner.state().retire(&key, worker.id);
    if taken.is_some() {
        tracing::warn!(worker = worker.id, said = worker.last_words(), "a worker ended by itself");
        inner.changed.notify_waiters();
    }
}

/// A worker that is in use. It goes back to the pool when this is dropped.
pub struct Lease {
    pool: Arc<Inner>,
    key: Key,
    worker: Arc<Worker>,
    sent: Option<OnErrand>,
    number: Option<Number>,
    turn: Option<Turn>,
}

impl Lease {
    fn of(pool: Arc<Inner>, key: Key, worker: Arc<Worker>) -> Self {
        worker.leased();
        Lease { pool, key, worker, sent: None, number: None, turn: None }
    }

    /// The worker.
    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Keeps a turn as long as the worker is in use.
    pub(crate) fn hold(&mut self, turn: Turn) {
        self.turn = Some(turn);
    }

    /// Nobody gets this worker any more; it ends when the last who has it lets go.
    pub(crate) fn retire(&self) {
        let taken = self.pool.state().retire(&self.key, self.worker.id);
        drop(taken);
        self.pool.changed.notify_waiters();
    }

    /// Ends the worker now, whatever it is doing and for whom.
    pub(crate) fn kill(&self) {
        self.retire();
        self.worker.kill();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Before anybody else gets the worker.
        drop((self.sent.take(), self.number.take()));
        self.worker.returned();
        self.pool.state().returned(&self.key, self.worker.id, Instant::now());
        self.pool.changed.notify_waiters();
    }
}
