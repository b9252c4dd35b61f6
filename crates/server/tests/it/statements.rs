//! Statements that outlive their request, and what is kept of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use duck_contract::Code;
use duck_contract::statements::{StatementAnswer, StatementState};
use http_body_util::{BodyExt, Full};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::cancellation::STOPPABLE;
use crate::world::{Organisation, World, kill, problem, shared, until};

/// An answer that is made slowly, a hundred bytes a row.
const SLOW_ROWS: &str = "SELECT i, repeat('x', 100), list_sum(range(i % 5000)) FROM range(1000000000) t(i)";
/// An answer of three and a half million bytes.
const LARGE: &str = "SELECT i, repeat('x', 40) FROM range(70000) t(i)";

async fn ask(who: &Organisation, method: Method, path: &str, body: Option<&Value>) -> Response {
    let mut ask = who.http.request(method, format!("{}{path}", who.url)).bearer_auth(&who.token);
    if let Some(body) = body {
        ask = ask.json(body);
    }
    ask.send().await.unwrap()
}

async fn get(who: &Organisation, path: &str) -> Response {
    ask(who, Method::GET, path, None).await
}

/// `POST /statements` that must be taken.
async fn submit(who: &Organisation, body: Value) -> StatementAnswer {
    let answer = ask(who, Method::POST, "/statements", Some(&body)).await;
    let (status, place) = (answer.status().as_u16(), answer.headers().get("location").cloned());
    let text = answer.text().await.unwrap();
    assert!(status < 300, "{body}: {status} {text}");
    let told: StatementAnswer = serde_json::from_str(&text).unwrap();
    assert_eq!(status == 200, told.state.is_final(), "{text}");
    assert_eq!(place.unwrap().to_str().unwrap(), format!("/statements/{}", told.statement_id));
    told
}

/// `POST /statements` that must be refused.
async fn refused(who: &Organisation, body: Value) -> Code {
    problem(ask(who, Method::POST, "/statements", Some(&body)).await).await.code
}

async fn told(who: &Organisation, id: &str, wait_ms: u64) -> StatementAnswer {
    get(who, &format!("/statements/{id}?wait_ms={wait_ms}")).await.json().await.unwrap()
}

async fn result(who: &Organisation, id: &str) -> Response {
    get(who, &format!("/statements/{id}/result")).await
}

async fn delete(who: &Organisation, id: &str) -> Response {
    ask(who, Method::DELETE, &format!("/statements/{id}"), None).await
}

/// Where a server keeps answers.
fn folder(world: &World) -> PathBuf {
    let name = format!("duck-server-{}-", world.pid);
    let all = std::fs::read_dir(std::env::temp_dir()).unwrap().map_while(Result::ok);
    let own = all.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(&name));
    own.unwrap().join("statements")
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// The bytes of a query's answer, and its counts from headers or trailers.
async fn queried(who: &Organisation, body: &Value) -> (bytes::Bytes, [String; 2]) {
    let request = hyper::Request::post(format!("{}/query", who.url))
        .header("authorization", format!("Bearer {}", who.token))
        .header("te", "trailers")
        .body(Full::new(bytes::Bytes::from(body.to_string())))
        .unwrap();
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new());
    let answer = client.build_http().request(request).await.unwrap();
    let headers = answer.headers().clone();
    let body = answer.into_body().collect().await.unwrap();
    let counts = body.trailers().cloned().unwrap_or(headers);
    let text = |name: &str| counts[name].to_str().unwrap().to_owned();
    (body.to_bytes(), [text("x-row-count"), text("x-truncated")])
}

#[tokio::test]
async fn a_kept_answer_is_what_the_query_answers() {
    let acme = &shared().await.acme;
    for (sql, format, max_rows) in [
        ("SELECT order_id, product FROM ds_toydemo001 ORDER BY 1", "json", 5_000),
        ("SELECT order_id, product FROM ds_toydemo001 ORDER BY 1", "arrow", 7),
        (LARGE, "arrow", 90_000),
        (LARGE, "json", 60_000),
    ] {
        let body = json!({"sql": sql, "format": format, "max_rows": max_rows});
        let done = submit(acme, body.clone()).await;
        let kept = result(acme, &done.statement_id).await;
        let media_type = kept.headers()["content-type"].to_str().unwrap().to_owned();
        assert!(media_type.ends_with(if format == "json" { "json" } else { "arrow.stream" }), "{media_type}");
        let counts = ["x-row-count", "x-truncated"].map(|n| kept.headers()[n].to_str().unwrap().to_owned());
        let length: u64 = kept.headers()["content-length"].to_str().unwrap().parse().unwrap();
        let bytes = kept.bytes().await.unwrap();
        let facts = done.result.unwrap();
        assert_eq!((facts.bytes, facts.bytes), (length, bytes.len() as u64));
        assert_eq!([facts.row_count.to_string(), facts.truncated.to_string()], counts);
        let (expected, expected_counts) = queried(acme, &body).await;
        assert_eq!(counts, expected_counts);
        assert!(
            bytes == expected,
            "{format} of {} bytes is not the {} of /query",
            bytes.len(),
            expected.len()
        );
        assert_eq!(bytes.len() > 1 << 20, sql == LARGE);
        delete(acme, &done.statement_id).await;
    }
}

#[tokio::test]
async fn a_statement_that_outlasts_the_wait_goes_on_or_ends_as_was_asked() {
    let one = ("limits", "tenant_running_max", "1");
    let world = World::start(&[one, ("limits", "wait_ms_max", "100"), ("pool", "spares", "0")]).await;
    let acme = &world.acme;
    let runs = submit(acme, json!({"sql": STOPPABLE, "wait_timeout_ms": 200})).await;
    assert_eq!((runs.state, runs.problem, runs.expires_in_ms), (StatementState::Running, None, None));
    let waits = submit(acme, json!({"sql": "SELECT 42", "format": "json", "wait_timeout_ms": 0})).await;
    assert_eq!(waits.state, StatementState::Waiting);
    let still = told(acme, &waits.statement_id, 400).await;
    assert_eq!(still.state, StatementState::Waiting, "nobody waits for it, so it can wait for its turn");
    assert_eq!(problem(result(acme, &waits.statement_id).await).await.code, Code::StatementRunning);
    assert_eq!(world.status().await["statements"]["running"], 2);

    let ended: StatementAnswer = delete(acme, &runs.statement_id).await.json().await.unwrap();
    assert_eq!(ended.state, StatementState::Cancelled);
    assert_eq!(problem(result(acme, &runs.statement_id).await).await.code, Code::Cancelled);
    let ended = told(acme, &waits.statement_id, 20_000).await;
    assert_eq!(ended.state, StatementState::Succeeded, "{ended:?}");
    let answer: Value = result(acme, &waits.statement_id).await.json().await.unwrap();
    assert_eq!(answer["rows"], json!([[42]]));

    let cancel = json!({"sql": STOPPABLE, "wait_timeout_ms": 300, "on_wait_timeout": "cancel"});
    assert_eq!(submit(acme, cancel.clone()).await.state, StatementState::Cancelled);
    world.is_at_rest().await;

    // The client has said what is to become of it, and then it is gone.
    let gone = ask(acme, Method::POST, "/statements", Some(&cancel));
    assert!(tokio::time::timeout(Duration::from_millis(100), gone).await.is_err());
    world.is_at_rest().await;
    let all: Value = get(acme, "/statements").await.json().await.unwrap();
    let states: Vec<&str> =
        all["statements"].as_array().unwrap().iter().map(|s| s["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["cancelled", "succeeded", "cancelled", "cancelled"]);
    assert_eq!(acme.rows("SELECT 1").await, json!([[1]]));
}

#[tokio::test]
async fn one_request_id_is_one_execution() {
    let world = shared().await;
    let acme = &world.acme;
    acme.write("CREATE TABLE kept_once(i INTEGER)").await;
    let body = json!({"sql": "INSERT INTO kept_once VALUES (1)", "allow_writes": true, "request_id": "once-1", "format": "json"});
    let at_once = futures::future::join_all((0..8).map(|_| submit(acme, body.clone()))).await;
    let mut again = body.clone();
    // How long to wait is the request's affair, and where the statement runs is known from the token.
    again["wait_timeout_ms"] = json!(0);
    again["warehouse"] = json!(acme.warehouse);
    let again = submit(acme, again).await;
    for other in at_once.iter().chain([&again]) {
        assert_eq!(other.statement_id, at_once[0].statement_id);
        assert_eq!((other.state, other.request_id.as_deref()), (StatementState::Succeeded, Some("once-1")));
        assert!(other.writes);
    }
    assert_eq!(acme.rows("SELECT count(*) FROM kept_once").await, json!([[1]]));
    for (name, value) in [("sql", json!("SELECT 1")), ("max_rows", json!(1)), ("params", json!([1]))] {
        let mut other = body.clone();
        other[name] = value;
        assert_eq!(refused(acme, other).await, Code::RequestIdReused, "{name}");
    }
    let theirs = submit(&world.globex, json!({"sql": "SELECT 1", "request_id": "once-1"})).await;
    assert_ne!(theirs.statement_id, again.statement_id);
    // What is forgotten is not remembered by its name either.
    assert_eq!(delete(acme, &again.statement_id).await.status(), 200);
    assert_ne!(submit(acme, body).await.statement_id, again.statement_id);
    assert_eq!(acme.rows("SELECT count(*) FROM kept_once").await, json!([[2]]));
    acme.write("DROP TABLE kept_once").await;
}

#[tokio::test]
async fn another_workspaces_statement_cannot_be_told_from_none() {
    let world = shared().await;
    let mine = submit(&world.acme, json!({"sql": "SELECT 1", "format": "json"})).await.statement_id;
    let none = "01a228a9-0aeb-732f-9ed1-23e9ae3c9ab6";
    let gone = submit(&world.acme, json!({"sql": "SELECT 1"})).await.statement_id;
    assert_eq!(delete(&world.acme, &gone).await.status(), 200);
    for (method, path) in [(Method::GET, ""), (Method::GET, "/result"), (Method::DELETE, "")] {
        let mut answers = Vec::new();
        for id in [mine.as_str(), none, &gone] {
            let path = format!("/statements/{id}{path}");
            let answer = problem(ask(&world.globex, method.clone(), &path, None).await).await;
            answers.push((answer.code, answer.detail));
        }
        assert_eq!(answers[0].0, Code::NotFound);
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    }
    let listed: Value = get(&world.globex, "/statements").await.json().await.unwrap();
    assert!(!listed.to_string().contains(&mine));
    let listed: Value = get(&world.acme, "/statements").await.json().await.unwrap();
    assert!(listed.to_string().contains(&mine) && !listed.to_string().contains(&gone));

    let service = world.back_end();
    let answer: Value = result(&service, &mine).await.json().await.unwrap();
    assert_eq!(answer["rows"], json!([[1]]));
    let theirs = submit(&service, json!({"sql": "SELECT 2", "workspace_id": "acme", "format": "json"})).await;
    assert_eq!(result(&world.acme, &theirs.statement_id).await.status(), 200);
    assert_eq!(refused(&service, json!({"sql": "SELECT 2"})).await, Code::InvalidRequest);
    let stranger = Organisation { token: "x".to_owned(), ..world.acme.clone() };
    assert_eq!(
        problem(get(&stranger, &format!("/statements/{mine}")).await).await.code,
        Code::Unauthenticated
    );
}

#[tokio::test]
async fn a_statement_that_failed_keeps_its_problem() {
    let acme = &shared().await.acme;
    let late = "SELECT i, repeat('x', 60), CASE WHEN i = 90000 THEN error('late trouble') END FROM range(100000) t(i)";
    for (body, code) in [
        (json!({"sql": "SELECT * FROM nope"}), Code::SqlBinding),
        (json!({"sql": "SELEC 1"}), Code::SqlSyntax),
        (json!({"sql": late}), Code::SqlRuntime),
        (json!({"sql": "CREATE TABLE never(i INTEGER)"}), Code::ReadOnly),
        (json!({"sql": STOPPABLE, "timeout_ms": 300}), Code::Timeout),
    ] {
        let failed = submit(acme, body.clone()).await;
        let kept = failed.problem.unwrap();
        assert_eq!((failed.state, kept.code), (StatementState::Failed, code), "{body}: {kept:?}");
        let again = problem(result(acme, &failed.statement_id).await).await;
        assert_eq!((&again.detail, again.position), (&kept.detail, kept.position));
        assert_eq!(kept.detail.contains("late trouble"), body["sql"] == late, "{kept:?}");
        assert!(failed.expires_in_ms.unwrap() > 3_000_000 && failed.result.is_none());
    }
    for body in [
        json!({"sql": "SELECT 1", "request_id": ""}),
        json!({"sql": "SELECT 1", "request_id": "a b"}),
        json!({"sql": "SELECT 1", "request_id": "x".repeat(65)}),
        json!({"sql": "SELECT 1", "timeout_ms": 0}),
        json!({"sql": "SELECT 1", "wait_timeout": 1}),
        json!({"sql": "SELECT 1", "on_wait_timeout": "hope"}),
    ] {
        assert_eq!(refused(acme, body.clone()).await, Code::InvalidRequest, "{body}");
    }
    assert_eq!(problem(get(acme, "/statements/x?wait_ms=soon").await).await.code, Code::InvalidRequest);
    assert_eq!(
        refused(acme, json!({"sql": "SELECT 1", "workspace_id": "globex"})).await,
        Code::WarehouseMismatch
    );
}

#[tokio::test]
async fn writing_needs_the_grant_before_anything_is_kept() {
    let world = shared().await;
    let minted = Command::new(env!("CARGO_BIN_EXE_duck-server"))
        .args(["token", "--workspace", "acme", "--config"])
        .arg(world.dir.join("duck-server.toml"))
        .output()
        .unwrap();
    let token = String::from_utf8(minted.stdout).unwrap().trim().to_owned();
    let reader = Organisation { token, ..world.acme.clone() };
    let body = json!({"sql": "CREATE TABLE never(i INTEGER)", "allow_writes": true});
    assert_eq!(refused(&reader, body).await, Code::WritesNotGranted);
}

#[tokio::test]
async fn a_running_statement_tells_how_far_it_is_and_leaves_nothing_when_it_is_ended() {
    let world = World::start(&[("query", "rows_max", "1000000000000")]).await;
    let (acme, folder) = (&world.acme, folder(&world));
    let id = submit(acme, json!({"sql": SLOW_ROWS, "wait_timeout_ms": 0})).await.statement_id;
    let mut last = (0, 0);
    for _ in 0..2 {
        let before = last;
        while last <= before || last.1 == 0 {
            let now = told(acme, &id, 20).await;
            assert_eq!(now.result, None, "{now:?}");
            last = now.progress.map_or((0, 0), |progress| (progress.rows, progress.bytes));
        }
    }
    assert_eq!(world.queries(acme).await[0]["request_id"], json!(id));
    assert_eq!(files(&folder), 1, "the answer goes to a file");

    let ended: StatementAnswer = delete(acme, &id).await.json().await.unwrap();
    assert_eq!(ended.state, StatementState::Cancelled, "{ended:?}");
    world.is_at_rest().await;
    assert_eq!(files(&folder), 0);
    assert_eq!(world.status().await["statements"], json!({"kept": 1, "running": 0, "bytes": 0}));

    // Ended, removed, and once more.
    let removed: StatementAnswer = delete(acme, &id).await.json().await.unwrap();
    assert_eq!(removed.state, StatementState::Cancelled);
    assert_eq!(delete(acme, &id).await.status(), 204);
    assert_eq!(problem(get(acme, &format!("/statements/{id}")).await).await.code, Code::StatementGone);
    assert_eq!(world.status().await["statements"]["kept"], 0);
}

#[tokio::test]
async fn what_is_over_its_time_is_gone_with_its_file() {
    let world = World::start(&[("statements", "keep_ms_max", "2000")]).await;
    let (acme, folder) = (&world.acme, folder(&world));
    let id = submit(acme, json!({"sql": LARGE})).await.statement_id;
    assert_eq!(files(&folder), 1);
    let gone = async |path: &str| loop {
        let answer = get(acme, path).await;
        if !answer.status().is_success() {
            break problem(answer).await.code;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(gone(&format!("/statements/{id}/result")).await, Code::StatementGone);
    assert_eq!(gone(&format!("/statements/{id}")).await, Code::StatementGone);
    assert_eq!(delete(acme, &id).await.status(), 204);
    until("its file is gone", || files(&folder) == 0).await;
    assert_eq!(world.status().await["statements"], json!({"kept": 0, "running": 0, "bytes": 0}));
}

#[tokio::test]
async fn answers_and_their_number_are_bounded_for_each_workspace() {
    let settings = [
        ("statements", "tenant_count_max", "3"),
        ("statements", "result_bytes_max", "5000000"),
        ("statements", "tenant_bytes_max", "6000000"),
        ("statements", "bytes_max", "20000000"),
    ];
    let world = World::start(&settings).await;
    let (acme, folder) = (&world.acme, folder(&world));
    let code = |told: &StatementAnswer| told.problem.as_ref().map(|problem| problem.code);

    let large = submit(acme, json!({"sql": LARGE.replace("40", "80")})).await;
    assert_eq!((large.state, code(&large)), (StatementState::Failed, Some(Code::ResultTooLarge)));
    assert_eq!(problem(result(acme, &large.statement_id).await).await.status, 422);
    assert_eq!(files(&folder), 0, "nothing is left of what was too large");
    world.is_at_rest().await;

    let first = submit(acme, json!({"sql": LARGE})).await;
    assert_eq!(first.state, StatementState::Succeeded);
    let second = submit(acme, json!({"sql": LARGE})).await;
    assert_eq!(code(&second), Some(Code::ResultNotKept), "together they are too much");
    assert_eq!(files(&folder), 1);

    assert_eq!(refused(acme, json!({"sql": "SELECT 1"})).await, Code::TenantBusy);
    assert_eq!(submit(&world.globex, json!({"sql": LARGE})).await.state, StatementState::Succeeded);
    for told in [&large, &second] {
        delete(acme, &told.statement_id).await;
    }
    // Room for a small answer was taken before, so that a change is not made in vain.
    let change = json!({"sql": "CREATE TABLE small_answer(i INTEGER)", "allow_writes": true});
    assert_eq!(submit(acme, change).await.state, StatementState::Succeeded);
    delete(acme, &first.statement_id).await;
    assert_eq!(submit(acme, json!({"sql": LARGE})).await.state, StatementState::Succeeded);

    // Where a file cannot be made, that is this statement's failure and nobody else's.
    std::fs::rename(&folder, folder.with_extension("away")).unwrap();
    let unwritten = submit(&world.globex, json!({"sql": LARGE})).await;
    assert_eq!(code(&unwritten), Some(Code::ResultNotKept));
    assert_eq!(submit(&world.globex, json!({"sql": "SELECT 1"})).await.state, StatementState::Succeeded);
    std::fs::rename(folder.with_extension("away"), &folder).unwrap();
    world.is_at_rest().await;
}

#[tokio::test]
async fn a_stop_takes_no_new_statement_ends_those_that_run_and_leaves_no_file() {
    let settings = [("", "drain_grace_ms", "1500"), ("", "drain_ms_max", "500"), ("pool", "spares", "0")];
    let mut world = World::start(&settings).await;
    let (acme, folder) = (world.acme.clone(), folder(&world));
    submit(&acme, json!({"sql": LARGE})).await;
    let runs = submit(&acme, json!({"sql": SLOW_ROWS, "wait_timeout_ms": 300})).await;
    assert_eq!(runs.state, StatementState::Running);
    until("an answer is in its file, and one on its way", || files(&folder) > 0).await;
    let all: Vec<i32> = world.workers().into_iter().chain([world.pid]).collect();

    kill(world.pid, rustix::process::Signal::TERM);
    let refused = async || ask(&acme, Method::POST, "/statements", Some(&json!({"sql": "SELECT 1"}))).await;
    let mut answer = refused().await;
    while answer.status().is_success() {
        answer = refused().await;
    }
    assert_eq!(problem(answer).await.code, Code::Draining);
    assert_eq!(told(&acme, &runs.statement_id, 0).await.state, StatementState::Running, "it may finish");
    world.process.stop();
    until("every process has ended", || all.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()))
        .await;
    assert!(!folder.parent().unwrap().exists(), "the runtime folder is left");
}
