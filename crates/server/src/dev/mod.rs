//! The whole system on one machine: embedded catalog, a folder as the store, two organisations with data.
//!
//! What differs from production is where catalog and store are; doors, workers, tokens and addresses are the same.

mod embedded;
mod seed;

use std::path::Path;
use std::time::Duration;

use serde_json::json;

pub(crate) use self::embedded::Embedded;
pub(crate) use self::seed::Seed;
use crate::auth::Auth;
use crate::governance::{Governance, Writes};
use crate::server::Server;

const WORKSPACES: [&str; 2] = ["acme", "globex"];
const TOKEN_TTL: Duration = Duration::from_hours(24);

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A running development server.
pub struct World {
    /// The server.
    pub server: Server,
    url: String,
    service_token: String,
    /// Workspace, warehouse, token.
    organisations: Vec<Organisation>,
    embedded: Embedded,
}

struct Organisation {
    workspace: &'static str,
    warehouse: String,
    token: String,
}

impl World {
    /// Starts everything below `dir`; what is there already is kept.
    pub async fn start(dir: &Path, port: u16) -> Result<World, Failed> {
        let embedded = Embedded::open(dir, port).await?;
        let config = embedded.config.clone();
        let governance = Governance::new(config.warehouse.prefix.clone(), Writes::closed());
        let auth = Auth::new(config.auth.clone())?;
        let service_token = config.auth.service_token.clone().unwrap_or_default().reveal().to_owned();
        let server = Server::start(config, embedded.store.clone()).await?;
        let url = format!("http://{}", server.address);
        let mut organisations = Vec::new();
        for workspace in WORKSPACES {
            let token = auth.mint(workspace, "dev", true, TOKEN_TTL).ok_or("auth.jwt_secret is not set")?;
            embedded.found(&url, workspace, &token, seed::of(workspace)).await?;
            organisations.push(Organisation { workspace, warehouse: governance.name_of(workspace), token });
        }
        Ok(World { server, url, service_token, organisations, embedded })
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
            "catalog_url": self.embedded.catalog_url,
            "pid": std::process::id(),
        })
        .to_string()
    }

    /// What a person needs to begin.
    pub fn welcome(&self) -> String {
        let mut text = format!(
            "duck-server is at {}   (catalog at {}, settings in {})\n",
            self.url,
            self.embedded.catalog_url,
            self.embedded.file.display()
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
