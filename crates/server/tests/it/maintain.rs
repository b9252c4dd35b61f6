//! What nobody needs is found and goes, and nothing else: after a day of failures, beside writers, and when the run is killed.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::upkeep::{a_bad_day, command, commits_that_nobody_hears_of, needed};
use crate::world::{World, kill, python, until};

#[tokio::test(flavor = "multi_thread")]
async fn after_a_bad_day_every_orphan_is_found_and_every_live_file_kept() {
    let world = World::start(&[]).await;
    a_bad_day(&world).await;
    let ledger = commits_that_nobody_hears_of(&world).await;
    let (acme, other) = (world.acme.warehouse.clone(), world.stored_of(&world.globex));
    let table = world.folder(&world.acme, "plain").await;
    let anybodys =
        [format!("{acme}/files/a.csv"), format!("{acme}/files/data/a.parquet"), format!("{table}/notes.txt")];
    world.plants_all(&anybodys);

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
    let has = |keys: &BTreeSet<String>, kind: &str| keys.iter().any(|key| key.contains(kind));
    assert!([".parquet", "-m0.avro", "/snap-"].iter().all(|kind| has(&orphans, kind)), "{orphans:?}");
    assert!([".parquet", ".metadata.json"].iter().all(|kind| has(&strays, kind)), "{strays:?}");

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
    beside_writers(&[], 25).await;
}

/// The same where a warehouse has more references than are held at once, so that each run goes through it several times.
#[tokio::test(flavor = "multi_thread")]
async fn beside_writers_no_row_is_lost_in_parts() {
    beside_writers(&[("maintain", "references_max", "60")], 12).await;
}

async fn beside_writers(settings: &[(&str, &str, &str)], rounds: usize) {
    let world = World::start(settings).await;
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
            // Every commit adds to what all parts together have to hold, and the slower the machine the longer there are more.
            if rows < 80 {
                world.acme.write(&format!("INSERT INTO datasets.w{n} VALUES ({rows})")).await;
                rows += 1;
            }
            let own = world.stored().into_iter().filter(|key| key.starts_with(&folders[n]));
            own.for_each(|key| world.ages(&key));
            // Every commit adds a manifest list that every run reads, so that many commits make slow runs.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        rows
    };
    let keeper = async {
        let mut removed = 0;
        for round in 0..rounds {
            world.plants(&format!("{}/data/orphan-{round}.parquet", folders[round % 3]));
            let told = world.maintain(&["--warehouse", &world.acme.warehouse, "--remove"]).await;
            assert!(told.success, "{told:?}");
            removed += told.one("summary")["removed"].as_u64().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        removed
    };
    let (removed, written) = tokio::join!(keeper, futures::future::join_all((0..3).map(writer)));
    assert_eq!(removed, rounds as u64, "the planted orphans and nothing else");
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
    world.plants_all(&planted);
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
    world.plants_all(&orphans);
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
    world.plants_all(&planted);
    until("the orphans are gone", || world.stored() == before).await;
    assert_eq!(world.acme.rows("SELECT count(*) FROM datasets.customers").await, json!([[500]]));
    until("it is logged", || {
        std::fs::read_to_string(&world.process.log).unwrap().contains("warehouse maintained")
    })
    .await;
}

/// A file that was nobody's when the run began, and is a table's when its turn comes, is not removed.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_while_others_are_removed_stays() {
    let world = World::start(&[("maintain", "requests_max", "1")]).await;
    world.acme.write("CREATE TABLE datasets.late AS SELECT 1::BIGINT AS k").await;
    let folder = world.folder(&world.acme, "late").await;
    let planted: Vec<_> = (0..3_000).map(|n| format!("{folder}/data/a-{n:04}.parquet")).collect();
    world.plants_all(&planted);
    let stored = world.stored_of(&world.acme);
    let real = stored
        .iter()
        .find(|key| key.starts_with(&folder) && !planted.contains(key) && key.ends_with(".parquet"));
    let late = format!("{folder}/data/z-late.parquet");
    std::fs::copy(world.path_of(real.unwrap()), world.path_of(&late)).unwrap();
    world.a_day_passes();

    let mut run = command(&world.settings(), &["--all", "--remove"]).spawn().unwrap();
    until("it removes", || world.stored_of(&world.acme).len() < stored.len()).await;
    let ask = json!({
        "catalog": world.catalog_url,
        "token": world.catalog_token().await,
        "warehouse": world.acme.warehouse,
        "store": world.dir.join("store"),
        "table": "datasets.late",
        "add": format!("s3://lakehouse/{late}"),
    });
    // It waits while the other engine commits.
    let pid = i32::try_from(run.id()).unwrap();
    kill(pid, Signal::STOP);
    tokio::task::spawn_blocking(move || python("read_table.py", &ask)).await.unwrap();
    assert!(world.path_of(&planted[2_999]).exists(), "it came in time");
    kill(pid, Signal::CONT);
    let ended = tokio::task::spawn_blocking(move || run.wait().unwrap().success()).await.unwrap();
    assert!(ended && !world.path_of(&planted[2_999]).exists());
    assert_eq!(world.read(&world.acme).await["datasets.late"].rows, [["1"], ["1"]]);
}

/// Metadata that lead to another warehouse's files are not followed: they keep their own warehouse, and touch no other.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_name_another_warehouse_lead_nowhere() {
    let world = World::start(&[]).await;
    let (mine, theirs) =
        (world.folder(&world.acme, "customers").await, world.folder(&world.globex, "sites").await);
    world.plants(&format!("{mine}/data/orphan.parquet"));
    world.plants(&format!("{theirs}/data/orphan.parquet"));
    world.a_day_passes();
    let (own, other) = (world.stored_of(&world.acme), world.stored_of(&world.globex));
    let list = other.iter().find(|key| key.contains("/snap-")).unwrap();
    let snapshot = json!({
        "snapshot-id": 7, "sequence-number": 99, "timestamp-ms": 4_000_000_000_000_i64, "schema-id": 0,
        "manifest-list": format!("s3://lakehouse/{list}"), "summary": {"operation": "append"},
    });
    world.commit(&world.acme, "customers", json!({"action": "add-snapshot", "snapshot": snapshot})).await;
    let told = world.maintain(&["--warehouse", &world.acme.warehouse, "--remove", "--dropped"]).await;
    assert!(!told.success);
    assert!(
        told.one("warehouse")["notes"][0].as_str().unwrap().contains("outside of the warehouse's place"),
        "{told:?}"
    );
    assert!(own.is_subset(&world.stored_of(&world.acme)), "nothing of its own goes");
    assert_eq!(world.stored_of(&world.globex), other);
    let told = world.maintain(&["--warehouse", &world.globex.warehouse, "--remove"]).await;
    assert_eq!((told.success, &told.one("summary")["removed"]), (true, &json!(1)), "{told:?}");
}
