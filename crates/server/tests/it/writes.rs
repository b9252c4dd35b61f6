//! Who may write what, what can be written, and what is said of it.

use std::path::PathBuf;
use std::time::Duration;

use duck_contract::query::WriteState;
use duck_contract::{Code, Problem};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::world::{Organisation, World, problem};

/// A server whose policy of writes a test rewrites.
struct Governed {
    world: World,
    policy: PathBuf,
}

impl Governed {
    async fn start() -> Governed {
        let world = World::start(&[]).await;
        let policy = world.dir.join("writes.toml");
        Governed { world, policy }
    }

    /// Writes a policy and waits until it holds, or until its faults are told; how long that took.
    async fn policy(&self, text: &str) -> Duration {
        std::fs::write(&self.policy, text).unwrap();
        let began = Instant::now();
        let (wanted, broken) = text.parse::<toml::Table>().map_or((toml::Table::new(), true), |t| (t, false));
        loop {
            let status = self.world.status().await["writes"].clone();
            let faulty = !status["faults"].as_array().unwrap().is_empty();
            let defaults =
                [("kill", json!(false)), ("write_target", json!("none")), ("new_tables", json!("inherit"))];
            let holds = defaults.into_iter().all(|(key, default)| {
                wanted.get(key).map_or(default, |value| json!(value)) == status["policy"][key]
            });
            let named = wanted.get("workspaces").and_then(|w| w.as_table()).map_or(0, toml::Table::len);
            let there = status["policy"]["workspaces"].as_object().unwrap();
            let workspaces = there.len() == named && there.keys().all(|name| text.contains(name));
            if faulty == broken && (broken || (holds && workspaces)) {
                return began.elapsed();
            }
            assert!(began.elapsed() < Duration::from_secs(5), "the policy never came to hold: {status}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A token of acme's with what it may write.
    fn token(&self, claims: &Value) -> Organisation {
        let file = crate::world::read_toml(&self.world.dir.join("duck-server.toml"));
        let secret = file["auth"]["jwt_secret"].as_str().unwrap();
        let mut all = json!({"workspace_id": "acme"});
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let token = crate::world::token(secret, &all);
        Organisation { token, ..self.world.acme.clone() }
    }
}

fn writing(sql: &str) -> Value {
    json!({"sql": sql, "format": "json", "allow_writes": true})
}

/// The code of a statement with write access: none where it succeeds.
async fn code(who: &Organisation, sql: &str) -> Option<Code> {
    let answer = who.post(&writing(sql)).await;
    if answer.status() == 200 { None } else { Some(problem(answer).await.code) }
}

const OPEN: &str = "write_target = 'iceberg_native'\n";

#[tokio::test(flavor = "multi_thread")]
async fn grant_and_policy_are_both_needed_for_every_kind_of_change() {
    every_cell_is_right(&Governed::start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_and_policy_hold_at_the_doors_when_nobody_reads_the_sql() {
    let home = tempfile::tempdir().unwrap();
    let world = crate::layers::without("policy", home.path(), &[]).await;
    let policy = world.dir.join("writes.toml");
    every_cell_is_right(&Governed { world, policy }).await;
}

/// Grant × policy × kind of change × (a table that is there, one that is made, another organisation's).
async fn every_cell_is_right(governed: &Governed) {
    let acme = &governed.world.acme;
    acme.write("CREATE TABLE datasets.there AS SELECT i::INTEGER AS a FROM range(100) t(i)").await;
    let everything = governed.token(&json!({"write": true}));
    let one = governed.token(&json!({"write": true, "write_tables": ["datasets.there", "own.*"]}));
    let nothing = governed.token(&json!({}));
    let (granted, closed) = (Some(Code::WritesNotGranted), Some(Code::WriteTargetClosed));
    // Policy; what is said of changing a table that is there, and of making one, with every grant and with one for that table.
    let policies = [
        (OPEN.to_owned(), [None, None], [None, granted]),
        ("write_target = 'none'".into(), [closed, closed], [closed, closed]),
        (format!("kill = true\n{OPEN}"), [closed, closed], [closed, closed]),
        (format!("new_tables = 'deny'\n{OPEN}"), [None, closed], [None, granted]),
        ("write_target = 'none'\nnew_tables = 'allow'".into(), [closed, None], [closed, granted]),
        (
            "write_target = 'none'\n[workspaces.acme.tables]\n'datasets.there' = 'iceberg_native'".into(),
            [None, closed],
            [None, granted],
        ),
        (format!("{OPEN}[workspaces.acme]\nwrite_target = 'none'"), [closed, closed], [closed, closed]),
        (format!("{OPEN}[workspaces.globex]\nwrite_target = 'none'"), [None, None], [None, granted]),
    ];
    for (policy, all, only) in policies {
        governed.policy(&policy).await;
        for (who, [change, create]) in [(&everything, all), (&one, only)] {
            for sql in [
                "INSERT INTO datasets.there VALUES (1000)",
                "UPDATE datasets.there SET a = a + 1 WHERE a > 50",
                "DELETE FROM datasets.there WHERE a = (SELECT max(a) FROM datasets.there)",
                "MERGE INTO datasets.there t USING (SELECT 7 AS a) s ON t.a = s.a WHEN MATCHED THEN UPDATE SET a = 7",
                "ALTER TABLE datasets.there RENAME COLUMN a TO b",
                "ALTER TABLE datasets.there RENAME COLUMN b TO a",
            ] {
                let sql = if change.is_some() {
                    sql.replace("COLUMN b TO a", "COLUMN a TO b")
                } else {
                    sql.to_owned()
                };
                assert_eq!(code(who, &sql).await, change, "{policy}: {sql}");
            }
            for sql in [
                "CREATE TABLE datasets.new (a INTEGER)",
                "CREATE TABLE datasets.new2 AS SELECT 1 AS a",
                "CREATE SCHEMA news",
            ] {
                assert_eq!(code(who, sql).await, create, "{policy}: {sql}");
            }
            if create.is_none() {
                // What was made is cleaned up with a policy that lets one.
                governed.policy(OPEN).await;
                for sql in ["DROP TABLE datasets.new", "DROP TABLE datasets.new2", "DROP SCHEMA news"] {
                    assert_eq!(code(&everything, sql).await, None, "{policy}: {sql}");
                }
                governed.policy(&policy).await;
            }
        }
        assert_eq!(code(&nothing, "INSERT INTO datasets.there VALUES (1)").await, granted, "{policy}");
        // Another organisation's table is no table here, whatever it may do there.
        let foreign = format!(
            "INSERT INTO \"{}\".datasets.sites VALUES (1, 'x', 1.0)",
            governed.world.globex.warehouse
        );
        assert!(code(&everything, &foreign).await.is_some(), "{policy}");
    }
    governed.policy(OPEN).await;
    // A change of the name is a change of one table and the making of another.
    assert_eq!(code(&one, "ALTER TABLE datasets.there RENAME TO elsewhere").await, granted);
    assert_eq!(code(&one, "CREATE SCHEMA own").await, None);
    assert_eq!(code(&one, "CREATE TABLE own.mine AS SELECT 1 AS a").await, None);
    assert_eq!(code(&one, "INSERT INTO own.mine VALUES (2)").await, None);
    assert_eq!(
        code(&one, "INSERT INTO datasets.ds_toydemo001 SELECT * FROM datasets.ds_toydemo001").await,
        granted
    );
    assert_eq!(acme.rows("SELECT count(*) FROM own.mine").await, json!([[2]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_which_table_and_which_rule_and_writes_no_file() {
    let governed = Governed::start().await;
    governed.policy(&format!("{OPEN}[workspaces.acme.tables]\n'datasets.Customers' = 'none'")).await;
    let before = governed.world.stored();
    let acme = &governed.world.acme;
    let said = acme.problem(&writing("INSERT INTO customers SELECT * FROM customers")).await;
    assert_eq!(said.code, Code::WriteTargetClosed);
    for part in ["datasets.customers", "workspaces.acme.tables.\"datasets.customers\""] {
        assert!(said.detail.contains(part), "{part} is missing in: {}", said.detail);
    }
    assert_eq!(said.write.unwrap().state, WriteState::NotMade);
    assert_eq!(governed.world.stored(), before);
    // In a transaction with others, none of them is made.
    let body = json!({"statements": ["CREATE TABLE datasets.x AS SELECT 1 AS a", "DELETE FROM datasets.customers"],
                      "format": "json", "allow_writes": true});
    assert_eq!(acme.problem(&body).await.code, Code::WriteTargetClosed);
    let tables = acme.rows("SELECT count(*) FROM datasets.customers").await;
    assert_eq!(tables, json!([[500]]));
    assert_eq!(code(acme, "INSERT INTO datasets.x VALUES (1)").await, Some(Code::SqlBinding));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_followed_while_statements_write_and_the_kill_switch_works_within_a_second() {
    let governed = Governed::start().await;
    let acme = governed.world.acme.clone();
    acme.write("CREATE TABLE datasets.t (a INTEGER)").await;
    let writer = {
        let acme = acme.clone();
        tokio::spawn(async move {
            let (mut made, mut i) = (0, 0);
            loop {
                i += 1;
                let answer = acme.post(&writing(&format!("INSERT INTO datasets.t VALUES ({i})"))).await;
                if answer.status() == 200 {
                    made += 1;
                    continue;
                }
                let said = problem(answer).await;
                assert_eq!(said.code, Code::WriteTargetClosed, "{}", said.detail);
                assert!(said.detail.contains("`kill`"), "{}", said.detail);
                return made;
            }
        })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    // A file with faults changes nothing, and they are told.
    governed.policy("kill = maybe").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!writer.is_finished());
    let took = governed.policy(&format!("kill = true\n{OPEN}")).await;
    let made = tokio::time::timeout(Duration::from_secs(2), writer).await.unwrap().unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(made > 0);
    // What was answered as made is there, and nothing else.
    assert_eq!(acme.rows("SELECT count(*) FROM datasets.t").await, json!([[made]]));
    let config: Value = {
        let ask = acme.http.get(format!("{}/config", acme.url)).bearer_auth(&acme.token);
        ask.send().await.unwrap().json().await.unwrap()
    };
    assert_eq!(config["writes"], json!({"open": false, "rule": "kill"}));
    governed.policy(OPEN).await;
    acme.write("INSERT INTO datasets.t VALUES (0)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_iceberg_tables_can_do_works_in_both_formats_and_says_what_it_did() {
    let governed = Governed::start().await;
    let acme = &governed.world.acme;
    for version in ["2", "3"] {
        let t = format!("datasets.f{version}");
        let with = format!("WITH ('format-version' = '{version}')");
        let mut last: Option<String> = None;
        for (sql, affected, check, rows) in [
            (format!("CREATE TABLE {t} (k INTEGER, v VARCHAR) {with}"), None, "count(*)", json!([[0]])),
            (format!("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')"), Some(2), "count(*)", json!([[2]])),
            (format!("INSERT INTO {t} SELECT i, 'x' FROM range(3, 11) r(i)"), Some(8), "count(*)", json!([[10]])),
            (format!("UPDATE {t} SET v = 'u' WHERE k > 8"), Some(2), "count(*) FILTER (v = 'u')", json!([[2]])),
            (format!("DELETE FROM {t} WHERE k = 1"), Some(1), "min(k)", json!([[2]])),
            (
                format!(
                    "MERGE INTO {t} t USING (SELECT unnest([2, 50]) AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = 'm'
                     WHEN NOT MATCHED THEN INSERT VALUES (s.k, 'n')"
                ),
                Some(2),
                "count(*) FILTER (v IN ('m', 'n'))",
                json!([[2]]),
            ),
            (format!("ALTER TABLE {t} ADD COLUMN extra INTEGER"), None, "count(extra)", json!([[0]])),
            (format!("INSERT INTO {t} VALUES (60, 'e', 5)"), Some(1), "sum(extra)::INTEGER", json!([[5]])),
            (format!("ALTER TABLE {t} RENAME COLUMN v TO w"), None, "count(w)", json!([[11]])),
            (format!("ALTER TABLE {t} DROP COLUMN extra"), None, "count(*)", json!([[11]])),
            (format!("TRUNCATE {t}"), Some(11), "count(*)", json!([[0]])),
        ] {
            let answer = acme.json(writing(&sql)).await;
            let write = &answer["write"];
            assert_eq!((&write["state"], &write["attempts"]), (&json!("made"), &json!(1)), "{sql}: {answer}");
            assert_eq!(write["rows_affected"].as_u64(), affected, "{sql}: {answer}");
            let change = &write["changes"][0];
            assert_eq!((&change["schema"], &change["table"]), (&json!("datasets"), &json!(format!("f{version}"))), "{sql}");
            if let Some(id) = change["snapshot_id"].as_str() {
                assert_eq!(change["previous_snapshot_id"].as_str(), last.as_deref(), "{sql}: {answer}");
                last = Some(id.to_owned());
            }
            assert_eq!(affected.is_some(), change["snapshot_id"].is_string(), "{sql}: {answer}");
            // The next statement of a reader sees it.
            assert_eq!(acme.rows(&format!("SELECT {check} FROM {t}")).await, rows, "after {sql}");
        }
        let answer = acme.json(writing(&format!("ALTER TABLE {t} RENAME TO g{version}"))).await;
        assert_eq!(answer["write"]["changes"][0]["kind"], "rename");
        let answer = acme.json(writing(&format!("DROP TABLE datasets.g{version}"))).await;
        assert_eq!(answer["write"]["changes"][0]["kind"], "drop");
        // A partitioned table, made of a query.
        let p = format!("datasets.p{version}");
        let sql = format!("CREATE TABLE {p} (k INTEGER, day DATE) PARTITIONED BY (k, month(day)) {with}");
        acme.write(&sql).await;
        acme.write(&format!(
            "INSERT INTO {p} SELECT i % 3, DATE '2026-01-01' + (i * 20)::INTEGER FROM range(12) r(i)"
        ))
        .await;
        acme.write(&format!("UPDATE {p} SET day = DATE '2026-05-05' WHERE k = 1")).await;
        acme.write(&format!("DELETE FROM {p} WHERE k = 2")).await;
        assert_eq!(
            acme.rows(&format!("SELECT k, count(*) FROM {p} GROUP BY k ORDER BY k")).await,
            json!([[0, 4], [1, 4]])
        );
        let answer = acme.json(writing(&format!("CREATE TABLE datasets.c{version} AS SELECT 1 AS a"))).await;
        assert_eq!(
            (&answer["write"]["changes"][0]["kind"], &answer["write"]["rows_affected"]),
            (&json!("create"), &json!(1))
        );
        let answer =
            acme.json(writing(&format!("ALTER TABLE datasets.c{version} ALTER a TYPE BIGINT"))).await;
        assert_eq!(answer["write"]["state"], "made");
        // Nothing to change is no failure.
        let answer = acme.json(writing(&format!("DELETE FROM {p} WHERE k = 99"))).await;
        assert_eq!(
            (&answer["write"]["state"], &answer["write"]["rows_affected"]),
            (&json!("made"), &json!(0))
        );
    }
    let answer = acme
        .post(&json!({"sql": "INSERT INTO datasets.p2 VALUES (1, DATE '2026-01-01')", "allow_writes": true}))
        .await;
    let header: Value = serde_json::from_str(answer.headers()["x-write"].to_str().unwrap()).unwrap();
    assert_eq!((&header["state"], &header["changes"][0]["table"]), (&json!("made"), &json!("p2")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_before_a_file_is_written() {
    let governed = Governed::start().await;
    let acme = &governed.world.acme;
    acme.write("CREATE TABLE datasets.t AS SELECT 1 AS a, 'x' AS b").await;
    let before = governed.world.stored();
    for sql in [
        "CREATE OR REPLACE TABLE datasets.t AS SELECT 2 AS a",
        "CREATE VIEW datasets.v AS SELECT 1",
        "CREATE TABLE datasets.k (a INTEGER PRIMARY KEY)",
        "INSERT INTO datasets.t VALUES (1, 'y') ON CONFLICT DO NOTHING",
        "INSERT OR IGNORE INTO datasets.t VALUES (1, 'y')",
        "INSERT INTO datasets.t VALUES (1, 'y') RETURNING a",
        "UPDATE datasets.t SET a = 2 RETURNING a",
        "DELETE FROM datasets.t RETURNING a",
        "ALTER TABLE datasets.t ALTER COLUMN a SET NOT NULL",
        "ALTER TABLE datasets.t ADD COLUMN c INTEGER DEFAULT 4",
    ] {
        let said = acme.problem(&writing(sql)).await;
        assert_eq!(said.code, Code::NotSupported, "{sql}: {}", said.detail);
        assert_eq!(governed.world.stored(), before, "{sql}");
    }
    assert_eq!(acme.rows("SELECT a, b FROM datasets.t").await, json!([[1, "x"]]));
    // What is there, or is still in something, is no conflict that could be waited for.
    assert_eq!(code(acme, "CREATE TABLE datasets.t (a INTEGER)").await, Some(Code::SqlBinding));
    assert_eq!(code(acme, "DROP SCHEMA datasets").await, Some(Code::SqlRuntime));
}

/// A request of several statements.
fn together(statements: &[&str]) -> Value {
    json!({"statements": statements, "format": "json", "allow_writes": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn several_statements_are_made_together_or_not_at_all() {
    let governed = Governed::start().await;
    let acme = &governed.world.acme;
    for table in ["a", "b"] {
        acme.write(&format!("CREATE TABLE datasets.{table} AS SELECT 1 AS k")).await;
    }
    let sums = async || {
        acme.rows("SELECT (SELECT sum(k)::INTEGER FROM datasets.a), (SELECT sum(k)::INTEGER FROM datasets.b)")
            .await
    };
    let answer = acme
        .json(together(&[
            "INSERT INTO datasets.a VALUES (10)",
            "UPDATE datasets.b SET k = 5",
            "INSERT INTO datasets.a VALUES (100)",
            "SELECT (SELECT sum(k)::INTEGER FROM datasets.a), (SELECT k FROM datasets.b)",
        ]))
        .await;
    // The answer is the last one's, and sees those before it.
    assert_eq!(answer["rows"], json!([[111, 5]]));
    assert_eq!((&answer["write"]["state"], &answer["write"]["rows_affected"]), (&json!("made"), &json!(3)));
    let changed: Vec<&str> =
        answer["write"]["changes"].as_array().unwrap().iter().map(|c| c["table"].as_str().unwrap()).collect();
    assert_eq!(
        {
            let mut c = changed.clone();
            c.sort_unstable();
            c.dedup();
            c
        },
        ["a", "b"]
    );
    assert_eq!(sums().await, json!([[111, 5]]));
    // One that fails takes all with it.
    let said = acme
        .problem(&together(&[
            "INSERT INTO datasets.a VALUES (1000)",
            "UPDATE datasets.b SET k = 9",
            "SELECT error('no')",
        ]))
        .await;
    assert_eq!((said.code, said.write.unwrap().state), (Code::SqlRuntime, WriteState::NotMade));
    assert!(said.detail.starts_with("Statement 3: "), "{}", said.detail);
    assert_eq!(sums().await, json!([[111, 5]]));
    // A table that is made and filled is one change; what the catalog makes one by one is not made together.
    acme.json(together(&["CREATE TABLE datasets.c (k INTEGER)", "INSERT INTO datasets.c VALUES (1), (2)"]))
        .await;
    assert_eq!(acme.rows("SELECT count(*) FROM datasets.c").await, json!([[2]]));
    for apart in [
        ["DROP TABLE datasets.c", "INSERT INTO datasets.a VALUES (1000)"],
        ["CREATE TABLE datasets.d AS SELECT 1 AS k", "INSERT INTO datasets.a VALUES (1000)"],
        ["ALTER TABLE datasets.c RENAME TO d", "INSERT INTO datasets.a VALUES (1000)"],
        ["CREATE SCHEMA more", "CREATE TABLE more.d (k INTEGER)"],
    ] {
        let said = acme.problem(&together(&apart)).await;
        assert_eq!(said.code, Code::NotSupported, "{apart:?}: {}", said.detail);
    }
    assert_eq!(sums().await, json!([[111, 5]]));
    // One that is no statement, or does what none may, is told before any is begun.
    for (statements, expected) in [
        (vec!["INSERT INTO datasets.a VALUES (1)", "COMMIT"], Code::StatementRefused),
        (vec!["INSERT INTO datasets.a VALUES (1)", "SELECT 1; SELECT 2"], Code::MultipleStatements),
        (vec!["INSERT INTO datasets.a VALUES (1)", " "], Code::EmptyStatement),
        (vec!["SELEC 1", "SELECT 1"], Code::SqlSyntax),
    ] {
        let said = acme.problem(&together(&statements)).await;
        assert_eq!(said.code, expected, "{statements:?}: {}", said.detail);
        assert_eq!(sums().await, json!([[111, 5]]));
    }
    let both = json!({"sql": "SELECT 1", "statements": ["SELECT 1"]});
    assert_eq!(acme.problem(&both).await.code, Code::InvalidRequest);
    // A reader's statements see one state of the tables.
    let read = json!({"statements": ["CREATE TEMP TABLE x AS SELECT sum(k)::INTEGER AS k FROM datasets.a", "SELECT k FROM x"], "format": "json"});
    assert_eq!(acme.json(read).await["rows"], json!([[111]]));
    let said = acme.problem(&json!({"statements": ["INSERT INTO datasets.a VALUES (1)", "SELECT 1"]})).await;
    assert_eq!(said.code, Code::ReadOnly);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_whose_engine_is_killed_in_the_middle_changes_nothing() {
    let governed = Governed::start().await;
    let (world, acme) = (&governed.world, governed.world.acme.clone());
    for table in ["a", "b"] {
        acme.write(&format!("CREATE TABLE datasets.{table} AS SELECT 1 AS k")).await;
    }
    let files = world.stored().len();
    let long = "SELECT count(*) FROM range(100000000000) t(i) WHERE hash(i) = 7";
    let running = {
        let acme = acme.clone();
        let body = together(&[
            "INSERT INTO datasets.a SELECT i FROM range(1000000) t(i)",
            "INSERT INTO datasets.b VALUES (2)",
            long,
        ]);
        tokio::spawn(async move { acme.post(&body).await })
    };
    // Its files are there, and nothing of it is committed.
    crate::world::until("the first files are written", || world.stored().len() > files).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for pid in world.workers() {
        crate::world::kill(pid, rustix::process::Signal::KILL);
    }
    let said: Problem = problem(running.await.unwrap()).await;
    assert_eq!(
        (said.code, said.write.unwrap().state),
        (Code::EngineLost, WriteState::NotMade),
        "{}",
        said.detail
    );
    let sums = acme
        .rows("SELECT (SELECT sum(k)::INTEGER FROM datasets.a), (SELECT sum(k)::INTEGER FROM datasets.b)")
        .await;
    assert_eq!(sums, json!([[1, 1]]));
}
