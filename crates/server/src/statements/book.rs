//! Which statements are kept, whose they are, and until when, as plain data: no async, no clock, no file.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::space::Full;
use crate::fault::Fault;

/// What is known of a statement from the beginning.
#[derive(Debug)]
pub struct Facts {
    /// Its own id.
    pub id: String,
    /// The warehouse whose it is.
    pub warehouse: String,
    /// The client's name for it, and what tells whether another request is the same.
    pub named: Option<(String, u64)>,
    /// The request that sent it.
    pub sent_by: String,
    /// Whether it may write.
    pub writes: bool,
    /// When it came.
    pub began: Instant,
}

/// `R` is what is kept of a success.
pub(super) struct Book<R> {
    bounds: Bounds,
    kept: HashMap<String, Kept<R>>,
    /// How many are kept for each.
    tenants: HashMap<String, usize>,
    /// By warehouse and the client's name.
    names: HashMap<(String, String), String>,
    /// Those that have ended, by when they are forgotten.
    ended: BTreeSet<(Instant, String)>,
    /// Those that were forgotten, and whose they were, the oldest first.
    gone: VecDeque<(Instant, String)>,
    whose: HashMap<String, String>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) count_max: usize,
    pub(super) tenant_count_max: usize,
    pub(super) keep: Duration,
}

struct Kept<R> {
    facts: Arc<Facts>,
    end: CancellationToken,
    outcome: Option<(Instant, Result<R, Fault>)>,
}

/// What became of a statement that wants to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admitted<T> {
    /// It is, and this is its room.
    New(T),
    /// It is already, under this id.
    Known(String),
    /// Another one has its name.
    NameTaken,
    /// Its tenant has as many as it may.
    TenantFull,
    /// There are as many as there may be.
    ServerFull,
}

/// What there is under an id.
#[derive(Debug)]
pub(super) enum Found<R> {
    Here(Seen<R>),
    /// It was, and is not kept any more.
    Gone,
    /// Nothing, or nothing that this caller may know of.
    Nothing,
}

/// A statement as it is now.
#[derive(Debug, Clone)]
pub struct Seen<R> {
    /// What is known from the beginning.
    pub facts: Arc<Facts>,
    /// When it has ended: how, and for how much longer it is kept.
    pub outcome: Option<(Result<R, Fault>, Duration)>,
    pub(super) end: CancellationToken,
}

impl<R: Clone> Book<R> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Book {
            bounds,
            kept: HashMap::new(),
            tenants: HashMap::new(),
            names: HashMap::new(),
            ended: BTreeSet::new(),
            gone: VecDeque::new(),
            whose: HashMap::new(),
        }
    }

    /// A statement comes. It is asked for room only when it is new.
    pub(super) fn admit<T>(&mut self, facts: Facts, room: impl FnOnce() -> Result<T, Full>) -> Admitted<T> {
        let name = facts.named.as_ref().map(|(name, _)| (facts.warehouse.clone(), name.clone()));
        if let Some(known) = name.as_ref().and_then(|name| self.names.get(name)) {
            let same = self.kept.get(known).is_some_and(|kept| kept.facts.named == facts.named);
            return if same { Admitted::Known(known.clone()) } else { Admitted::NameTaken };
        }
        if self.tenants.get(&facts.warehouse).copied().unwrap_or(0) >= self.bounds.tenant_count_max {
            return Admitted::TenantFull;
        }
        if self.kept.len() >= self.bounds.count_max {
            return Admitted::ServerFull;
        }
        let room = match room() {
            Ok(room) => room,
            Err(Full::Tenant) => return Admitted::TenantFull,
            Err(Full::Server) => return Admitted::ServerFull,
        };
        *self.tenants.entry(facts.warehouse.clone()).or_default() += 1;
        if let Some(name) = name {
            self.names.insert(name, facts.id.clone());
        }
        let kept = Kept { facts: Arc::new(facts), end: CancellationToken::new(), outcome: None };
        self.kept.insert(kept.facts.id.clone(), kept);
        Admitted::New(room)
    }

    /// A statement ends. The first word holds.
    pub(super) fn finish(&mut self, id: &str, outcome: Result<R, Fault>, now: Instant) {
        let Some(kept) = self.kept.get_mut(id).filter(|kept| kept.outcome.is_none()) else { return };
        let until = now + self.bounds.keep;
        kept.outcome = Some((until, outcome));
        kept.end.cancel();
        self.ended.insert((until, id.to_owned()));
    }

    /// What there is under an id, for a caller of this warehouse, or of any.
    pub(super) fn find(&self, warehouse: Option<&str>, id: &str, now: Instant) -> Found<R> {
        let may = |owner: &str| warehouse.is_none_or(|warehouse| warehouse == owner);
        match self.kept.get(id) {
            Some(kept) if may(&kept.facts.warehouse) => Found::Here(kept.seen(now)),
            None if self.whose.get(id).is_some_and(|owner| may(owner)) => Found::Gone,
            _ => Found::Nothing,
        }
    }

    /// A warehouse's statements, the oldest first.
    pub(super) fn list(&self, warehouse: &str, now: Instant) -> Vec<Seen<R>> {
        let own = self.kept.values().filter(|kept| kept.facts.warehouse == warehouse);
        let mut seen: Vec<Seen<R>> = own.map(|kept| kept.seen(now)).collect();
        seen.sort_by(|a, b| (a.facts.began, &a.facts.id).cmp(&(b.facts.began, &b.facts.id)));
        seen
    }

    /// Forgets a statement that has ended. What was kept of it is handed back, to be let go outside of the lock.
    pub(super) fn remove(&mut self, id: &str, now: Instant) -> Option<Result<R, Fault>> {
        self.kept.get(id).filter(|kept| kept.outcome.is_some())?;
        let Kept { facts, outcome, .. } = self.kept.remove(id)?;
        let (until, outcome) = outcome?;
        self.ended.remove(&(until, facts.id.clone()));
        if let Some((name, _)) = &facts.named {
            self.names.remove(&(facts.warehouse.clone(), name.clone()));
        }
        if let Some(count) = self.tenants.get_mut(&facts.warehouse) {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(&facts.warehouse);
            }
        }
        if self.gone.len() >= self.bounds.count_max {
            self.forget_oldest();
        }
        self.gone.push_back((now + self.bounds.keep, facts.id.clone()));
        self.whose.insert(facts.id.clone(), facts.warehouse.clone());
        Some(outcome)
    }

    /// Forgets whose time has passed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Result<R, Fault>> {
        while self.gone.front().is_some_and(|(until, _)| *until <= now) {
            self.forget_oldest();
        }
        let mut let_go = Vec::new();
        while let Some((until, id)) = self.ended.first().filter(|(until, _)| *until <= now).cloned() {
            self.ended.remove(&(until, id.clone()));
            let_go.extend(self.remove(&id, now));
        }
        let_go
    }

    /// How many are kept, and how many of them have not ended.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.kept.len(), self.kept.len() - self.ended.len())
    }

    fn forget_oldest(&mut self) {
        if let Some((_, id)) = self.gone.pop_front() {
            self.whose.remove(&id);
        }
    }
}

impl<R: Clone> Kept<R> {
    fn seen(&self, now: Instant) -> Seen<R> {
        let outcome = self.outcome.as_ref();
        Seen {
            facts: self.facts.clone(),
            outcome: outcome.map(|(until, outcome)| (outcome.clone(), until.saturating_duration_since(now))),
            end: self.end.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duck_contract::Code;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { count_max: 6, tenant_count_max: 3, keep: Duration::from_secs(10) };

    fn facts(id: &str, warehouse: &str, named: Option<(&str, u64)>, began: Instant) -> Facts {
        Facts {
            id: id.to_owned(),
            warehouse: warehouse.to_owned(),
            named: named.map(|(name, body)| (name.to_owned(), body)),
            sent_by: String::new(),
            writes: false,
            began,
        }
    }

    fn admit<R: Clone>(book: &mut Book<R>, facts: Facts) -> Admitted<()> {
        book.admit(facts, || Ok(()))
    }

    #[test]
    fn one_name_is_one_statement_while_it_is_kept() {
        let (mut book, now) = (Book::<()>::new(BOUNDS), Instant::now());
        assert_eq!(admit(&mut book, facts("1", "a", Some(("n", 7)), now)), Admitted::New(()));
        assert_eq!(admit(&mut book, facts("2", "a", Some(("n", 7)), now)), Admitted::Known("1".to_owned()));
        assert_eq!(admit(&mut book, facts("3", "a", Some(("n", 8)), now)), Admitted::NameTaken);
        assert_eq!(
            admit(&mut book, facts("4", "b", Some(("n", 8)), now)),
            Admitted::New(()),
            "another's name"
        );
        book.finish("1", Ok(()), now);
        assert_eq!(admit(&mut book, facts("5", "a", Some(("n", 7)), now)), Admitted::Known("1".to_owned()));
        assert_eq!(
            book.admit(facts("5", "a", None, now), || Err::<(), _>(Full::Tenant)),
            Admitted::TenantFull
        );
        assert!(book.remove("1", now).is_some());
        assert_eq!(admit(&mut book, facts("6", "a", Some(("n", 8)), now)), Admitted::New(()));
    }

    #[test]
    fn what_has_ended_stays_as_it_ended_and_goes_in_its_time() {
        let (mut book, now) = (Book::<u8>::new(BOUNDS), Instant::now());
        admit(&mut book, facts("1", "a", None, now));
        assert!(book.remove("1", now).is_none(), "it has not ended");
        book.finish("1", Ok(1), now);
        book.finish("1", Err(Fault::new(Code::Internal, "")), now);
        let later = now + Duration::from_secs(4);
        let Found::Here(seen) = book.find(Some("a"), "1", later) else { panic!("it is kept") };
        assert!(seen.end.is_cancelled());
        assert!(matches!(seen.outcome, Some((Ok(1), left)) if left == Duration::from_secs(6)));
        assert!(matches!(book.find(Some("b"), "1", later), Found::Nothing));
        assert_eq!(book.expire(now + BOUNDS.keep).len(), 1);
        assert!(matches!(book.find(Some("a"), "1", later), Found::Gone));
        assert!(matches!(book.find(None, "1", later), Found::Gone));
        assert!(matches!(book.find(Some("b"), "1", later), Found::Nothing), "not even that it was");
        book.expire(now + 2 * BOUNDS.keep);
        assert!(matches!(book.find(Some("a"), "1", later), Found::Nothing));
    }

    proptest! {
        /// The bounds hold, nothing is refused without need, what runs is never forgotten, and in the end nothing is left.
        #[test]
        fn any_history_keeps_the_bounds(acts in prop::collection::vec((0_u8..6, 0_u8..4, 0_u64..8), 1..300)) {
            let (mut book, start) = (Book::<usize>::new(BOUNDS), Instant::now());
            let mut now = start;
            // Id, warehouse, and when it ended.
            let mut model: Vec<(String, String, Option<Instant>)> = Vec::new();
            for (n, (act, tenant, pick)) in acts.into_iter().enumerate() {
                model.retain(|(_, _, ended)| ended.is_none_or(|at| at + BOUNDS.keep > now));
                book.expire(now);
                let place = usize::try_from(pick).unwrap() % model.len().max(1);
                match act {
                    0..3 => {
                        let (id, warehouse) = (n.to_string(), tenant.to_string());
                        let own = model.iter().filter(|m| m.1 == warehouse).count();
                        let expected = if own >= 3 { Admitted::TenantFull }
                            else if model.len() >= 6 { Admitted::ServerFull }
                            else { Admitted::New(()) };
                        prop_assert_eq!(admit(&mut book, facts(&id, &warehouse, None, now)), expected);
                        if own < 3 && model.len() < 6 {
                            model.push((id, warehouse, None));
                        }
                    }
                    3 => if let Some((id, _, ended)) = model.get_mut(place) {
                        book.finish(id, Ok(n), now);
                        ended.get_or_insert(now);
                    },
                    4 => if let Some((id, _, ended)) = model.get(place) {
                        prop_assert_eq!(book.remove(id, now).is_some(), ended.is_some());
                        if ended.is_some() {
                            model.remove(place);
                        }
                    },
                    _ => now += Duration::from_secs(pick),
                }
                let live = model.iter().filter(|m| m.2.is_none()).count();
                if act < 5 {
                    prop_assert_eq!(book.count(), (model.len(), live));
                }
                prop_assert!(book.gone.len() <= 6 && book.whose.len() == book.gone.len());
            }
            for (id, ..) in model {
                book.finish(&id, Ok(0), now);
            }
            book.expire(now + BOUNDS.keep);
            book.expire(now + 2 * BOUNDS.keep);
            prop_assert_eq!(book.count(), (0, 0));
            prop_assert!(book.tenants.is_empty() && book.names.is_empty() && book.whose.is_empty());
        }
    }
}
