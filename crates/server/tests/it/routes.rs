//! Every route, asked by everybody: without a token, with one that does not hold, with another workspace's, as a reader.

use std::collections::BTreeSet;
use std::path::Path;

use duck_contract::Code;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::cancellation::STOPPABLE;
use crate::issuers::{AUDIENCE, Believing, IN_FAR_FUTURE, SECRET, SHARING, believing};
use crate::world::problem;

/// What another workspace's token gets, and a reader's that asks to write.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// The route is for everybody, also without a token.
    Anybody,
    /// The request names a workspace, and the token has another.
    Named,
    /// The request names something by its id, which to others is not there.
    ById,
    /// For those who operate the server: to every workspace it is not there.
    Operator,
}

/// One route as somebody of acme asks it.
struct Row {
    route: (&'static str, &'static str),
    asked: Asked,
    /// Path and query; `{running}`, `{kept}` and `{warehouse}` are filled in.
    path: &'static str,
    body: Option<&'static str>,
    /// Writes where the body says so, which a reader may not.
    writes: bool,
    /// The status that acme's own writer gets, and the service token.
    own: u16,
    service: u16,
}

const WRITE: &str =
    r#"{"sql": "CREATE OR REPLACE TEMP TABLE t(i INTEGER)", "allow_writes": true, "workspace_id": "acme"}"#;

#[rustfmt::skip]
const ROWS: [Row; 16] = [
    Row { route: ("get", "/health"), asked: Asked::Anybody, path: "/health", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("get", "/ready"), asked: Asked::Anybody, path: "/ready", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("post", "/query"), asked: Asked::Named, path: "/query", body: Some(WRITE), writes: true, own: 200, service: 200 },
    Row { route: ("post", "/statements"), asked: Asked::Named, path: "/statements", body: Some(WRITE), writes: true, own: 200, service: 200 },
    Row { route: ("get", "/queries"), asked: Asked::Named, path: "/queries?workspace_id=acme", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("get", "/queries/history"), asked: Asked::Named, path: "/queries/history?workspace_id=acme", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("get", "/statements"), asked: Asked::Named, path: "/statements?workspace_id=acme", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("get", "/tables"), asked: Asked::Named, path: "/tables?workspace_id=acme", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("get", "/config"), asked: Asked::Named, path: "/config?workspace_id=acme", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("post", "/warehouses/{name}/warm"), asked: Asked::Named, path: "/warehouses/{warehouse}/warm", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("get", "/statements/{id}"), asked: Asked::ById, path: "/statements/{kept}", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("get", "/statements/{id}/result"), asked: Asked::ById, path: "/statements/{kept}/result", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("delete", "/statements/{id}"), asked: Asked::ById, path: "/statements/{kept}", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("delete", "/queries/{id}"), asked: Asked::ById, path: "/queries/{running}", body: None, writes: false, own: 200, service: 200 },
    Row { route: ("post", "/warehouses/{name}/reopen"), asked: Asked::Operator, path: "/warehouses/{warehouse}/reopen", body: None, writes: false, own: 404, service: 200 },
    Row { route: ("get", "/status"), asked: Asked::Operator, path: "/status", body: None, writes: false, own: 404, service: 200 },
];

/// Something of acme's that a request can name.
struct Things {
    running: String,
    kept: String,
}

fn claims(workspace: &str, write: bool) -> Value {
    json!({"iss": SHARING, "aud": AUDIENCE, "workspace_id": workspace, "write": write, "exp": IN_FAR_FUTURE})
}

fn signed(algorithm: Algorithm, secret: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
    jsonwebtoken::encode(&Header::new(algorithm), claims, &key).unwrap()
}

fn token(claims: &Value) -> String {
    signed(Algorithm::HS256, SECRET, claims)
}

/// Good but for one thing.
fn tokens_that_do_not_hold() -> Vec<(&'static str, Option<String>)> {
    let without = |name: &str| {
        let mut claims = claims("acme", true);
        claims.as_object_mut().unwrap().remove(name);
        token(&claims)
    };
    let with = |name: &str, value: Value| {
        let mut claims = claims("acme", true);
        claims[name] = value;
        token(&claims)
    };
    let good = token(&claims("acme", true));
    let (head, _) = good.rsplit_once('.').unwrap();
    vec![
        ("none", None),
        ("an empty one", Some(String::new())),
        ("garbage", Some("garbage".to_owned())),
        ("garbage of three parts", Some("a.b.c".to_owned())),
        ("no signature", Some(format!("{head}."))),
        ("another secret", Some(signed(Algorithm::HS256, &SECRET.replace('a', "b"), &claims("acme", true)))),
        ("another algorithm", Some(signed(Algorithm::HS512, SECRET, &claims("acme", true)))),
        ("expired", Some(with("exp", json!(1_000_000_000)))),
        ("not yet", Some(with("nbf", json!(IN_FAR_FUTURE)))),
        ("no end", Some(without("exp"))),
        ("another audience", Some(with("aud", json!("somebody else")))),
        ("no audience", Some(without("aud"))),
        ("another issuer", Some(with("iss", json!("https://nobody.example/")))),
        ("no issuer", Some(without("iss"))),
        ("no workspace", Some(without("workspace_id"))),
        ("a path as workspace", Some(with("workspace_id", json!("../acme")))),
    ]
}

async fn ask(server: &Believing, row: &Row, things: &Things, token: Option<&str>) -> Response {
    let path = row
        .path
        .replace("{running}", &things.running)
        .replace("{kept}", &things.kept)
        .replace("{warehouse}", &server.world.acme.warehouse);
    let method = Method::from_bytes(row.route.0.to_uppercase().as_bytes()).unwrap();
    let mut ask = server.world.http.request(method, format!("{}{path}", server.world.url));
    if let Some(token) = token {
        ask = ask.bearer_auth(token);
    }
    if let Some(body) = row.body {
        ask = ask.header("content-type", "application/json").body(body);
    }
    ask.send().await.unwrap()
}

async fn refused(server: &Believing, row: &Row, things: &Things, token: Option<&str>, code: Code, who: &str) {
    let answer = ask(server, row, things, token).await;
    let (status, challenge) = (answer.status().as_u16(), answer.headers().get("www-authenticate").cloned());
    assert_eq!(status, code.status(), "{:?} with {who}", row.route);
    assert_eq!(challenge.is_some(), code == Code::Unauthenticated, "{:?} with {who}", row.route);
    let problem = problem(answer).await;
    assert_eq!(problem.code, code, "{:?} with {who}: {}", row.route, problem.detail);
    assert!(!problem.detail.contains("acme"), "{}", problem.detail);
}

/// A statement that runs, and one that has ended and is kept.
async fn things(server: &Believing, name: &str) -> Things {
    let acme = server.with(&token(&claims("acme", true)));
    let running = format!("routes-{name}");
    let (runner, id) = (acme.clone(), running.clone());
    tokio::spawn(async move { runner.post_as(&id, &json!({"sql": STOPPABLE})).await });
    let url = format!("{}/statements", server.world.url);
    let body = json!({"sql": "SELECT 1", "wait_timeout_ms": 10_000});
    let sent = acme.http.post(url).bearer_auth(&acme.token).json(&body).send().await.unwrap();
    let kept: Value = sent.json().await.unwrap();
    assert_eq!(kept["state"], "succeeded");
    let mut seen = false;
    for _ in 0..500 {
        let queries = server.world.queries(&acme).await;
        seen = queries.as_array().unwrap().iter().any(|q| q["request_id"] == running.as_str());
        if seen {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(seen, "the statement runs");
    Things { running, kept: kept["statement_id"].as_str().unwrap().to_owned() }
}

#[test]
fn every_route_has_its_row() {
    let routes: BTreeSet<_> = duck_server::api::ROUTES.iter().copied().collect();
    let rows: BTreeSet<_> = ROWS.iter().map(|row| row.route).collect();
    assert_eq!(routes, rows, "a route without a row here is one that nobody has tried without a token");
    // And every route stands in that list.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
    let mut sources = String::new();
    for file in std::fs::read_dir(folder).unwrap() {
        sources += &std::fs::read_to_string(file.unwrap().path()).unwrap();
    }
    let added = [".route(", ".nest(", ".merge(", ".route_service(", ".nest_service("];
    let found: usize = added.iter().map(|word| sources.matches(word).count()).sum();
    assert_eq!(found, 1, "a route that is added beside the list");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_asks_for_a_token_that_holds() {
    let server = believing().await;
    let things = things(server, "held").await;
    for row in &ROWS {
        for (who, token) in tokens_that_do_not_hold() {
            if matches!(row.asked, Asked::Anybody) {
                assert_eq!(
                    ask(server, row, &things, token.as_deref()).await.status(),
                    row.own,
                    "{:?}",
                    row.route
                );
            } else {
                refused(server, row, &things, token.as_deref(), Code::Unauthenticated, who).await;
            }
        }
    }
    still_there(server, &things).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_does_anything_for_another_workspace_or_for_a_reader_that_writes() {
    let server = believing().await;
    let things = things(server, "others").await;
    let [globex, reader] = [claims("globex", true), claims("acme", false)].map(|claims| token(&claims));
    for row in &ROWS {
        let others = match row.asked {
            Asked::Anybody => None,
            Asked::Named => Some(Code::WarehouseMismatch),
            Asked::ById | Asked::Operator => Some(Code::NotFound),
        };
        match others {
            Some(code) => refused(server, row, &things, Some(&globex), code, "another workspace's").await,
            None => assert_eq!(ask(server, row, &things, Some(&globex)).await.status(), row.own),
        }
        if row.writes {
            refused(server, row, &things, Some(&reader), Code::WritesNotGranted, "a reader's").await;
        }
    }
    still_there(server, &things).await;
}

/// The refusals have not stopped or removed anything.
async fn still_there(server: &Believing, things: &Things) {
    let acme = server.with(&token(&claims("acme", true)));
    let get = async |path: String| acme.http.get(path).bearer_auth(&acme.token).send().await.unwrap();
    let kept = get(format!("{}/statements/{}/result", acme.url, things.kept)).await;
    assert_eq!(kept.status(), 200);
    let stopped = acme.cancel(&things.running).await;
    assert_eq!(stopped.status(), 200, "it still ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_serves_its_own_workspace_and_the_service_token() {
    let server = believing().await;
    let own = token(&claims("acme", true));
    for (who, token) in [("own", own.as_str()), ("service", &server.world.service_token)] {
        let things = things(server, who).await;
        for row in &ROWS {
            let answer = ask(server, row, &things, Some(token)).await;
            let expected = if who == "own" { row.own } else { row.service };
            let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
            assert_eq!(status, expected, "{:?} with {who}: {text}", row.route);
            assert!(!text.contains(SECRET) && !text.contains(&server.world.service_token));
        }
    }
}
