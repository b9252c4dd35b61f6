//! The warm engine that workers are copied from.
//!
//! Opens DuckDB, loads three extensions and closes the door for others. Holds no secret and never sees a tenant's SQL.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::sys::duckdb::{Database, Error};

/// In this order: iceberg needs avro, and would try to install it.
const EXTENSIONS: [&str; 3] = ["avro", "httpfs", "iceberg"];
/// The sums of exactly these files of DuckDB 1.5.5, the ones that `scripts/fetch-duckdb.sh` checks.
const SUMS: &str = include_str!("../../../scripts/duckdb-1.5.5-linux_amd64.sha256");

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
pub(crate) fn open(directory: &Path) -> Result<Database, TemplateError> {
    let files = EXTENSIONS.map(|name| directory.join(format!("{name}.duckdb_extension")));
    for file in &files {
        verify(file)?;
    }
    let database = Database::open(&[
        ("threads", "1"),
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
    connection.run("SET GLOBAL allow_unsigned_extensions = false").map_err(TemplateError::DuckDb)?;
    drop(connection);
    Ok(database)
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
