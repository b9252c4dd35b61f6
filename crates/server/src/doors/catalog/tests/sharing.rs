//! What readers share.

use super::fake::say;
use super::*;

async fn sharing(script: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static) -> World {
    World::start(|settings, _| settings.cache_ms = 60_000, script).await
}

#[tokio::test]
async fn readers_share_one_load_and_writers_never_do() {
    let world = sharing(|_, _| Act::Late(Duration::from_millis(50), 200, table(&[1]))).await;
    let all = (0..8).map(|_| world.get(&world.reader, TABLE));
    assert!(futures::future::join_all(all).await.iter().all(|answer| *answer == (200, table(&[1]))));
    assert_eq!(world.fake.seen("GET", TABLE).len(), 1);
    world.get(&world.writer, TABLE).await;
    world.get(&world.writer, TABLE).await;
    assert_eq!(world.fake.seen("GET", TABLE).len(), 3);
    // Another query is another answer.
    world.get(&world.reader, &format!("{TABLE}?snapshots=refs")).await;
    assert_eq!(world.fake.seen("GET", TABLE).len(), 4);
}

#[tokio::test]
async fn a_commit_is_seen_by_the_next_read() {
    let world = sharing(|seen, before| match seen.method.as_str() {
        "GET" => say(200, table(&[i64::try_from(before).unwrap()])),
        _ => say(204, ""),
    })
    .await;
    assert_eq!(world.get(&world.reader, TABLE).await.1, table(&[0]));
    assert_eq!(world.get(&world.reader, TABLE).await.1, table(&[0]));
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 204);
    assert_eq!(world.get(&world.reader, TABLE).await.1, table(&[1]));
}

#[tokio::test]
async fn refusals_and_failures_are_not_kept() {
    let world = sharing(|_, before| match before {
        0 => say(404, "{}"),
        1 => say(500, "{}"),
        2 => say(200, r#"{"metadata-location":"s3://lake/w_b/m.json"}"#),
        _ => say(200, table(&[1])),
    })
    .await;
    for status in [404, 500, 403, 200] {
        assert_eq!(world.get(&world.reader, TABLE).await.0, status);
    }
}

#[tokio::test]
async fn an_entry_grows_old() {
    let world = World::start(|settings, _| settings.cache_ms = 50, |_, _| say(200, table(&[1]))).await;
    world.get(&world.reader, TABLE).await;
    tokio::time::sleep(Duration::from_millis(80)).await;
    world.get(&world.reader, TABLE).await;
    assert_eq!(world.fake.seen("GET", TABLE).len(), 2);
}
