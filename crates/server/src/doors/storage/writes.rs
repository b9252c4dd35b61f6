//! Writing: whole objects, and uploads in parts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::StreamExt;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, PutResult};
use s3s::dto::{CompletedMultipartUpload, StreamingBlob};
use s3s::{S3Error, S3Result, s3_error};
use tokio::time::timeout;
use uuid::Uuid;

use super::backend::{Bucket, Client};
use super::desk::{self, Desk, Room};
use super::guests::{Guest, Part, PartsFault, Upload};
use super::health::{Fault, Plan};
use crate::doors::Errand;

/// Parts of one upload, as S3 has it.
const PARTS_MAX: i32 = 10_000;

/// No file of a table is ever written twice, and what a table refers to must stay what it was.
fn taken() -> S3Error {
    s3_error!(PreconditionFailed, "There is an object of this key already")
}

/// A body that has arrived whole, with its length and hash as announced.
struct Received {
    payload: PutPayload,
    bytes: u64,
    _room: Room,
}

impl Desk {
    /// Takes a body in. s3s checks the signed hash while it passes, so nothing is sent on before the last byte is here.
    async fn receive(
        &self,
        guest: &Guest,
        body: Option<StreamingBlob>,
        length: Option<i64>,
    ) -> S3Result<Received> {
        let limits = &self.store.settings().limits;
        let bytes = length
            .and_then(|length| u64::try_from(length).ok())
            .ok_or_else(|| s3_error!(MissingContentLength))?;
        if bytes > limits.part_bytes_max {
            return Err(s3_error!(EntityTooLarge));
        }
        let room = self.room(guest, bytes).await?;
        let (mut pieces, mut arrived) = (Vec::new(), 0_u64);
        let gather = async {
            let Some(mut body) = body else { return Ok(()) };
            while let Some(piece) = body.next().await {
                let piece =
                    piece.map_err(|_| s3_error!(IncompleteBody, "The body is not what was signed"))?;
                arrived += piece.len() as u64;
                if arrived > bytes {
                    return Err(s3_error!(IncompleteBody));
                }
                pieces.push(piece);
            }
            Ok(())
        };
        timeout(limits.body_deadline(bytes), gather).await.map_err(|_| s3_error!(RequestTimeout))??;
        if arrived != bytes {
            return Err(s3_error!(IncompleteBody));
        }
        guest.counts.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        guest.visitor.wrote(bytes);
        Ok(Received { payload: pieces.into_iter().collect(), bytes, _room: room })
    }

    /// Puts a whole object. One that is there already stays as it is: an error, unless it is the same, which a repeated request
    /// finds whose first answer was lost.
    pub(super) async fn put(
        &self,
        guest: &Guest,
        path: &Path,
        body: Option<StreamingBlob>,
        length: Option<i64>,
    ) -> S3Result<PutResult> {
        let bucket = self.bucket(guest)?;
        let objects = bucket.for_role(guest.visitor.role).objects();
        let received = self.receive(guest, body, length).await?;
        // A body takes its time: the statement may have ended, and an upload may have begun.
        desk::new_path(guest, path.as_ref())?;
        if self.guests.is_awaited(&guest.visitor.place.bucket, path) {
            return Err(taken());
        }
        let plan = Plan::body(&self.store.settings().limits, received.bytes);
        let put = || objects.put_opts(path, received.payload.clone(), PutMode::Create.into());
        match self.store.health().ask(plan, put).await {
            Err(Fault::Upstream(Error::AlreadyExists { .. })) => self.same(objects, path, &received).await,
            outcome => outcome.map_err(|fault| self.answer(&fault)),
        }
    }

    /// Whether what is there already is what was to be written.
    async fn same(&self, objects: &dyn ObjectStore, path: &Path, received: &Received) -> S3Result<PutResult> {
        let plan = Plan::body(&self.store.settings().limits, received.bytes);
        let read = || async {
            let there = objects.get(path).await?;
            let meta = there.meta.clone();
            let same =
                meta.size == received.bytes && there.bytes().await? == Bytes::from(received.payload.clone());
            Ok(same.then_some(meta))
        };
        let there = self.store.health().ask(plan, read).await.map_err(|fault| self.answer(&fault))?;
        let meta = there.ok_or_else(taken)?;
        Ok(PutResult { e_tag: meta.e_tag, version: meta.version, extensions: http::Extensions::new() })
    }

    /// Begins an upload. The id is ours: the store's own would be good for other workers' doors, too.
    pub(super) async fn begin(&self, guest: &Guest, path: Path, errand: &Arc<Errand>) -> S3Result<String> {
        if !self.guests.may_upload(&guest.key_id) {
            return Err(s3_error!(ServiceUnavailable, "Too many uploads are open"));
        }
        let bucket = self.bucket(guest)?;
        self.is_free(&bucket, guest, &path).await?;
        let (id, client) = (Uuid::new_v4().simple().to_string(), bucket.for_role(guest.visitor.role));
        let plan = Plan::once(self.store.settings().limits.first_byte_ms_max);
        let create = || async {
            match client.parts() {
                Ok(parts) => parts.create_multipart(&path).await,
                Err(local) => local.create(id.clone()).await,
            }
        };
        let upstream = self.store.health().ask(plan, create).await.map_err(|fault| self.answer(&fault))?;
        let upload = Upload::new(&guest.key_id, &guest.visitor.place.bucket, path, upstream, errand);
        self.guests.begin(id.clone(), Arc::new(upload));
        Ok(id)
    }

    /// Nothing is there yet, and no upload is on its way there.
    async fn is_free(&self, bucket: &Bucket, guest: &Guest, path: &Path) -> S3Result<()> {
        if self.guests.is_awaited(&guest.visitor.place.bucket, path) {
            return Err(taken());
        }
        let there = || async { bucket.for_role(guest.visitor.role).objects().head(path).await };
        match self.store.health().ask(Plan::read(&self.store.settings().limits), there).await {
            Err(Fault::Upstream(Error::NotFound { .. })) => Ok(()),
            Ok(_) => Err(taken()),
            Err(fault) => Err(self.answer(&fault)),
        }
    }

    /// Takes a part in and hands back our tag for it.
    pub(super) async fn put_part(
        &self,
        guest: &Guest,
        upload: &Upload,
        number: i32,
        body: Option<StreamingBlob>,
        length: Option<i64>,
    ) -> S3Result<String> {
        let number = (1..=PARTS_MAX).contains(&number).then(|| u16::try_from(number).ok()).flatten();
        let number = number.ok_or_else(|| s3_error!(InvalidArgument))?;
        let bucket = self.bucket(guest)?;
        let client = bucket.for_role(guest.visitor.role);
        let received = self.receive(guest, body, length).await?;
        let plan = Plan::body(&self.store.settings().limits, received.bytes);
        let put = || async {
            let body = received.payload.clone();
            match client.parts() {
                Ok(parts) => {
                    parts.put_part(&upload.path, &upload.upstream, usize::from(number) - 1, body).await
                }
                Err(local) => {
                    local.put_part(&upload.upstream, number, body).await?;
                    Ok(PartId { content_id: String::new() })
                }
            }
        };
        let id = self.store.health().ask(plan, put).await.map_err(|fault| self.answer(&fault))?;
        let tag = Uuid::new_v4().simple().to_string();
        upload.hold(number, Part { id, tag: tag.clone() });
        Ok(tag)
    }

    /// Makes the object of an upload's parts. After a failure of the store the upload is still there, to be completed
    /// again.
    pub(super) async fn complete(
        &self,
        guest: &Guest,
        (path, errand): (&Path, &Arc<Errand>),
        id: &str,
        listed: Option<CompletedMultipartUpload>,
    ) -> S3Result<PutResult> {
        let upload = self.guests.take(id, &guest.key_id, path).ok_or_else(|| s3_error!(NoSuchUpload))?;
        // No other upload can have begun for this key, and no put has passed: what is there now was there before.
        let bucket = self.bucket(guest)?;
        let unfit =
            if upload.is_of(errand) { self.is_free(&bucket, guest, path).await.err() } else { Some(taken()) };
        if let Some(unfit) = unfit {
            self.guests.begin(id.to_owned(), upload);
            return Err(unfit);
        }
        let result = self.assemble(guest, &upload, listed).await;
        if result.is_err() {
            self.guests.begin(id.to_owned(), upload);
        }
        result
    }

    async fn assemble(
        &self,
        guest: &Guest,
        upload: &Upload,
        listed: Option<CompletedMultipartUpload>,
    ) -> S3Result<PutResult> {
        let listed = listed.and_then(|listed| listed.parts).unwrap_or_default();
        let listed: Option<Vec<_>> = listed
            .iter()
            .map(|part| Some((u16::try_from(part.part_number?).ok()?, part.e_tag.as_ref()?.value())))
            .collect();
        let ids =
            upload.assemble(&listed.ok_or_else(|| s3_error!(InvalidPart))?).map_err(|fault| match fault {
                PartsFault::Order => s3_error!(InvalidPartOrder),
                PartsFault::Unknown => s3_error!(InvalidPart),
            })?;
        let bucket = self.bucket(guest)?;
        let client = bucket.for_role(guest.visitor.role);
        let complete = || async {
            match client.parts() {
                Ok(parts) => parts.complete_multipart(&upload.path, &upload.upstream, ids.clone()).await,
                Err(local) => {
                    let count = u16::try_from(ids.len()).unwrap_or_default();
                    local.complete(&upload.path, &upload.upstream, count).await
                }
            }
        };
        let plan = Plan::once(self.store.settings().limits.complete_ms_max);
        self.store.health().ask(plan, complete).await.map_err(|fault| self.answer(&fault))
    }

    /// Gives an upload up, at the store as well.
    pub(super) async fn abort(&self, upload: &Upload) {
        let Ok(bucket) = self.store.bucket(&upload.bucket) else { return };
        let client: &Client = bucket.for_role(duck_contract::Role::Writer);
        let abort = || async {
            match client.parts() {
                Ok(parts) => parts.abort_multipart(&upload.path, &upload.upstream).await,
                Err(local) => local.abort(&upload.upstream).await,
            }
        };
        let plan = Plan::once(self.store.settings().limits.first_byte_ms_max);
        if let Err(fault) = self.store.health().ask(plan, abort).await {
            let details = self.store.settings().redact(&fault.to_string());
            tracing::warn!(details, "an upload was not aborted; the store's own lifecycle rule has to");
        }
    }
}
