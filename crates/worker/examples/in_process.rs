//! The worker's own way from a statement to Arrow bytes, without sandbox, socket and HTTP: what `duck-server` is compared with.
//!
//! `in_process THREADS SQL` prints one line of JSON: bytes, seconds, peak memory. The modules are the worker's, not copies.

#![allow(dead_code, missing_docs)]

#[path = "../src/calls.rs"]
mod calls;
#[path = "../src/encode/mod.rs"]
mod encode;
#[path = "../src/execute.rs"]
mod execute;
#[path = "../src/fault.rs"]
mod fault;
#[path = "../src/lockdown.rs"]
mod lockdown;
#[path = "../src/policy/mod.rs"]
mod policy;
#[path = "../src/running.rs"]
mod running;
#[path = "../src/sandbox.rs"]
mod sandbox;
#[path = "../src/session.rs"]
mod session;
#[path = "../src/sink.rs"]
mod sink;
#[path = "../src/sys/mod.rs"]
mod sys;
#[path = "../src/template.rs"]
mod template;
#[path = "../src/threads.rs"]
mod threads;

use std::error::Error;
use std::fs;
use std::io::Write;

use encode::Encoder;
use encode::arrow::ArrowEncoder;
use execute::Outcome;
use sink::{Head, PIECES_MAX, Piece, Sink};
use sys::duckdb::Database;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [threads, sql] = arguments.as_slice() else { return Err("usage: in_process THREADS SQL".into()) };
    let database = Database::open(&[("threads", threads)]).map_err(|e| e.0)?;
    let (cpu, began) = (cpu_s(), Instant::now());
    let (head_sender, head) = oneshot::channel();
    let (piece_sender, pieces) = mpsc::channel(PIECES_MAX);
    let counter = std::thread::spawn(move || count(head, pieces));
    let mut sink = Sink::new(head_sender, piece_sender);
    let outcome = run(&database, sql, &mut sink)?;
    sink.end(Ok(outcome));
    let bytes = counter.join().map_err(|_| "the counter ended")?;
    let (wall_s, cpu_s) = (began.elapsed().as_secs_f64(), cpu_s() - cpu);
    let peak_kb = peak_kb();
    let line = serde_json::json!({"bytes": bytes, "wall_s": wall_s, "cpu_s": cpu_s, "peak_kb": peak_kb});
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

fn run(database: &Database, sql: &str, sink: &mut Sink) -> Result<Outcome, Box<dyn Error>> {
    let connection = database.connect().map_err(|e| e.0)?;
    let statements = connection.split(sql).map_err(|e| e.0)?;
    let prepared = statements.prepare(0).map_err(|e| e.0)?;
    let mut rows = prepared.execute().map_err(|e| e.0)?;
    let mut encoder = ArrowEncoder::start(&rows).map_err(|f| f.detail)?;
    let mut outcome = Outcome::default();
    while let Some(batch) = rows.next().map_err(|e| e.0)? {
        outcome.rows += batch.num_rows() as u64;
        encoder.batch(&batch, sink).map_err(|f| f.detail)?;
    }
    encoder.finish(outcome, sink).map_err(|f| f.detail)?;
    Ok(outcome)
}

/// Takes the place of the client.
fn count(
    head: oneshot::Receiver<Result<Head, duck_contract::worker::Failure>>,
    mut pieces: mpsc::Receiver<Piece>,
) -> u64 {
    let mut bytes = match head.blocking_recv() {
        Ok(Ok(Head::Whole(whole, _))) => whole.len() as u64,
        _ => 0,
    };
    while let Some(piece) = pieces.blocking_recv() {
        if let Piece::Data(data) = piece {
            bytes += data.len() as u64;
        }
    }
    bytes
}

/// CPU seconds of all threads there are.
fn cpu_s() -> f64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().map_while(Result::ok);
    let used = threads.filter_map(|thread| {
        let line = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    });
    used.sum::<f64>() / 1e9
}

fn peak_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
