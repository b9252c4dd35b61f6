//! The listener: connections in, s3s behind [`guard::precheck`], and an end that waits.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::access::{Rights, Secrets};
use super::api::Api;
use super::backend::Store;
use super::desk::Desk;
use super::guard::{self, Refusal};
use super::guests::{Guests, Traffic};
use super::ledger::Ledger;
use super::settings::Limits;
use crate::doors::Passes;

/// How far a signature's date may be from ours. Both clocks are this machine's.
const SKEW_S_MAX: u32 = 60;
/// Bytes of XML: a list of 10 000 parts or 1 000 keys.
const XML_BYTES_MAX: usize = 2 << 20;
/// Bytes of a request's head, and of the pieces in which its body arrives.
const BUFFER_BYTES_MAX: usize = 512 << 10;
/// Between two looks for uploads whose worker is gone.
const SWEEP: Duration = Duration::from_secs(1);
/// After a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the door does not open.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The door speaks plain HTTP, and is for workers on this machine.
    #[error("the storage door listens on loopback only, not on {0}")]
    NotLoopback(SocketAddr),
    /// The listener has no address.
    #[error("the storage door's listener is unusable")]
    Listener(#[from] io::Error),
}

/// The storage door. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Door {
    desk: Arc<Desk>,
    service: S3Service,
}

impl Door {
    /// A door to the store for those who hold a pass.
    pub fn new(passes: Passes, store: Store, ledger: Ledger) -> Self {
        let guests = Arc::new(Guests::new(passes, &store.settings().limits));
        let desk = Arc::new(Desk::new(store, ledger, guests.clone()));
        let mut builder = S3ServiceBuilder::new(Api(desk.clone()));
        builder.set_auth(Secrets(guests.clone()));
        builder.set_access(Rights(guests));
        let mut config = S3Config::default();
        config.presigned_url_max_skew_time_secs = SKEW_S_MAX;
        config.xml_max_body_size = XML_BYTES_MAX;
        // Forms are refused before; should one get through, it is empty.
        (config.form_max_parts, config.form_max_fields_size, config.post_object_max_file_size) =
            (1, 1_024, 0);
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        Self { desk, service: builder.build() }
    }

    /// What the worker with this key id has moved, while its pass is good.
    pub fn traffic(&self, access_key_id: &str) -> Option<Traffic> {
        self.desk.guests.traffic(access_key_id)
    }

    /// Serves until `stop`, then lets running requests end within `drain_ms_max` and aborts what uploads are open.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> Result<(), ServeError> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            return Err(ServeError::NotLoopback(address));
        }
        let limits = self.desk.store.settings().limits.clone();
        let room = Arc::new(Semaphore::new(limits.connections_max));
        let graceful = GracefulShutdown::new();
        // Dropped at the end, which cuts what is left.
        let mut connections = JoinSet::new();
        let mut sweep = interval(SWEEP);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = sweep.tick() => self.sweep(&mut connections),
                Some(_) = connections.join_next() => {}
                permitted = accept(&listener, &room) => match permitted {
                    Ok((stream, permit)) => {
                        let connection = graceful.watch(self.connection(stream, &limits));
                        connections.spawn(async move {
                            if let Err(error) = connection.await {
                                tracing::debug!(%error, "a connection to the storage door ended early");
                            }
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the storage door could not accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        let drain = Duration::from_millis(limits.drain_ms_max);
        if timeout(drain, graceful.shutdown()).await.is_err() {
            tracing::warn!("the storage door cuts connections that did not end in time");
        }
        connections.shutdown().await;
        let open = self.desk.guests.drain();
        futures::future::join_all(open.iter().map(|upload| self.desk.abort(upload))).await;
        Ok(())
    }

    /// Aborts, beside everything else, the uploads of workers that are gone.
    fn sweep(&self, tasks: &mut JoinSet<()>) {
        for upload in self.desk.guests.sweep(Instant::now()) {
            let desk = self.desk.clone();
            tasks.spawn(async move { desk.abort(&upload).await });
        }
    }

    fn connection(
        &self,
        stream: TcpStream,
        limits: &Limits,
    ) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + Send + 'static + use<>
    {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "answers may be late by a delayed acknowledgement");
        }
        let (service, part_bytes_max) = (self.service.clone(), limits.part_bytes_max);
        let answer = service_fn(move |request| answer(service.clone(), request, part_bytes_max));
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_millis(limits.header_read_ms_max))
            .max_headers(limits.headers_max)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), answer)
    }
}

/// A connection and its place among `connections_max`. More wait in the kernel's queue.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, Option<tokio::sync::OwnedSemaphorePermit>)> {
    // The semaphore is never closed.
    let permit = room.clone().acquire_owned().await.ok();
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

async fn answer(
    service: S3Service,
    request: Request<Incoming>,
    part_bytes_max: u64,
) -> Result<Response<Body>, HttpError> {
    let (head, body) = request.into_parts();
    if let Err(refusal) = guard::precheck(&head, part_bytes_max) {
        tracing::info!(%refusal, method = %head.method, "refused at the storage door");
        return Ok(refused(refusal));
    }
    hyper::service::Service::call(&service, Request::from_parts(head, body)).await
}

fn refused(refusal: Refusal) -> Response<Body> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>AccessDenied</Code><Message>{refusal}</Message></Error>"
    );
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = refusal.status();
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/xml"));
    response
}
