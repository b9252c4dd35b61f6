//! Writing, beside bare DuckDB that writes the same to the same store and catalog: one large INSERT, and a hundred small ones.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::Failed;
use crate::bare::Bare;
use crate::client::{self, Client};
use crate::table;
use crate::usage::Cpu;
use crate::world::{SECRET, Server, Site};

const ROUNDS: usize = 5;
const APPENDS: usize = 100;
const THREADS: u32 = 2;
const LARGE: &str = "SELECT i, 'city ' || i % 97 AS city, i % 1000 / 8.0 AS price, md5(i::VARCHAR) AS code FROM range(1000000) t(i)";

/// One way to write.
struct Writer<'w> {
    server: &'w Server,
    client: Client,
    bare: Bare,
}

impl Writer<'_> {
    /// Through the server: wall time, and the CPU time of the front and its workers.
    async fn ours(&mut self, statements: &[String]) -> Result<(Duration, Duration), Failed> {
        let pids = || [vec![self.server.pid()], self.server.workers()].concat();
        let (before, began) = (Cpu::of(&pids()), Instant::now());
        for sql in statements {
            let body = json!({"sql": sql, "format": "json", "workspace_id": "ours", "allow_writes": true});
            self.client.ask(&client::query(SECRET, &body)).await?;
        }
        Ok((began.elapsed(), Cpu::of(&pids()).since(&before)))
    }

    fn theirs(&mut self, statements: &[String]) -> Result<(Duration, Duration), Failed> {
        let took = self.bare.run(statements)?;
        Ok((took.wall, took.cpu))
    }
}

pub(crate) async fn measure() -> Result<(), Failed> {
    let site = Site::weed().await?;
    let server = site.start(&format!("[worker]\nthreads = {THREADS}")).await?;
    let workspaces = ["ours", "theirs"].map(str::to_owned);
    server.found(&workspaces, 10).await?;
    let mut bare = Bare::start(&server, site.store()?, THREADS).await?;
    let attach = bare.attach("theirs").replace("READ_ONLY true", "READ_ONLY false");
    bare.run(&[attach])?;
    let client = server.client().await?;
    let mut writer = Writer { server: &server, client, bare };
    let mut rows = Vec::new();
    for part in ["INSERT of 1 M rows", "100 appends of one row"] {
        let mut ratios = Vec::new();
        for round in 1..=ROUNDS {
            let name = format!("t{}_{round}", if part.starts_with("INSERT") { "large" } else { "small" });
            let make = |catalog: &str| format!("CREATE TABLE {catalog}.datasets.{name} AS {LARGE} LIMIT 1");
            let insert = |catalog: &str| -> Vec<String> {
                let table = format!("{catalog}.datasets.{name}");
                if part.starts_with("INSERT") {
                    return vec![format!("INSERT INTO {table} {LARGE}")];
                }
                (0..APPENDS).map(|i| format!("INSERT INTO {table} VALUES ({i}, 'x', 1.5, 'y')")).collect()
            };
            writer.ours(&[make("lake")]).await?;
            writer.theirs(&[make("theirs")])?;
            // Whoever is first has the colder store: each is in turn.
            let (ours, theirs) = if round % 2 == 0 {
                let theirs = writer.theirs(&insert("theirs"))?;
                (writer.ours(&insert("lake")).await?, theirs)
            } else {
                let ours = writer.ours(&insert("lake")).await?;
                (ours, writer.theirs(&insert("theirs"))?)
            };
            let ms = |time: Duration| format!("{:.0}", time.as_secs_f64() * 1e3);
            let ratio = theirs.0.as_secs_f64() / ours.0.as_secs_f64();
            ratios.push(ratio);
            rows.push(vec![
                part.to_owned(),
                round.to_string(),
                ms(ours.0),
                ms(theirs.0),
                format!("{ratio:.2}"),
                ms(ours.1),
                ms(theirs.1),
            ]);
        }
        let blank = String::new;
        ratios.sort_unstable_by(f64::total_cmp);
        let middle = format!("{:.2}", ratios[ROUNDS / 2]);
        rows.push(vec![part.to_owned(), "median".to_owned(), blank(), blank(), middle, blank(), blank()]);
    }
    table::print(
        "writes: through the server and by bare DuckDB, the same store and catalog",
        &["what", "round", "ours ms", "bare ms", "throughput, ours / bare", "ours CPU ms", "bare CPU ms"],
        &rows,
    )
}
