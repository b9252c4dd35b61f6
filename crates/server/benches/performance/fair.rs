//! A light tenant beside a heavy one: how long its small queries take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::Failed;
use crate::client;
use crate::table::{self, ms, quantile};
use crate::world::{Server, Site};

const QUERIES: usize = 300;
/// Heavy statements that are always there, running or queued.
const HEAVY: usize = 50;
const ROUNDS: usize = 3;
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) async fn measure() -> Result<(), Failed> {
    let site = Site::local()?;
    let server = site.start("").await?;
    server.found(&["light".to_owned(), "heavy".to_owned()], 100_000).await?;
    let light = Server::query("light", "SELECT count(*), sum(i), max(city) FROM lake.datasets.t");
    let cpu = "SELECT sum(a.range * b.range) FROM range(40000) a, range(10000) b";
    let memory = "SELECT count(*) FROM (SELECT DISTINCT md5(range::VARCHAR) FROM range(3000000))";
    let mut rows = Vec::new();
    for round in 1..=ROUNDS {
        let alone = light_queries(&server, &light).await?;
        for (what, sql) in [("CPU", cpu), ("memory", memory)] {
            let over = Arc::new(AtomicBool::new(false));
            let mut heavy = tokio::task::JoinSet::new();
            for _ in 0..HEAVY {
                heavy.spawn(keep_busy(server.client().await?, over.clone(), sql));
            }
            sleep(SETTLE).await;
            let beside = light_queries(&server, &light).await?;
            over.store(true, Ordering::Release);
            let mut done = 0;
            while let Some(count) = heavy.join_next().await {
                done += count??;
            }
            let p99 = |times: &[Duration]| quantile(&mut times.to_vec(), 0.99);
            let ratio = p99(&beside).as_secs_f64() / p99(&alone).as_secs_f64();
            rows.push(vec![
                round.to_string(),
                what.to_owned(),
                ms(quantile(&mut alone.clone(), 0.5)),
                ms(p99(&alone)),
                ms(quantile(&mut beside.clone(), 0.5)),
                ms(p99(&beside)),
                format!("{ratio:.2}"),
                done.to_string(),
            ]);
        }
    }
    table::print(
        &format!("fair: a light tenant alone, and beside one that keeps {HEAVY} heavy queries there"),
        &["round", "heavy in", "alone p50 ms", "p99", "beside p50 ms", "p99", "p99 ratio", "heavy ones done"],
        &rows,
    )
}

async fn light_queries(server: &Server, request: &[u8]) -> Result<Vec<Duration>, Failed> {
    let mut client = server.client().await?;
    let mut times = Vec::with_capacity(QUERIES);
    for _ in 0..QUERIES {
        let began = Instant::now();
        client.ask(request).await?;
        times.push(began.elapsed());
        sleep(Duration::from_millis(5)).await;
    }
    Ok(times)
}

/// One of the heavy tenant's clients. A refusal (its queue may be full, its turn may not come in time) is an answer, too.
async fn keep_busy(mut client: client::Client, over: Arc<AtomicBool>, sql: &str) -> Result<usize, Failed> {
    let body = json!({"sql": sql, "format": "json", "workspace_id": "heavy"});
    let request = client::query(crate::world::SECRET, &body);
    let mut done = 0;
    while !over.load(Ordering::Acquire) {
        match client.ask(&request).await {
            Ok(_) => done += 1,
            Err(e) if e.to_string().contains("tenant_busy") || e.to_string().contains("server_busy") => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
