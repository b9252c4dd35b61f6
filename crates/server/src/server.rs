//! From a configuration to a running server, and back to nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use duck_contract::worker::{SandboxLevel, SandboxMode};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::{self, Facts, Service};
use crate::audit::Audit;
use crate::auth::Auth;
use crate::config::Config;
use crate::doors::{Passes, catalog, storage};
use crate::governance::{Governance, Writes};
use crate::journey::Journey;
use crate::limits::Limits;
use crate::maintain::{self, Keeper};
use crate::places::Configured;
use crate::pool::{self, Forge, Pool, Ports};
use crate::query::{Beat, Register};
use crate::statements::Statements;

/// How much longer a worker waits for the catalog door than the door takes to settle a change. It must: DuckDB deletes the
/// data files of a commit that it has given up.
const SETTLE_MARGIN: Duration = Duration::from_secs(15);

/// For what was ended to be told so.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An operating system's error at one step.
    #[error("{0}: {1}")]
    Step(&'static str, #[source] std::io::Error),
    /// The settings of a door.
    #[error("{0}")]
    Settings(String),
    /// `worker.sandbox = "require"`, and this machine offers less.
    #[error("the sandbox is incomplete on this machine ({0:?}) and worker.sandbox = \"require\"")]
    Sandbox(SandboxLevel),
}

/// A server that answers. Call [`Server::stop`]; dropping it leaves workers to the kernel's parent-death signal.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    service: Arc<Service>,
    stop_api: CancellationToken,
    api: JoinHandle<std::io::Result<()>>,
    /// What fills the table of records.
    audit: (CancellationToken, Option<JoinHandle<()>>),
    stop_doors: CancellationToken,
    doors: [JoinHandle<()>; 2],
    stop_upkeep: CancellationToken,
    upkeep: JoinHandle<()>,
    runtime: Runtime,
    _beat: Option<Beat>,
    grace: Duration,
    drain: Duration,
}

impl Server {
    /// Starts doors, template and API. Returns when it answers.
    pub async fn start(config: Config, store: storage::Store) -> Result<Server, StartError> {
        let step = |name| move |e| StartError::Step(name, e);
        let sandbox = sandbox(&config.worker)?;
        let runtime = Runtime::make(config.runtime_dir.clone()).map_err(step("make the runtime folder"))?;
        let passes = Passes::default();
        let stop_doors = CancellationToken::new();

        let loopback = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let storage_listener = loopback().await.map_err(step("open the storage door"))?;
        let catalog_listener = loopback().await.map_err(step("open the catalog door"))?;
        let api_listener = TcpListener::bind(config.listen).await.map_err(step("listen"))?;
        let forbidden = runtime.forbidden_port;
        let ports = Ports { catalog: port(&catalog_listener)?, storage: port(&storage_listener)?, forbidden };

        let auth = Auth::new(config.auth.clone()).map_err(|e| StartError::Settings(e.to_string()))?;
        let upstream = catalog::Upstream::new(config.catalog.clone())
            .map_err(|faults| StartError::Settings(faults.0.join(", ")))?;
        let upstream = Arc::new(upstream);
        let ledger = storage::Ledger::of(&config.storage);
        let door = storage::Door::new(passes.clone(), store.clone(), ledger);
        let doors = [
            tokio::spawn(watched("storage", door.serve(storage_listener, stop_doors.clone()))),
            tokio::spawn(watched(
                "catalog",
                catalog::serve(catalog_listener, passes.clone(), upstream.clone(), stop_doors.clone()),
            )),
        ];

        let stop_upkeep = CancellationToken::new();
        let keeper = keeper(&config, &store, upstream.clone());
        let forge = Forge {
            passes,
            ports,
            places: Arc::new(Configured::new(config.warehouse.clone(), upstream.clone())),
            settings: config.worker.clone(),
            default_schema: config.warehouse.default_schema.clone(),
            http_timeout_s: (config.catalog.change_time_max() + SETTLE_MARGIN).as_secs(),
            runtime: runtime.path.clone(),
        };
        let (register, cores_each) = (Register::default(), config.worker.threads_max() as usize);
        let beat = Beat::start(register.clone(), cores_each).unwrap_or_else(|e| {
            tracing::warn!(cause = %e, "no beat: short statements may wait for a core's tick");
            None
        });
        let pool =
            Pool::open(config.pool.clone(), forge).await.map_err(step("start the workers' template"))?;
        let (audit, gatherer) = Audit::open(&config.audit).map_err(step("open the audit file"))?;
        let facts = facts(&config);
        let writes = Writes::open(config.writes).map_err(|faults| StartError::Settings(faults.join(", ")))?;
        let statements = Statements::open(config.statements, runtime.path.join("statements"))
            .map_err(step("make the statements' folder"))?;
        let journey = Arc::new(Journey {
            auth,
            governance: Governance::new(config.warehouse.prefix, writes),
            limits: Limits::new(config.limits),
            pool,
            register,
            statements,
            audit,
            settings: config.query,
        });
        let stop_audit = CancellationToken::new();
        let gathering =
            gatherer.map(|gatherer| tokio::spawn(gatherer.run(journey.clone(), stop_audit.clone())));
        let service = Arc::new(Service {
            journey,
            upstream,
            store: Arc::new(store),
            sandbox,
            facts,
            draining: false.into(),
            body_bytes_max: config.body_bytes_max,
        });
        let address = api_listener.local_addr().map_err(step("listen"))?;
        let clients = api::Patient::new(api_listener, Duration::from_millis(config.stall_ms_max));
        let stop_api = CancellationToken::new();
        let api = tokio::spawn(
            axum::serve(clients, api::router(service.clone()))
                .with_graceful_shutdown(stop_api.clone().cancelled_owned())
                .into_future(),
        );
        let upkeep = tokio::spawn(maintain::schedule(keeper, stop_upkeep.clone()));
        tracing::info!(%address, ?sandbox, "ready");
        let (grace, drain) =
            (Duration::from_millis(config.drain_grace_ms), Duration::from_millis(config.drain_ms_max));
        let audit = (stop_audit, gathering);
        Ok(Server {
            address,
            service,
            stop_api,
            api,
            audit,
            stop_doors,
            doors,
            stop_upkeep,
            upkeep,
            runtime,
            _beat: beat,
            grace,
            drain,
        })
    }

    /// Nothing new, and `/ready` says so while a balancer can still ask; what runs may finish within the drain time; then doors,
    /// workers, template and folders end, in this order.
    pub async fn stop(self) {
        self.service.drain();
        self.stop_upkeep.cancel();
        let _ = self.upkeep.await;
        tokio::time::sleep(self.grace).await;
        self.stop_api.cancel();
        let (mut api, statements) = (self.api, &self.service.journey.statements);
        // What nobody can fetch any more may still be a change that somebody wants made.
        let finished = async { tokio::join!(&mut api, statements.idle()) };
        if tokio::time::timeout(self.drain, finished).await.is_err() {
            tracing::warn!("the drain time is over: statements that still ran are ended");
            self.service.journey.register.stop_all();
            if !api.is_finished() && tokio::time::timeout(LAST_ANSWERS, &mut api).await.is_err() {
                api.abort();
            }
        }
        statements.close().await;
        // The last records, while there are engines to write them.
        let audit = &self.service.journey.audit;
        audit.settle().await;
        self.audit.0.cancel();
        if let Some(gathering) = self.audit.1 {
            let _ = gathering.await;
        }
        self.service.journey.pool.drain();
        self.stop_doors.cancel();
        // A door closes when its changes are settled, and each of those has its own deadline.
        for door in self.doors {
            let _ = door.await;
        }
        self.service.journey.pool.close().await;
        audit.close().await;
        drop(self.runtime);
        tracing::info!("stopped");
    }

    /// Its workers.
    pub fn pool(&self) -> &Pool {
        &self.service.journey.pool
    }

    /// Completes when the API has ended by itself, which is a fault.
    pub async fn ended(&mut self) {
        let _ = (&mut self.api).await;
    }
}

/// What maintenance works with under this configuration.
pub fn keeper(config: &Config, store: &storage::Store, upstream: Arc<catalog::Upstream>) -> Keeper {
    Keeper {
        places: Arc::new(Configured::new(config.warehouse.clone(), upstream.clone())),
        upstream,
        store: store.clone(),
        settings: config.maintain.clone(),
        ledgers: config.storage.ledger_path.clone().into_iter().collect(),
        named: Governance::new(config.warehouse.prefix.clone(), Writes::closed()).name_of(""),
    }
}

/// What confines workers here; an error where that is less than is asked for.
fn sandbox(settings: &pool::WorkerSettings) -> Result<SandboxLevel, StartError> {
    let sandbox = pool::probe(settings).map_err(|e| StartError::Step("try the sandbox", e))?;
    if !(sandbox.landlock && sandbox.seccomp) {
        if settings.sandbox == SandboxMode::Require {
            return Err(StartError::Sandbox(sandbox));
        }
        tracing::error!(
            ?sandbox,
            "THE SANDBOX IS INCOMPLETE: a taken-over engine could read this machine's files"
        );
    }
    Ok(sandbox)
}

fn facts(config: &Config) -> Facts {
    Facts {
        auth: config.auth.modes(),
        issuers: config.auth.issuer_facts(),
        storage: storage_kind(config.storage.kind),
        readers_key: config.storage.ro_access_key_id.is_some(),
        default_schema: config.warehouse.default_schema.clone(),
    }
}

fn port(listener: &TcpListener) -> Result<u16, StartError> {
    Ok(listener.local_addr().map_err(|e| StartError::Step("listen", e))?.port())
}

fn storage_kind(kind: storage::Kind) -> &'static str {
    match kind {
        storage::Kind::Local => "local",
        storage::Kind::Memory => "memory",
        storage::Kind::S3 => "s3",
    }
}

/// A door that ends by itself is a fault that must be seen.
async fn watched<E: std::fmt::Display>(name: &'static str, door: impl Future<Output = Result<(), E>>) {
    if let Err(e) = door.await {
        tracing::error!(door = name, error = %e, "a door has ended");
    }
}

/// The folder for workers' sockets and directories, and a listener that no worker must reach. Removed on drop.
struct Runtime {
    path: PathBuf,
    forbidden_port: u16,
    _forbidden: std::net::TcpListener,
    /// Locked while this server lives, so that another one knows.
    _lock: std::fs::File,
}

/// In the folder of every server.
const LOCK: &str = "lock";
const FOLDER: &str = "duck-server-";

impl Runtime {
    /// Always a folder of its own below `parent`: what else lies there is not ours to remove, and what a killed server left
    /// behind, perhaps under this very pid, must not be in the way.
    fn make(parent: Option<PathBuf>) -> std::io::Result<Self> {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        sweep(&parent);
        let name = format!("{FOLDER}{}-{}", std::process::id(), Uuid::new_v4().simple());
        let path = parent.join(&name[..name.len().min(32)]);
        // Not `create_dir_all`: a folder that is there already is somebody else's.
        std::fs::create_dir(&path)?;
        // Workers run as another user and enter only their own directory below.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o711))?;
        let lock = std::fs::File::create_new(path.join(LOCK))?;
        lock.try_lock().map_err(std::io::Error::other)?;
        let forbidden = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let forbidden_port = forbidden.local_addr()?.port();
        Ok(Runtime { path, forbidden_port, _forbidden: forbidden, _lock: lock })
    }
}

/// Removes what killed servers have left: their folders, whose locks nobody holds any more.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().map_while(Result::ok) {
        let path = entry.path();
        let ours = entry.file_name().to_string_lossy().starts_with(FOLDER);
        // One without a lock is being made just now, or not ours.
        let Some(lock) = ours.then(|| std::fs::File::open(path.join(LOCK)).ok()).flatten() else { continue };
        if lock.try_lock().is_ok() && std::fs::remove_dir_all(&path).is_ok() {
            tracing::info!(path = %path.display(), "removed what a killed server had left");
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
