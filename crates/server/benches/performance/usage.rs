//! What processes use, from `/proc`.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use crate::Failed;

/// CPU time of some processes at one moment, by thread, nanoseconds. What a thread used after its last sample and before its
/// end is not seen.
pub(crate) struct Cpu(HashMap<String, u64>);

impl Cpu {
    /// Of these processes now.
    pub(crate) fn of(pids: &[u32]) -> Cpu {
        let threads =
            pids.iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten());
        let used = threads.map_while(Result::ok).filter_map(|thread| {
            let path = thread.path().join("schedstat");
            let used = fs::read_to_string(&path).ok()?.split_whitespace().next()?.parse().ok()?;
            Some((path.to_string_lossy().into_owned(), used))
        });
        Cpu(used.collect())
    }

    /// What was used since an earlier moment.
    pub(crate) fn since(&self, earlier: &Cpu) -> Duration {
        let used = self.0.iter().map(|(thread, now)| now - earlier.0.get(thread).unwrap_or(&0).min(now));
        Duration::from_nanos(used.sum())
    }
}

/// The children of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().map_while(Result::ok);
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// A line of `/proc/PID/{file}` that counts kB.
pub(crate) fn kb(pid: u32, file: &str, name: &str) -> Result<u64, Failed> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| format!("/proc/{pid}/{file} has no {name}").into())
}

/// Lets the peak of resident memory begin anew.
pub(crate) fn forget_peak(pid: u32) -> Result<(), Failed> {
    Ok(fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

/// The machine's load averages.
pub(crate) fn load() -> Result<String, Failed> {
    Ok(fs::read_to_string("/proc/loadavg")?.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
}
