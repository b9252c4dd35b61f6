//! Where the warehouses are: in an embedded catalog, founded as they are needed, or in a given one. And the server in front.
//!
//! What a file says of the pool holds. What it does not say is set to what is being tried, so that the machine is the limit and not
//! a default.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use duck_contract::query::TablesAnswer;
use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use toml::{Table, Value};
use uuid::Uuid;

use super::decide::{Budget, End};
use super::traffic::Tenant;
use super::{Failed, Options};
use crate::auth::{self, Auth, is_workspace_id};
use crate::config::{Config, Faults};
use crate::dev::{Embedded, Seed};
use crate::doors::storage::Store;
use crate::secret::Secret;
use crate::server::Server;

/// Of an embedded warehouse: some pages of data.
const TABLES: [Seed; 1] = [(
    "t",
    "SELECT i, 'city ' || i % 97 AS city, i % 1000 / 8.0 AS price, TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (i) MINUTE AS at
     FROM range(10000) t(i)",
)];
/// Warehouses that are founded, or asked for their tables, at once.
const PREPARED_AT_ONCE: usize = 4;
const ANSWER_MAX: Duration = Duration::from_secs(30);
const TOKEN_TTL: Duration = Duration::from_hours(24);
/// Statements that still run when a step has ended have all had their deadline.
const DRAIN_MS_MAX: u64 = 5_000;

/// Warehouses, and how to serve them.
pub(super) struct Site {
    /// The settings as a file has them.
    written: Table,
    /// The same as a server without the test would have them.
    config: Config,
    store: Store,
    /// Of this test alone: its servers accept no other tokens than its own.
    auth: auth::Settings,
    source: Source,
    /// Those that are ready, in the order in which they are used.
    tenants: Vec<Tenant>,
}

enum Source {
    // The catalog ends before its folder does.
    Embedded { catalog: Box<Embedded>, _folder: TempDir },
    Given { workspaces: Vec<String>, table: Option<String> },
}

impl Site {
    pub(super) async fn open(options: &Options) -> Result<Site, Failed> {
        let secret = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let auth = auth::Settings { jwt_secret: Some(Secret::new(secret)), ..auth::Settings::default() };
        let tenants = Vec::new();
        let Some(file) = &options.config else {
            let folder = tempfile::Builder::new().prefix("duck-loadtest-").tempdir()?;
            let catalog = Box::new(Embedded::open(folder.path(), 0).await?);
            let (written, config) = (catalog.written.clone(), catalog.config.clone());
            let store = catalog.store.clone();
            let source = Source::Embedded { catalog, _folder: folder };
            return Ok(Site { written, config, store, auth, source, tenants });
        };
        let written = Config::written(Some(file))?;
        let config = Config::of(written.clone())?;
        let store = Store::new(config.storage.clone())?;
        let workspaces = workspaces(&options.workspaces, options.workspaces_file.as_deref())?;
        let source = Source::Given { workspaces, table: options.table.clone() };
        Ok(Site { written, config, store, auth, source, tenants })
    }

    /// How many warehouses there can be.
    pub(super) fn warehouses_max(&self) -> usize {
        match &self.source {
            Source::Embedded { .. } => usize::MAX,
            Source::Given { workspaces, .. } => workspaces.len(),
        }
    }

    /// What a server without the test would have.
    pub(super) fn budget(&self) -> Budget {
        let (pool, worker) = (&self.config.pool, &self.config.worker);
        Budget {
            memory_mb: pool.memory_mb.unwrap_or(0),
            front_mb: pool.front_mb,
            idle_mb_max: pool.idle_mb_max,
            spares: pool.spares as u64,
            worker_mb_max: worker.memory_mb_max.unwrap_or(0),
        }
    }

    pub(super) fn describe(&self) -> &'static str {
        match &self.source {
            Source::Embedded { .. } => "embedded catalog",
            Source::Given { .. } => "given catalog",
        }
    }

    /// The settings of a server with so many workers of which so many work at once.
    pub(super) fn settings(&self, workers: usize, at_once: usize) -> Result<Config, Faults> {
        let budget = self.budget();
        let mut written = self.written.clone();
        let mut set =
            |section: &str, name: &str, value: u64| unless_written(&mut written, section, name, value);
        set("pool", "workers_max", workers as u64);
        let idle = (workers as u64 + budget.spares) * budget.idle_mb_max;
        let needed = budget.front_mb + idle + at_once as u64 * budget.worker_mb_max;
        if set("pool", "memory_mb", needed.max(budget.memory_mb)) {
            let worker = &self.config.worker;
            set("worker", "memory_mb", worker.memory_mb.unwrap_or(0));
            set("worker", "memory_mb_max", budget.worker_mb_max);
            set("worker", "spill_mb_max", worker.spill_mb_max.unwrap_or(0));
        }
        set("limits", "running_max", at_once as u64);
        set("limits", "tenant_running_max", at_once as u64);
        let mut config = Config::of(written)?;
        config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config.auth = self.auth.clone();
        (config.drain_grace_ms, config.drain_ms_max) = (0, DRAIN_MS_MAX);
        Ok(config)
    }

    /// A server of its own for this work. It is stopped whatever comes of it, also when the test is told to stop.
    pub(super) async fn serve<T>(
        &self,
        config: Config,
        stop: &CancellationToken,
        work: impl AsyncFnOnce(&Server, &str) -> Result<T, Failed>,
    ) -> Result<T, End> {
        let server = Server::start(config, self.store.clone()).await.map_err(failed)?;
        let url = format!("http://{}", server.address);
        let outcome = tokio::select! {
            biased;
            () = stop.cancelled() => Err(End::new("interrupted", "told to stop")),
            outcome = work(&server, &url) => outcome.map_err(failed),
        };
        server.stop().await;
        outcome
    }

    /// The first so many warehouses. Those that were not used before are founded, or asked for their tables.
    pub(super) async fn tenants(
        &mut self,
        count: usize,
        stop: &CancellationToken,
        bar: &ProgressBar,
    ) -> Result<Vec<Tenant>, End> {
        if self.tenants.len() < count {
            let config = self.settings(PREPARED_AT_ONCE, PREPARED_AT_ONCE).map_err(failed)?;
            let new = self.tenants.len()..count;
            let prepare = async |_: &Server, url: &str| {
                let each = stream::iter(new).map(|index| self.prepare(index, url, bar));
                each.buffered(PREPARED_AT_ONCE).try_collect::<Vec<_>>().await
            };
            let more = self.serve(config, stop, prepare).await?;
            self.tenants.extend(more);
        }
        Ok(self.tenants[..count].to_vec())
    }

    async fn prepare(&self, index: usize, url: &str, bar: &ProgressBar) -> Result<Tenant, Failed> {
        let workspace = match &self.source {
            Source::Embedded { .. } => format!("load{index}"),
            Source::Given { workspaces, .. } => workspaces.get(index).ok_or("too few workspaces")?.clone(),
        };
        let founds = matches!(self.source, Source::Embedded { .. });
        let token = Auth::new(self.auth.clone())?
            .mint(&workspace, "loadtest", founds, TOKEN_TTL)
            .ok_or("no token could be minted")?;
        let table = match &self.source {
            Source::Embedded { catalog, .. } => {
                catalog.found(url, &workspace, &token, &TABLES).await?;
                format!("lake.datasets.{}", TABLES[0].0)
            }
            Source::Given { table: Some(table), .. } => table.clone(),
            Source::Given { table: None, .. } => first_table(url, &workspace, &token).await?,
        };
        bar.inc(1);
        Ok(Tenant { workspace, token, table })
    }
}

fn failed(error: impl Into<Failed>) -> End {
    End::new("failed", error.into().to_string())
}

/// True if it was not.
fn unless_written(written: &mut Table, section: &str, name: &str, value: u64) -> bool {
    let section = written.entry(section).or_insert_with(|| Value::Table(Table::new()));
    let Some(section) = section.as_table_mut().filter(|section| !section.contains_key(name)) else {
        return false;
    };
    section.insert(name.to_owned(), Value::Integer(i64::try_from(value).unwrap_or(i64::MAX)));
    true
}

/// Those named in the arguments, or one a line in a file.
fn workspaces(named: &[String], file: Option<&Path>) -> Result<Vec<String>, Failed> {
    let mut all = named.to_vec();
    if let Some(file) = file {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        all.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
    }
    if let Some(wrong) = all.iter().find(|workspace| !is_workspace_id(workspace)) {
        return Err(format!("`{wrong}` is no workspace: letters, digits, `-` and `_`").into());
    }
    let distinct: std::collections::HashSet<_> = all.iter().collect();
    if all.is_empty() || distinct.len() < all.len() {
        return Err("--workspaces or --workspaces-file has to name workspaces, each once".into());
    }
    Ok(all)
}

async fn first_table(url: &str, workspace: &str, token: &str) -> Result<String, Failed> {
    let client = reqwest::Client::builder().no_proxy().timeout(ANSWER_MAX).build()?;
    let answer = client.get(format!("{url}/tables")).bearer_auth(token).send().await?;
    if !answer.status().is_success() {
        return Err(format!("the tables of {workspace}: {}", answer.text().await?).into());
    }
    let tables: TablesAnswer = answer.json().await?;
    let table = tables.tables.first().ok_or(format!("{workspace} has no table that could be read"))?;
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    Ok(format!("lake.{}.{}", quoted(&table.schema), quoted(&table.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_holds() {
        let mut written: Table = "[pool]\nworkers_max = 7\n".parse().unwrap();
        assert!(!unless_written(&mut written, "pool", "workers_max", 50));
        assert!(unless_written(&mut written, "pool", "memory_mb", 900));
        assert!(unless_written(&mut written, "limits", "running_max", 5));
        let expected: Table =
            "[pool]\nworkers_max = 7\nmemory_mb = 900\n[limits]\nrunning_max = 5\n".parse().unwrap();
        assert_eq!(written, expected);
    }

    #[test]
    fn workspaces_are_named_once_each() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "acme\n\n  globex \n").unwrap();
        assert_eq!(workspaces(&[], Some(file.path())).unwrap(), ["acme", "globex"]);
        for wrong in [vec![], vec!["a/b".to_owned()], vec!["acme".to_owned(), "acme".to_owned()]] {
            assert!(workspaces(&wrong, None).is_err(), "{wrong:?}");
        }
    }
}
