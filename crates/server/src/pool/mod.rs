//! On what: (warehouse, role) → a leased worker.
//!
//! Given a [`Permit`], hands on a [`Lease`]: a hit, an attach under way that is joined, or a start. Never more workers than the
//! ceiling, never two for one key, never ends a worker that is leased. A start is detached from the request that wanted it: when
//! that client gives up, the next one finds the worker.

mod install;
mod nursery;
mod settings;
mod state;
mod worker;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::worker::Spec;
use duck_contract::{Code, Role};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use self::install::probe;
pub use self::nursery::Start;
use self::nursery::{Nursery, Recipe};
pub use self::settings::{Settings, WorkerSettings};
use self::state::{State, Step};
pub(crate) use self::worker::Worker;
use crate::doors::{Passes, Place, Visitor};
use crate::fault::Fault;
use crate::governance::Permit;

/// How often idle and outgrown workers are looked for.
const ROUND: Duration = Duration::from_millis(250);

/// Where the doors are, and what a worker must not reach.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// The catalog door.
    pub catalog: u16,
    /// The storage door.
    pub storage: u16,
    /// Something else that listens on loopback, for the self-test.
    pub forbidden: u16,
}

/// Everything that a start needs.
pub struct Forge {
    /// Issues the credentials.
    pub passes: Passes,
    /// Where the doors are.
    pub ports: Ports,
    /// Finds out where a warehouse lies.
    pub places: Arc<dyn Places>,
    /// What workers are told.
    pub settings: WorkerSettings,
    /// The schema that needs no name.
    pub default_schema: String,
    /// Longer than the catalog door takes to settle a change, seconds.
    pub http_timeout_s: u64,
    /// The folder for workers' directories and sockets.
    pub runtime: PathBuf,
}

/// Knows where warehouses lie in the store.
#[async_trait::async_trait]
pub trait Places: Send + Sync {
    /// The place of a warehouse; an error if there is none, or if the catalog disagrees with the configuration.
    async fn place_of(&self, warehouse: &str) -> Result<Place, Fault>;
}

/// What a worker is for.
type Key = (String, Role);
type Started = watch::Receiver<Option<Result<Arc<Worker>, Fault>>>;

/// The workers. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    state: Mutex<State<Key, Arc<Worker>, Started>>,
    changed: Notify,
    nursery: Nursery,
    forge: Forge,
    settings: Settings,
    next_id: AtomicU64,
}

impl Pool {
    /// With no workers. Returns when the template is warm.
    pub async fn open(settings: Settings, forge: Forge) -> std::io::Result<Pool> {
        let program = install::program(&forge.settings)?;
        let extensions = install::extensions(&forge.settings, &program)?;
        let WorkerSettings { start, threads, .. } = forge.settings;
        let recipe = Recipe { start, program, extensions, threads };
        let nursery = tokio::task::spawn_blocking(move || Nursery::open(recipe))
            .await
            .map_err(std::io::Error::other)??;
        let pool = Pool(Arc::new(Inner {
            state: Mutex::new(State::new(settings.workers_max)),
            changed: Notify::new(),
            nursery,
            forge,
            settings,
            next_id: AtomicU64::new(1),
        }));
        let rounds = Arc::downgrade(&pool.0);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(ROUND);
            loop {
                tick.tick().await;
                let Some(inner) = rounds.upgrade() else { return };
                inner.round();
            }
        });
        Ok(pool)
    }

    /// A worker for this permit, until the deadline.
    pub async fn lease(&self, permit: &Permit, deadline: Instant) -> Result<Lease, Fault> {
        let key = (permit.warehouse.name().to_owned(), permit.role);
        tokio::time::timeout_at(deadline, self.obtain(&key)).await.unwrap_or_else(|_| {
            Err(Fault::new(Code::Timeout, "The deadline passed before an engine was ready."))
        })
    }

    async fn obtain(&self, key: &Key) -> Result<Lease, Fault> {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            // From here on a change is not missed, even before the await below.
            changed.as_mut().enable();
            let mut started = match self.0.step(key) {
                Step::Hit(worker) => return Ok(Lease { pool: self.0.clone(), key: key.clone(), worker }),
                Step::Join(started) => started,
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

    /// Ends every worker that nobody leases, and hands out no more.
    pub fn drain(&self) {
        let ended = self.0.state().drain();
        drop(ended);
    }

    /// Ends all workers and the template they come from.
    pub async fn close(&self) {
        self.drain();
        let inner = self.0.clone();
        let _ = tokio::task::spawn_blocking(move || inner.nursery.close()).await;
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State<Key, Arc<Worker>, Started>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides, and begins a start where one is due: then there is something to join.
    fn step(self: &Arc<Self>, key: &Key) -> Step<Key, Arc<Worker>, Started> {
        let mut state = self.state();
        let evicted = match state.want(key, Instant::now()) {
            Step::Start => None,
            Step::Evict(_, victim) => Some(victim),
            other => return other,
        };
        let (sender, started) = watch::channel(None);
        state.starting(key.clone(), started.clone());
        drop(state);
        // Its end kills the process and removes its directory, which is not for the lock.
        drop(evicted);
        let (inner, key) = (self.clone(), key.clone());
        tokio::spawn(async move {
            let outcome = inner.start(&key).await.map(Arc::new);
            match &outcome {
                Ok(worker) => {
                    inner.state().started(key.clone(), worker.clone(), worker.id, Instant::now());
                    let (inner, worker) = (Arc::downgrade(&inner), Arc::downgrade(worker));
                    tokio::spawn(async move { farewell(inner, key, worker).await });
                }
                Err(_) => inner.state().failed(&key),
            }
            sender.send_replace(Some(outcome));
            inner.changed.notify_waiters();
        });
        Step::Join(started)
    }

    async fn start(&self, (name, role): &Key) -> Result<Worker, Fault> {
        let place = self.forge.places.place_of(name).await?;
        let settings = &self.forge.settings;
        let visitor = Visitor { warehouse: name.clone(), place: place.clone(), role: *role };
        let pass = self.forge.passes.issue(visitor);
        let spec = Spec {
            role: *role,
            warehouse: name.clone(),
            catalog_port: self.forge.ports.catalog,
            bearer: pass.bearer.clone(),
            storage_port: self.forge.ports.storage,
            access_key_id: pass.access_key_id.clone(),
            secret_access_key: pass.secret_access_key.clone(),
            bucket: place.bucket,
            prefix: place.prefix,
            default_schema: self.forge.default_schema.clone(),
            directory: String::new(),
            memory_bytes: settings.memory_mb << 20,
            memory_bytes_max: settings.memory_mb_max << 20,
            spill_bytes_max: settings.spill_mb_max << 20,
            http_timeout_s: self.forge.http_timeout_s,
            uid: rustix::process::geteuid().is_root().then_some(settings.uid),
            sandbox: settings.sandbox,
            forbidden_port: self.forge.ports.forbidden,
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let worker =
            Worker::start(id, &self.nursery, &self.forge.runtime, spec, pass, self.settings.start_ms_max)
                .await?;
        let ms = began.elapsed().as_millis();
        tracing::info!(worker = id, pid = worker.pid, warehouse = %name, role = role.as_str(), ms, "worker ready");
        Ok(worker)
    }

    /// Ends what is idle or old, kills what has outgrown its limit.
    fn round(&self) {
        let duration = |ms| Duration::from_millis(ms);
        let settings = &self.settings;
        let expired = self.state().expire(
            duration(settings.idle_ms_max),
            duration(settings.age_ms_max),
            settings.statements_max,
            Instant::now(),
        );
        if !expired.is_empty() {
            drop(expired);
            self.changed.notify_waiters();
        }
        let ready = self.state().ready();
        for worker in ready {
            if worker.memory_bytes().is_some_and(|bytes| bytes > settings.resident_mb_max << 20) {
                tracing::warn!(worker = worker.id, "killed: it uses more memory than it may");
                worker.kill();
            }
        }
    }
}

/// Takes a worker out of the pool when its process has ended.
async fn farewell(inner: std::sync::Weak<Inner>, key: Key, worker: std::sync::Weak<Worker>) {
    let Some((ended, id)) = worker.upgrade().map(|w| (w.ended.clone(), w.id)) else { return };
    ended.cancelled().await;
    let Some(inner) = inner.upgrade() else { return };
    let taken = inner.state().retire(&key, id);
    if let Some(worker) = taken {
        tracing::warn!(worker = id, said = worker.last_words(), "a worker ended by itself");
        inner.changed.notify_waiters();
    }
}

/// A worker that is in use. It goes back to the pool when this is dropped.
pub struct Lease {
    pool: Arc<Inner>,
    key: Key,
    worker: Arc<Worker>,
}

impl Lease {
    /// The worker.
    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
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
        self.pool.state().returned(&self.key, self.worker.id, Instant::now());
        self.pool.changed.notify_waiters();
    }
}
