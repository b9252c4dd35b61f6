//! The whole system on one machine: embedded catalog, a folder as the store, two organisations with data.
//!
//! What differs from production is where catalog and store are; doors, workers, tokens and addresses are the same.

mod seed;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use duck_catalog::{Buckets, Catalog};
use object_store::ObjectStore;
use serde_json::json;
use tokio::net::TcpListener;
use toml::{Table, Value};
use uuid::Uuid;

use crate::auth::Auth;
use crate::config::Config;
use crate::doors::storage::Store;
use crate::governance::Governance;
use crate::places;
use crate::server::Server;

const WORKSPACES: [&str; 2] = ["acme", "globex"];
const TOKEN_TTL: Duration = Duration::from_hours(24);
const CATALOG_TOKEN_TTL_S: u64 = 3_600;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A running development server.
pub struct World {
    /// The server.
    pub server: Server,
    url: String,
    service_token: String,
    catalog_url: String,
    /// Workspace, warehouse, token.
    organisations: Vec<Organisation>,
    file: PathBuf,
}

struct Organisation {
    workspace: &'static str,
    warehouse: String,
    token: String,
}

/// The catalog writes its metadata into the store that the storage door serves.
struct SameStore(Store);

impl Buckets for SameStore {
    fn bucket(&self, name: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        self.0.object_store(name)
    }
}

impl World {
    /// Starts everything below `dir`; what is there already is kept.
    pub async fn start(dir: &Path, port: u16) -> Result<World, Failed> {
        std::fs::create_dir_all(dir)?;
        let dir = dir.canonicalize()?;
        let file = dir.join("duck-server.toml");
        let listener = listen(&file).await?;
        let catalog_url = format!("http://{}/catalog", listener.local_addr()?);
        let mut written = settings(&file, &dir, &catalog_url)?;
        set(&mut written, "catalog", "uri", &catalog_url);
        set(&mut written, "catalog", "oauth2_uri", &token_url(&catalog_url));
        written.insert("listen".to_owned(), Value::String(format!("127.0.0.1:{port}")));
        // There is no balancer that would have to notice.
        written.entry("drain_grace_ms").or_insert(Value::Integer(0));
        let config = Config::of(written)?;

        let store = Store::new(config.storage.clone())?;
        let catalog = open_catalog(&dir, &config, store.clone())?;
        let governance = Governance::new(config.warehouse.prefix.clone());
        for workspace in WORKSPACES {
            let name = governance.name_of(workspace);
            let place =
                places::template(&config.warehouse.place, &name).ok_or("warehouse.place is no template")?;
            catalog.create_warehouse(&name, &place.bucket, place.prefix.trim_end_matches('/')).await?;
        }
        tokio::spawn(axum::serve(listener, catalog.router()).into_future());

        let auth = Auth::new(config.auth.clone());
        let service_token = config.auth.service_token.clone().unwrap_or_default();
        let organisations = WORKSPACES
            .into_iter()
            .map(|workspace| {
                let token =
                    auth.mint(workspace, "dev", true, TOKEN_TTL).ok_or("auth.jwt_secret is not set")?;
                Ok(Organisation { workspace, warehouse: governance.name_of(workspace), token })
            })
            .collect::<Result<Vec<_>, Failed>>()?;
        let server = Server::start(config, store).await?;
        let url = format!("http://{}", server.address);
        for organisation in &organisations {
            seed::sow(&url, organisation.workspace, &organisation.token).await?;
        }
        let service_token = service_token.reveal().to_owned();
        Ok(World { server, url, service_token, catalog_url, organisations, file })
    }

    /// One line of JSON for scripts.
    pub fn line(&self) -> String {
        let map = |value: fn(&Organisation) -> &str| -> serde_json::Map<String, serde_json::Value> {
            self.organisations.iter().map(|o| (o.workspace.to_owned(), json!(value(o)))).collect()
        };
        json!({
            "url": self.url,
            "service_token": self.service_token,
            "tokens": map(|o| &o.token),
            "warehouses": map(|o| &o.warehouse),
            "catalog_url": self.catalog_url,
            "pid": std::process::id(),
        })
        .to_string()
    }

    /// What a person needs to begin.
    pub fn welcome(&self) -> String {
        let mut text = format!(
            "duck-server is at {}   (catalog at {}, settings in {})\n",
            self.url,
            self.catalog_url,
            self.file.display()
        );
        for organisation in &self.organisations {
            let Organisation { workspace, warehouse, token } = organisation;
            text.extend(["\n", workspace, ": warehouse ", warehouse, ", token\n", token, "\n"]);
        }
        text.push_str("\nThree lines to paste:\n");
        let curl =
            |token: &str, rest: &str| format!("\ncurl -sS {rest} -H 'Authorization: Bearer {token}'\n");
        let query = |sql: &str| {
            let body = json!({"sql": sql, "format": "json"});
            format!("{}/query -H 'Content-Type: application/json' -d '{body}'", self.url)
        };
        let first = "SELECT * FROM datasets.ds_toydemo001 ORDER BY 1 LIMIT 5";
        if let [acme, globex] = self.organisations.as_slice() {
            text.push_str(&curl(&acme.token, &query(first)));
            text.push_str(&curl(&globex.token, &query(first)));
            text.push_str(&curl(&acme.token, &format!("{}/tables", self.url)));
        }
        text.push_str("\nCtrl-C stops it and leaves nothing behind but its data.");
        text
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
             [storage]\nkind = \"local\"\npath = {}\nledger_path = {}\n",
            secret(),
            secret(),
            token_url(catalog_url),
            secret(),
            quoted(dir.join("store")),
            quoted(dir.join("deferred-deletes.jsonl")),
        );
        std::fs::write(file, text)?;
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    }
    Ok(std::fs::read_to_string(file)?.parse()?)
}

fn set(written: &mut Table, section: &str, name: &str, value: &str) {
    let section = written.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if let Some(section) = section.as_table_mut() {
        section.insert(name.to_owned(), Value::String(value.to_owned()));
    }
}
