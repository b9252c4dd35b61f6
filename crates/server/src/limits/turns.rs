//! Who runs and who waits, as plain data: no async, no clock.
//!
//! Whenever something may run, it goes to the tenant that has the fewest statements running, and among those to the one whose
//! last turn is longest ago. So a tenant's first request never waits behind another's queue, however long that is.

use std::collections::{HashMap, VecDeque};

use super::Settings;

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It runs.
    Runs,
    /// It waits, under this ticket.
    Waits(u64),
    /// Its tenant's queue is full.
    TenantFull,
    /// Everybody's queue is full.
    ServerFull,
}

/// `T` is what is handed to a request when its turn comes.
pub(super) struct Turns<T> {
    settings: Settings,
    running: usize,
    waiting: usize,
    counter: u64,
    tenants: HashMap<String, Tenant<T>>,
}

struct Tenant<T> {
    running: usize,
    waiting: VecDeque<(u64, T)>,
    last_turn: u64,
}

impl<T> Turns<T> {
    pub(super) fn new(settings: Settings) -> Self {
        Turns { settings, running: 0, waiting: 0, counter: 0, tenants: HashMap::new() }
    }

    /// A request comes.
    pub(super) fn enter(&mut self, name: &str, waker: T) -> Entered {
        self.counter += 1;
        let Settings { running_max, tenant_running_max, tenant_waiting_max, waiting_max, .. } = self.settings;
        let tenant = self.tenants.entry(name.to_owned()).or_insert_with(|| Tenant {
            running: 0,
            waiting: VecDeque::new(),
            last_turn: 0,
        });
        // Where there is room, whoever waits does so for its own tenant's cap: nobody is overtaken.
        let entered = if self.running < running_max && tenant.running < tenant_running_max {
            tenant.running += 1;
            tenant.last_turn = self.counter;
            self.running += 1;
            Entered::Runs
        } else if tenant.waiting.len() >= tenant_waiting_max {
            Entered::TenantFull
        } else if self.waiting >= waiting_max {
            Entered::ServerFull
        } else {
            tenant.waiting.push_back((self.counter, waker));
            self.waiting += 1;
            Entered::Waits(self.counter)
        };
        self.forget(name);
        entered
    }

    /// A request gives up waiting. Whether its tenant's cap is what it waited for.
    pub(super) fn leave(&mut self, name: &str, ticket: u64) -> bool {
        let Some(tenant) = self.tenants.get_mut(name) else { return false };
        let own = tenant.running >= self.settings.tenant_running_max;
        let before = tenant.waiting.len();
        tenant.waiting.retain(|(other, _)| *other != ticket);
        self.waiting -= before - tenant.waiting.len();
        self.forget(name);
        own
    }

    /// A statement has ended: whose turn it is now. That one counts as running already.
    pub(super) fn done(&mut self, name: &str) -> Option<(String, T)> {
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.running -= 1;
            self.running -= 1;
        }
        self.forget(name);
        if self.running >= self.settings.running_max {
            return None;
        }
        let cap = self.settings.tenant_running_max;
        let able = self.tenants.iter_mut().filter(|(_, t)| !t.waiting.is_empty() && t.running < cap);
        // Of those that have not had a turn yet, the one that has waited longest.
        let first = |t: &Tenant<T>| t.waiting.front().map(|(ticket, _)| *ticket);
        let (name, tenant) = able.min_by_key(|(_, t)| (t.running, t.last_turn, first(t)))?;
        let (_, waker) = tenant.waiting.pop_front()?;
        self.counter += 1;
        tenant.running += 1;
        tenant.last_turn = self.counter;
        self.running += 1;
        self.waiting -= 1;
        Some((name.clone(), waker))
    }

    /// Statements that run, requests that wait, tenants that have any.
    pub(super) fn count(&self) -> (usize, usize, usize) {
        (self.running, self.waiting, self.tenants.len())
    }

    fn forget(&mut self, name: &str) {
        if self.tenants.get(name).is_some_and(|t| t.running == 0 && t.waiting.is_empty()) {
            self.tenants.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turns(running_max: usize, tenant_running_max: usize) -> Turns<u64> {
        Turns::new(Settings { running_max, tenant_running_max, ..Settings::default() })
    }

    #[test]
    fn a_tenants_first_request_goes_before_anothers_queue() {
        let mut turns = turns(2, 2);
        for n in 0..50 {
            turns.enter("heavy", n);
        }
        assert!(matches!(turns.enter("light", 100), Entered::Waits(_)));
        assert_eq!(turns.done("heavy"), Some(("light".to_owned(), 100)));
        assert!(matches!(turns.enter("light", 101), Entered::Waits(_)));
        assert_eq!(turns.done("light"), Some(("light".to_owned(), 101)), "it has the fewest running");
        assert_eq!(turns.done("light").map(|t| t.1), Some(2), "then the queue goes on in its order");
    }

    #[test]
    fn equals_take_turns() {
        let mut turns = turns(1, 1);
        assert_eq!(turns.enter("a", 0), Entered::Runs);
        for (tenant, n) in [("a", 1), ("a", 2), ("b", 10), ("b", 11), ("c", 20)] {
            turns.enter(tenant, n);
        }
        let mut order = Vec::new();
        let mut who = "a".to_owned();
        while let Some((next, n)) = turns.done(&who) {
            order.push(n);
            who = next;
        }
        assert_eq!(order, [10, 20, 1, 11, 2]);
        assert_eq!(turns.count(), (0, 0, 0));
    }

    proptest! {
        /// The caps hold, nobody waits while it could run, and every request is answered or has left.
        #[test]
        fn any_history_keeps_the_promises(
            running_max in 1_usize..5,
            cap in 1_usize..4,
            acts in prop::collection::vec((0_u8..4, 0_u8..4), 1..200),
        ) {
            let mut turns = turns(running_max, cap);
            let (mut running, mut waiting): (Vec<String>, Vec<(String, u64)>) = (Vec::new(), Vec::new());
            for (n, (act, tenant)) in acts.into_iter().enumerate() {
                let name = tenant.to_string();
                match act {
                    0 | 1 => match turns.enter(&name, n as u64) {
                        Entered::Runs => running.push(name),
                        Entered::Waits(ticket) => waiting.push((name, ticket)),
                        full => prop_assert!(false, "{full:?}"),
                    },
                    2 => if let Some(name) = running.pop()
                        && let Some((next, _)) = turns.done(&name)
                    {
                        let place = waiting.iter().position(|(w, _)| *w == next);
                        waiting.remove(place.expect("only who waits gets a turn"));
                        running.push(next);
                    },
                    _ => if let Some((name, ticket)) = waiting.pop() { turns.leave(&name, ticket); },
                }
                let of = |name: &str| running.iter().filter(|r| *r == name).count();
                prop_assert!(running.len() <= running_max && running.iter().all(|r| of(r) <= cap));
                prop_assert!(running.len() == running_max || waiting.iter().all(|(w, _)| of(w) == cap));
                prop_assert_eq!((turns.count().0, turns.count().1), (running.len(), waiting.len()));
            }
            while let Some(name) = running.pop() {
                if let Some((next, _)) = turns.done(&name) {
                    let place = waiting.iter().position(|(w, _)| *w == next);
                    waiting.remove(place.expect("only who waits gets a turn"));
                    running.push(next);
                }
            }
            prop_assert!(waiting.is_empty());
            prop_assert_eq!(turns.count(), (0, 0, 0));
        }
    }
}
