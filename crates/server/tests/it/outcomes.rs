//! Whatever happens in the middle of a change: what is answered is true, and the table is whole.

use std::time::Duration;

use duck_contract::query::WriteState;
use duck_contract::{Code, Problem};
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::commits::{Rig, writing};
use crate::world::{kill, problem, workers_of};

const INSERT: &str = "INSERT INTO datasets.t VALUES (3, 'row 3')";

/// Sends the INSERT to the second server.
fn sent(rig: &Rig, timeout_ms: u64) -> JoinHandle<reqwest::Response> {
    let (acme, mut body) = (rig.acme.clone(), writing(INSERT));
    body["timeout_ms"] = json!(timeout_ms);
    tokio::spawn(async move { acme.post(&body).await })
}

fn kill_workers(rig: &Rig) {
    let workers = workers_of(rig.pid());
    assert!(!workers.is_empty());
    for pid in workers {
        kill(pid, Signal::KILL);
    }
}

/// It was made, and only its answer was lost.
fn is_made(said: &Problem) {
    let write = said.write.as_ref().unwrap();
    assert_eq!((said.code, write.state), (Code::AnswerLost, WriteState::Made), "{}", said.detail);
    let snapshot = write.changes[0].snapshot_id.as_ref().unwrap();
    assert_eq!(
        (write.changes[0].schema.as_str(), write.changes[0].table.as_deref()),
        ("datasets", Some("t"))
    );
    assert!(said.detail.contains("datasets.t") && said.detail.contains(snapshot), "{}", said.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_killed_before_its_commit_has_changed_nothing() {
    let rig = Rig::start(30_000).await;
    rig.table("t").await;
    let acme = rig.acme.clone();
    let sql = "INSERT INTO datasets.t SELECT i::INTEGER, 'row ' || i FROM range(100000000) t(i)";
    let running = tokio::spawn(async move { acme.post(&writing(sql)).await });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    kill_workers(&rig);
    let said = problem(running.await.unwrap()).await;
    let state = said.write.unwrap().state;
    assert_eq!((said.code, state), (Code::EngineLost, WriteState::NotMade), "{}", said.detail);
    rig.holds("t", &["1 row 1", "2 row 2"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_engine_is_killed_while_it_waits_is_made_and_said_to_be() {
    let rig = Rig::start(30_000).await;
    rig.table("t").await;
    // First the commit has not reached the catalog, then it has and its answer is still to come.
    for (answers, expected) in [
        (false, ["1 row 1", "2 row 2", "3 row 3"].as_slice()),
        (true, &["1 row 1", "2 row 2", "3 row 3", "3 row 3"]),
    ] {
        if answers {
            rig.lossy.hold_answers();
        } else {
            rig.lossy.hold();
        }
        let running = sent(&rig, 30_000);
        rig.lossy.holding().await;
        kill_workers(&rig);
        tokio::time::sleep(Duration::from_millis(500)).await;
        rig.lossy.release();
        is_made(&problem(running.await.unwrap()).await);
        rig.holds("t", expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_outlives_its_deadline_is_told_as_it_turns_out() {
    let rig = Rig::start(30_000).await;
    rig.table("t").await;
    // It is settled a little after the deadline.
    rig.lossy.hold();
    let running = sent(&rig, 1_000);
    rig.lossy.holding().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    rig.lossy.release();
    is_made(&problem(running.await.unwrap()).await);
    rig.holds("t", &["1 row 1", "2 row 2", "3 row 3"]).await;
    // It takes much longer: nobody waits for ever, and what is said names the snapshot to look for.
    rig.lossy.hold();
    let said = problem(sent(&rig, 1_000).await.unwrap()).await;
    let write = said.write.unwrap();
    assert_eq!((said.code, write.state), (Code::CommitUnknown, WriteState::Unknown), "{}", said.detail);
    let snapshot = write.changes[0].snapshot_id.clone().unwrap();
    assert!(said.detail.contains(&snapshot), "{}", said.detail);
    rig.lossy.release();
    let four = serde_json::json!([[4]]);
    crate::world::until_async("the commit is settled", async || {
        rig.world.acme.rows("SELECT count(*) FROM datasets.t").await == four
    })
    .await;
    let read = rig.holds("t", &["1 row 1", "2 row 2", "3 row 3", "3 row 3"]).await;
    assert_eq!(read.snapshot_id.unwrap().to_string(), snapshot);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_is_cancelled_during_its_commit_is_told_what_became_of_it() {
    let rig = Rig::start(30_000).await;
    rig.table("t").await;
    rig.lossy.hold();
    let acme = rig.acme.clone();
    let running = tokio::spawn(async move { acme.post_as("mine", &writing(INSERT)).await });
    rig.lossy.holding().await;
    let cancel = rig.acme.cancel("mine").await;
    assert!(cancel.status().is_success());
    rig.lossy.release();
    is_made(&problem(running.await.unwrap()).await);
    rig.holds("t", &["1 row 1", "2 row 2", "3 row 3"]).await;
}
