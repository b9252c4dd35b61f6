//! What a worker is told when the store fails.
//!
//! The one place where a [`Fault`] becomes an answer. `DuckDB` 1.5.5 repeats 500, 503 and 504 and shows the text to the
//! caller, so the text is ours: no endpoint, no bucket, no key. A 401 or 403 of the store is a fault of ours, never the
//! worker's.

use object_store::Error;
use s3s::{S3Error, S3ErrorCode, s3_error};

use super::health::Fault;
use super::settings::Settings;

/// The answer to a worker; the details go to the log, without our keys.
pub(super) fn answer(fault: &Fault, settings: &Settings) -> S3Error {
    let details = || settings.redact(&fault.to_string());
    match fault {
        Fault::Deadline | Fault::Resting => {
            tracing::warn!(%fault, "storage request given up");
            s3_error!(ServiceUnavailable, "The storage backend does not answer")
        }
        Fault::Upstream(Error::NotFound { .. }) => s3_error!(NoSuchKey),
        Fault::Upstream(Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) => {
            tracing::error!(details = details(), "the storage backend refuses our key");
            s3_error!(InternalError, "The storage backend refused the request")
        }
        Fault::Upstream(Error::InvalidPath { .. }) => {
            s3_error!(InvalidArgument, "The storage backend cannot hold this key")
        }
        Fault::Upstream(_) if fault.status() == Some(http::StatusCode::RANGE_NOT_SATISFIABLE) => {
            s3_error!(InvalidRange)
        }
        Fault::Upstream(_) => {
            tracing::warn!(details = details(), "the storage backend failed");
            let code =
                if fault.is_passing() { S3ErrorCode::ServiceUnavailable } else { S3ErrorCode::InternalError };
            S3Error::with_message(code, "The storage backend failed")
        }
    }
}
