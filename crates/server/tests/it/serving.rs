//! Who is let in, what the server says of itself, and how it begins and ends.

use std::path::Path;
use std::process::Command;

use duck_contract::Code;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::world::{Organisation, Process, World, children, problem, shared, until};

fn secret(world: &World) -> String {
    let file: toml::Table =
        std::fs::read_to_string(world.dir.join("duck-server.toml")).unwrap().parse().unwrap();
    file["auth"]["jwt_secret"].as_str().unwrap().to_owned()
}

fn token(algorithm: Algorithm, key: &str, claims: &Value) -> String {
    jsonwebtoken::encode(&Header::new(algorithm), claims, &EncodingKey::from_secret(key.as_bytes()).unwrap())
        .unwrap()
}

#[tokio::test]
async fn a_token_that_does_not_hold_opens_nothing() {
    let world = shared().await;
    let key = secret(world);
    let claims = |exp: u64| json!({"workspace_id": "acme", "exp": exp, "iat": 0});
    let good = token(Algorithm::HS256, &key, &claims(4_000_000_000));
    let unsigned = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJ3b3Jrc3BhY2VfaWQiOiJhY21lIiwiZXhwIjo0MDAwMDAwMDAwLCJpYXQiOjB9.";
    let (head, tail) = good.rsplit_once('.').unwrap();
    for (what, bearer) in [
        (
            "another key",
            token(Algorithm::HS256, &key.replace(|c: char| c.is_ascii_digit(), "x"), &claims(4_000_000_000)),
        ),
        ("expired", token(Algorithm::HS256, &key, &claims(1_000_000_000))),
        ("another algorithm", token(Algorithm::HS512, &key, &claims(4_000_000_000))),
        ("no algorithm", unsigned.to_owned()),
        ("no signature", format!("{head}.")),
        ("a changed signature", format!("{head}.{}", tail.chars().rev().collect::<String>())),
        ("no workspace", token(Algorithm::HS256, &key, &json!({"exp": 4_000_000_000_u64, "iat": 0}))),
        ("no expiry", token(Algorithm::HS256, &key, &json!({"workspace_id": "acme", "iat": 0}))),
        (
            "a path as workspace",
            token(
                Algorithm::HS256,
                &key,
                &json!({"workspace_id": "../acme", "exp": 4_000_000_000_u64, "iat": 0}),
            ),
        ),
        ("nothing", String::new()),
        ("garbage", "x".repeat(5_000)),
    ] {
        for path in ["/query", "/tables", "/config"] {
            let url = format!("{}{path}", world.url);
            let request = if path == "/query" {
                world.http.post(url).body("{\"sql\":\"SELECT 1\"}")
            } else {
                world.http.get(url)
            };
            let answer = request.bearer_auth(&bearer).send().await.unwrap();
            assert_eq!(answer.headers()["www-authenticate"], "Bearer");
            assert_eq!(problem(answer).await.code, Code::Unauthenticated, "{path} with {what}");
        }
    }
    let none =
        world.http.post(format!("{}/query", world.url)).body("{\"sql\":\"SELECT 1\"}").send().await.unwrap();
    assert_eq!(problem(none).await.code, Code::Unauthenticated);
    let acme = Organisation { token: good, ..world.acme.clone() };
    assert_eq!(acme.rows("SELECT 1").await, json!([[1]]));
}

#[tokio::test]
async fn the_request_cannot_name_another_warehouse_than_the_token() {
    let world = shared().await;
    let ask = |field: &str, value: &str| json!({"sql": "SELECT 1", field: value});
    for body in
        [ask("warehouse", &world.globex.warehouse), ask("warehouse", "x"), ask("workspace_id", "globex")]
    {
        assert_eq!(world.acme.problem(&body).await.code, Code::WarehouseMismatch);
    }
    world.acme.json(json!({"sql": "SELECT 1", "format": "json", "warehouse": world.acme.warehouse})).await;
    let other = format!("{}/tables?warehouse={}", world.url, world.globex.warehouse);
    let answer = world.http.get(other).bearer_auth(&world.acme.token).send().await.unwrap();
    assert_eq!(problem(answer).await.code, Code::WarehouseMismatch);
}

#[tokio::test]
async fn the_service_token_names_any_workspace_and_must_name_one() {
    let world = shared().await;
    let service = Organisation { token: world.service_token.clone(), ..world.acme.clone() };
    let sql = "SELECT count(*) FROM ds_toydemo001";
    for (field, value, rows) in
        [("warehouse", world.globex.warehouse.as_str(), 8_000), ("workspace_id", "acme", 5_000)]
    {
        assert_eq!(
            service.json(json!({"sql": sql, "format": "json", field: value})).await["rows"],
            json!([[rows]])
        );
    }
    assert_eq!(service.problem(&json!({"sql": sql})).await.code, Code::InvalidRequest);
    for body in [
        json!({"sql": sql, "workspace_id": "nobody"}),
        json!({"sql": sql, "workspace_id": "../acme"}),
        json!({"sql": sql, "warehouse": "other-w_acme"}),
    ] {
        assert_eq!(service.problem(&body).await.code, Code::UnknownWarehouse, "{body}");
    }
}

#[tokio::test]
async fn writing_needs_the_grant() {
    let world = shared().await;
    let claims = json!({"workspace_id": "acme", "exp": 4_000_000_000_u64});
    let reader =
        Organisation { token: token(Algorithm::HS256, &secret(world), &claims), ..world.acme.clone() };
    let body = json!({"sql": "CREATE TABLE lake.datasets.x(i INTEGER)", "allow_writes": true});
    assert_eq!(reader.problem(&body).await.code, Code::WritesNotGranted);
}

#[tokio::test]
async fn the_server_tells_how_it_is_and_how_it_is_set_up() {
    let world = shared().await;
    let get = async |path: &str| -> Value {
        world
            .http
            .get(format!("{}{path}", world.url))
            .bearer_auth(&world.acme.token)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap()
    };
    assert_eq!(get("/health").await, json!({"status": "ok"}));
    assert_eq!(get("/health?deep=1").await, json!({"status": "ok", "catalog": "ok", "storage": "ok"}));
    assert_eq!(get("/ready").await, json!({"status": "ready"}));
    let tables = get("/tables").await;
    assert_eq!(tables["warehouse"], json!(world.acme.warehouse));
    assert!(
        tables["tables"]
            .as_array()
            .unwrap()
            .contains(&json!({"schema": "datasets", "name": "ds_toydemo001"}))
    );
    let config = get("/config").await;
    assert_eq!(config["warehouse"], json!(world.acme.warehouse));
    assert_eq!((&config["sandbox"]["landlock"], &config["sandbox"]["seccomp"]), (&json!(true), &json!(true)));
    assert_eq!(config["credential_vending"], json!(false));
    assert!(config["schemas"].as_array().unwrap().contains(&json!("datasets")));
}

#[test]
fn duck_server_does_not_link_libduckdb() {
    let linked = |program: &str| {
        let out = Command::new("ldd").arg(program).output().unwrap();
        String::from_utf8_lossy(&out.stdout).contains("libduckdb")
    };
    let server = env!("CARGO_BIN_EXE_duck-server");
    assert!(!linked(server));
    assert!(linked(Path::new(server).with_file_name("duck-worker").to_str().unwrap()), "the check can fail");
}

#[tokio::test]
async fn the_end_leaves_nothing_behind() {
    let mut world = World::start(&[]).await;
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    let pid = world.pid;
    let runtime = runtime_folder(&std::env::temp_dir(), pid).unwrap();
    let all: Vec<i32> = world.workers().into_iter().chain([pid]).collect();
    assert!(runtime.exists() && all.len() > 1);
    world.process.stop();
    until("every process has ended", || all.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()))
        .await;
    assert!(!runtime.exists(), "the runtime folder is left");
}

fn runtime_folder(parent: &Path, pid: i32) -> Option<std::path::PathBuf> {
    let name = format!("duck-server-{pid}-");
    let entries = std::fs::read_dir(parent).unwrap().map_while(Result::ok);
    entries
        .map(|entry| entry.path())
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with(&name))
}

#[tokio::test]
async fn what_else_lies_in_the_runtime_dir_is_left_alone() {
    let shared = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir()
        .unwrap();
    let foreign = shared.path().join("w1");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("kept"), "kept").unwrap();
    let mut world = World::start(&[("", "runtime_dir", &format!("'{}'", shared.path().display()))]).await;
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    assert!(runtime_folder(shared.path(), world.pid).is_some());
    world.process.stop();
    assert_eq!(runtime_folder(shared.path(), world.pid), None);
    assert_eq!(std::fs::read_to_string(foreign.join("kept")).unwrap(), "kept");
}

#[tokio::test]
async fn a_killed_server_takes_its_workers_along() {
    let world = World::start(&[]).await;
    assert_eq!(world.acme.rows("SELECT 1").await, json!([[1]]));
    let workers = world.workers();
    assert!(!workers.is_empty());
    let pid = rustix::process::Pid::from_raw(world.pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("every worker has ended", || {
        workers.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    })
    .await;
    // Its folder goes with the next server's start.
    drop(World::start(&[]).await);
    assert_eq!(runtime_folder(&std::env::temp_dir(), world.pid), None);
}

/// Whether this descriptor of a process is a TCP socket.
fn is_tcp(pid: i32, number: &str) -> bool {
    let socket = std::fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap_or_default();
    let inode = socket.to_string_lossy().replace(|c: char| !c.is_ascii_digit(), "");
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    sockets.lines().any(|line| line.split_whitespace().nth(9) == Some(&inode))
}

#[tokio::test]
async fn a_worker_holds_nothing_but_its_own() {
    let world = World::start(&[("pool", "spares", "2")]).await;
    let descriptors = |pid: i32| -> Vec<String> {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().map_while(Result::ok);
        let mut found: Vec<String> = fds
            .filter_map(|fd| {
                let target = std::fs::read_link(fd.path()).ok()?;
                let kind = target.to_string_lossy().split(':').next().unwrap().to_owned();
                Some(format!("{} {kind}", fd.file_name().to_string_lossy()))
            })
            .collect();
        found.sort();
        found
    };
    // Control socket and listener; the pipe is for last words.
    let born = ["0 /dev/null", "1 /dev/null", "2 pipe", "3 socket", "4 socket"];
    let is_more = |fd: &&String| !born.contains(&fd.as_str());
    // Then its runtime's, whose signals come by a pair of sockets. None is a connection.
    let is_runtimes = |pid: i32, fd: &String| {
        let number = fd.split(' ').next().unwrap();
        fd.ends_with(" anon_inode") || (fd.ends_with(" socket") && !is_tcp(pid, number))
    };
    until("both spares hold these and nothing else", || {
        let settled = |pid: &i32| {
            let now = descriptors(*pid);
            let more: Vec<&String> = now.iter().filter(is_more).collect();
            now.len() == born.len() + more.len()
                && more.len() > 2
                && more.iter().all(|fd| is_runtimes(*pid, fd))
        };
        world.workers().iter().filter(|pid| settled(pid)).count() == 2
    })
    .await;
    // Nor does the template hold one that a child could inherit: it has spoken to the catalog door.
    for template in children(world.pid) {
        let held = descriptors(template);
        assert!(held.len() > 3, "{held:?}");
        assert!(held.iter().all(|fd| !is_tcp(template, fd.split(' ').next().unwrap())), "{held:?}");
    }
    assert_eq!(world.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5_000]]));
    for pid in world.workers() {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}"));
        let status = String::from_utf8(read("status").unwrap()).unwrap();
        let line = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().to_owned();
        until("it is confined", || {
            std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap().contains("Seccomp:\t2")
        })
        .await;
        // What was there is wiped: the one word for the loader.
        assert!(read("environ").unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(line("NoNewPrivs:"), "1");
        let limits = String::from_utf8(read("limits").unwrap()).unwrap();
        let core = limits.lines().find_map(|l| l.strip_prefix("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"]);
        // Not dumpable, so that what shows its memory is root's, and nobody's of its own user.
        let owner =
            std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}/mem")).unwrap());
        assert_eq!(owner, 0);
        if rustix::process::geteuid().is_root() {
            assert_eq!(line("Uid:"), "65534\t65534\t65534\t65534");
            assert_eq!(line("Groups:"), "");
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                assert_eq!(line(set), "0000000000000000");
            }
            let as_nobody = |program: &str, file: &str| {
                let file = format!("/proc/{pid}/{file}");
                let mut command = Command::new(program);
                std::os::unix::process::CommandExt::uid(&mut command, 65_534);
                command.arg(file).output().unwrap().status.success()
            };
            assert!(as_nobody("cat", "status"), "the check can fail");
            for file in ["environ", "maps", "mem"] {
                assert!(!as_nobody("cat", file), "{file}");
            }
            assert!(!as_nobody("ls", "fd"));
        }
        // More of its runtime's, and connections to the doors and from the front.
        let now = descriptors(pid);
        for fd in now.iter().filter(is_more) {
            assert!(fd.ends_with(" anon_inode") || fd.ends_with(" socket"), "{now:?}");
        }
    }
}

#[tokio::test]
async fn spawned_workers_answer_like_forked_ones() {
    let world = World::start(&[("worker", "start", "\"spawn\"")]).await;
    assert_eq!(world.acme.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[5_000]]));
    assert_eq!(world.globex.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[8_000]]));
}

/// A kernel without Landlock is played by a filter under which its system calls do not exist.
#[tokio::test]
async fn a_machine_without_landlock_is_refused_or_said_aloud() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().to_str().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = folder.join("../../.venv/bin/python");
    let without = folder.join("tests/it/without_landlock.py");
    let server = env!("CARGO_BIN_EXE_duck-server");
    let command = [
        python.to_str().unwrap(),
        without.to_str().unwrap(),
        server,
        "dev",
        "--json",
        "--port",
        "0",
        "--dir",
        dir,
    ];

    let refused = Command::new(command[0]).args(&command[1..]).output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the sandbox is incomplete"), "{refused:?}");

    let file = home.path().join("duck-server.toml");
    let settings = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{settings}\n[worker]\nsandbox = \"best-effort\"\n")).unwrap();
    let process = Process::run(&command, &[], home.path().join("server.log"));
    let line: Value = serde_json::from_str(&process.line).unwrap();
    let url = format!("{}/config", line["url"].as_str().unwrap());
    let bearer = line["tokens"]["acme"].as_str().unwrap();
    let config: Value =
        shared().await.http.get(url).bearer_auth(bearer).send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&config["sandbox"]["landlock"], &config["sandbox"]["seccomp"]),
        (&json!(false), &json!(true))
    );
    assert!(std::fs::read_to_string(&process.log).unwrap().contains("THE SANDBOX IS INCOMPLETE"));
}

#[test]
fn check_prints_the_configuration_or_every_fault() {
    let home = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let file = home.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let out = Command::new(env!("CARGO_BIN_EXE_duck-server"))
            .args(["check", "--config"])
            .arg(&file)
            .output()
            .unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let good = "[auth]\njwt_secret = \"0123456789abcdef0123456789abcdef\"\n[warehouse]\nprefix = \"c\"\n\
                [catalog]\nuri = \"http://127.0.0.1:1/catalog\"\n[storage]\nkind = \"memory\"\n";
    let (ok, out, _) = check(good);
    assert!(ok && out.contains("rows_max = 100000") && !out.contains("0123456789abcdef"), "{out}");
    let (ok, _, err) = check(
        "[auth]\njwt_secret = \"short\"\n[catalog]\nuri = \"x\"\n[storage]\nkind = \"tape\"\n[warehouse]\n",
    );
    assert!(!ok);
    for part in ["storage", "tape"] {
        assert!(err.contains(part), "{err}");
    }
}

#[tokio::test]
async fn a_minted_token_holds() {
    let world = shared().await;
    let out = Command::new(env!("CARGO_BIN_EXE_duck-server"))
        .args(["token", "--workspace", "globex", "--ttl", "60", "--config"])
        .arg(world.dir.join("duck-server.toml"))
        .output()
        .unwrap();
    let token = String::from_utf8(out.stdout).unwrap().trim().to_owned();
    let globex = Organisation { token, ..world.globex.clone() };
    assert_eq!(globex.rows("SELECT count(*) FROM ds_toydemo001").await, json!([[8_000]]));
    assert_eq!(
        globex.problem(&json!({"sql": "SELECT 1", "allow_writes": true})).await.code,
        Code::WritesNotGranted
    );
}

#[tokio::test]
async fn the_log_holds_no_secret() {
    let world = shared().await;
    world.acme.problem(&json!({"sql": "SELECT * FROM nope"})).await;
    world.acme.problem(&json!({"sql": "SELECT * FROM read_text('s3://lakehouse/other/x')"})).await;
    let tables = format!("{}/tables", world.url);
    let _ = world.http.get(tables).bearer_auth("planted-bearer-token").send().await.unwrap();
    world.log_holds_no_secret();
}
