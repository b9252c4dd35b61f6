//! Who may reach what.

use super::fake::say;
use super::*;

#[tokio::test]
async fn a_reader_cannot_change_anything() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    for (method, path) in [
        (Method::POST, COMMIT),
        (Method::POST, TABLE),
        (Method::POST, "/v1/lake/namespaces"),
        (Method::POST, "/v1/lake/tables/rename"),
        (Method::DELETE, TABLE),
    ] {
        let (status, body) = told(world.ask(&world.reader, method.clone(), path).body("{}")).await;
        assert_eq!((status, body.contains("reading only")), (403, true), "{method} {path}");
    }
    assert!(world.fake.seen("POST", "").is_empty() && world.fake.seen("DELETE", TABLE).is_empty());
}

#[tokio::test]
async fn a_worker_reaches_only_its_own_warehouse() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    // Not by the catalog's name for its own either: there is one name, and it is everybody's.
    for path in [
        "/v1/p-b/namespaces",
        "/v1/p-b/namespaces/n/tables/t",
        "/v1/p-a/namespaces",
        "/v1/w_a/namespaces",
        "/v1/Lake/namespaces",
        "/v1/namespaces/n",
    ] {
        assert_eq!(world.get(&world.writer, path).await.0, 403, "{path}");
    }
    assert_eq!(world.post(&world.writer, "/v1/p-b/transactions/commit", commit()).await.0, 403);
    for path in
        ["/v1/config?warehouse=w_a", "/v1/config?warehouse=w_b", "/v1/config", "/v1/config?warehouse="]
    {
        let (status, body) = world.get(&world.reader, path).await;
        assert_eq!((status, body.contains("p-")), (404, false), "{path}");
    }
    assert!(world.fake.seen("GET", "/namespaces").is_empty());
}

#[tokio::test]
async fn a_worker_without_a_warehouse_learns_the_prefix_and_nothing_else() {
    let mut world = World::plain(|_, _| say(200, "{}")).await;
    let spare = world.passes.issue();
    let ask = |method, path: &str| world.ask_as(&spare.keys.bearer, method, path);
    let configuration = (200, r#"{"defaults":{},"overrides":{"prefix":"lake"}}"#.to_owned());
    assert_eq!(told(ask(Method::GET, "/v1/config?warehouse=lake")).await, configuration);
    for (method, path) in [
        (Method::GET, "/v1/config?warehouse=w_a"),
        (Method::GET, TABLE),
        (Method::GET, "/v1/lake/namespaces"),
        (Method::GET, "/v1/p-a/namespaces"),
        (Method::POST, COMMIT),
    ] {
        let (status, body) = told(ask(method.clone(), path).body("{}")).await;
        assert!(matches!(status, 401 | 404), "{method} {path}: {status} {body}");
    }
    assert!(world.fake.seen("GET", "").is_empty() && world.fake.seen("POST", "").is_empty());
    // The same bearer, once it is known for whom it is.
    let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
    world.reader = spare.bind(Visitor::new("w_a", place, Role::Reader));
    assert_eq!(world.get(&world.reader, "/v1/config?warehouse=lake").await, configuration);
    assert_eq!(world.get(&world.reader, "/v1/lake/namespaces/n").await.0, 200);
    assert_eq!(world.fake.seen("GET", "/v1/lake/namespaces/n").len(), 1);
}

#[tokio::test]
async fn nobody_enters_without_a_pass() {
    let mut world = World::plain(|_, _| say(200, "{}")).await;
    let old = world.reader.keys().bearer.clone();
    // The reader's pass is dropped: its bearer must be worth nothing. One that others have issued is not worth more.
    let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
    world.reader = Passes::default().issue().bind(Visitor::new("w_a", place, Role::Reader));
    for bearer in [&world.reader.keys().bearer, &old] {
        // Where nothing is there is nothing to be seen either.
        for path in [TABLE, "/v1/lake/namespaces", "/v1/oauth/tokens", "/nowhere"] {
            assert_eq!(told(world.ask_as(bearer, Method::GET, path)).await.0, 401, "{path}");
        }
    }
}

#[tokio::test]
async fn routes_that_reach_further_are_not_served() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    for path in [
        "/v1/oauth/tokens",
        "/v1/lake/namespaces/n/register",
        "/v1/lake/namespaces/n/views",
        "/v1/lake/namespaces/n/tables/t/plan",
        "/v1/lake/namespaces/n/tables/t/metrics",
        "/management/v1/warehouse",
    ] {
        let (status, body) = world.post(&world.writer, path, "{}").await;
        assert_eq!(status, 403, "{path}");
        assert!(body.contains("ForbiddenException"), "{body}");
    }
    assert!(world.fake.seen("POST", "").is_empty());
}

/// Every method, on what lies beside our routes: views, credentials, scans, other projects, and spellings of our own.
#[tokio::test]
async fn nothing_beside_the_routes_is_reached_by_any_method() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    for path in [
        "/v1/lake/namespaces/n/views",
        "/v1/lake/namespaces/n/views/v",
        "/v1/lake/views/rename",
        "/v1/lake/namespaces/n/register",
        "/v1/lake/namespaces/n/register-view",
        "/v1/lake/namespaces/n/tables/t/credentials",
        "/v1/lake/namespaces/n/tables/t/plan",
        "/v1/lake/namespaces/n/tables/t/plan/1",
        "/v1/lake/namespaces/n/tables/t/tasks",
        "/v1/lake/namespaces/n/tables/t/metrics",
        "/v1/lake/namespaces/n/functions",
        "/v1/lake/s3/sign",
        "/v1/lake/aws/s3/sign",
        "/v1/lake",
        "/v1/lake/",
        "/v1",
        "/",
        "/v1/oauth/tokens",
        "/v2/lake/namespaces",
        "/V1/lake/namespaces",
        "/catalog/v1/lake/namespaces",
        "/v1//lake/namespaces",
        "/v1/lake/../p-b/namespaces",
        "/v1/lake/%2e%2e/p-b/namespaces",
        "/v1/lake%2F..%2Fp-b/namespaces",
        "/v1/l%61ke/namespaces",
        "/v1/lake;x=p-b/namespaces",
        "/v1/p-b/namespaces/n/tables/t",
        "/v1/lake/namespaces?warehouse=w_b",
        "/v1/lake/namespaces?project-id=0",
        "/v1/lake/namespaces?p%61rent=n&unknown=1",
        "/management/v1/warehouse",
        "/management/v1/project",
        "/health",
    ] {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let (status, body) = told(world.ask(&world.writer, method.clone(), path).body("{}")).await;
            assert!(matches!(status, 400 | 403 | 404 | 405), "{method} {path}: {status} {body}");
            assert!(!body.contains("p-b") && !body.contains("127.0.0.1"), "{body}");
        }
    }
    // Nothing reached the catalog but what the door itself asks: its prefix.
    assert!(world.fake.seen("GET", "namespaces").is_empty() && world.fake.seen("POST", "").is_empty());
    assert!(world.fake.seen("DELETE", "").is_empty());
}

/// Headers by which a catalog chooses project, identity or credentials are not a worker's to send.
#[tokio::test]
async fn a_worker_chooses_neither_project_nor_identity() {
    let world = World::plain(|_, _| say(200, r#"{"namespaces":[]}"#)).await;
    let ask = world.ask(&world.writer, Method::GET, "/v1/lake/namespaces");
    let ask = ask
        .header("x-project-id", "planted")
        .header("x-project-ident", "planted")
        .header("x-iceberg-access-delegation", "planted")
        .header("x-forwarded-for", "planted")
        .header("x-user", "planted")
        .header("cookie", "planted")
        .header("idempotency-key", "planted");
    assert_eq!(told(ask).await.0, 200);
    let seen = world.fake.seen("GET", "/v1/lake/namespaces");
    assert_eq!(seen.len(), 1);
    assert!(!seen[0].headers.contains("planted"), "{}", seen[0].headers);
}

/// What a catalog says beside the table: none of it reaches a worker, on any route, whatever the status.
#[tokio::test]
async fn secrets_and_endpoints_in_answers_stay_with_us() {
    for (path, body) in [
        (
            TABLE,
            r#"{"metadata":{"location":"s3://lake/w_a/t"},"config":{"s3.secret-access-key":"hush","s3.endpoint":"http://hush"}}"#,
        ),
        (
            TABLE,
            r#"{"metadata":{"location":"s3://lake/w_a/t"},"storage-credentials":[{"config":{"token":"hush"}}]}"#,
        ),
        (
            TABLE,
            r#"{"metadata":{"location":"s3://lake/w_a/t","properties":{"s3.secret-access-key":"hush"}}}"#,
        ),
        (TABLE, r#"{"metadata":{"location":"s3://lake/w_a/t","properties":{"header.x":"hush"}}}"#),
        (TABLE, r#"{"metadata":{"location":"s3://hush/t"}}"#),
        (
            TABLE,
            r#"{"metadata":{"location":"s3://lake/w_a/t","metadata-log":[{"metadata-file":"s3://hush/m.json"}]}}"#,
        ),
        (
            TABLE,
            r#"{"metadata":{"location":"s3://lake/w_a/t","statistics":[{"statistics-path":"s3://hush/s.puffin"}]}}"#,
        ),
        (
            TABLE,
            r#"{"metadata":{"location":"s3://lake/w_a/t","snapshots":[{"manifests":["s3://hush/a.avro"]}]}}"#,
        ),
        ("/v1/lake/namespaces/n", r#"{"namespace":["n"],"properties":{"s3.endpoint":"http://hush"}}"#),
        ("/v1/lake/namespaces/n", r#"{"namespace":["n"],"properties":{"location":"s3://hush/n"}}"#),
        ("/v1/lake/namespaces/n", r#"{"namespace":["n"],"properties":{"token":"hush"}}"#),
        (TABLE, r#"{"metadata":{"location":"s3://lake/w_a/t"}} hush"#),
        (TABLE, "<html>hush</html>"),
    ] {
        for status in [200, 403, 404, 409, 500, 503] {
            let world = World::plain(move |_, _| say(status, body)).await;
            let (told, text) = world.get(&world.reader, path).await;
            assert!(!text.contains("hush"), "{status} {body}: {told} {text}");
        }
    }
}

#[tokio::test]
async fn addresses_outside_pass_in_neither_direction() {
    let outside =
        r#"{"metadata":{"snapshots":[{"snapshot-id":1,"manifest-list":"s3://lake/w_b/snap.avro"}]}}"#;
    let world = World::plain(move |_, _| say(200, outside)).await;
    assert_eq!(world.get(&world.reader, TABLE).await.0, 403);
    let body = commit().replace("s3://lake/w_a/", "s3://lake/w_b/");
    let (status, told) = world.post(&world.writer, COMMIT, body).await;
    assert_eq!((status, told.contains("manifest-list is outside the warehouse")), (403, true), "{told}");
    assert!(world.fake.seen("POST", "").is_empty());
}

#[tokio::test]
async fn a_draft_that_lies_elsewhere_is_refused_but_a_made_table_is_not() {
    let world = World::plain(|_, _| say(200, r#"{"metadata":{"location":"s3://lake/w_b/t"}}"#)).await;
    let tables = "/v1/lake/namespaces/n/tables";
    assert_eq!(world.post(&world.writer, tables, r#"{"name":"t","stage-create":true}"#).await.0, 403);
    assert_eq!(world.post(&world.writer, tables, r#"{"name":"t"}"#).await.0, 200);
}

#[tokio::test]
async fn a_table_comes_without_our_settings_and_with_every_digit() {
    let metadata =
        r#"{"location":"s3://lake/w_a/t", "last-sequence-number":123456789012345678901234567890,"x":0.10}"#;
    let body = format!(
        r#"{{"metadata-location":"s3://lake/w_a/t/m.json","metadata":{metadata},"config":{{"s3.secret-access-key":"hush"}},"storage-credentials":[{{"prefix":"s3://lake","config":{{"token":"hush"}}}}]}}"#
    );
    let world = World::plain(move |_, _| say(200, body.clone())).await;
    let expected = format!(r#"{{"metadata-location":"s3://lake/w_a/t/m.json","metadata":{metadata}}}"#);
    assert_eq!(world.get(&world.reader, TABLE).await, (200, expected.clone()));
    assert_eq!(world.post(&world.writer, TABLE, r#"{"updates":[]}"#).await, (200, expected));
}

#[tokio::test]
async fn a_namespace_may_lie_at_the_root() {
    let body = r#"{"namespace":["n"],"properties":{"location":"s3://lake/w_a"}}"#;
    let world = World::plain(move |_, _| say(200, body)).await;
    assert_eq!(world.get(&world.reader, "/v1/lake/namespaces/n").await, (200, body.into()));
}

#[tokio::test]
async fn what_the_catalog_refuses_is_told_without_its_addresses() {
    let world = World::plain(|seen, _| {
        let error = r#"{"error":{"message":"no table at http://lakekeeper:8181/x","type":"NoSuchTableException","code":404}}"#;
        if seen.path.contains("/tables/") { say(404, error) } else { say(500, "panicked at postgres://u:pw@db") }
    })
    .await;
    let (status, body) = world.get(&world.reader, TABLE).await;
    assert_eq!(status, 404);
    assert!(body.contains("NoSuchTableException") && !body.contains("lakekeeper"), "{body}");
    let (status, body) = world.get(&world.reader, "/v1/lake/namespaces").await;
    assert_eq!(status, 500);
    assert!(!body.contains("postgres"), "{body}");
}

#[tokio::test]
async fn a_request_without_end_is_cut_short() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    let (status, _) = world.post(&world.writer, COMMIT, " ".repeat((16 << 20) + 1)).await;
    assert_eq!(status, 413);
    let deep = format!("{}1{}", r#"{"a":"#.repeat(50_000), "}".repeat(50_000));
    assert_eq!(world.post(&world.writer, COMMIT, deep).await.0, 400);
}

#[tokio::test]
async fn the_door_opens_on_loopback_only() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let upstream = Arc::new(Upstream::new(Settings::open("http://127.0.0.1:1")).unwrap());
    let refused = serve(listener, Passes::default(), upstream, CancellationToken::new()).await;
    assert!(matches!(refused, Err(ServeError::NotLoopback(_))));
}

/// What was told of a statement stays true: a commit that is still on its way then is not made, and neither is one of a worker that
/// has nothing to do.
#[tokio::test]
async fn a_statement_whose_outcome_was_told_changes_nothing() {
    let world = World::plain(|_, _| say(204, "")).await;
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 204);
    let errand = world.writer.visitor.errand().unwrap();
    errand.close();
    for (path, body) in [(COMMIT, commit()), ("/v1/lake/namespaces", r#"{"namespace":["m"]}"#.to_owned())] {
        assert_eq!(world.post(&world.writer, path, body).await.0, 403, "{path}");
    }
    assert_eq!(told(world.ask(&world.writer, Method::DELETE, TABLE)).await.0, 403);
    // Another statement may again, and after that nobody.
    world.writer.visitor.errands.lock().unwrap().clear();
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 403);
    let next = world.writer.visitor.sent(Errand::writing(Box::new(Anything)));
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 204);
    drop(next);
    assert_eq!(world.post(&world.writer, COMMIT, commit()).await.0, 403);
    assert_eq!(world.fake.seen("POST", COMMIT).len(), 2);
    assert!(world.fake.seen("DELETE", TABLE).is_empty());
}
