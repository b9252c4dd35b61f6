//! What happens to engines: each kind of end is one tenant's affair, typed, and over at once.

use std::path::Path;
use std::time::Duration;

use duck_contract::{Code, Problem};
use futures::StreamExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cancellation::STOPPABLE;
use crate::world::{Organisation, Process, World, children, kill, problem, until, workers_of};

const NO_SPARES: (&str, &str, &str) = ("pool", "spares", "0");
const MANY_ROWS: (&str, &str, &str) = ("query", "rows_max", "1000000000000");

/// Reads on until the answer breaks off.
async fn breaks_off(answer: reqwest::Response) {
    let mut rows = answer.bytes_stream();
    let mut broken = false;
    while let Some(piece) = rows.next().await {
        broken |= piece.is_err();
    }
    assert!(broken, "a reader must see an error, not a short answer");
}

/// The pids that are there now and were not before.
fn born(before: &[i32], now: &[i32]) -> Vec<i32> {
    now.iter().filter(|pid| !before.contains(pid)).copied().collect()
}

#[tokio::test]
async fn an_engine_that_hangs_is_replaced_at_the_deadline() {
    let world = World::start(&[NO_SPARES]).await;
    let before = world.workers();
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    let engine = born(&before, &world.workers())[0];
    kill(engine, Signal::STOP);
    let began = Instant::now();
    let late = world.acme.problem(&json!({"sql": "SELECT 2", "timeout_ms": 500})).await;
    assert_eq!(late.code, Code::Timeout);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    until("the engine that hangs is gone", || !world.workers().contains(&engine)).await;
    assert_eq!(world.acme.rows("SELECT 3").await, json!([[3]]));
    world.is_at_rest().await;
}

#[tokio::test]
async fn an_idle_engine_that_dies_is_not_noticed_by_the_next_query() {
    let world = World::start(&[NO_SPARES]).await;
    let before = world.workers();
    for n in 0..3 {
        assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
        let engine = born(&before, &world.workers())[0];
        kill(engine, Signal::KILL);
        until("it is gone", || !world.workers().contains(&engine)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(world.acme.rows(&format!("SELECT {n}")).await, json!([[n]]));
    }
    world.is_at_rest().await;
}

#[tokio::test]
async fn the_template_dies_and_service_goes_on() {
    let world = World::start(&[MANY_ROWS]).await;
    let stream = world.acme.post(&json!({"sql": "FROM range(1000000000000)"})).await;
    let (globex, quiet) = (world.globex.clone(), json!({"sql": STOPPABLE, "allow_writes": true}));
    let quiet = tokio::spawn(async move { globex.post(&quiet).await });
    until("both run", || world.workers().len() >= 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;

    let zygote = children(world.pid)[0];
    let began = Instant::now();
    kill(zygote, Signal::KILL);
    breaks_off(stream).await;
    assert_eq!(problem(quiet.await.unwrap()).await.code, Code::EngineLost);
    let resumed = loop {
        let answer = world.acme.post(&json!({"sql": "SELECT 1", "format": "json"})).await;
        if answer.status().is_success() {
            break began.elapsed();
        }
        let refusal = problem(answer).await;
        assert!([Code::EngineLost, Code::EngineUnavailable].contains(&refusal.code), "{}", refusal.code);
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // Alone on the machine it is a fifth of this.
    assert!(resumed < Duration::from_secs(3), "{resumed:?}");
    assert_ne!(children(world.pid)[0], zygote);
    world.is_at_rest().await;
}

#[tokio::test]
async fn an_engine_that_keeps_much_after_its_work_is_replaced() {
    let world = World::start(&[NO_SPARES, ("pool", "idle_mb_max", "16")]).await;
    let before = world.workers();
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    let light = born(&before, &world.workers())[0];
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.workers().contains(&light), "little is kept, and that engine stays");
    // What is read from the store stays in DuckDB's cache of files.
    world.acme.write("CREATE TABLE datasets.large AS SELECT md5(i::VARCHAR) || md5(i::VARCHAR || 'x') AS x FROM range(500_000) t(i)").await;
    assert_eq!(
        world.acme.rows("SELECT count(*), max(length(x)) FROM datasets.large").await,
        json!([[500_000, 64]])
    );
    until("the engine that keeps much is gone", || !world.workers().contains(&light)).await;
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    world.is_at_rest().await;
}

#[tokio::test]
async fn out_of_memory_is_told_by_type_and_costs_one_engine() {
    let world =
        World::start(&[NO_SPARES, ("worker", "memory_mb", "128"), ("worker", "memory_mb_max", "512")]).await;
    let before = world.workers();
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    let engine = born(&before, &world.workers())[0];
    // Words in an error are only words.
    let said = world.acme.problem(&json!({"sql": "SELECT error('Out of Memory Error: INTERNAL')"})).await;
    assert_eq!(said.code, Code::SqlRuntime);
    assert!(world.workers().contains(&engine));
    for sql in ["SELECT list_sort(range(150000000))", "SELECT length(repeat('a', 2000000000))"] {
        let refused = world.acme.problem(&json!({"sql": sql, "timeout_ms": 20_000})).await;
        assert_eq!(refused.code, Code::OutOfMemory, "{sql}: {}", refused.detail);
        assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    }
    assert!(!world.workers().contains(&engine));
    world.is_at_rest().await;
}

#[tokio::test]
async fn classes_give_some_workspaces_other_limits() {
    let world = World::start(&[
        ("worker", "memory_mb_max", "512"),
        ("worker", "classes", "{ large = { workspaces = ['acme'], memory_mb_max = 1_024, threads = 1 } }"),
    ])
    .await;
    let sql = "SELECT current_setting('memory_limit')";
    assert_eq!(world.acme.rows(sql).await, json!([["512.0 MiB"]]));
    assert_eq!(world.globex.rows(sql).await, json!([["256.0 MiB"]]));
}

#[tokio::test]
async fn a_full_disk_is_told_and_forgotten() {
    let mounts = std::process::Command::new("unshare").args(["--mount", "true"]).status();
    if !rustix::process::geteuid().is_root() || !mounts.is_ok_and(|status| status.success()) {
        eprintln!(
            "a file system that can be filled has to be mounted, which is not for this user: not tried"
        );
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (spill, data) = (home.path().join("spill"), home.path().join("data"));
    std::fs::create_dir_all(&spill).unwrap();
    std::fs::create_dir_all(&data).unwrap();
    // Workers run as another user, and pass through all folders above theirs.
    for folder in [home.path(), &spill] {
        std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let first = Process::start(&dev(&data), &[], home.path().join("first.log"));
    drop(first);
    let file = data.join("duck-server.toml");
    let mut written = crate::world::read_toml(&file);
    crate::world::set(&mut written, "", "runtime_dir", &format!("'{}'", spill.display()));
    crate::world::set(&mut written, "worker", "memory_mb", "100");
    crate::world::set(&mut written, "worker", "spill_mb_max", "4096");
    std::fs::write(&file, written.to_string()).unwrap();

    // A file system of its own, seen by this server only, with room for little.
    let mount = format!("mount -t tmpfs -o size=24m,mode=755 none '{}' && exec \"$@\"", spill.display());
    let mut command = vec!["unshare", "--mount", "sh", "-c", &mount, "sh", env!("CARGO_BIN_EXE_duck-server")];
    command.extend(dev(&data));
    let server = Process::run(&command, &[], home.path().join("server.log"));
    let line: Value = serde_json::from_str(&server.line).unwrap();
    let acme = Organisation {
        url: line["url"].as_str().unwrap().to_owned(),
        token: line["tokens"]["acme"].as_str().unwrap().to_owned(),
        warehouse: String::new(),
        http: reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap(),
    };
    let sort = "SELECT max(x) FROM (SELECT md5(i::VARCHAR) x, row_number() OVER (ORDER BY md5(i::VARCHAR)) FROM range(4000000) t(i))";
    for _ in 0..2 {
        let full = acme.problem(&json!({"sql": sort})).await;
        assert!(
            [Code::SpillExhausted, Code::OutOfMemory].contains(&full.code),
            "{} {}",
            full.code,
            full.detail
        );
        assert_eq!(acme.rows("SELECT count(*) FROM datasets.ds_toydemo001").await, json!([[5_000]]));
    }
    let token = line["service_token"].as_str().unwrap();
    crate::world::status_at_rest(&acme.http, &acme.url, token).await.unwrap();
}

fn dev(dir: &Path) -> [&str; 6] {
    ["dev", "--json", "--port", "0", "--dir", dir.to_str().unwrap()]
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_cold_warehouses_at_once_all_answer() {
    let world = World::start(&[("pool", "workers_max", "12")]).await;
    let names: Vec<String> = (0..32).map(|n| format!("cold{n}")).collect();
    for name in &names {
        world.found(name).await;
    }
    let back_end = world.back_end();
    let answers = names.iter().map(|name| {
        back_end.json(json!({"sql": "SELECT current_database()", "workspace_id": name, "format": "json"}))
    });
    for answer in futures::future::join_all(answers).await {
        assert_eq!(answer["rows"], json!([["lake"]]));
    }
    world.is_at_rest().await;
    let gauges = world.status().await["pool"].clone();
    assert!(gauges["workers"].as_u64().unwrap() <= 12, "{gauges}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_nobody_came_for_makes_room_for_who_waits() {
    let world = World::start(&[NO_SPARES, ("pool", "workers_max", "1")]).await;
    for _ in 0..3 {
        // Its start goes on after it has given up.
        let gave_up = world.acme.problem(&json!({"sql": "SELECT 1", "timeout_ms": 1})).await;
        assert_eq!(gave_up.code, Code::Timeout);
        let began = Instant::now();
        let next = json!({"sql": "SELECT 2", "format": "json", "timeout_ms": 8_000});
        assert_eq!(world.globex.json(next).await["rows"], json!([[2]]));
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
    world.is_at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warehouse_made_ready_is_ready() {
    let world = World::start(&[]).await;
    let warm = |who: &Organisation, name: &str| {
        let ask = world.http.post(format!("{}/warehouses/{name}/warm", world.url)).bearer_auth(&who.token);
        async move { ask.send().await.unwrap() }
    };
    assert_eq!(warm(&world.acme, &world.acme.warehouse).await.status().as_u16(), 200);
    let starts = world.status().await["pool"]["starts"].clone();
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    assert_eq!(world.status().await["pool"]["starts"], starts, "the query found it");
    let foreign: Problem = problem(warm(&world.globex, &world.acme.warehouse).await).await;
    assert_eq!(foreign.code, Code::WarehouseMismatch);
    let back_end = world.back_end();
    assert_eq!(warm(&back_end, &world.globex.warehouse).await.status().as_u16(), 200);
    assert_eq!(problem(warm(&back_end, "duck-dev-w_nobody").await).await.code, Code::UnknownWarehouse);
    world.is_at_rest().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_with_twenty_statements_running_lets_them_end_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temporary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let settings = [MANY_ROWS, ("", "drain_grace_ms", "1_500"), ("", "drain_ms_max", "10_000")];
    let environment = [("TMPDIR", temporary.path().to_str().unwrap())];
    let world = World::open(dir.path(), &settings, &environment).await;
    // Short ones that end in time, and endless ones that meet the drain's deadline.
    let short = "SELECT count(*) FROM range(20000000) t(i) WHERE i % 7 = 1";
    let ask = |sql: &str| {
        let (who, body) = (world.acme.clone(), json!({"sql": sql, "format": "json"}));
        tokio::spawn(async move { who.post(&body).await })
    };
    let ending: Vec<_> = (0..10).map(|_| ask(short)).collect();
    let endless: Vec<_> = (0..6).map(|_| ask(STOPPABLE)).collect();
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(world.globex.post(&json!({"sql": "FROM range(1000000000000)"})).await);
    }
    until("twenty run", || workers_of(world.pid).len() >= 2).await;
    let processes = [workers_of(world.pid), children(world.pid), vec![world.pid]].concat();

    kill(world.pid, Signal::TERM);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ready = world.http.get(format!("{}/ready", world.url)).send().await.unwrap();
    assert_eq!(ready.status().as_u16(), 503, "the balancer is told while it can still ask");
    let refused = world.acme.problem(&json!({"sql": "SELECT 1"})).await;
    assert_eq!(refused.code, Code::Draining);
    for stream in streams {
        breaks_off(stream).await;
    }
    for statement in ending {
        let answer = statement.await.unwrap();
        assert!(answer.status().is_success(), "what could end did: {}", answer.text().await.unwrap());
    }
    for statement in endless {
        // Cut, or told: never an answer.
        if let Ok(answer) = statement.await {
            assert!(!answer.status().is_success());
        }
    }
    let gone = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
    until("all processes are gone", || processes.iter().all(gone)).await;
    let left: Vec<_> =
        std::fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
