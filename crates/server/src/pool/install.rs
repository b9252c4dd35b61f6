//! Where this installation has the worker's program and DuckDB's extensions, and what the machine offers them.

use std::path::{Path, PathBuf};

use duck_contract::worker::SandboxLevel;

use super::settings::WorkerSettings;

/// How much of the sandbox this machine offers, tried out in a process of its own.
pub fn probe(settings: &WorkerSettings) -> std::io::Result<SandboxLevel> {
    let answer = std::process::Command::new(program(settings)?).arg("probe").env_clear().output()?;
    let mut level: SandboxLevel = serde_json::from_slice(&answer.stdout).map_err(std::io::Error::other)?;
    level.uid_dropped = rustix::process::geteuid().is_root();
    Ok(level)
}

pub(super) fn program(settings: &WorkerSettings) -> std::io::Result<PathBuf> {
    let found = match &settings.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("duck-worker"),
    };
    exists(found, "worker.program")
}

/// Where the extension files lie below `lib`, as `scripts/fetch-duckdb.sh` puts them.
const VERSIONED: &str = "extensions/v1.5.5/linux_amd64";

/// The installed layout has `lib/extensions` beside `bin`; in a checkout the script puts them under `third_party`.
pub(super) fn extensions(settings: &WorkerSettings, program: &Path) -> std::io::Result<PathBuf> {
    if let Some(folder) = &settings.extensions {
        return exists(folder.clone(), "worker.extensions");
    }
    let installed = program.parent().and_then(Path::parent).map(|root| root.join("lib").join(VERSIONED));
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../third_party/duckdb").join(VERSIONED);
    let found = installed.filter(|folder| folder.exists()).unwrap_or(checkout);
    exists(found, "worker.extensions")
}

fn exists(path: PathBuf, setting: &str) -> std::io::Result<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    Err(std::io::Error::other(format!(
        "{} does not exist (see {setting}, and scripts/fetch-duckdb.sh)",
        path.display()
    )))
}
