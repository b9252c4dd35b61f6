//! What public reports say of neighbouring systems, as behaviour of ours (docs/reports.md has the list).

use duck_contract::Code;
use duck_contract::query::WriteState;
use serde_json::{Value, json};

use crate::commits::Rig;
use crate::lossy::Loss;
use crate::world::{World, problem, python, refused_writing, shared};

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
    let world = World::start(&[]).await;
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

#[tokio::test]
async fn a_write_that_is_explained_runs_once_for_who_may_write_and_never_for_others() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.explained AS SELECT 0 AS n").await;
    let insert = "INSERT INTO datasets.explained VALUES (1)";
    for (sql, rows) in [
        (format!("EXPLAIN ANALYZE {insert}"), 2),
        (format!("EXPLAIN (ANALYZE, FORMAT json) {insert}"), 3),
        (format!("EXPLAIN {insert}"), 3),
    ] {
        let said = acme.problem(&json!({"sql": sql})).await;
        assert_eq!(said.code, Code::ReadOnly, "{sql}: {}", said.detail);
        let answer = acme.json(json!({"sql": sql, "format": "json", "allow_writes": true})).await;
        assert_eq!(
            acme.rows("SELECT count(*) FROM datasets.explained").await,
            json!([[rows]]),
            "{sql}: {answer}"
        );
    }
}

#[tokio::test]
async fn after_a_column_is_dropped_the_table_is_read_as_it_is_and_as_it_was() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.dropped AS SELECT 1 AS a, 2 AS b").await;
    acme.write("INSERT INTO datasets.dropped VALUES (3, 4)").await;
    let snapshots =
        "SELECT snapshot_id FROM iceberg_snapshots(lake.datasets.dropped) ORDER BY sequence_number";
    let first = acme.rows(snapshots).await[0][0].clone();
    acme.write("ALTER TABLE datasets.dropped DROP COLUMN a").await;
    // Nothing was written under the new schema yet, and then something was.
    assert_eq!(acme.rows("FROM datasets.dropped ORDER BY ALL").await, json!([[2], [4]]));
    acme.write("INSERT INTO datasets.dropped VALUES (6)").await;
    acme.write("DELETE FROM datasets.dropped WHERE b = 4").await;
    assert_eq!(acme.rows("FROM datasets.dropped ORDER BY ALL").await, json!([[2], [6]]));
    let as_it_was = format!("FROM datasets.dropped AT (VERSION => {first})");
    assert_eq!(acme.rows(&as_it_was).await, json!([[1, 2]]));
}

#[tokio::test]
async fn a_default_that_would_be_lost_is_refused_and_one_that_is_kept_is_used() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    let create = |name: &str, version: u8| {
        format!(
            "CREATE TABLE datasets.{name} (k INTEGER, v INTEGER DEFAULT 4) WITH ('format-version' = '{version}')"
        )
    };
    refused_writing(acme, &create("two", 2), Code::NotSupported).await;
    refused_writing(acme, "CREATE TABLE datasets.serial (k SERIAL)", Code::SqlBinding).await;
    acme.write(&create("three", 3)).await;
    acme.write("INSERT INTO datasets.three (k) VALUES (1)").await;
    assert_eq!(acme.rows("FROM datasets.three").await, json!([[1, 4]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_reads_of_a_table_in_one_request_see_one_snapshot() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.moving AS SELECT 0 AS n").await;
    let count = "SELECT count(*) AS n FROM datasets.moving";
    let slow = "CREATE TEMP TABLE slow AS SELECT count(*) FROM range(300000000) t(i) WHERE hash(i) = 7";
    let first = format!("CREATE TEMP TABLE first AS {count}");
    let last = format!("SELECT (SELECT n FROM first), ({count})");
    let body = json!({"statements": [first, slow, last], "format": "json"});
    let who = acme.clone();
    let reading = tokio::spawn(async move { who.json(body).await["rows"].clone() });
    let mut made = 1;
    while !reading.is_finished() {
        acme.write("INSERT INTO datasets.moving VALUES (1)").await;
        made += 1;
    }
    let seen = reading.await.unwrap();
    assert_eq!(seen[0][0], seen[0][1]);
    // Others have committed between the two reads.
    assert!(seen[0][0].as_u64().unwrap() + 3 < made, "{seen}, and {made} in the end");
    assert_eq!(acme.rows(count).await, json!([[made]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_over_several_tables_that_fails_leaves_each_whole() {
    let rig = Rig::start(30_000).await;
    for table in ["t", "u"] {
        rig.table(table).await;
    }
    let both = |k: usize| {
        let insert = |table: &str| format!("INSERT INTO datasets.{table} VALUES ({k}, 'row {k}')");
        json!({"statements": [insert("t"), "DELETE FROM datasets.u WHERE k = 1", insert("u")], "format": "json", "allow_writes": true})
    };
    // Somebody else has changed one of its tables meanwhile: neither is changed.
    rig.lossy.hold();
    let (acme, body) = (rig.acme.clone(), both(3));
    let loser = tokio::spawn(async move { acme.post(&body).await });
    rig.lossy.holding().await;
    rig.world.acme.write("INSERT INTO datasets.u VALUES (4, 'row 4')").await;
    rig.lossy.release();
    let said = problem(loser.await.unwrap()).await;
    assert_eq!(
        (said.code, said.write.unwrap().state),
        (Code::CommitConflict, WriteState::NotMade),
        "{}",
        said.detail
    );
    rig.holds("t", &["1 row 1", "2 row 2"]).await;
    rig.holds("u", &["1 row 1", "2 row 2", "4 row 4"]).await;
    let lost = rig.deferred();
    assert!(lost.len() > 2, "the engine wanted its files deleted: {lost:?}");
    // The answer is lost: both are changed, and said to be.
    rig.lossy.lose(Loss::Cut, 2);
    let answer = rig.acme.json(both(5)).await;
    assert_eq!(rig.lossy.lost(), 2);
    rig.lossy.heal();
    assert_eq!(answer["write"]["state"], "made", "{answer}");
    rig.holds("t", &["1 row 1", "2 row 2", "5 row 5"]).await;
    rig.holds("u", &["2 row 2", "4 row 4", "5 row 5"]).await;
    // Every file that an engine wanted deleted is still there; this looks.
    assert!(rig.deferred().len() >= lost.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_that_others_have_changed_are_read_and_written_right() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    let ask = |more: &Value| {
        let store = world.dir.join("store");
        let mut ask = json!({"catalog": world.catalog_url, "warehouse": acme.warehouse, "store": store, "table": "datasets.evolved"});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask
    };
    let token = world.catalog_token().await;
    python("read_table.py", &ask(&json!({"token": token, "evolve": true})));
    let columns = acme.rows("SELECT column_name, column_type FROM (DESCRIBE datasets.evolved)").await;
    assert_eq!(columns, json!([["d", "BIGINT"], ["a", "BIGINT"], ["name", "VARCHAR"], ["c", "VARCHAR"]]));
    let mut expected = vec![
        json!([null, 1, "one", null]),
        json!([200, 2, "two", null]),
        json!([300, 3, "three", null]),
        json!([400, 4, "four", null]),
        json!([500, 5, "five", "fifty"]),
        json!([600, 6_000_000_000_u64, "six", "sixty"]),
    ];
    assert_eq!(acme.rows("FROM datasets.evolved ORDER BY a").await, json!(expected));
    assert_eq!(
        acme.rows("SELECT a FROM datasets.evolved WHERE c IS NULL AND d > 200 ORDER BY a").await,
        json!([[3], [4]])
    );
    acme.write("INSERT INTO datasets.evolved VALUES (700, 7, 'seven', 'seventy')").await;
    acme.write("UPDATE datasets.evolved SET c = 'new' WHERE name = 'one'").await;
    acme.write("DELETE FROM datasets.evolved WHERE a = 2").await;
    expected[0] = json!([null, 1, "one", "new"]);
    expected.remove(1);
    expected.insert(4, json!([700, 7, "seven", "seventy"]));
    assert_eq!(acme.rows("FROM datasets.evolved ORDER BY a").await, json!(expected));
    let read = python("read_table.py", &ask(&json!({"token": token})));
    let mut names: Vec<_> = read["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| format!("{} {}", row[1].as_str().unwrap(), row[3].as_str().unwrap()))
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["1 'new'", "3 None", "4 None", "5 'fifty'", "6000000000 'sixty'", "7 'seventy'"],
        "for PyIceberg"
    );
}

/// Whoever else writes has a clock of its own, and DuckDB goes by the times in a table's log.
#[tokio::test]
async fn a_commit_of_a_clock_behind_is_seen_and_one_ahead_is_waited_for() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    for (table, skew_ms) in [("behind", -10), ("ahead", 6_000)] {
        acme.write(&format!("CREATE TABLE datasets.{table} AS SELECT 'a' AS v")).await;
        acme.write(&format!("UPDATE datasets.{table} SET v = 'b'")).await;
        // Somebody makes it 'a' again: the first snapshot's files under a new id, after the second one.
        let path = format!("/v1/{}/namespaces/datasets/tables/{table}", world.prefix(&acme.warehouse).await);
        let mut snapshots = world.catalog(&path).await["metadata"]["snapshots"].as_array().unwrap().clone();
        snapshots.sort_by_key(|snapshot| snapshot["sequence-number"].as_u64());
        let [mut made, last] = <[Value; 2]>::try_from(snapshots).unwrap();
        made["snapshot-id"] = json!(77_777);
        made["parent-snapshot-id"] = last["snapshot-id"].clone();
        made["sequence-number"] = json!(3);
        made["timestamp-ms"] = json!(last["timestamp-ms"].as_i64().unwrap() + skew_ms);
        let main = json!({"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 77_777});
        let body =
            json!({"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": made}, main]});
        let url = format!("{}{path}", world.catalog_url);
        let ask = world.http.post(url).bearer_auth(world.catalog_token().await).json(&body);
        let answer = ask.send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        let update = format!("UPDATE datasets.{table} SET v = v || '!'");
        if skew_ms > 0 {
            // What is in the future is not built upon, and not destroyed: nobody changes what it has not read.
            let said = acme.problem(&json!({"sql": update, "allow_writes": true})).await;
            assert_eq!(said.code, Code::CommitConflict, "{}", said.detail);
            acme.write(&format!("INSERT INTO datasets.{table} VALUES ('c')")).await;
            assert_eq!(acme.rows(&format!("FROM datasets.{table} ORDER BY v")).await, json!([["a"], ["c"]]));
        } else {
            assert_eq!(acme.rows(&format!("FROM datasets.{table}")).await, json!([["a"]]));
            acme.write(&update).await;
            assert_eq!(acme.rows(&format!("FROM datasets.{table}")).await, json!([["a!"]]));
        }
    }
}
