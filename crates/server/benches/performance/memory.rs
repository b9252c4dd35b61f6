//! What idle workers hold, before and after their first Iceberg query.

use crate::Failed;
use crate::table::{self, mb};
use crate::usage::kb;
use crate::world::{Server, Site};

const COUNTS: [usize; 3] = [1, 50, 200];

pub(crate) async fn measure() -> Result<(), Failed> {
    let site = Site::local()?;
    let most = COUNTS.into_iter().max().unwrap_or_default();
    let workspaces: Vec<String> = (0..most).map(|i| format!("idle{i}")).collect();
    let server = site.start("[pool]\nworkers_max = 4").await?;
    server.found(&workspaces, 10_000).await?;
    drop(server);
    let mut rows = Vec::new();
    for count in COUNTS {
        let server = site.start("[pool]\nworkers_max = 256\nspares = 0").await?;
        let mut client = server.client().await?;
        let seeders = server.workers();
        for (moment, sql) in [
            ("attached, after `SELECT 1`", "SELECT 1"),
            ("after the first Iceberg query", "SELECT count(*), sum(i), max(city) FROM lake.datasets.t"),
        ] {
            for workspace in &workspaces[..count] {
                client.ask(&Server::query(workspace, sql)).await?;
            }
            let workers: Vec<u32> =
                server.workers().into_iter().filter(|pid| !seeders.contains(pid)).collect();
            rows.push(row(count, moment, &workers)?);
        }
    }
    table::print(
        "memory of an idle worker, means",
        &["workers", "moment", "private MB (Private_Dirty)", "page tables MB (VmPTE)", "PSS MB", "RSS MB"],
        &rows,
    )
}

fn row(count: usize, moment: &str, workers: &[u32]) -> Result<Vec<String>, Failed> {
    if workers.len() != count {
        return Err(format!("{} workers instead of {count}", workers.len()).into());
    }
    let mut row = vec![count.to_string(), moment.to_owned()];
    for (file, name) in [
        ("smaps_rollup", "Private_Dirty"),
        ("status", "VmPTE"),
        ("smaps_rollup", "Pss"),
        ("smaps_rollup", "Rss"),
    ] {
        let sum = workers.iter().map(|pid| kb(*pid, file, name)).sum::<Result<u64, Failed>>()?;
        row.push(mb(sum / count as u64));
    }
    Ok(row)
}
