//! What a query costs: real processes, real sockets, one Markdown table a part.
//!
//! `cargo bench -p duck-server --bench performance -- [cold|memory|churn|fair|stop|small|stream|writes|all]`. It needs `duck-worker` and the example
//! `in_process` of the same build (`scripts/bench.sh` makes both), and `.venv` for the parts that compare with bare DuckDB.
//! Everything it starts ends with it. `docs/performance.md` holds the figures and how to read them.

// Figures are rounded when they are shown; what a cast loses before is far below that.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod bare;
mod churn;
mod client;
mod cold;
mod fair;
mod memory;
mod small;
mod stop;
mod stream;
mod table;
mod usage;
mod world;
mod writes;

use table::say;

/// The first thing that went wrong ends a run.
type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    // Cargo adds `--bench`.
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let asked = |part: &str| asked.is_empty() || asked.iter().any(|word| word == part || word == "all");
    say(&format!("Load at start: {}\n", usage::load()?))?;
    if asked("cold") {
        cold::measure().await?;
    }
    if asked("memory") {
        memory::measure().await?;
    }
    if asked("churn") {
        churn::measure().await?;
    }
    if asked("fair") {
        fair::measure().await?;
    }
    if asked("stop") {
        stop::measure().await?;
    }
    if asked("small") {
        small::measure().await?;
    }
    if asked("stream") {
        stream::measure().await?;
    }
    if asked("writes") {
        writes::measure().await?;
    }
    say(&format!("Load at end: {}", usage::load()?))
}
