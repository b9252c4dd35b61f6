//! From a confined process to an engine that is one warehouse's.
//!
//! Given a [`Cell`], a [`Spec`] and DuckDB as the template left it, attached, hands on a [`Session`] that has its keys, is locked
//! down and tested. What needs the `Cell` alone is done first, so that a spare can wait with it done.
//! Never uses the template's connection: its children would all draw the same random numbers.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::Role;
use duck_contract::worker::{CATALOG, Cell, Common, Failure, SandboxLevel, Spec};

use crate::fault;
use crate::lockdown;
use crate::policy::Policy;
use crate::sys::duckdb::{Connection, Database, Error, Helpers};
use crate::sys::process;
use crate::template::{self, Template};

/// An engine that is confined and attached, and does not yet know its warehouse.
pub(crate) struct Embryo {
    template: Template,
    connection: Connection,
    cell: Cell,
}

/// A worker's DuckDB, ready for statements.
pub(crate) struct Session {
    database: Database,
    /// One that no statement has used, so that the next need not wait for it.
    ahead: Mutex<Option<Connection>>,
    /// Whether a statement has ended here.
    used: AtomicBool,
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

    /// Makes the next statement's connection, which is half of what a short one would take. Not after the first: a warehouse that was
    /// asked once may not be asked again.
    pub(crate) fn connect_ahead(&self) {
        if !self.used.swap(true, Ordering::Relaxed) || self.ahead().is_some() {
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
    let connection = fresh(&template.database).map_err(failed)?;
    let mut statements = settings(&cell, &template.common);
    statements.extend([storage_secret(&cell), catalog_secret(&cell)]);
    connection.run(&statements.join(";")).map_err(failed)?;
    test_cell(&cell, level)?;
    Ok(Embryo { template, connection, cell })
}

impl Embryo {
    /// Its warehouse, a writer's right, lockdown, self-test.
    pub(crate) fn assign(self, spec: &Spec) -> Result<Session, Failure> {
        let Embryo { template: Template { database, common, names, .. }, connection, cell } = self;
        let scrub = fault::Scrub::of(&cell, Some(spec));
        let run = |sql: &str| connection.run(sql).map_err(|e| fault::self_test(&scrub.clean(&e.0)));
        if spec.role == Role::Writer {
            // What was attached ahead can only be read. It cannot be detached while it is where the connection stands.
            run("ATTACH ':memory:' AS memory")?;
            run("USE memory.main")?;
            run(&format!("DETACH {CATALOG}"))?;
            template::attach(&common, spec.role).iter().try_for_each(|sql| run(sql))?;
        }
        run(&lockdown::settings(spec).join(";"))?;
        lockdown::test(&connection, &cell, spec)?;
        let policy = Policy::new(names, place(spec), spec.role, common.default_schema);
        let threads = common.threads.min(cell.threads).max(1);
        // It has run nothing but this, none of which stays with a connection.
        let used = AtomicBool::new(false);
        Ok(Session { database, ahead: Mutex::new(Some(connection)), used, threads, policy, scrub })
    }
}

/// What the template could not know, where this worker is not like most.
fn settings(cell: &Cell, common: &Common) -> Vec<String> {
    let mut settings = Vec::new();
    if cell.memory_bytes != common.memory_bytes {
        settings.push(template::memory_limit(cell.memory_bytes));
    }
    if cell.spill_bytes_max != common.spill_bytes_max {
        settings.push(template::spill_limit(cell.spill_bytes_max));
    }
    settings
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

/// For every request to the catalog door, and nowhere else: the slash ends the port, as which another one might begin.
fn catalog_secret(cell: &Cell) -> String {
    format!(
        "CREATE SECRET catalog (TYPE http, BEARER_TOKEN {}, SCOPE 'http://127.0.0.1:{}/')",
        quoted(&cell.keys.bearer),
        cell.catalog_port,
    )
}

/// What the process must not do, and what must work, or this worker never serves.
fn test_cell(cell: &Cell, level: SandboxLevel) -> Result<(), Failure> {
    let broken = |what: &str| Err(fault::self_test(what));
    if level.landlock {
        // One that everybody may open for both, so that nothing but Landlock is in the way.
        let opened = File::options().read(true).write(true).open("/dev/null");
        if !opened.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            return broken("a local file could be opened");
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, cell.forbidden_port));
        let refused = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        if !refused.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
            return broken("a foreign port could be reached");
        }
    }
    if level.seccomp && !process::try_fork().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied) {
        return broken("a process could be started");
    }
    let path = Path::new("self-test.tmp");
    if spill(path).is_err() {
        return broken("the spill directory cannot be used");
    }
    // As DuckDB opens what a statement names.
    if level.seccomp && File::open(path).is_ok() {
        return broken("a file of the spill directory could be opened to be read");
    }
    std::fs::remove_file(path).or_else(|_| broken("the spill directory cannot be used"))
}

/// Writes a page to a file, which is opened as DuckDB opens what it spills, and reads it back.
fn spill(path: &Path) -> io::Result<()> {
    let mut page = [7; 4096];
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    file.write_all_at(&page, 0)?;
    page.fill(0);
    file.read_exact_at(&mut page, 0)?;
    if page == [7; 4096] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// The warehouse's place in the store, with a slash at its end.
pub(crate) fn place(spec: &Spec) -> String {
    format!("s3://{}/{}", spec.bucket, spec.prefix)
}

/// As a literal of SQL.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
