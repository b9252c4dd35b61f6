//! An embedded Iceberg REST catalog, for development and tests.
//!
//! It keeps many warehouses, each a key prefix in a bucket, in one `SQLite` file, and writes metadata files into the same
//! object store that holds the data. Production has Lakekeeper; this one exists so that `duck-server dev` and the tests
//! need no second process, and it answers as Lakekeeper 0.13 does wherever duck-server depends on it:
//!
//! * a warehouse's UUID is the `prefix`, told under `defaults` by `/catalog/v1/config`;
//! * a table lies at an opaque `<warehouse>/<uuid>`; a location outside the warehouse, or one that changes, is refused
//!   with 400, one that overlaps another table's, and a property that leads elsewhere, with 409;
//! * a namespace's `location` is the warehouse's root without a trailing slash;
//! * one `Idempotency-Key` never changes anything twice: its first 2xx or 4xx is replayed for 30 minutes;
//! * file paths inside a snapshot are *not* checked;
//! * `/management/v1/warehouse` says where each warehouse lies.
//!
//! Where it differs: it gives out tokens itself (one client, in memory) and every token reaches every warehouse; there
//! are no projects, views, statistics routes, soft deletes, remote signing or vended credentials, so `config` is always
//! empty; `registerTable` is missing; metadata files are not compressed; a staged create can be replayed; making a
//! warehouse that exists at the same place succeeds; `?`, `#`, `\` and control characters in a location are refused;
//! a namespace's own `location` is remembered, but tables are still placed at the warehouse's root. A type that the
//! `iceberg` crate does not know (`variant`) is refused with 400.

mod database;
mod objects;
mod place;
mod refusal;
mod routes;
mod table;
mod tokens;
mod work;

use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use tokio::sync::Semaphore;
use uuid::Uuid;

pub use database::DatabaseError as OpenError;

use database::{Database, warehouses};
use objects::Objects;
use place::Place;
use refusal::Refusal;
use routes::App;
use tokens::Tokens;

/// So many changes are worked on at once; further ones wait.
const CHANGES_MAX: usize = 64;
const WAREHOUSE_NAME_BYTES_MAX: usize = 128;

/// What a catalog needs to know.
#[derive(Clone)]
pub struct Settings {
    /// The `SQLite` file; made if it is not there. One process at a time should use it.
    pub database: PathBuf,
    /// The one OAuth client.
    pub client_id: String,
    /// Its secret.
    pub client_secret: String,
    /// How many seconds a token lives.
    pub token_ttl_s: u64,
}

/// Gives the object store behind a bucket's name.
pub trait Buckets: Send + Sync {
    /// The store whose root is the bucket. Asked for every file, so it should be cheap.
    fn bucket(&self, name: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error>;
}

/// A warehouse and its place in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warehouse {
    /// The `prefix` of its routes.
    pub id: Uuid,
    /// The name clients know it by.
    pub name: String,
    /// Its bucket.
    pub bucket: String,
    /// Where it begins in the bucket, without slashes at the ends. Empty: it has the whole bucket.
    pub key_prefix: String,
}

/// Why a warehouse cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum WarehouseError {
    /// The name is empty, too long, or holds a slash or a control character.
    #[error(
        "a warehouse's name has 1 to {WAREHOUSE_NAME_BYTES_MAX} bytes, no slash and no control character"
    )]
    Name,
    /// The bucket's name or the key prefix is none.
    #[error("{0}")]
    Place(String),
    /// There is a warehouse of that name at another place.
    #[error("there is a warehouse of that name at another place")]
    Exists,
    /// The place is inside another warehouse's, or around it.
    #[error("the place overlaps another warehouse's")]
    Overlaps,
    /// There are as many warehouses as this catalog keeps.
    #[error("there are too many warehouses")]
    TooMany,
    /// There is no such bucket.
    #[error("there is no such bucket")]
    Bucket(#[source] object_store::Error),
    /// The catalog's file cannot be read or written; the log says why.
    #[error("the catalog's file cannot be used")]
    Database,
}

/// The catalog. Cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Catalog {
    app: Arc<App>,
    buckets: Arc<dyn Buckets>,
}

impl Catalog {
    /// Opens the catalog, making its file if needed. Blocks for the time that takes.
    pub fn open(settings: Settings, buckets: Arc<dyn Buckets>) -> Result<Catalog, OpenError> {
        let app = App {
            database: Database::open(&settings.database)?,
            objects: Objects::new(buckets.clone()),
            tokens: Tokens::new(settings.client_id, settings.client_secret, settings.token_ttl_s),
            changes: Semaphore::new(CHANGES_MAX),
        };
        Ok(Catalog { app: Arc::new(app), buckets })
    }

    /// Serves `/catalog/v1/…` and `/management/v1/…`.
    pub fn router(&self) -> axum::Router {
        routes::router(self.clone())
    }

    /// Makes a warehouse, or returns the one that has this name and place already.
    pub async fn create_warehouse(
        &self,
        name: &str,
        bucket: &str,
        key_prefix: &str,
    ) -> Result<Warehouse, WarehouseError> {
        if name.is_empty()
            || name.len() > WAREHOUSE_NAME_BYTES_MAX
            || name.contains(|c: char| c.is_control() || c == '/')
        {
            return Err(WarehouseError::Name);
        }
        let place =
            Place::new(bucket, key_prefix).map_err(|refusal| WarehouseError::Place(refusal.message))?;
        self.buckets.bucket(bucket).map_err(WarehouseError::Bucket)?;
        let name = name.to_owned();
        self.app
            .database
            .change(move |transaction| warehouses::ensure(transaction, &name, &place))
            .await
            .unwrap_or(Err(WarehouseError::Database))
    }

    /// Every warehouse, by name.
    pub async fn warehouses(&self) -> Result<Vec<Warehouse>, WarehouseError> {
        self.app.database.read(warehouses::all).await.map_err(|_| WarehouseError::Database)
    }
}

impl From<WarehouseError> for Refusal {
    fn from(error: WarehouseError) -> Self {
        match &error {
            WarehouseError::Name | WarehouseError::Place(_) | WarehouseError::Bucket(_) => {
                Refusal::bad_request(error.to_string())
            }
            WarehouseError::Exists | WarehouseError::Overlaps | WarehouseError::TooMany => {
                Refusal::warehouse_conflict(error.to_string())
            }
            WarehouseError::Database => Refusal::internal(error),
        }
    }
}
