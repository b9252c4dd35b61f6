//! A long Arrow answer, beside the same rows encoded in the same way in one process (`crates/worker/examples/in_process.rs`).

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Failed;
use crate::client::query;
use crate::table::{self, mb};
use crate::usage::{self, Cpu, kb};
use crate::world::{Server, Site};

const ROWS: [u64; 2] = [5_000_000, 20_000_000];
const ROUNDS: usize = 3;

pub(crate) async fn measure() -> Result<(), Failed> {
    let site = Site::local()?;
    let server = site.start(&format!("[query]\nrows_max = {}", u64::MAX >> 1)).await?;
    let token = site.token("acme")?;
    let seeders = server.workers();
    server.client().await?.ask(&query(&token, &json!({"sql": "SELECT 1"}))).await?;
    let worker = server.workers().into_iter().find(|pid| !seeders.contains(pid)).ok_or("no worker")?;
    let mut rows = Vec::new();
    for (round, count) in (0..ROUNDS).flat_map(|round| ROWS.map(|count| (round, count))) {
        let sql = format!(
            "SELECT i, i * 7 AS b, i / 3 AS d, i * 0.25::DOUBLE AS e, 'city ' || i % 97 AS city, 'customer ' || i AS name \
             FROM range({count}) t(i)"
        );
        rows.push(served(&server, worker, &token, &sql, round).await?);
        rows.push(in_process(&sql, round)?);
    }
    table::print(
        "stream: a long Arrow answer",
        &[
            "",
            "round",
            "GB",
            "s",
            "MB/s",
            "front CPU s/GB",
            "engine CPU s/GB",
            "peak RSS MB: front",
            "engine",
        ],
        &rows,
    )
}

async fn served(
    server: &Server,
    worker: u32,
    token: &str,
    sql: &str,
    round: usize,
) -> Result<Vec<String>, Failed> {
    let front = server.pid();
    usage::forget_peak(front)?;
    usage::forget_peak(worker)?;
    let before = (Cpu::of(&[front]), Cpu::of(&[worker]));
    let client = server.client().await?;
    let request = query(token, &json!({"sql": sql, "format": "arrow"}));
    let began = Instant::now();
    let bytes = client.drain(&request).await?;
    let wall = began.elapsed().as_secs_f64();
    let gb = bytes as f64 / 1e9;
    let per_gb = |pid: u32, before: &Cpu| format!("{:.2}", Cpu::of(&[pid]).since(before).as_secs_f64() / gb);
    Ok(vec![
        "duck-server".to_owned(),
        (round + 1).to_string(),
        format!("{gb:.2}"),
        format!("{wall:.2}"),
        format!("{:.0}", gb * 1e3 / wall),
        per_gb(front, &before.0),
        per_gb(worker, &before.1),
        mb(kb(front, "status", "VmHWM")?),
        mb(kb(worker, "status", "VmHWM")?),
    ])
}

fn in_process(sql: &str, round: usize) -> Result<Vec<String>, Failed> {
    let program =
        PathBuf::from(env!("CARGO_BIN_EXE_duck-server")).with_file_name("examples").join("in_process");
    let answer = Command::new(&program)
        .args(["2", sql])
        .output()
        .map_err(|e| format!("{}: {e}; scripts/bench.sh makes it", program.display()))?;
    if !answer.status.success() {
        return Err(String::from_utf8_lossy(&answer.stderr).into_owned().into());
    }
    let answer: Value = serde_json::from_slice(&answer.stdout)?;
    let number = |name: &str| answer[name].as_f64().unwrap_or_default();
    let (gb, wall) = (number("bytes") / 1e9, number("wall_s"));
    Ok(vec![
        "in one process".to_owned(),
        (round + 1).to_string(),
        format!("{gb:.2}"),
        format!("{wall:.2}"),
        format!("{:.0}", gb * 1e3 / wall),
        String::new(),
        format!("{:.2}", number("cpu_s") / gb),
        String::new(),
        mb(number("peak_kb") as u64),
    ])
}
