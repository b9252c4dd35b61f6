//! The embedded catalog and the folder that is its store: what `dev` and `loadtest` stand on.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duck_catalog::{Buckets, Catalog};
use object_store::ObjectStore;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use toml::{Table, Value};
use uuid::Uuid;

use super::seed::{self, Seed};
use crate::config::Config;
use crate::doors::storage::Store;
use crate::governance::{Governance, Writes};
use crate::places;

const CATALOG_TOKEN_TTL_S: u64 = 3_600;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A catalog that answers, below a folder. It ends when this is dropped; the folder stays.
pub(crate) struct Embedded {
    /// The settings that lead to it, as a file would hold them.
    pub(crate) written: Table,
    /// The same, read.
    pub(crate) config: Config,
    /// Where data and metadata lie.
    pub(crate) store: Store,
    /// Where it answers.
    pub(crate) catalog_url: String,
    /// The file of the settings.
    pub(crate) file: PathBuf,
    catalog: Catalog,
    serving: JoinHandle<std::io::Result<()>>,
}

/// The catalog writes its metadata into the store that the storage door serves.
struct SameStore(Store);

impl Buckets for SameStore {
    fn bucket(&self, name: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        self.0.object_store(name)
    }
}

impl Embedded {
    /// Opens what is below `dir`, and makes what is not there yet; a server by its settings listens on this port.
    pub(crate) async fn open(dir: &Path, port: u16) -> Result<Embedded, Failed> {
        std::fs::create_dir_all(dir)?;
        let dir = dir.canonicalize()?;
        let file = dir.join("duck-server.toml");
        let listener = listen(&file).await?;
        let catalog_url = format!("http://{}/catalog", listener.local_addr()?);
        let mut written = settings(&file, &dir, &catalog_url)?;
        let policy = policy(&dir)?;
        let writes = written.entry("writes").or_insert_with(|| Value::Table(Table::new()));
        if let Some(writes) = writes.as_table_mut() {
            writes.entry("policy").or_insert(Value::String(policy.to_string_lossy().into_owned()));
        }
        let audit = written.entry("audit").or_insert_with(|| Value::Table(Table::new()));
        if let Some(audit) = audit.as_table_mut() {
            let file = dir.join("audit.jsonl").to_string_lossy().into_owned();
            // Not in the file of the settings: a second server by them would want the same file.
            audit.entry("file").or_insert(Value::String(file));
        }
        set(&mut written, "catalog", "uri", &catalog_url);
        set(&mut written, "catalog", "oauth2_uri", &token_url(&catalog_url));
        written.insert("listen".to_owned(), Value::String(format!("127.0.0.1:{port}")));
        // There is no balancer that would have to notice.
        written.entry("drain_grace_ms").or_insert(Value::Integer(0));
        let config = Config::of(written.clone())?;
        let store = Store::new(config.storage.clone())?;
        let catalog = open_catalog(&dir, &config, store.clone())?;
        let serving = tokio::spawn(axum::serve(listener, catalog.router()).into_future());
        Ok(Embedded { written, config, store, catalog_url, file, catalog, serving })
    }

    /// Makes a workspace's warehouse and, through the front door at `url`, those of its tables that are not there yet. The
    /// token has to grant writing.
    pub(crate) async fn found(
        &self,
        url: &str,
        workspace: &str,
        token: &str,
        tables: &[Seed],
    ) -> Result<(), Failed> {
        let settings = &self.config.warehouse;
        let name = Governance::new(settings.prefix.clone(), Writes::closed()).name_of(workspace);
        let place = places::template(&settings.place, &name).ok_or("warehouse.place is no template")?;
        self.catalog.create_warehouse(&name, &place.bucket, place.prefix.trim_end_matches('/')).await?;
        seed::sow(url, workspace, token, tables).await
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn open_catalog(dir: &Path, config: &Config, store: Store) -> Result<Catalog, Failed> {
    let secret = config.catalog.client_secret.as_ref().map(|s| s.reveal().to_owned());
    Ok(Catalog::open(
        duck_catalog::Settings {
            database: dir.join("catalog.sqlite"),
            client_id: config.catalog.client_id.clone().unwrap_or_default(),
            client_secret: secret.unwrap_or_default(),
            token_ttl_s: CATALOG_TOKEN_TTL_S,
        },
        Arc::new(SameStore(store)),
    )?)
}

/// The catalog's socket: on the port of the last time, if it is free.
async fn listen(file: &Path) -> std::io::Result<TcpListener> {
    let written: Table =
        std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok()).unwrap_or_default();
    let uri = written
        .get("catalog")
        .and_then(|catalog| catalog.get("uri"))
        .and_then(Value::as_str)
        .unwrap_or_default();
    let port = uri
        .trim_end_matches("/catalog")
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok())
        .unwrap_or(0);
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await,
    }
}

fn token_url(catalog_url: &str) -> String {
    format!("{catalog_url}/v1/oauth/tokens")
}

/// The settings of this folder, with secrets of its own, written once.
fn settings(file: &Path, dir: &Path, catalog_url: &str) -> Result<Table, Failed> {
    if !file.exists() {
        let secret = || format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let quoted = |path: PathBuf| Value::String(path.to_string_lossy().into_owned()).to_string();
        let text = format!(
            "# Made by `duck-server dev`. `duck-server token --config` mints from it; `duck-server serve --config` is a second\n\
             # server on the same catalog while `dev` runs.\n\n\
             [auth]\njwt_secret = \"{}\"\nservice_token = \"{}\"\n\n\
             [warehouse]\nprefix = \"duck-dev\"\nplace = \"s3://lakehouse/{{warehouse}}/\"\n\n\
             [catalog]\nuri = \"{catalog_url}\"\noauth2_uri = \"{}\"\nclient_id = \"duck-server\"\nclient_secret = \"{}\"\n\n\
             [writes]\npolicy = {}\n\n\
             [storage]\nkind = \"local\"\npath = {}\nledger_path = {}\n",
            secret(),
            secret(),
            token_url(catalog_url),
            secret(),
            quoted(dir.join("writes.toml")),
            quoted(dir.join("store")),
            quoted(dir.join("deferred-deletes.jsonl")),
        );
        std::fs::write(file, text)?;
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    }
    Ok(std::fs::read_to_string(file)?.parse()?)
}

/// Who may write in this folder's warehouses, written once: everybody whose token says so.
fn policy(dir: &Path) -> std::io::Result<PathBuf> {
    let path = dir.join("writes.toml");
    if !path.exists() {
        let text = "# Who may write what; the server follows changes of this file. See docs/operating.md.\n\n\
                    write_target = \"iceberg_native\"\n";
        std::fs::write(&path, text)?;
    }
    Ok(path)
}

fn set(written: &mut Table, section: &str, name: &str, value: &str) {
    let section = written.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if let Some(section) = section.as_table_mut() {
        section.insert(name.to_owned(), Value::String(value.to_owned()));
    }
}
