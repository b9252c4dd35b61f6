//! `SELECT 42` on warm workers of four organisations.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::Failed;
use crate::client::{Client, query};
use crate::table::{self, quantile};
use crate::usage::Cpu;
use crate::world::{Server, Site};

const QUERIES: usize = 16_000;
const WARM: usize = 400;
const ROUNDS: usize = 3;

pub(crate) async fn measure() -> Result<(), Failed> {
    let site = Site::local()?;
    let server = site.start("").await?;
    let workspaces: Vec<String> = (0..4).map(|i| format!("small{i}")).collect();
    server.found(&workspaces, 10).await?;
    let tokens = workspaces.iter().map(|w| site.token(w)).collect::<Result<Vec<String>, Failed>>()?;
    let requests = |format: &str| -> Vec<Vec<u8>> {
        tokens.iter().map(|token| query(token, &json!({"sql": "SELECT 42", "format": format}))).collect()
    };
    let formats = [("JSON", requests("json")), ("Arrow", requests("arrow"))];
    for (_, requests) in &formats {
        run(&server, requests, 4, WARM).await?;
    }
    let mut rows = Vec::new();
    for clients in [1, 16] {
        for (format, requests) in &formats {
            for round in 1..=ROUNDS {
                let queries = if clients == 1 { QUERIES / 4 } else { QUERIES };
                let mut row = vec![format!("{clients}"), (*format).to_owned(), round.to_string()];
                row.extend(run(&server, requests, clients, queries).await?);
                rows.push(row);
            }
        }
    }
    table::print(
        "small: SELECT 42, four organisations, a JWT each",
        &[
            "clients",
            "format",
            "round",
            "q/s",
            "p50 ms",
            "p99 ms",
            "front CPU µs",
            "worker CPU µs",
            "client CPU µs",
        ],
        &rows,
    )
}

async fn run(
    server: &Server,
    requests: &[Vec<u8>],
    clients: usize,
    queries: usize,
) -> Result<Vec<String>, Failed> {
    let (front, workers, client) = ([server.pid()], server.workers(), [std::process::id()]);
    let before = [Cpu::of(&front), Cpu::of(&workers), Cpu::of(&client)];
    let began = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for index in 0..clients {
        let connection = server.client().await?;
        let mut requests = requests.to_vec();
        requests.rotate_left(index % 4);
        running.spawn(ask(connection, requests, queries / clients));
    }
    let mut times = Vec::with_capacity(queries);
    while let Some(done) = running.join_next().await {
        times.extend(done??);
    }
    let wall = began.elapsed();
    let micros = |pids: &[u32], before: &Cpu| {
        format!("{:.0}", Cpu::of(pids).since(before).as_secs_f64() * 1e6 / times.len() as f64)
    };
    let [front, workers, client] =
        [micros(&front, &before[0]), micros(&workers, &before[1]), micros(&client, &before[2])];
    let rate = times.len() as f64 / wall.as_secs_f64();
    let at = |times: &mut [Duration], share| format!("{:.2}", quantile(times, share).as_secs_f64() * 1e3);
    Ok(vec![format!("{rate:.0}"), at(&mut times, 0.5), at(&mut times, 0.99), front, workers, client])
}

async fn ask(mut client: Client, requests: Vec<Vec<u8>>, queries: usize) -> Result<Vec<Duration>, Failed> {
    let mut times = Vec::with_capacity(queries);
    for request in requests.iter().cycle().take(queries) {
        let began = Instant::now();
        client.ask(request).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}
