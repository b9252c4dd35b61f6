//! The server, and the object store where one is compared with bare DuckDB.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::Failed;
use crate::client::{self, Client};
use crate::usage;

/// Secrets of a server that lives for a minute, on loopback, with made-up data.
pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";
const PREFIX: &str = "duck-dev";
pub(crate) const BUCKET: &str = "lakehouse";
pub(crate) const REGION: &str = "us-east-1";

/// A process that is told to end, and waited for, when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        // SeaweedFS may hold on for ever.
        for _ in 0..100 {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder in which a server can be started again and again.
pub(crate) struct Site {
    home: TempDir,
    store: Option<Weed>,
}

/// `duck-server dev` on a site.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) catalog_url: String,
}

impl Site {
    /// With a folder as the store.
    pub(crate) fn local() -> Result<Site, Failed> {
        Ok(Site { home: tempfile::tempdir()?, store: None })
    }

    /// With `SeaweedFS` as the store.
    pub(crate) async fn weed() -> Result<Site, Failed> {
        let home = tempfile::tempdir()?;
        let store = Some(Weed::start(home.path()).await?);
        Ok(Site { home, store })
    }

    /// The store, where it is a server.
    pub(crate) fn store(&self) -> Result<&Weed, Failed> {
        self.store.as_ref().ok_or_else(|| "the store is a folder".into())
    }

    /// Starts the server with these settings besides (TOML).
    #[allow(clippy::unused_async)] // as the others, for whoever calls them
    pub(crate) async fn start(&self, settings: &str) -> Result<Server, Failed> {
        let dir = self.home.path().join("dev");
        std::fs::create_dir_all(&dir)?;
        let storage = match &self.store {
            None => format!("kind = \"local\"\npath = \"{}\"", dir.join("store").display()),
            Some(weed) => format!(
                "kind = \"s3\"\nendpoint = \"http://{}\"\nallow_http = true\nregion = \"{REGION}\"\n\
                 access_key_id = \"{}\"\nsecret_access_key = \"{}\"",
                weed.endpoint,
                Weed::KEY_ID,
                Weed::SECRET,
            ),
        };
        let text = format!(
            "[auth]\njwt_secret = \"{SECRET}\"\nservice_token = \"{SECRET}\"\n\
             [warehouse]\nprefix = \"{PREFIX}\"\nplace = \"s3://{BUCKET}/{{warehouse}}/\"\n\
             [catalog]\nuri = \"http://127.0.0.1:0/catalog\"\noauth2_uri = \"http://127.0.0.1:1/oauth\"\nclient_id = \"bench\"\nclient_secret = \"{SECRET}\"\n\
             [storage]\n{storage}\n{settings}\n"
        );
        std::fs::write(self.file(), text)?;
        let log = std::fs::File::create(self.home.path().join("server.log"))?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_duck-server"))
            .args(["dev", "--json", "--port", "0", "--dir"])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no standard output")?;
        let process = Process(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.is_empty() {
            return Err(std::fs::read_to_string(self.home.path().join("server.log"))?.into());
        }
        let line: Value = serde_json::from_str(&line)?;
        let text = |name: &str| line[name].as_str().unwrap_or_default();
        let address = text("url").trim_start_matches("http://").parse()?;
        Ok(Server { process, address, catalog_url: text("catalog_url").to_owned() })
    }

    /// A token of a workspace, as the command line mints it.
    pub(crate) fn token(&self, workspace: &str) -> Result<String, Failed> {
        let minted = Command::new(env!("CARGO_BIN_EXE_duck-server"))
            .args(["token", "--write", "--workspace", workspace, "--config"])
            .arg(self.file())
            .output()?;
        if !minted.status.success() {
            return Err(String::from_utf8_lossy(&minted.stderr).into_owned().into());
        }
        Ok(String::from_utf8(minted.stdout)?.trim().to_owned())
    }

    /// What the server has logged.
    pub(crate) fn log(&self) -> Result<String, Failed> {
        Ok(std::fs::read_to_string(self.home.path().join("server.log"))?)
    }

    fn file(&self) -> PathBuf {
        self.home.path().join("dev/duck-server.toml")
    }
}

/// The warehouse of a workspace.
pub(crate) fn warehouse(workspace: &str) -> String {
    format!("{PREFIX}-w_{workspace}")
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// The process that workers are forked from.
    pub(crate) fn zygote(&self) -> Result<u32, Failed> {
        usage::children(self.pid()).first().copied().ok_or_else(|| "no zygote".into())
    }

    /// The workers there are.
    pub(crate) fn workers(&self) -> Vec<u32> {
        usage::children(self.pid()).into_iter().flat_map(usage::children).collect()
    }

    pub(crate) async fn client(&self) -> Result<Client, Failed> {
        Client::connect(self.address).await
    }

    /// What is taken and what is free.
    pub(crate) async fn status(&self) -> Result<Value, Failed> {
        let ask = http()?.get(format!("http://{}/status", self.address)).bearer_auth(SECRET);
        Ok(ask.send().await?.error_for_status()?.json().await?)
    }

    /// A query of a workspace, by the service token: JSON comes back.
    pub(crate) fn query(workspace: &str, sql: &str) -> Vec<u8> {
        client::query(SECRET, &json!({"sql": sql, "format": "json", "workspace_id": workspace}))
    }

    /// A bearer token for the catalog itself.
    pub(crate) async fn catalog_token(&self) -> Result<String, Failed> {
        let form = [("grant_type", "client_credentials"), ("client_id", "bench"), ("client_secret", SECRET)];
        let url = format!("{}/v1/oauth/tokens", self.catalog_url);
        let answer: Value = http()?.post(url).form(&form).send().await?.error_for_status()?.json().await?;
        Ok(answer["access_token"].as_str().ok_or("no token")?.to_owned())
    }

    /// Makes warehouses for these workspaces, each with one small table: `datasets.t (i, city, price)`.
    pub(crate) async fn found(&self, workspaces: &[String], rows: u64) -> Result<(), Failed> {
        let token = self.catalog_token().await?;
        let url = format!("{}/management/v1/warehouse", self.catalog_url.trim_end_matches("/catalog"));
        let mut client = self.client().await?;
        for workspace in workspaces {
            let name = warehouse(workspace);
            let profile = json!({"type": "s3", "bucket": BUCKET, "key-prefix": name});
            let body = json!({"warehouse-name": name, "storage-profile": profile});
            http()?.post(&url).bearer_auth(&token).json(&body).send().await?.error_for_status()?;
            let table = format!(
                "CREATE TABLE lake.datasets.t AS SELECT i, 'city ' || i % 97 AS city, i % 1000 / 8.0 AS price \
                 FROM range({rows}) t(i)"
            );
            for sql in ["CREATE SCHEMA lake.datasets", &table] {
                let body =
                    json!({"sql": sql, "format": "json", "workspace_id": workspace, "allow_writes": true});
                client.ask(&client::query(SECRET, &body)).await?;
            }
        }
        Ok(())
    }
}

fn http() -> Result<reqwest::Client, Failed> {
    Ok(reqwest::Client::builder().no_proxy().build()?)
}

/// An S3 server with one bucket.
pub(crate) struct Weed {
    process: Process,
    pub(crate) endpoint: String,
}

impl Weed {
    pub(crate) const KEY_ID: &str = "bench";
    pub(crate) const SECRET: &str = "benchsecret";

    async fn start(home: &Path) -> Result<Weed, Failed> {
        let data = home.join("weed");
        std::fs::create_dir(&data)?;
        let ports = free_ports(9)?;
        let port = |name: &str, index: usize| format!("-{name}={}", ports[index]);
        let child = Command::new(root().join(".venv/bin/weed"))
            .args(["mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false"])
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"])
            .arg(format!("-dir={}", data.display()))
            .arg(format!("-bucket={BUCKET}"))
            .args([port("master.port", 0), port("master.port.grpc", 1), port("volume.port", 2)])
            .args([port("volume.port.grpc", 3), port("filer.port", 4), port("filer.port.grpc", 5)])
            .args([port("s3.port", 6), port("s3.port.grpc", 7), port("admin.port", 8)])
            .env("AWS_ACCESS_KEY_ID", Weed::KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", Weed::SECRET)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(home.join("weed.log"))?)
            .stderr(std::fs::File::create(home.join("weed.err"))?)
            .spawn()?;
        let weed = Weed { process: Process(child), endpoint: format!("127.0.0.1:{}", ports[6]) };
        let patience = Instant::now() + Duration::from_secs(30);
        // Without a key the bucket is forbidden; before it is there, it is not found.
        while http()?
            .get(format!("http://{}/{BUCKET}", weed.endpoint))
            .send()
            .await
            .map(|a| a.status().as_u16())
            .ok()
            != Some(403)
        {
            if Instant::now() > patience {
                return Err(format!(
                    "SeaweedFS does not get ready: {}",
                    std::fs::read_to_string(home.join("weed.err"))?
                )
                .into());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(weed)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }
}

/// Ports that were free a moment ago. The gRPC port of the admin server is its own plus 10,000, so they are low enough.
fn free_ports(count: usize) -> Result<Vec<u16>, Failed> {
    let free = (21_000..29_000).filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let ports: Vec<u16> = free.take(count).collect();
    if ports.len() == count { Ok(ports) } else { Err("no free ports".into()) }
}

/// The checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
