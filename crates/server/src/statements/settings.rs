//! What can be set about kept statements, and what is wrong with it.

use serde::{Deserialize, Serialize};

use super::spool::SMALL_BYTES;

const MIB: u64 = 1 << 20;

/// How many statements are kept, how large their answers may be, and for how long.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Statements that are kept, those that have not ended included.
    pub count_max: usize,
    /// The same of one workspace.
    pub tenant_count_max: usize,
    /// Bytes of one answer. Without it: `tenant_bytes_max`, at most 1 GiB.
    pub result_bytes_max: Option<u64>,
    /// Bytes of one workspace's answers together. Without it: a quarter of `bytes_max`.
    pub tenant_bytes_max: Option<u64>,
    /// Bytes of all answers together. Without it: a tenth of what is free on the runtime folder's disk.
    pub bytes_max: Option<u64>,
    /// From a statement's end until it is forgotten with its answer, milliseconds.
    pub keep_ms_max: u64,
    /// A request waits no longer than that for a statement's end, milliseconds.
    pub wait_ms_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            count_max: 2_048,
            tenant_count_max: 256,
            result_bytes_max: None,
            tenant_bytes_max: None,
            bytes_max: None,
            keep_ms_max: 3_600_000,
            wait_ms_max: 50_000,
        }
    }
}

/// Sizes, after what was not said has been set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) result: u64,
    pub(super) tenant: u64,
    pub(super) all: u64,
}

impl Settings {
    /// Sets what was not said by what the disk has free, MiB. Spilled data may take the other nine tenths.
    pub fn fill(&mut self, disk_mb: u64) {
        let free = disk_mb.saturating_mul(MIB);
        let all = *self.bytes_max.get_or_insert((free / 10).clamp(64 * MIB, 65_536 * MIB));
        let tenant = *self.tenant_bytes_max.get_or_insert(all / 4);
        self.result_bytes_max.get_or_insert(tenant.min(1_024 * MIB));
    }

    pub(super) fn sizes(&self) -> Sizes {
        let of = |size: Option<u64>| size.unwrap_or(0);
        Sizes {
            result: of(self.result_bytes_max),
            tenant: of(self.tenant_bytes_max),
            all: of(self.bytes_max),
        }
    }

    /// Everything that is wrong with the settings.
    pub fn faults(&self) -> Vec<String> {
        let Sizes { result, tenant, all } = self.sizes();
        let mut faults = Vec::new();
        for (name, value) in [
            ("count_max", self.count_max as u64),
            ("tenant_count_max", self.tenant_count_max as u64),
            ("keep_ms_max", self.keep_ms_max),
        ] {
            if value == 0 {
                faults.push(format!("statements.{name}: 0 would keep nothing"));
            }
        }
        if result < SMALL_BYTES {
            faults.push(format!("statements.result_bytes_max: at least {SMALL_BYTES}"));
        }
        if tenant < result {
            faults.push("statements.tenant_bytes_max: less than statements.result_bytes_max".to_owned());
        }
        if all < tenant {
            faults.push("statements.bytes_max: less than statements.tenant_bytes_max".to_owned());
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_a_disk_is_sound_and_what_contradicts_is_named() {
        for disk_mb in [0, 1_000, 100_000, u64::MAX >> 20] {
            let mut settings = Settings::default();
            settings.fill(disk_mb);
            assert_eq!(settings.faults(), Vec::<String>::new(), "{disk_mb}");
        }
        let mut settings = Settings {
            count_max: 0,
            result_bytes_max: Some(9 * MIB),
            tenant_bytes_max: Some(8 * MIB),
            bytes_max: Some(7 * MIB),
            ..Settings::default()
        };
        settings.fill(1_000);
        assert_eq!(settings.faults().len(), 3, "{:?}", settings.faults());
    }
}
