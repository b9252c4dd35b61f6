//! Settings: written in a file and the environment, checked once, handed down to each stage as its own part.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::doors::{catalog, storage};
use crate::{audit, auth, governance, journey, limits, maintain, places, pool, statements};

/// Environment variable → setting. The names are those that the platform uses already; they win over the file.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("LAKEHOUSE_CATALOG_URI", "catalog.uri"),
    ("LAKEHOUSE_CATALOG_CLIENT_ID", "catalog.client_id"),
    ("LAKEHOUSE_CATALOG_CLIENT_SECRET", "catalog.client_secret"),
    ("LAKEHOUSE_CATALOG_SCOPE", "catalog.scope"),
    ("LAKEHOUSE_OAUTH2_URI", "catalog.oauth2_uri"),
    ("LAKEHOUSE_S3_ENDPOINT", "storage.endpoint"),
    ("LAKEHOUSE_S3_REGION", "storage.region"),
    ("LAKEHOUSE_S3_ACCESS_KEY_ID", "storage.access_key_id"),
    ("LAKEHOUSE_S3_SECRET_ACCESS_KEY", "storage.secret_access_key"),
    ("LAKEHOUSE_S3_RO_ACCESS_KEY_ID", "storage.ro_access_key_id"),
    ("LAKEHOUSE_S3_RO_SECRET_ACCESS_KEY", "storage.ro_secret_access_key"),
    ("LAKEHOUSE_WAREHOUSE_PREFIX", "warehouse.prefix"),
    ("DUCK_S3_SCOPE", "warehouse.place"),
    ("DUCK_SERVER_WRITES_POLICY", "writes.policy"),
    ("DUCK_SERVER_TOKEN", "auth.service_token"),
    ("DUCK_SERVER_JWT_SECRET", "auth.jwt_secret"),
    ("DUCK_SERVER_JWKS_URI", "auth.jwks_uri"),
    ("DUCK_SERVER_JWT_ISSUER", "auth.jwt_issuer"),
    ("DUCK_SERVER_JWT_AUDIENCE", "auth.jwt_audience"),
    ("MAX_QUERY_ROWS", "query.rows_max"),
    ("PORT", "port"),
];

/// Everything that can be set.
#[derive(Debug, Clone, Serialize)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The largest body of a request, bytes.
    pub body_bytes_max: usize,
    /// How long `/ready` says no before the server stops listening, so that a balancer notices, milliseconds.
    pub drain_grace_ms: u64,
    /// How long running statements may go on after that, milliseconds.
    pub drain_ms_max: u64,
    /// A client that takes nothing of its answer for so long is cut off, milliseconds.
    pub stall_ms_max: u64,
    /// Where the server makes its folder for workers' sockets and spilled data, and removes it again; the system's temporary
    /// folder when not set. It must exist.
    pub runtime_dir: Option<PathBuf>,
    /// How callers prove who they are.
    pub auth: auth::Settings,
    /// Where warehouses are.
    pub warehouse: places::Settings,
    /// Who may write.
    pub writes: governance::Settings,
    /// The catalog.
    pub catalog: catalog::Settings,
    /// The object store.
    pub storage: storage::Settings,
    /// Admission.
    pub limits: limits::Settings,
    /// The pool.
    pub pool: pool::Settings,
    /// What a worker is.
    pub worker: pool::WorkerSettings,
    /// Ceilings of a query.
    pub query: journey::Settings,
    /// Statements whose answers are kept.
    pub statements: statements::Settings,
    /// What nobody needs any more in the store.
    pub maintain: maintain::Settings,
    /// What is recorded of statements, and where.
    pub audit: audit::Settings,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Top {
    listen: SocketAddr,
    port: Option<u16>,
    body_bytes_max: usize,
    drain_grace_ms: u64,
    drain_ms_max: u64,
    stall_ms_max: u64,
    runtime_dir: Option<PathBuf>,
}

impl Default for Top {
    fn default() -> Self {
        Top {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            port: None,
            body_bytes_max: 4 << 20,
            drain_grace_ms: 5_000,
            drain_ms_max: 30_000,
            stall_ms_max: 30_000,
            runtime_dir: None,
        }
    }
}

/// Everything that is wrong with what was written.
#[derive(Debug, thiserror::Error)]
#[error("the configuration has faults:\n  {}", .0.join("\n  "))]
pub struct Faults(pub Vec<String>);

impl Config {
    /// Reads the file, if one is named, and the environment over it.
    pub fn load(file: Option<&Path>) -> Result<Config, Faults> {
        Config::of(Config::written(file)?)
    }

    /// What stands in the file, if one is named, and nothing else.
    pub fn written(file: Option<&Path>) -> Result<Table, Faults> {
        file.map_or_else(|| Ok(Table::new()), read)
    }

    /// From a table as a file would hold it, and the environment over it.
    pub fn of(written: Table) -> Result<Config, Faults> {
        // The one place where the environment is read.
        #[allow(clippy::disallowed_methods)]
        Config::assemble(written, |name| std::env::var(name).ok())
    }

    fn assemble(mut written: Table, environment: impl Fn(&str) -> Option<String>) -> Result<Config, Faults> {
        for (name, setting) in ENVIRONMENT {
            if let Some(value) = environment(name).filter(|value| !value.is_empty()) {
                put(&mut written, setting, value);
            }
        }
        infer_storage(&mut written);
        let mut faults = Vec::new();
        let auth = section::<auth::Settings>(&mut written, "auth", &mut faults);
        let warehouse = section::<places::Settings>(&mut written, "warehouse", &mut faults);
        let writes = section::<governance::Settings>(&mut written, "writes", &mut faults);
        let catalog = section::<catalog::Settings>(&mut written, "catalog", &mut faults);
        let storage = section::<storage::Settings>(&mut written, "storage", &mut faults);
        let limits = section::<limits::Settings>(&mut written, "limits", &mut faults);
        let mut pool = section::<pool::Settings>(&mut written, "pool", &mut faults);
        let mut worker = section::<pool::WorkerSettings>(&mut written, "worker", &mut faults);
        let query = section::<journey::Settings>(&mut written, "query", &mut faults);
        let mut statements = section::<statements::Settings>(&mut written, "statements", &mut faults);
        let mut maintain = section::<maintain::Settings>(&mut written, "maintain", &mut faults);
        let audit = section::<audit::Settings>(&mut written, "audit", &mut faults);
        let top = parse::<Top>(Value::Table(written), "", &mut faults);
        let listen = top.as_ref().map(Top::address);
        let folder = top.as_ref().and_then(|top| top.runtime_dir.clone());
        let machine = pool::Machine::this(&folder.unwrap_or_else(std::env::temp_dir));
        if let (Some(pool), Some(worker)) = (&mut pool, &mut worker) {
            pool.fill(worker, machine);
        }
        if let Some(statements) = &mut statements {
            statements.fill(machine.disk_mb);
        }
        if let (Some(maintain), Some(storage)) = (&mut maintain, &storage) {
            maintain.fill(storage.ledger_path.as_deref());
        }
        // What could be read is checked, too, so that nobody has to mend one fault to see the next.
        let of = |found: Option<Vec<String>>| found.unwrap_or_default();
        let loopback = listen.is_none_or(|listen| listen.ip().is_loopback());
        faults.extend(of(auth.as_ref().map(|s| s.faults(loopback))));
        faults.extend(of(warehouse.as_ref().map(places::Settings::faults)));
        faults.extend(of(writes.as_ref().map(governance::Settings::faults)));
        faults.extend(of(catalog.as_ref().map(catalog_faults)));
        faults.extend(of(storage.as_ref().map(storage_faults)));
        faults.extend(of(limits.as_ref().map(limits::Settings::faults)));
        faults.extend(of(pool.as_ref().zip(worker.as_ref()).map(|(pool, worker)| pool.faults(worker))));
        faults.extend(of(worker.as_ref().map(pool::WorkerSettings::faults)));
        faults.extend(of(query.as_ref().map(journey::Settings::faults)));
        faults.extend(of(statements.as_ref().map(statements::Settings::faults)));
        if let (Some(maintain), Some(query), Some(catalog)) = (&maintain, &query, &catalog) {
            // The first file of a statement may be so old when the commit that names it is settled.
            let running = Duration::from_millis(query.timeout_ms_max);
            faults.extend(maintain.faults(running + catalog.change_time_max()));
        }
        faults.extend(of(audit.as_ref().map(audit::Settings::faults)));
        let (Some(auth), Some(warehouse), Some(writes)) = (auth, warehouse, writes) else {
            return Err(Faults(faults));
        };
        let (Some(catalog), Some(storage)) = (catalog, storage) else { return Err(Faults(faults)) };
        let (Some(limits), Some(pool), Some(worker), Some(query)) = (limits, pool, worker, query) else {
            return Err(Faults(faults));
        };
        let (Some(statements), Some(maintain), Some(audit)) = (statements, maintain, audit) else {
            return Err(Faults(faults));
        };
        let (Some(top), Some(listen), true) = (top, listen, faults.is_empty()) else {
            return Err(Faults(faults));
        };
        Ok(Config {
            listen,
            body_bytes_max: top.body_bytes_max,
            drain_grace_ms: top.drain_grace_ms,
            drain_ms_max: top.drain_ms_max,
            stall_ms_max: top.stall_ms_max,
            runtime_dir: top.runtime_dir,
            auth,
            warehouse,
            writes,
            catalog,
            storage,
            limits,
            pool,
            worker,
            query,
            statements,
            maintain,
            audit,
        })
    }
}

impl Top {
    /// PORT is how a platform says "listen to the outside here".
    fn address(&self) -> SocketAddr {
        self.port.map_or(self.listen, |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
    }
}

fn catalog_faults(settings: &catalog::Settings) -> Vec<String> {
    let catalog::Faults(found) = settings.validate().err().unwrap_or(catalog::Faults(Vec::new()));
    found.iter().map(|fault| format!("catalog: {fault}")).collect()
}

fn storage_faults(settings: &storage::Settings) -> Vec<String> {
    settings.faults().iter().map(|fault| format!("storage: {fault}")).collect()
}

fn read(path: &Path) -> Result<Table, Faults> {
    let text = std::fs::read_to_string(path).map_err(|e| Faults(vec![format!("{}: {e}", path.display())]))?;
    text.parse().map_err(|e: toml::de::Error| Faults(vec![format!("{}: {}", path.display(), e.message())]))
}

/// Puts an environment's text where a file would have it; digits become a number where one is expected.
fn put(written: &mut Table, setting: &str, value: String) {
    let (section, name) = setting.split_once('.').unwrap_or(("", setting));
    let numeric = matches!(name, "port" | "rows_max");
    let value = match value.parse() {
        Ok(number) if numeric => Value::Integer(number),
        _ => Value::String(value),
    };
    if section.is_empty() {
        written.insert(name.to_owned(), value);
        return;
    }
    let section = written.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if let Some(section) = section.as_table_mut() {
        section.insert(name.to_owned(), value);
    }
}

/// An endpoint or a key in the environment means S3, whatever a file says of a folder.
fn infer_storage(written: &mut Table) {
    let Some(storage) = written.get_mut("storage").and_then(Value::as_table_mut) else { return };
    if storage.contains_key("access_key_id") {
        storage.insert("kind".to_owned(), Value::String("s3".to_owned()));
        storage.remove("path");
    }
}

fn section<T: DeserializeOwned>(written: &mut Table, name: &str, faults: &mut Vec<String>) -> Option<T> {
    let value = written.remove(name).unwrap_or_else(|| Value::Table(Table::new()));
    parse(value, &format!("{name}: "), faults)
}

fn parse<T: DeserializeOwned>(value: Value, prefix: &str, faults: &mut Vec<String>) -> Option<T> {
    match value.try_into() {
        Ok(parsed) => Some(parsed),
        Err(e) => {
            faults.push(format!("{prefix}{}", e.message()));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [auth]
        jwt_secret = "0123456789abcdef0123456789abcdef"
        [warehouse]
        prefix = "carbon"
        place = "s3://lakehouse/{warehouse}/"
        [catalog]
        uri = "http://127.0.0.1:8181/catalog"
        [storage]
        kind = "memory"
    "#;

    #[test]
    fn the_environment_wins_over_the_file() {
        let environment = |name: &str| match name {
            "LAKEHOUSE_WAREHOUSE_PREFIX" => Some("other".to_owned()),
            "MAX_QUERY_ROWS" => Some("7".to_owned()),
            "PORT" => Some("9999".to_owned()),
            _ => None,
        };
        let config = Config::assemble(GOOD.parse().unwrap(), environment).unwrap();
        assert_eq!((config.warehouse.prefix.as_str(), config.query.rows_max), ("other", 7));
        assert_eq!(config.listen.to_string(), "0.0.0.0:9999");
    }

    #[test]
    fn an_issuer_that_publishes_its_keys_needs_three_variables() {
        let environment = |name: &str| match name {
            "DUCK_SERVER_JWKS_URI" => Some("https://idp.example/keys".to_owned()),
            "DUCK_SERVER_JWT_ISSUER" => Some("https://idp.example/".to_owned()),
            "DUCK_SERVER_JWT_AUDIENCE" => Some("duck".to_owned()),
            _ => None,
        };
        let text = GOOD.replace("jwt_secret = \"0123456789abcdef0123456789abcdef\"", "");
        let config = Config::assemble(text.parse().unwrap(), environment).unwrap();
        assert_eq!(config.auth.modes(), ["jwt-jwks"]);
        let Faults(faults) = Config::assemble(text.parse().unwrap(), |name| {
            environment(name).filter(|_| name != "DUCK_SERVER_JWT_AUDIENCE")
        })
        .unwrap_err();
        assert_eq!(faults, ["auth.jwks_uri: needs jwt_audience"]);
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let text =
            GOOD.replace("0123456789abcdef0123456789abcdef", "short").replace("s3://lakehouse", "lakehouse");
        let issuers = "[[auth.issuers]]\nissuer = 'a'\njwks_uri = 'http://idp.example/'\nleeway_s = 3_600";
        let text = format!("{text}\n[limits]\nrunning_max = 0\n{issuers}\n");
        let Faults(faults) = Config::assemble(text.parse().unwrap(), |_| None).unwrap_err();
        for part in [
            "auth.jwt_secret",
            "auth.issuers[0].jwks_uri",
            "auth.issuers[0].audience",
            "auth.issuers[0].leeway_s",
            "warehouse.place",
            "limits.running_max",
        ] {
            assert!(faults.iter().any(|f| f.contains(part)), "{part} is missing in {faults:?}");
        }
        let unknown = format!("{GOOD}\n[pool]\nworkers = 1\n[worker]\nthread = 2\n");
        let Faults(faults) = Config::assemble(unknown.parse().unwrap(), |_| None).unwrap_err();
        assert_eq!(faults.len(), 2, "{faults:?}");
        let broken = GOOD.replace("jwt_secret", "jwt_secrets").replace("carbon", "");
        let Faults(faults) = Config::assemble(broken.parse().unwrap(), |_| None).unwrap_err();
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn a_query_s_limits_have_two_ends() {
        let with = |settings: &str| {
            Config::assemble(format!("{GOOD}\n[query]\n{settings}\n").parse().unwrap(), |_| None)
        };
        for (name, least, most) in [
            ("text.sql_bytes_max", 1_u64, 16 << 20),
            ("text.nesting_max", 1, 1_000),
            ("text.operators_max", 1, 1_000),
            ("text.arrows_max", 1, 20),
            ("text.branches_max", 1, 50_000),
            ("rows_max", 1, i64::MAX.cast_unsigned()),
            // Not longer than the grace of maintenance.
            ("timeout_ms_max", 1, 80_000_000),
        ] {
            for good in [least, most] {
                assert!(with(&format!("{name} = {good}")).is_ok(), "{name} = {good}");
            }
            let too_much = (most < 1 << 60 && name != "timeout_ms_max").then_some(most + 1);
            for wrong in [Some(least - 1), too_much].into_iter().flatten() {
                let Faults(faults) = with(&format!("{name} = {wrong}")).unwrap_err();
                assert!(faults.len() == 1 && faults[0].contains(name), "{name} = {wrong}: {faults:?}");
            }
        }
    }

    #[test]
    fn a_secret_is_printed_as_dots() {
        let issuer = "[[auth.issuers]]\nissuer = 'a'\nsecret = '0123456789abcdef, another secret of 32'";
        let config = Config::assemble(format!("{GOOD}\n{issuer}").parse().unwrap(), |_| None).unwrap();
        let printed = toml::to_string(&config).unwrap();
        assert!(!printed.contains("0123456789abcdef") && printed.matches("••••").count() == 2);
        assert!(!format!("{config:?}").contains("0123456789abcdef"));
    }
}
