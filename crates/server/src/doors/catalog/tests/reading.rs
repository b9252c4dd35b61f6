//! What is read, and what of it is kept.

use super::fake::say;
use super::*;

/// The tags of the answers that the catalog was told are known.
fn known(world: &World) -> Vec<Option<String>> {
    world.fake.seen("GET", TABLE).into_iter().map(|seen| seen.known).collect()
}

#[tokio::test]
async fn a_table_is_asked_for_every_time_and_comes_again_only_when_it_has_changed() {
    let world = World::plain(|_, before| match before {
        0..3 => Act::Tagged("\"one\"", table(&[1])),
        _ => Act::Tagged("W/\"two\"", table(&[1, 2])),
    })
    .await;
    for (pass, snapshots) in
        [(&world.reader, &[1][..]), (&world.reader, &[1]), (&world.writer, &[1]), (&world.reader, &[1, 2])]
    {
        assert_eq!(world.get(pass, TABLE).await, (200, table(snapshots)));
    }
    world.get(&world.writer, TABLE).await;
    let tags = [None, Some("\"one\""), Some("\"one\""), Some("\"one\""), Some("W/\"two\"")];
    assert_eq!(known(&world), tags.map(|tag| tag.map(str::to_owned)));
    // Another question has another answer.
    world.get(&world.reader, &format!("{TABLE}?snapshots=refs")).await;
    assert_eq!(known(&world).last(), Some(&None));
}

#[tokio::test]
async fn a_catalog_without_tags_is_asked_for_all_of_it() {
    let world = World::plain(|_, before| say(200, table(&[i64::try_from(before).unwrap()]))).await;
    for snapshot in 0..3 {
        assert_eq!(world.get(&world.reader, TABLE).await.1, table(&[snapshot]));
    }
}

#[tokio::test]
async fn what_is_refused_is_not_kept_whatever_its_tag() {
    let foreign = r#"{"metadata-location":"s3://lake/w_b/m.json"}"#;
    let world = World::plain(|_, before| match before {
        0 => say(404, "{}"),
        1 => say(500, "{}"),
        2 | 3 => Act::Tagged("\"foreign\"", foreign.into()),
        _ => Act::Tagged("\"own\"", table(&[1])),
    })
    .await;
    for status in [404, 500, 403, 403, 200] {
        assert_eq!(world.get(&world.reader, TABLE).await.0, status);
    }
    assert_eq!(known(&world), [const { None }; 5]);
}

#[tokio::test]
async fn an_answer_that_says_unchanged_to_nobody_is_of_no_use() {
    let world = World::plain(|_, _| say(304, "")).await;
    assert_eq!(world.get(&world.reader, TABLE).await.0, 502);
}
