//! No row lost.

use std::collections::BTreeSet;

use super::fake::{nobody, say};
use super::routes::Route;
use super::settle::{Change, Unsettled, settle};
use super::*;

/// The keys under which the changes came, with repetitions.
fn keys(world: &World, path: &str) -> Vec<Option<String>> {
    world.fake.seen("POST", path).into_iter().map(|seen| seen.key).collect()
}

#[tokio::test]
async fn a_commit_is_repeated_under_one_key_until_it_is_settled() {
    type First = fn() -> Act;
    let firsts: [First; 5] = [
        || say(500, "oops"),
        || say(503, "later"),
        || Act::Cut,
        || say(409, r#"{"error":{"message":"busy","type":"RequestInProgress","code":409}}"#),
        || Act::Late(Duration::from_secs(1), 204, String::new()),
    ];
    for first in firsts {
        let world = World::plain(move |_, before| if before == 0 { first() } else { say(204, "") }).await;
        assert_eq!(world.post(&world.writer, COMMIT, commit()).await, (204, String::new()));
        let keys = keys(&world, COMMIT);
        assert_eq!(keys.len(), 2);
        assert!(keys[0].is_some() && keys[0] == keys[1], "{keys:?}");
        assert_eq!(world.fake.seen("POST", COMMIT)[1].body, commit());
    }
}

#[tokio::test]
async fn every_change_has_a_key_of_its_own() {
    let world = World::plain(|_, _| say(204, "")).await;
    for _ in 0..3 {
        world.post(&world.writer, COMMIT, commit()).await;
    }
    assert_eq!(keys(&world, COMMIT).into_iter().collect::<BTreeSet<_>>().len(), 3);
}

#[tokio::test]
async fn a_draft_is_repeated_without_a_key() {
    let world = World::plain(|_, before| if before == 0 { Act::Cut } else { say(200, table(&[])) }).await;
    let (status, _) = world
        .post(&world.writer, "/v1/lake/namespaces/n/tables", r#"{"name":"t","stage-create":true}"#)
        .await;
    assert_eq!((status, keys(&world, "/tables")), (200, vec![None, None]));
}

/// A catalog without idempotency keys: the commit's answer is lost, its repetition a conflict.
async fn conflicting(first: fn() -> Act, there: &'static [i64]) -> World {
    World::plain(move |seen, before| match (seen.method.as_str(), before) {
        ("GET", _) => say(200, table(there)),
        (_, 0) => first(),
        _ => say(409, r#"{"error":{"message":"changed","type":"CommitFailedException","code":409}}"#),
    })
    .await
}

#[tokio::test]
async fn a_conflict_with_our_own_commit_is_a_success() {
    let world = conflicting(|| Act::Cut, &[3, 7]).await;
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await, (204, String::new()));
    let world = conflicting(|| say(500, ""), &[7]).await;
    let body = r#"{"updates":[{"action":"add-snapshot","snapshot":{"snapshot-id":7}}]}"#;
    assert_eq!(world.post(&world.writer, TABLE, body).await, (200, table(&[7])));
}

#[tokio::test]
async fn a_conflict_with_someone_else_s_commit_is_one() {
    let world = conflicting(|| Act::Cut, &[3]).await;
    let (status, body) = world.post(&world.writer, COMMIT, commit()).await;
    assert_eq!((status, body.contains("CommitFailedException")), (409, true), "{body}");
}

#[tokio::test]
async fn an_engine_that_repeats_its_commit_by_itself_is_told_the_truth() {
    let conflict = || say(409, "{}");
    let world = conflicting(conflict, &[7]).await;
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 204);
    let world = conflicting(conflict, &[3]).await;
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 409);
}

#[tokio::test]
async fn an_outcome_that_nobody_knows_is_called_unknown() {
    let world =
        World::plain(|seen, _| if seen.method == "GET" { say(200, table(&[3])) } else { say(500, "") }).await;
    let (status, body) = world.post(&world.writer, COMMIT, commit()).await;
    assert_eq!((status, body.contains("CommitStateUnknownException")), (502, true), "{body}");
    let keys: BTreeSet<_> = keys(&world, COMMIT).into_iter().collect();
    assert_eq!(keys.len(), 1);
    // The same, but the table shows that the commit was made.
    let world =
        World::plain(|seen, _| if seen.method == "GET" { say(200, table(&[7])) } else { say(500, "") }).await;
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 204);
}

#[tokio::test]
async fn a_change_that_never_left_is_not_called_unknown() {
    let (_kept, origin) = nobody();
    let mut settings = Settings::open(origin);
    settings.read_ms_max = 200;
    let upstream = Upstream::new(settings).unwrap();
    let segments = ["transactions", "commit"];
    let reading = effects::read(Route::CommitTransaction, &segments, &commit().into()).unwrap();
    let change =
        Change::new(Route::CommitTransaction, Method::POST, "p-a", COMMIT, &reading, commit().into());
    // Nor is the minute of an unsettled change spent on it.
    let outcome = tokio::time::timeout(Duration::from_secs(5), settle(&upstream, &change)).await.unwrap();
    assert!(matches!(outcome, Err(Unsettled::NotMade(CatalogError::Unavailable { .. }))), "{outcome:?}");
}

#[tokio::test]
async fn a_repeated_deletion_that_finds_nothing_has_succeeded() {
    let world = World::plain(|_, before| if before == 0 { Act::Cut } else { say(404, "{}") }).await;
    assert_eq!(told(world.ask(&world.writer, Method::DELETE, TABLE)).await.0, 204);
    // A first one that finds nothing has not.
    let world = World::plain(|_, _| say(404, "{}")).await;
    assert_eq!(told(world.ask(&world.writer, Method::DELETE, TABLE)).await.0, 404);
}

#[tokio::test]
async fn a_change_is_settled_although_its_worker_is_gone() {
    let world = World::plain(|_, before| match before {
        0 => Act::Late(Duration::from_millis(120), 500, String::new()),
        _ => say(204, ""),
    })
    .await;
    let impatient = world.ask(&world.writer, Method::POST, COMMIT).timeout(Duration::from_millis(50));
    assert!(impatient.body(commit()).send().await.is_err());
    until(|| keys(&world, COMMIT).len() == 2).await;
}

#[tokio::test]
async fn the_door_closes_only_when_every_change_is_settled() {
    let world = World::plain(|_, before| match before {
        0 => Act::Late(Duration::from_millis(120), 500, String::new()),
        _ => say(204, ""),
    })
    .await;
    let change = tokio::spawn(told(world.ask(&world.writer, Method::POST, COMMIT).body(commit())));
    until(|| !keys(&world, COMMIT).is_empty()).await;
    world.stop.cancel();
    world.serving.await.unwrap().unwrap();
    assert_eq!(change.await.unwrap().0, 204);
    assert_eq!(world.fake.seen("POST", COMMIT).len(), 2);
}
