//! `duck-server loadtest`: what it prints, and that it leaves nothing.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::{World, children, kill, until, workers_of};

/// Runs it with a temporary folder of its own until it ends: whether it succeeded, and what it printed. It must leave neither a
/// file there nor a process. Told to stop as soon as it has so many workers.
async fn loadtest(arguments: &[&str], stop_at: usize) -> (bool, Vec<Value>) {
    // Workers are another user and have to enter it.
    let home = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o711)).tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_duck-server"))
        .args(["loadtest", "--json"])
        .args(arguments)
        .env("TMPDIR", home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let mut family = BTreeSet::new();
    let mut ended = false;
    for _ in 0..3_000 {
        let workers = workers_of(pid);
        if workers.len() >= stop_at {
            kill(pid, Signal::INT);
        }
        family.extend(children(pid));
        family.extend(workers);
        ended = child.try_wait().unwrap().is_some();
        if ended {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if !ended {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(ended, "it goes on for a minute: {said}");
    assert!(family.len() > 3, "it had a template, spares and workers: {family:?} {said}");
    let gone = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
    until("every process has ended", || family.iter().all(gone)).await;
    let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.success(), text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn is_spread(spread: &Value, count_min: u64) {
    let number = |name: &str| spread[name].as_f64().unwrap();
    assert!(spread["count"].as_u64().unwrap() >= count_min, "{spread}");
    assert!(0.0 < number("p50") && number("p50") <= number("p99"), "{spread}");
    assert!(number("p99") <= number("max") && number("max") < 30_000.0, "{spread}");
}

#[tokio::test]
async fn loadtest_measures_recommends_and_leaves_nothing() {
    let arguments = ["--warehouses-max", "3", "--seconds-per-step", "1", "--first-p99-ms-max", "30000"];
    let (success, lines) = loadtest(&arguments, usize::MAX).await;
    assert!(success, "{lines:?}");
    let [step, end] = lines.try_into().unwrap();
    assert_eq!(
        (&step["kind"], &step["warehouses"], &step["workers"]),
        (&json!("step"), &json!(3), &json!(3))
    );
    assert_eq!((&step["errors"], &step["evictions"], &step["broken"]), (&json!({}), &json!(0), &Value::Null));
    assert_eq!((&step["workers_max"], &step["starts"]), (&json!(3), &json!(3)), "{step}");
    is_spread(&step["first_ms"], 3);
    is_spread(&step["warm_ms"], 1);
    let number = |value: &Value| value.as_f64().unwrap();
    let (mean, max) = (number(&step["worker_mb"]["mean"]), number(&step["worker_mb"]["max"]));
    assert!(0.5 < mean && mean <= max && max < 200.0, "{step}");
    assert!(number(&step["memory_mb"]) > number(&step["server_mb"]) + 2.0 * mean, "{step}");
    assert!(number(&step["server_mb"]) > 1.0 && number(&step["queries_per_second"]) > 0.5, "{step}");
    assert!((10..1_000).contains(&step["fds"].as_u64().unwrap()), "{step}");
    assert_eq!(
        (&end["kind"], &end["workers_max"], &end["held"]),
        (&json!("recommendation"), &json!(3), &json!(3))
    );
    assert_eq!(end["stopped"]["limit"], "warehouses_max");
    assert!(number(&end["memory_mb_left"]) > 0.0 && end["budget_places"].as_u64().unwrap() > 3, "{end}");
    assert!(end["derived_from"].as_str().unwrap().contains("3 workers held"), "{end}");
}

#[tokio::test]
async fn loadtest_says_which_limit_has_stopped_it() {
    let arguments = ["--warehouses-max", "2", "--seconds-per-step", "1", "--fds-max", "1"];
    let (success, lines) = loadtest(&arguments, usize::MAX).await;
    let [step, end] = lines.try_into().unwrap();
    assert_eq!((&step["broken"]["limit"], &end["stopped"]["limit"]), (&json!("fds_max"), &json!("fds_max")));
    assert!(end["workers_max"].is_null() && !success, "nothing held");
}

#[tokio::test]
async fn loadtest_ends_cleanly_when_told_to_stop() {
    // While warehouses are founded there are four workers and two spares; so it is in the middle of the mix.
    let (_, lines) = loadtest(&["--warehouses-max", "6", "--seconds-per-step", "60"], 8).await;
    let [end] = lines.try_into().unwrap();
    assert_eq!((&end["kind"], &end["stopped"]["limit"]), (&json!("recommendation"), &json!("interrupted")));
}

/// A catalog that it did not make, and a setting that a file has.
#[tokio::test]
async fn loadtest_asks_a_given_catalog_under_its_own_settings() {
    let world = World::start(&[("pool", "workers_max", "1")]).await;
    let file = world.dir.join("duck-server.toml");
    let given = ["--config", file.to_str().unwrap(), "--workspaces", "acme,globex"];
    let rest = ["--seconds-per-step", "1", "--mix", "table=1", "--first-p99-ms-max", "30000"];
    let (success, lines) = loadtest(&[&given[..], &rest[..]].concat(), usize::MAX).await;
    assert!(success, "{lines:?}");
    let [step, end] = lines.try_into().unwrap();
    assert_eq!(
        (&step["warehouses"], &step["workers_max"], &end["workers_max"]),
        (&json!(2), &json!(1), &json!(1))
    );
    assert!(step["evictions"].as_u64().unwrap() > 0 && step["workers"] == 1, "{step}");
    is_spread(&step["warm_ms_by_kind"]["table"], 1);
}
