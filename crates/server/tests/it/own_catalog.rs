//! A catalog that is not Lakekeeper's kind: SeaweedFS's own, with OAuth2, a bucket for each warehouse, and no idempotency keys.

use duck_contract::Code;
use duck_contract::query::WriteState;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::lossy::{Loss, Lossy};
use crate::s3_world::{ADMIN, Weed};
use crate::world::{Organisation, Process, client, kill, problem, python, token, until_async, workers_of};

const WAREHOUSE: &str = "weed-w_acme";
const BUCKET: &str = "tenant-acme";
const JWT_SECRET: &str = "of-these-servers-and-of-nobody-else";

/// Two servers on it.
pub struct Site {
    /// acme at the first, and at the second, between which and the catalog answers can be lost.
    pub acme: Organisation,
    pub second: Organisation,
    lossy: Lossy,
    servers: [Process; 2],
    weed: Weed,
    _home: TempDir,
}

impl Site {
    pub async fn start() -> Site {
        let (weed, home) = (Weed::start().await, tempfile::tempdir().unwrap());
        weed.makes_a_warehouse(BUCKET);
        // It answers before its buckets are there for it.
        let url = format!("{}/v1/{BUCKET}/namespaces", weed.catalog());
        let (http, bearer) = (client(), login(&weed).await);
        until_async("the catalog answers", async || {
            let answer = http.get(&url).bearer_auth(&bearer).send().await.unwrap();
            answer.status().is_success()
        })
        .await;
        // Its warehouses are buckets, whose names have no underscore, and it has no base path.
        let renames = [("/catalog/", "/"), (WAREHOUSE, BUCKET)];
        let renames = renames.map(|(ours, its)| (ours.to_owned(), its.to_owned())).to_vec();
        let plain = Lossy::renaming(&weed.catalog(), renames.clone()).await;
        let lossy = Lossy::renaming(&weed.catalog(), renames).await;
        std::fs::write(home.path().join("writes.toml"), "write_target = 'iceberg_native'\n").unwrap();
        let servers = [("first", &plain), ("second", &lossy)].map(|(name, catalog)| {
            let (file, log) =
                (home.path().join(format!("{name}.toml")), home.path().join(format!("{name}.log")));
            std::fs::write(&file, settings(&weed, catalog, &home, name)).unwrap();
            Process::start(&["serve", "--json", "--config", file.to_str().unwrap()], &[], log)
        });
        let [acme, second] = servers.each_ref().map(|server| {
            let line: Value = serde_json::from_str(&server.line).unwrap();
            Organisation {
                url: line["url"].as_str().unwrap().to_owned(),
                token: token(JWT_SECRET, &json!({"workspace_id": "acme", "write": true})),
                warehouse: WAREHOUSE.to_owned(),
                http: client(),
            }
        });
        acme.write("CREATE SCHEMA datasets").await;
        Site { acme, second, lossy, servers, weed, _home: home }
    }

    /// What PyIceberg reads of a table, past the servers.
    async fn read(&self, table: &str) -> Value {
        python("read_table.py", &self.ask(table).await)
    }

    /// What DuckDB alone reads of a table, past the servers: the rows, as text and sorted.
    async fn read_bare(&self, table: &str) -> Value {
        let mut ask = self.ask(table).await;
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        ask["extensions"] = json!(root.join("third_party/duckdb/extensions/v1.5.5/linux_amd64"));
        python("bare_duckdb.py", &ask)
    }

    async fn ask(&self, table: &str) -> Value {
        let s3 = json!({"endpoint": self.weed.endpoint(), "access-key-id": ADMIN.0, "secret-access-key": ADMIN.1, "region": "us-east-1"});
        let token = login(&self.weed).await;
        json!({"catalog": self.weed.catalog(), "token": token, "warehouse": BUCKET, "table": table, "s3": s3})
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for server in &mut self.servers {
            server.stop();
            let log = std::fs::read_to_string(&server.log).unwrap();
            assert!(std::thread::panicking() || !log.contains(ADMIN.1), "the log holds a secret");
        }
    }
}

/// A bearer token of the catalog's.
async fn login(weed: &Weed) -> String {
    let form = [("grant_type", "client_credentials"), ("client_id", ADMIN.0), ("client_secret", ADMIN.1)];
    let ask = client().post(format!("{}/v1/oauth/tokens", weed.catalog())).form(&form);
    let answer: Value = ask.send().await.unwrap().json().await.unwrap();
    answer["access_token"].as_str().unwrap().to_owned()
}

fn settings(weed: &Weed, catalog: &Lossy, home: &TempDir, name: &str) -> String {
    let (endpoint, url, home) = (weed.endpoint(), &catalog.url, home.path().display());
    let (id, secret) = ADMIN;
    format!(
        "listen = '127.0.0.1:0'
        [auth]
        jwt_secret = '{JWT_SECRET}'
        [warehouse]
        prefix = 'weed'
        place = 's3://tenant-{{workspace}}/'
        [writes]
        policy = '{home}/writes.toml'
        [catalog]
        uri = '{url}'
        oauth2_uri = '{url}/v1/oauth/tokens'
        client_id = '{id}'
        client_secret = '{secret}'
        attempt_ms_max = 2_000
        [storage]
        kind = 's3'
        endpoint = '{endpoint}'
        access_key_id = '{id}'
        secret_access_key = '{secret}'
        ledger_path = '{home}/{name}-deletes.jsonl'
        "
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_works_with_the_stores_own_catalog() {
    let site = Site::start().await;
    let (acme, other) = (&site.acme, &site.second);
    for (sql, check, rows) in [
        ("CREATE TABLE datasets.t (k INTEGER, v VARCHAR)", "count(*) FROM datasets.t", json!([[0]])),
        ("INSERT INTO datasets.t VALUES (1, 'a'), (2, 'b'), (3, 'c')", "sum(k)::INTEGER FROM datasets.t", json!([[6]])),
        ("UPDATE datasets.t SET v = 'u' WHERE k = 2", "v FROM datasets.t WHERE k = 2", json!([["u"]])),
        ("DELETE FROM datasets.t WHERE k = 1", "min(k) FROM datasets.t", json!([[2]])),
        (
            "MERGE INTO datasets.t t USING (SELECT unnest([2, 9]) AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = 'm'
             WHEN NOT MATCHED THEN INSERT VALUES (s.k, 'n')",
            "k, v FROM datasets.t ORDER BY k",
            json!([[2, "m"], [3, "c"], [9, "n"]]),
        ),
        ("ALTER TABLE datasets.t ADD COLUMN w INTEGER", "count(w) FROM datasets.t", json!([[0]])),
        ("CREATE TABLE datasets.c AS SELECT k, v FROM datasets.t", "count(*) FROM datasets.c", json!([[3]])),
        ("CREATE TABLE datasets.p (k INTEGER, d DATE) PARTITIONED BY (k, month(d))", "count(*) FROM datasets.p", json!([[0]])),
        (
            "INSERT INTO datasets.p SELECT i % 3, DATE '2026-01-01' + (i * 20)::INTEGER FROM range(12) r(i)",
            "count(*) FROM datasets.p",
            json!([[12]]),
        ),
        ("DELETE FROM datasets.p WHERE k = 2", "k, count(*) FROM datasets.p GROUP BY k ORDER BY k", json!([[0, 4], [1, 4]])),
    ] {
        let answer = acme.json(json!({"sql": sql, "format": "json", "allow_writes": true})).await;
        let (state, changed) = (&answer["write"]["state"], answer["write"]["changes"].as_array().unwrap().len());
        assert_eq!((state, changed), (&json!("made"), 1), "{sql}: {answer}");
        for who in [acme, other] {
            assert_eq!(who.rows(&format!("SELECT {check}")).await, rows, "after {sql}");
        }
    }
    // Several tables together, or none of them.
    let sums = "SELECT (SELECT count(*) FROM datasets.t), (SELECT count(*) FROM datasets.c)";
    let together = ["INSERT INTO datasets.t VALUES (10, 'x', 1)", "DELETE FROM datasets.c WHERE k = 9"];
    let answer = acme.json(json!({"statements": together, "format": "json", "allow_writes": true})).await;
    assert_eq!(answer["write"]["changes"].as_array().unwrap().len(), 2, "{answer}");
    assert_eq!(other.rows(sums).await, json!([[4, 2]]));
    let fails = [together[0], "DELETE FROM datasets.c", "SELECT error('no')"];
    let said = acme.problem(&json!({"statements": fails, "allow_writes": true})).await;
    assert_eq!((said.code, said.write.unwrap().state), (Code::SqlRuntime, WriteState::NotMade));
    assert_eq!(other.rows(sums).await, json!([[4, 2]]));
    // What the store takes for no file of a table (a deletion vector, in format version 3) is not made, and harms nothing.
    acme.write(
        "CREATE TABLE datasets.v3 WITH ('format-version' = '3') AS SELECT i::INTEGER AS k FROM range(5) t(i)",
    )
    .await;
    let said =
        acme.problem(&json!({"sql": "DELETE FROM datasets.v3 WHERE k = 2", "allow_writes": true})).await;
    assert_eq!((said.code, said.write.unwrap().state), (Code::StorageUnavailable, WriteState::NotMade));
    acme.write("INSERT INTO datasets.v3 VALUES (5)").await;
    assert_eq!(other.rows("SELECT count(*) FROM datasets.v3").await, json!([[6]]));
    // Somebody else reads the same.
    let read = site.read("datasets.t").await;
    assert_eq!(
        read["rows"],
        json!([["10", "'x'", "1"], ["2", "'m'", "None"], ["3", "'c'", "None"], ["9", "'n'", "None"]])
    );
    acme.write("DROP TABLE datasets.c").await;
    assert_eq!(other.problem(&json!({"sql": "FROM datasets.c"})).await.code, Code::SqlBinding);
}

/// Its catalog knows no idempotency keys: a change that is sent again meets itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_loses_no_row_with_the_stores_own_catalog() {
    let site = Site::start().await;
    let who = &site.second;
    for (loss, n) in [(Loss::Cut, 1), (Loss::Error, 2)] {
        let create = format!("CREATE TABLE datasets.t{n} AS SELECT i::INTEGER AS k FROM range(3) r(i)");
        for (sql, rows) in [
            (create, json!([[3, 3]])),
            (format!("INSERT INTO datasets.t{n} VALUES (3)"), json!([[4, 6]])),
            (format!("UPDATE datasets.t{n} SET k = 10 WHERE k = 0"), json!([[4, 16]])),
            (format!("DELETE FROM datasets.t{n} WHERE k = 1"), json!([[3, 15]])),
        ] {
            site.lossy.lose(loss, 1);
            let answer = who.json(json!({"sql": sql, "format": "json", "allow_writes": true})).await;
            assert!(site.lossy.lost() > 0, "{sql}");
            assert_eq!(answer["write"]["state"], "made", "{sql}: {answer}");
            site.lossy.heal();
            for each in [who, &site.acme] {
                let sums = format!("SELECT count(*), sum(k)::INTEGER FROM datasets.t{n}");
                assert_eq!(each.rows(&sums).await, rows, "{loss:?}: {sql}");
            }
        }
        let table = format!("datasets.t{n}");
        let rows = json!([["10"], ["2"], ["3"]]);
        assert_eq!((&site.read(&table).await["rows"], &site.read_bare(&table).await), (&rows, &rows));
    }
    // An engine that is killed while its commit is on its way, and while the answer is.
    for (answers, k) in [(false, 20), (true, 30)] {
        if answers {
            site.lossy.hold_answers();
        } else {
            site.lossy.hold();
        }
        let (acme, sql) = (who.clone(), format!("INSERT INTO datasets.t1 VALUES ({k})"));
        let running =
            tokio::spawn(async move { acme.post(&json!({"sql": sql, "allow_writes": true})).await });
        site.lossy.holding().await;
        for pid in workers_of(site.servers[1].pid()) {
            kill(pid, rustix::process::Signal::KILL);
        }
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        site.lossy.release();
        let said = problem(running.await.unwrap()).await;
        assert_eq!(
            (said.code, said.write.unwrap().state),
            (Code::AnswerLost, WriteState::Made),
            "{}",
            said.detail
        );
    }
    let rows = json!([["10"], ["2"], ["20"], ["3"], ["30"]]);
    let (iceberg, duckdb) = (site.read("datasets.t1").await, site.read_bare("datasets.t1").await);
    assert_eq!((&iceberg["rows"], &duckdb), (&rows, &rows));
}

/// The storage door writes with `If-None-Match: *`; that holds only where the store follows it.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_refuses_to_write_over_what_is_there() {
    let site = Site::start().await;
    site.acme.write("CREATE TABLE datasets.t AS SELECT 1 AS k").await;
    let read = site.read("datasets.t").await;
    let file = read["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file.as_str().unwrap())
        .find(|file| file.ends_with(".parquet"));
    let path = file.unwrap().strip_prefix("s3://").unwrap();
    assert_eq!(site.weed.creates(ADMIN, path, "other"), json!(412));
    assert_eq!(site.second.rows("FROM datasets.t").await, json!([[1]]));
    // Where nothing is, the same request writes.
    assert_eq!(site.weed.creates(ADMIN, &path.replace(".parquet", "-2.parquet"), "other"), json!(true));
}
