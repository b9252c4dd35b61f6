//! Three thousand first queries over fifty warehouses where only eight workers may be: what grows, and what gets slower.

use std::time::Duration;

use tokio::time::Instant;

use crate::Failed;
use crate::table::{self, mb, ms, quantile};
use crate::usage::{self, kb};
use crate::world::{Server, Site};

const WAREHOUSES: usize = 50;
const CEILING: usize = 8;
const CYCLES: usize = 3_000;
const PART: usize = 500;

pub(crate) async fn measure() -> Result<(), Failed> {
    let site = Site::local()?;
    let workspaces: Vec<String> = (0..WAREHOUSES).map(|i| format!("churn{i}")).collect();
    let server = site.start(&format!("[pool]\nworkers_max = {CEILING}")).await?;
    server.found(&workspaces, 1_000).await?;
    let mut client = server.client().await?;
    let mut rows = Vec::new();
    let mut all = Vec::with_capacity(CYCLES);
    for part in 0..CYCLES / PART {
        let mut times = Vec::with_capacity(PART);
        for cycle in 0..PART {
            // One after the other: each was evicted 42 queries ago.
            let workspace = &workspaces[(part * PART + cycle) % WAREHOUSES];
            let request = Server::query(workspace, "SELECT count(*), sum(i) FROM lake.datasets.t");
            let began = Instant::now();
            client.ask(&request).await?;
            times.push(began.elapsed());
        }
        rows.push(row(&server, &site, part, &mut times).await?);
        all.push(quantile(&mut times, 0.99));
    }
    table::print(
        &format!("churn: {CYCLES} first queries over {WAREHOUSES} warehouses, a ceiling of {CEILING}"),
        &[
            "queries",
            "p50 ms",
            "p99 ms",
            "front RSS MB",
            "front fds",
            "processes",
            "files of workers",
            "starts",
            "evictions",
            "logins",
        ],
        &rows,
    )?;
    let (first, last) = (all.first().copied().unwrap_or_default(), all.last().copied().unwrap_or_default());
    table::say(&format!("p99 of the last part: {:.2} × that of the first.\n", ratio(last, first)))
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

async fn row(
    server: &Server,
    site: &Site,
    part: usize,
    times: &mut [Duration],
) -> Result<Vec<String>, Failed> {
    let front = server.pid();
    let status = server.status().await?;
    let runtime = std::fs::read_dir(std::env::temp_dir())?.map_while(Result::ok);
    let prefix = format!("duck-server-{front}-");
    let files = runtime
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| std::fs::read_dir(entry.path()).map(Iterator::count))
        .sum::<Result<usize, _>>()?;
    Ok(vec![
        ((part + 1) * PART).to_string(),
        ms(quantile(times, 0.5)),
        ms(quantile(times, 0.99)),
        mb(kb(front, "status", "VmRSS")?),
        std::fs::read_dir(format!("/proc/{front}/fd"))?.count().to_string(),
        (usage::children(front).len() + server.workers().len()).to_string(),
        files.to_string(),
        status["pool"]["starts"].to_string(),
        status["pool"]["evictions"].to_string(),
        site.log()?.matches("catalog login renewed").count().to_string(),
    ])
}
