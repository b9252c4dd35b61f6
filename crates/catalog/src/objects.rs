//! Metadata files in the store that also holds the data.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::{ObjectStore, ObjectStoreExt as _};
use uuid::Uuid;

use crate::Buckets;
use crate::place::Place;
use crate::refusal::Refusal;

/// One read or write of a metadata file.
const IO_TIMEOUT: Duration = Duration::from_secs(30);
/// A purge that takes longer stops and leaves the rest behind.
const PURGE_TIMEOUT: Duration = Duration::from_secs(20);
/// As does one that has removed so many objects.
const PURGE_OBJECTS_MAX: usize = 100_000;
const METADATA_BYTES_MAX: u64 = 64 << 20;

/// Reads and writes metadata files, and removes what a purged table leaves.
#[derive(Clone)]
pub(crate) struct Objects {
    buckets: Arc<dyn Buckets>,
}

impl Objects {
    pub(crate) fn new(buckets: Arc<dyn Buckets>) -> Self {
        Objects { buckets }
    }

    fn store(&self, place: &Place) -> Result<Arc<dyn ObjectStore>, Refusal> {
        self.buckets.bucket(place.bucket()).map_err(Refusal::internal)
    }

    /// Reads a metadata file; `None` if it is not there.
    pub(crate) async fn read(&self, location: &str) -> Result<Option<Bytes>, Refusal> {
        let place = Place::parse(location)?;
        let (store, path) = (self.store(&place)?, place.path()?);
        let reading = async {
            let found = store.get(&path).await?;
            if found.meta.size > METADATA_BYTES_MAX {
                return Ok(Err(Refusal::internal(format_args!("{location} has {} bytes", found.meta.size))));
            }
            Ok(Ok(found.bytes().await?))
        };
        match in_time(reading).await? {
            Ok(read) => read.map(Some),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Refusal::internal(error)),
        }
    }

    /// Writes a table's metadata file number `version` under a name that nothing else has, and says where.
    pub(crate) async fn write(
        &self,
        table: &Place,
        version: i64,
        metadata: String,
    ) -> Result<String, Refusal> {
        let name = format!("{version:05}-{}.metadata.json", Uuid::new_v4());
        let place = table.child("metadata").child(&name);
        let (store, path) = (self.store(&place)?, place.path()?);
        in_time(store.put(&path, metadata.into())).await?.map_err(Refusal::internal)?;
        Ok(place.to_string())
    }

    /// Removes metadata files that no table has ever pointed at. Best effort: a leftover does no harm.
    pub(crate) async fn discard(&self, locations: Vec<String>) {
        for location in locations {
            let removed = async {
                let place = Place::parse(&location)?;
                in_time(self.store(&place)?.delete(&place.path()?)).await?.map_err(Refusal::internal)
            };
            if removed.await.is_err() {
                tracing::warn!(location, "an unused metadata file stays behind");
            }
        }
    }

    /// Removes what lies under a dropped table's location. Best effort and bounded.
    pub(crate) async fn purge(&self, location: &str) {
        match tokio::time::timeout(PURGE_TIMEOUT, self.remove_below(location)).await {
            Ok(Ok(removed)) => tracing::debug!(location, removed, "purged"),
            Ok(Err(refusal)) => tracing::warn!(location, refusal.message, "a purge left objects behind"),
            Err(_) => tracing::warn!(location, "a purge ran out of time and left objects behind"),
        }
    }

    async fn remove_below(&self, location: &str) -> Result<usize, Refusal> {
        let place = Place::parse(location)?;
        let (store, path) = (self.store(&place)?, place.path()?);
        let found = store.list(Some(&path)).map_ok(|object| object.location).take(PURGE_OBJECTS_MAX).boxed();
        let removed = store.delete_stream(found).try_fold(0, async |count, _| Ok(count + 1));
        removed.await.map_err(Refusal::internal)
    }
}

async fn in_time<T>(io: impl Future<Output = T>) -> Result<T, Refusal> {
    tokio::time::timeout(IO_TIMEOUT, io)
        .await
        .map_err(|_| Refusal::internal(format_args!("the object store took longer than {IO_TIMEOUT:?}")))
}
