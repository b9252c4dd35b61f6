//! From a confined process to an engine with one warehouse attached.
//!
//! Given a [`Cell`], a [`Spec`] and DuckDB as the template left it, hands on a [`Session`] that is attached, locked down and
//! tested. What needs the `Cell` alone is done first, so that a spare can wait with it done: also ATTACH, since it is the catalog
//! door that says what is attached.
//! Never uses the template's connection: its children would all draw the same random numbers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::Role;
use duck_contract::worker::{CATALOG, Cell, Failure, SandboxLevel, Spec};

use crate::calls;
use crate::fault;
use crate::lockdown;
use crate::policy::Policy;
use crate::sys::duckdb::{Connection, Database, Error, Helpers};
use crate::template::Template;

/// An engine that is confined and attached, and does not yet know its warehouse.
pub(crate) struct Embryo {
    template: Template,
    connection: Connection,
    /// For the first statement.
    ahead: Connection,
    cell: Cell,
}

/// A worker's DuckDB, ready for statements.
pub(crate) struct Session {
    database: Database,
    /// One that no statement has used, so that the next need not wait for it.
    ahead: Mutex<Option<Connection>>,
    threads: u32,
    /// What it may run.
    pub(crate) policy: Policy,
    /// Rewrites DuckDB's words for the public.
    pub(crate) scrub: fault::Scrub,
}

impl Session {
    /// A new connection, standing in the warehouse's default schema.
    pub(crate) fn connect(&self, watched: bool) -> Result<Connection, Error> {
        let ahead = self.ahead().take();
        let connection = ahead.map_or_else(|| fresh(&self.database), Ok)?;
        if watched {
            // Both are the connection's own: there is no GLOBAL form.
            connection.run("SET enable_progress_bar = true")?;
            connection.run("SET enable_progress_bar_print = false")?;
        }
        Ok(connection)
    }

    /// Makes the next statement's connection, which is half of what a short one would take.
    pub(crate) fn connect_ahead(&self) {
        if self.ahead().is_some() {
            return;
        }
        // Whoever needs it tries again, and is told.
        if let Ok(connection) = fresh(&self.database) {
            *self.ahead() = Some(connection);
        }
    }

    fn ahead(&self) -> MutexGuard<'_, Option<Connection>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A connection that stands in the warehouse's default schema.
fn fresh(database: &Database) -> Result<Connection, Error> {
    let connection = database.connect()?;
    connection.run(&format!("USE {CATALOG}"))?;
    Ok(connection)
}

/// Everything that does not depend on the warehouse, so that a spare has it behind it.
pub(crate) fn prepare(template: Template, cell: Cell, level: SandboxLevel) -> Result<Embryo, Failure> {
    let scrub = fault::Scrub::of(&cell, None);
    let failed = |e: Error| fault::self_test(&scrub.clean(&e.0));
    let connection = template.database.connect().map_err(failed)?;
    let secrets = [storage_secret(&cell), catalog_secret(&cell)];
    for sql in settings(&cell).iter().chain(&secrets).chain(&attach(&cell, Role::Reader)) {
        connection.run(sql).map_err(failed)?;
    }
    let ahead = fresh(&template.database).map_err(failed)?;
    test_cell(&cell, level)?;
    if level.seccomp {
        test_closed_files(&connection, &cell)?;
    }
    Ok(Embryo { template, connection, ahead, cell })
}

impl Embryo {
    /// Its warehouse, a writer's right, lockdown, self-test.
    pub(crate) fn assign(self, spec: &Spec) -> Result<Session, Failure> {
        let Embryo { template: Template { database, threads, names, .. }, connection, ahead, cell } = self;
        let scrub = fault::Scrub::of(&cell, Some(spec));
        let run = |sql: &str| connection.run(sql).map_err(|e| fault::self_test(&scrub.clean(&e.0)));
        let mut ahead = Some(ahead);
        if spec.role == Role::Writer {
            // What was attached ahead can only be read. It cannot be detached while it is where the connection stands.
            ahead = None;
            run("ATTACH ':memory:' AS memory")?;
            run("USE memory.main")?;
            run(&format!("DETACH {CATALOG}"))?;
            attach(&cell, spec.role).iter().try_for_each(|sql| run(sql))?;
        }
        for setting in lockdown::settings(spec) {
            run(&setting)?;
        }
        lockdown::test(&connection, &cell, spec)?;
        drop(connection);
        let policy = Policy::new(names, place(spec), spec.role, cell.default_schema.clone());
        let threads = threads.min(cell.threads).max(1);
        Ok(Session { database, ahead: Mutex::new(ahead), threads, policy, scrub })
    }
}

/// What the template could not know. Every setting is GLOBAL: a plain SET is seen by its own connection only.
fn settings(cell: &Cell) -> Vec<String> {
    vec![
        format!("SET GLOBAL temp_directory = {}", quoted(&cell.directory)),
        format!("SET GLOBAL max_temp_directory_size = '{} bytes'", cell.spill_bytes_max),
        format!("SET GLOBAL memory_limit = '{} bytes'", cell.memory_bytes),
        format!("SET GLOBAL http_timeout = {}", cell.http_timeout_s),
    ]
}

fn storage_secret(cell: &Cell) -> String {
    format!(
        "CREATE SECRET storage (TYPE s3, KEY_ID {}, SECRET {}, ENDPOINT '127.0.0.1:{}', URL_STYLE 'path', USE_SSL false, \
         REGION 'us-east-1')",
        quoted(&cell.keys.access_key_id),
        quoted(&cell.keys.secret_access_key),
        cell.storage_port,
    )
}

/// A secret, because what ATTACH is told can be read in `duckdb_databases()`; without a name, because that is told as well.
fn catalog_secret(cell: &Cell) -> String {
    format!(
        "CREATE SECRET (TYPE iceberg, TOKEN {}, ENDPOINT 'http://127.0.0.1:{}')",
        quoted(&cell.keys.bearer),
        cell.catalog_port,
    )
}

/// Leaves the warehouse as the only database. Without the one that every engine begins with there is no other place where a statement
/// could leave something for the next: table, view, type, macro, sequence.
fn attach(cell: &Cell, role: Role) -> [String; 3] {
    // READ_ONLY is said because a name that looks like a URL would attach read-only by itself; the delegation mode because
    // leaving it out means vended credentials, which would shadow the secret above.
    let read_only = match role {
        Role::Reader => "true",
        Role::Writer => "false",
    };
    let attach = format!(
        "ATTACH '{CATALOG}' AS {CATALOG} (TYPE iceberg, ACCESS_DELEGATION_MODE 'none', \
         SUPPORT_NESTED_NAMESPACES true, DEFAULT_SCHEMA {}, READ_ONLY {read_only})",
        quoted(&cell.default_schema),
    );
    [attach, format!("USE {CATALOG}"), "DETACH memory".to_owned()]
}

/// Closes the own directory to what only reads, and sees that it is.
fn test_closed_files(connection: &Connection, cell: &Cell) -> Result<(), Failure> {
    let probe = Path::new(&cell.directory).join("closed.tmp");
    let broken = |e: String| fault::self_test(&format!("closed files: {e}"));
    std::fs::write(&probe, "probe").map_err(|e| broken(e.to_string()))?;
    calls::close_files().map_err(broken)?;
    let read = format!("SELECT content FROM read_text({})", quoted(&probe.to_string_lossy()));
    let opened = connection.run(&read);
    std::fs::remove_file(&probe).map_err(|e| broken(e.to_string()))?;
    if opened.is_ok() {
        return Err(broken("a file of the spill directory could be read".to_owned()));
    }
    Ok(())
}

/// What the process must not do, and what must work, or this worker never serves.
fn test_cell(cell: &Cell, level: SandboxLevel) -> Result<(), Failure> {
    let broken = |what: &str| Err(fault::self_test(what));
    if level.landlock {
        if !std::fs::File::open("/etc/passwd").is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            return broken("a local file could be opened");
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, cell.forbidden_port));
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

/// The warehouse's place in the store, with a slash at its end.
pub(crate) fn place(spec: &Spec) -> String {
    format!("s3://{}/{}", spec.bucket, spec.prefix)
}

/// As a literal of SQL.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
