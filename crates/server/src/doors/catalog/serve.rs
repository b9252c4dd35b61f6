//! The listening end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Passes;
use super::door::Door;
use super::upstream::Upstream;

const CONNECTIONS_MAX: usize = 4_096;
/// Also how long an idle connection is kept.
const HEADERS_TIME_MAX: Duration = Duration::from_mins(1);
const HEADERS_MAX: usize = 64;
const HEADERS_BYTES_MAX: usize = 64 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the door was not opened.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Anyone on the network could knock.
    #[error("the catalog door must listen on a loopback address, not on {0}")]
    NotLoopback(SocketAddr),
    /// The listener has no address.
    #[error("the catalog door's listener is of no use")]
    Listener(#[from] std::io::Error),
}

/// Serves workers until `stop`; then lets the requests under way end and settles every change, and only then returns.
///
/// Changes can take [`Settings::change_time_max`](super::Settings::change_time_max) each.
pub async fn serve(
    listener: TcpListener,
    passes: Passes,
    upstream: Arc<Upstream>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback(address));
    }
    let time_max = upstream.settings().change_time_max();
    let door = Arc::new(Door::new(passes, upstream));
    let open = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Some(stream) = next(&listener, &stop).await {
        // Without a place the connection is closed at once: a worker sees that and tries again.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let door = door.clone();
        let answer = service_fn(move |request| {
            let door = door.clone();
            async move { Ok::<_, Infallible>(door.answer(request).await.into_response()) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_TIME_MAX)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEADERS_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), answer);
        let connection = open.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %error, "a worker's connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    if timeout(time_max, open.shutdown()).await.is_err() {
        tracing::warn!("workers' requests were still under way when the catalog door closed");
    }
    door.changes.close();
    door.changes.wait().await;
    Ok(())
}

/// The next worker's connection; none when the door is to close.
async fn next(listener: &TcpListener, stop: &CancellationToken) -> Option<TcpStream> {
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                // Small answers must not wait for one another; without it the door is slower, not wrong.
                let _ = stream.set_nodelay(true);
                return Some(stream);
            }
            Err(error) => {
                tracing::warn!(error = %error, "a worker's connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
