//! A statement that may change something: its turn, its repetitions, and the truth about what it has changed.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use duck_contract::query::{ChangeKind, OnConflict, WriteReport, WriteState};
use duck_contract::worker::{Intent, Statement, Target};
use duck_contract::{Code, Format};
use hyper::Method;
use hyper::header::HeaderValue;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::{Answer, Entry, Failed, Failure, Order, Rows, SETTLED_MAX, collect, failed, late, request, run};
use crate::doors::{Act, Errand, Rights, Table};
use crate::fault::Fault;
use crate::limits::{Slot, Tables};
use crate::pool::Lease;

/// Between two attempts at a commit, where somebody else's was in the way: at first, and at most.
const PAUSE_FIRST_MS: u64 = 10;
const PAUSE_MAX_MS: u64 = 1_000;
/// A thousand tables with long names.
const INTENT_BYTES_MAX: usize = 1 << 20;
/// Clients take headers of some 16 KiB.
const HEADER_BYTES_MAX: usize = 8 << 10;

/// What the statement is about to change, as its engine reads it: refused where the permit does not cover it, before any file is
/// written. The doors ask again.
async fn intent(lease: &Lease, order: &Order) -> Result<Intent, Fault> {
    let asked = timeout_at(order.deadline, ask(lease, &order.statement)).await.map_err(|_| {
        // It still reads.
        lease.retire();
        late()
    })?;
    let intent = asked.map_err(|e| match e {
        Asked::Refused(failure) => failed(failure),
        Asked::Broken(e) => {
            Fault::new(Code::EngineUnavailable, "The engine did not read the statement.").because(e)
        }
    })?;
    if let Some(writ) = order.permit.writ() {
        intent.targets.iter().try_for_each(|target| check(writ, &order.errand, target))?;
    }
    if !order.statement.before.is_empty() && !is_one_change(&intent.targets) {
        let sentence = "These statements cannot be made together: the catalog makes, removes and renames tables and schemas one by \
                        one. Send each of those by itself.";
        return Err(Fault::new(Code::NotSupported, sentence));
    }
    Ok(intent)
}

/// Whether the catalog is asked once for all of it: for changes of tables that are there, or for one that is made and filled.
fn is_one_change(targets: &[Target]) -> bool {
    let names =
        |target: &Target| (target.schema.to_lowercase(), target.table.as_deref().map(str::to_lowercase));
    let made: BTreeSet<_> = targets.iter().filter(|t| t.kind == ChangeKind::Create).map(names).collect();
    let changes = targets.iter().map(|target| match target.kind {
        ChangeKind::Commit if !made.contains(&names(target)) => (ChangeKind::Commit, None),
        ChangeKind::Commit => (ChangeKind::Create, Some(names(target))),
        kind => (kind, Some(names(target))),
    });
    let mut seen = Vec::new();
    for change in changes {
        if !seen.contains(&change) {
            seen.push(change);
        }
    }
    seen.len() < 2
}

fn check(rights: &dyn Rights, errand: &Errand, Target { schema, table, kind }: &Target) -> Result<(), Fault> {
    let decide = |act| {
        rights.rule(act).into_iter().for_each(|rule| errand.decided(rule));
        rights.check(act)
    };
    let namespace: Vec<String> = schema.split('.').map(str::to_owned).collect();
    let Some(name) = table.clone() else { return decide(Act::Schema(&namespace)) };
    let table = Table { namespace, name };
    decide(if *kind == ChangeKind::Create { Act::Create(&table) } else { Act::Change(&table) })
}

enum Asked {
    Refused(Failure),
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Asked {
    fn from(e: E) -> Self {
        Asked::Broken(e.into())
    }
}

async fn ask(lease: &Lease, statement: &Statement) -> Result<Intent, Asked> {
    let body = serde_json::to_vec(statement)?;
    let (answer, connection) = lease.worker().send(request(Method::POST, "/intent", body.into())?).await?;
    let well = answer.status().is_success();
    let body = collect(answer, INTENT_BYTES_MAX).await?;
    lease.worker().keep(connection);
    if well {
        Ok(serde_json::from_slice(&body)?)
    } else {
        Err(Asked::Refused(serde_json::from_slice(&body)?))
    }
}

/// Runs a statement while it has its turn at the tables that it changes, and again where somebody else's commit was in the way and
/// that is wanted.
pub(crate) async fn write(
    (mut entry, mut slot): (Entry, Slot),
    mut lease: Lease,
    order: &Order,
    tables: &Tables,
) -> Result<Answer, Failed> {
    let intent = match intent(&lease, order).await {
        Ok(intent) => intent,
        // Nothing was begun yet.
        Err(fault) if fault.code == Code::EngineUnavailable => {
            lease.retire();
            return Err(Failed::Bystander(entry, slot, fault));
        }
        Err(fault) => return Err(Failed::Fault(fault)),
    };
    let turn = tables.turn(order.permit.warehouse.name(), intent.targets.iter().filter_map(named));
    // With the engine, so that it lasts until the statement has really ended.
    lease.hold(timeout_at(order.deadline, turn).await.map_err(|_| Failed::Fault(late()))?);
    loop {
        order.errand.attempted();
        let outcome = run((entry, slot), lease, order).await;
        let Err(Failed::Conflict(held, fault)) = outcome else { return outcome };
        let pause = pause(order.errand.attempts());
        let again = order.errand.is_untouched() && is_repeated(&intent, order.on_conflict);
        if !again || Instant::now() + pause >= order.deadline {
            return Err(Failed::Fault(fault));
        }
        tracing::info!("somebody else's commit was in the way: once more");
        tokio::time::sleep(pause).await;
        (entry, slot, lease) = *held;
    }
}

/// A table's name, for its turn. Schemas have none.
fn named(target: &Target) -> Option<String> {
    Some(format!("{}.{}", target.schema, target.table.as_ref()?))
}

/// Whether a statement is run again after a conflict.
fn is_repeated(intent: &Intent, on_conflict: OnConflict) -> bool {
    match on_conflict {
        OnConflict::RetryAppends => intent.appends,
        OnConflict::Retry => true,
        OnConflict::Fail => false,
    }
}

/// Somewhere between nothing and a bound that doubles: two who have met should not meet again.
fn pause(attempts: u32) -> Duration {
    let bound = PAUSE_FIRST_MS.saturating_mul(1 << attempts.min(10)).min(PAUSE_MAX_MS);
    // A version 4 UUID holds 122 random bits.
    let (random, _) = Uuid::new_v4().as_u64_pair();
    Duration::from_millis(1 + random % bound)
}

/// The outcome with what the doors saw of its changes. Whoever sent the statement is told the truth also where its engine, its time
/// or its answer was lost.
pub(crate) async fn told(outcome: Result<Answer, Fault>, errand: &Errand) -> Result<Answer, Fault> {
    match outcome {
        Ok(answer) => Ok(reported(answer, errand)),
        Err(fault) => Err(truly(fault, errand).await),
    }
}

/// A failure with what the doors saw of its changes.
pub(crate) async fn truly(fault: Fault, errand: &Errand) -> Fault {
    if fault.write.is_some() {
        return fault;
    }
    // What comes now is too late to be told.
    errand.close();
    errand.settled(SETTLED_MAX).await;
    let Some(report) = errand.report(false) else { return fault };
    let mut fault = match (errand.refusal(), errand.conflict()) {
        (Some(refusal), _) => refusal.because(fault),
        (None, Some(conflict)) if fault.code == Code::CommitConflict => {
            Fault::new(Code::CommitConflict, conflict).because(fault)
        }
        _ => fault,
    };
    let changed = changed(&report);
    if report.state == WriteState::Made {
        let sentence =
            format!("The change of {changed} was made, and its answer was lost. Do not send it again.");
        fault = Fault::new(Code::AnswerLost, sentence).because(fault);
    } else if report.state == WriteState::Unknown {
        let sentence = format!(
            "The catalog has not said whether the change of {changed} was made. Look for it there before you send it again."
        );
        fault = Fault::new(Code::CommitUnknown, sentence).because(fault);
    }
    fault.write = Some(Box::new(report));
    fault
}

fn reported(mut answer: Answer, errand: &Errand) -> Answer {
    let Some(mut report) = errand.report(true) else { return answer };
    // What is streamed has not ended yet: its report comes behind it.
    let Rows::Whole(bytes) = &answer.rows else { return answer };
    errand.close();
    report.rows_affected = answer.affected;
    if let (Format::Json, Ok(json)) = (answer.format, serde_json::to_vec(&report)) {
        answer.rows = Rows::Whole(with_report(bytes, &json));
    }
    answer.write = Some(report);
    answer
}

/// The tables and their new snapshots, for a sentence.
fn changed(report: &WriteReport) -> String {
    let named = report.changes.iter().map(|change| {
        let table =
            change.table.iter().fold(change.schema.clone(), |schema, table| format!("{schema}.{table}"));
        change.snapshot_id.iter().fold(table, |table, id| format!("{table} (snapshot {id})"))
    });
    named.collect::<Vec<_>>().join(", ")
}

/// A report as a header's value: JSON in ASCII, with as many of its changes as a header holds.
pub(crate) fn header_of(report: &WriteReport) -> Option<HeaderValue> {
    let mut count = report.changes.len();
    loop {
        let changes = report.changes[..count].to_vec();
        let ascii = ascii(&serde_json::to_string(&WriteReport { changes, ..report.clone() }).ok()?)?;
        if ascii.len() <= HEADER_BYTES_MAX || count == 0 {
            return HeaderValue::from_str(&ascii).ok();
        }
        count /= 2;
    }
}

/// JSON without any sign beyond ASCII.
fn ascii(json: &str) -> Option<String> {
    let mut ascii = String::with_capacity(json.len());
    for unit in json.encode_utf16() {
        match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii() => ascii.push(char::from(byte)),
            _ => write!(ascii, "\\u{unit:04x}").ok()?,
        }
    }
    Some(ascii)
}

/// A JSON answer is one object, whose last sign is its closing bracket.
fn with_report(answer: &Bytes, report: &[u8]) -> Bytes {
    let end = answer.len().saturating_sub(usize::from(answer.ends_with(b"}")));
    let mut whole = BytesMut::with_capacity(answer.len() + report.len() + 10);
    whole.extend_from_slice(&answer[..end]);
    whole.extend_from_slice(b",\"write\":");
    whole.extend_from_slice(report);
    whole.extend_from_slice(b"}");
    whole.freeze()
}

#[cfg(test)]
mod tests {
    use duck_contract::query::TableChange;

    use super::*;

    #[test]
    fn the_report_is_a_field_of_the_answer() {
        let answer = Bytes::from_static(br#"{"columns":[],"rows":[],"row_count":0,"truncated":false}"#);
        let whole: serde_json::Value = serde_json::from_slice(&with_report(&answer, b"{\"a\":1}")).unwrap();
        assert_eq!((&whole["write"]["a"], &whole["truncated"]), (&1.into(), &false.into()));
    }

    #[test]
    fn what_the_catalog_is_asked_for_twice_is_not_made_together() {
        use ChangeKind::{Commit, Create, Drop, Schema};
        let of = |changes: &[(ChangeKind, &str)]| {
            let target = |(kind, name): &(ChangeKind, &str)| {
                let table = (*kind != Schema).then(|| (*name).to_owned());
                Target { schema: "ds".into(), table, kind: *kind }
            };
            is_one_change(&changes.iter().map(target).collect::<Vec<_>>())
        };
        assert!(of(&[]) && of(&[(Commit, "a"), (Commit, "b")]) && of(&[(Create, "a"), (Commit, "A")]));
        for apart in [
            &[(Create, "a"), (Create, "b")][..],
            &[(Create, "a"), (Commit, "b")],
            &[(Drop, "a"), (Commit, "b")],
            &[(Drop, "a"), (Create, "a")],
            &[(Schema, ""), (Create, "a")],
        ] {
            assert!(!of(apart), "{apart:?}");
        }
    }

    #[test]
    fn a_header_holds_any_name_in_ascii() {
        let change = TableChange {
            schema: "ds".into(),
            table: Some("tést🪀\n".into()),
            kind: ChangeKind::Commit,
            snapshot_id: None,
            previous_snapshot_id: None,
        };
        let changes = vec![change; 100];
        let report = WriteReport { state: WriteState::Made, rows_affected: Some(1), changes, attempts: 1 };
        let header = header_of(&report).unwrap();
        let read: WriteReport = serde_json::from_str(header.to_str().unwrap()).unwrap();
        assert!(header.len() <= HEADER_BYTES_MAX && read.changes.len() > 10);
        assert_eq!(&read.changes[0], &report.changes[0]);
    }

    #[test]
    fn pauses_grow_and_have_a_bound() {
        for attempts in 1..100 {
            let bound = (PAUSE_FIRST_MS << attempts.min(10)).min(PAUSE_MAX_MS);
            assert!((1..=bound).contains(&u64::try_from(pause(attempts).as_millis()).unwrap()));
        }
    }
}
