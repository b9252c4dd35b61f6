//! Layers are taken off by a worker of the tests' own (`crates/worker/examples/layers_off`): no program that ships can do without,
//! what should hold and does not is noticed, and each of two layers is enough where two are.
//!
//! What the doors hold with every layer off is shown by the corpus (docs/layers.md).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use duck_contract::Code;
use serde_json::{Value, json};

use crate::world::{World, read_toml, refused, set};

fn built(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_duck-server")).with_file_name(name);
    assert!(program.exists(), "cargo build --workspace --bins --examples");
    program
}

/// A worker that does without these layers, as a setting.
fn program(layers: &str, dir: &Path) -> String {
    let script = dir.join(format!("worker-{layers}"));
    let program = built("examples/layers_off");
    std::fs::write(&script, format!("#!/bin/sh\nexec '{}' {layers} \"$@\"\n", program.display())).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    format!("'{}'", script.display())
}

/// A server whose workers do without these layers.
pub async fn without(layers: &str, dir: &Path, settings: &[(&str, &str, &str)]) -> World {
    let program = program(layers, dir);
    let worker = [("worker", "program", program.as_str()), ("worker", "sandbox", "'best-effort'")];
    World::open(dir, &[&worker[..], settings].concat(), &[]).await
}

#[test]
fn no_program_that_ships_knows_a_switch_for_its_layers() {
    let knows = |name: &str| {
        let bytes = std::fs::read(built(name)).unwrap();
        let word = b"usage: layers_off";
        bytes.windows(word.len()).any(|part| part == word)
    };
    assert!(knows("examples/layers_off"), "the check can fail");
    for program in ["duck-worker", "duck-server"] {
        assert!(!knows(program), "{program}");
    }
}

/// A protective setting that cannot be enforced: the worker tests itself and never serves, and the server does not start.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_protection_does_not_hold_never_serves() {
    let home = tempfile::tempdir().unwrap();
    // It starts with an engine that is whole.
    drop(World::open(home.path(), &[], &[]).await);
    for (missing, noticed) in [
        ("settings", "self-test: a local file through DuckDB"),
        ("confinement", "self-test: a local file could be opened"),
    ] {
        let file = home.path().join("duck-server.toml");
        let mut written = read_toml(&file);
        set(&mut written, "worker", "program", &program(missing, home.path()));
        std::fs::write(&file, written.to_string()).unwrap();
        let dir = home.path().to_str().unwrap();
        let mut server = Command::new(env!("CARGO_BIN_EXE_duck-server"));
        let out = server.args(["dev", "--json", "--port", "0", "--dir", dir]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(noticed), "{missing}: {said}");
        assert!(said.contains("\"code\":\"engine_unavailable\",\"status\":503"), "{missing}: {said}");
    }
}

/// Sorts more than an engine may hold in memory.
const SORT: &str = "SELECT max(x) FROM (SELECT md5(i::VARCHAR) || repeat('x', 200) AS x FROM range(600_000) t(i) ORDER BY x OFFSET 1)";

/// Whether an engine of this server has something on disk.
fn spilled(world: &World) -> bool {
    let folders =
        world.workers().into_iter().filter_map(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).ok());
    folders
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().map_while(Result::ok))
        .any(|entry| entry.file_name().to_string_lossy().contains("duckdb_temp"))
}

/// With all layers; with the sandbox alone; with DuckDB's own settings alone. The text is not looked at but in the first.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_spills_to_disk_and_reads_no_local_file() {
    let settings = [("worker", "memory_mb", "64"), ("worker", "memory_mb_max", "1024")];
    for off in ["", "policy,lockdown", "policy,sandbox"] {
        let home = tempfile::tempdir().unwrap();
        let world = match off {
            "" => World::open(home.path(), &settings, &[]).await,
            layers => without(layers, home.path(), &settings).await,
        };
        let acme = world.acme.clone();
        let sorted = tokio::spawn(async move { acme.rows(SORT).await });
        let mut on_disk = false;
        while !sorted.is_finished() {
            on_disk |= spilled(&world);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert!(on_disk, "without {off}: nothing was on disk");
        assert_eq!(sorted.await.unwrap()[0][0].as_str().unwrap().len(), 232);
        for sql in [
            "FROM read_text('/etc/passwd')",
            "FROM read_csv('/etc/hostname')",
            "FROM read_blob('/proc/self/environ')",
        ] {
            refused(&world.acme, sql, Code::OutsideWarehouse).await;
        }
    }
}

/// Where the store is a folder, it is a file of this machine like others: each of three layers alone keeps it, and the doors cannot.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_the_store_is_kept_by_each_layer_alone() {
    for (off, open) in [
        ("lockdown,sandbox", false),
        ("policy,sandbox", false),
        ("policy,lockdown", false),
        ("policy,lockdown,sandbox", true),
    ] {
        let home = tempfile::tempdir().unwrap();
        let world = without(off, home.path(), &[]).await;
        let is_theirs = |key: &&String| key.starts_with(&world.globex.warehouse) && key.ends_with(".parquet");
        let theirs = world.stored().iter().find(is_theirs).unwrap().clone();
        let sql = format!(
            "SELECT count(*) > 0 FROM read_parquet('{}')",
            world.dir.join("store/lakehouse").join(theirs).display()
        );
        if open {
            assert_eq!(world.acme.rows(&sql).await, json!([[true]]), "the check can fail");
        } else {
            refused(&world.acme, &sql, Code::OutsideWarehouse).await;
        }
    }
}

/// One organisation's secret is no other's, though the text be looked at by nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_one_engine_makes_is_in_no_other() {
    let home = tempfile::tempdir().unwrap();
    let world = without("policy", home.path(), &[]).await;
    let known = "SELECT name, type FROM duckdb_secrets() ORDER BY type, name";
    let before = world.acme.rows(known).await;
    // Its own two and the door's address, and a table brings no other: nothing is vended.
    assert_eq!(world.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5_000]]));
    let after = world.acme.rows(known).await;
    assert_eq!((before.as_array().unwrap().len(), &before), (3, &after));
    world
        .acme
        .rows("CREATE SECRET theirs (TYPE s3, KEY_ID 'AKPLANTED', SECRET 'planted-bearer-token', SCOPE 's3://lakehouse/')")
        .await;
    let names = |rows: &Value| rows.to_string().contains("theirs");
    assert!(names(&world.acme.rows(known).await), "it was made");
    assert_eq!(world.globex.rows(known).await.as_array().unwrap().len(), 3);
    assert_eq!(world.globex.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[8_000]]));
    let shown = world.acme.rows("FROM duckdb_secrets()").await.to_string();
    assert!(!shown.contains("planted-bearer-token"), "{shown}");
    let writer = world.acme.write(known).await;
    assert!(!names(&writer), "the writer's engine is another: {writer}");
}
