//! The pool's decisions, as plain data: no async, no clock, no process.
//!
//! Two things are short: places for workers (`workers_max`), and the memory that workers may use while they work
//! (`memory_max`). An idle worker needs a place only. Whoever gets neither waits in line; the first in line is served first,
//! and a worker that others wait for takes no new work once it has had its turn.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use tokio::time::{Duration, Instant};

/// A worker that was just started is kept for those who waited for it.
const HELD: Duration = Duration::from_millis(200);

/// What there is of everything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ceilings {
    /// Workers, whatever they do.
    pub(crate) workers_max: usize,
    /// The sum of the hard limits of all that work, bytes.
    pub(crate) memory_max: u64,
    /// How long a worker takes new statements while others wait.
    pub(crate) turn: Duration,
    /// When a worker has lived long enough.
    pub(crate) idle: Duration,
    pub(crate) age: Duration,
    pub(crate) statements_max: u64,
}

/// What to do about a wish for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step<W, S, F> {
    /// This one is there; it is leased now.
    Hit(W),
    /// One is being started: wait for it.
    Join(S),
    /// There is room: start one.
    Start,
    /// There is no room, but this idle one may go; it is out of the pool now. End it, then start.
    Evict(W),
    /// Nothing is free: ask again with this ticket when something has changed.
    Wait(u64),
    /// The last start has just failed.
    Refuse(F),
}

/// How much there is now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Gauges {
    /// Workers that are ready, those included that are being left.
    pub workers: usize,
    /// Workers on their way.
    pub starting: usize,
    /// Statements that have a worker.
    pub leases: usize,
    /// Requests that wait for a worker.
    pub tickets: usize,
    /// The sum of the hard limits of the workers that work, bytes.
    pub memory_bytes: u64,
    /// Starts since the server's own.
    pub starts: u64,
    /// Idle workers that had to make room.
    pub evictions: u64,
}

/// The workers there are: `K` names what a worker is for, `W` is a worker, `S` one that is being started, `F` why a start failed.
pub(crate) struct State<K, W, S, F> {
    ceilings: Ceilings,
    entries: HashMap<K, Entry<W, S>>,
    /// Taken out of the pool while somebody still uses them.
    leaving: HashMap<u64, (usize, u64)>,
    failed: HashMap<K, (Instant, F)>,
    line: VecDeque<(u64, K)>,
    tickets: u64,
    starts: u64,
    evictions: u64,
    closed: bool,
}

enum Entry<W, S> {
    Starting { start: S, memory: u64 },
    Ready(Ready<W>),
}

struct Ready<W> {
    worker: W,
    id: u64,
    memory: u64,
    leases: usize,
    /// Since when it has always been leased.
    busy: Instant,
    used: Instant,
    born: Instant,
    served: u64,
}

impl<W> Ready<W> {
    fn works(&self, now: Instant) -> bool {
        self.leases > 0 || (self.served == 0 && now.duration_since(self.born) < HELD)
    }
}

impl<K: Clone + Eq + Hash, W: Clone, S: Clone, F: Clone> State<K, W, S, F> {
    pub(crate) fn new(ceilings: Ceilings) -> Self {
        State {
            ceilings,
            entries: HashMap::new(),
            leaving: HashMap::new(),
            failed: HashMap::new(),
            line: VecDeque::new(),
            tickets: 0,
            starts: 0,
            evictions: 0,
            closed: false,
        }
    }

    /// Decides for a request that needs a worker of this hard limit (bytes). After `Start` and `Evict` the caller must call
    /// [`State::starting`] before the lock is given up; after `Wait`, ask again with the ticket, or [`State::leave`].
    pub(crate) fn want(&mut self, key: &K, memory: u64, ticket: Option<u64>, now: Instant) -> Step<W, S, F> {
        let step = self.decide(key, memory, ticket, now);
        if let (Some(ticket), false) = (ticket, matches!(step, Step::Wait(_))) {
            self.leave(ticket);
        }
        step
    }

    fn decide(&mut self, key: &K, memory: u64, ticket: Option<u64>, now: Instant) -> Step<W, S, F> {
        if let Some((until, fault)) = self.failed.get(key) {
            if now < *until {
                return Step::Refuse(fault.clone());
            }
            self.failed.remove(key);
        }
        let others_wait = self.line.iter().any(|(_, waiting)| waiting != key);
        let turn = self.ceilings.turn;
        let is_there = match self.entries.get_mut(key) {
            Some(Entry::Starting { start, .. }) => return Step::Join(start.clone()),
            Some(Entry::Ready(ready)) if ready.works(now) => {
                if others_wait && now.duration_since(ready.busy) >= turn {
                    return self.wait(key, ticket);
                }
                return Step::Hit(ready.lease(now));
            }
            entry => entry.is_some(),
        };
        let first_in_line = self.line.front().is_none_or(|(_, first)| first == key);
        if self.closed || !first_in_line || self.memory(now) + memory > self.ceilings.memory_max {
            return self.wait(key, ticket);
        }
        if let (true, Some(Entry::Ready(ready))) = (is_there, self.entries.get_mut(key)) {
            return Step::Hit(ready.lease(now));
        }
        if self.workers() < self.ceilings.workers_max {
            return Step::Start;
        }
        match self.least_recently_used(now).and_then(|victim| self.entries.remove(&victim)) {
            Some(Entry::Ready(Ready { worker, .. })) => {
                self.evictions += 1;
                Step::Evict(worker)
            }
            _ => self.wait(key, ticket),
        }
    }

    fn wait(&mut self, key: &K, ticket: Option<u64>) -> Step<W, S, F> {
        Step::Wait(ticket.unwrap_or_else(|| {
            self.tickets += 1;
            self.line.push_back((self.tickets, key.clone()));
            self.tickets
        }))
    }

    /// Whoever has this ticket no longer waits.
    pub(crate) fn leave(&mut self, ticket: u64) {
        self.line.retain(|(other, _)| *other != ticket);
    }

    fn least_recently_used(&self, now: Instant) -> Option<K> {
        let idle = self.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Ready(ready) if !ready.works(now) => Some((ready.used, key)),
            _ => None,
        });
        idle.min_by_key(|(used, _)| *used).map(|(_, key)| key.clone())
    }

    fn workers(&self) -> usize {
        self.entries.len() + self.leaving.len()
    }

    /// What all that work may use, bytes.
    fn memory(&self, now: Instant) -> u64 {
        let here = self.entries.values().map(|entry| match entry {
            Entry::Starting { memory, .. } => *memory,
            Entry::Ready(ready) if ready.works(now) => ready.memory,
            Entry::Ready(_) => 0,
        });
        here.sum::<u64>() + self.leaving.values().map(|(_, memory)| memory).sum::<u64>()
    }

    /// A start is under way. It holds the place and the memory that its worker will have.
    pub(crate) fn starting(&mut self, key: K, start: S, memory: u64) {
        self.starts += 1;
        self.entries.insert(key, Entry::Starting { start, memory });
    }

    /// The start has succeeded. False if the pool was closed in the meantime: the worker has no place then.
    pub(crate) fn started(&mut self, key: &K, worker: W, id: u64, now: Instant) -> bool {
        let Some(Entry::Starting { memory, .. }) = self.entries.get(key) else { return false };
        let ready =
            Ready { worker, id, memory: *memory, leases: 0, busy: now, used: now, born: now, served: 0 };
        self.entries.insert(key.clone(), Entry::Ready(ready));
        true
    }

    /// The start has failed. Where a moment is given, whoever asks again before it is told the same.
    pub(crate) fn failed(&mut self, key: &K, fault: F, until: Option<Instant>) {
        if matches!(self.entries.get(key), Some(Entry::Starting { .. })) {
            self.entries.remove(key);
        }
        if let Some(until) = until {
            self.failed.insert(key.clone(), (until, fault));
        }
    }

    /// A lease of this very worker has ended.
    pub(crate) fn returned(&mut self, key: &K, worker: u64, now: Instant) {
        if let Some(Entry::Ready(ready)) = self.entries.get_mut(key)
            && ready.id == worker
        {
            ready.leases -= 1;
            ready.used = now;
        } else if let Some((leases, _)) = self.leaving.get_mut(&worker) {
            *leases -= 1;
            if *leases == 0 {
                self.leaving.remove(&worker);
            }
        }
    }

    /// Takes this very worker out; nobody gets it any more.
    pub(crate) fn retire(&mut self, key: &K, worker: u64) -> Option<W> {
        match self.entries.get(key) {
            Some(Entry::Ready(ready)) if ready.id == worker => self.take(key),
            _ => None,
        }
    }

    fn take(&mut self, key: &K) -> Option<W> {
        let Some(Entry::Ready(ready)) = self.entries.remove(key) else { return None };
        if ready.leases > 0 {
            self.leaving.insert(ready.id, (ready.leases, ready.memory));
        }
        Some(ready.worker)
    }

    /// Takes out the idle workers that have been idle for too long, are too old, or have served enough, and forgets old failures.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<W> {
        let Ceilings { idle, age, statements_max, .. } = self.ceilings;
        self.failed.retain(|_, (until, _)| now < *until);
        self.take_where(|ready| {
            !ready.works(now)
                && (now.duration_since(ready.used) >= idle
                    || now.duration_since(ready.born) >= age
                    || ready.served >= statements_max)
        })
    }

    /// Takes out everything, and hands out nothing more.
    pub(crate) fn close(&mut self) -> Vec<W> {
        self.closed = true;
        let taken = self.take_where(|_| true);
        self.entries.clear();
        taken
    }

    fn take_where(&mut self, so: impl Fn(&Ready<W>) -> bool) -> Vec<W> {
        let entries = self.entries.iter();
        let keys: Vec<K> = entries
            .filter(|(_, entry)| matches!(entry, Entry::Ready(ready) if so(ready)))
            .map(|(key, _)| key.clone())
            .collect();
        keys.iter().filter_map(|key| self.take(key)).collect()
    }

    /// The workers in the pool; for how long each has been idle, if it does not work.
    pub(crate) fn ready(&self, now: Instant) -> Vec<(K, u64, W, Option<Duration>)> {
        let entries = self.entries.iter();
        entries
            .filter_map(|(key, entry)| match entry {
                Entry::Ready(ready) => {
                    let idle = (!ready.works(now)).then(|| now.duration_since(ready.used));
                    Some((key.clone(), ready.id, ready.worker.clone(), idle))
                }
                Entry::Starting { .. } => None,
            })
            .collect()
    }

    /// How much there is now.
    pub(crate) fn gauges(&self, now: Instant) -> Gauges {
        let mut gauges = Gauges {
            workers: self.leaving.len(),
            leases: self.leaving.values().map(|(leases, _)| leases).sum(),
            tickets: self.line.len(),
            memory_bytes: self.memory(now),
            starts: self.starts,
            evictions: self.evictions,
            starting: 0,
        };
        for entry in self.entries.values() {
            match entry {
                Entry::Starting { .. } => gauges.starting += 1,
                Entry::Ready(ready) => {
                    gauges.workers += 1;
                    gauges.leases += ready.leases;
                }
            }
        }
        gauges
    }
}

impl<W: Clone> Ready<W> {
    fn lease(&mut self, now: Instant) -> W {
        if self.leases == 0 {
            self.busy = now;
        }
        self.leases += 1;
        self.served += 1;
        self.used = now;
        self.worker.clone()
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
