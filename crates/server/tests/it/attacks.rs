//! The statements of `../shared/cases/attacks.json` that burn, bloat, hang and crash an engine, sent by one organisation while another
//! one works.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use duck_contract::Code;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::world::{Organisation, World, children, workers_of};

const CLASSES: [&str; 4] = ["resource", "planner-bomb", "native-crash", "parser-crash"];
const DEADLINE_MS: u64 = 5_000;
const TYPED_MAX: Duration = Duration::from_secs(7);
/// Statements of the attacker's at once.
const AT_ONCE: usize = 8;
const BUDGET_MB: u64 = 6_144;
/// What a small query may take beside attacks and beside other tests, where alone it takes a few milliseconds.
const BESIDE_MS_MAX: f64 = 2_000.0;

#[derive(Deserialize)]
struct Attack {
    id: String,
    class: String,
    must: String,
    sql: Option<String>,
    sql_runs: Option<Vec<(String, usize)>>,
    sql_series: Option<Series>,
}

#[derive(Deserialize)]
struct Series {
    prefix: String,
    item: String,
    separator: String,
    count: usize,
    suffix: String,
}

impl Attack {
    fn sql(&self) -> String {
        if let Some(sql) = &self.sql {
            return sql.clone();
        }
        if let Some(runs) = &self.sql_runs {
            return runs.iter().map(|(piece, times)| piece.repeat(*times)).collect();
        }
        let series = self.sql_series.as_ref().unwrap();
        let items: Vec<_> = (0..series.count).map(|i| series.item.replace("{i}", &i.to_string())).collect();
        format!("{}{}{}", series.prefix, items.join(&series.separator), series.suffix)
    }
}

/// None where this checkout has no cases beside it.
fn attacks() -> Option<Vec<Attack>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/cases");
    if !folder.exists() {
        return None;
    }
    let text = std::fs::read_to_string(folder.join("attacks.json")).unwrap();
    let all: Vec<Attack> = serde_json::from_str(&text).unwrap();
    Some(all.into_iter().filter(|attack| CLASSES.contains(&attack.class.as_str())).collect())
}

/// How long each of a row of small queries took.
async fn small_queries(who: Organisation, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let began = Instant::now();
        let rows = who.rows("SELECT count(*), sum(reading_id) > 0 FROM datasets.ds_toydemo001").await;
        assert_eq!(rows, json!([[8_000, true]]));
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    times.sort();
    times
}

/// What front and workers use alone, bytes.
fn memory(server: i32) -> u64 {
    let mut pids = workers_of(server);
    pids.extend(children(server));
    pids.push(server);
    let of = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kb = text
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse().ok());
        kb.unwrap_or(0_u64) << 10
    };
    pids.into_iter().map(of).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_one_organisation_sends_the_other_goes_on() {
    let Some(attacks) = attacks() else {
        eprintln!("no ../shared/cases beside this checkout: nothing was tried");
        return;
    };
    assert!(attacks.len() > 80);
    let budget = BUDGET_MB.to_string();
    let world = World::start(&[
        ("pool", "memory_mb", budget.as_str()),
        ("pool", "workers_max", "8"),
        ("query", "rows_max", "1000000000000"),
    ])
    .await;
    // A stream that goes on all the time, and must come to its end.
    let over = Arc::new(AtomicBool::new(false));
    let (globex, stopped) = (world.globex.clone(), over.clone());
    let streams = tokio::spawn(async move {
        let mut whole = 0;
        while !stopped.load(Ordering::Acquire) {
            let batches = globex.arrow("SELECT i, repeat('x', 60) FROM range(500000) t(i)").await;
            assert_eq!(batches.iter().map(arrow::array::RecordBatch::num_rows).sum::<usize>(), 500_000);
            whole += 1;
        }
        whole
    });
    let quiet = Arc::new(AtomicBool::new(false));
    let alone = tokio::spawn(small_queries(world.globex.clone(), quiet.clone()));
    tokio::time::sleep(Duration::from_secs(4)).await;
    quiet.store(true, Ordering::Release);
    let alone = alone.await.unwrap();

    let beside = tokio::spawn(small_queries(world.globex.clone(), over.clone()));
    let (pid, watched, peak) = (world.pid, over.clone(), Arc::new(AtomicU64::new(0)));
    let highest = peak.clone();
    let watch = std::thread::spawn(move || {
        while !watched.load(Ordering::Acquire) {
            highest.fetch_max(memory(pid), Ordering::AcqRel);
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let codes = futures::stream::iter(&attacks)
        .map(|attack| attacked(&world.acme, attack))
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    over.store(true, Ordering::Release);
    let (beside, whole) = (beside.await.unwrap(), streams.await.unwrap());
    watch.join().unwrap();
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    world.is_at_rest().await;

    let mut told: HashMap<String, usize> = HashMap::new();
    for code in codes {
        *told.entry(code).or_default() += 1;
    }
    let p99 = |times: &[Duration]| times[times.len() * 99 / 100].as_secs_f64() * 1e3;
    let (alone, beside, peak) = (p99(&alone), p99(&beside), peak.load(Ordering::Acquire) >> 20);
    eprintln!("attacks: {told:?}");
    eprintln!(
        "p99 of a small query: {alone:.0} ms alone, {beside:.0} ms beside; {whole} whole streams; peak {peak} MiB"
    );
    assert!(whole > 3);
    assert!(peak < BUDGET_MB * 11 / 10, "{peak} MiB of {BUDGET_MB}");
    // Other tests run beside this one; docs/performance.md has the figure of a quiet machine.
    assert!(beside < (alone * 3.0).max(BESIDE_MS_MAX), "{beside:.0} ms beside {alone:.0} ms");
}

/// What became of it: `ok` or a code. Typed and in time, and the attacker itself is served afterwards.
async fn attacked(who: &Organisation, attack: &Attack) -> String {
    let began = Instant::now();
    let answer = who.post(&json!({"sql": attack.sql(), "format": "json", "timeout_ms": DEADLINE_MS})).await;
    let outcome = if answer.status().is_success() {
        // It may be cut by the deadline in the middle.
        let whole = answer.bytes().await.is_ok();
        if whole { "ok".to_owned() } else { "broken off".to_owned() }
    } else {
        crate::world::problem(answer).await.code.to_string()
    };
    assert!(began.elapsed() < TYPED_MAX, "{}: {:?}, {outcome}", attack.id, began.elapsed());
    assert!(attack.must != "ok" || outcome != "internal", "{}: {outcome}", attack.id);
    let began = Instant::now();
    // Its other attacks may end the engine below it more often than a read is run again.
    loop {
        let answer = who.post(&json!({"sql": "SELECT 1", "format": "json"})).await;
        if answer.status().is_success() {
            assert_eq!(answer.json::<Value>().await.unwrap()["rows"], json!([[1]]), "after {}", attack.id);
            break;
        }
        let problem = crate::world::problem(answer).await;
        assert_eq!(problem.code, Code::EngineLost, "after {}: {}", attack.id, problem.detail);
        assert!(began.elapsed() < Duration::from_secs(4), "after {}: {}", attack.id, problem.detail);
    }
    assert!(began.elapsed() < Duration::from_secs(4), "after {}: {:?}", attack.id, began.elapsed());
    outcome
}
