//! What a worker can still do after its birth: use its own directory, and connect to two addresses on loopback.
//!
//! Given a process of one thread that has loaded everything it needs, hands on one that has given up the rest, for good.
//! Never runs before LOAD (opening DuckDB behind Landlock aborts) and never after a second thread exists (Landlock binds the
//! calling thread and those it starts later).

use std::io;
use std::path::Path;

use duck_contract::worker::{Cell, SandboxLevel, SandboxMode};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};

use crate::calls::Calls;
use crate::sys::{doors, process};

/// The newest Landlock the rules need: files, TCP ports, abstract sockets and signals.
const LANDLOCK: ABI = ABI::V6;
/// Sockets to two doors, spill files, the listener and its connections.
const OPEN_FILES_MAX: u64 = 512;
/// Address space besides what may be written: libraries, guard pages, what an allocator has put aside. Its page tables are memory
/// that no other limit counts.
const MAPPED_BYTES: u64 = 16 << 30;
/// Of the process's own thread, on which statements run, too: as much as each other one has. No other limit counts it.
const STACK_BYTES: u64 = 2 << 20;
/// Behind the front, whose doors and answers all workers wait for.
const NICE: i32 = 5;

/// Why a worker could not be confined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error("{0}: {1}")]
    Step(&'static str, #[source] io::Error),
    #[error("the front is gone")]
    Orphan,
    #[error("landlock: {0}")]
    Landlock(String),
    #[error("seccomp: {0}")]
    Seccomp(String),
}

/// Gives up what a worker does not need. Returns how much of the sandbox holds; with [`SandboxMode::Require`] less than all
/// of it is an error.
pub(crate) fn enter(
    cell: &Cell,
    parent: u32,
    calls: &Result<Calls, String>,
) -> Result<SandboxLevel, SandboxError> {
    let step = |name| move |e: io::Error| SandboxError::Step(name, e);
    if let Some(uid) = cell.uid {
        process::become_user(uid).map_err(step("change user"))?;
    }
    // Changing the user clears both of these, so they come after it.
    die_with_parent(parent)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|e| step("dumpable")(e.into()))?;
    // CREATE TABLE AS makes an empty `data` in the working directory, so it must be where files may be made.
    std::env::set_current_dir(&cell.directory).map_err(step("enter own directory"))?;
    process::ignore_file_size_signal();
    doors::pin([cell.catalog_port, cell.storage_port]).map_err(step("pin the doors' addresses"))?;
    limits(cell);
    rustix::thread::set_no_new_privs(true).map_err(|e| step("no new privileges")(e.into()))?;

    let require = cell.sandbox == SandboxMode::Require;
    let mut level = SandboxLevel { uid_dropped: cell.uid.is_some(), ..SandboxLevel::default() };
    match confine_files_and_ports(Path::new(&cell.directory), &[cell.catalog_port, cell.storage_port]) {
        Ok(()) => level.landlock = true,
        Err(e) if require => return Err(SandboxError::Landlock(e)),
        Err(_) => {}
    }
    match calls.as_ref().map_err(Clone::clone).and_then(Calls::confine) {
        Ok(()) => level.seccomp = true,
        Err(e) if require => return Err(SandboxError::Seccomp(e)),
        Err(_) => {}
    }
    Ok(level)
}

/// How much of the sandbox this machine offers, tried on this process.
pub(crate) fn probe() -> Result<SandboxLevel, SandboxError> {
    rustix::thread::set_no_new_privs(true).map_err(|e| SandboxError::Step("no new privileges", e.into()))?;
    Ok(SandboxLevel {
        landlock: confine_files_and_ports(Path::new("/"), &[]).is_ok(),
        seccomp: Calls::new().and_then(|calls| calls.confine()).is_ok(),
        uid_dropped: false,
    })
}

/// SIGKILL when the parent ends; an error if it already has.
pub(crate) fn die_with_parent(parent: u32) -> Result<(), SandboxError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| SandboxError::Step("die with parent", e.into()))?;
    if std::os::unix::process::parent_id() == parent { Ok(()) } else { Err(SandboxError::Orphan) }
}

fn limits(cell: &Cell) {
    let both = |n: u64| Rlimit { current: Some(n), maximum: Some(n) };
    // A limit can only fail to be set when it is above what we have, and then the lower one holds.
    let _ = rustix::process::setpriority_process(None, NICE);
    let _ = rustix::process::setrlimit(Resource::Core, both(0));
    let _ = rustix::process::setrlimit(Resource::Nofile, both(OPEN_FILES_MAX));
    let _ = rustix::process::setrlimit(Resource::Stack, both(STACK_BYTES));
    let _ = rustix::process::setrlimit(Resource::Data, both(cell.memory_bytes_max));
    let _ = rustix::process::setrlimit(Resource::As, both(cell.memory_bytes_max + MAPPED_BYTES));
    let _ = rustix::process::setrlimit(Resource::Fsize, both(cell.spill_bytes_max));
}

fn confine_files_and_ports(directory: &Path, ports: &[u16]) -> Result<(), String> {
    let threads = process::threads().map_err(|e| e.to_string())?;
    if threads != 1 {
        return Err(format!("{threads} threads, and only the calling one would be bound"));
    }
    let own = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir;
    let rules = || -> Result<_, Box<dyn std::error::Error>> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?
            .add_rule(PathBeneath::new(PathFd::new(directory)?, own))?;
        for port in ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        Ok(rules.restrict_self()?)
    };
    rules().map(|_| ()).map_err(|e| e.to_string())
}
