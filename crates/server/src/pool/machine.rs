//! What this process may use: memory, cores, disk.

use std::fs;
use std::path::Path;

/// What the machine, or the control group that this process is in, gives it.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Memory, MiB.
    pub memory_mb: u64,
    /// Cores.
    pub cores: u32,
    /// Free disk below the runtime folder, MiB.
    pub disk_mb: u64,
}

impl Machine {
    /// This one; `folder` is where spilled data will lie.
    pub fn this(folder: &Path) -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let disk = rustix::fs::statvfs(folder).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
        Machine {
            memory_mb: memory_bytes(Path::new("/")) >> 20,
            cores: u32::try_from(cores).unwrap_or(1),
            disk_mb: disk >> 20,
        }
    }
}

/// The machine's memory, or less where a control group above this process says so. `root` is `/` outside of tests.
fn memory_bytes(root: &Path) -> u64 {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let total = read("proc/meminfo")
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map_or(u64::MAX, |kb| kb << 10);
    let groups = read("proc/self/cgroup");
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        // Version 2 has one hierarchy and no names; version 1 one for each controller.
        let (base, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            "memory" => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        // In a container the path may be the host's, and the group's own files lie at the top.
        let path = Path::new(path.trim_start_matches('/'));
        path.ancestors()
            .filter_map(|group| {
                let file = root.join(base).join(group).join(file);
                fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
            })
            .collect()
    });
    limits.fold(total, u64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        memory_bytes(root.path()) >> 20
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       4194304 kB\nMemFree: 1 kB\n");

    #[test]
    fn the_smallest_limit_above_this_process_counts() {
        assert_eq!(memory(&[MEMINFO]), 4_096);
        let group = ("proc/self/cgroup", "0::/system.slice/duck.service\n");
        let gb = ("sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
        let none = ("sys/fs/cgroup/system.slice/duck.service/memory.max", "max\n");
        assert_eq!(memory(&[MEMINFO, group, none]), 4_096);
        assert_eq!(memory(&[MEMINFO, group, none, gb]), 1_024);
        // A container: the path is one of the host's.
        assert_eq!(memory(&[MEMINFO, group, ("sys/fs/cgroup/memory.max", "536870912")]), 512);
        let old = ("proc/self/cgroup", "4:memory:/docker/x\n1:cpu:/\n");
        assert_eq!(memory(&[MEMINFO, old, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456")]), 256);
    }
}
