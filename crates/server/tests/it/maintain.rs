//! What nobody needs is found and goes, and nothing else: after a day of failures, beside writers, and when the run is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use duck_contract::Code;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::lossy::Lossy;
use crate::world::{Organisation, Process, World, kill, python, read_toml, set, until};

const DAY: Duration = Duration::from_hours(24);

/// What a run has said.
#[derive(Debug)]
struct Told {
    success: bool,
    lines: Vec<Value>,
    error: String,
}

impl Told {
    fn of(&self, kind: &str) -> Vec<&Value> {
        self.lines.iter().filter(|line| line["kind"] == kind).collect()
    }

    fn one(&self, kind: &str) -> &Value {
        let [one] = self.of(kind)[..] else { panic!("{kind}: {self:?}") };
        one
    }

    fn table(&self, name: &str) -> &Value {
        self.of("table").into_iter().find(|line| line["table"] == name).unwrap_or_else(|| panic!("{self:?}"))
    }

    /// The keys that it named as orphans.
    fn orphans(&self) -> BTreeSet<String> {
        self.of("orphan").iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect()
    }
}

fn command(file: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duck-server"));
    command.args(["maintain", "--json", "--config", file.to_str().unwrap()]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn run(file: &Path, arguments: &[&str]) -> Told {
    let mut command = command(file, arguments);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Told {
        success: output.status.success(),
        lines: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

impl World {
    fn settings(&self) -> PathBuf {
        self.dir.join("duck-server.toml")
    }

    async fn maintain(&self, arguments: &[&str]) -> Told {
        run(&self.settings(), arguments).await
    }

    fn path_of(&self, key: &str) -> PathBuf {
        self.dir.join("store/lakehouse").join(key)
    }

    fn stored_of(&self, who: &Organisation) -> BTreeSet<String> {
        let prefix = format!("{}/", who.warehouse);
        self.stored().into_iter().filter(|key| key.starts_with(&prefix)).collect()
    }

    /// Makes everything in the store a day and an hour old, and all lines of the ledgers older.
    fn a_day_passes(&self) {
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

    fn ages(&self, key: &str) {
        let old = SystemTime::now() - DAY - Duration::from_hours(1);
        // A file that is being written may have got its name by now, or be gone.
        if let Ok(file) = std::fs::File::options().append(true).open(self.path_of(key)) {
            file.set_modified(old).unwrap();
        }
    }

    fn plants(&self, key: &str) {
        let path = self.path_of(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "planted").unwrap();
        self.ages(key);
    }

    /// Each table with its rows, and every file that any of its snapshots needs, as PyIceberg finds them.
    async fn read(&self, who: &Organisation) -> BTreeMap<String, Read> {
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
    async fn metadata(&self, who: &Organisation, table: &str) -> Value {
        let prefix = self.prefix(&who.warehouse).await;
        self.catalog(&format!("/v1/{prefix}/namespaces/datasets/tables/{table}")).await["metadata"].clone()
    }

    /// The key of the folder in which a table lies.
    async fn folder(&self, who: &Organisation, table: &str) -> String {
        let location = self.metadata(who, table).await["location"].as_str().unwrap().to_owned();
        location.strip_prefix("s3://lakehouse/").unwrap().to_owned()
    }

    /// Commits to a table past the doors, as another engine would.
    async fn commit(&self, who: &Organisation, table: &str, update: Value) {
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
struct Read {
    rows: Vec<Vec<String>>,
    files: Vec<String>,
    log: Vec<String>,
}

fn key(file: &str) -> String {
    file.strip_prefix("s3://lakehouse/").unwrap().to_owned()
}

fn needed(read: &BTreeMap<String, Read>) -> BTreeSet<String> {
    read.values().flat_map(|table| table.files.iter().chain(&table.log)).map(|file| key(file)).collect()
}

fn writing(sql: &str) -> Value {
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
async fn a_bad_day(world: &World) {
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

    // Commits that lose to others.
    let inserts = (0..8).map(|n| {
        let body = writing(&format!("INSERT INTO datasets.plain VALUES ({n} + 10_000, 'at once')"));
        async move { acme.post(&body).await.status().as_u16() }
    });
    let outcomes = futures::future::join_all(inserts).await;
    assert!(outcomes.contains(&200) && outcomes.contains(&409), "{outcomes:?}");

    // Snapshots that expire.
    let snapshots = world.metadata(acme, "plain").await["snapshots"].as_array().unwrap().clone();
    let ids: Vec<_> = snapshots[..3].iter().map(|snapshot| snapshot["snapshot-id"].clone()).collect();
    world.commit(acme, "plain", json!({"action": "remove-snapshots", "snapshot-ids": ids})).await;
}

/// A second server, whose commits nobody hears of. Its engines want files deleted that are in use.
async fn commits_that_nobody_hears_of(world: &World) -> PathBuf {
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

#[tokio::test(flavor = "multi_thread")]
async fn after_a_bad_day_every_orphan_is_found_and_every_live_file_kept() {
    let world = World::start(&[]).await;
    a_bad_day(&world).await;
    let ledger = commits_that_nobody_hears_of(&world).await;
    let (acme, other) = (world.acme.warehouse.clone(), world.stored_of(&world.globex));
    let table = world.folder(&world.acme, "plain").await;
    let anybodys =
        [format!("{acme}/files/a.csv"), format!("{acme}/files/data/a.parquet"), format!("{table}/notes.txt")];
    anybodys.iter().for_each(|key| world.plants(key));

    // Young, nothing may go, whatever it is.
    let arguments = ["--warehouse", &acme, "--ledger", ledger.to_str().unwrap(), "--list"];
    let young = world.maintain(&arguments).await;
    assert!(young.success && young.orphans().is_empty(), "{young:?}");
    world.a_day_passes();

    // PyIceberg's word for what is needed, and the table's folders from the catalog.
    let read = world.read(&world.acme).await;
    let (needed, stored) = (needed(&read), world.stored_of(&world.acme));
    assert!(needed.is_subset(&stored), "missing: {:?}", needed.difference(&stored));
    let mut folders = Vec::new();
    for name in read.keys() {
        folders
            .push(format!("{}/", world.folder(&world.acme, name.strip_prefix("datasets.").unwrap()).await));
    }
    let in_a_table = |key: &&String| folders.iter().any(|folder| key.starts_with(folder.as_str()));
    let orphans: BTreeSet<_> = stored
        .difference(&needed)
        .filter(in_a_table)
        .filter(|key| !anybodys.contains(key))
        .cloned()
        .collect();
    let strays: BTreeSet<_> =
        stored.iter().filter(|key| !in_a_table(key) && !anybodys.contains(key)).cloned().collect();
    assert!(orphans.len() > 10 && strays.len() > 4, "{} orphans, {} strays", orphans.len(), strays.len());
    let of_kind = |kind: &str| orphans.iter().any(|key| key.ends_with(kind));
    assert!(of_kind(".parquet") && of_kind("-m0.avro"), "{orphans:?}");

    let dry = world.maintain(&arguments).await;
    assert!(dry.success, "{}", dry.error);
    assert_eq!(dry.orphans(), orphans);
    assert_eq!(world.stored_of(&world.acme), stored, "a dry run removes nothing");
    let found = dry.one("warehouse");
    assert_eq!(
        (&found["folders"]["dropped"], &found["folders"]["unfinished"]),
        (&json!(1), &json!(1)),
        "{found}"
    );
    assert!(found["saved"].as_u64().unwrap() >= 2, "files that an engine wanted deleted are in use: {found}");

    let removed = world.maintain(&[&arguments[..], &["--remove"]].concat()).await;
    assert!(removed.success, "{}", removed.error);
    assert_eq!(removed.one("summary")["removed"], json!(orphans.len()));
    assert_eq!(world.stored_of(&world.acme), &stored - &orphans);
    assert!(removed.one("summary")["settled"].as_u64().unwrap() > 0);
    assert!(std::fs::read_to_string(&ledger).unwrap().is_empty());

    let dropped = world.maintain(&[&arguments[..], &["--remove", "--dropped"]].concat()).await;
    assert!(dropped.success, "{}", dropped.error);
    assert_eq!(world.stored_of(&world.acme), &(&stored - &orphans) - &strays);

    // Every table is what it was, for PyIceberg, for an engine that has never read it, and in its past.
    let after = world.read(&world.acme).await;
    for (name, before) in &read {
        assert_eq!(after[name].rows, before.rows, "{name}");
        assert_eq!(after[name].files, before.files, "{name}");
    }
    world.workers().into_iter().for_each(|pid| kill(pid, Signal::KILL));
    tokio::time::sleep(Duration::from_millis(300)).await;
    for (name, before) in &read {
        let count = world.acme.rows(&format!("SELECT count(*) FROM {name}")).await;
        assert_eq!(count, json!([[before.rows.len()]]), "{name}");
    }
    for snapshot in world.metadata(&world.acme, "three").await["snapshots"].as_array().unwrap() {
        let id = &snapshot["snapshot-id"];
        world.acme.rows(&format!("SELECT count(*), max(v) FROM datasets.three AT (VERSION => {id})")).await;
    }
    assert_eq!(world.stored_of(&world.globex), other, "the other warehouse");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_counts_manifests_and_small_files() {
    let world = World::start(&[]).await;
    world.acme.write("CREATE TABLE datasets.often (k INTEGER)").await;
    for n in 0..5 {
        world.acme.write(&format!("INSERT INTO datasets.often VALUES ({n})")).await;
    }
    world.acme.write("DELETE FROM datasets.often WHERE k = 0").await;
    let told = world.maintain(&["--all"]).await;
    let often = told.table("datasets.often");
    let counts =
        ["snapshots", "manifests", "data_files", "small_files"].map(|name| often[name].as_u64().unwrap());
    assert_eq!(counts, [6, 6, 5, 5], "{often}");
    assert_eq!((&often["delete_files"], &often["missing"]), (&json!(1), &json!(0)), "{often}");
    let names: BTreeSet<_> =
        told.of("warehouse").iter().map(|w| w["warehouse"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, BTreeSet::from([world.acme.warehouse.clone(), world.globex.warehouse.clone()]));
}

/// Each writer's files are made a day old as soon as its commit is answered: a run that has read the table's metadata before,
/// and lists the files after, sees old files that nothing it has read refers to.
#[tokio::test(flavor = "multi_thread")]
async fn beside_writers_no_row_is_lost() {
    let world = World::start(&[]).await;
    let folders = futures::future::join_all((0..3).map(|n| {
        let world = &world;
        async move {
            world.acme.write(&format!("CREATE TABLE datasets.w{n} (k INTEGER)")).await;
            world.folder(&world.acme, &format!("w{n}")).await
        }
    }))
    .await;
    let done = std::sync::atomic::AtomicBool::new(false);
    let working = || !done.load(std::sync::atomic::Ordering::Relaxed);
    let writer = async |n: usize| {
        let mut rows = 0_u64;
        while working() {
            world.acme.write(&format!("INSERT INTO datasets.w{n} VALUES ({rows})")).await;
            rows += 1;
            let own = world.stored().into_iter().filter(|key| key.starts_with(&folders[n]));
            own.for_each(|key| world.ages(&key));
        }
        rows
    };
    let keeper = async {
        let mut removed = 0;
        for round in 0..25 {
            world.plants(&format!("{}/data/orphan-{round}.parquet", folders[round % 3]));
            let told = world.maintain(&["--warehouse", &world.acme.warehouse, "--remove"]).await;
            assert!(told.success, "{told:?}");
            removed += told.one("summary")["removed"].as_u64().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        removed
    };
    let (removed, written) = tokio::join!(keeper, futures::future::join_all((0..3).map(writer)));
    assert_eq!(removed, 25, "the planted orphans and nothing else");
    let read = world.read(&world.acme).await;
    let (needed, stored) = (needed(&read), world.stored_of(&world.acme));
    assert!(needed.is_subset(&stored), "lost: {:?}", needed.difference(&stored));
    for (n, rows) in written.into_iter().enumerate() {
        assert!(rows > 3, "{rows}");
        assert_eq!(read[&format!("datasets.w{n}")].rows.len() as u64, rows, "w{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_is_written_down_and_the_next_goes_on() {
    let world = World::start(&[("maintain", "requests_max", "1")]).await;
    let folder = world.folder(&world.globex, "sites").await;
    let planted: BTreeSet<_> = (0..3_000).map(|n| format!("{folder}/data/orphan-{n:04}.parquet")).collect();
    planted.iter().for_each(|key| world.plants(key));
    world.a_day_passes();
    let live: BTreeSet<_> = &world.stored_of(&world.globex) - &planted;

    let left = || world.stored_of(&world.globex).len();
    let all = left();
    let mut run = command(&world.settings(), &["--all", "--remove"]).spawn().unwrap();
    until("it removes", || left() < all - 100).await;
    let second = world.maintain(&["--all", "--remove"]).await;
    assert!(!second.success && second.error.contains("another run is at work"), "{second:?}");
    let was_running = run.try_wait().unwrap().is_none();
    run.kill().unwrap();
    run.wait().unwrap();
    let remaining = world.stored_of(&world.globex);
    assert!(was_running && remaining.len() > live.len(), "it was killed in the middle");

    // Whatever is gone was written down before.
    let journal = std::fs::read_to_string(world.dir.join("maintain/removed.jsonl")).unwrap();
    let lines = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let written: BTreeSet<_> = lines.map(|line| line["key"].as_str().unwrap().to_owned()).collect();
    let gone: BTreeSet<_> = planted.difference(&remaining).cloned().collect();
    assert!(gone.is_subset(&written) && live.is_disjoint(&written));
    assert!(live.is_subset(&remaining));

    let next = world.maintain(&["--all", "--remove"]).await;
    let summary = next.one("summary");
    assert!(next.success, "{}", next.error);
    assert_eq!(
        (&summary["skipped"], &summary["warehouses"]),
        (&json!(1), &json!(1)),
        "acme was done: {summary}"
    );
    assert_eq!(summary["removed"], json!(planted.len() - gone.len()));
    assert_eq!(world.stored_of(&world.globex), live);
    let last = world.maintain(&["--all", "--remove"]).await;
    assert_eq!(last.one("summary")["skipped"], json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_or_is_missing_is_told_and_keeps_everything_beside_it() {
    let world = World::start(&[]).await;
    let plain = world.folder(&world.acme, "customers").await;
    let other = world.folder(&world.acme, "ds_toydemo001").await;
    let orphans = [format!("{plain}/data/orphan.parquet"), format!("{other}/data/orphan.parquet")];
    orphans.iter().for_each(|key| world.plants(key));
    world.a_day_passes();
    let stored = world.stored_of(&world.acme);
    let ends = |folder: &str, ending: &str| {
        let mut found = stored.iter().filter(|key| key.starts_with(folder) && key.ends_with(ending));
        world.path_of(found.find(|key| !key.contains("orphan") && !key.contains("snap-")).unwrap())
    };
    let remove = ["--warehouse", &world.acme.warehouse, "--remove"];

    // A manifest that says nothing: what it refers to could be anywhere in the warehouse.
    let manifest = ends(&plain, "-m0.avro");
    let whole = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, &whole[..whole.len() / 2]).unwrap();
    let told = world.maintain(&remove).await;
    assert!(!told.success && world.stored_of(&world.acme) == stored, "{told:?}");
    assert!(told.one("warehouse")["notes"][0].as_str().unwrap().contains("datasets.customers"), "{told:?}");
    std::fs::write(&manifest, &whole).unwrap();
    world.a_day_passes();

    // A data file that is not there: either it is lost, or the two sides spell it differently.
    let data = ends(&plain, ".parquet");
    std::fs::rename(&data, world.dir.join("aside")).unwrap();
    let told = world.maintain(&remove).await;
    assert!(!told.success);
    let (customers, toys) = (told.table("datasets.customers"), told.table("datasets.ds_toydemo001"));
    assert_eq!(
        (&customers["missing"], &customers["held"], &customers["removed"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!((&toys["missing"], &toys["orphans"], &toys["removed"]), (&json!(0), &json!(1), &json!(1)));
    std::fs::rename(world.dir.join("aside"), &data).unwrap();

    let told = world.maintain(&remove).await;
    assert!(told.success, "{told:?}");
    assert_eq!(world.stored_of(&world.acme), &stored - &BTreeSet::from(orphans));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_maintains_its_warehouses_when_it_is_told_to() {
    let settings =
        [("maintain", "every_s", "1"), ("maintain", "remove", "true"), ("maintain", "references_max", "5")];
    let world = World::start(&settings).await;
    let mut planted = Vec::new();
    for (who, table) in [(&world.acme, "customers"), (&world.globex, "sites")] {
        planted.push(format!("{}/data/orphan.parquet", world.folder(who, table).await));
        planted.push(format!("{}/metadata/orphan-m0.avro", world.folder(who, table).await));
    }
    let before = world.stored();
    planted.iter().for_each(|key| world.plants(key));
    until("the orphans are gone", || world.stored() == before).await;
    assert_eq!(world.acme.rows("SELECT count(*) FROM datasets.customers").await, json!([[500]]));
    until("it is logged", || {
        std::fs::read_to_string(&world.process.log).unwrap().contains("warehouse maintained")
    })
    .await;
}
