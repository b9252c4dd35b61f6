//! `duck-server`: the command line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use duck_server::auth::{Auth, is_workspace_id};
use duck_server::config::Config;
use duck_server::doors::{catalog, storage};
use duck_server::server::{self, Server};
use duck_server::{audit, dev, loadtest, maintain};
use tikv_jemallocator::Jemalloc;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Statements without an end that are named.
const UNENDED_SHOWN: usize = 20;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Anybody's SQL for many organisations on one service: DuckDB in sandboxed processes over Apache Iceberg.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// How the log on standard error looks.
    #[arg(long, global = true, value_enum, default_value = "text")]
    log: Log,
    /// What is logged: a level, or `tracing` directives such as `info,duck_server::pool=debug`. Without it `info`, and `warn` for
    /// `loadtest` and `maintain`.
    #[arg(long, global = true)]
    log_level: Option<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Log {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Serve, by a file and the environment.
    Serve {
        #[command(flatten)]
        file: File,
        /// Print one line of JSON when ready, for scripts.
        #[arg(long)]
        json: bool,
    },
    /// Serve with an embedded catalog, a folder as the store and two organisations with data.
    Dev {
        /// Where it keeps everything; made when missing.
        #[arg(long, default_value = ".dev")]
        dir: PathBuf,
        /// The port on 127.0.0.1; 0 takes a free one.
        #[arg(long, default_value_t = 8080)]
        port: u16,
        /// Print one line of JSON when ready, for scripts.
        #[arg(long)]
        json: bool,
    },
    /// Mint a token for a workspace from the configured JWT secret.
    Token {
        #[command(flatten)]
        file: File,
        /// The workspace.
        #[arg(long)]
        workspace: String,
        /// Who the token is for (`sub`).
        #[arg(long, default_value = "token-command")]
        subject: String,
        /// Grant writing.
        #[arg(long)]
        write: bool,
        /// Seconds until it expires.
        #[arg(long, default_value_t = 3_600)]
        ttl: u64,
    },
    /// Print the effective configuration, or every fault in it.
    Check {
        #[command(flatten)]
        file: File,
    },
    /// Look after the records of statements.
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Find out how many warehouses this machine holds, and what to set `pool.workers_max` to.
    Loadtest(Box<loadtest::Options>),
    /// Tell what objects no table needs any more and, with --remove, remove them.
    Maintain(Box<maintain::Options>),
}

#[derive(Subcommand)]
enum AuditCommand {
    /// Check that no line of these files was changed, removed or moved since it was written; else say which does not hold.
    Verify {
        /// The files, in any order: `audit.jsonl*`.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// A line's hash that was noted elsewhere, such as `audit.head.hash` of `GET /status`: it has to be there.
        #[arg(long)]
        head: Option<String>,
    },
}

#[derive(clap::Args)]
struct File {
    /// The configuration file (TOML). Without it only the environment counts.
    #[arg(long)]
    config: Option<PathBuf>,
}

impl File {
    fn load(&self) -> Result<Config, Failed> {
        Ok(Config::load(self.config.as_deref())?)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A line for every query would be a part of what is measured.
    let quiet = matches!(arguments.command, Command::Loadtest(_) | Command::Maintain(_));
    let level = if quiet { "warn" } else { "info" };
    start_log(arguments.log, arguments.log_level.as_deref().unwrap_or(level));
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "duck-server: {e}");
            ExitCode::FAILURE
        }
    }
}

fn start_log(log: Log, level: &str) {
    // s3s reports every request that the storage door refuses as an error of its own.
    let filter =
        EnvFilter::try_new(format!("{level},s3s=off")).unwrap_or_else(|_| EnvFilter::new("info,s3s=off"));
    let log_to = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log {
        Log::Text => log_to.with_ansi(false).init(),
        Log::Json => log_to.json().flatten_event(true).init(),
    }
}

fn run(command: Command) -> Result<(), Failed> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if matches!(command, Command::Serve { .. } | Command::Dev { .. }) {
        // The engines need the cores more (docs/decisions/2026-11-30-half-of-the-cores.md).
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        runtime.worker_threads((cores / 2).max(1));
    }
    let runtime = runtime.enable_all().build()?;
    match command {
        Command::Serve { file, json } => runtime.block_on(serve(file.load()?, json)),
        Command::Dev { dir, port, json } => runtime.block_on(develop(&dir, port, json)),
        Command::Token { file, workspace, subject, write, ttl } => {
            if !is_workspace_id(&workspace) {
                return Err("a workspace is letters, digits, `-` and `_`".into());
            }
            let minted =
                Auth::new(file.load()?.auth)?.mint(&workspace, &subject, write, Duration::from_secs(ttl));
            say(&minted.ok_or("no auth.jwt_secret is configured, so no token can be minted")?)
        }
        Command::Check { file } => say(toml::to_string(&file.load()?)?.trim_end()),
        Command::Audit { command: AuditCommand::Verify { files, head } } => verify(&files, head.as_deref()),
        Command::Loadtest(options) => runtime.block_on(try_load(&options)),
        Command::Maintain(options) => runtime.block_on(keep_up(&options)),
    }
}

fn verify(files: &[PathBuf], head: Option<&str>) -> Result<(), Failed> {
    let found = audit::verify(files, head.unwrap_or_default())?;
    if head.is_some() && !found.has_wanted {
        return Err(
            "every line holds, and none has that hash: lines are missing at the end, or all are new".into()
        );
    }
    let audit::Found { lines, first, last, head, lost, torn, unended, .. } = found;
    say(&format!("{lines} lines hold, {first} to {last}; the last one's hash is {head}"))?;
    say(&format!(
        "{} statements began and did not end, {lost} records were lost, {torn} lines were torn",
        unended.len()
    ))?;
    unended.iter().take(UNENDED_SHOWN).try_for_each(|(workspace, id)| say(&format!("  {workspace} {id}")))
}

async fn serve(config: Config, json: bool) -> Result<(), Failed> {
    let told = told_to_stop()?;
    let store = storage::Store::new(config.storage.clone())?;
    let server = Server::start(config, store).await?;
    if json {
        let url = format!("http://{}", server.address);
        say(&serde_json::json!({"url": url, "pid": std::process::id()}).to_string())?;
    }
    until(told, server).await
}

async fn develop(dir: &Path, port: u16, json: bool) -> Result<(), Failed> {
    let told = told_to_stop()?;
    let world = dev::World::start(dir, port).await?;
    say(&if json { world.line() } else { world.welcome() })?;
    until(told, world.server).await
}

async fn until(told: impl Future<Output = ()>, mut server: Server) -> Result<(), Failed> {
    tokio::select! {
        () = told => {}
        () = server.ended() => return Err("the server has ended by itself".into()),
    }
    server.stop().await;
    Ok(())
}

async fn try_load(options: &loadtest::Options) -> Result<(), Failed> {
    let stop = CancellationToken::new();
    let mut test = std::pin::pin!(loadtest::run(options, &stop));
    tokio::select! {
        outcome = &mut test => return outcome,
        () = told_to_stop()? => {}
    }
    stop.cancel();
    test.await
}

/// Told to stop, it finishes the batch that it removes just now.
async fn keep_up(options: &maintain::Options) -> Result<(), Failed> {
    let of_dev = options.dir.as_ref().map(|dir| dir.join("duck-server.toml"));
    let config = Config::load(options.config.as_deref().or(of_dev.as_deref()))?;
    let store = storage::Store::new(config.storage.clone())?;
    let upstream = Arc::new(catalog::Upstream::new(config.catalog.clone())?);
    let mut keeper = server::keeper(&config, &store, upstream);
    keeper.ledgers.extend(options.ledgers.iter().cloned());
    let stop = CancellationToken::new();
    let mut work = std::pin::pin!(maintain::command(&keeper, options, &stop));
    tokio::select! {
        outcome = &mut work => return outcome,
        () = told_to_stop()? => {}
    }
    stop.cancel();
    work.await
}

/// Completes at SIGINT or SIGTERM. Both are caught from here on, so that being told while it starts does not cut a server short.
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn say(text: &str) -> Result<(), Failed> {
    let mut out = std::io::stdout();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}
