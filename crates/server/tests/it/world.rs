//! A running development server, and how tests speak to it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::ipc::reader::StreamReader;
use duck_contract::{Code, Problem};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;

/// A server process. It ends when this is dropped, and when the test process ends in whatever way: the shell around it waits
/// for the end of its standard input.
pub struct Process {
    shell: Child,
    stdin: Option<ChildStdin>,
    /// What it writes to standard error.
    pub log: PathBuf,
    /// Its first line on standard output.
    pub line: String,
}

// A folder named by `REMOVE` goes with it: statics are never dropped, so their folders would stay behind.
// The shell lets go of standard output, so that a server that does not start is noticed.
const SHELL: &str = "\"$@\" </dev/null & p=$!; exec >/dev/null; cat; kill -TERM $p 2>/dev/null; wait $p; \
                     [ -z \"$REMOVE\" ] || rm -rf \"$REMOVE\"";

impl Process {
    /// Starts `duck-server` with these arguments and waits for its first line.
    pub fn start(arguments: &[&str], environment: &[(&str, &str)], log: PathBuf) -> Process {
        let program = [env!("CARGO_BIN_EXE_duck-server")];
        let all: Vec<&str> = program.iter().chain(arguments).copied().collect();
        Process::run(&all, environment, log)
    }

    /// The same for any command.
    pub fn run(command: &[&str], environment: &[(&str, &str)], log: PathBuf) -> Process {
        let mut shell = Command::new("sh")
            .args(["-c", SHELL, "sh"])
            .args(command)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let stdin = shell.stdin.take();
        let mut stdout = BufReader::new(shell.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the server did not start: {}", std::fs::read_to_string(&log).unwrap());
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        Process { shell, stdin, log, line }
    }

    /// The server's own pid: the shell's child.
    pub fn pid(&self) -> i32 {
        children(i32::try_from(self.shell.id()).unwrap())[0]
    }

    /// Stops it as Ctrl-C would and waits until it has ended.
    pub fn stop(&mut self) {
        self.stdin.take();
        let _ = self.shell.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A server to speak to.
pub struct World {
    pub process: Process,
    pub dir: PathBuf,
    pub url: String,
    pub catalog_url: String,
    pub service_token: String,
    pub acme: Organisation,
    pub globex: Organisation,
    pub pid: i32,
    pub http: reqwest::Client,
    home: Option<TempDir>,
}

/// Somebody with a token.
#[derive(Clone)]
pub struct Organisation {
    pub url: String,
    pub token: String,
    pub warehouse: String,
    pub http: reqwest::Client,
}

/// One server for all tests that leave it as they found it.
pub async fn shared() -> &'static World {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let dir = tempfile::tempdir().unwrap().keep();
            World::open(&dir, &[], &[("REMOVE", dir.to_str().unwrap())]).await
        })
        .await
}

impl World {
    /// A server of its own, with these settings over the defaults: `("pool", "workers_max", "2")`, the value as TOML.
    pub async fn start(settings: &[(&str, &str, &str)]) -> World {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().to_owned();
        let mut world = World::open(&dir, settings, &[]).await;
        world.home = Some(home);
        world
    }

    /// A server on a folder that stays.
    #[allow(clippy::unused_async)] // as `start`, for whoever calls either
    pub async fn open(dir: &Path, settings: &[(&str, &str, &str)], environment: &[(&str, &str)]) -> World {
        let file = dir.join("duck-server.toml");
        if !settings.is_empty() {
            // The first start writes the file with its secrets; the settings go into it.
            if !file.exists() {
                drop(Process::start(&dev(dir), environment, dir.join("first.log")));
            }
            let mut written = read_toml(&file);
            for (section, name, value) in settings {
                set(&mut written, section, name, value);
            }
            std::fs::write(&file, written.to_string()).unwrap();
        }
        let process = Process::start(&dev(dir), environment, dir.join("server.log"));
        let line: Value = serde_json::from_str(&process.line).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let http = client();
        let organisation = |name: &str| Organisation {
            url: text(&line["url"]),
            token: text(&line["tokens"][name]),
            warehouse: text(&line["warehouses"][name]),
            http: http.clone(),
        };
        World {
            dir: dir.to_owned(),
            url: text(&line["url"]),
            catalog_url: text(&line["catalog_url"]),
            service_token: text(&line["service_token"]),
            acme: organisation("acme"),
            globex: organisation("globex"),
            pid: i32::try_from(line["pid"].as_i64().unwrap()).unwrap(),
            http: http.clone(),
            process,
            home: None,
        }
    }

    /// What the store holds, relative to the bucket.
    pub fn stored(&self) -> Vec<String> {
        let root = self.dir.join("store/lakehouse");
        let mut found = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().map_while(Result::ok) {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    found.push(entry.path().strip_prefix(&root).unwrap().to_string_lossy().into_owned());
                }
            }
        }
        found.sort();
        found
    }

    /// The pids of this server's workers: the children of its children.
    pub fn workers(&self) -> Vec<i32> {
        workers_of(self.pid)
    }

    /// Makes a warehouse in the catalog while the server runs, for this workspace.
    pub async fn found(&self, workspace: &str) {
        let name = self.acme.warehouse.replace("acme", workspace);
        let profile = json!({"type": "s3", "bucket": "lakehouse", "key-prefix": name});
        let url = format!("{}/management/v1/warehouse", self.catalog_url.trim_end_matches("/catalog"));
        let body = json!({"warehouse-name": name, "storage-profile": profile});
        let ask = self.http.post(url).bearer_auth(self.catalog_token().await).json(&body);
        let answer = ask.send().await.unwrap();
        assert_eq!(answer.status(), 201, "{}", answer.text().await.unwrap());
    }

    /// A trusted back end, which names its workspace in each request.
    pub fn back_end(&self) -> Organisation {
        Organisation { token: self.service_token.clone(), ..self.acme.clone() }
    }

    /// What is taken and what is free.
    pub async fn status(&self) -> Value {
        let ask = self.http.get(format!("{}/status", self.url)).bearer_auth(&self.service_token);
        ask.send().await.unwrap().json().await.unwrap()
    }

    /// Waits until nothing runs and nobody waits: every slot, lease and ticket was given back.
    pub async fn is_at_rest(&self) {
        status_at_rest(&self.http, &self.url, &self.service_token).await.unwrap();
    }

    /// The statements of a workspace that are there now.
    pub async fn queries(&self, who: &Organisation) -> Value {
        let ask = self.http.get(format!("{}/queries", self.url)).bearer_auth(&who.token);
        ask.send().await.unwrap().json::<Value>().await.unwrap()["queries"].clone()
    }

    /// A catalog of somebody who may do anything there: bearer token.
    pub async fn catalog_token(&self) -> String {
        let file = read_toml(&self.dir.join("duck-server.toml"));
        let text = |name: &str| file["catalog"][name].as_str().unwrap().to_owned();
        let form = [
            ("grant_type", "client_credentials".to_owned()),
            ("client_id", text("client_id")),
            ("client_secret", text("client_secret")),
        ];
        let url = format!("{}/v1/oauth/tokens", self.catalog_url);
        let answer: Value = self.http.post(url).form(&form).send().await.unwrap().json().await.unwrap();
        answer["access_token"].as_str().unwrap().to_owned()
    }

    /// Asks the catalog itself, past the doors.
    pub async fn catalog(&self, path: &str) -> Value {
        let token = self.catalog_token().await;
        let url = format!("{}{path}", self.catalog_url);
        self.http.get(url).bearer_auth(token).send().await.unwrap().json().await.unwrap()
    }

    /// Searches the log for everything that must not be in it.
    pub fn log_holds_no_secret(&self) {
        let file = std::fs::read_to_string(self.dir.join("duck-server.toml")).unwrap();
        let file: toml::Table = file.parse().unwrap();
        let mut secrets =
            vec![self.acme.token.clone(), self.globex.token.clone(), "planted-bearer-token".to_owned()];
        for (section, name) in
            [("auth", "jwt_secret"), ("auth", "service_token"), ("catalog", "client_secret")]
        {
            secrets.push(file[section][name].as_str().unwrap().to_owned());
        }
        let log = std::fs::read_to_string(&self.process.log).unwrap();
        assert!(log.contains("request_id"), "the log is there");
        for secret in secrets {
            assert!(!log.contains(&secret), "the log holds a secret");
        }
    }

    /// The catalog's id of a warehouse.
    pub async fn prefix(&self, warehouse: &str) -> String {
        let config = self.catalog(&format!("/v1/config?warehouse={warehouse}")).await;
        config["defaults"]["prefix"].as_str().unwrap().to_owned()
    }
}

/// The log of every world is searched at its end, so that every test is one of what is logged, too.
impl Drop for World {
    fn drop(&mut self) {
        self.process.stop();
        if !std::thread::panicking() {
            self.log_holds_no_secret();
        }
    }
}

fn dev(dir: &Path) -> [&str; 8] {
    ["dev", "--json", "--port", "0", "--dir", dir.to_str().unwrap(), "--log-level", "debug,hyper_util=info"]
}

/// A file of settings.
pub fn read_toml(file: &Path) -> toml::Table {
    std::fs::read_to_string(file).unwrap().parse().unwrap()
}

/// Sets one of them; the value is TOML. An empty section is the file's top.
pub fn set(written: &mut toml::Table, section: &str, name: &str, value: &str) {
    let mut parsed: toml::Table = format!("value = {value}").parse().unwrap();
    let value = parsed.remove("value").unwrap();
    let table = match section {
        "" => written,
        _ => written.entry(section).or_insert_with(|| toml::Table::new().into()).as_table_mut().unwrap(),
    };
    table.insert(name.to_owned(), value);
}

/// A token that is signed with this secret and holds for ten minutes.
pub fn token(secret: &str, claims: &Value) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let mut all = json!({"sub": "test", "iat": now, "exp": now + 600});
    all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
    let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes()).unwrap();
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &all, &key).unwrap()
}

pub fn client() -> reqwest::Client {
    // No connection is kept: it would end with the runtime of the test that opened it, in the middle of another's request.
    let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0);
    client.timeout(Duration::from_mins(2)).build().unwrap()
}

pub fn children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().map_while(Result::ok);
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<i32>>())
        .collect()
}

/// The pids of a server's workers: the children of its children.
pub fn workers_of(server: i32) -> Vec<i32> {
    children(server).into_iter().flat_map(children).collect()
}

/// Sends a signal to a process of this test's server.
pub fn kill(pid: i32, signal: rustix::process::Signal) {
    // It may have ended by itself.
    let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal);
}

/// Waits until nothing runs at this server and nobody waits. If something stays taken: what.
pub async fn status_at_rest(http: &reqwest::Client, url: &str, service_token: &str) -> Result<(), Value> {
    const NONE: [&str; 7] = [
        "/queries",
        "/limits/running",
        "/limits/waiting",
        "/limits/tenants",
        "/pool/leases",
        "/pool/tickets",
        "/pool/starting",
    ];
    let mut status = Value::Null;
    for _ in 0..500 {
        let ask = http.get(format!("{url}/status")).bearer_auth(service_token);
        status = ask.send().await.unwrap().json().await.unwrap();
        if NONE.iter().all(|gauge| status.pointer(gauge).unwrap() == 0) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(status)
}

/// User and system time of a process, in clock ticks; 0 when it is gone.
pub fn cpu_ticks(pid: i32) -> u64 {
    let field = |number| stat_field(Path::new(&format!("/proc/{pid}")), number);
    let ticks = |number| field(number).map_or(0, |ticks| ticks.parse::<u64>().unwrap());
    ticks(14) + ticks(15)
}

/// A field of the `stat` of a process or thread, by its number in proc(5) from 3 on; none when it is gone.
pub fn stat_field(folder: &Path, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(number - 3).map(str::to_owned)
}

/// Waits until it is so, or fails after ten seconds.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to be that {what}");
}

/// The same for what has to be asked for.
pub async fn until_async(what: &str, mut so: impl AsyncFnMut() -> bool) {
    for _ in 0..1_500 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to be that {what}");
}

impl Organisation {
    /// `POST /query` with this body.
    pub async fn post(&self, body: &Value) -> reqwest::Response {
        self.http
            .post(format!("{}/query", self.url))
            .bearer_auth(&self.token)
            .json(body)
            .send()
            .await
            .unwrap()
    }

    /// The same under an id of the client's own.
    pub async fn post_as(&self, id: &str, body: &Value) -> reqwest::Response {
        let ask = self.http.post(format!("{}/query", self.url)).bearer_auth(&self.token);
        ask.header("x-request-id", id).json(body).send().await.unwrap()
    }

    /// `DELETE /queries/{id}`.
    pub async fn cancel(&self, id: &str) -> reqwest::Response {
        self.http.delete(format!("{}/queries/{id}", self.url)).bearer_auth(&self.token).send().await.unwrap()
    }

    /// The rows of a statement that must succeed, as JSON.
    pub async fn rows(&self, sql: &str) -> Value {
        self.json(json!({"sql": sql, "format": "json"})).await["rows"].clone()
    }

    /// Runs a statement with write access; it must succeed.
    pub async fn write(&self, sql: &str) -> Value {
        self.json(json!({"sql": sql, "format": "json", "allow_writes": true})).await["rows"].clone()
    }

    /// The whole JSON answer of a request that must succeed.
    pub async fn json(&self, body: Value) -> Value {
        let answer = self.post(&body).await;
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{body}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// The batches of a statement that must succeed, as Arrow.
    pub async fn arrow(&self, sql: &str) -> Vec<RecordBatch> {
        let answer = self.post(&json!({"sql": sql})).await;
        assert!(answer.status().is_success(), "{sql}: {}", answer.text().await.unwrap());
        let bytes = answer.bytes().await.unwrap();
        StreamReader::try_new(bytes.as_ref(), None).unwrap().map(Result::unwrap).collect()
    }

    /// The problem of a request that must fail.
    pub async fn problem(&self, body: &Value) -> Problem {
        problem(self.post(body).await).await
    }
}

/// The problem of an answer that must be one.
pub async fn problem(answer: reqwest::Response) -> Problem {
    let status = answer.status().as_u16();
    let media_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let text = answer.text().await.unwrap();
    assert_eq!(media_type, "application/problem+json", "{status} {text}");
    let problem: Problem = serde_json::from_str(&text).unwrap();
    assert_eq!((problem.status, problem.code.status()), (status, status), "{text}");
    assert_eq!(problem.request_id, id);
    assert!(!problem.detail.is_empty());
    problem
}

/// A statement is refused with this code.
pub async fn refused(who: &Organisation, sql: &str, code: Code) {
    let problem = who.problem(&json!({"sql": sql})).await;
    assert_eq!(problem.code, code, "{sql}: {}", problem.detail);
}

/// The same for a statement with write access.
pub async fn refused_writing(who: &Organisation, sql: &str, code: Code) {
    let problem = who.problem(&json!({"sql": sql, "allow_writes": true})).await;
    assert_eq!(problem.code, code, "{sql}: {}", problem.detail);
}

/// Runs a Python program of this folder in the tests' environment: what it prints, as JSON.
pub fn python(program: &str, input: &Value) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut child = Command::new(root.join("../../.venv/bin/python"))
        .arg(root.join("tests/it").join(program))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("scripts/test-setup.sh makes .venv");
    serde_json::to_writer(child.stdin.take().unwrap(), input).unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success(), "{program}: {}", &err[err.len().saturating_sub(3_000)..]);
    serde_json::from_str(&out).unwrap()
}
