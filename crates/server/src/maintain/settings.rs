//! What an operator writes about maintenance.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Clocks of this machine and of the store may be so far apart, and a last answer may take so long.
const MARGIN: Duration = Duration::from_secs(15);

/// Maintenance of warehouses: what is removed, and when.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The server itself maintains all warehouses so often, seconds; 0: never.
    pub every_s: u64,
    /// Whether it then removes what it finds, or only tells.
    pub remove: bool,
    /// What is younger is never removed, seconds. Longer than any statement or job of any engine that writes here.
    pub grace_s: u64,
    /// Where it keeps its journal, its lock, and how far it has come. Without it: `maintain` beside the ledger.
    pub dir: Option<PathBuf>,
    /// References of one warehouse held at once, 20 bytes each; a warehouse with more is gone through in parts.
    pub references_max: usize,
    /// Objects removed from one warehouse in one run.
    pub orphans_max: usize,
    /// For one warehouse, seconds. What is left then is left to the next run.
    pub warehouse_s_max: u64,
    /// Requests to the store at once.
    pub requests_max: usize,
    /// A data file with fewer bytes is counted as small.
    pub small_bytes: u64,
    /// Size at which the journal is set aside as `<name>.1`, which replaces the one before.
    pub journal_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            every_s: 0,
            remove: false,
            grace_s: 24 * 3_600,
            dir: None,
            references_max: 4_000_000,
            orphans_max: 100_000,
            warehouse_s_max: 4 * 3_600,
            requests_max: 4,
            small_bytes: 8 << 20,
            journal_bytes_max: 64 << 20,
        }
    }
}

impl Settings {
    /// Puts the folder beside the ledger where none is set.
    pub fn fill(&mut self, ledger: Option<&Path>) {
        if self.dir.is_none() {
            self.dir = ledger.and_then(Path::parent).map(|folder| folder.join("maintain"));
        }
    }

    /// Everything that is wrong with the settings, where a statement's files may wait so long for their commit.
    pub fn faults(&self, statement_max: Duration) -> Vec<String> {
        let mut faults = Vec::new();
        let grace_min = statement_max + MARGIN;
        if Duration::from_secs(self.grace_s) < grace_min {
            faults.push(format!(
                "maintain.grace_s: a statement may take {} s until its commit is settled, so at least {}",
                statement_max.as_secs(),
                grace_min.as_secs()
            ));
        }
        if self.every_s > 0 && self.dir.is_none() {
            faults.push("maintain.every_s: needs maintain.dir or storage.ledger_path".to_owned());
        }
        for (name, value) in [
            ("references_max", self.references_max),
            ("orphans_max", self.orphans_max),
            ("requests_max", self.requests_max),
        ] {
            if value == 0 {
                faults.push(format!("maintain.{name}: at least 1"));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_that_is_shorter_than_a_statement_is_refused() {
        let statement_max = Duration::from_secs(380);
        let faults = |grace_s| Settings { grace_s, ..Settings::default() }.faults(statement_max);
        assert_eq!((faults(394).len(), faults(395).len()), (1, 0));
        assert_eq!(Settings::default().faults(statement_max), Vec::<String>::new());
    }

    #[test]
    fn a_schedule_has_a_folder_for_its_journal() {
        let mut settings = Settings { every_s: 60, ..Settings::default() };
        assert_eq!(settings.faults(Duration::ZERO).len(), 1);
        settings.fill(Some(Path::new("/var/lib/duck/deletes.jsonl")));
        assert_eq!(settings.dir.as_deref(), Some(Path::new("/var/lib/duck/maintain")));
        assert_eq!(settings.faults(Duration::ZERO).len(), 0);
    }
}
