//! What the server and its workers use, from `/proc`.

use std::fs;
use std::io;

use serde::Serialize;

/// What there is of everything at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    /// Of each worker, kB.
    pub(super) workers_kb: Vec<u64>,
    /// This process, kB: server, clients of the test, and the embedded catalog where it runs.
    pub(super) server_kb: u64,
    /// This process and all that come from it, the template and spares included, kB.
    pub(super) all_kb: u64,
    /// Descriptors of this process.
    pub(super) fds: u64,
    /// What the figures of workers are.
    pub(super) kind: Kind,
}

/// How a worker's memory was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Private dirty pages and page tables: what its end gives back.
    #[default]
    Private,
    /// All anonymous pages and page tables: also those that it shares with the template, since a worker hides the rest from
    /// everybody but root.
    Anonymous,
}

impl Usage {
    /// Now. What ends meanwhile is left out.
    pub(super) fn now(workers: &[i32]) -> io::Result<Usage> {
        let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let mut usage = Usage { fds: fs::read_dir("/proc/self/fd")?.count() as u64, ..Usage::default() };
        let mut shared_kb = 0;
        for pid in family(own) {
            let Some(Memory { kb, shared, kind }) = memory(pid) else { continue };
            usage.all_kb += kb;
            shared_kb = shared_kb.max(shared);
            if pid == own {
                usage.server_kb = kb;
            } else if workers.contains(&pid) {
                usage.workers_kb.push(kb);
                if kind == Kind::Anonymous {
                    usage.kind = kind;
                }
            }
        }
        // The engine's code in large pages: the same in all of them.
        usage.all_kb += shared_kb;
        Ok(usage)
    }

    /// The higher of both, where a whole server is meant.
    pub(super) fn raise(&mut self, other: &Usage) {
        self.all_kb = self.all_kb.max(other.all_kb);
        self.fds = self.fds.max(other.fds);
    }
}

/// A process and all that come from it.
fn family(pid: i32) -> Vec<i32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(children(parent));
        next += 1;
    }
    found
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().map_while(Result::ok);
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

/// What one process has.
struct Memory {
    kb: u64,
    /// In files in memory.
    shared: u64,
    kind: Kind,
}

fn memory(pid: i32) -> Option<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let (tables, shared) = (kb(&status, "VmPTE")?, kb(&status, "RssShmem").unwrap_or(0));
    let private = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok();
    match private.as_deref().and_then(|text| kb(text, "Private_Dirty")) {
        Some(private) => Some(Memory { kb: private + tables, shared, kind: Kind::Private }),
        None => Some(Memory { kb: kb(&status, "RssAnon")? + tables, shared, kind: Kind::Anonymous }),
    }
}

/// A line `name:   number kB`.
fn kb(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// How many descriptors this process may have.
pub(super) fn fds_allowed() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_counts_is_read() {
        let text = "Name:\tduck\nVmPTE:\t      60 kB\nVmPTEs:\t 1 kB\nThreads:\t2\n";
        assert_eq!((kb(text, "VmPTE"), kb(text, "Threads"), kb(text, "Rss")), (Some(60), None, None));
    }

    #[test]
    fn this_process_uses_something() {
        let own = i32::try_from(std::process::id()).unwrap();
        let usage = Usage::now(&[]).unwrap();
        assert!(family(own).contains(&own) && usage.workers_kb.is_empty());
        assert!(usage.server_kb > 0 && usage.all_kb >= usage.server_kb && usage.fds > 2, "{usage:?}");
    }
}
