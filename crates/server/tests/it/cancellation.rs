//! A statement that nobody waits for stops, whatever it is doing; and whoever shared its engine is not the worse for it.

use std::time::Duration;

use duck_contract::Code;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::world::{Organisation, World, cpu_ticks, problem, until};

/// Runs for hours, and stops when it is told to.
pub const STOPPABLE: &str = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b";
/// Runs for years, and does not listen.
pub const STUBBORN: &str = "SELECT repeat('a', 3000) GLOB repeat('*a', 30) || 'b'";

/// From the end of all interest in a statement to rest.
const STOP_MAX: Duration = Duration::from_millis(1_500);

/// Sends a statement under an id and gives up on it as soon as it runs.
async fn runs(
    world: &World,
    who: &Organisation,
    id: &str,
    body: Value,
) -> tokio::task::JoinHandle<reqwest::Response> {
    let (who, id, before) = (who.clone(), id.to_owned(), ticks(world));
    let sent = tokio::spawn(async move { who.post_as(&id, &body).await });
    until("it runs", || ticks(world) > before + 20).await;
    sent
}

fn ticks(world: &World) -> u64 {
    world.workers().into_iter().map(cpu_ticks).sum()
}

/// The workers' CPU is under 5 % of one core, that long after `since`.
async fn rests(world: &World, since: Instant, what: &str) {
    tokio::time::sleep_until(since + STOP_MAX).await;
    let (before, began) = (ticks(world), Instant::now());
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A worker that has ended takes its ticks with it.
    let used = ticks(world).saturating_sub(before);
    // A tick is a hundredth of a second.
    let ticks_max = began.elapsed().as_millis() * 5 / 1_000;
    assert!(u128::from(used) <= ticks_max, "{what}: {used} ticks in a second, {STOP_MAX:?} after");
}

#[tokio::test]
async fn a_statement_stops_when_its_client_goes_its_deadline_passes_or_it_is_cancelled() {
    let world = World::start(&[("pool", "spares", "0")]).await;
    let acme = &world.acme;
    for sql in [STOPPABLE, STUBBORN] {
        let gone = runs(&world, acme, "gone", json!({"sql": sql})).await;
        gone.abort();
        rests(&world, Instant::now(), &format!("client gone: {sql}")).await;

        let began = Instant::now();
        let late = acme.post(&json!({"sql": sql, "timeout_ms": 1_000})).await;
        assert_eq!(problem(late).await.code, Code::Timeout);
        assert!(began.elapsed() < Duration::from_secs(2), "{sql}: {:?}", began.elapsed());
        rests(&world, began + Duration::from_secs(1), &format!("deadline: {sql}")).await;

        let running = runs(&world, acme, "cancel-me", json!({"sql": sql})).await;
        let began = Instant::now();
        let said = acme.cancel("cancel-me").await;
        assert_eq!(
            said.json::<Value>().await.unwrap(),
            json!({"request_id": "cancel-me", "state": "cancelled"})
        );
        assert_eq!(problem(running.await.unwrap()).await.code, Code::Cancelled);
        rests(&world, began, &format!("cancelled: {sql}")).await;

        assert_eq!(acme.rows("SELECT 1").await, json!([[1]]));
    }
    world.is_at_rest().await;
}

#[tokio::test]
async fn a_stream_that_is_cancelled_breaks_off_even_if_nobody_reads_it() {
    let world = World::start(&[("query", "rows_max", "1000000000000")]).await;
    let body = json!({"sql": "FROM range(1000000000000)"});
    let answer = world.acme.post_as("unread", &body).await;
    assert!(answer.status().is_success());
    // The sockets fill up, and then nobody asks the server for more.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let told = world.queries(&world.acme).await;
    assert_eq!(
        (told[0]["request_id"].as_str(), told[0]["state"].as_str()),
        (Some("unread"), Some("sending"))
    );
    assert!(told[0]["bytes"].as_u64().unwrap() > 1 << 20, "{told}");

    let said = world.acme.cancel("unread").await;
    assert_eq!(said.json::<Value>().await.unwrap()["state"], "cancelled");
    world.is_at_rest().await;
    let mut rows = answer.bytes_stream();
    let mut broken = false;
    while let Some(piece) = rows.next().await {
        broken |= piece.is_err();
    }
    assert!(broken, "a reader must see an error, not a short answer");
}

#[tokio::test]
async fn the_deadline_and_a_client_that_does_not_read_give_the_engine_back() {
    let world = World::start(&[("query", "rows_max", "1000000000000"), ("", "stall_ms_max", "700")]).await;
    let began = Instant::now();
    let late = world.acme.post(&json!({"sql": "FROM range(1000000000000)", "timeout_ms": 500})).await;
    world.is_at_rest().await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    drop(late);

    let began = Instant::now();
    let stalled = world.acme.post(&json!({"sql": "FROM range(1000000000000)"})).await;
    world.is_at_rest().await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drop(stalled);
}

#[tokio::test]
async fn who_shared_an_engine_that_had_to_be_ended_runs_once_more_or_is_told() {
    let world = World::start(&[("query", "rows_max", "1000000000000")]).await;
    let acme = &world.acme;
    for writes in [false, true] {
        let stubborn = runs(&world, acme, "stubborn", json!({"sql": STUBBORN, "allow_writes": writes})).await;
        // One that has sent nothing, and one that has.
        let quiet = json!({"sql": "SELECT sum(a.range % 7) FROM range(100000) a, range(2000) b", "format": "json", "allow_writes": writes});
        let (who, body) = (acme.clone(), quiet.clone());
        let quiet = tokio::spawn(async move { who.post_as("quiet", &body).await });
        let mut loud = acme
            .post(&json!({"sql": "FROM range(1000000000000)", "allow_writes": writes}))
            .await
            .bytes_stream();
        assert!(loud.next().await.unwrap().is_ok());
        assert_eq!(world.queries(acme).await.as_array().unwrap().len(), 3);

        acme.cancel("stubborn").await;
        assert_eq!(problem(stubborn.await.unwrap()).await.code, Code::Cancelled);
        let answer: Value = quiet.await.unwrap().json().await.unwrap();
        assert_eq!(answer["rows"], json!([[599_990_000]]), "{answer}");
        if writes {
            // A writer shares its engine with nobody.
            assert!(loud.next().await.unwrap().is_ok());
            continue;
        }
        let mut broken = false;
        while let Some(piece) = loud.next().await {
            broken |= piece.is_err();
        }
        assert!(broken, "what was begun cannot be begun again");
    }
    world.is_at_rest().await;
}

#[tokio::test]
async fn a_workspace_sees_and_stops_its_own_statements_and_no_others() {
    let world = World::start(&[]).await;
    let running = runs(&world, &world.acme, "mine", json!({"sql": STOPPABLE})).await;
    let told = world.queries(&world.acme).await;
    assert_eq!(told.as_array().unwrap().len(), 1, "{told}");
    let mine = &told[0];
    assert_eq!((mine["request_id"].as_str(), mine["state"].as_str()), (Some("mine"), Some("running")));
    assert!(mine["age_ms"].as_u64().unwrap() > 0 && mine["memory_bytes"].as_u64().unwrap() > 0, "{mine}");
    assert_eq!(mine["writes"], false);
    // DuckDB knows how far this one is; it moves slowly.
    assert!(mine["percent"].as_f64().is_some_and(|percent| percent < 50.0), "{mine}");

    assert_eq!(world.queries(&world.globex).await, json!([]));
    assert_eq!(problem(world.globex.cancel("mine").await).await.code, Code::NotFound);
    let taken = world.acme.post_as("mine", &json!({"sql": "SELECT 1"})).await;
    assert_eq!(problem(taken).await.code, Code::RequestIdTaken);
    // The same id means another statement there.
    assert!(world.globex.post_as("mine", &json!({"sql": "SELECT 1"})).await.status().is_success());
    assert!(!running.is_finished());

    assert_eq!(world.back_end().cancel("mine").await.status().as_u16(), 200);
    assert_eq!(problem(running.await.unwrap()).await.code, Code::Cancelled);
    assert_eq!(problem(world.acme.cancel("mine").await).await.code, Code::NotFound);
}
