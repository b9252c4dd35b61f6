//! What is left of a statement, and what nobody can take from it unseen.

use std::path::{Path, PathBuf};
use std::process::Command;

use duck_contract::Code;
use serde_json::{Value, json};

use crate::world::{Organisation, World, kill, problem, read_toml, until, until_async};

const LONG: &str = "SELECT count(*) FROM range(100000000000) t(i) WHERE hash(i) = 7";

/// The records of a world so far, over all its files.
fn records(dir: &Path) -> Vec<Value> {
    let mut all: Vec<Value> = files(dir)
        .iter()
        .flat_map(|file| {
            std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .filter_map(|line| serde_json::from_str(&line).ok())
        .collect();
    all.sort_by_key(|record: &Value| record["seq"].as_u64());
    all
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("audit.jsonl")).collect()
}

/// The records of one request, as soon as so many are there.
async fn of(world: &World, id: &str, count: usize) -> Vec<Value> {
    let found = || -> Vec<Value> {
        records(&world.dir).into_iter().filter(|record| record["request_id"] == id).collect()
    };
    until(&format!("{id} has {count} records"), || found().len() >= count).await;
    assert_eq!(found().len(), count, "{:?}", found());
    found()
}

/// The start and the end of one request.
async fn both(world: &World, id: &str) -> (Value, Value) {
    let found = of(world, id, 2).await;
    assert_eq!((&found[0]["event"], &found[1]["event"]), (&json!("start"), &json!("end")), "{found:?}");
    assert_eq!(found[0]["statement"], found[1]["statement"]);
    (found[0].clone(), found[1].clone())
}

/// `duck-server audit verify`: whether it holds, and what is said.
fn verified(files: &[PathBuf], more: &[&str]) -> (bool, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_duck-server"))
        .args(["audit", "verify"])
        .args(files)
        .args(more)
        .output()
        .unwrap();
    let said = [run.stdout, run.stderr].concat();
    (run.status.success(), String::from_utf8(said).unwrap())
}

fn holds(dir: &Path) -> String {
    let (holds, said) = verified(&files(dir), &[]);
    assert!(holds, "{said}");
    said
}

async fn history(who: &Organisation, query: &str) -> Vec<Value> {
    let ask = who.http.get(format!("{}/queries/history{query}", who.url)).bearer_auth(&who.token);
    let answer = ask.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.json::<Value>().await.unwrap()["queries"].as_array().unwrap().clone()
}

fn reading(sql: &str) -> Value {
    json!({"sql": sql, "format": "json"})
}

fn writing(sql: &str) -> Value {
    json!({"sql": sql, "format": "json", "allow_writes": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_leaves_its_start_and_its_end_with_the_tables_that_the_doors_saw() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    let sql = "SELECT count(*) FROM customers WHERE name <> $1 -- nothing to see";
    let ask = json!({"sql": sql, "format": "json", "params": ["x"]});
    assert_eq!(acme.post_as("read-1", &ask).await.status(), 200);
    let (start, end) = both(&world, "read-1").await;
    assert_eq!(
        (&start["workspace"], &start["subject"], &start["role"]),
        (&json!("acme"), &json!("dev"), &json!("reader"))
    );
    assert_eq!(start["statement"], "SELECT count(*) FROM customers WHERE name <> $1");
    assert!(start["outcome"].is_null() && start["queue_ms"].is_u64() && start["start_ms"].is_u64());
    assert_eq!((&end["outcome"], &end["kinds"]), (&json!("ok"), &json!(["read"])));
    assert_eq!((&end["tables_read"], &end["tables_written"]), (&json!(["datasets.customers"]), &json!([])));
    assert_eq!((&end["rows"], &end["shared"]), (&json!(1), &json!(false)));
    for counted in ["bytes", "store_bytes_read", "store_calls", "catalog_calls"] {
        assert!(end[counted].as_u64().unwrap() > 0, "{counted}: {end}");
    }
    assert!(end["run_ms"].is_u64() && end["write_state"].is_null(), "{end}");
    // It is prepared and run in one transaction, which loads a table once.
    acme.post_as("read-again", &ask).await;
    assert_eq!(both(&world, "read-again").await.1["catalog_calls"], 1);
    // What an engine used is told of one that ran for a while.
    acme.post_as("busy", &reading("SELECT count(*) FROM range(40000000) t(i) WHERE hash(i) % 7 = 1")).await;
    let (_, end) = both(&world, "busy").await;
    assert!(end["cpu_ms"].as_u64().unwrap() >= 20, "{end}");
    assert!(end["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{end}");
    // Several statements, the first of which hides what is read in a view.
    let ask = json!({"statements": ["CREATE TEMP VIEW v AS SELECT * FROM ds_toydemo001", "SELECT * FROM v"]});
    assert!(acme.post_as("read-2", &ask).await.bytes().await.unwrap().len() > 1_000);
    let (start, end) = both(&world, "read-2").await;
    assert_eq!(end["tables_read"], json!(["datasets.ds_toydemo001"]));
    assert_eq!(start["statement"], "CREATE TEMP VIEW v AS SELECT * FROM ds_toydemo001; SELECT * FROM v");
    assert_eq!(end["rows"], 5_000);
    // The name of a table that is not read.
    acme.post_as("read-4", &reading("WITH customers AS (SELECT 1) SELECT * FROM customers")).await;
    assert_eq!(both(&world, "read-4").await.1["tables_read"], json!([]));
    // An answer that is streamed ends with its last byte.
    let ask = reading("SELECT i, repeat('x', 100) FROM range(50000) t(i)");
    let bytes = acme.post_as("read-3", &ask).await.bytes().await.unwrap().len();
    let (_, end) = both(&world, "read-3").await;
    assert_eq!((&end["outcome"], &end["bytes"], &end["rows"]), (&json!("ok"), &json!(bytes), &json!(50_000)));
    // One that is kept has its own id.
    let ask = acme
        .http
        .post(format!("{}/statements", acme.url))
        .bearer_auth(&acme.token)
        .json(&reading("SELECT 7"));
    let told: Value = ask.send().await.unwrap().json().await.unwrap();
    let (_, end) = both(&world, told["statement_id"].as_str().unwrap()).await;
    assert_eq!((&end["outcome"], &end["rows"]), (&json!("ok"), &json!(1)));
    assert!(holds(&world.dir).contains("0 statements began and did not end"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_recorded_with_its_snapshots_and_the_rule_that_opened_it() {
    let world = World::start(&[]).await;
    let acme = &world.acme;
    let made = acme.post_as("make", &writing("CREATE TABLE datasets.t AS SELECT 1 AS a")).await;
    assert_eq!(made.status(), 200);
    let (_, made) = both(&world, "make").await;
    assert_eq!((&made["kinds"], &made["tables_written"]), (&json!(["write", "ddl"]), &json!(["datasets.t"])));
    let answer = acme.post_as("insert", &writing("INSERT INTO t SELECT customer_id FROM customers")).await;
    let answer: Value = answer.json().await.unwrap();
    let (start, end) = both(&world, "insert").await;
    assert_eq!((&start["role"], &end["role"]), (&json!("writer"), &json!("writer")));
    assert_eq!((&end["changes"], &end["write_state"]), (&answer["write"]["changes"], &json!("made")));
    assert_eq!(end["changes"][0]["previous_snapshot_id"], made["changes"][0]["snapshot_id"]);
    assert!(end["changes"][0]["snapshot_id"].is_string() && made["changes"][0]["snapshot_id"].is_string());
    assert_eq!((&end["kinds"], &end["rows_affected"]), (&json!(["read", "write"]), &json!(500)));
    assert_eq!((&end["rules"], &end["attempts"]), (&json!(["write_target"]), &json!(1)));
    assert_eq!(end["tables_written"], json!(["datasets.t"]));
    assert!(end["tables_read"].as_array().unwrap().contains(&json!("datasets.customers")));
    assert!(end["store_bytes_written"].as_u64().unwrap() > 0);
    acme.post_as("alter", &writing("ALTER TABLE t ADD COLUMN b INTEGER")).await;
    let (_, end) = both(&world, "alter").await;
    assert_eq!((&end["kinds"], &end["tables_written"]), (&json!(["read", "ddl"]), &json!(["datasets.t"])));
    acme.post_as("drop", &writing("DROP TABLE t")).await;
    let (_, end) = both(&world, "drop").await;
    assert!(end["kinds"].as_array().unwrap().contains(&json!("ddl")), "{end}");
}

/// A token of acme's without the right to write.
fn without_grant(world: &World) -> Organisation {
    let file = world.dir.join("duck-server.toml");
    let run = Command::new(env!("CARGO_BIN_EXE_duck-server"))
        .args(["token", "--workspace", "acme", "--subject", "eve", "--config"])
        .arg(file)
        .output()
        .unwrap();
    let token = String::from_utf8(run.stdout).unwrap().trim().to_owned();
    Organisation { token, ..world.acme.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_change_is_recorded_though_it_never_began() {
    let world = World::start(&[]).await;
    let eve = without_grant(&world);
    let sql = "INSERT INTO customers VALUES (1, 'x', 'ES', DATE '2026-01-01', true)";
    assert_eq!(problem(eve.post_as("eve", &writing(sql)).await).await.code, Code::WritesNotGranted);
    let refused = of(&world, "eve", 1).await.remove(0);
    assert_eq!(
        (
            &refused["event"],
            &refused["outcome"],
            &refused["subject"],
            &refused["workspace"],
            &refused["kinds"]
        ),
        (&json!("refused"), &json!("writes_not_granted"), &json!("eve"), &json!("acme"), &json!(["write"]))
    );
    assert_eq!(refused["statement"], sql);
    let policy = "write_target = 'iceberg_native'\n[workspaces.acme.tables]\n'datasets.customers' = 'none'\n";
    std::fs::write(world.dir.join("writes.toml"), policy).unwrap();
    until_async("the policy holds", async || {
        world.status().await["writes"]["policy"]["workspaces"]["acme"].is_object()
    })
    .await;
    let said = problem(world.acme.post_as("closed", &writing(sql)).await).await;
    assert_eq!(said.code, Code::WriteTargetClosed);
    let refused = of(&world, "closed", 1).await.remove(0);
    assert_eq!((&refused["event"], &refused["outcome"]), (&json!("refused"), &json!("write_target_closed")));
    assert_eq!(refused["rules"], json!(["workspaces.acme.tables.\"datasets.customers\""]));
    // A change that fails for another reason is no refused one.
    let said = problem(world.acme.post_as("syntax", &writing("INSERT INTO")).await).await;
    assert_eq!(said.code, Code::SqlSyntax);
    assert_eq!(both(&world, "syntax").await.1["outcome"], "sql_syntax");
    assert_eq!(history(&world.acme, "?limit=2").await[1]["request_id"], "closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_a_statement_is_its_outcome() {
    let world = World::start(&[]).await;
    let acme = world.acme.clone();
    let outcome = async |id: &str| both(&world, id).await.1["outcome"].as_str().unwrap().to_owned();
    problem(acme.post_as("wrong", &reading("SELECT nothing FROM customers")).await).await;
    assert_eq!(outcome("wrong").await, "sql_binding");
    problem(acme.post_as("read-only", &reading("DROP TABLE customers")).await).await;
    assert_eq!(outcome("read-only").await, "read_only");
    problem(acme.post_as("late", &json!({"sql": LONG, "timeout_ms": 500})).await).await;
    assert_eq!(outcome("late").await, "timeout");
    let runs = |id: &'static str| {
        let acme = acme.clone();
        tokio::spawn(async move { acme.post_as(id, &reading(LONG)).await })
    };
    let began = async |id: &str| assert_eq!(of(&world, id, 1).await[0]["event"], "start");
    let running = runs("stopped");
    began("stopped").await;
    assert_eq!(acme.cancel("stopped").await.status(), 200);
    running.await.unwrap();
    assert_eq!(outcome("stopped").await, "cancelled");
    let running = runs("gone");
    began("gone").await;
    running.abort();
    assert_eq!(outcome("gone").await, "client_gone");
    let running = runs("killed");
    began("killed").await;
    for pid in world.workers() {
        kill(pid, rustix::process::Signal::KILL);
    }
    assert_eq!(problem(running.await.unwrap()).await.code, Code::EngineLost);
    let (_, end) = both(&world, "killed").await;
    assert_eq!((&end["outcome"], &end["rows"]), (&json!("engine_lost"), &Value::Null));
    // In the middle of its answer.
    let endless = reading("SELECT i, repeat('x', 1000) FROM range(1000000000) t(i)");
    let answer = acme.post_as("cut", &endless).await;
    drop(answer);
    assert_eq!(outcome("cut").await, "client_gone");
    world.is_at_rest().await;
    assert!(holds(&world.dir).contains("0 statements began and did not end"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_an_end_is_left_of_a_server_that_was_killed() {
    let home = tempfile::tempdir().unwrap();
    let world = World::open(home.path(), &[], &[]).await;
    let acme = world.acme.clone();
    let running = tokio::spawn(async move { acme.post_as("orphan", &reading(LONG)).await.status() });
    of(&world, "orphan", 1).await;
    kill(world.pid, rustix::process::Signal::KILL);
    running.await.unwrap_err();
    drop(world);
    let before = records(home.path()).len();
    let world = World::open(home.path(), &[], &[]).await;
    assert_eq!(world.acme.post_as("after", &reading("SELECT 1")).await.status(), 200);
    both(&world, "after").await;
    assert_eq!(of(&world, "orphan", 1).await[0]["event"], "start");
    let said = holds(home.path());
    assert!(said.contains("1 statements began and did not end") && said.contains("  acme orphan"), "{said}");
    assert!(records(home.path()).len() > before);
    // Half a line, as a machine leaves it that has lost its power, is told and not gone on from.
    drop(world);
    let file = home.path().join("audit.jsonl");
    let text = std::fs::read(&file).unwrap();
    std::fs::write(&file, &text[..text.len() - 30]).unwrap();
    let (held, said) = verified(&files(home.path()), &[]);
    assert!(!held && said.contains("not whole"), "{said}");
    let world = World::open(home.path(), &[], &[]).await;
    assert!(holds(home.path()).contains("1 lines were torn"));
    drop(world);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_statement_is_recorded() {
    let world = World::start(&[]).await;
    let secret = "hunter2-hunter2-hunter2";
    for sql in [
        format!("CREATE SECRET s (TYPE s3, KEY_ID '{secret}', SECRET '{secret}')"),
        format!("CREATE SECRET s (TYPE s3, KEY_ID \"{secret}\")"),
        format!("SELECT 1 -- {secret}"),
        format!("/* {secret} */ SELECT 1"),
        format!("/* {secret} /* nested {secret} */ */ SELECT 1"),
        format!("SELECT count(*) FROM customers WHERE name = '{secret}' AND 'password' <> ''"),
        format!("SELECT E'token=\\'{secret}'"),
        format!("SELECT $q$password={secret}$q$"),
        format!("SELECT 's3://user:{secret}@host/'"),
        format!("SELECT '{secret}-{secret}'"),
        format!("ATTACH 'x' AS y (TOKEN {secret})"),
        format!("SET s3_secret_access_key = '{secret}'"),
        format!("SELECT '{secret}' AS password FROM"),
        format!("SELECT '{secret}"),
    ] {
        for writes in [false, true] {
            world.acme.post(&json!({"sql": sql, "format": "json", "allow_writes": writes})).await;
        }
    }
    let ask = json!({"sql": "SELECT $1", "format": "json", "params": [secret]});
    assert_eq!(world.acme.post_as("last", &ask).await.status(), 200);
    let (_, end) = both(&world, "last").await;
    assert_eq!(end["statement"], "SELECT $1");
    let text = std::fs::read_to_string(world.dir.join("audit.jsonl")).unwrap();
    assert!(text.contains("CREATE SECRET …") && !text.contains(secret));
    assert!(!json!(history(&world.acme, "").await).to_string().contains(secret));
    let file = read_toml(&world.dir.join("duck-server.toml"));
    for (section, name) in [("auth", "jwt_secret"), ("auth", "service_token"), ("catalog", "client_secret")] {
        assert!(!text.contains(file[section][name].as_str().unwrap()), "{section}.{name}");
    }
    assert!(!text.contains(&world.acme.token));
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_done_to_the_files_shows() {
    let world = World::start(&[("audit", "file_bytes_max", "4096"), ("audit", "files_max", "0")]).await;
    for n in 0..10 {
        world.acme.post_as(&format!("q{n}"), &reading(&format!("SELECT {n}"))).await;
    }
    both(&world, "q9").await;
    let dir = world.dir.clone();
    until("there are several files", || files(&dir).len() > 3).await;
    holds(&dir);
    let head = world.status().await["audit"]["head"]["hash"].as_str().unwrap().to_owned();
    assert!(verified(&files(&dir), &["--head", &head]).0);
    let copy = tempfile::tempdir().unwrap();
    let original: Vec<(PathBuf, Vec<u8>)> = files(&dir)
        .iter()
        .map(|file| (copy.path().join(file.file_name().unwrap()), std::fs::read(file).unwrap()))
        .collect();
    let mut tampered = 0;
    let mut shows = |what: &str, at: usize, bytes: Option<Vec<u8>>| {
        for (file, bytes) in &original {
            std::fs::write(file, bytes).unwrap();
        }
        assert!(verified(&files(copy.path()), &["--head", &head]).0);
        match bytes {
            Some(bytes) => std::fs::write(&original[at].0, bytes).unwrap(),
            None => std::fs::remove_file(&original[at].0).unwrap(),
        }
        let (holds, said) = verified(&files(copy.path()), &["--head", &head]);
        assert!(!holds, "{what} in {}: {said}", original[at].0.display());
        tampered += 1;
    };
    for (at, (_, bytes)) in original.iter().enumerate() {
        let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        let middle = lines.len() / 2;
        let without = |gone: usize| {
            let kept = lines.iter().enumerate().filter(|(n, _)| *n != gone).map(|(_, line)| *line);
            kept.collect::<Vec<_>>().concat()
        };
        let mut changed = bytes.clone();
        let byte = &mut changed[bytes.len() / 2];
        *byte = if *byte == b'1' { b'2' } else { b'1' };
        shows("one byte", at, Some(changed));
        shows("the first line", at, Some(without(0)));
        shows("a line in the middle", at, Some(without(middle)));
        let mut swapped = lines.clone();
        swapped.swap(middle - 1, middle);
        shows("two lines", at, Some(swapped.concat()));
        shows("the last line", at, Some(without(lines.len() - 1)));
        // The oldest file may have been removed for its age: that alone shows by nothing.
        if !lines[0].windows(8).any(|word| word == b"\"seq\":1,") {
            shows("a file", at, None);
        }
    }
    assert!(tampered > 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_sees_its_own_history_and_no_other() {
    let world = World::start(&[("audit", "history_per_workspace_max", "3")]).await;
    for n in 0..5 {
        world.acme.post_as(&format!("a{n}"), &reading(&format!("SELECT {n}"))).await;
    }
    world.globex.post_as("g0", &reading("SELECT 'globex'")).await;
    both(&world, "g0").await;
    let ids =
        |all: &[Value]| all.iter().map(|q| q["request_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let own = history(&world.acme, "").await;
    assert_eq!(ids(&own), ["a4", "a3", "a2"]);
    assert!(own.iter().all(|record| record["event"] == "end" && record["workspace"] == "acme"));
    assert_eq!(ids(&history(&world.acme, "?limit=1").await), ["a4"]);
    assert_eq!(ids(&history(&world.globex, "?limit=1").await), ["g0"]);
    assert_eq!(ids(&history(&world.back_end(), "?workspace_id=globex&limit=1").await), ["g0"]);
    let get = |who: &Organisation, query: &str| {
        who.http.get(format!("{}/queries/history{query}", who.url)).bearer_auth(&who.token).send()
    };
    for query in ["?workspace_id=acme", &format!("?warehouse={}", world.acme.warehouse)] {
        assert_eq!(problem(get(&world.globex, query).await.unwrap()).await.code, Code::WarehouseMismatch);
    }
    let nobody = Organisation { token: "x".into(), ..world.acme.clone() };
    assert_eq!(problem(get(&nobody, "").await.unwrap()).await.code, Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_find_no_room_fail_no_query_and_are_counted() {
    let world = World::start(&[("audit", "waiting_max", "1")]).await;
    let before = world.status().await["audit"].clone();
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let acme = world.acme.clone();
        asked.spawn(async move {
            for _ in 0..25 {
                assert_eq!(acme.post(&reading("SELECT 42")).await.status(), 200);
            }
        });
    }
    asked.join_all().await;
    let of = |status: &Value, name: &str| status[name].as_u64().unwrap();
    until_async("every record is taken or lost", async || {
        let now = world.status().await["audit"].clone();
        let more = |name: &str| of(&now, name) - of(&before, name);
        // The last of what filled the world may come late.
        more("taken") + more("lost") >= 400 && of(&now, "waiting") == 0
    })
    .await;
    holds(&world.dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_records_is_read_with_sql_and_one_that_cannot_be_written_disturbs_nobody() {
    let table = "{ workspace = 'ops', batch_ms_max = 300, batch_rows_max = 50, waiting_max = 1000 }";
    let world = World::start(&[("audit", "table", table)]).await;
    // There is no such warehouse yet: records wait.
    assert_eq!(world.acme.post_as("early", &reading("SELECT count(*) FROM customers")).await.status(), 200);
    assert_eq!(world.status().await["audit"]["table"]["written"], 0);
    world.found("ops").await;
    world.acme.post_as("change", &writing("CREATE TABLE datasets.t AS SELECT 1 AS a")).await;
    let written = async || {
        let table = world.status().await["audit"]["table"].clone();
        table["waiting"] == 0 && table["written"].as_u64().unwrap() > 4
    };
    for _ in 0..20 {
        // The pause between two attempts grows.
        if written().await {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    let ask = async |sql: &str| {
        let body = json!({"sql": sql, "format": "json", "workspace_id": "ops"});
        world.back_end().json(body).await["rows"].clone()
    };
    let rows = "SELECT event, workspace, outcome, tables_read, tables_written, rows FROM audit.statements
                WHERE request_id = 'early' ORDER BY recorded_at, event DESC";
    until_async("the records are in the table", async || {
        let body = json!({"sql": rows, "format": "json", "workspace_id": "ops"});
        let answer = world.back_end().post(&body).await;
        answer.status() == 200 && answer.json::<Value>().await.unwrap()["rows"].as_array().unwrap().len() == 2
    })
    .await;
    assert_eq!(
        ask(rows).await,
        json!([
            ["start", "acme", null, null, null, null],
            ["end", "acme", "ok", ["datasets.customers"], [], 1]
        ])
    );
    until_async("the change is in the table", async || {
        let sql = "SELECT json_extract_string(changes, '$[0].table') FROM audit.statements
                   WHERE request_id = 'change' AND event = 'end' AND recorded_at > now() - INTERVAL 1 HOUR";
        ask(sql).await == json!([["t"]])
    })
    .await;
    // What the service writes there leaves no records of its own, or there would be no end of them.
    until_async("nothing waits", written).await;
    let own = records(&world.dir).into_iter().filter(|record| record["subject"] == "audit").count();
    assert_eq!((own, &world.status().await["audit"]["table"]["lost"]), (0, &json!(0)));
}
