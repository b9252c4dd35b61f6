//! Fork, user, signals, descriptors.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;

/// Read by jemalloc at its start. One arena: a worker has few threads at work, and each arena keeps pages of its own in every one of them.
/// A thread's cache is looked through for what to give back after a megabyte of allocations instead of 64 KiB.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &u8 = &b"narenas:1,tcache_gc_incr_bytes:1048576\0"[0];

/// Where a child finds its control socket after [`keep_only`].
const CONTROL: RawFd = 3;
/// Where a child finds its listening socket after [`keep_only`].
const LISTENER: RawFd = 4;

/// The two sides of [`fork`].
pub(crate) enum Forked {
    /// In the parent, with the child's pid.
    Parent(i32),
    /// In the child.
    Child,
}

unsafe extern "C" {
    /// Of POSIX 2024, in glibc since 2.34.
    fn _Fork() -> libc::pid_t;
}

/// Forks without the handlers that libraries have left for it. Those of jemalloc, of which DuckDB and each extension bring one, take
/// every lock there is before and let go of it after, which makes 80 pages of their own in parent and child: 0.4 ms and 0.3 MB each.
///
/// Refuses when this process has more than one thread: the others would not exist in the child, but what they had locked
/// would stay locked. Of one thread alone nothing is locked here.
pub(crate) fn fork() -> io::Result<Forked> {
    let threads = threads()?;
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads, and only a process of one can be forked")));
    }
    // SAFETY: there is one thread, so the child is a whole copy and may do anything the parent may.
    match unsafe { _Fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Whether a process can be started; if so, it ends at once. Looks at nothing that is closed to a worker, as [`fork`] does.
pub(crate) fn try_fork() -> io::Result<()> {
    // SAFETY: the child does nothing but end.
    match unsafe { _Fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => exit_now(0),
        _ => Ok(()),
    }
}

/// How many threads this process has. Landlock binds one thread, so this must be 1 when it is applied.
pub(crate) fn threads() -> io::Result<usize> {
    let links = std::os::unix::fs::MetadataExt::nlink(&std::fs::metadata("/proc/self/task")?);
    // As every directory, and one for each thread.
    Ok(usize::try_from(links).unwrap_or(usize::MAX).saturating_sub(2))
}

/// Children are reaped by the kernel: nobody waits for them here.
pub(crate) fn ignore_children() {
    // SAFETY: SIG_IGN is a valid disposition and no handler of ours is replaced.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// A file beyond `RLIMIT_FSIZE` becomes an error of that write instead of the process's death.
pub(crate) fn ignore_file_size_signal() {
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Wipes the environment, also where `/proc/PID/environ` shows it. While there is one thread, and nobody has kept a pointer to it.
pub(crate) fn forget_environment() {
    unsafe extern "C" {
        static mut environ: *mut *mut libc::c_char;
    }
    // SAFETY: one thread, so nobody reads or changes it meanwhile; each entry is a text that ends with 0, and the list with null.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            libc::memset((*entry).cast(), 0, libc::strlen(*entry));
            *entry = std::ptr::null_mut();
            entry = entry.add(1);
        }
    }
}

/// Lets everything else of its control group go before a thread of this process (`SCHED_IDLE`; a hundredth of a core stays). By a
/// signal, so that the thread does so itself: a call that named it could name any process of this user.
pub(crate) fn lower(thread: i32) {
    static READY: Once = Once::new();
    extern "C" fn lower_this_one(_: libc::c_int) {
        // SAFETY: all zeros is the one parameter of that policy; a plain system call, which a handler may make; errno is put back as
        // the interrupted code had it.
        unsafe {
            let errno = *libc::__errno_location();
            let none: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none);
            *libc::__errno_location() = errno;
        }
    }
    READY.call_once(|| {
        // SAFETY: all zeros is an empty mask and no flags; the handler does what a handler may. What it interrupts goes on.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = lower_this_one as *const () as usize;
            action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        }
    });
    // SAFETY: a signal that has a handler, to a thread of this process; it can only fail when the thread is gone.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGUSR1) };
}

/// Becomes this user and group, for good, with no other groups.
pub(crate) fn become_user(uid: u32) -> io::Result<()> {
    // SAFETY: plain system calls on integers; a null list of length 0 is what setgroups documents for "none".
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(uid, uid, uid) == 0
            && libc::setresuid(uid, uid, uid) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor but the standard three, the control socket and the listener, which come back under fixed numbers.
/// Standard error becomes `stderr`, the other two `/dev/null`.
pub(crate) fn keep_only(
    control: OwnedFd,
    listener: OwnedFd,
    stderr: OwnedFd,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let wanted = [
        (null.into_raw_fd(), &[0, 1][..]),
        (stderr.into_raw_fd(), &[2][..]),
        (control.into_raw_fd(), &[CONTROL][..]),
        (listener.into_raw_fd(), &[LISTENER][..]),
    ];
    // First out of the way, so that no target is a source that is still needed.
    let mut sources = Vec::with_capacity(wanted.len());
    for (fd, _) in &wanted {
        // SAFETY: `fd` is open and ours.
        match unsafe { libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 16) } {
            -1 => return Err(io::Error::last_os_error()),
            high => sources.push(high),
        }
    }
    for (source, (_, targets)) in sources.iter().zip(&wanted) {
        for target in *targets {
            // SAFETY: `source` is open; what `target` was is closed by intent.
            if unsafe { libc::dup2(*source, *target) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    // SAFETY: closes only what nobody here uses any more: the template keeps no other descriptor (a test lists them).
    if unsafe { libc::close_range(LISTENER as u32 + 1, u32::MAX, 0) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both numbers were just made by dup2 and nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(CONTROL), OwnedFd::from_raw_fd(LISTENER)) })
}

/// Ends at once: no destructors, no exit handlers. For a forked child, whose copies of the template's objects are not its
/// own to tear down.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any code and does not return.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted() {
        let listed = || std::fs::read_dir("/proc/self/task").unwrap().count();
        // Other tests have threads as well, which come and go meanwhile.
        let agree = (0..1_000).any(|_| {
            let before = listed();
            threads().unwrap() == before && before == listed()
        });
        assert!(agree && threads().unwrap() > 1);
    }
}
