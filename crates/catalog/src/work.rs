//! Work that computes or blocks, away from the threads that serve sockets.

use serde::de::DeserializeOwned;
use tokio::task::JoinError;

use crate::refusal::Refusal;

/// Runs `f` on a thread for blocking work.
pub(crate) async fn off_thread<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    run(f, Refusal::internal).await
}

/// Runs `f`, which judges what a client sent, on a thread for blocking work.
///
/// A panic inside becomes a 400: the Iceberg types calculate unchecked with numbers that no honest client sends (a
/// snapshot's timestamp of `i64::MIN`, say).
pub(crate) async fn judge<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    run(f, |_| Refusal::bad_request("the request holds values that make no sense")).await
}

async fn run<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    panicked: fn(JoinError) -> Refusal,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(f).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => Err(panicked(error)),
        Err(error) => Err(Refusal::internal(error)),
    }
}

/// Reads a JSON body.
pub(crate) async fn parse<T: DeserializeOwned + Send + 'static>(body: bytes::Bytes) -> Result<T, Refusal> {
    judge(move || {
        serde_json::from_slice(&body)
            .map_err(|error| Refusal::bad_request(format!("the body is not right: {error}")))
    })
    .await
}
