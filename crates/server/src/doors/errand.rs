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
/// Requests for a change of one statement.
const CHANGES_MAX: usize = 1_000;

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
    /// Why the table that it was given last may not be written.
    unwritable: Option<Fault>,
    conflict: Option<String>,
    /// How often it was run.
    attempts: u32,
    /// Its outcome was told: from now on it changes nothing.
    closed: bool,
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

    /// Whether it may change anything.
    pub fn may_write(&self) -> bool {
        self.rights.is_some()
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
            self.seen().refused.get_or_insert(fault.clone());
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

    /// The worker was told of a table that lies there.
    pub(super) fn loaded(&self, table: &Table, location: Option<&str>) {
        let may_write = self.rights.as_ref().map(|rights| rights.check(Act::Change(table)));
        let mut seen = self.seen();
        if seen.read.len() < TABLES_MAX {
            seen.read.insert(table.clone());
        }
        if let Some(Err(fault)) = &may_write {
            seen.unwritable = Some(fault.clone());
        }
        drop(seen);
        if let (Some(Ok(())), Some(location)) = (may_write, location) {
            self.drafted(table, location);
        }
    }

    /// Files of a table may be written below this address from now on.
    pub(super) fn drafted(&self, table: &Table, location: &str) {
        let mut seen = self.seen();
        if seen.writable.len() < TABLES_MAX && !seen.closed {
            seen.writable.insert(format!("{}/", location.trim_end_matches('/')), table.clone());
        }
    }

    /// Whether a file may be written at this address. A refusal is kept for whoever sent the statement.
    pub(super) fn may_put(&self, address: &str) -> bool {
        let mut seen = self.seen();
        let below = |below: &String| address.len() > below.len() && address.starts_with(below.as_str());
        let may = !seen.closed && seen.writable.keys().any(below);
        if !may {
            let sentence = "Files are written only as part of a table that the statement may change.";
            let fault =
                seen.unwritable.clone().unwrap_or_else(|| Fault::new(Code::WriteTargetClosed, sentence));
            seen.refused.get_or_insert(fault);
        }
        may
    }

    /// These changes are about to be sent to the catalog. The number is for [`Errand::ended`]; none where its outcome was told
    /// already, or it has changed too much.
    pub(super) fn begins(&self, effects: Vec<Effect>) -> Option<usize> {
        let mut seen = self.seen();
        if seen.closed || seen.changes.len() >= CHANGES_MAX {
            return None;
        }
        seen.changes.push((effects, None));
        Some(seen.changes.len() - 1)
    }

    /// From now on it changes nothing: what is told of it stays true.
    pub fn close(&self) {
        self.seen().closed = true;
    }

    /// Whether it has changed nothing so far, for certain: then it can be run again.
    pub fn is_untouched(&self) -> bool {
        self.seen().changes.iter().all(|(_, outcome)| *outcome == Some(Outcome::NotMade))
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
        let of = |wanted: &[Option<Outcome>]| {
            let some = seen.changes.iter().filter(|(_, outcome)| wanted.contains(outcome));
            let mut told: Vec<TableChange> = Vec::new();
            for change in some.flat_map(|(effects, _)| effects).map(Effect::told) {
                // An engine that repeats its commit by itself has made it once.
                if !told.contains(&change) {
                    told.push(change);
                }
            }
            told
        };
        let (unsure, made) = (of(&[None, Some(Outcome::Unknown)]), of(&[Some(Outcome::Made)]));
        let requests = seen.changes.iter().filter(|(_, outcome)| *outcome == Some(Outcome::Made)).count();
        let refused = seen.refused.is_some()
            || seen.changes.last().is_some_and(|(_, outcome)| *outcome == Some(Outcome::NotMade));
        let state = match (unsure.is_empty(), made.is_empty()) {
            (false, _) => WriteState::Unknown,
            (true, true) if refused => WriteState::NotMade,
            // A success without a change had nothing to change.
            (true, _) if succeeded => WriteState::Made,
            (true, true) => WriteState::NotMade,
            // Whoever has failed after the first of several may have had more to do.
            (true, false) if refused || requests > 1 => WriteState::Partly,
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
#[path = "errand_tests.rs"]
pub(super) mod tests;
