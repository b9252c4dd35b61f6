//! The workers that have called, what they have moved, and the uploads they have open.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use object_store::multipart::PartId;
use object_store::path::Path;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::settings::Limits;
use crate::doors::{Errand, Passes, Visitor};

/// One worker, from its first request until its pass is gone.
pub(super) struct Guest {
    pub(super) key_id: String,
    pub(super) visitor: Arc<Visitor>,
    pub(super) counts: Counts,
    /// KiB that its uploads may hold in memory.
    pub(super) room: Arc<Semaphore>,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) requests: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
}

/// What one worker has moved through the door.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests with a good signature.
    pub requests: u64,
    /// Bytes of uploads.
    pub bytes_in: u64,
    /// Bytes of objects read.
    pub bytes_out: u64,
}

/// An open multi-part upload. Only the worker that began it may go on, and only with the key it was begun for.
pub(super) struct Upload {
    pub(super) key_id: String,
    pub(super) bucket: String,
    pub(super) path: Path,
    /// The store's own id, which no worker sees.
    pub(super) upstream: String,
    pub(super) begun: Instant,
    /// The statement that began it. No other one goes on with it.
    errand: Weak<Errand>,
    parts: Mutex<BTreeMap<u16, Part>>,
}

/// A part that the store holds. The id is the store's; the tag is ours, and all that a worker sees.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) id: PartId,
    pub(super) tag: String,
}

/// Why parts do not make an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartsFault {
    /// Not 1, 2, 3, … in this order. `object_store` numbers parts by their position.
    Order,
    /// Not the parts that were uploaded.
    Unknown,
}

impl Upload {
    pub(super) fn new(
        key_id: &str,
        bucket: &str,
        path: Path,
        upstream: String,
        errand: &Arc<Errand>,
    ) -> Self {
        let (key_id, bucket, begun) = (key_id.to_owned(), bucket.to_owned(), Instant::now());
        let errand = Arc::downgrade(errand);
        Self { key_id, bucket, path, upstream, begun, errand, parts: Mutex::default() }
    }

    /// Whether this statement began it.
    pub(super) fn is_of(&self, errand: &Arc<Errand>) -> bool {
        std::ptr::eq(self.errand.as_ptr(), Arc::as_ptr(errand))
    }

    pub(super) fn hold(&self, number: u16, part: Part) {
        lock(&self.parts).insert(number, part);
    }

    /// The store's ids of all parts, if the worker's list names exactly these: number and tag, in order, without gaps.
    pub(super) fn assemble(&self, listed: &[(u16, &str)]) -> Result<Vec<PartId>, PartsFault> {
        if listed.is_empty() || !listed.iter().zip(1..).all(|((number, _), expected)| *number == expected) {
            return Err(PartsFault::Order);
        }
        let parts = lock(&self.parts);
        let known = |(number, tag): &(u16, &str)| {
            parts.get(number).filter(|part| part.tag == *tag).map(|part| part.id.clone())
        };
        let ids: Option<Vec<_>> = listed.iter().map(known).collect();
        ids.filter(|ids| ids.len() == parts.len()).ok_or(PartsFault::Unknown)
    }
}

/// Everyone who has called and still may.
pub(super) struct Guests {
    passes: Passes,
    room_kib: usize,
    uploads_max: usize,
    uploads_per_worker_max: usize,
    upload_age_max: Duration,
    known: Mutex<HashMap<String, Arc<Guest>>>,
    uploads: Mutex<HashMap<String, Arc<Upload>>>,
}

impl Guests {
    pub(super) fn new(passes: Passes, limits: &Limits) -> Self {
        Self {
            passes,
            room_kib: usize::try_from(limits.upload_inflight_bytes_max >> 11).unwrap_or(usize::MAX),
            uploads_max: limits.uploads_max,
            uploads_per_worker_max: limits.uploads_per_worker_max,
            upload_age_max: Duration::from_secs(limits.upload_age_s_max),
            known: Mutex::default(),
            uploads: Mutex::default(),
        }
    }

    /// The secret behind a key id, while its pass is good.
    pub(super) fn secret(&self, key_id: &str) -> Option<String> {
        self.passes.by_key_id(key_id).map(|(secret, _)| secret)
    }

    /// The worker behind a key id, while its pass is good.
    pub(super) fn find(&self, key_id: &str) -> Option<Arc<Guest>> {
        let (_, visitor) = self.passes.by_key_id(key_id)?;
        let guest = || {
            let (key_id, room) = (key_id.to_owned(), Arc::new(Semaphore::new(self.room_kib)));
            Arc::new(Guest { key_id, visitor, counts: Counts::default(), room })
        };
        Some(lock(&self.known).entry(key_id.to_owned()).or_insert_with(guest).clone())
    }

    pub(super) fn traffic(&self, key_id: &str) -> Option<Traffic> {
        let guest = lock(&self.known).get(key_id).cloned()?;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { requests, bytes_in, bytes_out } = &guest.counts;
        Some(Traffic { requests: read(requests), bytes_in: read(bytes_in), bytes_out: read(bytes_out) })
    }

    /// Whether this worker may begin another upload.
    pub(super) fn may_upload(&self, key_id: &str) -> bool {
        let uploads = lock(&self.uploads);
        let own = uploads.values().filter(|upload| upload.key_id == key_id).count();
        uploads.len() < self.uploads_max && own < self.uploads_per_worker_max
    }

    pub(super) fn begin(&self, id: String, upload: Arc<Upload>) {
        lock(&self.uploads).insert(id, upload);
    }

    /// The upload, if this worker began it for this key.
    pub(super) fn upload(&self, id: &str, key_id: &str, path: &Path) -> Option<Arc<Upload>> {
        lock(&self.uploads).get(id).filter(|upload| upload.key_id == key_id && upload.path == *path).cloned()
    }

    /// Whether an upload to this key is open.
    pub(super) fn is_awaited(&self, bucket: &str, path: &Path) -> bool {
        lock(&self.uploads).values().any(|upload| upload.path == *path && upload.bucket == bucket)
    }

    /// Takes the upload out, so that nobody else completes or aborts it meanwhile.
    pub(super) fn take(&self, id: &str, key_id: &str, path: &Path) -> Option<Arc<Upload>> {
        let mut uploads = lock(&self.uploads);
        let own = uploads.get(id).is_some_and(|upload| upload.key_id == key_id && upload.path == *path);
        if own { uploads.remove(id) } else { None }
    }

    /// Forgets workers whose pass is gone, and takes out their uploads and those that are too old.
    pub(super) fn sweep(&self, now: Instant) -> Vec<Arc<Upload>> {
        lock(&self.known).retain(|key_id, _| self.passes.by_key_id(key_id).is_some());
        let lost = |_: &String, upload: &mut Arc<Upload>| {
            now.duration_since(upload.begun) > self.upload_age_max
                || upload.errand.strong_count() == 0
                || self.passes.by_key_id(&upload.key_id).is_none()
        };
        lock(&self.uploads).extract_if(lost).map(|(_, upload)| upload).collect()
    }

    /// Takes out every upload, at the end.
    pub(super) fn drain(&self) -> Vec<Arc<Upload>> {
        lock(&self.uploads).drain().map(|(_, upload)| upload).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_an_object_only_whole_and_in_order() {
        let upload = Upload::new("id", "lake", Path::from("w_a/x"), "up".into(), &Errand::reading());
        for number in [1, 2, 3] {
            let part = Part { id: PartId { content_id: number.to_string() }, tag: format!("t{number}") };
            upload.hold(number, part);
        }
        let made = |listed: &[(u16, &str)]| upload.assemble(listed).map(|ids| ids.len());
        assert_eq!(made(&[(1, "t1"), (2, "t2"), (3, "t3")]), Ok(3));
        assert_eq!(made(&[(1, "t1"), (3, "t3")]), Err(PartsFault::Order));
        assert_eq!(made(&[(2, "t2"), (1, "t1"), (3, "t3")]), Err(PartsFault::Order));
        assert_eq!(made(&[]), Err(PartsFault::Order));
        assert_eq!(made(&[(1, "t1"), (2, "t2")]), Err(PartsFault::Unknown));
        assert_eq!(made(&[(1, "t1"), (2, "t1"), (3, "t3")]), Err(PartsFault::Unknown));
    }
}
