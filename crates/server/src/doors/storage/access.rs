//! Who is calling, and which operations its role has.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use duck_contract::Role;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Result, s3_error};

use super::guard;
use super::guests::Guests;

/// Secrets of the passes that are good now.
pub(super) struct Secrets(pub(super) Arc<Guests>);

#[async_trait::async_trait]
impl S3Auth for Secrets {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.0.secret(access_key).map(SecretKey::from).ok_or_else(|| s3_error!(InvalidAccessKeyId))
    }
}

/// Operations by role, bucket and key. What passes carries its [`super::guests::Guest`] along.
pub(super) struct Rights(pub(super) Arc<Guests>);

/// Whether the role has the operation. What is not named here is nobody's.
fn has(role: Role, operation: &str) -> bool {
    match operation {
        "GetObject" | "HeadObject" | "ListObjectsV2" => true,
        "PutObject"
        | "CreateMultipartUpload"
        | "UploadPart"
        | "CompleteMultipartUpload"
        | "AbortMultipartUpload"
        | "DeleteObject"
        | "DeleteObjects" => role == Role::Writer,
        _ => false,
    }
}

#[async_trait::async_trait]
impl S3Access for Rights {
    async fn check(&self, request: &mut S3AccessContext<'_>) -> S3Result<()> {
        // s3s asks also for requests without a signature.
        let credentials = request.credentials().ok_or_else(|| s3_error!(AccessDenied))?;
        let guest = self.0.find(&credentials.access_key).ok_or_else(|| s3_error!(InvalidAccessKeyId))?;
        let place = &guest.visitor.place;
        let within = match request.s3_path() {
            S3Path::Object { bucket, key } => {
                **bucket == *place.bucket && guard::inside(place, key).is_some()
            }
            S3Path::Bucket { bucket } => **bucket == *place.bucket,
            S3Path::Root => false,
        };
        if !within || !has(guest.visitor.role, request.s3_op().name()) {
            tracing::info!(
                warehouse = guest.visitor.warehouse,
                role = guest.visitor.role.as_str(),
                operation = request.s3_op().name(),
                "refused at the storage door"
            );
            return Err(s3_error!(AccessDenied, "Outside of what this key opens"));
        }
        guest.counts.requests.fetch_add(1, Ordering::Relaxed);
        guest.visitor.asked_store();
        request.extensions_mut().insert(guest);
        Ok(())
    }
}
