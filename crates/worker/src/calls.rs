//! The system calls that are left to a worker: what DuckDB, its HTTP client and this program's runtime were seen to need, and
//! nothing else. Decided by docs/decisions/2026-11-29-allowed-calls.md.
//!
//! A filter sees numbers, not what a pointer points to. Where a promise rests on an argument, only forms that say all in numbers
//! are left: `connect` with one of the addresses that `sys::doors` has pinned, memory that the limits count, threads but no
//! processes, one's own threads and nobody else's.

use std::collections::BTreeMap;

use seccompiler::SeccompCmpOp::{Eq, Ge, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter, sock_filter,
};

use crate::sys::doors;

/// Whatever their arguments are. Paths are Landlock's affair.
const ALLOWED: &[i64] = &[
    // Descriptors that it has.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Its directory; `open` is below.
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rename,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    // Memory; `brk` is counted as it grows, and ends where the first mapping begins.
    libc::SYS_brk,
    // Threads, time, itself.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// What `pthread_create` asks for: a thread of this process in every respect.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;

/// Kinds of mapping that the limits do not count as data: shared ones, those that grow like a stack, huge pages.
const KIND: u64 = 0xf | (libc::MAP_GROWSDOWN | libc::MAP_HUGETLB) as u64;
const PRIVATE: u64 = libc::MAP_PRIVATE as u64;
const FIXED: u64 = libc::MAP_FIXED as u64;
/// All but these leave pages alone, or do what is not for a worker to do: merging pages shows what others have in theirs.
const ADVICE: [i32; 6] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_DONTDUMP,
    libc::MADV_DODUMP,
];

type Error = Box<dyn std::error::Error>;
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What is allowed, as one program: each that is put on costs a tenth of a millisecond, and a little at every call. Whoever starts
/// workers makes it once.
pub(crate) struct Calls {
    plain: BpfProgram,
    with_arguments: BpfProgram,
}

impl Calls {
    pub(crate) fn new() -> Result<Calls, String> {
        let make = || -> Result<Calls, Error> {
            let mut plain = by_number(ALLOWED)?;
            plain.extend(opened(libc::SYS_open, SECOND_ARGUMENT_AT)?);
            plain.extend(opened(libc::SYS_openat, THIRD_ARGUMENT_AT)?);
            Ok(Calls { plain, with_arguments: with_arguments()? })
        };
        make().map_err(|e| e.to_string())
    }

    /// From now on every other call of this thread, and of those it starts, is an error.
    pub(crate) fn confine(&self) -> Result<(), String> {
        let own_signals = own_signals().map_err(|e| e.to_string())?;
        let program = [self.plain.as_slice(), &own_signals, &self.with_arguments].concat();
        apply_filter(&program).map_err(|e| e.to_string())
    }
}

fn with_arguments() -> Result<BpfProgram, Error> {
    let mut rules = Rules::new();
    sockets(&mut rules)?;
    memory(&mut rules)?;
    threads(&mut rules)?;
    let commands = [
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_SETLK,
        libc::F_GETLK,
    ];
    rules.insert(libc::SYS_fcntl, one_of(1, &commands)?);
    rules.insert(
        libc::SYS_ioctl,
        vec![rule([int(1, Eq, libc::FIONBIO)?])?, rule([int(1, Eq, libc::FIOCLEX)?])?],
    );
    let arch = std::env::consts::ARCH.try_into()?;
    let (others, these) = (SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow);
    Ok(SeccompFilter::new(rules, others, these, arch)?.try_into()?)
}

/// No file and no directory can be opened to be read. What DuckDB spills it opens to read and write; what a statement names it opens
/// to read. So the worker's own directory, which DuckDB lets every statement read, is closed to them, as Landlock would say it. Goes on
/// to what follows with any other call.
fn opened(call: i64, flags_at: u32) -> Result<[sock_filter; 9], Error> {
    Ok([
        load(ARCH_AT),
        jump(IF_EQUAL, X86_64, 0, 7),
        load(NUMBER_AT),
        jump(IF_EQUAL, call.try_into()?, 0, 5),
        load(flags_at),
        sock_filter { code: AND, jt: 0, jf: 0, k: libc::O_ACCMODE as u32 },
        jump(IF_EQUAL, libc::O_RDONLY as u32, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ])
}

/// Signals to threads of this process alone: its neighbours have its user. Goes on to what follows where it is no such call, as does a
/// program of another architecture, whose numbers mean other calls.
fn own_signals() -> Result<[sock_filter; 8], Error> {
    Ok([
        load(ARCH_AT),
        jump(IF_EQUAL, X86_64, 0, 6),
        load(NUMBER_AT),
        jump(IF_EQUAL, libc::SYS_tgkill.try_into()?, 0, 4),
        load(FIRST_ARGUMENT_AT),
        jump(IF_EQUAL, std::process::id(), 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ])
}

/// Lets these calls pass; all others go on to what follows, as does a program of another architecture.
///
/// A tree instead of the list that `seccompiler` makes: when a filter is put on, the kernel runs it for each number there is, to
/// know the ones that always pass. With a list of these that takes 0.55 ms for each worker, with a tree 0.28.
fn by_number(calls: &[i64]) -> Result<BpfProgram, Error> {
    let mut numbers = calls.iter().map(|call| u32::try_from(*call)).collect::<Result<Vec<_>, _>>()?;
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if number <= *last + 1 => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    // clone3 hides its flags behind a pointer. Where there is none, libc uses clone, whose flags can be seen.
    let no_clone3 = [
        jump(IF_EQUAL, u32::try_from(libc::SYS_clone3)?, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ];
    let end = 3 + no_clone3.len() + tree_length(&ranges);
    let mut program = vec![load(ARCH_AT), jump(IF_EQUAL, X86_64, 0, u8::try_from(end - 2)?), load(NUMBER_AT)];
    program.extend(no_clone3);
    tree(&ranges, end, &mut program)?;
    Ok(program)
}

fn tree(ranges: &[(u32, u32)], end: usize, program: &mut BpfProgram) -> Result<(), Error> {
    if let [(first, last)] = ranges {
        let on = u8::try_from(end - program.len() - 1)?;
        program.push(jump(IF_NOT_LESS, *first, 0, on));
        program.push(jump(IF_MORE, *last, on - 1, 0));
        program.push(answer(libc::SECCOMP_RET_ALLOW));
        return Ok(());
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    program.push(jump(IF_NOT_LESS, upper[0].0, u8::try_from(tree_length(lower))?, 0));
    tree(lower, end, program)?;
    tree(upper, end, program)
}

/// Three instructions a leaf, and one for each branching.
fn tree_length(ranges: &[(u32, u32)]) -> usize {
    4 * ranges.len() - 1
}

// Instructions of classic BPF, and where `struct seccomp_data` has what.
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_MORE: u16 = 0x25;
const IF_NOT_LESS: u16 = 0x35;
const RETURN: u16 = 0x06;
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
const FIRST_ARGUMENT_AT: u32 = 16;
const SECOND_ARGUMENT_AT: u32 = 24;
const THIRD_ARGUMENT_AT: u32 = 32;
const X86_64: u32 = 0xc000_003e;

fn load(at: u32) -> sock_filter {
    sock_filter { code: LOAD, jt: 0, jf: 0, k: at }
}

fn answer(k: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// TCP over IPv4 to the two doors. Neither another protocol of streams (Landlock knows TCP alone), nor a message with an address
/// or one that opens a connection (nobody asks Landlock about those), nor a socket that could be addressed.
fn sockets(rules: &mut Rules) -> Result<(), Error> {
    let stream = |domain: i32, protocol: i32| {
        let kind =
            SeccompCondition::new(1, SeccompCmpArgLen::Dword, MaskedEq(0xf), libc::SOCK_STREAM as u64)?;
        rule([int(0, Eq, domain)?, kind, int(2, Eq, protocol)?])
    };
    rules
        .insert(libc::SYS_socket, vec![stream(libc::AF_INET, 0)?, stream(libc::AF_INET, libc::IPPROTO_TCP)?]);
    rules.insert(libc::SYS_socketpair, vec![stream(libc::AF_UNIX, 0)?]);
    let pinned = doors::addresses()
        .map(|address| rule([word(1, Eq, address)?, word(2, Eq, u64::from(doors::ADDRESS_BYTES))?]));
    rules.insert(libc::SYS_connect, pinned.into_iter().collect::<Result<_, _>>()?);
    let opens = SeccompCondition::new(3, SeccompCmpArgLen::Dword, MaskedEq(libc::MSG_FASTOPEN as u64), 0)?;
    rules.insert(libc::SYS_sendto, vec![rule([opens, word(4, Eq, 0)?])?]);
    let option = |level, name| rule([int(1, Eq, level)?, int(2, Eq, name)?]);
    rules.insert(libc::SYS_getsockopt, vec![option(libc::SOL_SOCKET, libc::SO_ERROR)?]);
    rules.insert(
        libc::SYS_setsockopt,
        vec![
            option(libc::IPPROTO_TCP, libc::TCP_NODELAY)?,
            option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE)?,
            option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL)?,
            option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT)?,
            option(libc::SOL_SOCKET, libc::SO_KEEPALIVE)?,
            option(libc::SOL_SOCKET, libc::SO_RCVTIMEO)?,
            option(libc::SOL_SOCKET, libc::SO_SNDTIMEO)?,
        ],
    );
    Ok(())
}

/// Private memory that can be read and written, and is counted; nothing that can be run; and nothing where the doors' addresses
/// are: their page is the lowest of all, so whatever covers it begins at it or before.
fn memory(rules: &mut Rules) -> Result<(), Error> {
    let plain = |index: u8| bits(index, !((libc::PROT_READ | libc::PROT_WRITE) as u64) & 0xffff_ffff, 0);
    let above = |index: u8| word(index, Ge, doors::END);
    rules.insert(
        libc::SYS_mmap,
        vec![
            rule([plain(2)?, bits(3, KIND | FIXED, PRIVATE)?])?,
            rule([plain(2)?, bits(3, KIND | FIXED, PRIVATE | FIXED)?, above(0)?])?,
        ],
    );
    rules.insert(libc::SYS_mprotect, vec![rule([above(0)?, plain(2)?])?]);
    rules.insert(libc::SYS_munmap, vec![rule([above(0)?])?]);
    let stays = bits(3, !(libc::MREMAP_MAYMOVE as u64) & 0xffff_ffff, 0)?;
    rules.insert(libc::SYS_mremap, vec![rule([above(0)?, stays])?]);
    let advice = |advice: &i32| rule([above(0)?, int(2, Eq, *advice)?]);
    rules.insert(libc::SYS_madvise, ADVICE.iter().map(advice).collect::<Result<_, _>>()?);
    Ok(())
}

/// A new thread, yes; a process, no. A thread may put itself behind all others, and nobody else: its neighbours have its user.
fn threads(rules: &mut Rules) -> Result<(), Error> {
    rules.insert(libc::SYS_clone, vec![rule([word(0, Eq, THREAD)?])?]);
    rules.insert(libc::SYS_sched_setscheduler, vec![rule([int(0, Eq, 0)?, int(1, Eq, libc::SCHED_IDLE)?])?]);
    rules.insert(libc::SYS_prctl, one_of(0, &[libc::PR_SET_NAME, libc::PR_SET_NO_NEW_PRIVS])?);
    Ok(())
}

fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(conditions.into())?)
}

fn one_of(index: u8, values: &[i32]) -> Result<Vec<SeccompRule>, Error> {
    values.iter().map(|value| rule([int(index, Eq, *value)?])).collect()
}

/// An argument that the kernel takes as 32 bits.
fn int(index: u8, op: SeccompCmpOp, value: impl TryInto<u32>) -> Result<SeccompCondition, Error> {
    let value = value.try_into().map_err(|_| "no such constant")?;
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, u64::from(value))?)
}

/// An argument that the kernel takes as 64 bits.
fn word(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Qword, op, value)?)
}

fn bits(index: u8, mask: u64, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Qword, MaskedEq(mask), value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a part of the program as the kernel would; nothing where it goes on to what follows.
    fn told(program: &[sock_filter], [arch, number, argument]: [u32; 3]) -> Option<u32> {
        let (mut at, mut value) = (0, 0);
        while let Some(step) = program.get(at) {
            at += 1;
            let (jt, jf) = (usize::from(step.jt), usize::from(step.jf));
            at += match step.code {
                LOAD => {
                    value = match step.k {
                        ARCH_AT => arch,
                        NUMBER_AT => number,
                        _ => argument,
                    };
                    0
                }
                IF_EQUAL if value == step.k => jt,
                IF_MORE if value > step.k => jt,
                IF_NOT_LESS if value >= step.k => jt,
                AND => {
                    value &= step.k;
                    0
                }
                RETURN => return Some(step.k),
                _ => jf,
            };
        }
        assert_eq!(at, program.len(), "a jump beyond the end");
        None
    }

    const I386: u32 = 0x4000_0003;

    #[test]
    fn files_are_closed_to_who_only_reads() {
        let program = opened(libc::SYS_openat, THIRD_ARGUMENT_AT).unwrap();
        let call = u32::try_from(libc::SYS_openat).unwrap();
        let told = |arch, number, flags: i32| told(&program, [arch, number, flags.cast_unsigned()]);
        let refused = Some(libc::SECCOMP_RET_ERRNO | libc::EACCES as u32);
        for flags in [libc::O_RDONLY, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY, libc::O_PATH] {
            assert_eq!(told(X86_64, call, flags), refused);
            assert_eq!(told(X86_64, call + 1, flags), None);
            assert_eq!(told(I386, call, flags), None);
        }
        for flags in [libc::O_RDWR | libc::O_CREAT, libc::O_WRONLY] {
            assert_eq!(told(X86_64, call, flags), Some(libc::SECCOMP_RET_ALLOW));
            assert_eq!(told(X86_64, call + 1, flags), None);
            assert_eq!(told(I386, call, flags), None);
        }
    }

    #[test]
    fn only_own_threads_get_signals() {
        let program = own_signals().unwrap();
        let (call, own) = (u32::try_from(libc::SYS_tgkill).unwrap(), std::process::id());
        let refused = Some(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        assert_eq!(told(&program, [X86_64, call, own]), Some(libc::SECCOMP_RET_ALLOW));
        assert_eq!(told(&program, [X86_64, call, own + 1]), refused);
        assert_eq!(told(&program, [X86_64, call + 1, own]), None);
        assert_eq!(told(&program, [I386, call, own]), None);
    }

    #[test]
    fn the_tree_passes_what_is_allowed_and_nothing_else() {
        let program = by_number(ALLOWED).unwrap();
        let allow = Some(libc::SECCOMP_RET_ALLOW);
        for number in (0..1_000).chain([0x4000_0000, u32::MAX]) {
            let expected = match i64::from(number) {
                libc::SYS_clone3 => Some(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
                number if ALLOWED.contains(&number) => allow,
                _ => None,
            };
            assert_eq!(told(&program, [X86_64, number, 0]), expected, "{number}");
            assert_eq!(told(&program, [I386, number, 0]), None);
        }
        let one = by_number(&[7]).unwrap();
        assert_eq!([6, 7, 8].map(|number| told(&one, [X86_64, number, 0])), [None, allow, None]);
    }
}
