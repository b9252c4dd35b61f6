//! What every operation has at hand.

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use s3s::{S3Error, S3Request, S3Result, s3_error};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::answers;
use super::backend::{Bucket, Store};
use super::guard;
use super::guests::{Guest, Guests};
use super::health::Fault;
use super::ledger::Ledger;
use crate::doors::Errand;

/// The store, the ledger, the workers, and the room for bodies.
pub(super) struct Desk {
    pub(super) store: Store,
    pub(super) ledger: Ledger,
    pub(super) guests: Arc<Guests>,
    /// KiB that the uploads of all workers may hold in memory.
    room: Arc<Semaphore>,
}

/// Room for one body, given back when dropped.
pub(super) struct Room {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Desk {
    pub(super) fn new(store: Store, ledger: Ledger, guests: Arc<Guests>) -> Self {
        let kib =
            usize::try_from(store.settings().limits.upload_inflight_bytes_max >> 10).unwrap_or(usize::MAX);
        let room = Arc::new(Semaphore::new(kib.min(Semaphore::MAX_PERMITS)));
        Self { store, ledger, guests, room }
    }

    pub(super) fn answer(&self, fault: &Fault) -> S3Error {
        answers::answer(fault, self.store.settings())
    }

    pub(super) fn bucket(&self, guest: &Guest) -> S3Result<Arc<Bucket>> {
        self.store.bucket(&guest.visitor.place.bucket).map_err(|error| self.answer(&error.into()))
    }

    /// Waits for room for a body. The worker's own half comes first, so that one which stalls keeps nobody waiting but
    /// itself.
    pub(super) async fn room(&self, guest: &Guest, bytes: u64) -> S3Result<Room> {
        let kib = u32::try_from(bytes.div_ceil(1_024)).map_err(|_| s3_error!(EntityTooLarge))?;
        let wait = Duration::from_millis(self.store.settings().limits.upload_wait_ms_max);
        let both = async {
            let own = guest.room.clone().acquire_many_owned(kib).await.ok()?;
            let all = self.room.clone().acquire_many_owned(kib).await.ok()?;
            Some(Room { _own: own, _all: all })
        };
        let busy = || s3_error!(ServiceUnavailable, "Too many uploads are under way");
        timeout(wait, both).await.ok().flatten().ok_or_else(busy)
    }
}

/// The worker that is calling, whom [`super::access::Rights`] has let in.
pub(super) fn guest<T>(request: &S3Request<T>) -> S3Result<Arc<Guest>> {
    request.extensions.get::<Arc<Guest>>().cloned().ok_or_else(|| s3_error!(AccessDenied))
}

/// The key as a path of the store, if it is the worker's.
pub(super) fn path(guest: &Guest, key: &str) -> S3Result<Path> {
    guard::inside(&guest.visitor.place, key)
        .ok_or_else(|| s3_error!(AccessDenied, "Outside of what this key opens"))
}

/// The key as a path of the store, if a statement that is under way may write there: below a table of which the catalog has told
/// the worker, and which it may change.
pub(super) fn new_path(guest: &Guest, key: &str) -> S3Result<(Path, Arc<Errand>)> {
    let path = path(guest, key)?;
    let address = format!("s3://{}/{key}", guest.visitor.place.bucket);
    if let Some(errand) = guest.visitor.errand().filter(|errand| errand.may_put(&address)) {
        return Ok((path, errand));
    }
    tracing::info!(
        warehouse = guest.visitor.warehouse,
        "a file below no table that may be written was refused"
    );
    Err(s3_error!(AccessDenied, "Outside of what this statement may write"))
}
