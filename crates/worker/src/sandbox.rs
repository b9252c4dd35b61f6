//! What a worker can still do after its birth: use its own directory, and connect to two ports on loopback.
//!
//! Given a process of one thread that has loaded everything it needs, hands on one that has given up the rest, for good.
//! Never runs before LOAD (opening DuckDB behind Landlock aborts) and never after a second thread exists (Landlock binds the
//! calling thread and those it starts later).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use duck_contract::worker::{Cell, SandboxLevel, SandboxMode};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter, apply_filter_all_threads,
};

use crate::sys::process;

/// The newest Landlock the rules need: files, TCP ports, abstract sockets and signals.
const LANDLOCK: ABI = ABI::V6;
/// Sockets to two doors, spill files, the listener and its connections.
const OPEN_FILES_MAX: u64 = 512;
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
pub(crate) fn enter(cell: &Cell, parent: u32) -> Result<SandboxLevel, SandboxError> {
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
    limits(cell);
    rustix::thread::set_no_new_privs(true).map_err(|e| step("no new privileges")(e.into()))?;

    let require = cell.sandbox == SandboxMode::Require;
    let mut level = SandboxLevel { uid_dropped: cell.uid.is_some(), ..SandboxLevel::default() };
    match confine_files_and_ports(Path::new(&cell.directory), &[cell.catalog_port, cell.storage_port]) {
        Ok(()) => level.landlock = true,
        Err(e) if require => return Err(SandboxError::Landlock(e)),
        Err(_) => {}
    }
    match confine_system_calls() {
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
        seccomp: confine_system_calls().is_ok(),
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
    let _ = rustix::process::setrlimit(Resource::Data, both(cell.memory_bytes_max));
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
            .add_rule(PathBeneath::new(PathFd::new(directory)?, own))?
            .add_rule(PathBeneath::new(PathFd::new("/dev/urandom")?, AccessFs::ReadFile))?;
        for port in ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        Ok(rules.restrict_self()?)
    };
    rules().map(|_| ()).map_err(|e| e.to_string())
}

/// Calls that a worker has no use for, each a way out or a way to its neighbours.
const DENIED: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_setpgid,
    libc::SYS_setsid,
    libc::SYS_prlimit64,
    libc::SYS_setrlimit,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_io_uring_setup,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
];

fn confine_system_calls() -> Result<(), String> {
    let build = || -> Result<BpfProgram, Box<dyn std::error::Error>> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, vec![])).collect();
        let argument = |index, op, value| SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value);
        let kind = |kind: i32| argument(1, SeccompCmpOp::MaskedEq(0xf), u64::from(kind.unsigned_abs()));
        // Only TCP over IPv4: the doors are on 127.0.0.1, and Landlock speaks of TCP alone.
        rules.insert(
            libc::SYS_socket,
            vec![
                SeccompRule::new(vec![argument(0, SeccompCmpOp::Ne, libc::AF_INET as u64)?])?,
                SeccompRule::new(vec![kind(libc::SOCK_DGRAM)?])?,
                SeccompRule::new(vec![kind(libc::SOCK_RAW)?])?,
            ],
        );
        // A new thread, yes; a new process or name space, no.
        rules.insert(
            libc::SYS_clone,
            vec![SeccompRule::new(vec![argument(0, SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64), 0)?])?],
        );
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        Ok(SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch()?)?.try_into()?)
    };
    let no_clone3 = || -> Result<BpfProgram, Box<dyn std::error::Error>> {
        let rules = BTreeMap::from([(libc::SYS_clone3, vec![])]);
        // clone3 hides its flags behind a pointer. ENOSYS, not EPERM: libc then uses clone, whose flags can be seen.
        let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
        Ok(SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch()?)?.try_into()?)
    };
    for program in [no_clone3().map_err(|e| e.to_string())?, build().map_err(|e| e.to_string())?] {
        apply_filter(&program).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// From here on no file and no directory can be opened to be read. What DuckDB spills it opens to read and write; what a statement
/// names it opens to read. So the worker's own directory, which DuckDB lets every statement read, is closed to them.
pub(crate) fn close_files() -> Result<(), String> {
    let build = || -> Result<BpfProgram, Box<dyn std::error::Error>> {
        let to_read = |flags| -> Result<Vec<SeccompRule>, Box<dyn std::error::Error>> {
            let only = SeccompCmpOp::MaskedEq(libc::O_ACCMODE as u64);
            let condition =
                SeccompCondition::new(flags, SeccompCmpArgLen::Dword, only, libc::O_RDONLY as u64)?;
            Ok(vec![SeccompRule::new(vec![condition])?])
        };
        let rules = BTreeMap::from([
            (libc::SYS_open, to_read(1)?),
            (libc::SYS_openat, to_read(2)?),
            // Hides its flags behind a pointer.
            (libc::SYS_openat2, vec![]),
        ]);
        let refuse = SeccompAction::Errno(libc::EACCES as u32);
        Ok(SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch()?)?.try_into()?)
    };
    let program = build().map_err(|e| e.to_string())?;
    apply_filter_all_threads(&program).map_err(|e| e.to_string())
}

fn arch() -> Result<TargetArch, Box<dyn std::error::Error>> {
    Ok(std::env::consts::ARCH.try_into()?)
}
