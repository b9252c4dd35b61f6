//! The catalog's state in `SQLite`: which warehouses, namespaces and tables there are, and which metadata file is a
//! table's current one. Every statement runs off the async threads; every change is one IMMEDIATE transaction.

pub(crate) mod namespaces;
mod outcomes;
pub(crate) mod tables;
pub(crate) mod warehouses;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};

pub(crate) use outcomes::{Outcome, Ticket};

use crate::refusal::Refusal;
use crate::work::off_thread;

/// Another process that holds the file is waited for so long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Kept in `PRAGMA user_version`; a file of another version is refused rather than guessed at.
const SCHEMA_VERSION: i64 = 1;

/// `namespaces.name` holds the levels joined by U+001F, `parent` all but the last. `tables.metadata` is the location of
/// the current metadata file: a commit that finds another one than it read has lost.
const SCHEMA: &str = "
    CREATE TABLE warehouses (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, bucket TEXT NOT NULL, key_prefix TEXT NOT NULL
    ) STRICT;
    CREATE TABLE namespaces (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        warehouse TEXT NOT NULL REFERENCES warehouses (id),
        name TEXT NOT NULL, parent TEXT NOT NULL, properties TEXT NOT NULL,
        UNIQUE (warehouse, name)
    ) STRICT;
    CREATE INDEX namespaces_by_parent ON namespaces (warehouse, parent, name);
    CREATE TABLE tables (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        warehouse TEXT NOT NULL REFERENCES warehouses (id),
        namespace INTEGER NOT NULL REFERENCES namespaces (id),
        name TEXT NOT NULL, location TEXT NOT NULL, metadata TEXT NOT NULL, version INTEGER NOT NULL,
        UNIQUE (namespace, name), UNIQUE (warehouse, location)
    ) STRICT;
    CREATE TABLE staged (
        uuid TEXT PRIMARY KEY,
        namespace INTEGER NOT NULL REFERENCES namespaces (id) ON DELETE CASCADE,
        name TEXT NOT NULL, metadata TEXT NOT NULL, expires_at INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX staged_by_name ON staged (namespace, name);
    CREATE INDEX staged_by_end ON staged (expires_at);
    CREATE TABLE outcomes (
        warehouse TEXT NOT NULL, key TEXT NOT NULL,
        status INTEGER NOT NULL, body TEXT, etag TEXT, expires_at INTEGER NOT NULL,
        PRIMARY KEY (warehouse, key)
    ) STRICT;
    CREATE INDEX outcomes_by_end ON outcomes (expires_at);
";

/// Why a database file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// `SQLite` cannot open it, or it is not `SQLite`.
    #[error("SQLite cannot use the catalog's file")]
    Sqlite(#[from] rusqlite::Error),
    /// It was written by another version of this catalog.
    #[error("the catalog's file has schema version {found}, this program knows {SCHEMA_VERSION}")]
    Version {
        /// The version in the file.
        found: i64,
    },
}

/// The one connection. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Database {
    connection: Arc<Mutex<Connection>>,
}

impl Database {
    /// Opens or makes the file. Blocks.
    pub(crate) fn open(file: &Path) -> Result<Database, DatabaseError> {
        let mut connection = Connection::open(file)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // WAL with NORMAL survives the process's death; only a power cut may take the last commits along.
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;",
        )?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        match transaction.query_row("PRAGMA user_version", [], |row| row.get(0))? {
            0 => {
                transaction.execute_batch(SCHEMA)?;
                transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
                transaction.commit()?;
            }
            SCHEMA_VERSION => drop(transaction),
            found => return Err(DatabaseError::Version { found }),
        }
        Ok(Database { connection: Arc::new(Mutex::new(connection)) })
    }

    /// Runs `f` in a transaction that sees one state of everything.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Transaction<'_>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.run(TransactionBehavior::Deferred, f).await
    }

    /// Runs `f` in a transaction that excludes every other change; what it did is kept only if it returns `Ok`.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Transaction<'_>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.run(TransactionBehavior::Immediate, f).await
    }

    async fn run<T: Send + 'static>(
        &self,
        behavior: TransactionBehavior,
        f: impl FnOnce(&Transaction<'_>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let connection = self.connection.clone();
        off_thread(move || {
            // A panic in `f` has rolled its transaction back, so the connection is as good as before.
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(behavior)?;
            let result = f(&transaction)?;
            transaction.commit()?;
            Ok(result)
        })
        .await
    }
}

/// One row more than a page holds tells whether there is a next page.
fn limit(count: usize) -> i64 {
    i64::try_from(count.saturating_add(1)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_version_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("catalog.sqlite");
        Database::open(&file).unwrap();
        Connection::open(&file).unwrap().pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(Database::open(&file), Err(DatabaseError::Version { found: 99 })));
    }

    #[test]
    fn a_file_that_is_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("catalog.sqlite");
        std::fs::write(&file, "a letter to a friend, longer than any header could be ".repeat(9)).unwrap();
        assert!(matches!(Database::open(&file), Err(DatabaseError::Sqlite(_))));
    }
}
