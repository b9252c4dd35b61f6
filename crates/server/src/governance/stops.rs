//! Workspaces whose writes have stopped by themselves. Plain: no clock.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::time::{Duration, Instant};

/// Workspaces with failures that are remembered.
const WORKSPACES_MAX: usize = 10_000;

/// Failures that are not old yet, and what came of them.
#[derive(Debug, Default)]
pub(super) struct Stops {
    failures: HashMap<String, VecDeque<Instant>>,
    stopped: BTreeMap<String, Instant>,
}

impl Stops {
    /// A write has failed in a way that a healthy workspace's does not. Whether that was one too many.
    pub(super) fn failed(
        &mut self,
        workspace: &str,
        failures_max: u32,
        window: Duration,
        now: Instant,
    ) -> bool {
        self.failures.retain(|_, at| at.back().is_some_and(|last| now.duration_since(*last) < window));
        if self.failures.len() >= WORKSPACES_MAX && !self.failures.contains_key(workspace) {
            return false;
        }
        let failures = self.failures.entry(workspace.to_owned()).or_default();
        failures.push_back(now);
        while failures.front().is_some_and(|first| now.duration_since(*first) >= window) {
            failures.pop_front();
        }
        if failures.len() < failures_max as usize || self.stopped.contains_key(workspace) {
            return false;
        }
        self.failures.remove(workspace);
        self.stopped.insert(workspace.to_owned(), now);
        true
    }

    /// Opens a workspace again. Whether it was stopped.
    pub(super) fn reopen(&mut self, workspace: &str) -> bool {
        self.failures.remove(workspace);
        self.stopped.remove(workspace).is_some()
    }

    pub(super) fn is_stopped(&self, workspace: &str) -> bool {
        self.stopped.contains_key(workspace)
    }

    /// Those that are stopped, and since when.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, Instant)> {
        self.stopped.iter().map(|(workspace, since)| (workspace.as_str(), *since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_mins(1);

    #[test]
    fn too_many_failures_within_the_window_stop_one_workspace_until_it_is_reopened() {
        let (mut stops, start) = (Stops::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert!(!stops.failed("a", 3, WINDOW, at(0)));
        assert!(!stops.failed("a", 3, WINDOW, at(50)));
        // The first is forgotten by now.
        assert!(!stops.failed("a", 3, WINDOW, at(70)));
        assert!(!stops.failed("b", 3, WINDOW, at(70)));
        assert!(stops.failed("a", 3, WINDOW, at(71)));
        assert!(stops.is_stopped("a") && !stops.is_stopped("b"));
        // It trips once, however many statements were under way.
        assert!(!stops.failed("a", 3, WINDOW, at(72)));
        assert_eq!(stops.all().collect::<Vec<_>>(), [("a", at(71))]);
        assert!(stops.reopen("a") && !stops.reopen("a"));
        assert!(!stops.failed("a", 3, WINDOW, at(73)));
    }
}
