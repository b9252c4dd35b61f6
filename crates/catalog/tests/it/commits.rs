//! Commits: what is stale is refused, what is refused changes nothing, several tables change together or not at all.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::world::{World, append, change_of, finish, refused, set_property, staged_table};

const T: &str = "/namespaces/n/tables/t";

#[tokio::test]
async fn a_stale_base_is_refused() {
    let world = World::start().await;
    world.table("t").await;
    assert_eq!(world.append("t", 1, None).await.status, 200);
    refused(&world.append("t", 2, None).await, 409, "CommitFailedException");
    refused(&world.append("t", 2, Some(9)).await, 409, "CommitFailedException");
    assert_eq!(world.append("t", 2, Some(1)).await.status, 200);
    assert_eq!(world.snapshot("t").await, Some(2));
    let wrong = json!({
        "requirements": [{"type": "assert-table-uuid", "uuid": uuid::Uuid::new_v4()}],
        "updates": [],
    });
    refused(&world.post(T, wrong).await, 409, "CommitFailedException");
    refused(&world.append("u", 1, None).await, 404, "NoSuchTableException");
    let nowhere = world.post("/namespaces/x/tables/t", append(1, None)).await;
    refused(&nowhere, 404, "NoSuchNamespaceException");
}

#[tokio::test]
async fn of_many_at_once_one_wins_and_the_others_leave_nothing() {
    let world = World::start().await;
    world.table("t").await;
    let answers = join_all((1..=8).map(|id| world.append("t", id, None))).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!(won.len(), 1);
    for answer in lost {
        refused(answer, 409, "CommitFailedException");
    }
    assert_eq!(world.keys("lake", "").await.len(), 2);
}

#[tokio::test]
async fn no_change_is_lost_between_two_that_do_not_look() {
    let world = World::start().await;
    world.table("t").await;
    let names: Vec<_> = (0..12).map(|number| format!("p{number}")).collect();
    let answers = join_all(names.iter().map(|name| world.post(T, set_property(name, "1")))).await;
    let loaded = world.get(T).await;
    for (name, answer) in names.iter().zip(&answers) {
        let there = loaded.body["metadata"]["properties"].get(name).is_some();
        assert_eq!(there, answer.status == 200, "{name}: {answer:?}");
    }
    let won = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(won >= 1);
    assert_eq!(world.keys("lake", "").await.len(), 1 + won);
}

#[tokio::test]
async fn several_tables_change_together() {
    let world = World::start().await;
    world.table("t").await;
    world.table("u").await;
    let staged = world.post("/namespaces/n/tables", staged_table("v")).await;
    let commit = json!({"table-changes": [
        change_of("t", append(1, None)),
        change_of("u", append(2, None)),
        change_of("v", finish(&staged.body["metadata"]["table-uuid"])),
    ]});
    let done = world.post("/transactions/commit", commit).await;
    assert_eq!((done.status.as_u16(), done.text.as_str()), (204, ""));
    assert_eq!((world.snapshot("t").await, world.snapshot("u").await), (Some(1), Some(2)));
    assert_eq!(world.head("/namespaces/n/tables/v").await, 204);
}

#[tokio::test]
async fn one_stale_table_stops_all() {
    let world = World::start().await;
    world.table("t").await;
    world.table("u").await;
    world.append("u", 1, None).await;
    let files = world.keys("lake", "").await;
    for changes in [
        [change_of("t", append(2, None)), change_of("u", append(3, None))],
        [change_of("u", append(3, None)), change_of("t", append(2, None))],
    ] {
        let refusal = world.post("/transactions/commit", json!({"table-changes": changes})).await;
        refused(&refusal, 409, "CommitFailedException");
    }
    let missing =
        json!({"table-changes": [change_of("t", append(2, None)), change_of("x", append(3, None))]});
    refused(&world.post("/transactions/commit", missing).await, 404, "NoSuchTableException");
    assert_eq!((world.snapshot("t").await, world.snapshot("u").await), (None, Some(1)));
    assert_eq!(world.keys("lake", "").await, files);
}

#[tokio::test]
async fn transactions_that_cross_never_mix() {
    let world = World::start().await;
    world.table("t").await;
    world.table("u").await;
    let both = |id: i64| {
        let mut tables = ["t", "u"];
        if id % 2 == 0 {
            tables.reverse();
        }
        json!({"table-changes": tables.map(|table| change_of(table, append(id, None)))})
    };
    let answers = join_all((1..=8).map(|id| world.post("/transactions/commit", both(id)))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 204).count(), 1);
    assert_eq!(world.snapshot("t").await, world.snapshot("u").await);
    assert!(world.snapshot("t").await.is_some());
}

#[tokio::test]
async fn a_transaction_names_each_table_once() {
    let world = World::start().await;
    world.table("t").await;
    let twice = json!({"table-changes": [
        change_of("t", set_property("a", "1")), change_of("t", set_property("b", "1")),
    ]});
    refused(&world.post("/transactions/commit", twice).await, 400, "BadRequestException");
    let nameless = json!({"table-changes": [set_property("a", "1")]});
    refused(&world.post("/transactions/commit", nameless).await, 400, "BadRequestException");
    assert_eq!(world.post("/transactions/commit", json!({"table-changes": []})).await.status, 204);
}

#[tokio::test]
async fn snapshot_ids_keep_every_bit() {
    let world = World::start().await;
    world.table("t").await;
    let mut parent = None;
    for id in [i64::MAX, 9_007_199_254_740_993, 9_007_199_254_740_992] {
        let committed = world.append("t", id, parent).await;
        assert_eq!(committed.status, 200, "{committed:?}");
        assert_eq!(world.snapshot("t").await, Some(id));
        parent = Some(id);
    }
}

#[tokio::test]
async fn numbers_without_sense_do_no_harm() {
    let world = World::start().await;
    world.table("t").await;
    world.append("t", 1, None).await;
    for (field, number) in [
        ("timestamp-ms", json!(i64::MIN)),
        ("timestamp-ms", json!(i64::MAX)),
        ("sequence-number", json!(i64::MAX)),
        ("snapshot-id", json!(1)),
        ("schema-id", json!(i32::MAX)),
        ("snapshot-id", json!(1e300)),
    ] {
        let mut commit = append(2, Some(1));
        commit["updates"][0]["snapshot"][field] = number;
        let answer = world.post(T, commit).await;
        assert!(answer.status == 200 || answer.status.is_client_error(), "{field}: {answer:?}");
        assert_eq!(world.get(T).await.status, 200, "{field}");
    }
    let nonsense: Vec<Value> =
        vec![json!(null), json!([]), json!({}), json!({"updates": [{"action": "fly"}]})];
    for body in nonsense {
        refused(&world.post(T, body).await, 400, "BadRequestException");
    }
}
