//! Workers: shared, bounded, replaced when they die.

use std::time::Duration;

use duck_contract::Code;
use futures::StreamExt;
use serde_json::json;

use crate::world::{World, cpu_ticks, kill, stat_field, until, until_async};

/// Where processes are counted, those that wait for a warehouse would be in the way.
const NO_SPARES: (&str, &str, &str) = ("pool", "spares", "0");

#[tokio::test]
async fn with_a_ceiling_of_two_three_warehouses_in_turn_all_answer() {
    let world = World::start(&[("pool", "workers_max", "2"), NO_SPARES]).await;
    // Seeding used writers; these are readers and one writer, so three keys.
    assert_eq!(world.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5_000]]));
    assert_eq!(world.globex.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[8_000]]));
    for _ in 0..3 {
        let before = world.workers();
        assert_eq!(before.len(), 2, "{before:?}");
        assert_eq!(world.acme.write("SELECT 1").await, json!([[1]]));
        assert_eq!(world.acme.rows("SELECT 2").await, json!([[2]]));
        assert_eq!(world.globex.rows("SELECT 3").await, json!([[3]]));
        until("the least recently used worker's process is gone", || world.workers().len() == 2).await;
        let after = world.workers();
        assert!(before.iter().any(|pid| !after.contains(pid)), "somebody had to go: {before:?} {after:?}");
    }
}

#[tokio::test]
async fn concurrent_first_queries_start_one_worker() {
    let world = World::start(&[NO_SPARES]).await;
    let before = world.workers().len();
    let queries = (0..32).map(|_| world.acme.rows("SELECT 1"));
    for rows in futures::future::join_all(queries).await {
        assert_eq!(rows, json!([[1]]));
    }
    assert_eq!(world.workers().len(), before + 1);
}

#[tokio::test]
async fn an_idle_worker_is_ended() {
    let world = World::start(&[("pool", "idle_ms_max", "300"), NO_SPARES]).await;
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    until("no worker is left", || world.workers().is_empty()).await;
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
}

/// `/proc` counts the code that all workers share as each one's: more than an idle one may keep here.
#[tokio::test]
async fn the_code_that_all_workers_share_is_not_counted_as_each_one_s() {
    let world = World::start(&[("pool", "idle_mb_max", "16"), NO_SPARES]).await;
    assert_eq!(world.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5000]]));
    let workers = world.workers();
    let shared = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    };
    assert!(!workers.is_empty() && workers.iter().all(|pid| shared(pid) > 16), "the code is in large pages");
    // Idle workers are looked at within a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(world.workers(), workers);
}

#[tokio::test]
async fn a_worker_killed_in_mid_stream_fails_its_own_request_loudly_and_no_other() {
    let world = World::start(&[("query", "rows_max", "100000000"), NO_SPARES]).await;
    let long = json!({"sql": "SELECT i, repeat('x', 60) FROM range(3000000) t(i)"});
    let seeders = world.workers();
    let hurt = world.acme.post(&long).await;
    let victim = world.workers().into_iter().find(|pid| !seeders.contains(pid)).unwrap();
    let well = world.globex.post(&long).await;
    let (mut hurt, mut well) = (hurt.bytes_stream(), well.bytes_stream());
    assert!(hurt.next().await.unwrap().is_ok() && well.next().await.unwrap().is_ok());

    rustix::process::kill_process(
        rustix::process::Pid::from_raw(victim).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();

    let mut broken = false;
    while let Some(piece) = hurt.next().await {
        broken |= piece.is_err();
    }
    assert!(broken, "a reader must see an error, not a short answer");
    let mut bytes = 0;
    while let Some(piece) = well.next().await {
        bytes += piece.expect("the other organisation's stream is untouched").len();
    }
    assert!(bytes > 3_000_000 * 68, "{bytes}");
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
}

#[tokio::test]
async fn a_client_that_goes_away_stops_its_statement() {
    let world = World::start(&[("query", "rows_max", "1000000000000"), NO_SPARES]).await;
    let seeders = world.workers();
    // One that waits for its first byte, and one in the middle of its answer.
    for sql in [
        "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b",
        "FROM range(1000000000000)",
    ] {
        let body = json!({"sql": sql});
        let gone = tokio::time::timeout(std::time::Duration::from_millis(500), async {
            let mut rows = world.acme.post(&body).await.bytes_stream();
            while let Some(Ok(_)) = rows.next().await {}
        });
        assert!(gone.await.is_err(), "the statement was to run on");
        let worker = world.workers().into_iter().find(|pid| !seeders.contains(pid));
        let mut last = u64::MAX;
        until("the worker rests", || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let now = worker.map_or(0, cpu_ticks);
            std::mem::replace(&mut last, now) == now
        })
        .await;
        assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    }
}

#[tokio::test]
async fn a_spare_that_dies_as_it_is_taken_costs_nobody_an_answer() {
    let world = World::start(&[("pool", "spares", "3")]).await;
    let mut answered = 0;
    for _ in 0..5 {
        until("there are spares", || world.workers().len() > 2).await;
        world.workers().into_iter().for_each(|pid| kill(pid, rustix::process::Signal::KILL));
        let answer = world.acme.post(&json!({"sql": "SELECT 1"})).await;
        if answer.status().is_success() {
            answered += 1;
        } else {
            // Its own engine was among them, and the server has not noticed yet.
            assert_eq!(crate::world::problem(answer).await.code, Code::EngineLost);
        }
    }
    assert!(answered > 0);
}

#[tokio::test]
async fn a_tenant_at_its_cap_is_told_to_wait() {
    let world =
        World::start(&[("limits", "tenant_running_max", "1"), ("limits", "wait_ms_max", "200")]).await;
    let slow = json!({"sql": "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b", "timeout_ms": 3000});
    let busy = tokio::spawn({
        let (acme, slow) = (world.acme.clone(), slow.clone());
        async move { acme.problem(&slow).await.code }
    });
    until("it runs", || world.workers().iter().any(|pid| cpu_ticks(*pid) > 20)).await;
    let answer = world.acme.post(&json!({"sql": "SELECT 1"})).await;
    assert_eq!(answer.headers()["retry-after"], "1");
    assert_eq!(crate::world::problem(answer).await.code, Code::TenantBusy);
    assert_eq!(world.globex.rows("SELECT 1").await, json!([[1]]), "the other tenant is served");
    assert_eq!(busy.await.unwrap(), Code::Timeout);
}

/// How often each of the front's threads that beat has slept.
fn beats_of(server: i32) -> Vec<u64> {
    let threads = std::fs::read_dir(format!("/proc/{server}/task")).unwrap().map_while(Result::ok);
    let statuses = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    let beating = statuses.filter(|status| status.starts_with("Name:\tbeat\n"));
    let slept = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    };
    beating.map(slept).collect()
}

/// How many threads of workers want to run (field 3), and do so when nobody else wants to (field 41, `SCHED_IDLE`).
fn behind_all_others(world: &World) -> usize {
    let threads = world.workers().into_iter().flat_map(|pid| {
        std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().map_while(Result::ok)
    });
    let is = |thread: &std::fs::DirEntry| {
        let field = |number| stat_field(&thread.path(), number);
        field(3).as_deref() == Some("R") && field(41).as_deref() == Some("5")
    };
    threads.filter(is).count()
}

#[tokio::test]
async fn what_goes_on_is_behind_all_others_and_the_front_beats_meanwhile() {
    let cores = std::thread::available_parallelism().unwrap().get();
    // One thread for a statement, so that none is lent to it.
    let world = World::start(&[("worker", "threads", "1"), ("limits", "tenant_running_max", "1024")]).await;
    let beats = || beats_of(world.pid).into_iter().sum::<u64>();
    let drummers = beats_of(world.pid).len();
    // Without a quota there is one on each core.
    let allowed = rustix::thread::sched_getaffinity(None).unwrap().count() as usize;
    assert_eq!(drummers, if cores < allowed { 0 } else { cores });
    let rests = async || {
        world.is_at_rest().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = beats();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!((beats(), behind_all_others(&world)), (before, 0), "nothing goes on");
        before
    };
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    let before = rests().await;
    let sql = "SELECT sum(a.range * b.range) FROM range(1000000000) a, range(1000000) b";
    let long: Vec<_> = (0..cores)
        .map(|_| {
            let acme = world.acme.clone();
            tokio::spawn(async move { acme.post(&json!({"sql": sql})).await })
        })
        .collect();
    until("all are behind all others", || behind_all_others(&world) == cores).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let quiet = beats();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(beats(), quiet, "nothing short is there");
    until_async("it beats while short ones are", async || {
        assert_eq!(world.globex.rows("SELECT 2").await, json!([[2]]));
        drummers == 0 || beats() > before + 500
    })
    .await;
    long.iter().for_each(tokio::task::JoinHandle::abort);
    rests().await;
}
