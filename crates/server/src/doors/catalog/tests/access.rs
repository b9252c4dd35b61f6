//! Who may reach what.

use super::fake::say;
use super::*;

#[tokio::test]
async fn a_reader_cannot_change_anything() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    for (method, path) in [
        (Method::POST, COMMIT),
        (Method::POST, TABLE),
        (Method::POST, "/v1/p-a/namespaces"),
        (Method::POST, "/v1/p-a/tables/rename"),
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
    for path in
        ["/v1/p-b/namespaces", "/v1/p-b/namespaces/n/tables/t", "/v1/p-A/namespaces", "/v1/namespaces/n"]
    {
        assert_eq!(world.get(&world.writer, path).await.0, 403, "{path}");
    }
    assert_eq!(world.post(&world.writer, "/v1/p-b/transactions/commit", commit()).await.0, 403);
    for path in
        ["/v1/config?warehouse=w_b", "/v1/config?warehouse=nosuch", "/v1/config", "/v1/config?warehouse="]
    {
        let (status, body) = world.get(&world.reader, path).await;
        assert_eq!((status, body.contains("p-")), (404, false), "{path}");
    }
    assert!(world.fake.seen("GET", "/namespaces").is_empty());
}

#[tokio::test]
async fn the_configuration_is_the_prefix_and_nothing_else() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    let answer = world.get(&world.reader, "/v1/config?warehouse=w_a").await;
    assert_eq!(answer, (200, r#"{"defaults":{},"overrides":{"prefix":"p-a"}}"#.into()));
}

#[tokio::test]
async fn nobody_enters_without_a_pass() {
    let mut world = World::plain(|_, _| say(200, "{}")).await;
    let old = world.reader.bearer.clone();
    let spare = Passes::default();
    let visitor = Visitor {
        warehouse: "w_a".into(),
        place: Place { bucket: "lake".into(), prefix: "w_a/".into() },
        role: Role::Reader,
    };
    // The reader's pass is dropped: its bearer must be worth nothing.
    world.reader = spare.issue(visitor);
    let mut dead = spare.issue(Visitor {
        warehouse: "w_a".into(),
        place: Place { bucket: "lake".into(), prefix: String::new() },
        role: Role::Writer,
    });
    dead.bearer = old;
    for pass in [&world.reader, &dead] {
        assert_eq!(world.get(pass, "/v1/config?warehouse=w_a").await.0, 401);
        assert_eq!(world.get(pass, TABLE).await.0, 401);
    }
}

#[tokio::test]
async fn routes_that_reach_further_are_not_served() {
    let world = World::plain(|_, _| say(200, "{}")).await;
    for path in [
        "/v1/oauth/tokens",
        "/v1/p-a/namespaces/n/register",
        "/v1/p-a/namespaces/n/views",
        "/v1/p-a/namespaces/n/tables/t/plan",
        "/v1/p-a/namespaces/n/tables/t/metrics",
        "/management/v1/warehouse",
    ] {
        let (status, body) = world.post(&world.writer, path, "{}").await;
        assert_eq!(status, 403, "{path}");
        assert!(body.contains("ForbiddenException"), "{body}");
    }
    assert!(world.fake.seen("POST", "").is_empty());
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
    let tables = "/v1/p-a/namespaces/n/tables";
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
    assert_eq!(world.get(&world.reader, "/v1/p-a/namespaces/n").await, (200, body.into()));
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
    let (status, body) = world.get(&world.reader, "/v1/p-a/namespaces").await;
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
