//! How tests make a day's worth of failures, run `duck-server maintain`, and find out by themselves what is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use duck_contract::Code;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::lossy::Lossy;
use crate::world::{Organisation, Process, World, kill, python, read_toml, set, until};
use crate::writers::Second;

const DAY: Duration = Duration::from_hours(24);

/// What a run has said.
#[derive(Debug)]
pub struct Told {
    pub success: bool,
    pub lines: Vec<Value>,
    pub error: String,
}

impl Told {
    pub fn of(&self, kind: &str) -> Vec<&Value> {
        self.lines.iter().filter(|line| line["kind"] == kind).collect()
    }

    pub fn one(&self, kind: &str) -> &Value {
        let [one] = self.of(kind)[..] else { panic!("{kind}: {self:?}") };
        one
    }

    pub fn table(&self, name: &str) -> &Value {
        self.of("table").into_iter().find(|line| line["table"] == name).unwrap_or_else(|| panic!("{self:?}"))
    }

    /// The keys that it named as orphans.
    pub fn orphans(&self) -> BTreeSet<String> {
        self.of("orphan").iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect()
    }
}

pub fn command(file: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duck-server"));
    command.args(["maintain", "--json", "--config", file.to_str().unwrap()]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn run(file: &Path, arguments: &[&str]) -> Told {
    run_in(file, arguments, &[]).await
}

pub async fn run_in(file: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Told {
    let mut command = command(file, arguments);
    command.envs(environment.iter().copied());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Told {
        success: output.status.success(),
        lines: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

impl World {
    pub fn settings(&self) -> PathBuf {
        self.dir.join("duck-server.toml")
    }

    pub async fn maintain(&self, arguments: &[&str]) -> Told {
        run(&self.settings(), arguments).await
    }

    pub fn path_of(&self, key: &str) -> PathBuf {
        self.dir.join("store/lakehouse").join(key)
    }

    pub fn stored_of(&self, who: &Organisation) -> BTreeSet<String> {
        let prefix = format!("{}/", who.warehouse);
        self.stored().into_iter().filter(|key| key.starts_with(&prefix)).collect()
    }

    /// Makes everything in the store a day and an hour old, and all lines of the ledgers older.
    pub fn a_day_passes(&self) {
        self.stored().iter().for_each(|key| self.ages(key));
        for ledger in ["deferred-deletes.jsonl", "second-deletes.jsonl"].map(|name| self.dir.join(name)) {
            let Ok(text) = std::fs::read_to_string(&ledger) else { continue };
            let aged = text.lines().map(|line| {
                let mut line: Value = serde_json::from_str(line).unwrap();
                line["at"] = json!("2026-01-01T00:00:00.000Z");
                format!("{line}\n")
            });
            std::fs::write(ledger, aged.collect::<String>()).unwrap();
        }
    }

    pub fn ages(&self, key: &str) {
        let old = SystemTime::now() - DAY - Duration::from_hours(1);
        // A file that is being written may have got its name by now, or be gone.
        if let Ok(file) = std::fs::File::options().append(true).open(self.path_of(key)) {
            file.set_modified(old).unwrap();
        }
    }

    pub fn plants_all<'k>(&self, keys: impl IntoIterator<Item = &'k String>) {
        for key in keys {
            self.plants(key);
        }
    }

    pub fn plants(&self, key: &str) {
        let path = self.path_of(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "planted").unwrap();
        self.ages(key);
    }

    /// Each table with its rows, and every file that any of its snapshots needs, as PyIceberg finds them.
    pub async fn read(&self, who: &Organisation) -> BTreeMap<String, Read> {
        let tables = self.tables(who).await;
        let ask = json!({
            "catalog": self.catalog_url,
            "token": self.catalog_token().await,
            "warehouse": who.warehouse,
            "store": self.dir.join("store"),
            "tables": tables,
        });
        let read = tokio::task::spawn_blocking(move || python("read_table.py", &ask)).await.unwrap();
        serde_json::from_value(read).unwrap()
    }

    async fn tables(&self, who: &Organisation) -> Vec<String> {
        let ask = self.http.get(format!("{}/tables", who.url)).bearer_auth(&who.token);
        let tables: Value = ask.send().await.unwrap().json().await.unwrap();
        let tables = tables["tables"].as_array().unwrap().iter();
        tables.map(|t| format!("{}.{}", t["schema"].as_str().unwrap(), t["name"].as_str().unwrap())).collect()
    }

    /// What the catalog says of a table.
    pub async fn metadata(&self, who: &Organisation, table: &str) -> Value {
        let prefix = self.prefix(&who.warehouse).await;
        self.catalog(&format!("/v1/{prefix}/namespaces/datasets/tables/{table}")).await["metadata"].clone()
    }

    /// The key of the folder in which a table lies.
    pub async fn folder(&self, who: &Organisation, table: &str) -> String {
        let location = self.metadata(who, table).await["location"].as_str().unwrap().to_owned();
        location.strip_prefix("s3://lakehouse/").unwrap().to_owned()
    }

    /// Commits to a table past the doors, as another engine would.
    pub async fn commit(&self, who: &Organisation, table: &str, update: Value) {
        let prefix = self.prefix(&who.warehouse).await;
        let url = format!("{}/v1/{prefix}/namespaces/datasets/tables/{table}", self.catalog_url);
        let body = json!({"requirements": [], "updates": [update]});
        let ask = self.http.post(url).bearer_auth(self.catalog_token().await).json(&body);
        let answer = ask.send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }
}

/// A table as PyIceberg reads it.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Read {
    pub rows: Vec<Vec<String>>,
    pub files: Vec<String>,
    pub log: Vec<String>,
}

pub fn key(file: &str) -> String {
    file.strip_prefix("s3://lakehouse/").unwrap().to_owned()
}

pub fn needed(read: &BTreeMap<String, Read>) -> BTreeSet<String> {
    read.values().flat_map(|table| table.files.iter().chain(&table.log)).map(|file| key(file)).collect()
}

pub fn writing(sql: &str) -> Value {
    json!({"sql": sql, "format": "json", "allow_writes": true})
}

/// Starts a statement that writes for long, and kills its engine when its first file is there.
async fn killed_while_writing(world: &World, sql: &str) {
    let before = world.stored_of(&world.acme).len();
    let (acme, body) = (world.acme.clone(), writing(sql));
    let statement = tokio::spawn(async move { acme.post(&body).await.status() });
    until("it writes", || world.stored_of(&world.acme).len() > before).await;
    world.workers().into_iter().for_each(|pid| kill(pid, Signal::KILL));
    assert!(!statement.await.unwrap().is_success());
}

const LONG: &str = "SELECT i AS k, md5(i::VARCHAR) || md5((i + 1)::VARCHAR) AS v FROM range(20_000_000) t(i)";

/// A day's worth of failures, made in a minute. What they leave is not told.
pub async fn a_bad_day(world: &World) {
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.plain AS SELECT i AS k, 'row ' || i AS v FROM range(1_000) t(i)").await;
    acme.write("CREATE TABLE datasets.three (k BIGINT, v VARCHAR) WITH ('format-version' = '3')").await;
    acme.write("CREATE TABLE datasets.parted (k BIGINT, v VARCHAR) PARTITIONED BY (v)").await;
    for table in ["three", "plain"] {
        acme.write(&format!("INSERT INTO datasets.{table} SELECT i, 'more ' || i FROM range(500) t(i)"))
            .await;
        acme.write(&format!("DELETE FROM datasets.{table} WHERE k % 7 = 0")).await;
        acme.write(&format!("DELETE FROM datasets.{table} WHERE k % 11 = 0")).await;
        acme.write(&format!("UPDATE datasets.{table} SET v = 'changed' WHERE k = 5")).await;
    }
    let values = "(1, 'a/b=c%d é'), (2, 'x y'), (3, NULL), (4, '%2F'), (5, ''), (6, '..')";
    acme.write(&format!("INSERT INTO datasets.parted VALUES {values}")).await;
    acme.write("INSERT INTO datasets.parted VALUES (7, 'x y')").await;

    // An INSERT that fails after its first file; engines that are killed while they write; a table that is dropped.
    let failing = "INSERT INTO datasets.plain SELECT CASE WHEN i = 1_500_000 THEN error('enough') ELSE i END, 'row ' || i
                   FROM range(2_000_000) t(i)";
    assert_eq!(acme.problem(&writing(failing)).await.code, Code::SqlRuntime);
    killed_while_writing(world, &format!("INSERT INTO datasets.plain {LONG}")).await;
    killed_while_writing(world, &format!("CREATE TABLE datasets.never AS {LONG}")).await;
    acme.write("CREATE TABLE datasets.gone AS SELECT 1 AS k").await;
    acme.write("DROP TABLE datasets.gone").await;

    // Snapshots that expire: the oldest.
    let mut snapshots = world.metadata(acme, "plain").await["snapshots"].as_array().unwrap().clone();
    snapshots.sort_by_key(|snapshot| snapshot["sequence-number"].as_i64());
    let ids: Vec<_> = snapshots[..3].iter().map(|snapshot| snapshot["snapshot-id"].clone()).collect();
    world.commit(acme, "plain", json!({"action": "remove-snapshots", "snapshot-ids": ids})).await;

    // Commits that lose to others: writers of one server take turns, so they are another's.
    let second = Second::beside(world, &[]);
    let mut outcomes = Vec::new();
    while !(outcomes.contains(&200) && outcomes.contains(&409)) {
        assert!(outcomes.len() < 100, "{outcomes:?}");
        let inserts = [acme, &second.acme].into_iter().cycle().take(8).map(|who| async move {
            let mut body = writing("INSERT INTO datasets.plain VALUES (10_000, 'at once')");
            body["on_conflict"] = json!("fail");
            who.post(&body).await.status().as_u16()
        });
        outcomes.extend(futures::future::join_all(inserts).await);
    }
}

/// A second server, whose commits nobody hears of. Its engines want files deleted that are in use.
pub async fn commits_that_nobody_hears_of(world: &World) -> PathBuf {
    let lossy = Lossy::before(&world.catalog_url).await;
    let (file, ledger) = (world.dir.join("second.toml"), world.dir.join("second-deletes.jsonl"));
    let mut written = read_toml(&world.settings());
    set(&mut written, "", "listen", "'127.0.0.1:0'");
    set(&mut written, "catalog", "settle_ms_max", "1_500");
    set(&mut written, "catalog", "attempt_ms_max", "1_000");
    set(&mut written, "storage", "ledger_path", &format!("'{}'", ledger.display()));
    std::fs::write(&file, written.to_string()).unwrap();
    let oauth2_uri = format!("{}/v1/oauth/tokens", lossy.url);
    let environment = [("LAKEHOUSE_CATALOG_URI", lossy.url.as_str()), ("LAKEHOUSE_OAUTH2_URI", &oauth2_uri)];
    let arguments = ["serve", "--json", "--config", file.to_str().unwrap()];
    let server = Process::start(&arguments, &environment, world.dir.join("second.log"));
    let line: Value = serde_json::from_str(&server.line).unwrap();
    let acme = Organisation { url: line["url"].as_str().unwrap().to_owned(), ..world.acme.clone() };
    acme.rows("SELECT count(*) FROM datasets.plain").await;
    for row in [20_001, 20_002] {
        lossy.die_at_next_change();
        let said =
            acme.problem(&writing(&format!("INSERT INTO datasets.plain VALUES ({row}, 'unheard')"))).await;
        assert_eq!(said.code, Code::CommitUnknown, "{}", said.detail);
        lossy.heal();
    }
    ledger
}
