//! Many writers at once, in one process and in two: no row is lost, and none is there twice.

use std::time::Duration;

use duck_contract::Code;
use serde_json::{Value, json};

use crate::own_catalog::Site;
use crate::world::{Organisation, Process, World, problem, read_toml, set};

const WRITERS: usize = 8;
const APPENDS: usize = 25;

/// A second server on the same catalog and store.
pub struct Second {
    pub acme: Organisation,
    _server: Process,
}

impl Second {
    pub fn beside(world: &World, environment: &[(&str, &str)]) -> Second {
        let file = world.dir.join("second.toml");
        let mut written = read_toml(&world.dir.join("duck-server.toml"));
        set(&mut written, "", "listen", "'127.0.0.1:0'");
        std::fs::write(&file, written.to_string()).unwrap();
        let arguments = ["serve", "--json", "--config", file.to_str().unwrap()];
        let server = Process::start(&arguments, environment, world.dir.join("second.log"));
        let line: Value = serde_json::from_str(&server.line).unwrap();
        let acme = Organisation { url: line["url"].as_str().unwrap().to_owned(), ..world.acme.clone() };
        Second { acme, _server: server }
    }
}

/// One of `WRITERS` clients, which insert `APPENDS` rows each: table, and the attempts that it took.
async fn append(who: Organisation, table: String, writer: usize) -> u64 {
    let mut attempts = 0;
    for row in 0..APPENDS {
        let sql = format!("INSERT INTO datasets.{table} VALUES ({writer}, {row})");
        let body = json!({"sql": sql, "format": "json", "allow_writes": true, "timeout_ms": 120_000});
        attempts += who.json(body).await["write"]["attempts"].as_u64().unwrap();
    }
    attempts
}

/// All writers at once, the odd ones at the second server. All attempts together.
async fn all(servers: [&Organisation; 2], table: impl Fn(usize) -> String) -> u64 {
    let writers =
        (0..WRITERS).map(|writer| tokio::spawn(append(servers[writer % 2].clone(), table(writer), writer)));
    let mut attempts = 0;
    for writer in writers.collect::<Vec<_>>() {
        attempts += tokio::time::timeout(Duration::from_mins(3), writer).await.unwrap().unwrap();
    }
    attempts
}

/// The table holds each row once, for both servers.
async fn holds_each_row_once(servers: [&Organisation; 2], table: &str, rows: usize) {
    let sql = format!("SELECT count(*), count(DISTINCT (w, r)) FROM datasets.{table}");
    for who in servers {
        assert_eq!(who.rows(&sql).await, json!([[rows, rows]]), "{table}");
    }
}

/// On an empty table, on one that has a snapshot, and on a table for each writer, which meets nobody there.
async fn no_row_is_lost(servers: [&Organisation; 2]) {
    let (who, rows) = (servers[0], WRITERS * APPENDS);
    who.write("CREATE TABLE datasets.empty (w INTEGER, r INTEGER)").await;
    who.write("CREATE TABLE datasets.begun AS SELECT -1 AS w, -1 AS r").await;
    for (table, before) in [("empty", 0), ("begun", 1)] {
        let attempts = all(servers, |_| table.to_owned()).await;
        assert!(attempts >= rows as u64);
        holds_each_row_once(servers, table, rows + before).await;
    }
    for writer in 0..WRITERS {
        who.write(&format!("CREATE TABLE datasets.own{writer} (w INTEGER, r INTEGER)")).await;
    }
    assert_eq!(all(servers, |writer| format!("own{writer}")).await, rows as u64, "attempts");
    for writer in 0..WRITERS {
        holds_each_row_once(servers, &format!("own{writer}"), APPENDS).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_writers_of_one_table_at_two_servers_lose_no_row() {
    let world = World::start(&[]).await;
    let second = Second::beside(&world, &[]);
    no_row_is_lost([&world.acme, &second.acme]).await;
    world.is_at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_writers_at_two_servers_lose_no_row_with_the_stores_own_catalog() {
    let site = Site::start().await;
    no_row_is_lost([&site.acme, &site.second]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_has_written_is_read_at_another_at_once() {
    let world = World::start(&[]).await;
    let second = Second::beside(&world, &[]);
    let servers = [&world.acme, &second.acme];
    servers[0].write("CREATE TABLE datasets.t (i INTEGER)").await;
    for i in 0..20 {
        let (writer, reader) = (servers[i % 2], servers[(i + 1) % 2]);
        writer.write(&format!("INSERT INTO datasets.t VALUES ({i})")).await;
        assert_eq!(reader.rows("SELECT count(*), max(i) FROM datasets.t").await, json!([[i + 1, i]]));
    }
    servers[1].write("UPDATE datasets.t SET i = i + 100").await;
    assert_eq!(servers[0].rows("SELECT count(*), min(i) FROM datasets.t").await, json!([[20, 100]]));
    servers[0].write("ALTER TABLE datasets.t ADD COLUMN more VARCHAR").await;
    assert_eq!(servers[1].rows("SELECT count(*), count(more) FROM datasets.t").await, json!([[20, 0]]));
    servers[1].write("DROP TABLE datasets.t").await;
    let gone = servers[0].problem(&json!({"sql": "SELECT * FROM datasets.t"})).await;
    assert!(gone.code == Code::SqlBinding && gone.detail.contains("does not exist"), "{}", gone.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_one_table_in_one_process_take_turns_and_writers_of_others_do_not_wait() {
    let world = World::start(&[]).await;
    for writer in 0..WRITERS {
        world.acme.write(&format!("CREATE TABLE datasets.t{writer} (w INTEGER, r INTEGER)")).await;
    }
    let each = |table: fn(usize) -> String| {
        (0..WRITERS).map(move |writer| (writer, table(writer))).collect::<Vec<_>>()
    };
    for tables in [each(|writer| format!("t{writer}")), each(|_| "t0".to_owned())] {
        let running: Vec<_> = tables
            .into_iter()
            .map(|(writer, table)| tokio::spawn(append(world.acme.clone(), table, writer)))
            .collect();
        for writer in running {
            // Whoever has its turn meets nobody.
            assert_eq!(writer.await.unwrap(), APPENDS as u64);
        }
    }
    for writer in 0..WRITERS {
        let rows = if writer == 0 { WRITERS * APPENDS + APPENDS } else { APPENDS };
        let sql = format!("SELECT count(*) FROM datasets.t{writer}");
        assert_eq!(world.acme.rows(&sql).await, json!([[rows]]));
    }
    assert_eq!(world.status().await["written_tables"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_whose_writes_go_wrong_is_stopped_until_it_is_reopened() {
    let world = World::start(&[]).await;
    let policy = "write_target = 'iceberg_native'\n[stop]\nfailures = 2\nwindow_s = 600\n";
    std::fs::write(world.dir.join("writes.toml"), policy).unwrap();
    let second = Second::beside(&world, &[]);
    world.acme.write("CREATE TABLE datasets.t AS SELECT 1 AS a").await;
    crate::world::until_async("the policy holds", async || {
        world.status().await["writes"]["policy"]["stop_failures"] == 2
    })
    .await;
    // A statement that always loses: while it runs, the other server commits.
    let slow = "INSERT INTO datasets.t SELECT i FROM range(3000000) r(i)";
    let mut stopped = false;
    for _ in 0..2 {
        let acme = world.acme.clone();
        let body = json!({"sql": slow, "format": "json", "allow_writes": true, "timeout_ms": 2_500});
        let loser = tokio::spawn(async move { acme.post(&body).await });
        while !loser.is_finished() {
            second.acme.write("INSERT INTO datasets.t VALUES (0)").await;
        }
        let answer = loser.await.unwrap();
        stopped |= answer.status() != 200;
    }
    assert!(stopped);
    let said =
        world.acme.problem(&json!({"sql": "INSERT INTO datasets.t VALUES (1)", "allow_writes": true})).await;
    assert_eq!(said.code, Code::WriteTargetClosed, "{}", said.detail);
    assert!(said.detail.contains("automatic stop"), "{}", said.detail);
    let status = world.status().await["writes"]["stopped"].clone();
    assert_eq!(status[0]["workspace"], "acme");
    // Its reads go on, and so do others' writes.
    world.acme.rows("SELECT count(*) FROM datasets.t").await;
    world.globex.write("CREATE TABLE datasets.other AS SELECT 1 AS a").await;
    let reopen = |token: &str| {
        let url = format!("{}/warehouses/{}/reopen", world.url, world.acme.warehouse);
        world.acme.http.post(url).bearer_auth(token).send()
    };
    assert_eq!(problem(reopen(&world.acme.token).await.unwrap()).await.code, Code::NotFound);
    let answer: Value = reopen(&world.service_token).await.unwrap().json().await.unwrap();
    assert_eq!(answer["was_stopped"], true);
    world.acme.write("INSERT INTO datasets.t VALUES (1)").await;
}
