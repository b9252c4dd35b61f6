//! An errand's rights, its record, and what is told of it.

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
    for address in ["s3://lake/w_a/u/data/x", "s3://lake/w_a/t", "s3://lake/w_a/t/", "s3://lake/w_a/tt/x"] {
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
    let first = errand.begins(vec![effect(ChangeKind::Commit, "t")]).unwrap();
    assert_eq!(state(&errand), WriteState::Unknown);
    errand.ended(first, Outcome::NotMade, Some("t has moved".into()));
    assert_eq!((state(&errand), errand.conflict().as_deref()), (WriteState::NotMade, Some("t has moved")));
    assert!(errand.is_untouched());
    let second = errand.begins(vec![effect(ChangeKind::Commit, "t")]).unwrap();
    assert!(!errand.is_untouched());
    errand.ended(second, Outcome::Made, None);
    errand.attempted();
    let report = errand.report(true).unwrap();
    assert_eq!((report.state, report.changes.len(), report.attempts), (WriteState::Made, 1, 1));
    assert_eq!(report.changes[0].snapshot_id.as_deref(), Some("7"));
    let third = errand.begins(vec![effect(ChangeKind::Drop, "u")]).unwrap();
    errand.ended(third, Outcome::NotMade, None);
    assert_eq!(state(&errand), WriteState::Partly);
    // What was told stays true.
    errand.close();
    assert!(errand.begins(vec![effect(ChangeKind::Drop, "u")]).is_none());
    errand.loaded(&table("t"), Some("s3://lake/w_a/t"));
    assert!(!errand.may_put("s3://lake/w_a/t/data/x.parquet"));
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
    let number = errand.begins(vec![effect(ChangeKind::Commit, "t")]).unwrap();
    assert!(!errand.settled(Duration::from_secs(1)).await);
    let waits = tokio::spawn({
        let errand = errand.clone();
        async move { errand.settled(Duration::from_mins(1)).await }
    });
    tokio::task::yield_now().await;
    errand.ended(number, Outcome::Unknown, None);
    assert!(waits.await.unwrap());
}
