//! The configured store.
//!
//! Given a bucket's name, hands on clients of it, made at the first need and kept. Every question goes through
//! [`Health`]; the clients themselves never repeat a request, so that repetitions stay within one budget. Never shows a
//! key of the store to anyone but the store.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use duck_contract::Role;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::list::PaginatedListStore;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ClientOptions, Error, ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::time::timeout;

use super::health::Health;
use super::local::LocalBucket;
use super::settings::{Kind, Settings};
use crate::secret::Secret;

/// A key that nobody writes: asking for it is the cheapest question that needs a key and a bucket to be right.
const PROBE_KEY: &str = "duck-server-probe";

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The settings do not describe a store.
    #[error("{}", .0.join("; "))]
    Settings(Vec<String>),
    /// The store did not answer a probe within `probe_ms_max`.
    #[error("the storage backend did not answer within {0} ms")]
    Deadline(u64),
    /// The store answered a probe with an error.
    #[error("the storage backend answered with an error: {0}")]
    Upstream(String),
}

/// The store behind the door. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    settings: Settings,
    health: Arc<Health>,
    buckets: RwLock<HashMap<String, Arc<Bucket>>>,
}

/// One bucket, with the key for each role.
pub(super) struct Bucket {
    writing: Client,
    /// Where there is a key that may only read.
    reading: Option<Client>,
}

/// A client of one bucket.
pub(super) enum Client {
    S3(Arc<AmazonS3>),
    Local(LocalBucket),
    Memory(Arc<InMemory>),
}

impl Bucket {
    pub(super) fn for_role(&self, role: Role) -> &Client {
        match role {
            Role::Reader => self.reading.as_ref().unwrap_or(&self.writing),
            Role::Writer => &self.writing,
        }
    }
}

impl Client {
    pub(super) fn objects(&self) -> &dyn ObjectStore {
        match self {
            Self::S3(s3) => s3.as_ref(),
            Self::Local(local) => local.files.as_ref(),
            Self::Memory(memory) => memory.as_ref(),
        }
    }

    /// The library's multi-part interface, which a local folder does not have.
    pub(super) fn parts(&self) -> Result<&dyn MultipartStore, &LocalBucket> {
        match self {
            Self::S3(s3) => Ok(s3.as_ref()),
            Self::Memory(memory) => Ok(memory.as_ref()),
            Self::Local(local) => Err(local),
        }
    }

    /// Listing page by page, which only S3 has.
    pub(super) fn pages(&self) -> Option<&dyn PaginatedListStore> {
        if let Self::S3(s3) = self { Some(s3.as_ref()) } else { None }
    }

    fn shared(&self) -> Arc<dyn ObjectStore> {
        match self {
            Self::S3(s3) => s3.clone(),
            Self::Local(local) => local.files.clone(),
            Self::Memory(memory) => memory.clone(),
        }
    }
}

impl Store {
    /// The store that the settings describe. Nothing is asked of it yet.
    pub fn new(settings: Settings) -> Result<Self, StoreError> {
        let faults = settings.faults();
        if !faults.is_empty() {
            return Err(StoreError::Settings(faults));
        }
        if settings.is_plain() {
            tracing::warn!("the object store is spoken to without TLS");
        }
        if let Some(root) = &settings.path {
            LocalBucket::sweep(root, Duration::from_secs(settings.limits.upload_age_s_max));
        }
        let health = Arc::new(Health::new(&settings.limits));
        Ok(Self(Arc::new(Inner { settings, health, buckets: RwLock::default() })))
    }

    /// The bucket for our own use, with the key that may write. Its requests are bounded by the client's deadlines and
    /// never repeated.
    pub fn object_store(&self, bucket: &str) -> Result<Arc<dyn ObjectStore>, Error> {
        Ok(self.bucket(bucket)?.writing.shared())
    }

    /// Asks the store for a sign of life within `probe_ms_max`. A key that is refused is as bad as silence.
    /// With no `probe_bucket` and no bucket in use there is nothing to ask, and that is no error.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let in_use = || self.0.buckets.read().unwrap_or_else(PoisonError::into_inner).keys().next().cloned();
        let Some(bucket) = self.0.settings.probe_bucket.clone().or_else(in_use) else {
            return Ok(());
        };
        let upstream = |error: Error| StoreError::Upstream(self.0.settings.redact(&error.to_string()));
        let bucket = self.bucket(&bucket).map_err(upstream)?;
        let ms = self.0.settings.limits.probe_ms_max;
        match timeout(Duration::from_millis(ms), bucket.writing.objects().head(&Path::from(PROBE_KEY))).await
        {
            Err(_) => Err(StoreError::Deadline(ms)),
            Ok(Ok(_) | Err(Error::NotFound { .. })) => Ok(()),
            Ok(Err(error)) => Err(upstream(error)),
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(super) fn health(&self) -> &Arc<Health> {
        &self.0.health
    }

    pub(super) fn bucket(&self, name: &str) -> Result<Arc<Bucket>, Error> {
        if let Some(bucket) = self.0.buckets.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(bucket.clone());
        }
        let mut buckets = self.0.buckets.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(name) {
            return Ok(bucket.clone());
        }
        if !is_bucket(name) || buckets.len() >= self.0.settings.limits.buckets_max {
            let source = "not the name of a bucket, or more buckets than `buckets_max`".into();
            return Err(Error::Generic { store: "storage door", source });
        }
        let bucket = Arc::new(self.0.settings.open(name)?);
        buckets.insert(name.to_owned(), bucket.clone());
        Ok(bucket)
    }
}

/// Whether a name is a bucket's, and so a plain folder's, too. No name begins with a dot.
fn is_bucket(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=63).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('.')
        && !name.contains("..")
}

impl Settings {
    fn open(&self, bucket: &str) -> Result<Bucket, Error> {
        let only = |writing| Ok(Bucket { writing, reading: None });
        match self.kind {
            Kind::Memory => only(Client::Memory(Arc::default())),
            Kind::Local => {
                let root = self.path.clone().unwrap_or_else(|| PathBuf::from("."));
                only(Client::Local(LocalBucket::open(&root, bucket)?))
            }
            Kind::S3 => {
                let key = |id: &Option<String>, secret: &Option<Secret>| Some((id.clone()?, secret.clone()?));
                let client = |key: Option<(String, Secret)>| {
                    let client = key.map(|(id, secret)| self.s3(bucket, id, &secret)).transpose()?;
                    Ok::<_, Error>(client.map(|client| Client::S3(Arc::new(client))))
                };
                let missing =
                    || Error::Generic { store: "storage door", source: "no key for the store".into() };
                let writing =
                    client(key(&self.access_key_id, &self.secret_access_key))?.ok_or_else(missing)?;
                let reading = client(key(&self.ro_access_key_id, &self.ro_secret_access_key))?;
                Ok(Bucket { writing, reading })
            }
        }
    }

    fn s3(&self, bucket: &str, id: String, secret: &Secret) -> Result<AmazonS3, Error> {
        // No total timeout: it would cut the body of a slow reader. No read timeout: it runs during an upload, too.
        // `Health` holds the deadlines.
        let options = ClientOptions::new()
            .with_allow_http(self.is_plain())
            .with_connect_timeout(Duration::from_millis(self.limits.connect_ms_max))
            .with_timeout_disabled()
            .with_read_timeout_disabled()
            .with_pool_idle_timeout(Duration::from_mins(1));
        let builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_access_key_id(id)
            .with_secret_access_key(secret.reveal())
            .with_region(self.region.clone().unwrap_or_else(|| "us-east-1".into()))
            .with_virtual_hosted_style_request(!self.path_style.unwrap_or(true))
            // TLS already protects the body; hashing it again costs as much as sending it.
            .with_unsigned_payload(!self.is_plain())
            .with_client_options(options)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
        match &self.endpoint {
            Some(endpoint) => builder.with_endpoint(endpoint).build(),
            None => builder.build(),
        }
    }
}
