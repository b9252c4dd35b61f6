//! One idempotency key, one outcome.

use futures::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::world::{World, append, change_of, finish, refused, send, set_property, staged_table};

const T: &str = "/namespaces/n/tables/t";

#[tokio::test]
async fn a_repeated_change_is_made_once() {
    let world = World::start().await;
    world.table("t").await;
    let first = world.post_with_key("k", T, append(1, None)).await;
    let files = world.keys("lake", "").await;
    let again = world.post_with_key("k", T, append(1, None)).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!((again.status, again.text, again.etag), (first.status, first.text, first.etag));
    assert_eq!(world.keys("lake", "").await, files);
    refused(&world.post_with_key("other", T, append(1, None)).await, 409, "CommitFailedException");
    refused(&world.append("t", 1, None).await, 409, "CommitFailedException");
}

#[tokio::test]
async fn a_refusal_is_replayed_too() {
    let world = World::start().await;
    world.table("t").await;
    refused(&world.post_with_key("k", T, append(2, Some(1))).await, 409, "CommitFailedException");
    assert_eq!(world.append("t", 1, None).await.status, 200);
    refused(&world.post_with_key("k", T, append(2, Some(1))).await, 409, "CommitFailedException");
    assert_eq!(world.post_with_key("k2", T, append(2, Some(1))).await.status, 200);
}

#[tokio::test]
async fn the_same_key_at_once_is_applied_once() {
    let world = World::start().await;
    world.table("t").await;
    world.table("u").await;
    let transaction = json!({"table-changes": [
        change_of("t", append(1, None)), change_of("u", append(1, None)),
    ]});
    let answers =
        join_all((0..8).map(|_| world.post_with_key("k", "/transactions/commit", transaction.clone()))).await;
    assert!(answers.iter().all(|answer| answer.status == 204), "{answers:?}");
    assert_eq!((world.snapshot("t").await, world.snapshot("u").await), (Some(1), Some(1)));

    // This one would apply over and over if it were let through.
    let property = set_property("a", "1");
    let answers = join_all((0..8).map(|_| world.post_with_key("k2", T, property.clone()))).await;
    assert!(answers.iter().all(|answer| answer.text == answers[0].text), "{answers:?}");
    let loaded = world.get(T).await;
    assert_eq!(loaded.body["metadata"]["metadata-log"].as_array().unwrap().len(), 2);
    assert_eq!(world.keys("lake", "").await.len(), 5);
}

#[tokio::test]
async fn a_staged_create_can_be_replayed_and_finished() {
    let world = World::start().await;
    let first = world.post_with_key("k", "/namespaces/n/tables", staged_table("t")).await;
    let again = world.post_with_key("k", "/namespaces/n/tables", staged_table("t")).await;
    assert_eq!((again.status.as_u16(), &again.text), (200, &first.text));
    let commit = finish(&first.body["metadata"]["table-uuid"]);
    let finished = world.post_with_key("k2", T, commit.clone()).await;
    assert_eq!(finished.status, 200, "{finished:?}");
    assert_eq!(world.post_with_key("k2", T, commit).await.text, finished.text);
    let late = world.post_with_key("k", "/namespaces/n/tables", staged_table("t")).await;
    assert_eq!(late.text, first.text);
}

#[tokio::test]
async fn every_kind_of_change_is_replayed() {
    let world = World::start().await;
    world.table("t").await;
    let rename = json!({
        "source": {"namespace": ["n"], "name": "t"}, "destination": {"namespace": ["n"], "name": "u"},
    });
    let changes = [
        ("/namespaces", json!({"namespace": ["m"]})),
        ("/namespaces/m/properties", json!({"updates": {"a": "1"}})),
        ("/namespaces/m/tables", crate::world::new_table("x")),
        ("/tables/rename", rename),
    ];
    for (path, body) in changes {
        let first = world.post_with_key(path, path, body.clone()).await;
        assert!(first.status.is_success(), "{path}: {first:?}");
        let again = world.post_with_key(path, path, body).await;
        assert_eq!((again.status, again.text), (first.status, first.text), "{path}");
    }
    for path in ["/namespaces/m/tables/x?purgeRequested=true", "/namespaces/m"] {
        let drop = || send(world.inside(Method::DELETE, path).header("idempotency-key", path));
        assert_eq!(drop().await.status, 204, "{path}");
        assert_eq!(drop().await.status, 204, "{path}");
        refused_again(&world, path).await;
    }
}

async fn refused_again(world: &World, path: &str) {
    assert_eq!(world.delete(path).await.status, 404, "{path}");
}

#[tokio::test]
async fn a_key_belongs_to_its_warehouse() {
    let world = World::start().await;
    let other = world.catalog.create_warehouse("w_b", "lake", "prod/w_b").await.unwrap();
    let body = json!({"namespace": ["m"]});
    assert_eq!(world.post_with_key("k", "/namespaces", body.clone()).await.status, 200);
    let path = format!("/catalog/v1/{}/namespaces", other.id);
    let there = send(world.request(Method::POST, &path).header("idempotency-key", "k").json(&body)).await;
    assert_eq!(there.body["properties"]["location"], "s3://lake/prod/w_b");
}

#[tokio::test]
async fn a_key_has_a_bound() {
    let world = World::start().await;
    let body = json!({"namespace": ["m"]});
    refused(
        &world.post_with_key(&"k".repeat(129), "/namespaces", body.clone()).await,
        400,
        "BadRequestException",
    );
    refused(&world.post_with_key("", "/namespaces", body).await, 400, "BadRequestException");
    assert_eq!(world.head("/namespaces/m").await, 404);
}

#[tokio::test]
async fn a_client_that_hangs_up_hears_the_outcome_later() {
    let world = World::start().await;
    world.table("t").await;
    // Given up at once, or soon after: whether the change began or not, its key leads to one outcome.
    for _ in 0..5 {
        let gone = world.post_with_key("k", T, append(1, None));
        let _ = tokio::time::timeout(std::time::Duration::from_millis(2), gone).await;
    }
    assert_eq!(world.post_with_key("k", T, append(1, None)).await.status, 200);
    assert_eq!(world.snapshot("t").await, Some(1));
}
