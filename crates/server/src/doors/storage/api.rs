//! The S3 operations that exist here: s3s's types on one side, [`Desk`] on the other.

use std::sync::Arc;
use std::time::SystemTime;

use futures::TryStreamExt;
use http_body::Frame;
use http_body_util::StreamBody;
use object_store::ObjectMeta;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CommonPrefix, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput,
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETag,
    GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, ListObjectsV2Input,
    ListObjectsV2Output, Object, PutObjectInput, PutObjectOutput, StreamingBlob, Timestamp, UploadPartInput,
    UploadPartOutput,
};
use s3s::{Body, S3, S3Request, S3Response, S3Result, s3_error};

use super::desk::{Desk, guest, new_path, path};
use super::guard;
use super::health::Plan;
use super::ledger::Candidate;
use super::listing::{self, Ask, PAGE_MAX};

/// Keys of one `DeleteObjects`, as S3 has it.
const DELETE_KEYS_MAX: usize = 1_000;

/// The operations. Everything that is not here answers 501, and [`super::access::Rights`] refuses it before.
pub(super) struct Api(pub(super) Arc<Desk>);

type Answer<T> = S3Result<S3Response<T>>;

#[expect(clippy::unnecessary_wraps, reason = "every operation ends with it")]
fn done<T>(output: T) -> Answer<T> {
    Ok(S3Response::new(output))
}

fn tag(tag: Option<&String>) -> Option<ETag> {
    tag.map(|tag| ETag::Strong(tag.trim_matches('"').to_owned()))
}

fn changed(meta: &ObjectMeta) -> Timestamp {
    SystemTime::from(meta.last_modified).into()
}

fn size(bytes: u64) -> Option<i64> {
    i64::try_from(bytes).ok()
}

#[async_trait::async_trait]
impl S3 for Api {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        let guest = guest(&request)?;
        let (path, ranged) = (path(&guest, &request.input.key)?, request.input.range.is_some());
        let object = self.0.open(guest, &path, request.input.range).await?;
        let (start, end, whole) = (object.range.start, object.range.end, object.meta.size);
        done(GetObjectOutput {
            body: Some(StreamingBlob::from(Body::http_body_unsync(StreamBody::new(
                object.body.map_ok(Frame::data),
            )))),
            content_length: size(end - start),
            content_range: ranged.then(|| format!("bytes {start}-{}/{whole}", end.saturating_sub(1))),
            accept_ranges: Some("bytes".into()),
            e_tag: tag(object.meta.e_tag.as_ref()),
            last_modified: Some(changed(&object.meta)),
            ..GetObjectOutput::default()
        })
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        let guest = guest(&request)?;
        let meta = self.0.head(&guest, &path(&guest, &request.input.key)?).await?;
        done(HeadObjectOutput {
            content_length: size(meta.size),
            accept_ranges: Some("bytes".into()),
            e_tag: tag(meta.e_tag.as_ref()),
            last_modified: Some(changed(&meta)),
            ..HeadObjectOutput::default()
        })
    }

    async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        let guest = guest(&request)?;
        let input = request.input;
        let prefix = input.prefix.unwrap_or_default();
        if !guard::listable(&guest.visitor.place, &prefix) {
            return Err(s3_error!(AccessDenied, "Outside of what this key opens"));
        }
        if input.delimiter.as_deref().is_some_and(|delimiter| delimiter != "/" && !delimiter.is_empty()) {
            return Err(s3_error!(InvalidArgument, "The delimiter is a slash or nothing"));
        }
        let max =
            input.max_keys.and_then(|max| usize::try_from(max).ok()).unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
        let token = input.continuation_token.as_deref().map(listing::token_read);
        if token == Some(None) {
            return Err(s3_error!(InvalidArgument, "The continuation token is not one of ours"));
        }
        let ask = Ask {
            prefix: prefix.clone(),
            fold: input.delimiter.as_deref() == Some("/"),
            start_after: input.start_after.clone(),
            token: token.flatten(),
            max,
        };
        let bucket = self.0.bucket(&guest)?;
        let client = bucket.for_role(guest.visitor.role);
        let plan = Plan::read(&self.0.store.settings().limits);
        let page = self.0.store.health().ask(plan, || listing::list(client, ask.clone())).await;
        let page = page.map_err(|fault| self.0.answer(&fault))?.checked(&prefix).ok_or_else(|| {
            tracing::error!(
                warehouse = guest.visitor.warehouse,
                "the storage backend listed keys that nobody asked for"
            );
            s3_error!(InternalError, "The storage backend failed")
        })?;
        let url = input.encoding_type.as_ref().is_some_and(|encoding| encoding.as_str() == "url");
        let text = |text: String| if url { listing::url_encoded(&text) } else { text };
        let object = |meta: ObjectMeta| Object {
            last_modified: Some(changed(&meta)),
            e_tag: tag(meta.e_tag.as_ref()),
            size: size(meta.size),
            key: Some(text(meta.location.to_string())),
            ..Object::default()
        };
        let count = page.objects.len() + page.folders.len();
        let contents = page.objects.into_iter().map(object).collect();
        let folder = |folder| CommonPrefix { prefix: Some(text(folder)) };
        let common_prefixes = page.folders.into_iter().map(folder).collect();
        done(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(text(prefix)),
            key_count: i32::try_from(count).ok(),
            max_keys: i32::try_from(max).ok(),
            is_truncated: Some(page.token.is_some()),
            continuation_token: input.continuation_token,
            next_continuation_token: page.token.as_deref().map(listing::token_shown),
            start_after: input.start_after.map(text),
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            encoding_type: input.encoding_type,
            delimiter: input.delimiter,
            ..ListObjectsV2Output::default()
        })
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        let guest = guest(&request)?;
        let input = request.input;
        let (path, _) = new_path(&guest, &input.key)?;
        let put = self.0.put(&guest, &path, input.body, input.content_length).await?;
        done(PutObjectOutput { e_tag: tag(put.e_tag.as_ref()), ..PutObjectOutput::default() })
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        let guest = guest(&request)?;
        let input = request.input;
        let (path, errand) = new_path(&guest, &input.key)?;
        let id = self.0.begin(&guest, path, &errand).await?;
        done(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        })
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        let guest = guest(&request)?;
        let input = request.input;
        let (path, errand) = new_path(&guest, &input.key)?;
        let upload = self.0.guests.upload(&input.upload_id, &guest.key_id, &path);
        let upload = upload.filter(|upload| upload.is_of(&errand)).ok_or_else(|| s3_error!(NoSuchUpload))?;
        let part =
            self.0.put_part(&guest, &upload, input.part_number, input.body, input.content_length).await?;
        done(UploadPartOutput { e_tag: Some(ETag::Strong(part)), ..UploadPartOutput::default() })
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let guest = guest(&request)?;
        let input = request.input;
        let (path, errand) = new_path(&guest, &input.key)?;
        let desk = self.0.clone();
        // A task of its own: once begun it comes to its end, even if the worker hangs up.
        let complete = async move {
            desk.complete(&guest, (&path, &errand), &input.upload_id, input.multipart_upload).await
        };
        let put = tokio::spawn(complete).await.map_err(|_| s3_error!(InternalError))??;
        done(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: tag(put.e_tag.as_ref()),
            ..CompleteMultipartUploadOutput::default()
        })
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        let guest = guest(&request)?;
        let path = path(&guest, &request.input.key)?;
        let upload = self.0.guests.take(&request.input.upload_id, &guest.key_id, &path);
        self.0.abort(&*upload.ok_or_else(|| s3_error!(NoSuchUpload))?).await;
        done(AbortMultipartUploadOutput::default())
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        let guest = guest(&request)?;
        path(&guest, &request.input.key)?;
        let (warehouse, place) = (&guest.visitor.warehouse, &guest.visitor.place);
        self.0.ledger.write(vec![Candidate::now(warehouse, &place.bucket, &request.input.key)]).await;
        done(DeleteObjectOutput::default())
    }

    async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        let guest = guest(&request)?;
        let objects = request.input.delete.objects;
        if objects.len() > DELETE_KEYS_MAX || objects.iter().any(|object| object.version_id.is_some()) {
            return Err(s3_error!(InvalidArgument));
        }
        // All or nothing: a list with one foreign key in it is not an honest worker's.
        objects.iter().try_for_each(|object| path(&guest, &object.key).map(drop))?;
        let (warehouse, place) = (&guest.visitor.warehouse, &guest.visitor.place);
        let candidate = |key: &str| Candidate::now(warehouse, &place.bucket, key);
        self.0.ledger.write(objects.iter().map(|object| candidate(&object.key)).collect()).await;
        let quiet = request.input.delete.quiet.unwrap_or(false);
        let deleted = |key| DeletedObject { key: Some(key), ..DeletedObject::default() };
        let deleted = objects.into_iter().filter(|_| !quiet).map(|object| deleted(object.key)).collect();
        done(DeleteObjectsOutput { deleted: Some(deleted), ..DeleteObjectsOutput::default() })
    }
}
