//! From a confined process to an engine with one warehouse attached.
//!
//! Given a [`Spec`] and DuckDB as the template left it, hands on a [`Session`] that is attached, locked down and tested.
//! Never uses the template's connection: its children would all draw the same random numbers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use duck_contract::Role;
use duck_contract::worker::{Failure, SandboxLevel, Spec};

use crate::fault;
use crate::sys::duckdb::{Connection, Database, Error, Helpers};
use crate::template::Template;

/// The name under which every warehouse is attached.
pub(crate) const CATALOG: &str = "lake";

/// A worker's DuckDB, ready for statements.
pub(crate) struct Session {
    database: Database,
    threads: u32,
    /// What the worker may do.
    pub(crate) role: Role,
    /// Rewrites DuckDB's words for the public.
    pub(crate) scrub: fault::Scrub,
}

impl Session {
    /// A new connection, standing in the warehouse's default schema.
    pub(crate) fn connect(&self) -> Result<Connection, Error> {
        let connection = self.database.connect()?;
        connection.run("USE lake")?;
        Ok(connection)
    }

    /// Threads that a statement can have besides its own.
    pub(crate) fn helpers_max(&self) -> u32 {
        self.threads - 1
    }

    /// Threads that work for whatever statements run.
    pub(crate) fn helpers(&self) -> Helpers {
        self.database.helpers()
    }
}

/// Settings, secrets, ATTACH, lockdown, self-test.
pub(crate) fn open(template: Template, spec: &Spec, level: SandboxLevel) -> Result<Session, Failure> {
    let Template { database, threads } = template;
    let scrub = fault::Scrub::of(spec);
    let failed = |e: &Error| fault::at_start(e, &scrub);
    let connection = database.connect().map_err(|e| failed(&e))?;
    let run = |sql: &str| connection.run(sql).map_err(|e| failed(&e));
    for setting in settings(spec) {
        run(&setting)?;
    }
    run(&storage_secret(spec))?;
    run(&attach(spec))?;
    for setting in lockdown(spec) {
        run(&setting)?;
    }
    self_test(&connection, spec, level)?;
    drop(connection);
    Ok(Session { database, threads, role: spec.role, scrub })
}

/// What the template could not know. Every setting is GLOBAL: a plain SET is seen by its own connection only.
fn settings(spec: &Spec) -> Vec<String> {
    vec![
        format!("SET GLOBAL temp_directory = {}", quoted(&spec.directory)),
        format!("SET GLOBAL max_temp_directory_size = '{} bytes'", spec.spill_bytes_max),
        format!("SET GLOBAL memory_limit = '{} bytes'", spec.memory_bytes),
        format!("SET GLOBAL http_timeout = {}", spec.http_timeout_s),
    ]
}

fn storage_secret(spec: &Spec) -> String {
    format!(
        "CREATE SECRET storage (TYPE s3, KEY_ID {}, SECRET {}, ENDPOINT '127.0.0.1:{}', URL_STYLE 'path', USE_SSL false, \
         REGION 'us-east-1', SCOPE {})",
        quoted(&spec.access_key_id),
        quoted(&spec.secret_access_key),
        spec.storage_port,
        quoted(&place(spec)),
    )
}

fn attach(spec: &Spec) -> String {
    // READ_ONLY is said because a name that looks like a URL would attach read-only by itself; the delegation mode because
    // leaving it out means vended credentials, which would shadow the secret above.
    let read_only = match spec.role {
        Role::Reader => "true",
        Role::Writer => "false",
    };
    format!(
        "ATTACH {} AS {CATALOG} (TYPE iceberg, ENDPOINT 'http://127.0.0.1:{}', TOKEN {}, ACCESS_DELEGATION_MODE 'none', \
         SUPPORT_NESTED_NAMESPACES true, DEFAULT_SCHEMA {}, READ_ONLY {read_only})",
        quoted(&spec.warehouse),
        spec.catalog_port,
        quoted(&spec.bearer),
        quoted(&spec.default_schema),
    )
}

fn lockdown(spec: &Spec) -> Vec<String> {
    vec![
        format!("SET GLOBAL allowed_directories = [{}]", quoted(&place(spec))),
        "SET GLOBAL enable_external_access = false".to_owned(),
        "SET GLOBAL allowed_configs = ['timezone']".to_owned(),
        // Last: nothing can be set after it.
        "SET GLOBAL lock_configuration = true".to_owned(),
    ]
}

/// What must fail fails, and what must work works, or this worker never serves.
fn self_test(connection: &Connection, spec: &Spec, level: SandboxLevel) -> Result<(), Failure> {
    let broken = |what: &str| Err(fault::self_test(what));
    let foreign = format!("s3://{}/{}-other/probe.txt", spec.bucket, spec.prefix.trim_end_matches('/'));
    let port = format!("http://127.0.0.1:{}/probe.txt", spec.forbidden_port);
    for (what, target) in [
        ("a local file", "/etc/passwd"),
        ("a foreign port", port.as_str()),
        ("a foreign prefix", foreign.as_str()),
    ] {
        match connection.run(&format!("SELECT content FROM read_text({})", quoted(target))) {
            Err(e) if fault::is_permission(&e) => {}
            other => {
                return broken(&format!("{what} through DuckDB: {other:?}"));
            }
        }
    }
    if level.landlock {
        if !std::fs::File::open("/etc/passwd").is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            return broken("a local file could be opened");
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, spec.forbidden_port));
        let refused = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        if !refused.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            return broken("a foreign port could be reached");
        }
    }
    if level.seccomp
        && !std::process::Command::new("/bin/true")
            .status()
            .is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
    {
        return broken("a program could be started");
    }
    let spilled = Path::new("self-test.tmp");
    let round_trip = std::fs::write(spilled, [7; 4096]).and_then(|()| std::fs::read(spilled));
    if !round_trip.is_ok_and(|bytes| bytes == [7; 4096]) || std::fs::remove_file(spilled).is_err() {
        return broken("the spill directory cannot be used");
    }
    Ok(())
}

fn place(spec: &Spec) -> String {
    format!("s3://{}/{}", spec.bucket, spec.prefix)
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
