//! What the kernel says that a process uses.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What the kernel keeps for a thread: its stack there, 16 KiB, and a dozen structures.
const THREAD_BYTES: u64 = 32 << 10;
/// A clock tick of `/proc` is a hundredth of a second on every Linux machine (`USER_HZ`, proc(5)).
const TICK_MS: u64 = 10;
/// More than either file has, as a rule.
const TEXT_BYTES: usize = 4 << 10;

/// Two files of a process in `/proc`. They stay open: to open one takes longer than to read it, and a pid may come to mean another
/// process, which an open file does not.
pub(super) struct Usage {
    status: File,
    stat: File,
}

impl Usage {
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let open = |file| File::open(format!("/proc/{pid}/{file}"));
        Ok(Usage { status: open("status")?, stat: open("stat")? })
    }

    /// The memory that it alone uses, bytes; nothing once it has ended. `code_bytes` of what is counted as shared memory are the same
    /// pages in all workers.
    pub(super) fn memory_bytes(&self, code_bytes: u64) -> Option<u64> {
        memory_bytes(&text(&self.status)?, code_bytes)
    }

    /// The most memory that it ever had, bytes, with what it shares with others.
    pub(super) fn memory_bytes_peak(&self) -> Option<u64> {
        memory_bytes_peak(&text(&self.status)?)
    }

    /// Its processor time so far, milliseconds.
    pub(super) fn cpu_ms(&self) -> Option<u64> {
        cpu_ms(&text(&self.stat)?)
    }
}

/// All of it, which the kernel writes anew for whoever reads from the beginning.
fn text(file: &File) -> Option<String> {
    let (mut text, mut length) = (vec![0; TEXT_BYTES], 0);
    loop {
        match file.read_at(&mut text[length..], length as u64).ok()? {
            0 => break,
            more => length += more,
        }
        // Who is in hundreds of groups has a long `status`.
        if length == text.len() {
            text.resize(2 * length, 0);
        }
    }
    text.truncate(length);
    String::from_utf8(text).ok()
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn memory_bytes(status: &str, code_bytes: u64) -> Option<u64> {
    // Where there are none a kernel may leave a line out; without the first, this is a process that has ended.
    let number = |name: &str| kibibytes(status, name).unwrap_or(0);
    let anonymous = kibibytes(status, "RssAnon:")?;
    let shared = (number("RssShmem:") << 10).saturating_sub(code_bytes);
    Some(((anonymous + number("VmPTE:")) << 10) + shared + number("Threads:") * THREAD_BYTES)
}

fn memory_bytes_peak(status: &str) -> Option<u64> {
    kibibytes(status, "VmHWM:").map(|kib| kib << 10)
}

fn cpu_ms(stat: &str) -> Option<u64> {
    // `utime` and `stime`. The program's name may hold blanks and brackets.
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
    fn a_process_is_read_for_as_long_as_it_lives() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let usage = Usage::of(sleeper.id().cast_signed()).unwrap();
        let all = || (usage.memory_bytes(0), usage.memory_bytes_peak(), usage.cpu_ms());
        for _ in 0..2 {
            assert!(matches!(all(), (Some(1..), Some(1..), Some(_))), "{:?}", all());
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(all(), (None, None, None));
    }

    #[test]
    fn processor_time_and_peak_are_read_as_the_kernel_writes_them() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 90 0 0 0 12 30 0 0 20 0 3 0 1 2 3";
        assert_eq!(cpu_ms(stat), Some(420));
        assert_eq!(cpu_ms(""), None);
        assert_eq!(memory_bytes_peak("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
    }
}
