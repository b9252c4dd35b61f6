//! A worker in which an attacker's native code runs can speak to its two doors with its own keys, and do nothing else.
//!
//! The attacker is `crates/worker/examples/taken_over`. It tries the same three times: in the sandbox, on a machine without
//! Landlock, and with no sandbox at all; what gets through then shows that an attempt is one.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use duck_contract::Code;
use duck_contract::worker::CATALOG;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::world::{Organisation, Process, World, children, read_toml, set, until};

/// The user that has nothing, which workers become.
const NOBODY: u32 = 65_534;

fn attacker() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_duck-server")).with_file_name("examples/taken_over");
    assert!(program.exists(), "cargo build -p duck-worker -p duck-server --bins --example taken_over");
    program
}

/// What a plan is asked for, and what came of it.
async fn order(who: &Organisation, order: Value, writes: bool) -> Value {
    let body =
        json!({"sql": order.to_string(), "format": "json", "allow_writes": writes, "timeout_ms": 60_000});
    who.json(body).await["rows"].clone()
}

fn outcomes(rows: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rows.as_array().unwrap().iter().map(|row| (text(&row[0]), text(&row[1]))).collect()
}

/// Everything around the attacker: kept while it is tried.
struct Surroundings {
    plan: Value,
    _listeners: Vec<TcpListener>,
    _home: tempfile::TempDir,
    _datagrams: UnixDatagram,
}

/// What there is to reach for. `spec` is what the attacker was told.
fn surroundings(world_dir: &Path, addresses: &[String], pids: &[i32], cell: &Value) -> Surroundings {
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let readable = home.path().join("readable");
    std::fs::write(&readable, "somebody's").unwrap();
    std::fs::set_permissions(&readable, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let path = home.path().join("socket");
    let datagrams = UnixDatagram::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();

    let own = Path::new(cell["directory"].as_str().unwrap());
    let runtime = own.parent().unwrap();
    let others =
        std::fs::read_dir(runtime).into_iter().flatten().map_while(Result::ok).map(|entry| entry.path());
    let (folders, sockets): (Vec<_>, Vec<_>) =
        others.filter(|path| path != own).partition(|path| path.is_dir());
    let texts = |paths: Vec<PathBuf>| paths.into_iter().map(|path| path.to_str().unwrap().to_owned());
    let fixed = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let mut folders: Vec<String> = texts(folders).collect();
    folders.extend(fixed(&[
        "/",
        "/etc",
        "/tmp",
        "/dev",
        "/dev/shm",
        "/sys",
        "/proc",
        "/proc/self",
        "/var/tmp",
        "/root",
        "..",
    ]));
    folders.extend(texts(vec![
        runtime.to_owned(),
        world_dir.to_owned(),
        world_dir.join("store"),
        home.path().to_owned(),
    ]));
    let mut files = fixed(&[
        "/etc/passwd",
        "/etc/shadow",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/proc/self/environ",
        "/proc/self/maps",
        "/proc/self/mem",
        "/proc/self/root/etc/passwd",
        "/proc/self/status",
        "/proc/meminfo",
        "/proc/net/tcp",
        "/proc/sys/kernel/hostname",
        "/proc/kmsg",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/dev/null",
        "/dev/zero",
        "/dev/random",
        "/dev/full",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/tty",
        "/dev/ptmx",
        "/dev/console",
        "../../../../../../etc/passwd",
    ]);
    files.extend(texts(vec![readable, world_dir.join("duck-server.toml"), world_dir.join("catalog.sqlite")]));

    // The doors' port numbers on addresses that are not the doors', and other ports.
    let door = |name: &str| u16::try_from(cell[name].as_u64().unwrap()).unwrap();
    let doors = [door("catalog_port"), door("storage_port")];
    let mut listeners =
        vec![TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::1]:0").unwrap()];
    for port in doors {
        listeners.push(TcpListener::bind(("127.0.0.2", port)).unwrap());
        listeners.extend(own_address().and_then(|host| TcpListener::bind((host.as_str(), port)).ok()));
    }
    let addresses: Vec<String> = listeners
        .iter()
        .map(|l| l.local_addr().unwrap().to_string())
        .chain(addresses.iter().cloned())
        .collect();
    let plan = json!({"try": {
        "files": files, "folders": folders, "pids": pids, "addresses": addresses, "doors": doors,
        "sockets": texts(sockets).chain([path.to_str().unwrap().to_owned()]).collect::<Vec<_>>(),
        "memory_bytes_max": cell["memory_bytes_max"], "spill_bytes_max": cell["spill_bytes_max"],
    }});
    Surroundings { plan, _listeners: listeners, _home: home, _datagrams: datagrams }
}

/// This machine's address on a network, if it is on one. No packet is sent.
fn own_address() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.200:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string()).filter(|host| host != "0.0.0.0")
}

fn host(url: &str) -> String {
    let rest = url.split_once("://").unwrap().1;
    rest.split('/').next().unwrap().parse::<SocketAddr>().unwrap().to_string()
}

/// What an attempt ends with when the sandbox stops it. One word each where it is not one of two.
fn stopped(name: &str, outcome: &str) -> bool {
    match name {
        // Its libc asks for this first, and goes on to what can be looked at.
        "clone3" => outcome == "ENOSYS",
        "more memory than may be" | "page tables without end" => outcome == "ENOMEM",
        "a file that is too large" | "space for one" | "a hole as large" => outcome == "EFBIG",
        // The page refuses the kernel, too.
        "let the kernel write there" => outcome == "EFAULT",
        // Neither is a question of rights.
        _ if name.starts_with("rename into ") && outcome == "EXDEV" => true,
        _ if name.contains(" in /proc") && outcome == "ENOENT" => true,
        _ => ["EPERM", "EACCES"].contains(&outcome),
    }
}

/// Known, and said in docs/threat-model.md: Landlock does not hide that a file exists.
fn is_a_look(name: &str) -> bool {
    name.starts_with("stat ")
}

/// How many of the attempts got through, by the word that their names begin with.
fn got_through(done: &BTreeMap<String, String>) -> BTreeMap<&str, usize> {
    let mut kinds = BTreeMap::new();
    for (name, _) in done.iter().filter(|(name, outcome)| *outcome == "ok" && !name.starts_with("own:")) {
        *kinds.entry(name.split(' ').next().unwrap()).or_default() += 1;
    }
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_taken_over_reaches_its_two_doors_and_nothing_else() {
    let program = format!("'{}'", attacker().display());
    let world = World::start(&[("worker", "program", &program)]).await;
    // A neighbour, and the attacker.
    order(&world.globex, json!("loot"), true).await;
    let loot = order(&world.acme, json!("loot"), true).await;
    let (cell, pid) = (&loot["cell"], i32::try_from(loot["pid"].as_i64().unwrap()).unwrap());
    let zygote = children(world.pid)[0];
    until("a spare is there, besides a neighbour", || world.workers().len() >= 3).await;
    let others: Vec<i32> = world.workers().into_iter().filter(|other| *other != pid).collect();
    let pids = [vec![1, world.pid, zygote], others].concat();
    let addresses =
        [host(&world.url), host(&world.catalog_url), "192.0.2.200:80".into(), "169.254.169.254:80".into()];
    let around = surroundings(&world.dir, &addresses, &pids, cell);
    let done = outcomes(&order(&world.acme, around.plan.clone(), true).await);
    assert!(done.len() > 400, "{}", done.len());
    let through: Vec<_> = done
        .iter()
        .filter(|(name, outcome)| {
            if name.starts_with("own:") {
                *outcome != "ok"
            } else {
                !is_a_look(name) && !stopped(name, outcome)
            }
        })
        .collect();
    assert!(through.is_empty(), "{through:#?}");
    assert_eq!(done.keys().filter(|name| name.starts_with("own:")).count(), 6);
}

/// Landlock is one layer, and the filter of system calls another: without the first, files can be made and looked at where this user
/// may, and still none can be opened to be read, and there is no connection but to the doors and no other process.
#[tokio::test(flavor = "multi_thread")]
async fn without_landlock_files_are_open_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().to_str().unwrap();
    let server = env!("CARGO_BIN_EXE_duck-server");
    let dev = [server, "dev", "--json", "--port", "0", "--dir", dir];
    drop(Process::run(&dev, &[], home.path().join("first.log")));
    let file = home.path().join("duck-server.toml");
    let mut written = read_toml(&file);
    set(&mut written, "worker", "program", &format!("'{}'", attacker().display()));
    set(&mut written, "worker", "sandbox", "'best-effort'");
    std::fs::write(&file, written.to_string()).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = folder.join("../../.venv/bin/python");
    let without = folder.join("tests/it/without_landlock.py");
    let command = [&[python.to_str().unwrap(), without.to_str().unwrap()][..], &dev].concat();
    let process = Process::run(&command, &[], home.path().join("server.log"));
    let line: Value = serde_json::from_str(&process.line).unwrap();
    let acme = Organisation {
        url: line["url"].as_str().unwrap().to_owned(),
        token: line["tokens"]["acme"].as_str().unwrap().to_owned(),
        warehouse: String::new(),
        http: reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap(),
    };
    let loot = order(&acme, json!("loot"), true).await;
    let own = i32::try_from(loot["pid"].as_i64().unwrap()).unwrap();
    let others = children(process.pid()).into_iter().flat_map(children).filter(|pid| *pid != own);
    let around = surroundings(home.path(), &[host(&acme.url)], &others.collect::<Vec<_>>(), &loot["cell"]);
    let done = outcomes(&order(&acme, around.plan.clone(), true).await);
    assert_eq!(done["read /etc/passwd"], "EACCES");
    assert_eq!(done["create in /tmp"], "ok");
    let kinds = got_through(&done);
    let files = [
        "a", "cmdline", "create", "link", "list", "make", "read", "rename", "stat", "status", "task", "write",
    ];
    assert!(kinds.keys().all(|kind| files.contains(kind)), "{kinds:?}");
    assert!(!kinds.contains_key("read") && kinds["stat"] > 10, "{kinds:?}");
}

/// With no sandbox, the same attempts by the same user: what does not get through here shows nothing above.
#[test]
fn without_a_sandbox_the_attempts_get_through() {
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let root = rustix::process::geteuid().is_root();
    let nobody = |mut command: Command| {
        if root {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    // The attacker lies where its user can run it.
    let program = home.path().join("taken_over");
    std::fs::copy(attacker(), &program).unwrap();
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let mut victim = nobody(sleep).spawn().unwrap();
    let doors = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [catalog_port, storage_port] = [0, 1].map(|n: usize| doors[n].local_addr().unwrap().port());
    let cell = json!({
        "directory": home.path().join("own").to_str().unwrap(), "catalog_port": catalog_port,
        "storage_port": storage_port, "memory_bytes_max": 1 << 30, "spill_bytes_max": 1 << 30,
    });
    let around = surroundings(home.path(), &[], &[i32::try_from(victim.id()).unwrap()], &cell);
    let mut bare = Command::new(&program);
    bare.arg("bare").arg(around.plan["try"].to_string()).current_dir(home.path());
    let out = nobody(bare).output().unwrap();
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(out.status.success(), "{out:?}");
    let done = outcomes(&serde_json::from_slice(&out.stdout).unwrap());
    let kinds = got_through(&done);
    let through: usize = kinds.values().sum();
    assert!(through > 150, "{through}: {done:#?}");
    for kind in [
        "connect",
        "raw",
        "fast",
        "socket",
        "bind",
        "listen",
        "read",
        "list",
        "create",
        "environ",
        "mem",
        "kill",
        "ptrace",
        "setpriority",
        "process_vm_readv",
        "pidfd",
        "shared",
        "a",
        "memory",
        "fork",
        "clone",
        "memfd_create",
        "be",
        "outlive",
    ] {
        assert!(kinds.contains_key(kind), "{kind}: {done:#?}");
    }
}

/// A request by hand: with these keys, signed as S3 wants it, or with the bearer.
fn signed(
    keys: &Value,
    port: u16,
    method: &str,
    path: &str,
    query: &str,
    headers: &str,
    body: &str,
) -> Value {
    let text = |name: &str| keys[name].as_str().unwrap().to_owned();
    let (date, hash) = (amz_date(), hex(&Sha256::digest(body)));
    let day = &date[..8];
    let host = format!("127.0.0.1:{port}");
    let names = "host;x-amz-content-sha256;x-amz-date";
    let canonical = format!(
        "{method}\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{hash}\nx-amz-date:{date}\n\n{names}\n{hash}"
    );
    let scope = format!("{day}/us-east-1/s3/aws4_request");
    let string = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let key = [day, "us-east-1", "s3", "aws4_request"]
        .iter()
        .fold(format!("AWS4{}", text("secret_access_key")).into_bytes(), |key, part| hmac(&key, part));
    let signature = hex(&hmac(&key, &string));
    let mark = if query.is_empty() { "" } else { "?" };
    let request = format!(
        "{method} {path}{mark}{query} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nx-amz-date: {date}\r\n\
         x-amz-content-sha256: {hash}\r\nauthorization: AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, \
         Signature={signature}\r\n{headers}content-length: {}\r\n\r\n{body}",
        text("access_key_id"),
        body.len(),
    );
    json!([port, request])
}

fn with_bearer(keys: &Value, port: u16, method: &str, path: &str, body: &str) -> Value {
    let bearer = keys["bearer"].as_str().unwrap();
    json!([
        port,
        format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\nauthorization: Bearer {bearer}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len(),
        )
    ])
}

fn amz_date() -> String {
    let out = Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// RFC 2104.
fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let pad = |byte: u8| block.map(|key| key ^ byte);
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().to_vec()
}

/// With the keys in its hands and no library between: the doors hold.
#[tokio::test(flavor = "multi_thread")]
async fn stolen_keys_open_their_own_warehouse_in_their_own_role() {
    let program = format!("'{}'", attacker().display());
    let world = World::start(&[("worker", "program", &program), ("worker", "spill_mb_max", "256")]).await;
    let (own, foreign) = (&world.acme.warehouse, &world.globex.warehouse);
    let stored = world.stored();
    let key_of = |name: &str| {
        let key = stored.iter().find(|key| key.starts_with(name) && key.ends_with(".parquet")).unwrap();
        format!("/lakehouse/{key}")
    };
    let (mine, theirs) = (key_of(own), key_of(foreign));
    let (my_prefix, their_prefix) = (world.prefix(own).await, world.prefix(foreign).await);
    let globex = order(&world.globex, json!("loot"), true).await["cell"]["keys"].clone();
    for writes in [true, false] {
        let loot = order(&world.acme, json!("loot"), writes).await;
        let (cell, keys) = (&loot["cell"], &loot["cell"]["keys"]);
        assert_eq!(loot["spec"]["role"], if writes { "writer" } else { "reader" });
        let port = |name: &str| u16::try_from(cell[name].as_u64().unwrap()).unwrap();
        let (s3, rest) = (port("storage_port"), port("catalog_port"));
        let mut mixed = keys.clone();
        mixed["access_key_id"] = globex["access_key_id"].clone();
        let get = |path: &str, query: &str| signed(keys, s3, "GET", path, query, "", "");
        let put = |path: &str, headers: &str| signed(keys, s3, "PUT", path, "", headers, "x");
        let ask = |method: &str, path: &str, body: &str| with_bearer(keys, rest, method, path, body);
        let fresh = format!("/lakehouse/{own}/taken-over-{writes}");
        // A writer puts files only below a table that it was given in this statement, and over none.
        let (below, beside) = (if writes { "200" } else { "403" }, "403");
        let over = if writes { "412" } else { "403" };
        let folder = mine.rsplitn(3, '/').nth(2).unwrap();
        let fragment = format!("{folder}/data/taken-over-{writes}.parquet");
        // Under which prefix the catalog has its warehouse no worker is told, nor does that open anything.
        assert!(!loot.to_string().contains(my_prefix.as_str()));
        let my_table = format!("/v1/{CATALOG}/namespaces/datasets/tables/ds_toydemo001");
        let copy = format!("x-amz-copy-source: {theirs}\r\n");
        let foreign_table = format!("/v1/{their_prefix}/namespaces/datasets/tables/ds_toydemo001");
        let cases = [
            ("its own object", "200", get(&mine, "")),
            ("its own list", "200", get("/lakehouse", &format!("list-type=2&prefix={own}%2F"))),
            ("writing beside its tables", beside, put(&fresh, "")),
            ("writing below a table that it was not given", beside, put(&fragment, "")),
            ("its own table", "200", ask("GET", &my_table, "")),
            ("writing below its own table", below, put(&fragment, "")),
            ("writing over its own table's file", over, put(&mine, "")),
            ("its own warehouse", "200", ask("GET", &format!("/v1/config?warehouse={CATALOG}"), "")),
            ("its own namespaces", "200", ask("GET", &format!("/v1/{CATALOG}/namespaces"), "")),
            (
                "its own namespaces by another name",
                "403",
                ask("GET", &format!("/v1/{my_prefix}/namespaces"), ""),
            ),
            ("another's object", "403", get(&theirs, "")),
            ("another's object, its size", "403", signed(keys, s3, "HEAD", &theirs, "", "", "")),
            ("the bucket's root", "403", get("/lakehouse", "list-type=2")),
            ("another's list", "403", get("/lakehouse", &format!("list-type=2&prefix={foreign}%2F"))),
            ("half of its own name", "403", get("/lakehouse", "list-type=2&prefix=duck-dev-w_")),
            ("all buckets", "4", get("/", "")),
            ("another bucket", "403", get("/other/x", "")),
            ("writing to another", "403", put(&theirs, "")),
            ("copying from another", "4", put(&format!("{fresh}-copy"), &copy)),
            ("deleting another's", "403", signed(keys, s3, "DELETE", &theirs, "", "", "")),
            ("another's key id", "403", signed(&mixed, s3, "GET", &theirs, "", "", "")),
            ("another warehouse", "404", ask("GET", &format!("/v1/config?warehouse={foreign}"), "")),
            ("another's namespaces", "403", ask("GET", &format!("/v1/{their_prefix}/namespaces"), "")),
            ("another's table", "403", ask("GET", &foreign_table, "")),
            ("dropping another's table", "403", ask("DELETE", &foreign_table, "")),
            ("the catalog's management", "40", ask("GET", "/management/v1/warehouse", "")),
            ("the catalog's login", "40", ask("POST", "/v1/oauth/tokens", "grant_type=client_credentials")),
            (
                "another's bearer",
                "401",
                with_bearer(&json!({"bearer": "x".repeat(43)}), rest, "GET", &foreign_table, ""),
            ),
        ];
        let requests: Vec<&Value> = cases.iter().map(|(_, _, request)| request).collect();
        let answers = order(&world.acme, json!({"send": requests}), writes).await;
        for ((what, status, _), answer) in cases.iter().zip(answers.as_array().unwrap()) {
            let answer = answer.as_str().unwrap();
            let found = answer.split(' ').nth(1).unwrap_or(answer);
            assert!(found.starts_with(status), "{what} (writes: {writes}): {answer}");
            assert!(!answer.to_lowercase().contains("globex"), "{what}: {answer}");
        }
        // The worker is gone with an abort, which leaves no picture of its memory; the next one knows nothing of it.
        let die =
            json!({"sql": json!({"die": "abort"}).to_string(), "format": "json", "allow_writes": writes});
        assert_eq!(world.acme.problem(&die).await.code, Code::EngineLost);
        let after = order(&world.acme, json!("loot"), writes).await;
        assert_ne!(after["cell"]["keys"]["bearer"], keys["bearer"]);
        // Nor does it get more disk than it may, in however many files.
        let fill =
            json!({"sql": json!({"die": "disk"}).to_string(), "format": "json", "allow_writes": writes});
        assert_eq!(world.acme.problem(&fill).await.code, Code::SpillExhausted);
        let after = order(&world.acme, json!("loot"), writes).await;
        assert_ne!(after["cell"]["keys"]["bearer"], keys["bearer"]);
        // What was stolen died with it.
        let again = order(&world.acme, json!({"send": [requests[0], requests[3]]}), writes).await;
        for answer in again.as_array().unwrap() {
            assert!(
                ["401", "403"].contains(&answer.as_str().unwrap().split(' ').nth(1).unwrap()),
                "{answer}"
            );
        }
    }
    // The way of 32-bit programs ends the process, as their numbers mean other calls.
    let die = json!({"sql": json!({"die": "int80"}).to_string(), "format": "json"});
    assert_eq!(world.acme.problem(&die).await.code, Code::EngineLost);
    order(&world.acme, json!("loot"), false).await;
    assert!(world.stored().iter().all(|key| !key.starts_with(foreign.as_str()) || stored.contains(key)));
}
