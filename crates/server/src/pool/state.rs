//! The pool's decisions, as plain data: no async, no clock, no process.

use std::collections::HashMap;
use std::hash::Hash;

use tokio::time::{Duration, Instant};

/// What to do about a wish for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step<K, W, S> {
    /// This one is there; it is leased now.
    Hit(W),
    /// One is being started: wait for it.
    Join(S),
    /// There is room: start one.
    Start,
    /// There is no room, but this idle one may go; it is out of the pool now. End it, then start.
    Evict(K, W),
    /// Every worker is leased: wait until something changes.
    Wait,
}

/// The workers there are: `K` names what a worker is for, `W` is a worker, `S` one that is being started.
pub(crate) struct State<K, W, S> {
    workers_max: usize,
    entries: HashMap<K, Entry<W, S>>,
}

enum Entry<W, S> {
    Starting(S),
    Ready { worker: W, id: u64, leases: usize, used: Instant, born: Instant, served: u64 },
}

impl<K: Clone + Eq + Hash, W: Clone, S: Clone> State<K, W, S> {
    pub(crate) fn new(workers_max: usize) -> Self {
        State { workers_max, entries: HashMap::new() }
    }

    /// Decides. After `Start` and `Evict` the caller must call [`State::starting`] before the lock is given up.
    pub(crate) fn want(&mut self, key: &K, now: Instant) -> Step<K, W, S> {
        match self.entries.get_mut(key) {
            Some(Entry::Ready { worker, leases, used, served, .. }) => {
                *leases += 1;
                *served += 1;
                *used = now;
                return Step::Hit(worker.clone());
            }
            Some(Entry::Starting(start)) => return Step::Join(start.clone()),
            None => {}
        }
        if self.entries.len() < self.workers_max {
            return Step::Start;
        }
        let idle = self.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Ready { leases: 0, used, .. } => Some((*used, key)),
            _ => None,
        });
        let Some(victim) = idle.min_by_key(|(used, _)| *used).map(|(_, key)| key.clone()) else {
            return Step::Wait;
        };
        match self.entries.remove(&victim) {
            Some(Entry::Ready { worker, .. }) => Step::Evict(victim, worker),
            _ => Step::Wait,
        }
    }

    /// A start is under way. It holds the place that its worker will have.
    pub(crate) fn starting(&mut self, key: K, start: S) {
        self.entries.insert(key, Entry::Starting(start));
    }

    /// The start has succeeded.
    pub(crate) fn started(&mut self, key: K, worker: W, id: u64, now: Instant) {
        let entry = Entry::Ready { worker, id, leases: 0, used: now, born: now, served: 0 };
        self.entries.insert(key, entry);
    }

    /// The start has failed.
    pub(crate) fn failed(&mut self, key: &K) {
        if matches!(self.entries.get(key), Some(Entry::Starting(_))) {
            self.entries.remove(key);
        }
    }

    /// A lease of this very worker has ended.
    pub(crate) fn returned(&mut self, key: &K, worker: u64, now: Instant) {
        if let Some(Entry::Ready { id, leases, used, .. }) = self.entries.get_mut(key)
            && *id == worker
        {
            *leases -= 1;
            *used = now;
        }
    }

    /// Takes this very worker out; nobody gets it any more.
    pub(crate) fn retire(&mut self, key: &K, worker: u64) -> Option<W> {
        match self.entries.get(key) {
            Some(Entry::Ready { id, .. }) if *id == worker => match self.entries.remove(key) {
                Some(Entry::Ready { worker, .. }) => Some(worker),
                _ => None,
            },
            _ => None,
        }
    }

    /// Takes out the idle workers that have been idle for too long, are too old, or have served enough.
    pub(crate) fn expire(&mut self, idle: Duration, age: Duration, statements: u64, now: Instant) -> Vec<W> {
        let done: Vec<K> = self
            .entries
            .iter()
            .filter(|(_, entry)| match entry {
                Entry::Ready { leases: 0, used, born, served, .. } => {
                    now.duration_since(*used) >= idle
                        || now.duration_since(*born) >= age
                        || *served >= statements
                }
                _ => false,
            })
            .map(|(key, _)| key.clone())
            .collect();
        done.iter()
            .filter_map(|key| match self.entries.remove(key) {
                Some(Entry::Ready { worker, .. }) => Some(worker),
                _ => None,
            })
            .collect()
    }

    /// Takes out everything that is ready.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        self.entries
            .drain()
            .filter_map(|(_, entry)| match entry {
                Entry::Ready { worker, .. } => Some(worker),
                Entry::Starting(_) => None,
            })
            .collect()
    }

    /// The workers that are ready.
    pub(crate) fn ready(&self) -> Vec<W> {
        self.entries
            .values()
            .filter_map(|entry| match entry {
                Entry::Ready { worker, .. } => Some(worker.clone()),
                Entry::Starting(_) => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Plain = State<u8, u64, u64>;

    fn at(ms: u64) -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_millis(ms)
    }

    #[test]
    fn the_least_recently_used_idle_worker_goes_first() {
        let mut state = Plain::new(2);
        for (key, ms) in [(1, 10), (2, 20)] {
            assert_eq!(state.want(&key, at(ms)), Step::Start);
            state.starting(key, 0);
            state.started(key, u64::from(key), u64::from(key), at(ms));
        }
        assert_eq!(state.want(&1, at(30)), Step::Hit(1));
        assert_eq!(state.want(&3, at(40)), Step::Evict(2, 2));
        state.starting(3, 0);
        // 1 is leased and 3 is starting: nothing may go.
        assert_eq!(state.want(&4, at(50)), Step::Wait);
        state.returned(&1, 1, at(60));
        assert_eq!(state.want(&4, at(70)), Step::Evict(1, 1));
    }

    #[test]
    fn a_late_return_does_not_touch_the_worker_that_came_after() {
        let mut state = Plain::new(1);
        state.started(1, 7, 7, at(0));
        assert_eq!(state.want(&1, at(1)), Step::Hit(7));
        assert_eq!(state.retire(&1, 7), Some(7));
        state.started(1, 8, 8, at(2));
        state.returned(&1, 7, at(3));
        assert_eq!(state.want(&1, at(4)), Step::Hit(8));
        assert_eq!(state.retire(&1, 7), None);
    }

    proptest! {
        /// Whatever happens: never above the ceiling, never two workers for one key, never a leased worker evicted.
        #[test]
        fn any_history_keeps_the_promises(ceiling in 1_usize..4, acts in prop::collection::vec((0_u8..4, 0_u8..5), 1..200)) {
            let mut state = Plain::new(ceiling);
            let mut next_id = 0;
            let mut leased: Vec<(u8, u64)> = Vec::new();
            let mut starting: Vec<u8> = Vec::new();
            for (step, (act, key)) in acts.into_iter().enumerate() {
                let now = at(step as u64);
                match act {
                    0 | 1 => match state.want(&key, now) {
                        Step::Hit(id) => leased.push((key, id)),
                        Step::Start => { state.starting(key, 0); starting.push(key); }
                        Step::Evict(victim, id) => {
                            prop_assert!(!leased.contains(&(victim, id)));
                            state.starting(key, 0);
                            starting.push(key);
                        }
                        Step::Join(_) => prop_assert!(starting.contains(&key)),
                        Step::Wait => {}
                    },
                    2 => if let Some(key) = starting.pop() {
                        next_id += 1;
                        if next_id % 3 == 0 { state.failed(&key) } else { state.started(key, next_id, next_id, now) }
                    },
                    _ => if let Some((key, id)) = leased.pop() { state.returned(&key, id, now) },
                }
                prop_assert!(state.entries.len() <= ceiling);
            }
        }
    }
}
