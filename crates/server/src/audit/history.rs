//! The last records of each workspace. Plain.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use duck_contract::audit::AuditRecord;

/// Workspaces whose records are kept; the one that was quiet for longest gives way.
const WORKSPACES_MAX: usize = 1_024;

/// Bounded by records of one workspace, by workspaces and by bytes of all.
pub(super) struct History {
    records_max: usize,
    bytes_max: usize,
    bytes: usize,
    clock: u64,
    all: HashMap<String, Own>,
}

#[derive(Default)]
struct Own {
    records: VecDeque<(Arc<AuditRecord>, usize)>,
    bytes: usize,
    last: u64,
}

impl History {
    pub(super) fn new(records_max: usize, bytes_max: usize) -> Self {
        History { records_max, bytes_max, bytes: 0, clock: 0, all: HashMap::new() }
    }

    /// Keeps a record that takes so many bytes.
    pub(super) fn keep(&mut self, record: Arc<AuditRecord>, bytes: usize) {
        if self.records_max == 0 || record.workspace.is_empty() {
            return;
        }
        if self.all.len() >= WORKSPACES_MAX && !self.all.contains_key(&record.workspace) {
            let quiet = self.all.iter().min_by_key(|(_, own)| own.last).map(|(name, _)| name.clone());
            if let Some(own) = quiet.and_then(|name| self.all.remove(&name)) {
                self.bytes -= own.bytes;
            }
        }
        self.clock += 1;
        let own = self.all.entry(record.workspace.clone()).or_default();
        own.last = self.clock;
        own.records.push_back((record, bytes));
        own.bytes += bytes;
        self.bytes += bytes;
        if own.records.len() > self.records_max {
            self.bytes -= own.forget();
        }
        while self.bytes > self.bytes_max {
            // Whoever has most gives way, so that nobody pushes out others.
            let Some(largest) = self.all.values_mut().max_by_key(|own| own.bytes) else { return };
            self.bytes -= largest.forget();
        }
    }

    /// A workspace's records, the newest first.
    pub(super) fn of(&self, workspace: &str, limit: usize) -> Vec<Arc<AuditRecord>> {
        let own = self.all.get(workspace);
        let records = own.into_iter().flat_map(|own| own.records.iter().rev());
        records.take(limit).map(|(record, _)| record.clone()).collect()
    }
}

impl Own {
    /// Forgets the oldest: its bytes.
    fn forget(&mut self) -> usize {
        let bytes = self.records.pop_front().map_or(0, |(_, bytes)| bytes);
        self.bytes -= bytes;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::record;
    use super::*;

    proptest! {
        #[test]
        fn any_records_stay_within_every_bound_and_a_quiet_workspace_keeps_its_own(
            kept in prop::collection::vec((0_u8..4, 1_usize..50), 1..200)
        ) {
            let mut history = History::new(10, 200);
            history.keep(Arc::new(record("quiet", "q")), 10);
            for (at, (workspace, bytes)) in kept.iter().enumerate() {
                history.keep(Arc::new(record(&workspace.to_string(), &at.to_string())), *bytes);
                let sum: usize = history.all.values().flat_map(|own| &own.records).map(|(_, bytes)| bytes).sum();
                prop_assert!(sum == history.bytes && sum <= 200);
                prop_assert!(history.all.values().all(|own| own.records.len() <= 10));
            }
            prop_assert_eq!(history.of("quiet", 5).len(), 1);
            for workspace in 0..4_u8 {
                let ids: Vec<usize> = history.of(&workspace.to_string(), 10).iter().map(|r| r.request_id.parse().unwrap()).collect();
                let expected: Vec<usize> = (0..kept.len()).rev().filter(|at| kept[*at].0 == workspace).take(ids.len()).collect();
                prop_assert_eq!(ids, expected);
            }
        }
    }

    #[test]
    fn workspaces_are_bounded() {
        let mut history = History::new(10, 1 << 20);
        for at in 0..WORKSPACES_MAX + 10 {
            history.keep(Arc::new(record(&format!("w{at}"), "x")), 1);
        }
        assert_eq!((history.all.len(), history.bytes), (WORKSPACES_MAX, WORKSPACES_MAX));
        assert!(history.of("w0", 1).is_empty() && history.of("w20", 1).len() == 1);
    }
}
