//! The shape of production: one bucket of a real S3 server, one key for all of it, a prefix for each warehouse.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use duck_contract::Code;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::upkeep::run_in;
use crate::world::{Organisation, World, python, read_toml, refused, refused_writing, set};

pub const KEY_ID: &str = "bucketwidekeyid0001";
pub const SECRET: &str = "bucketwidesecret-7c1f0d5be2";
/// Who may do anything with the store, and with its own catalog.
pub const ADMIN: (&str, &str) = ("admin", "admin-secret");
/// A key that may only read.
const READING: (&str, &str) = ("readingkeyid0001", "readingsecret-0b51aa93e7");
const SHELL: &str = "\"$@\" </dev/null & p=$!; cat >/dev/null; kill -KILL $p 2>/dev/null; wait $p";
const PORTS: [&str; 9] = [
    "-master.port",
    "-master.port.grpc",
    "-volume.port",
    "-volume.port.grpc",
    "-filer.port",
    "-filer.port.grpc",
    "-s3.port",
    "-s3.port.grpc",
    "-s3.port.iceberg",
];

/// SeaweedFS. It is killed when this is dropped, and when the test process ends in whatever way.
pub struct Weed {
    home: TempDir,
    ports: [Port; PORTS.len()],
    running: Option<(Child, ChildStdin)>,
}

/// A port that the system has picked, kept for a server of another process that listens with `SO_REUSEADDR`: a socket that is bound
/// and never listens lets that one in, and nobody who lets the system pick.
struct Port(TcpSocket);

impl Port {
    fn kept() -> Port {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Port(socket)
    }

    fn number(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }
}

impl Weed {
    /// Starts it with one bucket, `lakehouse`, one key for that bucket, and one that may only read it.
    pub async fn start() -> Weed {
        let ports = PORTS.map(|_| Port::kept());
        let mut weed = Weed { home: tempfile::tempdir().unwrap(), ports, running: None };
        let identity = |name: &str, id: &str, secret: &str, actions: &[&str]| json!({"name": name, "credentials": [{"accessKey": id, "secretKey": secret}], "actions": actions});
        let bucket = ["Read:lakehouse", "Write:lakehouse", "List:lakehouse"];
        let identities = json!({"identities": [
            identity("admin", ADMIN.0, ADMIN.1, &["Admin", "Read", "Write", "List"]),
            identity("duck-server", KEY_ID, SECRET, &bucket),
            identity("reader", READING.0, READING.1, &["Read:lakehouse", "List:lakehouse"]),
        ]});
        std::fs::write(weed.home.path().join("identities.json"), identities.to_string()).unwrap();
        weed.run();
        weed.answers().await;
        weed.makes_its_bucket();
        weed
    }

    fn run(&mut self) {
        let home = self.home.path();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/weed");
        let log = std::fs::File::create(home.join("weed.log")).unwrap();
        let ports = PORTS.iter().zip(&self.ports).map(|(name, port)| format!("{name}={}", port.number()));
        let mut child = Command::new("sh")
            .args(["-c", SHELL, "sh"])
            .arg(program)
            .arg(format!("-logdir={}", home.display()))
            .args([
                "server",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-master.telemetry=false",
                "-filer",
                "-s3",
            ])
            .args(["-volume.max=20", "-master.volumeSizeLimitMB=64", "-s3.port.lance=0"])
            .arg(format!("-dir={}", home.display()))
            .arg(format!("-s3.config={}", home.join("identities.json").display()))
            .args(ports)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        self.running = Some((child, stdin));
    }

    /// Waits until it answers S3 requests.
    async fn answers(&self) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        for _ in 0..600 {
            if let Ok(answer) = client.get(format!("{}/healthz", self.endpoint())).send().await
                && answer.status().is_success()
            {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("SeaweedFS did not start");
    }

    /// Makes the bucket if it is not there, and waits until it can be written.
    fn makes_its_bucket(&self) {
        self.admin("make", "lakehouse");
    }

    /// Makes a bucket that is a warehouse of its own catalog.
    pub fn makes_a_warehouse(&self, bucket: &str) {
        self.admin("warehouse", bucket);
    }

    fn admin(&self, what: &str, bucket: &str) {
        let (key_id, secret) = ADMIN;
        let ask = json!({"endpoint": self.endpoint(), "key_id": key_id, "secret": secret, what: bucket});
        python("s3_store.py", &ask);
    }

    /// Ends it at once, as a power failure would.
    fn kill(&mut self) {
        if let Some((mut child, stdin)) = self.running.take() {
            drop(stdin);
            let _ = child.wait();
        }
    }

    fn port(&self, name: &str) -> u16 {
        self.ports[PORTS.iter().position(|each| *each == name).unwrap()].number()
    }

    pub fn s3_port(&self) -> u16 {
        self.port("-s3.port")
    }

    /// Its own catalog.
    pub fn catalog(&self) -> String {
        format!("http://127.0.0.1:{}", self.port("-s3.port.iceberg"))
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.s3_port())
    }

    /// Every object of the bucket and its size.
    fn objects(&self) -> serde_json::Map<String, Value> {
        let ask =
            json!({"endpoint": self.endpoint(), "key_id": KEY_ID, "secret": SECRET, "list": "lakehouse"});
        python("s3_store.py", &ask).as_object().unwrap().clone()
    }

    /// Makes small objects.
    fn puts(&self, keys: &[String]) {
        let paths: Vec<_> = keys.iter().map(|key| format!("lakehouse/{key}")).collect();
        python(
            "s3_store.py",
            &json!({"endpoint": self.endpoint(), "key_id": KEY_ID, "secret": SECRET, "put": paths}),
        );
    }

    /// Makes an object with the header by which the storage door writes, so that one that is there stays: true, or the status of the
    /// refusal.
    pub fn creates(&self, (id, secret): (&str, &str), path: &str, text: &str) -> Value {
        let ask = json!({"endpoint": self.endpoint(), "key_id": id, "secret": secret, "create": path, "text": text});
        python("s3_store.py", &ask)
    }

    /// A server on it.
    pub async fn world(&self, dir: &Path, settings: &[(&str, &str, &str)]) -> World {
        World::open(dir, settings, &environment(&self.endpoint())).await
    }

    fn pyiceberg(&self, world: &World, token: &str, warehouse: &str, table: &str) -> Value {
        let s3 = json!({
            "endpoint": self.endpoint(),
            "access-key-id": KEY_ID,
            "secret-access-key": SECRET,
            "region": "us-east-1",
        });
        let ask = json!({"catalog": world.catalog_url, "token": token, "warehouse": warehouse, "table": table, "s3": s3});
        python("read_table.py", &ask)
    }
}

/// What a server on it has in its environment.
pub fn environment(endpoint: &str) -> [(&'static str, &str); 4] {
    [
        ("LAKEHOUSE_S3_ENDPOINT", endpoint),
        ("LAKEHOUSE_S3_ACCESS_KEY_ID", KEY_ID),
        ("LAKEHOUSE_S3_SECRET_ACCESS_KEY", SECRET),
        ("LAKEHOUSE_S3_REGION", "us-east-1"),
    ]
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.home.path().join("weed.log")).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(20).collect();
            eprintln!("the last lines of SeaweedFS, the latest first:\n{}", last.join("\n"));
        }
    }
}

/// Where the logs of a world lie.
fn logs(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_organisations_share_a_bucket_and_a_key_and_nothing_else() {
    let weed = Weed::start().await;
    let home = tempfile::tempdir().unwrap();
    let world = weed.world(home.path(), &[]).await;
    let mut said = String::new();
    for (who, marker) in [(&world.acme, "of acme"), (&world.globex, "of globex")] {
        who.write(&format!("CREATE TABLE datasets.notes AS SELECT i::INTEGER AS id, '{marker} ' || i AS note FROM range(3) t(i)"))
            .await;
        who.write(&format!("INSERT INTO datasets.notes VALUES (3, '{marker} 3'), (4, '{marker} 4')")).await;
        who.write("UPDATE datasets.notes SET note = 'changed' WHERE id = 1").await;
        who.write("DELETE FROM datasets.notes WHERE id = 4").await;
        let rows = who.rows("SELECT id, note FROM datasets.notes ORDER BY id").await;
        let expected =
            [format!("{marker} 0"), "changed".to_owned(), format!("{marker} 2"), format!("{marker} 3")];
        let expected: Vec<_> = expected.iter().enumerate().map(|(id, note)| json!([id, note])).collect();
        assert_eq!(rows, json!(expected));
        said.push_str(&rows.to_string());

        let token = world.catalog_token().await;
        let read = weed.pyiceberg(&world, &token, &who.warehouse, "datasets.notes");
        let expected: Vec<_> = expected
            .iter()
            .map(|row| json!([row[0].to_string(), format!("'{}'", row[1].as_str().unwrap())]))
            .collect();
        assert_eq!(read["rows"], json!(expected), "for PyIceberg");
    }
    let objects = weed.objects();
    let mine = [format!("{}/", world.acme.warehouse), format!("{}/", world.globex.warehouse)];
    assert!(mine.iter().all(|prefix| objects.keys().filter(|key| key.starts_with(prefix)).count() > 5));
    let stray: Vec<_> =
        objects.keys().filter(|key| !mine.iter().any(|prefix| key.starts_with(prefix))).collect();
    assert_eq!(stray, Vec::<&String>::new());

    let secret = objects.keys().find(|key| key.starts_with(&mine[1]) && key.ends_with(".parquet")).unwrap();
    for path in [format!("s3://lakehouse/{secret}"), format!("s3://lakehouse/{}../{secret}", mine[0])] {
        for function in ["read_parquet", "read_blob"] {
            let sql = format!("SELECT * FROM {function}('{path}')");
            refused(&world.acme, &sql, Code::OutsideWarehouse).await;
            refused_writing(&world.acme, &sql, Code::OutsideWarehouse).await;
            let body = json!({"sql": sql});
            said.push_str(&world.acme.post(&body).await.text().await.unwrap());
        }
    }
    // Answers on purpose, on settings and on secrets: none has the key.
    for sql in
        ["FROM duckdb_secrets()", "FROM duckdb_settings()", "SELECT getenv('LAKEHOUSE_S3_SECRET_ACCESS_KEY')"]
    {
        said.push_str(&world.acme.post(&json!({"sql": sql, "format": "json"})).await.text().await.unwrap());
    }
    for path in ["health?deep=1", "config", "tables", "metrics"] {
        let url = format!("{}/{path}", world.url);
        said.push_str(
            &world.http.get(url).bearer_auth(&world.acme.token).send().await.unwrap().text().await.unwrap(),
        );
    }
    for log in logs(home.path()) {
        said.push_str(&std::fs::read_to_string(log).unwrap());
    }
    assert!(said.contains("change settled") && !said.contains(SECRET) && !said.contains(KEY_ID));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_insert_goes_in_parts_and_an_outage_ends_with_the_store() {
    let mut weed = Weed::start().await;
    let home = tempfile::tempdir().unwrap();
    let world = weed.world(home.path(), &[("storage", "limits", "{ breaker_open_ms = 1_000 }")]).await;
    let acme = &world.acme;
    acme.write("CREATE TABLE datasets.large (a BIGINT, b VARCHAR)").await;
    // DuckDB begins a new file after a row group, so that wide rows make large files.
    let wide = |i: &str| format!("array_to_string([md5(({i} * 8 + n)::VARCHAR) FOR n IN range(8)], '')");
    acme.write(&format!("INSERT INTO datasets.large SELECT i, {} FROM range(200_000) t(i)", wide("i"))).await;
    let largest = weed.objects().values().filter_map(Value::as_u64).max().unwrap();
    assert!(largest > 20 << 20, "the largest object has {largest} bytes");
    let sums = format!(
        "SELECT count(*), sum(a), sum(length(b)), count(*) FILTER (b = {}) FROM datasets.large",
        wide("a")
    );
    let expected = acme.rows(&sums).await;
    assert_eq!(expected, json!([[200_000, 19_999_900_000_u64, 51_200_000, 200_000]]));
    let files = world.acme.warehouse.clone();
    let by_path = format!("SELECT count(*) FROM glob('s3://lakehouse/{files}/**/*.metadata.json')");
    assert!(acme.rows(&by_path).await[0][0].as_u64().unwrap() > 2);

    // Its metadata is known, so that the outage is seen where it is: at the store, not at the catalog that keeps it there.
    acme.rows("DESCRIBE datasets.ds_toydemo001").await;

    weed.kill();
    refused(acme, &by_path, Code::StorageUnavailable).await;
    refused(acme, "SELECT sum(unit_price) FROM datasets.ds_toydemo001", Code::StorageUnavailable).await;
    let lost = acme
        .problem(&json!({"sql": "INSERT INTO datasets.large VALUES (1, 'x')", "allow_writes": true}))
        .await;
    assert!(
        [Code::StorageUnavailable, Code::CatalogUnavailable].contains(&lost.code),
        "{} {}",
        lost.code,
        lost.detail
    );
    assert!(TcpStream::connect(("127.0.0.1", weed.s3_port())).is_err());

    weed.run();
    weed.answers().await;
    weed.makes_its_bucket();
    let answer = in_the_end(acme, &json!({"sql": &sums, "format": "json"})).await;
    assert_eq!(answer["rows"], expected);
    // A store that reads again may not write yet. What was refused was not made, so one row comes of however many tries.
    let insert = "INSERT INTO datasets.large VALUES (200_000, 'after')";
    in_the_end(acme, &json!({"sql": insert, "format": "json", "allow_writes": true})).await;
    assert_eq!(acme.rows("SELECT b FROM datasets.large WHERE a = 200_000").await, json!([["after"]]));
    assert_eq!(world.globex.rows("SELECT count(*) FROM datasets.sites").await, json!([[4]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_use_a_key_that_may_only_read_and_writers_the_other() {
    let weed = Weed::start().await;
    let home = tempfile::tempdir().unwrap();
    let warnings = async |world: &World| {
        let ask = world.http.get(format!("{}/config", world.url)).bearer_auth(&world.acme.token);
        ask.send().await.unwrap().json::<Value>().await.unwrap()["warnings"].clone()
    };
    let world = weed.world(home.path(), &[]).await;
    world.acme.write("CREATE TABLE datasets.kept AS SELECT 1 AS k").await;
    let told = warnings(&world).await;
    assert!(told[0].as_str().unwrap().contains("storage.ro_access_key_id"), "{told}");
    drop(world);

    let endpoint = weed.endpoint();
    let with = async |secret: &str| {
        let reading =
            [("LAKEHOUSE_S3_RO_ACCESS_KEY_ID", READING.0), ("LAKEHOUSE_S3_RO_SECRET_ACCESS_KEY", secret)];
        World::open(home.path(), &[], &[&environment(&endpoint)[..], &reading[..]].concat()).await
    };
    let world = with(READING.1).await;
    assert_eq!(warnings(&world).await, json!([]));
    for n in 2..4 {
        world.acme.write(&format!("INSERT INTO datasets.kept VALUES ({n})")).await;
        assert_eq!(world.acme.rows("SELECT count(*), max(k) FROM datasets.kept").await, json!([[n, n]]));
    }
    drop(world);
    // With a wrong secret for it readers fail and writers do not: each has used its own.
    let world = with("not-its-secret").await;
    refused(&world.acme, "SELECT sum(k) FROM datasets.kept", Code::StorageUnavailable).await;
    let through_a_writer = world.acme.write("INSERT INTO datasets.kept SELECT max(k) + 1 FROM datasets.kept");
    assert_eq!(through_a_writer.await, json!([[1]]));
    // And that key could not have written.
    assert_eq!(weed.creates(READING, "lakehouse/somewhere/x", "text"), json!(403));
    assert_eq!(weed.creates((KEY_ID, SECRET), "lakehouse/somewhere/x", "text"), json!(true));
}

/// On a store whose listings come in pages, and whose clock says how old an object is.
#[tokio::test(flavor = "multi_thread")]
async fn orphans_go_page_by_page_and_when_they_are_old_enough() {
    let weed = Weed::start().await;
    let home = tempfile::tempdir().unwrap();
    let world = weed.world(home.path(), &[]).await;
    world.acme.write("CREATE TABLE datasets.kept AS SELECT i::INTEGER AS k FROM range(10) t(i)").await;
    world.acme.write("DELETE FROM datasets.kept WHERE k = 3").await;
    let folder = world.folder(&world.acme, "kept").await;
    let live = weed.objects();
    let orphans: Vec<_> = (0..2_500).map(|n| format!("{folder}/data/orphan-{n:04}.parquet")).collect();
    weed.puts(&orphans);

    // The shortest grace for statements that take a second and are settled in two.
    let mut written = read_toml(&world.settings());
    for (section, name, value) in [
        ("query", "timeout_ms_max", "1_000"),
        ("catalog", "settle_ms_max", "1_000"),
        ("catalog", "read_ms_max", "1_000"),
        ("maintain", "grace_s", "18"),
    ] {
        set(&mut written, section, name, value);
    }
    let file = home.path().join("short.toml");
    std::fs::write(&file, written.to_string()).unwrap();
    let endpoint = weed.endpoint();
    let environment = environment(&endpoint);
    let remove = ["--warehouse", &world.acme.warehouse, "--remove"];
    let young = run_in(&world.settings(), &remove, &environment).await;
    assert!(young.success, "{young:?}");
    assert_eq!(young.table("datasets.kept")["young"], json!(orphans.len()));
    assert_eq!(young.one("summary")["removed"], json!(0));
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    let old = run_in(&file, &remove, &environment).await;
    assert!(old.success, "{old:?}");
    assert_eq!(
        (&old.one("summary")["removed"], &old.one("summary")["failed"]),
        (&json!(orphans.len()), &json!(0))
    );
    assert_eq!(weed.objects(), live);
    assert_eq!(world.acme.rows("SELECT count(*), sum(k) FROM datasets.kept").await, json!([[9, 42]]));
}

/// The answer of a request that succeeds within half a minute, after whatever refusals.
async fn in_the_end(who: &Organisation, body: &Value) -> Value {
    let mut refusal = String::new();
    for _ in 0..300 {
        let answer = who.post(body).await;
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        if status.is_success() {
            return serde_json::from_str(&text).unwrap();
        }
        refusal = text;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("it never succeeded: {refusal}");
}
