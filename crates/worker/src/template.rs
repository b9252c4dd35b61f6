//! The warm engine that workers are copied from.
//!
//! Opens DuckDB, loads three extensions, closes the door for others, sets whatever is the same for every worker and attaches the catalog
//! door's one warehouse, which is whichever a worker's keys are for: what is done here, no worker does again. Holds no secret and never
//! sees a tenant's SQL.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use duck_contract::Role;
use duck_contract::worker::{CATALOG, Common};
use sha2::{Digest, Sha256};

use crate::calls::Calls;
use crate::policy::Names;
use crate::session::quoted;
use crate::sys::duckdb::{Connection, Database, Error};

/// In this order: iceberg needs avro, and would try to install it.
const EXTENSIONS: [&str; 3] = ["avro", "httpfs", "iceberg"];
/// The sums of exactly these files of DuckDB 1.5.5, the ones that `scripts/fetch-duckdb.sh` checks.
const SUMS: &str = include_str!("../../../scripts/duckdb-1.5.5-linux_amd64.sha256");

/// The same for every worker. GLOBAL: a plain SET is seen by its own connection only.
const SETTINGS: [&str; 7] = [
    // First: it cannot be changed once the secret manager was used.
    "SET GLOBAL allow_persistent_secrets = false",
    // The working directory, which is each worker's own.
    "SET GLOBAL temp_directory = '.'",
    "SET GLOBAL errors_as_json = true",
    "SET GLOBAL TimeZone = 'UTC'",
    "SET GLOBAL http_retries = 1",
    // Gives parts of 8 MB instead of 80.
    "SET GLOBAL s3_uploader_max_filesize = '80GB'",
    // What a statement may set once a worker has locked the rest.
    "SET GLOBAL allowed_configs = ['timezone', 'enable_progress_bar', 'enable_progress_bar_print']",
];

/// A warm engine with a warehouse attached, to be read.
pub(crate) struct Template {
    /// It has started none of the threads among which it divides the work: `serve` lends them.
    pub(crate) database: Database,
    pub(crate) common: Common,
    /// What it knows by name.
    pub(crate) names: Names,
    /// Or why there is no filter of system calls.
    pub(crate) calls: Result<Calls, String>,
    /// How much of the engine's code its children share in large pages.
    pub(crate) code_bytes: u64,
}

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("extension {0}: {1}")]
    Unreadable(PathBuf, #[source] std::io::Error),
    #[error("extension {0} is not the file that was pinned (sha256 {1})")]
    Foreign(PathBuf, String),
    #[error("DuckDB: {}", .0.0)]
    DuckDb(Error),
}

/// Opens DuckDB with its extensions.
///
/// The files are checked by their sums here, once, and DuckDB's own signature check is skipped: it costs 302 ms of CPU an
/// instance, against 11. After LOAD unsigned extensions are switched off, which cannot be undone.
pub(crate) fn open(common: Common) -> Result<Template, TemplateError> {
    let files = EXTENSIONS.map(|name| common.extensions.join(format!("{name}.duckdb_extension")));
    for file in &files {
        verify(file)?;
    }
    let count = common.threads.to_string();
    let database = Database::open(&[
        ("threads", &count),
        // All of them: a process with a second thread cannot be forked safely.
        ("external_threads", &count),
        ("allow_unsigned_extensions", "true"),
        ("autoload_known_extensions", "false"),
        ("autoinstall_known_extensions", "false"),
    ])
    .map_err(TemplateError::DuckDb)?;
    let connection = database.connect().map_err(TemplateError::DuckDb)?;
    for file in &files {
        let path = file.to_string_lossy().replace('\'', "''");
        connection.run(&format!("LOAD '{path}'")).map_err(TemplateError::DuckDb)?;
    }
    let names = settle(&connection, &common).map_err(TemplateError::DuckDb)?;
    // It holds a connection to the door as long as it lives, which no worker may inherit.
    drop(connection);
    Ok(Template { database, common, names, calls: Calls::new(), code_bytes: 0 })
}

/// What can be said in SQL.
fn settle(connection: &Connection, common: &Common) -> Result<Names, Error> {
    let run = |sql: &str| connection.run(sql);
    run("SET GLOBAL allow_unsigned_extensions = false")?;
    SETTINGS.into_iter().try_for_each(run)?;
    run(&format!("SET GLOBAL http_timeout = {}", common.http_timeout_s))?;
    run(&spill_limit(common.spill_bytes_max))?;
    let names = Names::of(connection)?;
    // In a secret, because what ATTACH is told can be read in `duckdb_databases()`. Without a token: each worker has its own.
    let endpoint = format!("ENDPOINT 'http://127.0.0.1:{}'", common.catalog_port);
    run(&format!("CREATE SECRET door (TYPE iceberg, TOKEN '', {endpoint})"))?;
    attach(common, Role::Reader).iter().try_for_each(|sql| run(sql))?;
    // Off, every request opens a TCP connection. Not before, lest one be kept for those who come later.
    run("SET GLOBAL httpfs_connection_caching = true")?;
    // Last: DuckDB then gives back the memory that it has put aside for itself, a quarter of what every fork would copy the tables of.
    run(&memory_limit(common.memory_bytes))?;
    Ok(names)
}

pub(crate) fn memory_limit(bytes: u64) -> String {
    format!("SET GLOBAL memory_limit = '{bytes} bytes'")
}

pub(crate) fn spill_limit(bytes: u64) -> String {
    format!("SET GLOBAL max_temp_directory_size = '{bytes} bytes'")
}

/// Leaves the warehouse as the only database. Without the one that every engine begins with there is no other place where a statement
/// could leave something for the next: table, view, type, macro, sequence.
pub(crate) fn attach(common: &Common, role: Role) -> [String; 3] {
    // READ_ONLY is said because a name that looks like a URL would attach read-only by itself; the delegation mode because
    // leaving it out means vended credentials, which would shadow the worker's key.
    let read_only = match role {
        Role::Reader => "true",
        Role::Writer => "false",
    };
    let attach = format!(
        "ATTACH '{CATALOG}' AS {CATALOG} (TYPE iceberg, ACCESS_DELEGATION_MODE 'none', SUPPORT_NESTED_NAMESPACES true, \
         DEFAULT_SCHEMA {}, READ_ONLY {read_only})",
        quoted(&common.default_schema),
    );
    [attach, format!("USE {CATALOG}"), "DETACH memory".to_owned()]
}

fn verify(file: &Path) -> Result<(), TemplateError> {
    let bytes = fs::read(file).map_err(|e| TemplateError::Unreadable(file.to_owned(), e))?;
    let sum = Sha256::digest(&bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let pinned = SUMS.lines().any(|line| line.starts_with(&sum) && line.ends_with(&*name));
    if pinned { Ok(()) } else { Err(TemplateError::Foreign(file.to_owned(), sum)) }
}
