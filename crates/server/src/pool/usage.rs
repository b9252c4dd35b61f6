//! What the kernel says that a process uses. All but [`text`] is plain: it reads what that has fetched.

use std::fs::File;
use std::io::Read;

/// What the kernel keeps for a thread: its stack there, 16 KiB, and a dozen structures.
const THREAD_BYTES: u64 = 32 << 10;
/// A clock tick of `/proc` is a hundredth of a second on every Linux machine (`USER_HZ`, proc(5)).
const TICK_MS: u64 = 10;

/// `/proc/{pid}/{file}`, if there is such a process.
pub(super) fn text(pid: i32, file: &str) -> Option<String> {
    // Room for all of it: the kernel does not tell the size, and reading on in small steps is a call for each.
    let mut text = String::with_capacity(4 << 10);
    File::open(format!("/proc/{pid}/{file}")).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// The memory that a process alone uses, bytes. `code_bytes` of what is counted as shared memory are the same pages in all workers.
pub(super) fn memory_bytes(status: &str, code_bytes: u64) -> Option<u64> {
    // Where there are none a kernel may leave a line out; without the first, this is a process that has ended.
    let number = |name: &str| kibibytes(status, name).unwrap_or(0);
    let anonymous = kibibytes(status, "RssAnon:")?;
    let shared = (number("RssShmem:") << 10).saturating_sub(code_bytes);
    Some(((anonymous + number("VmPTE:")) << 10) + shared + number("Threads:") * THREAD_BYTES)
}

/// The most memory that it ever had, bytes: `VmHWM` of its `status`, so with what it shares with others.
pub(super) fn memory_bytes_peak(status: &str) -> Option<u64> {
    kibibytes(status, "VmHWM:").map(|kib| kib << 10)
}

/// Its processor time, milliseconds: `utime` and `stime` of its `stat`.
pub(super) fn cpu_ms(stat: &str) -> Option<u64> {
    // The program's name may hold blanks and brackets.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) * TICK_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_a_worker_alone_makes_the_machine_hold() {
        let status = "Name:\tduck-worker\nVmPTE:\t     400 kB\nRssAnon:\t    1000 kB\nRssFile:\t   90000 kB\nRssShmem:\t      24 kB\nThreads:\t3\n";
        assert_eq!(memory_bytes(status, 0), Some((1_424 << 10) + 3 * THREAD_BYTES));
        for (code, left) in [(4 << 10, 20), (24 << 10, 0), (9 << 20, 0)] {
            assert_eq!(memory_bytes(status, code), Some(((1_400 + left) << 10) + 3 * THREAD_BYTES));
        }
        assert_eq!(memory_bytes("RssAnon:\t       8 kB\n", 0), Some(8 << 10));
        assert_eq!(memory_bytes("Name:\tduck-worker\nState:\tZ (zombie)\n", 0), None);
    }

    #[test]
    fn processor_time_and_peak_are_read_as_the_kernel_writes_them() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 90 0 0 0 12 30 0 0 20 0 3 0 1 2 3";
        assert_eq!(cpu_ms(stat), Some(420));
        assert_eq!(cpu_ms(""), None);
        assert_eq!(memory_bytes_peak("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
    }
}
