//! How many warehouses this machine holds: more and more of them under a stated mix of queries, until a limit is reached.
//!
//! Each number of warehouses gets a server of its own in this process, with real sockets and real workers, and so begins cold. The
//! clients run here, too, and share the machine with what they measure. Leaves nothing: no process, no folder, no socket.

mod decide;
mod latency;
mod measure;
mod mix;
mod report;
mod site;
mod traffic;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::decide::{End, Limits, counts, recommend};
use self::latency::Latencies;
use self::measure::Usage;
use self::mix::Kind;
pub use self::mix::Mix;
use self::report::{Report, Step, WorkerMemory};
use self::site::Site;
use self::traffic::{Plan, Tally, Traffic};
use crate::pool::Gauges;
use crate::server::Server;

/// How often it is measured what is used.
const SAMPLE: Duration = Duration::from_secs(1);
/// Until the pool has ended the workers that kept too much.
const SETTLE: Duration = Duration::from_millis(500);
/// Besides what all first queries may take by their limit.
const ATTACH_MARGIN: Duration = Duration::from_secs(30);

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What is tried, and how far.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A configuration file (TOML) with a catalog and a store of its own. Without it: an embedded catalog in a temporary folder,
    /// with as many warehouses as are needed.
    #[arg(long)]
    config: Option<PathBuf>,
    /// With `--config`: the workspaces whose warehouses are asked, separated by commas.
    #[arg(long, value_delimiter = ',', requires = "config")]
    workspaces: Vec<String>,
    /// With `--config`: a file that names them, one a line.
    #[arg(long, requires = "config", conflicts_with = "workspaces")]
    workspaces_file: Option<PathBuf>,
    /// With `--config`: the table to read in each, as in SQL. Without it: the first that a warehouse has.
    #[arg(long, requires = "config")]
    table: Option<String>,
    /// Shares of the queries: `small` reads no table, `table` aggregates at most 10000 rows, `heavy` goes through them 100 times.
    #[arg(long, default_value_t = Mix::default())]
    mix: Mix,
    /// Clients that keep the mix running, each with one query at a time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    clients: u16,
    /// The most warehouses.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    warehouses_max: u32,
    /// How long the mix is measured when every warehouse has had its first query, seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds_per_step: u64,
    /// What server and workers may use together, MiB. Without it: `pool.memory_mb`.
    #[arg(long)]
    memory_mb_max: Option<u64>,
    /// What a first query may take at the 99th percentile, milliseconds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=30_000))]
    first_p99_ms_max: u64,
    /// Descriptors that the process of server and clients may have. Without it: nine tenths of what the system allows it.
    #[arg(long)]
    fds_max: Option<u64>,
    /// Queries that may fail, of a hundred.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=100))]
    errors_percent_max: u8,
    /// Print one JSON object a step and one for the recommendation.
    #[arg(long)]
    json: bool,
}

/// Tries more and more warehouses until a limit is reached or `stop` is cancelled, and tells what to set.
pub async fn run(options: &Options, stop: &CancellationToken) -> Result<(), Failed> {
    let report = Report::new(options.json);
    let mut site = Site::open(options).await?;
    let limits = limits(options, &site);
    report.head(&heading(options, &site, &limits))?;
    let trial = Trial { options, limits, report: &report, stop };
    let mut held = None;
    let mut rest = counts(limits.warehouses_max);
    let ended = loop {
        let Some(count) = rest.next() else {
            break End::new("warehouses_max", format!("all {} warehouses held", limits.warehouses_max));
        };
        let seen = match trial.step(&mut site, count).await {
            Ok(seen) => seen,
            Err(end) => break end,
        };
        report.step(&seen)?;
        match &seen.broken {
            Some(end) => break end.clone(),
            None => held = Some(seen),
        }
    };
    let failure = (ended.limit == "failed" || held.is_none()).then(|| ended.text.clone());
    report.end(&recommend(held.as_ref(), &limits, site.budget(), ended))?;
    failure.map_or(Ok(()), |text| Err(text.into()))
}

/// What all steps share.
struct Trial<'t> {
    options: &'t Options,
    limits: Limits,
    report: &'t Report,
    stop: &'t CancellationToken,
}

impl Trial<'_> {
    /// So many warehouses: made ready, then asked, on a server that has never seen them.
    async fn step(&self, site: &mut Site, count: usize) -> Result<Step, End> {
        let bar = self.report.begin(format!("{count} warehouses: making them ready"), count);
        let tenants = site.tenants(count, self.stop, &bar).await?;
        let clients = usize::from(self.options.clients);
        let attaching = std::thread::available_parallelism().map_or(1, usize::from).min(count);
        let settings = site
            .settings(count, clients + attaching)
            .map_err(|faults| End::new("settings", format!("{count} warehouses: {faults}")))?;
        let workers_max = settings.pool.workers_max.unwrap_or(count).min(count);
        // If they took longer together, too many would be above their limit.
        let attach_ms = self.limits.first_p99_ms_max * count as u64 / attaching as u64;
        let work = async |server: &Server, url: &str| {
            let traffic = Traffic::new(Plan {
                url: url.to_owned(),
                tenants,
                mix: self.options.mix,
                clients,
                attaching,
                attach_max: Duration::from_millis(attach_ms) + ATTACH_MARGIN,
                mix_seconds: self.options.seconds_per_step,
            })?;
            let (mut peak, broken) = self.observed(server, &traffic, count).await?;
            sleep(SETTLE).await;
            let kept = usage(server).await?;
            peak.raise(&kept);
            let counted = told(&traffic.take(), &kept, server.pool().gauges());
            let (memory_mb, fds) = (mb(peak.all_kb), peak.fds);
            let mut seen = Step { warehouses: count, workers_max, memory_mb, fds, ..counted };
            seen.broken = broken.or_else(|| self.limits.step(&seen));
            Ok(seen)
        };
        site.serve(settings, self.stop, work).await
    }

    /// Runs the traffic, and ends it where more is used than may be. Returns the highest that was seen.
    async fn observed(
        &self,
        server: &Server,
        traffic: &Arc<Traffic>,
        count: usize,
    ) -> Result<(Usage, Option<End>), Failed> {
        let mut peak = Usage::default();
        let mut run = std::pin::pin!(traffic.run(self.report));
        loop {
            let sample = async {
                sleep(SAMPLE).await;
                usage(server).await
            };
            tokio::select! {
                () = &mut run => return Ok((peak, None)),
                usage = sample => peak.raise(&usage?),
            }
            let broken = self.limits.usage(count, mb(peak.all_kb), peak.fds);
            if broken.is_some() {
                return Ok((peak, broken));
            }
        }
    }
}

async fn usage(server: &Server) -> std::io::Result<Usage> {
    let workers = server.pool().pids();
    tokio::task::spawn_blocking(move || Usage::now(&workers)).await.map_err(std::io::Error::other)?
}

/// What was counted, as it is told.
// Counts of queries, and kB of one machine, are small numbers for a double.
#[allow(clippy::cast_precision_loss)]
fn told(tally: &Tally, kept: &Usage, gauges: Gauges) -> Step {
    let mut warm = Latencies::default();
    tally.warm.iter().for_each(|kind| warm.merge(kind));
    let warm_ms = warm.spread();
    let by_kind = Kind::ALL.into_iter().zip(&tally.warm).map(|(kind, took)| (kind.name(), took.spread()));
    let seconds = tally.mix_time.as_secs_f64();
    let workers = kept.workers_kb.len();
    let worker_mb = WorkerMemory {
        mean: mb(kept.workers_kb.iter().sum()) / workers.max(1) as f64,
        max: mb(kept.workers_kb.iter().max().copied().unwrap_or(0)),
        kind: kept.kind,
    };
    Step {
        workers,
        worker_mb,
        server_mb: mb(kept.server_kb),
        first_ms: tally.first.spread(),
        warm_ms,
        warm_ms_by_kind: by_kind.collect(),
        queries_per_second: if seconds > 0.0 { warm_ms.count as f64 / seconds } else { 0.0 },
        errors: tally.errors.clone(),
        evictions: gauges.evictions,
        starts: gauges.starts,
        ..Step::default()
    }
}

#[allow(clippy::cast_precision_loss)] // as above
fn mb(kb: u64) -> f64 {
    kb as f64 / 1024.0
}

fn limits(options: &Options, site: &Site) -> Limits {
    let asked = usize::try_from(options.warehouses_max).unwrap_or(usize::MAX);
    Limits {
        warehouses_max: asked.min(site.warehouses_max()),
        memory_mb_max: options.memory_mb_max.unwrap_or(site.budget().memory_mb),
        first_p99_ms_max: options.first_p99_ms_max,
        fds_max: options.fds_max.unwrap_or_else(|| measure::fds_allowed() / 10 * 9),
        errors_percent_max: options.errors_percent_max,
    }
}

fn heading(options: &Options, site: &Site, limits: &Limits) -> String {
    let Limits { warehouses_max, memory_mb_max, first_p99_ms_max, fds_max, errors_percent_max } = limits;
    format!(
        "{}; {} clients with {}, {} s a step\nuntil {warehouses_max} warehouses, {memory_mb_max} MiB, {first_p99_ms_max} ms for a \
         first query (p99), {fds_max} descriptors, or more than {errors_percent_max} % of queries failing",
        site.describe(),
        options.clients,
        options.mix,
        options.seconds_per_step,
    )
}
