//! How soon an engine rests when nobody waits for its statement any more: the client goes, the deadline passes, it is cancelled.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::Failed;
use crate::client::{self, Client};
use crate::table;
use crate::usage::Cpu;
use crate::world::{SECRET, Server, Site};

const ROUNDS: usize = 5;
/// Long enough for the statement to run.
const RUNS: Duration = Duration::from_millis(600);
/// No CPU for so long is rest.
const REST: Duration = Duration::from_millis(200);
const WATCHED_MAX: Duration = Duration::from_secs(5);

const STATEMENTS: [(&str, &str); 2] = [
    ("listens", "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"),
    ("does not", "SELECT repeat('a', 3000) GLOB repeat('*a', 30) || 'b'"),
];

pub(crate) async fn measure() -> Result<(), Failed> {
    let site = Site::local()?;
    let server = site.start("[pool]\nspares = 0").await?;
    server.found(&["stop".to_owned()], 10).await?;
    let mut rows = Vec::new();
    for (statement, sql) in STATEMENTS {
        for way in ["client gone", "deadline", "cancelled"] {
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                times.push(round(&server, sql, way).await?);
            }
            times.sort_unstable();
            let (median, most) = (times[ROUNDS / 2], times[ROUNDS - 1]);
            rows.push(vec![statement.to_owned(), way.to_owned(), median.to_string(), most.to_string()]);
        }
    }
    table::print(
        "stop: from the end of all interest to the last CPU of the engine",
        &["statement", "way", "median ms", "most"],
        &rows,
    )
}

async fn round(server: &Server, sql: &str, way: &str) -> Result<u128, Failed> {
    let mut body = json!({"sql": sql, "format": "json", "workspace_id": "stop"});
    if way == "deadline" {
        body["timeout_ms"] = json!(u64::try_from(RUNS.as_millis())?);
    }
    let mut asking = server.client().await?;
    let request = client::named_query(SECRET, "stop-me", &body);
    let asked = tokio::spawn(async move { asking.ask(&request).await.map(<[u8]>::len) });
    sleep(RUNS).await;
    let began = Instant::now();
    match way {
        "client gone" => asked.abort(),
        "cancelled" => {
            let mut other: Client = server.client().await?;
            let cancel = client::cancel(SECRET, "stop-me");
            tokio::spawn(async move { other.ask(&cancel).await.map(<[u8]>::len) });
        }
        _ => {}
    }
    let mut last = began;
    let mut used = Cpu::of(&server.workers());
    let watch = async {
        while last.elapsed() < REST {
            sleep(Duration::from_millis(5)).await;
            let now = Cpu::of(&server.workers());
            if now.since(&used) > Duration::from_millis(1) {
                last = Instant::now();
            }
            used = now;
        }
    };
    timeout(WATCHED_MAX, watch).await.map_err(|_| format!("{way}: it never rests"))?;
    Ok(last.duration_since(began).as_millis())
}
