//! The warm engine that workers are copied from.
//!
//! Opens DuckDB, loads three extensions, closes the door for others and sets whatever is the same for every worker: what is
//! done here, no worker does again. Holds no secret and never sees a tenant's SQL.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::policy::Names;
use crate::sys::duckdb::{Database, Error};

/// In this order: iceberg needs avro, and would try to install it.
const EXTENSIONS: [&str; 3] = ["avro", "httpfs", "iceberg"];
/// The sums of exactly these files of DuckDB 1.5.5, the ones that `scripts/fetch-duckdb.sh` checks.
const SUMS: &str = include_str!("../../../scripts/duckdb-1.5.5-linux_amd64.sha256");

/// The same for every worker. GLOBAL: a plain SET is seen by its own connection only.
const SETTINGS: [&str; 7] = [
    // First: it cannot be changed once the secret manager was used.
    "SET GLOBAL allow_persistent_secrets = false",
    "SET GLOBAL errors_as_json = true",
    "SET GLOBAL TimeZone = 'UTC'",
    // Off, every request opens a TCP connection.
    "SET GLOBAL httpfs_connection_caching = true",
    "SET GLOBAL http_retries = 1",
    // Gives parts of 8 MB instead of 80.
    "SET GLOBAL s3_uploader_max_filesize = '80GB'",
    // What a statement may set once a worker has locked the rest.
    "SET GLOBAL allowed_configs = ['timezone', 'enable_progress_bar', 'enable_progress_bar_print']",
];

/// A warm engine.
pub(crate) struct Template {
    pub(crate) database: Database,
    /// Among how many threads DuckDB divides the work. It has started none of them: `serve` lends them.
    pub(crate) threads: u32,
    /// What it knows by name.
    pub(crate) names: Names,
    /// How much of DuckDB's code its children share in large pages.
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

/// Opens DuckDB with the extensions in `directory`.
///
/// The files are checked by their sums here, once, and DuckDB's own signature check is skipped: it costs 302 ms of CPU an
/// instance, against 11. After LOAD unsigned extensions are switched off, which cannot be undone.
pub(crate) fn open(directory: &Path, threads: u32) -> Result<Template, TemplateError> {
    let files = EXTENSIONS.map(|name| directory.join(format!("{name}.duckdb_extension")));
    for file in &files {
        verify(file)?;
    }
    let count = threads.to_string();
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
    for setting in ["SET GLOBAL allow_unsigned_extensions = false"].into_iter().chain(SETTINGS) {
        connection.run(setting).map_err(TemplateError::DuckDb)?;
    }
    let names = Names::of(&connection).map_err(TemplateError::DuckDb)?;
    drop(connection);
    Ok(Template { database, threads, names, code_bytes: 0 })
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
