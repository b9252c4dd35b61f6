//! The statements that are here now, so that each can be seen and stopped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use duck_contract::query::{QueryInfo, QueryState};
use duck_contract::worker::Progress;
use duck_contract::{Code, Role};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fault::Fault;
use crate::governance::Permit;
use crate::pool::Worker;

/// For a worker to say how far its statements are.
const PROGRESS_MAX: Duration = Duration::from_millis(300);

/// By warehouse and id: an id means something in its own workspace only.
type Key = (String, String);

/// All statements. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Register(Arc<Inner>);

#[derive(Default)]
struct Inner {
    all: Mutex<HashMap<Key, Arc<Known>>>,
    moved: Notify,
}

/// What is known of one.
pub(crate) struct Known {
    key: Key,
    role: Role,
    began: Instant,
    bytes: AtomicU64,
    now: Mutex<Now>,
    stop: CancellationToken,
    gone: CancellationToken,
}

/// What it does at the moment.
struct Now {
    state: QueryState,
    worker: Weak<Worker>,
    /// It was sent to the worker.
    sent: Option<Instant>,
}

/// Takes the statement off the register when it is dropped.
pub(crate) struct Entry {
    register: Register,
    known: Arc<Known>,
}

impl Register {
    /// Enters a statement.
    pub(crate) fn enter(&self, permit: &Permit, id: &str) -> Result<Entry, Fault> {
        let key = (permit.warehouse.name().to_owned(), id.to_owned());
        let known = Arc::new(Known {
            key: key.clone(),
            role: permit.role,
            began: Instant::now(),
            bytes: AtomicU64::new(0),
            now: Mutex::new(Now { state: QueryState::Waiting, worker: Weak::new(), sent: None }),
            stop: CancellationToken::new(),
            gone: CancellationToken::new(),
        });
        let mut all = self.all();
        if all.contains_key(&key) {
            let sentence = "Another request of this workspace with this id is running.";
            return Err(Fault::new(Code::RequestIdTaken, sentence));
        }
        all.insert(key, known.clone());
        self.0.moved.notify_one();
        Ok(Entry { register: self.clone(), known })
    }

    /// Tells a statement to stop and waits for a while until it is gone. Whether it is; none if there is none of that id.
    pub async fn stop(&self, warehouse: Option<&str>, id: &str, patience: Duration) -> Option<bool> {
        let found = self.all().values().find(|known| known.is(warehouse, id)).cloned()?;
        found.stop.cancel();
        Some(tokio::time::timeout(patience, found.gone.cancelled()).await.is_ok())
    }

    /// Tells every statement to stop.
    pub fn stop_all(&self) {
        for known in self.all().values() {
            known.stop.cancel();
        }
    }

    /// The statements of a warehouse, the oldest first.
    pub async fn list(&self, warehouse: &str) -> Vec<QueryInfo> {
        let mut found: Vec<Arc<Known>> =
            self.all().values().filter(|known| known.key.0 == warehouse).cloned().collect();
        found.sort_by_key(|known| known.began);
        told(&found).await
    }

    /// One of a warehouse's statements.
    pub async fn one(&self, warehouse: &str, id: &str) -> Option<QueryInfo> {
        let found = self.all().get(&(warehouse.to_owned(), id.to_owned())).cloned()?;
        told(&[found]).await.pop()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all().len()
    }

    /// Completes when a statement has come, or was sent to its worker, since the last time. For one who waits.
    pub(super) async fn moved(&self) {
        self.0.moved.notified().await;
    }

    /// How many were sent to a worker that long ago. Those that wait for a slow client are among them.
    pub(super) fn going_on(&self, long: Duration) -> usize {
        let is = |known: &&Arc<Known>| known.now().sent.is_some_and(|sent| sent.elapsed() >= long);
        self.all().values().filter(is).count()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Arc<Known>>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What their workers say of them.
async fn told(found: &[Arc<Known>]) -> Vec<QueryInfo> {
    let mut workers: HashMap<u64, Arc<Worker>> = HashMap::new();
    workers.extend(found.iter().filter_map(|known| known.worker()).map(|worker| (worker.id, worker)));
    let mut progress = HashMap::new();
    for worker in workers.values() {
        if let Ok(Ok(told)) = tokio::time::timeout(PROGRESS_MAX, worker.progress()).await {
            progress.extend(told.into_iter().map(|progress| (progress.id.clone(), progress)));
        }
    }
    found.iter().map(|known| known.info(progress.get(&known.key.1))).collect()
}

impl Known {
    fn is(&self, warehouse: Option<&str>, id: &str) -> bool {
        self.key.1 == id && warehouse.is_none_or(|warehouse| self.key.0 == warehouse)
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker(&self) -> Option<Arc<Worker>> {
        self.now().worker.upgrade()
    }

    fn info(&self, progress: Option<&Progress>) -> QueryInfo {
        let worker = self.worker();
        QueryInfo {
            request_id: self.key.1.clone(),
            state: if self.stop.is_cancelled() { QueryState::Stopping } else { self.now().state },
            age_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            writes: self.role == Role::Writer,
            percent: progress.and_then(|progress| progress.percent),
            rows: progress.map_or(0, |progress| progress.rows),
            bytes: self.bytes.load(Ordering::Relaxed),
            memory_bytes: worker.and_then(|worker| worker.memory_bytes()),
        }
    }

    /// Counts what was sent.
    pub(crate) fn sent(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Entry {
    pub(crate) fn known(&self) -> Arc<Known> {
        self.known.clone()
    }

    /// Completes when somebody tells the statement to stop.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        self.known.stop.clone().cancelled_owned()
    }

    pub(super) fn runs(&self, worker: &Arc<Worker>) {
        let (worker, sent) = (Arc::downgrade(worker), Some(Instant::now()));
        *self.known.now() = Now { state: QueryState::Running, worker, sent };
        self.register.0.moved.notify_one();
    }

    pub(super) fn is(&self, state: QueryState) {
        self.known.now().state = state;
    }

    pub(super) fn role(&self) -> Role {
        self.known.role
    }

    pub(crate) fn id(&self) -> &str {
        &self.known.key.1
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.register.all().remove(&self.known.key);
        self.known.gone.cancel();
    }
}
