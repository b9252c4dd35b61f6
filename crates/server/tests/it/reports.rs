//! What public reports say of neighbouring systems, as behaviour of ours (docs/reports.md has the list).

use duck_contract::Code;
use serde_json::{Value, json};

use crate::world::{World, problem, shared};

#[tokio::test]
async fn a_write_is_seen_by_the_next_read() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.seen (n INTEGER)").await;
    for n in 1..=10 {
        acme.write(&format!("INSERT INTO datasets.seen VALUES ({n})")).await;
        assert_eq!(acme.rows("SELECT count(*), max(n) FROM datasets.seen").await, json!([[n, n]]));
    }
}

#[tokio::test]
async fn a_changed_schema_holds_for_the_next_statement() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.evolving AS SELECT 1 AS a, 'x' AS b").await;
    assert_eq!(acme.rows("FROM datasets.evolving").await, json!([[1, "x"]]));
    acme.write("ALTER TABLE datasets.evolving ADD COLUMN c INTEGER").await;
    assert_eq!(acme.rows("SELECT a, b, c FROM datasets.evolving").await, json!([[1, "x", null]]));
    acme.write("ALTER TABLE datasets.evolving RENAME COLUMN b TO d").await;
    assert_eq!(acme.rows("SELECT d FROM datasets.evolving").await, json!([["x"]]));
    acme.write("ALTER TABLE datasets.evolving DROP COLUMN a").await;
    assert_eq!(acme.rows("FROM datasets.evolving").await, json!([["x", null]]));
    acme.write("INSERT INTO datasets.evolving VALUES ('y', 2)").await;
    assert_eq!(acme.rows("FROM datasets.evolving ORDER BY d").await, json!([["x", null], ["y", 2]]));
}

#[tokio::test]
async fn a_branch_does_not_change_what_the_table_is() {
    let world = World::start(&[("catalog", "cache_ms", "0")]).await;
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.branched AS SELECT 1 AS n").await;
    acme.write("INSERT INTO datasets.branched VALUES (2)").await;
    let path = format!("/v1/{}/namespaces/datasets/tables/branched", world.prefix(&acme.warehouse).await);
    let table = world.catalog(&path).await;
    let mut snapshots = table["metadata"]["snapshots"].as_array().unwrap().clone();
    snapshots.sort_by_key(|snapshot| snapshot["sequence-number"].as_u64());
    let id = |index: usize| snapshots[index]["snapshot-id"].clone();
    let set = |name: &str, snapshot: &Value| json!({"action": "set-snapshot-ref", "ref-name": name, "type": "branch", "snapshot-id": snapshot});
    // The newest snapshot belongs to a branch now; main is the one before.
    let body = json!({"requirements": [], "updates": [set("dev", &id(1)), set("main", &id(0))]});
    let ask =
        world.http.post(format!("{}{path}", world.catalog_url)).bearer_auth(world.catalog_token().await);
    let answer = ask.json(&body).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    assert_eq!(acme.rows("SELECT n FROM datasets.branched").await, json!([[1]]));
}

#[tokio::test]
async fn after_a_conflict_the_same_statement_works() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.contended (n INTEGER)").await;
    let insert = |n: usize| async move {
        let body = json!({"sql": format!("INSERT INTO datasets.contended VALUES ({n})"), "format": "json", "allow_writes": true});
        for _ in 0..20 {
            let answer = acme.post(&body).await;
            if answer.status().is_success() {
                return;
            }
            assert_eq!(problem(answer).await.code, Code::CommitConflict);
        }
        panic!("{n} never got in");
    };
    futures::future::join_all((0..6).map(insert)).await;
    assert_eq!(
        acme.rows("SELECT count(DISTINCT n), count(*) FROM datasets.contended").await,
        json!([[6, 6]])
    );
}

#[tokio::test]
async fn the_words_of_an_error_decide_nothing() {
    let world = shared().await;
    for words in
        ["INTERNAL Error: x", "FATAL Error: x", "Out of Memory Error: x", "HTTP 404", "Permission Error"]
    {
        let problem = world.acme.problem(&json!({"sql": format!("SELECT error('{words}')")})).await;
        assert_eq!(problem.code, Code::SqlRuntime, "{words}");
    }
    assert_eq!(
        world.acme.problem(&json!({"sql": "SELECT 'INTERNAL Error' + 1"})).await.code.status(),
        400,
        "a conversion that fails is the statement's own"
    );
}
