//! One statement's way, and the two records that are left of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use duck_contract::audit::{AuditEnd, AuditEvent, AuditKind, AuditRecord};
use duck_contract::query::{ChangeKind, TableChange, WriteReport};
use duck_contract::{Code, Role};
use tokio::time::Instant;

use super::writer::Message;
use super::{Audit, Inner, now};
use crate::doors::Errand;
use crate::fault::Fault;
use crate::pool::Worker;

/// Tables, and changes, that a record names.
const TABLES_MAX: usize = 200;
/// The kernel counts in steps of ten milliseconds, and an engine's peak is not one short statement's.
const USAGE_MS_MIN: u64 = 10;
/// Of a name in a record.
const NAME_BYTES_MAX: usize = 256;

/// Who asked what.
pub(crate) struct Asked {
    pub(crate) request_id: String,
    pub(crate) workspace: String,
    pub(crate) subject: String,
    pub(crate) role: Role,
    pub(crate) arrived: Instant,
    /// The rule of the policy by which it may change anything.
    pub(crate) rule: Option<String>,
}

/// A statement's trail. Cheap to clone; all clones are one. When the last is dropped the statement has ended, and the record of that
/// is handed on: never none, never two. A statement that was not begun leaves no record, unless it was refused a change.
#[derive(Clone)]
pub(crate) struct Trail(Option<Arc<Course>>);

struct Course {
    audit: Arc<Inner>,
    asked: Asked,
    statement: String,
    errand: Arc<Errand>,
    way: Mutex<Way>,
}

#[derive(Default)]
struct Way {
    admitted: Option<Instant>,
    begun: Option<Begun>,
    fate: Option<Fate>,
}

struct Begun {
    at: Instant,
    worker: Weak<Worker>,
    /// None until it has run for a moment.
    cpu_ms_before: Option<u64>,
}

/// What a statement's engine has used when it begins, to be looked at where that costs the statement nothing.
pub(super) struct Usage(Weak<Course>);

impl Usage {
    /// Looks, if the statement still runs: to look is a good part of what a short one costs.
    pub(super) fn look(&self) {
        let Some(course) = self.0.upgrade() else { return };
        let worker = course.way().begun.as_ref().and_then(|begun| begun.worker.upgrade());
        let cpu_ms = worker.and_then(|worker| worker.cpu_ms());
        if let Some(begun) = &mut course.way().begun {
            begun.cpu_ms_before = cpu_ms;
        }
    }
}

/// How a statement ended, as whoever carried its answer knows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fate {
    /// `ok`, a code, or why else its answer ended.
    pub(crate) outcome: &'static str,
    /// Rows of the answer, and whether there were more, where it came to its end.
    pub(crate) counts: Option<(u64, bool)>,
    pub(crate) affected: Option<u64>,
    pub(crate) bytes: u64,
}

impl Audit {
    /// The trail of a statement that was permitted.
    pub(crate) fn trail<'s>(
        &self,
        asked: Asked,
        errand: &Arc<Errand>,
        statements: impl Iterator<Item = &'s str>,
    ) -> Trail {
        Trail(self.0.as_ref().map(|audit| {
            let statement = audit.redacted(statements);
            let way = Mutex::default();
            Arc::new(Course { audit: audit.clone(), asked, statement, errand: errand.clone(), way })
        }))
    }

    /// Of a statement that leaves no records.
    pub(crate) fn untold() -> Trail {
        Trail(None)
    }
}

impl Trail {
    fn way(&self) -> Option<MutexGuard<'_, Way>> {
        self.0.as_ref().map(|course| course.way())
    }

    /// It is its turn.
    pub(crate) fn admitted(&self) {
        if let Some(mut way) = self.way() {
            way.admitted.get_or_insert_with(Instant::now);
        }
    }

    /// It is about to be sent to this worker. It begins once, however often it is sent.
    pub(crate) fn begins(&self, worker: &Arc<Worker>) {
        let Some(course) = &self.0 else { return };
        let mut way = course.way();
        let (first, at) =
            (way.begun.is_none(), way.begun.as_ref().map_or_else(Instant::now, |begun| begun.at));
        way.begun = Some(Begun { at, worker: Arc::downgrade(worker), cpu_ms_before: None });
        let record = first.then(|| course.record(AuditEvent::Start, &way));
        drop(way);
        if let Some(record) = record {
            course.audit.put(Message::Start(Box::new(record), Usage(Arc::downgrade(course))));
        }
    }

    /// This is how it has ended. The first word holds.
    pub(crate) fn ends(&self, fate: Fate) {
        if let Some(mut way) = self.way() {
            way.fate.get_or_insert(fate);
        }
    }

    /// It has failed.
    pub(crate) fn fails(&self, fault: &Fault) {
        self.ends(Fate { outcome: fault.code.as_str(), ..Fate::default() });
    }
}

impl Course {
    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, event: AuditEvent, way: &Way) -> AuditRecord {
        let Asked { request_id, workspace, subject, role, arrived, .. } = &self.asked;
        let begun = way.begun.as_ref().map(|begun| begun.at);
        let ms = |from: Option<Instant>, to: Option<Instant>| Some(ms(from?, to?));
        AuditRecord {
            event,
            recorded_at: now(),
            request_id: request_id.clone(),
            workspace: workspace.clone(),
            subject: named(subject.clone()),
            role: *role,
            statement: self.statement.clone(),
            queue_ms: ms(Some(*arrived), way.admitted),
            start_ms: ms(way.admitted, begun),
            end: None,
        }
    }

    /// What the doors saw, and what the engine used.
    fn end(&self, way: &Way) -> AuditEnd {
        let fate = way.fate.unwrap_or(Fate { outcome: "client_gone", ..Fate::default() });
        let run_ms = way.begun.as_ref().map_or(0, |begun| ms(begun.at, Instant::now()));
        let long = way.begun.as_ref().filter(|_| run_ms >= USAGE_MS_MIN);
        let worker = long.and_then(|begun| begun.worker.upgrade());
        let cpu_ms = worker.as_ref().and_then(|worker| worker.cpu_ms());
        let before = way.begun.as_ref().and_then(|begun| begun.cpu_ms_before);
        let report = self.errand.report(fate.outcome == "ok");
        let traffic = self.errand.traffic();
        let (read, _) = self.errand.tables();
        let mut rules = self.errand.rules();
        if rules.is_empty() {
            rules.extend(self.asked.rule.clone());
        }
        let changes = report.as_ref().map(|report| report.changes.as_slice()).unwrap_or_default();
        AuditEnd {
            outcome: fate.outcome.to_owned(),
            run_ms,
            kinds: kinds(!read.is_empty(), changes),
            tables_read: read.iter().take(TABLES_MAX).map(|table| named(table.dotted())).collect(),
            tables_written: written(changes),
            changes: changes.iter().take(TABLES_MAX).cloned().map(shortened).collect(),
            write_state: report.as_ref().map(|report| report.state),
            tables_cut: read.len() > TABLES_MAX || changes.len() > TABLES_MAX,
            rows: fate.counts.map(|(rows, _)| rows),
            truncated: fate.counts.is_some_and(|(_, truncated)| truncated),
            rows_affected: fate.affected,
            bytes: fate.bytes,
            store_bytes_read: traffic.store_bytes_read,
            store_bytes_written: traffic.store_bytes_written,
            store_calls: traffic.store_calls,
            catalog_calls: traffic.catalog_calls,
            cpu_ms: cpu_ms.zip(before).map(|(after, before)| after.saturating_sub(before)),
            peak_memory_bytes: worker.and_then(|worker| worker.memory_bytes_peak()),
            shared: traffic.shared,
            rules,
            attempts: report.as_ref().map(|WriteReport { attempts, .. }| *attempts),
        }
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        let way = std::mem::take(self.way.get_mut().unwrap_or_else(PoisonError::into_inner));
        let event = match (&way.begun, way.fate) {
            (Some(_), _) => AuditEvent::End,
            (None, Some(fate)) if is_refused_change(fate.outcome) => AuditEvent::Refused,
            (None, _) => return,
        };
        let mut record = self.record(event, &way);
        let mut end = self.end(&way);
        if event == AuditEvent::Refused {
            end.kinds = vec![AuditKind::Write];
        }
        record.end = Some(end);
        self.audit.put(Message::Record(Box::new(record)));
    }
}

/// The refusals that are looked for: somebody wanted to change what is closed to them.
pub(super) fn is_refused_change(outcome: &str) -> bool {
    [Code::WriteTargetClosed, Code::WritesNotGranted].iter().any(|code| code.as_str() == outcome)
}

fn kinds(has_read: bool, changes: &[TableChange]) -> Vec<AuditKind> {
    let mut kinds = BTreeSet::new();
    for change in changes {
        let rows = change.snapshot_id.is_some();
        if rows {
            kinds.insert(AuditKind::Write);
        }
        // A commit without a snapshot changes a table's shape.
        if !rows || change.kind != ChangeKind::Commit {
            kinds.insert(AuditKind::Ddl);
        }
    }
    if has_read || kinds.is_empty() {
        kinds.insert(AuditKind::Read);
    }
    kinds.into_iter().collect()
}

/// Each table once, in the order of the changes.
fn written(changes: &[TableChange]) -> Vec<String> {
    let mut names = Vec::new();
    for change in changes.iter().take(TABLES_MAX) {
        let name = change.table.as_ref().map(|table| named(format!("{}.{table}", change.schema)));
        if let Some(name) = name.filter(|name| !names.contains(name)) {
            names.push(name);
        }
    }
    names
}

fn named(mut name: String) -> String {
    super::redact::cut(&mut name, NAME_BYTES_MAX);
    name
}

fn shortened(change: TableChange) -> TableChange {
    TableChange { schema: named(change.schema), table: change.table.map(named), ..change }
}

pub(super) fn ms(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
}

/// What is in a record of a statement that was refused before it had a permit.
pub(super) fn refused(asked: Asked, statement: String, outcome: Code) -> AuditRecord {
    let end = AuditEnd {
        outcome: outcome.as_str().to_owned(),
        run_ms: 0,
        kinds: vec![AuditKind::Write],
        tables_read: Vec::new(),
        tables_written: Vec::new(),
        changes: Vec::new(),
        write_state: None,
        tables_cut: false,
        rows: None,
        truncated: false,
        rows_affected: None,
        bytes: 0,
        store_bytes_read: 0,
        store_bytes_written: 0,
        store_calls: 0,
        catalog_calls: 0,
        cpu_ms: None,
        peak_memory_bytes: None,
        shared: false,
        rules: asked.rule.into_iter().collect(),
        attempts: None,
    };
    AuditRecord {
        event: AuditEvent::Refused,
        recorded_at: now(),
        request_id: asked.request_id,
        workspace: asked.workspace,
        subject: named(asked.subject),
        role: asked.role,
        statement,
        queue_ms: None,
        start_ms: None,
        end: Some(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_what_was_changed() {
        use AuditKind::{Ddl, Read, Write};
        let change = |kind, snapshot: bool| TableChange {
            schema: "s".into(),
            table: Some("t".into()),
            kind,
            snapshot_id: snapshot.then(|| "7".into()),
            previous_snapshot_id: None,
        };
        assert_eq!(kinds(false, &[]), [Read]);
        assert_eq!(kinds(false, &[change(ChangeKind::Commit, true)]), [Write]);
        assert_eq!(kinds(true, &[change(ChangeKind::Commit, false)]), [Read, Ddl]);
        assert_eq!(kinds(true, &[change(ChangeKind::Create, true)]), [Read, Write, Ddl]);
        assert_eq!(kinds(false, &[change(ChangeKind::Drop, false)]), [Ddl]);
    }
}
