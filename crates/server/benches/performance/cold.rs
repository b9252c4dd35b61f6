//! The first query of a warehouse whose worker does not run, and the next ones, beside DuckDB alone on the same catalog and store.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::Failed;
use crate::bare::Bare;
use crate::table::{self, median, ms, quantile};
use crate::usage::Cpu;
use crate::world::{Server, Site};

const WAREHOUSES: usize = 30;
const ROWS: u64 = 100_000;
const WARM: usize = 300;
const THREADS: u32 = 2;
/// After a start, until the next spare waits.
const SPARE_BORN: Duration = Duration::from_millis(400);

/// What one way took: by the client's watch, in the engine, in the front (its catalog included), in the rest.
#[derive(Default)]
struct Took {
    wall: Vec<Duration>,
    engine: Vec<Duration>,
    front: Vec<Duration>,
    rest: Vec<Duration>,
    /// Of the engine's: the birth of a spare for the one that was taken.
    birth: Vec<Duration>,
}

impl Took {
    fn row(&mut self, name: &str) -> Vec<String> {
        let cpu = median(&self.engine) + median(&self.front) + median(&self.rest);
        let p90 = quantile(&mut self.wall, 0.9);
        let medians = [&self.wall, &self.engine, &self.front, &self.rest].map(|values| ms(median(values)));
        let mut row = vec![name.to_owned()];
        row.extend(medians);
        row.insert(2, ms(p90));
        row.push(ms(cpu));
        row.push(if self.birth.is_empty() { String::new() } else { ms(median(&self.birth)) });
        row
    }
}

pub(crate) async fn measure() -> Result<(), Failed> {
    let site = Site::weed().await?;
    let workspaces: Vec<String> = (0..WAREHOUSES).map(|i| format!("cold{i}")).collect();
    let server = site.start("").await?;
    server.found(&workspaces, ROWS).await?;
    drop(server);
    // The front has forgotten these warehouses, and none of them has a worker.
    let server = site.start("").await?;
    let mut bare = Bare::start(&server, site.store()?, THREADS).await?;
    let mut client = server.client().await?;
    let sql = |catalog: &str| {
        format!("SELECT count(*), sum(i), max(city), avg(price) FROM {catalog}.datasets.t WHERE i % 10 < 5")
    };

    let (mut through, mut alone) = (Took::default(), Took::default());
    let front = server.pid();
    let rest = [site.store()?.pid(), server.zygote()?];
    for workspace in &workspaces {
        let workers = server.workers();
        let before = (Cpu::of(&[front]), Cpu::of(&rest), Cpu::of(&workers));
        let request = Server::query(workspace, &sql("lake"));
        let began = Instant::now();
        let answer: Value = serde_json::from_slice(client.ask(&request).await?)?;
        through.wall.push(began.elapsed());
        // The spare that takes the place of the one that was taken counts as well; its birth comes a moment later.
        sleep(SPARE_BORN).await;
        let now = server.workers();
        let born: Vec<u32> = now.iter().copied().filter(|pid| !workers.contains(pid)).collect();
        through.birth.push(Cpu::of(&born).since(&Cpu::of(&[])));
        through.engine.push(Cpu::of(&now).since(&before.2));
        through.front.push(Cpu::of(&[front]).since(&before.0));
        through.rest.push(Cpu::of(&rest).since(&before.1));

        let before = (Cpu::of(&[front]), Cpu::of(&rest));
        let took = bare.run(&[bare.attach(workspace), sql(workspace)])?;
        alone.wall.push(took.wall);
        alone.engine.push(took.cpu);
        // As long as above: what catalog, store and front do by themselves meanwhile is in both.
        sleep(SPARE_BORN).await;
        alone.front.push(Cpu::of(&[front]).since(&before.0));
        alone.rest.push(Cpu::of(&rest).since(&before.1));
        same(&answer["rows"], &took.rows)?;
    }
    print("cold: first query of a warehouse", through, alone)?;

    let (mut through, mut alone) = (Took::default(), Took::default());
    let workers = server.workers();
    let request = Server::query(&workspaces[0], &sql("lake"));
    for _ in 0..WARM {
        let before = (Cpu::of(&[front]), Cpu::of(&rest), Cpu::of(&workers));
        let began = Instant::now();
        client.ask(&request).await?;
        through.wall.push(began.elapsed());
        through.engine.push(Cpu::of(&workers).since(&before.2));
        through.front.push(Cpu::of(&[front]).since(&before.0));
        through.rest.push(Cpu::of(&rest).since(&before.1));

        let before = (Cpu::of(&[front]), Cpu::of(&rest));
        let took = bare.run(&[sql(&workspaces[0])])?;
        alone.wall.push(took.wall);
        alone.engine.push(took.cpu);
        alone.front.push(Cpu::of(&[front]).since(&before.0));
        alone.rest.push(Cpu::of(&rest).since(&before.1));
    }
    print("warm: the same query again", through, alone)
}

fn print(heading: &str, mut through: Took, mut alone: Took) -> Result<(), Failed> {
    let ratio = median(&through.wall).as_secs_f64() / median(&alone.wall).as_secs_f64();
    let rows = [through.row("duck-server"), alone.row("DuckDB alone")];
    table::print(
        heading,
        &[
            "",
            "wall ms, median",
            "p90",
            "engine CPU ms",
            "front and catalog",
            "store and zygote",
            "CPU in all",
            "birth of a spare, of the engine's",
        ],
        &rows,
    )?;
    table::say(&format!("Wall: {ratio:.2} × DuckDB alone.\n"))
}

/// Both must have computed the same; numbers are compared as text.
fn same(ours: &Value, theirs: &Value) -> Result<(), Failed> {
    let text = |rows: &Value| rows.to_string().replace('"', "");
    if text(ours) == text(theirs) { Ok(()) } else { Err(format!("{ours} is not {theirs}").into()) }
}
