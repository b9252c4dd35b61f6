//! What maintenance does in the store: list, read, and, alone in the whole system, delete.
//!
//! Its deadlines and repetitions are its own and do not go through [`super::health`]: a listing that takes long must not
//! open the breaker before those who wait for an answer. Nothing here is reachable through the door.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duck_contract::Role;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStoreExt, Result};
use tokio::time::{sleep, timeout};

use super::backend::{Store, StoreError};
use super::listing::{Ask, PAGE_MAX, list};

/// One attempt at one question.
const ATTEMPT_MAX: Duration = Duration::from_secs(20);
const ATTEMPTS_MAX: u32 = 4;
/// Before the second attempt; doubles after that.
const PAUSE: Duration = Duration::from_millis(200);

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its key in the bucket.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written, by the store's clock.
    pub modified: SystemTime,
}

impl From<ObjectMeta> for Object {
    fn from(meta: ObjectMeta) -> Self {
        Object { key: meta.location.into(), bytes: meta.size, modified: meta.last_modified.into() }
    }
}

impl Store {
    /// Every object below a prefix, which is empty or ends in a slash; in no particular order. An error ends it.
    pub fn objects(&self, bucket: &str, prefix: &str) -> BoxStream<'static, Result<Object, StoreError>> {
        let (store, bucket) = (self.clone(), bucket.to_owned());
        let ask = Ask { prefix: prefix.to_owned(), max: PAGE_MAX, ..Ask::default() };
        let told = self.clone();
        let objects = futures::stream::once(async move {
            let held = store.bucket(&bucket)?;
            let paged = held.for_role(Role::Writer).pages().is_some();
            if paged { Ok(store.paged(bucket, ask)) } else { store.walked(&bucket, &ask) }
        });
        objects.try_flatten().map_err(move |error: Error| told.said(&error)).boxed()
    }

    /// Page by page, as only S3 has it.
    fn paged(self, bucket: String, ask: Ask) -> BoxStream<'static, Result<Object>> {
        let pages = futures::stream::try_unfold(Some(ask), move |ask| {
            let (store, bucket) = (self.clone(), bucket.clone());
            async move {
                let Some(ask) = ask else { return Ok::<_, Error>(None) };
                let held = store.bucket(&bucket)?;
                let turn = || {
                    let (held, ask) = (held.clone(), ask.clone());
                    async move { list(held.for_role(Role::Writer), ask).await }
                };
                let page = patiently(turn).await?;
                let page = page.checked(&ask.prefix).ok_or_else(|| odd("the listing shows foreign keys"))?;
                let next = page.token.clone().map(|token| Ask { token: Some(token), ..ask });
                Ok(Some((futures::stream::iter(page.objects.into_iter().map(|meta| Ok(meta.into()))), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    /// In one go, as folders and memory have it.
    fn walked(&self, bucket: &str, ask: &Ask) -> Result<BoxStream<'static, Result<Object>>> {
        let prefix = ask.prefix.clone();
        let below = Path::parse(prefix.trim_end_matches('/'))?;
        let objects = self.object_store(bucket)?.list(Some(&below).filter(|_| !prefix.is_empty()));
        let objects = kept_moving(objects);
        Ok(objects.try_filter(move |object| futures::future::ready(object.key.starts_with(&prefix))).boxed())
    }

    /// A whole object of at most `bytes_max`; a longer one is an error.
    pub async fn read_whole(&self, bucket: &str, key: &str, bytes_max: u64) -> Result<Bytes, StoreError> {
        let read = || async {
            let bucket = self.bucket(bucket)?;
            let answer = bucket.for_role(Role::Writer).objects().get(&Path::parse(key)?).await?;
            if answer.meta.size > bytes_max {
                return Err(odd("it is longer than is read here"));
            }
            answer.bytes().await
        };
        patiently(read).await.map_err(|error| self.said(&error))
    }

    /// Deletes an object. That it is not there (any more) is no error.
    pub async fn delete(&self, bucket: &str, key: &str) -> Result<(), StoreError> {
        let delete = || async {
            let bucket = self.bucket(bucket)?;
            match bucket.for_role(Role::Writer).objects().delete(&Path::parse(key)?).await {
                Err(Error::NotFound { .. }) => Ok(()),
                deleted => deleted,
            }
        };
        patiently(delete).await.map_err(|error| self.said(&error))
    }

    fn said(&self, error: &Error) -> StoreError {
        StoreError::Upstream(self.settings().redact(&error.to_string()))
    }
}

fn odd(what: &'static str) -> Error {
    Error::Generic { store: "maintenance", source: what.into() }
}

/// A walk through folders does not stop for longer than an attempt may take.
fn kept_moving(
    objects: BoxStream<'static, Result<ObjectMeta>>,
) -> impl futures::Stream<Item = Result<Object>> + Send + 'static {
    futures::stream::try_unfold(objects, async |mut objects| {
        let next = timeout(ATTEMPT_MAX, objects.next()).await.map_err(|_| odd("the listing stopped"))?;
        Ok(next.transpose()?.map(|meta| (meta.into(), objects)))
    })
}

/// Asks again where another attempt may end better. Everything here may be done twice.
async fn patiently<T, F: Future<Output = Result<T>>>(mut ask: impl FnMut() -> F) -> Result<T> {
    let mut attempt = 1;
    loop {
        let answer = timeout(ATTEMPT_MAX, ask()).await.unwrap_or_else(|_| Err(odd("no answer in time")));
        match answer {
            Err(Error::Generic { .. }) if attempt < ATTEMPTS_MAX => sleep(PAUSE * (1 << attempt)).await,
            answer => return answer,
        }
        attempt += 1;
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;

    use super::super::settings::{Kind, Settings};
    use super::*;

    /// The same for a folder and for memory: keys come back as they were written, whatever stands in them.
    #[tokio::test]
    async fn what_is_listed_is_what_was_written_and_can_be_read_and_deleted() {
        let home = tempfile::tempdir().unwrap();
        let folder = Settings { path: Some(home.path().into()), ..Settings::of(Kind::Local) };
        for settings in [folder, Settings::of(Kind::Memory)] {
            let store = Store::new(settings).unwrap();
            let keys = ["w_a/t/data/p=x%3Dy é/1.parquet", "w_a/t/metadata/m.avro", "w_aa/t/data/2.parquet"];
            let bucket = store.object_store("lake").unwrap();
            for key in keys {
                bucket.put(&Path::parse(key).unwrap(), "four".into()).await.unwrap();
            }
            let list = async |prefix| -> Vec<String> {
                let objects: Vec<Object> = store.objects("lake", prefix).try_collect().await.unwrap();
                assert!(objects.iter().all(|o| o.bytes == 4 && o.modified.elapsed().unwrap().as_secs() < 60));
                let mut keys: Vec<_> = objects.into_iter().map(|object| object.key).collect();
                keys.sort();
                keys
            };
            assert_eq!(list("w_a/").await, keys[..2]);
            assert_eq!(list("").await, keys);
            assert_eq!(store.read_whole("lake", keys[0], 4).await.unwrap(), "four");
            assert!(store.read_whole("lake", keys[0], 3).await.is_err());
            store.delete("lake", keys[0]).await.unwrap();
            store.delete("lake", keys[0]).await.unwrap();
            assert_eq!(list("w_a/").await, keys[1..2]);
        }
    }
}
