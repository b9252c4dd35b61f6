//! No row lost: whatever becomes of the catalog's answer to a change, what is said of the statement is true, and the table is
//! whole afterwards: for its own server, for another one, and for PyIceberg.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use duck_contract::query::WriteState;
use duck_contract::{Code, Problem};
use serde_json::{Value, json};

use crate::lossy::{Loss, Lossy};
use crate::world::{Organisation, Process, World, problem, python, read_toml, set, until};

/// Two servers on one store and one catalog. Between the second and the catalog something loses answers.
pub struct Rig {
    pub world: World,
    pub lossy: Lossy,
    /// Acme at the second server.
    pub acme: Organisation,
    ledger: PathBuf,
    log: PathBuf,
    server: Process,
}

impl Rig {
    /// With so much time for the second server to settle a change.
    pub async fn start(settle_ms_max: u64) -> Rig {
        let world = World::start(&[]).await;
        let lossy = Lossy::before(&world.catalog_url).await;
        let (file, ledger) = (world.dir.join("second.toml"), world.dir.join("second-deletes.jsonl"));
        let mut written = read_toml(&world.dir.join("duck-server.toml"));
        set(&mut written, "", "listen", "'127.0.0.1:0'");
        set(&mut written, "catalog", "settle_ms_max", &settle_ms_max.to_string());
        set(&mut written, "catalog", "attempt_ms_max", "2_000");
        set(&mut written, "storage", "ledger_path", &format!("'{}'", ledger.display()));
        std::fs::write(&file, written.to_string()).unwrap();
        let oauth2_uri = format!("{}/v1/oauth/tokens", lossy.url);
        let environment =
            [("LAKEHOUSE_CATALOG_URI", lossy.url.as_str()), ("LAKEHOUSE_OAUTH2_URI", &oauth2_uri)];
        let arguments = ["serve", "--json", "--config", file.to_str().unwrap()];
        let server = Process::start(&arguments, &environment, world.dir.join("second.log"));
        let line: Value = serde_json::from_str(&server.line).unwrap();
        let acme = Organisation { url: line["url"].as_str().unwrap().to_owned(), ..world.acme.clone() };
        let log = server.log.clone();
        Rig { world, lossy, acme, ledger, log, server }
    }

    /// Makes a table with the rows 1 and 2, past the lossy proxy.
    pub async fn table(&self, name: &str) {
        let sql = format!(
            "CREATE TABLE datasets.{name} AS SELECT i::INTEGER AS k, 'row ' || i AS v FROM range(1, 3) t(i)"
        );
        self.world.acme.write(&sql).await;
    }

    /// The table holds these rows for everybody, and every file that it refers to is there.
    pub async fn holds(&self, name: &str, expected: &[&str]) -> Read {
        self.shows(name, expected).await;
        let read = self.read(&[name]).await.remove(name).unwrap();
        assert_eq!(read.plain_rows(), expected, "{name} for PyIceberg");
        read
    }

    /// The table holds these rows for both servers.
    pub async fn shows(&self, name: &str, expected: &[&str]) {
        let sql = format!("SELECT k || ' ' || v FROM datasets.{name} ORDER BY k");
        let wanted = json!(expected.iter().map(|row| [row]).collect::<Vec<_>>());
        assert_eq!(self.world.acme.rows(&sql).await, wanted, "{name} at the first server");
        assert_eq!(self.acme.rows(&sql).await, wanted, "{name} at the second server");
    }

    /// What PyIceberg finds in each table. Fails when a file is missing.
    async fn read(&self, names: &[&str]) -> HashMap<String, Read> {
        let tables: Vec<_> = names.iter().map(|name| format!("datasets.{name}")).collect();
        let read = python(
            "read_table.py",
            &json!({
                "catalog": self.world.catalog_url,
                "token": self.world.catalog_token().await,
                "warehouse": self.acme.warehouse,
                "store": self.world.dir.join("store"),
                "tables": tables,
            }),
        );
        let read: HashMap<String, Read> = serde_json::from_value(read).unwrap();
        for (name, Read { files, .. }) in &read {
            assert!(files.len() > 2, "{name} refers to too little: {files:?}");
            for file in files {
                let path = self.world.dir.join("store").join(file.strip_prefix("s3://").unwrap());
                assert!(path.is_file(), "{name} refers to {file}, which is gone");
            }
        }
        read.into_iter().map(|(name, read)| (name.trim_start_matches("datasets.").to_owned(), read)).collect()
    }

    /// What the second server's workers wanted deleted; all of it is still there.
    pub fn deferred(&self) -> Vec<String> {
        let Ok(text) = std::fs::read_to_string(&self.ledger) else { return Vec::new() };
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let keys: Vec<String> = lines.map(|line| line["key"].as_str().unwrap().to_owned()).collect();
        for key in &keys {
            assert!(self.world.dir.join("store/lakehouse").join(key).is_file(), "{key} was deleted");
        }
        keys
    }

    /// The second server's pid.
    pub fn pid(&self) -> i32 {
        self.server.pid()
    }

    pub fn logged(&self, text: &str) -> bool {
        logged(&self.log, text)
    }
}

fn logged(log: &Path, text: &str) -> bool {
    std::fs::read_to_string(log).unwrap().contains(text)
}

/// A table as PyIceberg reads it.
#[derive(serde::Deserialize)]
pub struct Read {
    rows: Vec<Vec<String>>,
    metadata_location: String,
    pub snapshot_id: Option<i64>,
    files: Vec<String>,
}

impl Read {
    fn plain_rows(&self) -> Vec<String> {
        self.rows.iter().map(|row| format!("{} {}", row[0], row[1].trim_matches('\''))).collect()
    }
}

pub fn writing(sql: &str) -> Value {
    json!({"sql": sql, "format": "json", "allow_writes": true})
}

/// An INSERT, a CREATE TABLE AS, an UPDATE and a DELETE, of each of which answers are lost in this way; first before a
/// catalog with idempotency keys, then before one without.
async fn kept(loss: Loss) {
    let rig = Rig::start(30_000).await;
    let mut all = Vec::new();
    let times = if loss == Loss::Late { 1 } else { 2 };
    for keys in ["with", "without"] {
        let name = |kind: &str| format!("{kind}_{keys}_keys");
        let (insert, create, update, delete) =
            (name("insert"), name("create"), name("update"), name("delete"));
        for table in [&insert, &update, &delete] {
            rig.table(table).await;
        }
        let cases = [
            (
                &insert,
                format!("INSERT INTO datasets.{insert} VALUES (3, 'row 3')"),
                vec!["1 row 1", "2 row 2", "3 row 3"],
            ),
            (
                &create,
                format!("CREATE TABLE datasets.{create} AS SELECT 7 AS k, 'row 7' AS v"),
                vec!["7 row 7"],
            ),
            (
                &update,
                format!("UPDATE datasets.{update} SET v = 'changed' WHERE k = 2"),
                vec!["1 row 1", "2 changed"],
            ),
            (&delete, format!("DELETE FROM datasets.{delete} WHERE k = 1"), vec!["2 row 2"]),
        ];
        for (table, sql, expected) in cases {
            match keys {
                "with" => rig.lossy.lose(loss, times),
                _ => rig.lossy.lose_without_keys(loss, times),
            }
            rig.acme.write(&sql).await;
            assert!(rig.lossy.lost() >= 1, "no answer was lost to {sql}");
            rig.lossy.heal();
            rig.shows(table, &expected).await;
            all.push((table.clone(), expected));
        }
    }
    let read = rig.read(&all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>()).await;
    for (name, expected) in all {
        assert_eq!(read[&name].plain_rows(), expected, "{name} for PyIceberg");
    }
    assert!(rig.logged("change unsettled"));
    assert_eq!(rig.deferred(), Vec::<String>::new(), "a statement that succeeded wanted files deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_answer_is_cut_is_kept() {
    kept(Loss::Cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_answer_is_late_is_kept() {
    kept(Loss::Late).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_answered_with_500_is_kept() {
    kept(Loss::Error).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_nobody_can_tell_about_is_said_to_be_unknown_and_nothing_is_deleted() {
    let rig = Rig::start(1_500).await;
    rig.table("t").await;
    rig.acme.rows("SELECT count(*) FROM datasets.t").await;
    rig.lossy.die_at_next_change();
    let said = rig.acme.problem(&writing("INSERT INTO datasets.t VALUES (3, 'row 3')")).await;
    assert_eq!(said.code, Code::CommitUnknown, "{}", said.detail);
    assert_eq!(rig.lossy.lost(), 1);
    rig.lossy.heal();
    // The catalog had made it. DuckDB took its files for useless; they are in the ledger, and in the store.
    let read = rig.holds("t", &["1 row 1", "2 row 2", "3 row 3"]).await;
    let deferred = rig.deferred();
    assert!(
        !deferred.is_empty()
            && deferred.iter().any(|key| read.files.contains(&format!("s3://lakehouse/{key}")))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_that_lost_to_another_is_a_conflict_and_changes_nothing() {
    let rig = Rig::start(30_000).await;
    rig.table("t").await;
    let before = rig.read(&["t"]).await.remove("t").unwrap();
    rig.lossy.hold();
    let acme = rig.acme.clone();
    let body = json!({"sql": "INSERT INTO datasets.t VALUES (3, 'loser')", "format": "json",
                      "allow_writes": true, "on_conflict": "fail"});
    let insert = tokio::spawn(async move { acme.post(&body).await });
    rig.lossy.holding().await;
    rig.world.acme.write("INSERT INTO datasets.t VALUES (4, 'winner')").await;
    let winner = rig.read(&["t"]).await.remove("t").unwrap();
    rig.lossy.release();
    let said: Problem = problem(insert.await.unwrap()).await;
    assert_eq!(said.code, Code::CommitConflict, "{}", said.detail);
    // It says which table, on what the statement was based and what is there now.
    for part in
        ["datasets.t", &before.snapshot_id.unwrap().to_string(), &winner.snapshot_id.unwrap().to_string()]
    {
        assert!(said.detail.contains(part), "{part} is missing in: {}", said.detail);
    }
    assert_eq!(said.write.unwrap().state, WriteState::NotMade);
    let read = rig.holds("t", &["1 row 1", "2 row 2", "4 winner"]).await;
    assert_eq!(read.metadata_location, winner.metadata_location);
    // The loser's files are candidates, and none of them is the table's.
    let deferred = rig.deferred();
    assert!(!deferred.is_empty());
    assert!(deferred.iter().all(|key| !read.files.contains(&format!("s3://lakehouse/{key}"))));
    // Said again, it is kept.
    rig.acme.write("INSERT INTO datasets.t VALUES (3, 'again')").await;
    rig.holds("t", &["1 row 1", "2 row 2", "3 again", "4 winner"]).await;
}

/// What becomes of a statement when another one has committed between its reading and its commit: its answer, or what was said.
async fn beaten(rig: &Rig, sql: &str, on_conflict: &str) -> Result<Value, Problem> {
    rig.lossy.hold();
    let (acme, body) = (
        rig.acme.clone(),
        json!({"sql": sql, "format": "json", "allow_writes": true, "on_conflict": on_conflict}),
    );
    let loser = tokio::spawn(async move { acme.post(&body).await });
    rig.lossy.holding().await;
    rig.world.acme.write("INSERT INTO datasets.t VALUES (4, 'winner')").await;
    rig.lossy.release();
    let answer = loser.await.unwrap();
    if answer.status() == 200 { Ok(answer.json().await.unwrap()) } else { Err(problem(answer).await) }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_is_run_again_and_anything_else_only_when_asked_to() {
    let rig = Rig::start(30_000).await;
    rig.table("t").await;
    let answer =
        beaten(&rig, "INSERT INTO datasets.t VALUES (3, 'appended')", "retry_appends").await.unwrap();
    assert_eq!((&answer["write"]["attempts"], &answer["write"]["rows_affected"]), (&json!(2), &json!(1)));
    rig.holds("t", &["1 row 1", "2 row 2", "3 appended", "4 winner"]).await;
    // What reads the table means something else on what the other one has made of it.
    for sql in [
        "UPDATE datasets.t SET v = 'mine' WHERE k = 1",
        "INSERT INTO datasets.t SELECT max(k) + 10, 'next' FROM datasets.t",
        "DELETE FROM datasets.t WHERE k = 1",
    ] {
        let said = beaten(&rig, sql, "retry_appends").await.unwrap_err();
        assert_eq!(said.code, Code::CommitConflict, "{sql}: {}", said.detail);
    }
    let answer = beaten(&rig, "DELETE FROM datasets.t WHERE v = 'winner'", "retry").await.unwrap();
    // The three of the failed attempts, the first one's, and the one that it met.
    assert_eq!((&answer["write"]["attempts"], &answer["write"]["rows_affected"]), (&json!(2), &json!(5)));
    rig.holds("t", &["1 row 1", "2 row 2", "3 appended"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_of_a_commit_breaks_nothing() {
    let rig = Rig::start(30_000).await;
    rig.table("t").await;
    rig.lossy.lose(Loss::Cut, 1);
    rig.lossy.hold();
    let acme = rig.acme.clone();
    let insert =
        tokio::spawn(async move { acme.post(&writing("INSERT INTO datasets.t VALUES (3, 'row 3')")).await });
    rig.lossy.holding().await;
    insert.abort();
    // The statement cannot stop while it waits for the catalog, so its worker is ended. The commit goes on.
    until("the worker is ended", || rig.logged("its worker is ended")).await;
    rig.lossy.release();
    until("the commit is settled", || rig.logged("change settled")).await;
    assert_eq!(rig.lossy.lost(), 1);
    rig.lossy.heal();
    rig.holds("t", &["1 row 1", "2 row 2", "3 row 3"]).await;
    rig.deferred();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_that_fails_midway_leaves_the_table_as_it_was() {
    let rig = Rig::start(30_000).await;
    rig.table("t").await;
    let before = rig.read(&["t"]).await.remove("t").unwrap();
    let sql = "INSERT INTO datasets.t
               SELECT CASE WHEN i = 1_500_000 THEN error('enough') ELSE i END::INTEGER, 'row ' || i FROM range(2_000_000) t(i)";
    let said = rig.acme.problem(&writing(sql)).await;
    assert_eq!(said.code, Code::SqlRuntime, "{}", said.detail);
    let after = rig.holds("t", &["1 row 1", "2 row 2"]).await;
    assert_eq!((after.metadata_location, after.snapshot_id), (before.metadata_location, before.snapshot_id));
    rig.deferred();
    rig.acme.write("INSERT INTO datasets.t VALUES (3, 'row 3')").await;
    rig.holds("t", &["1 row 1", "2 row 2", "3 row 3"]).await;
}
