//! Reading: objects and their heads.

use std::ops;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectMeta, ObjectStoreExt};
use s3s::dto::Range;
use s3s::{S3Result, s3_error};

use super::backend::Client;
use super::desk::Desk;
use super::guests::Guest;
use super::health::{Fault, Plan};
use super::local;

/// An object whose first byte is there.
pub(super) struct Opened<E> {
    pub(super) meta: ObjectMeta,
    pub(super) range: ops::Range<u64>,
    pub(super) body: BoxStream<'static, Result<Bytes, E>>,
}

type Raw = Opened<object_store::Error>;

impl Desk {
    /// Opens an object. What its body brings counts as the worker's traffic.
    pub(super) async fn open(
        &self,
        guest: Arc<Guest>,
        path: &Path,
        range: Option<Range>,
    ) -> S3Result<Opened<Fault>> {
        let bucket = self.bucket(&guest)?;
        let client = bucket.for_role(guest.visitor.role);
        let (limits, health) = (&self.store.settings().limits, self.store.health());
        let raw = if is_manifest(path) {
            // Whole before its first byte goes out: half a manifest aborts the engine as surely as none.
            let fetch = || async {
                match fetch(client, path, range).await? {
                    Some(raw) => raw.gathered(limits.avro_bytes_max).await.map(Some),
                    None => Ok(None),
                }
            };
            health.ask(Plan::manifest(limits), fetch).await
        } else {
            health.ask(Plan::read(limits), || fetch(client, path, range)).await
        };
        let raw = raw.map_err(|fault| self.answer(&fault))?.ok_or_else(|| s3_error!(InvalidRange))?;
        let body = health.clone().watch(raw.body, Duration::from_millis(limits.idle_ms_max));
        let body = body.inspect_ok(move |piece| {
            guest.counts.bytes_out.fetch_add(piece.len() as u64, Ordering::Relaxed);
            guest.visitor.read(piece.len() as u64);
        });
        Ok(Opened { meta: raw.meta, range: raw.range, body: body.boxed() })
    }

    /// An object's head.
    pub(super) async fn head(&self, guest: &Guest, path: &Path) -> S3Result<ObjectMeta> {
        let bucket = self.bucket(guest)?;
        let objects = bucket.for_role(guest.visitor.role).objects();
        let limits = &self.store.settings().limits;
        let plan = if is_manifest(path) { Plan::manifest(limits) } else { Plan::read(limits) };
        self.store.health().ask(plan, || objects.head(path)).await.map_err(|fault| self.answer(&fault))
    }
}

/// Whether a failed read of this object aborts `DuckDB` 1.5.5.
fn is_manifest(path: &Path) -> bool {
    path.extension() == Some("avro")
}

/// Asks for the object. `None`: the range begins behind its end.
async fn fetch(client: &Client, path: &Path, range: Option<Range>) -> object_store::Result<Option<Raw>> {
    if let Client::S3(_) = client {
        let range = range.map(|range| match range {
            Range::Int { first, last: Some(last) } => GetRange::Bounded(first..last.saturating_add(1)),
            Range::Int { first, last: None } => GetRange::Offset(first),
            Range::Suffix { length } => GetRange::Suffix(length),
        });
        let got = client.objects().get_opts(path, GetOptions { range, ..GetOptions::default() }).await?;
        let (meta, range) = (got.meta.clone(), got.range.clone());
        return Ok(Some(Raw { meta, range, body: got.into_stream() }));
    }
    // A folder and memory read nothing until asked, so the range can be ours, and with it the answer to a bad one.
    let got = client.objects().get_opts(path, GetOptions::default()).await?;
    let meta = got.meta.clone();
    // Of nothing there is no part, which S3 says of a suffix as well.
    let part = |range: Range| range.check(meta.size).ok().filter(|range| !range.is_empty());
    let Some(range) = range.map_or(Some(0..meta.size), part) else { return Ok(None) };
    let body = match got.payload {
        GetResultPayload::File(file, _) => local::read(file, range.clone()),
        GetResultPayload::Stream(_) => {
            let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
            let bytes = got.bytes().await?;
            let end = at(range.end).min(bytes.len());
            let piece = bytes.slice(at(range.start).min(end)..end);
            stream::iter((!piece.is_empty()).then_some(Ok(piece))).boxed()
        }
    };
    Ok(Some(Raw { meta, range, body }))
}

impl Raw {
    /// The same object with its body in memory, if it is not larger than `bytes_max`.
    async fn gathered(self, bytes_max: u64) -> object_store::Result<Self> {
        if self.range.end - self.range.start > bytes_max {
            return Ok(self);
        }
        let pieces: Vec<_> = self.body.try_collect().await?;
        Ok(Self { body: stream::iter(pieces.into_iter().map(Ok)).boxed(), ..self })
    }
}
