//! What a worker was sent to do, and what it did at the doors.
//!
//! Given the rights of one statement, the doors let its worker change what they allow and write down what they saw: this and not the
//! SQL says which tables a statement read and changed. Never lets anything be changed without a statement under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::Code;
use duck_contract::query::{ChangeKind, TableChange, WriteReport, WriteState};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Visitor;
use super::traffic::Counts;
use crate::fault::Fault;

/// Tables of one statement that are remembered. More are counted by nobody.
const TABLES_MAX: usize = 10_000;

/// A table by its names in the catalog.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// The levels of its namespace.
    pub namespace: Vec<String>,
    /// Its own name.
    pub name: String,
}

impl Table {
    /// As in SQL: `schema.table`.
    pub fn dotted(&self) -> String {
        format!("{}.{}", self.namespace.join("."), self.name)
    }
}

/// Something that needs a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act<'a> {
    /// To change or remove a table that is there.
    Change(&'a Table),
    /// To make one.
    Create(&'a Table),
    /// To make, change or remove a schema.
    Schema(&'a [String]),
}

/// What a statement may change. Asked again at every change, so that the answer can be another one than a moment ago.
pub trait Rights: Send + Sync {
    /// Nothing, or why not.
    fn check(&self, act: Act<'_>) -> Result<(), Fault>;

    /// The rule that decides, by its name, where there is one.
    fn rule(&self, _: Act<'_>) -> Option<String> {
        None
    }
}

/// One change that the catalog is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// What it does.
    pub kind: ChangeKind,
    /// The levels of the schema.
    pub namespace: Vec<String>,
    /// The table, unless it is the schema itself.
    pub table: Option<String>,
    /// The name that a table gets.
    pub becomes: Option<Table>,
    /// The snapshot that the table gets.
    pub snapshot: Option<i64>,
    /// The snapshot on which it is based.
    pub base: Option<i64>,
}

impl Effect {
    /// The table, unless it is the schema itself.
    pub fn table(&self) -> Option<Table> {
        Some(Table { namespace: self.namespace.clone(), name: self.table.clone()? })
    }

    fn allowed_by(&self, rights: &dyn Rights) -> Result<(), Fault> {
        let Some(table) = self.table() else { return rights.check(Act::Schema(&self.namespace)) };
        match self.kind {
            ChangeKind::Create => rights.check(Act::Create(&table))?,
            _ => rights.check(Act::Change(&table))?,
        }
        self.becomes.as_ref().map_or(Ok(()), |table| rights.check(Act::Create(table)))
    }

    fn rule(&self, rights: &dyn Rights) -> Option<String> {
        match (self.table(), self.kind) {
            (None, _) => rights.rule(Act::Schema(&self.namespace)),
            (Some(table), ChangeKind::Create) => rights.rule(Act::Create(&table)),
            (Some(table), _) => rights.rule(Act::Change(&table)),
        }
    }

    fn told(&self) -> TableChange {
        TableChange {
            schema: self.namespace.join("."),
            table: self.table.clone(),
            kind: self.kind,
            snapshot_id: self.snapshot.map(|id| id.to_string()),
            previous_snapshot_id: self.base.map(|id| id.to_string()),
        }
    }
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The catalog has made it.
    Made,
    /// The catalog has not made it.
    NotMade,
    /// Nobody can tell.
    Unknown,
}

/// What the doors saw of one statement.
#[derive(Default)]
struct Seen {
    read: BTreeSet<Table>,
    /// Tables by the address below which their files may be written.
    writable: BTreeMap<String, Table>,
    /// What was sent to the catalog, and what became of it as soon as that is known.
    changes: Vec<(Vec<Effect>, Option<Outcome>)>,
    refused: Option<Fault>,
    conflict: Option<String>,
    /// How often it was run.
    attempts: u32,
    /// The rules that decided on its changes.
    rules: BTreeSet<String>,
}

/// One statement on its worker.
pub struct Errand {
    rights: Option<Box<dyn Rights>>,
    seen: Mutex<Seen>,
    pub(super) counts: Counts,
    settled: Notify,
}

/// Rules of one statement that are remembered.
const RULES_MAX: usize = 20;

impl Errand {
    /// Of a statement that reads.
    pub fn reading() -> Arc<Self> {
        Errand::of(None)
    }

    /// Of a statement that may change what these rights allow.
    pub fn writing(rights: Box<dyn Rights>) -> Arc<Self> {
        Errand::of(Some(rights))
    }

    fn of(rights: Option<Box<dyn Rights>>) -> Arc<Self> {
        Arc::new(Errand { rights, seen: Mutex::default(), counts: Counts::default(), settled: Notify::new() })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is run, for the first time or again.
    pub fn attempted(&self) {
        self.seen().attempts += 1;
    }

    /// How often it was run.
    pub fn attempts(&self) -> u32 {
        self.seen().attempts
    }

    /// Whether all of it is allowed now. The first refusal is kept for whoever sent the statement.
    pub(super) fn allows(&self, effects: &[Effect]) -> Result<(), Fault> {
        let nothing = || Fault::new(Code::ReadOnly, "The statement may change nothing.");
        let rights = self.rights.as_deref().ok_or_else(nothing)?;
        let outcome = effects.iter().try_for_each(|effect| effect.allowed_by(rights));
        effects.iter().filter_map(|effect| effect.rule(rights)).for_each(|rule| self.decided(rule));
        if let Err(fault) = &outcome {
            self.refuses(fault.clone());
        }
        outcome
    }

    /// A rule has decided on it.
    pub(crate) fn decided(&self, rule: String) {
        let mut seen = self.seen();
        if seen.rules.len() < RULES_MAX {
            seen.rules.insert(rule);
        }
    }

    /// The rules that have decided on it.
    pub fn rules(&self) -> Vec<String> {
        self.seen().rules.iter().cloned().collect()
    }

    /// Keeps the first refusal.
    pub(super) fn refuses(&self, fault: Fault) {
        self.seen().refused.get_or_insert(fault);
    }

    /// The worker was told of a table that lies there.
    pub(super) fn loaded(&self, table: &Table, location: Option<&str>) {
        let may_write = self.rights.as_ref().is_some_and(|rights| rights.check(Act::Change(table)).is_ok());
        let mut seen = self.seen();
        if seen.read.len() < TABLES_MAX {
            seen.read.insert(table.clone());
        }
        drop(seen);
        if let (true, Some(location)) = (may_write, location) {
            self.drafted(table, location);
        }
    }

    /// Files of a table may be written below this address from now on.
    pub(super) fn drafted(&self, table: &Table, location: &str) {
        let mut seen = self.seen();
        if seen.writable.len() < TABLES_MAX {
            seen.writable.insert(format!("{}/", location.trim_end_matches('/')), table.clone());
        }
    }

    /// Whether a file may be written at this address.
    pub(super) fn may_put(&self, address: &str) -> bool {
        let seen = self.seen();
        // The longest address that is not behind this one in the alphabet is not always the one that it begins with.
        seen.writable.keys().any(|below| address.len() > below.len() && address.starts_with(below.as_str()))
    }

    /// These changes are about to be sent to the catalog. The number is for [`Errand::ended`].
    pub(super) fn begins(&self, effects: Vec<Effect>) -> usize {
        let mut seen = self.seen();
        seen.changes.push((effects, None));
        seen.changes.len() - 1
    }

    /// It is known what became of them.
    pub(super) fn ended(&self, number: usize, outcome: Outcome, conflict: Option<String>) {
        let mut seen = self.seen();
        if let Some((_, known)) = seen.changes.get_mut(number) {
            *known = Some(outcome);
        }
        if conflict.is_some() {
            seen.conflict = conflict;
        }
        drop(seen);
        self.settled.notify_waiters();
    }

    /// The tables whose metadata the worker was given, and those that it changed.
    pub fn tables(&self) -> (Vec<Table>, Vec<Table>) {
        let seen = self.seen();
        let made = seen.changes.iter().filter(|(_, outcome)| *outcome != Some(Outcome::NotMade));
        let changed: BTreeSet<Table> =
            made.flat_map(|(effects, _)| effects).filter_map(Effect::table).collect();
        (seen.read.iter().cloned().collect(), changed.into_iter().collect())
    }

    /// Why a door refused a change of it.
    pub fn refusal(&self) -> Option<Fault> {
        self.seen().refused.clone()
    }

    /// What was in the way of its last change, in a sentence.
    pub fn conflict(&self) -> Option<String> {
        self.seen().conflict.clone()
    }

    /// Waits until no change is under way, at most so long. Whether that is so.
    pub async fn settled(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            let mut ended = std::pin::pin!(self.settled.notified());
            // From here on an end is not missed.
            ended.as_mut().enable();
            if self.seen().changes.iter().all(|(_, outcome)| outcome.is_some()) {
                return true;
            }
            if timeout_at(until, ended).await.is_err() {
                return false;
            }
        }
    }

    /// What became of its changes so far; none for a statement that may change nothing.
    pub fn report(&self, succeeded: bool) -> Option<WriteReport> {
        self.rights.as_ref()?;
        let seen = self.seen();
        let of = |wanted: Option<Outcome>| {
            let some = seen.changes.iter().filter(move |(_, outcome)| *outcome == wanted);
            some.flat_map(|(effects, _)| effects).map(Effect::told)
        };
        let unsure: Vec<TableChange> = of(None).chain(of(Some(Outcome::Unknown))).collect();
        let made: Vec<TableChange> = of(Some(Outcome::Made)).collect();
        let refused = seen.refused.is_some()
            || seen.changes.last().is_some_and(|(_, outcome)| *outcome == Some(Outcome::NotMade));
        let state = match (unsure.is_empty(), made.is_empty()) {
            (false, _) => WriteState::Unknown,
            // A success without a change had nothing to change.
            (true, _) if succeeded => WriteState::Made,
            (true, true) => WriteState::NotMade,
            (true, false) if refused => WriteState::Partly,
            (true, false) => WriteState::Made,
        };
        let changes = if unsure.is_empty() { made } else { unsure };
        Some(WriteReport { state, rows_affected: None, changes, attempts: seen.attempts })
    }
}

/// A statement on its worker, until this is dropped.
pub(crate) struct OnErrand {
    visitor: Arc<Visitor>,
    errand: Arc<Errand>,
}

impl Drop for OnErrand {
    fn drop(&mut self) {
        let mut errands = self.visitor.errands.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = errands.iter().position(|errand| Arc::ptr_eq(errand, &self.errand)) {
            errands.swap_remove(at);
        }
    }
}

impl Visitor {
    /// From now on what this worker does is done for this statement, too.
    pub(crate) fn sent(self: &Arc<Self>, errand: Arc<Errand>) -> OnErrand {
        let mut errands = self.errands.lock().unwrap_or_else(PoisonError::into_inner);
        errands.push(errand.clone());
        if errands.len() > 1 {
            errands.iter().for_each(|errand| errand.counts.shares());
        }
        drop(errands);
        OnErrand { visitor: self.clone(), errand }
    }

    /// The statements for which it may be doing what it does.
    pub(super) fn errands(&self) -> Vec<Arc<Errand>> {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The one statement for which it changes something. None where there are several: who would have the right?
    pub(super) fn errand(&self) -> Option<Arc<Errand>> {
        match self.errands().as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use duck_contract::Role;

    use super::*;
    use crate::doors::Place;

    /// The right to everything.
    pub(in crate::doors) struct Anything;

    impl Rights for Anything {
        fn check(&self, _: Act<'_>) -> Result<(), Fault> {
            Ok(())
        }
    }

    /// The right to one table.
    struct Only(Table);

    impl Rights for Only {
        fn check(&self, act: Act<'_>) -> Result<(), Fault> {
            match act {
                Act::Change(table) if *table == self.0 => Ok(()),
                _ => Err(Fault::new(Code::WriteTargetClosed, "no")),
            }
        }
    }

    fn table(name: &str) -> Table {
        Table { namespace: vec!["n".into()], name: name.into() }
    }

    fn effect(kind: ChangeKind, name: &str) -> Effect {
        let (namespace, table) = (vec!["n".into()], Some(name.into()));
        Effect { kind, namespace, table, becomes: None, snapshot: Some(7), base: Some(6) }
    }

    #[test]
    fn files_are_written_below_tables_that_may_be_changed_and_nowhere_else() {
        let errand = Errand::writing(Box::new(Only(table("t"))));
        errand.loaded(&table("t"), Some("s3://lake/w_a/t"));
        errand.loaded(&table("u"), Some("s3://lake/w_a/u/"));
        assert!(errand.may_put("s3://lake/w_a/t/data/x.parquet"));
        for address in ["s3://lake/w_a/u/data/x", "s3://lake/w_a/t", "s3://lake/w_a/t/", "s3://lake/w_a/tt/x"]
        {
            assert!(!errand.may_put(address), "{address}");
        }
        let reads = Errand::reading();
        reads.loaded(&table("t"), Some("s3://lake/w_a/t"));
        assert!(!reads.may_put("s3://lake/w_a/t/data/x.parquet"));
        assert_eq!(reads.tables().0, [table("t")]);
    }

    #[test]
    fn what_is_reported_is_what_the_catalog_has_made() {
        let state = |errand: &Errand| errand.report(false).unwrap().state;
        let errand = Errand::writing(Box::new(Anything));
        assert_eq!(state(&errand), WriteState::NotMade);
        let first = errand.begins(vec![effect(ChangeKind::Commit, "t")]);
        assert_eq!(state(&errand), WriteState::Unknown);
        errand.ended(first, Outcome::NotMade, Some("t has moved".into()));
        assert_eq!(
            (state(&errand), errand.conflict().as_deref()),
            (WriteState::NotMade, Some("t has moved"))
        );
        let second = errand.begins(vec![effect(ChangeKind::Commit, "t")]);
        errand.ended(second, Outcome::Made, None);
        errand.attempted();
        let report = errand.report(true).unwrap();
        assert_eq!((report.state, report.changes.len(), report.attempts), (WriteState::Made, 1, 1));
        assert_eq!(report.changes[0].snapshot_id.as_deref(), Some("7"));
        let third = errand.begins(vec![effect(ChangeKind::Drop, "u")]);
        errand.ended(third, Outcome::NotMade, None);
        assert_eq!(state(&errand), WriteState::Partly);
        assert!(Errand::reading().report(true).is_none());
    }

    #[test]
    fn a_worker_with_two_statements_has_nobody_s_rights() {
        let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
        let visitor = Arc::new(Visitor::new("w_a", place, Role::Writer));
        assert!(visitor.errand().is_none());
        let one = visitor.sent(Errand::writing(Box::new(Anything)));
        assert!(visitor.errand().is_some());
        let two = visitor.sent(Errand::reading());
        assert!(visitor.errand().is_none() && visitor.errands().len() == 2);
        drop(one);
        drop(two);
        assert!(visitor.errand().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_change_is_told_when_it_is_settled() {
        let errand = Errand::writing(Box::new(Anything));
        assert!(errand.settled(Duration::ZERO).await);
        let number = errand.begins(vec![effect(ChangeKind::Commit, "t")]);
        assert!(!errand.settled(Duration::from_secs(1)).await);
        let waits = tokio::spawn({
            let errand = errand.clone();
            async move { errand.settled(Duration::from_secs(60)).await }
        });
        tokio::task::yield_now().await;
        errand.ended(number, Outcome::Unknown, None);
        assert!(waits.await.unwrap());
    }
}
