//! Clients that ask over HTTP, as anybody does, and count what comes back.
//!
//! Each warehouse gets a first query, a few at a time; meanwhile and afterwards some clients keep the mix running on those that
//! have had theirs, each sending its next query when the last was answered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use duck_contract::Problem;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::latency::Latencies;
use super::mix::{Kind, Mix};
use super::report::Report;

/// For one query, by its own deadline; the client waits a little longer.
const QUERY_MAX: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(5);
/// Before a client asks again after an error, so that a broken server is not hammered.
const PAUSE: Duration = Duration::from_millis(100);
/// Errors that are told in words; all are counted.
const TOLD_MAX: u64 = 3;

/// Somebody who asks.
#[derive(Clone)]
pub(super) struct Tenant {
    pub(super) workspace: String,
    pub(super) token: String,
    /// What its queries of a table read.
    pub(super) table: String,
}

/// What is asked, of whom, how often, and for how long.
pub(super) struct Plan {
    pub(super) url: String,
    pub(super) tenants: Vec<Tenant>,
    pub(super) mix: Mix,
    pub(super) clients: usize,
    /// First queries at once.
    pub(super) attaching: usize,
    /// All first queries together may take so long.
    pub(super) attach_max: Duration,
    pub(super) mix_seconds: u64,
}

/// What came back.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) first: Latencies,
    /// In the order of [`Kind::ALL`].
    pub(super) warm: [Latencies; 3],
    pub(super) errors: BTreeMap<String, u64>,
    /// How long the mix ran when all warehouses had been asked.
    pub(super) mix_time: Duration,
}

/// What all clients of a step share.
pub(super) struct Traffic {
    plan: Plan,
    http: reqwest::Client,
    next_first: AtomicUsize,
    next_query: AtomicU64,
    /// Those who have had their first answer.
    attached: RwLock<Vec<usize>>,
    /// Since when every one has; from here on the mix is measured.
    all_attached: OnceLock<Instant>,
    over: AtomicBool,
    tally: Mutex<Tally>,
}

impl Traffic {
    pub(super) fn new(plan: Plan) -> reqwest::Result<Arc<Traffic>> {
        let http = reqwest::Client::builder().no_proxy().timeout(QUERY_MAX + PATIENCE).build()?;
        Ok(Arc::new(Traffic {
            plan,
            http,
            next_first: AtomicUsize::new(0),
            next_query: AtomicU64::new(0),
            attached: RwLock::default(),
            all_attached: OnceLock::new(),
            over: AtomicBool::new(false),
            tally: Mutex::default(),
        }))
    }

    /// Runs the plan. Dropping this ends every client.
    pub(super) async fn run(self: &Arc<Self>, report: &Report) {
        let warehouses = self.plan.tenants.len();
        let bar = report.begin(format!("{warehouses} warehouses: first queries"), warehouses);
        let mut clients = JoinSet::new();
        for _ in 0..self.plan.clients {
            clients.spawn(self.clone().mix());
        }
        let mut attaching = JoinSet::new();
        for _ in 0..self.plan.attaching {
            attaching.spawn(self.clone().attach(bar.clone()));
        }
        let attach_until = Instant::now() + self.plan.attach_max;
        let all = timeout_at(attach_until, async { while attaching.join_next().await.is_some() {} }).await;
        drop(attaching);
        if all.is_err() {
            self.count("not_attached_in_time", "the first queries took too long together");
        }
        let began = Instant::now();
        let _ = self.all_attached.set(began);
        let seconds = self.plan.mix_seconds;
        let bar =
            report.begin(format!("{warehouses} warehouses: the mix"), usize::try_from(seconds).unwrap_or(0));
        for second in 1..=seconds {
            sleep_until(began + Duration::from_secs(second)).await;
            bar.inc(1);
        }
        self.over.store(true, Ordering::Relaxed);
        self.tally().mix_time = began.elapsed();
        // The last answers, each of which has its deadline.
        while clients.join_next().await.is_some() {}
    }

    /// Gives away what was counted.
    pub(super) fn take(&self) -> Tally {
        std::mem::take(&mut self.tally())
    }

    async fn attach(self: Arc<Self>, bar: ProgressBar) {
        loop {
            let index = self.next_first.fetch_add(1, Ordering::Relaxed);
            let Some(tenant) = self.plan.tenants.get(index) else { return };
            if let Some(took) = self.ask(tenant, Kind::Table).await {
                self.tally().first.add(took);
                self.attached.write().unwrap_or_else(PoisonError::into_inner).push(index);
            }
            bar.inc(1);
        }
    }

    async fn mix(self: Arc<Self>) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next_query.fetch_add(1, Ordering::Relaxed);
            let picked = {
                let attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
                let (kind, at) = self.plan.mix.pick(number, attached.len());
                attached.get(at).map(|index| (kind, &self.plan.tenants[*index]))
            };
            let Some((kind, tenant)) = picked else {
                sleep(PAUSE).await;
                continue;
            };
            let began = Instant::now();
            match self.ask(tenant, kind).await {
                Some(took) if self.all_attached.get().is_some_and(|since| began >= *since) => {
                    self.tally().warm[kind as usize].add(took);
                }
                Some(_) => {}
                None => sleep(PAUSE).await,
            }
        }
    }

    /// How long it took until the whole answer was there. What fails is counted, and nothing is returned.
    async fn ask(&self, tenant: &Tenant, kind: Kind) -> Option<Duration> {
        let body =
            json!({"sql": kind.sql(&tenant.table), "format": "json", "timeout_ms": QUERY_MAX.as_millis()});
        let request = self.http.post(format!("{}/query", self.plan.url)).bearer_auth(&tenant.token);
        let began = Instant::now();
        let answer = async {
            let answer = request.json(&body).send().await?;
            let status = answer.status();
            Ok::<_, reqwest::Error>((status, answer.bytes().await?))
        };
        let name = &tenant.workspace;
        match answer.await {
            Ok((status, _)) if status.is_success() => return Some(began.elapsed()),
            Ok((status, body)) => match serde_json::from_slice::<Problem>(&body) {
                Ok(problem) => self.count(problem.code.as_str(), &format!("{name}: {}", problem.detail)),
                Err(_) => self.count("no_problem", &format!("{name}: {status} without a problem")),
            },
            Err(e) if e.is_timeout() => self.count("no_answer_in_time", &format!("{name}: {e}")),
            Err(e) => self.count("connection", &format!("{name}: {e}")),
        }
        None
    }

    fn count(&self, code: &str, words: &str) {
        let mut tally = self.tally();
        let count = tally.errors.entry(code.to_owned()).or_default();
        *count += 1;
        if *count <= TOLD_MAX {
            tracing::warn!(code, "{words}");
        }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
