//! Catalog, store and identity provider behave badly: every request ends typed and in time, nothing stays taken, and the next query
//! works as soon as they are well again.

use std::time::Duration;

use duck_contract::{Code, Problem};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::between::{Between, Manner};
use crate::s3_world::{KEY_ID, SECRET, Weed};
use crate::world::{
    Organisation, Process, World, kill, problem, read_toml, set, status_at_rest, until_async, workers_of,
};

/// A second server, which reaches catalog, identity provider and store through what behaves badly.
pub struct Rig {
    /// The second server, by its owner's tokens.
    pub acme: Organisation,
    url: String,
    service_token: String,
    pub world: World,
    pub server: Process,
    _home: TempDir,
}

/// Deadlines of a second, so that a test of waiting does not take long.
const SHORT: [(&str, &str, &str); 4] = [
    ("catalog", "read_ms_max", "1_000"),
    ("catalog", "attempt_ms_max", "1_000"),
    ("catalog", "settle_ms_max", "2_000"),
    (
        "storage",
        "limits",
        "{ first_byte_ms_max = 1_000, idle_ms_max = 1_000, connect_ms_max = 1_000, avro_ms_max = 2_000, breaker_open_ms = 500 }",
    ),
];
/// More than those, the engine's own retries and a slow machine together.
const TYPED_MAX: Duration = Duration::from_secs(20);

impl Rig {
    pub fn start(world: World, home: TempDir, environment: &[(&str, &str)]) -> Rig {
        let file = world.dir.join("second.toml");
        let mut written = read_toml(&world.dir.join("duck-server.toml"));
        set(&mut written, "", "listen", "'127.0.0.1:0'");
        set(&mut written, "", "drain_grace_ms", "0");
        for (section, name, value) in SHORT {
            set(&mut written, section, name, value);
        }
        set(
            &mut written,
            "storage",
            "ledger_path",
            &format!("'{}'", world.dir.join("second.jsonl").display()),
        );
        std::fs::write(&file, written.to_string()).unwrap();
        let arguments =
            ["serve", "--json", "--config", file.to_str().unwrap(), "--log-level", "debug,hyper_util=info"];
        let server = Process::start(&arguments, environment, world.dir.join("second.log"));
        let line: Value = serde_json::from_str(&server.line).unwrap();
        let url = line["url"].as_str().unwrap().to_owned();
        let acme = Organisation { url: url.clone(), ..world.acme.clone() };
        let service_token = world.service_token.clone();
        Rig { acme, url, service_token, world, server, _home: home }
    }

    /// The second server behind its catalog's and its identity provider's proxies.
    pub async fn before_catalog(identity_is: Manner) -> (Rig, Between, Between) {
        let home = tempfile::tempdir().unwrap();
        let world = World::open(home.path(), &[], &[]).await;
        let port = reqwest::Url::parse(&world.catalog_url).unwrap().port().unwrap();
        let (catalog, identity) = (Between::before(port).await, Between::before(port).await);
        identity.behaves(identity_is);
        let uri = format!("http://127.0.0.1:{}/catalog", catalog.port);
        let oauth2_uri = format!("http://127.0.0.1:{}/catalog/v1/oauth/tokens", identity.port);
        let environment = [("LAKEHOUSE_CATALOG_URI", uri.as_str()), ("LAKEHOUSE_OAUTH2_URI", &oauth2_uri)];
        (Rig::start(world, home, &environment), catalog, identity)
    }

    /// The request fails, typed and in time.
    async fn fails(&self, sql: &str, what: &str) -> Problem {
        let began = Instant::now();
        let problem = self.acme.problem(&json!({"sql": sql})).await;
        assert!(began.elapsed() < TYPED_MAX, "{what}: {:?}", began.elapsed());
        problem
    }

    /// Soon the same statement answers, and nothing is taken any more.
    pub async fn recovers(&self, sql: &str, rows: &Value, what: &str) {
        let began = Instant::now();
        let answer = loop {
            let answer = self.acme.post(&json!({"sql": sql, "format": "json"})).await;
            if answer.status().is_success() {
                break answer.json::<Value>().await.unwrap();
            }
            let refusal = problem(answer).await;
            assert!(
                began.elapsed() < Duration::from_secs(5),
                "{what}: still {} {}",
                refusal.code,
                refusal.detail
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(&answer["rows"], rows, "{what}");
        self.is_at_rest(what).await;
    }

    async fn is_at_rest(&self, what: &str) {
        let status = status_at_rest(&self.acme.http, &self.url, &self.service_token).await;
        assert!(status.is_ok(), "{what}: {status:?}");
    }

    /// Lets the next query need a new engine.
    pub async fn forget_workers(&self) {
        for pid in workers_of(self.server.pid()) {
            kill(pid, rustix::process::Signal::KILL);
        }
        // A statement that comes before the server has noticed is lost with its engine.
        until_async("the server has noticed", async || {
            let ask = self.acme.http.get(format!("{}/status", self.url)).bearer_auth(&self.service_token);
            ask.send().await.unwrap().json::<Value>().await.unwrap()["pool"]["workers"] == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_that_behaves_badly_is_told_apart_and_forgotten() {
    let (rig, catalog, identity) = Rig::before_catalog(Manner::Well).await;
    let (sql, rows) = ("SELECT count(*) FROM datasets.ds_toydemo001", json!([[5_000]]));
    rig.recovers(sql, &rows, "at first").await;
    let unavailable: &[Code] = &[Code::CatalogUnavailable];
    // 404 is an answer: the warehouse, or the table, is not there.
    let absent: &[Code] = &[Code::UnknownWarehouse, Code::SqlBinding];
    for (manner, expected) in [
        (Manner::Status(500), unavailable),
        (Manner::Status(401), unavailable),
        (Manner::Status(404), absent),
        (Manner::Never, unavailable),
        (Manner::Half, unavailable),
        (Manner::Gone, unavailable),
    ] {
        for engine in ["warm", "cold"] {
            if engine == "cold" {
                rig.forget_workers().await;
            }
            catalog.behaves(manner);
            let what = format!("{manner:?}, {engine}");
            let problem = rig.fails(sql, &what).await;
            assert!(expected.contains(&problem.code), "{what}: {} {}", problem.code, problem.detail);
            catalog.behaves(Manner::Well);
            rig.recovers(sql, &rows, &what).await;
        }
    }
    drop(identity);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_identity_provider_is_down_the_token_in_hand_serves() {
    let (rig, catalog, identity) = Rig::before_catalog(Manner::Hurried).await;
    let (sql, rows) = ("SELECT count(*) > 0 FROM datasets.customers", json!([[true]]));
    rig.recovers(sql, &rows, "at first").await;
    identity.behaves(Manner::Never);
    let began = Instant::now();
    let mut queries = 0;
    while began.elapsed() < Duration::from_secs(30) {
        assert_eq!(rig.acme.rows(sql).await, rows, "{:?} into the outage", began.elapsed());
        queries += 1;
        if queries % 10 == 0 {
            rig.forget_workers().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let log = std::fs::read_to_string(&rig.server.log).unwrap();
    assert!(
        log.contains("lifetime_s=34") && log.contains("catalog login could not be renewed"),
        "it was tried"
    );
    drop(catalog);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_behaves_badly_is_told_apart_and_forgotten() {
    let weed = Weed::start().await;
    let home = tempfile::tempdir().unwrap();
    let world = weed.world(home.path(), &[]).await;
    let store = Between::before(weed.s3_port()).await;
    let endpoint = format!("http://127.0.0.1:{}", store.port);
    let environment = [
        ("LAKEHOUSE_S3_ENDPOINT", endpoint.as_str()),
        ("LAKEHOUSE_S3_ACCESS_KEY_ID", KEY_ID),
        ("LAKEHOUSE_S3_SECRET_ACCESS_KEY", SECRET),
        ("LAKEHOUSE_S3_REGION", "us-east-1"),
    ];
    let rig = Rig::start(world, home, &environment);
    let (sql, rows) =
        ("SELECT count(*), max(unit_price) > 0 FROM datasets.ds_toydemo001", json!([[5_000, true]]));
    rig.recovers(sql, &rows, "at first").await;
    for manner in [
        Manner::Status(500),
        Manner::Status(401),
        Manner::Status(404),
        Manner::Never,
        Manner::Half,
        Manner::Gone,
    ] {
        // A new engine has read nothing yet.
        rig.forget_workers().await;
        store.behaves(manner);
        let what = format!("{manner:?}");
        let problem = rig.fails(sql, &what).await;
        // A file that a table names and that is not there, or may not be read, is the store's fault, too.
        assert_eq!(problem.code, Code::StorageUnavailable, "{what}: {}", problem.detail);
        store.behaves(Manner::Well);
        rig.recovers(sql, &rows, &what).await;
    }
    assert!(rig.world.acme.rows("SELECT 1").await == json!([[1]]));
}
