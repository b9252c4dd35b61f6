//! HTTP on the worker's Unix socket.
//!
//! `POST /intent` tells what one would change; `POST /statement` runs one and streams its answer; `DELETE /statement/{id}` stops one and answers when it has ended; `GET
//! /statements` tells how far all of them are. When a connection closes in the middle, its statement is interrupted: the answer's
//! body owns the statement.

use std::convert::Infallible;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use duck_contract::query::{ROW_COUNT_HEADER, TRUNCATED_HEADER};
use duck_contract::worker::{AFFECTED_HEADER, FAILURE_TRAILER, Failure, SHORT, Statement};
use duck_contract::{Code, Format};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TRAILER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::execute::{self, Outcome};
use crate::fault;
use crate::running::{Register, Running};
use crate::session::Session;
use crate::sink::{Head, PIECES_MAX, Piece, Sink};
use crate::sys::process;
use crate::threads::Threads;

/// A statement that goes on for longer gets the worker's other threads. To wake them for less costs more than they do: with two
/// from the start `SELECT 42` takes twice the CPU, and the first query of a table half as much again.
const ALONE: Duration = Duration::from_millis(20);
/// Of each text of a failure that is told in a trailer: both are read within hyper's 16 KiB, were every byte escaped.
const TRAILER_TEXT_BYTES_MAX: usize = 1 << 10;

type Answer = Response<UnsyncBoxBody<Bytes, Broken>>;

/// The answer ends here without a good end: the connection is closed, so that nobody takes it for whole.
#[derive(Debug, thiserror::Error)]
#[error("the statement broke off")]
struct Broken;

/// What it is served on. Starts no thread.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()
}

/// Serves on a thread of its own until the process ends. This thread has prepared the engine, and so it has what a thread must get before
/// it can work with DuckDB: as a rule it is the one that the first statement runs on.
#[allow(clippy::print_stderr)]
pub(crate) fn forever(runtime: Runtime, session: Session, listener: UnixListener) -> ! {
    let worker = Arc::new(Worker {
        session,
        register: Arc::default(),
        threads: Arc::default(),
        helpers: Semaphore::new(1),
    });
    let threads = worker.threads.clone();
    let serving = std::thread::Builder::new().name("serve".to_owned()).spawn(move || {
        let served = catch_unwind(AssertUnwindSafe(|| runtime.block_on(serve(worker, listener))));
        if let Ok(Err(e)) = served {
            eprintln!("duck-worker: no longer served: {e}");
        }
        // Nobody can be answered any more, whatever still runs.
        process::exit_now(1)
    });
    match serving {
        Ok(serving) => {
            threads.work_here();
            let _ = serving.join();
        }
        Err(e) => eprintln!("duck-worker: not served: {e}"),
    }
    process::exit_now(1)
}

async fn serve(worker: Arc<Worker>, listener: UnixListener) -> std::io::Result<Infallible> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let worker = worker.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(worker.clone(), request));
            // An error here is a client that went away; what it had running is stopped by its body's drop.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

struct Worker {
    session: Session,
    register: Arc<Register>,
    threads: Arc<Threads>,
    /// Whose statement's end sends the helpers home. They work for all statements while they are there.
    helpers: Semaphore,
}

async fn answer(worker: Arc<Worker>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let path = request.uri().path();
    let result = match (request.method(), path, path.strip_prefix("/statement/")) {
        (&Method::POST, "/statement", _) => statement(worker, request).await,
        (&Method::DELETE, _, Some(id)) => {
            worker.register.settle(id).await;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, "/intent", _) => intent(&worker, request).await,
        (&Method::GET, "/statements", _) => Ok(json(StatusCode::OK, &worker.register.progress())),
        _ => Ok(empty(StatusCode::NOT_FOUND)),
    };
    Ok(result.unwrap_or_else(|failure| failed(&failure)))
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(full(Bytes::new()));
    *answer.status_mut() = status;
    answer
}

fn full(bytes: Bytes) -> UnsyncBoxBody<Bytes, Broken> {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn failed(failure: &Failure) -> Answer {
    json(StatusCode::from_u16(failure.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), failure)
}

fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    let mut answer = Response::new(full(serde_json::to_vec(body).unwrap_or_default().into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn invalid(e: &dyn std::fmt::Display) -> Failure {
    fault::ours(Code::Internal, format!("front and engine disagree: {e}"))
}

async fn received(request: Request<Incoming>) -> Result<Statement, Failure> {
    let body = request.into_body().collect().await.map_err(|e| invalid(&e))?.to_bytes();
    serde_json::from_slice(&body).map_err(|e| invalid(&e))
}

/// What a statement is about to change.
async fn intent(worker: &Worker, request: Request<Incoming>) -> Result<Answer, Failure> {
    let intent = worker.session.policy.intent(&received(request).await?)?;
    Ok(json(StatusCode::OK, &intent))
}

async fn statement(worker: Arc<Worker>, request: Request<Incoming>) -> Result<Answer, Failure> {
    let statement = received(request).await?;
    let format = statement.format;

    let entry = worker.register.enter(&statement.id).ok_or_else(|| invalid(&"the id is taken"))?;
    let stop = StopOnDrop(Some(entry.running.clone()));
    tokio::spawn(accompany(worker.clone(), entry.running.clone()));
    let (head_sender, head) = oneshot::channel();
    let (piece_sender, pieces) = mpsc::channel(PIECES_MAX);
    let threads = worker.threads.clone();
    let spawned = threads.run(move |thread| {
        entry.running.on(thread);
        let (session, mut sink) = (&worker.session, Sink::new(head_sender, piece_sender));
        let connection = session
            .connect(statement.watched)
            .map_err(|e| fault::unable_to_begin(&session.scrub.clean(&e.0)));
        let result = match &connection {
            Ok(connection) => execute::run(session, connection, &statement, &entry.running, &mut sink),
            Err(failure) => Err(failure.clone()),
        };
        // Off the register first: who has seen the last byte must not find the statement still running.
        drop(entry);
        sink.end(result);
        drop(connection);
        session.connect_ahead();
    });
    spawned.map_err(|e| fault::unable_to_begin(&e.to_string()))?;
    let lost = || fault::ours(Code::Internal, "The engine failed at this statement.");
    Ok(match head.await.map_err(|_| lost())?? {
        Head::Whole(bytes, outcome) => {
            stop.disarm();
            let mut answer = Response::new(full(bytes));
            set_type(&mut answer, format);
            count(answer.headers_mut(), outcome);
            answer
        }
        Head::Streamed => {
            let mut answer = Response::new(Stream { pieces, stop, ended: false }.boxed_unsync());
            set_type(&mut answer, format);
            let names = HeaderValue::from_static("x-row-count, x-truncated, x-rows-affected, x-failure");
            answer.headers_mut().insert(TRAILER, names);
            answer
        }
    })
}

/// What becomes of a statement that goes on: first it is helped, then it has to wait for others.
async fn accompany(worker: Arc<Worker>, running: Arc<Running>) {
    let help = async {
        if timeout(ALONE, running.ended()).await.is_err() && worker.session.helpers_max() > 0 {
            help(&worker, &running).await;
        }
    };
    let lower = async {
        if timeout(SHORT, running.ended()).await.is_err() {
            running.lower();
        }
    };
    tokio::join!(help, lower);
}

/// Lends the worker's other threads to a statement. They yield to everybody: what only they could do is not urgent.
async fn help(worker: &Worker, running: &Running) {
    let _here = tokio::select! {
        () = running.ended() => return,
        here = worker.helpers.acquire() => here,
    };
    let helpers = Arc::new(worker.session.helpers());
    for _ in 0..worker.session.helpers_max() {
        let helpers = helpers.clone();
        // Without it the statement goes on alone.
        let _ = worker.threads.run(move |thread| {
            thread.lower();
            helpers.work();
        });
    }
    running.ended().await;
    helpers.dismiss();
}

fn set_type(answer: &mut Answer, format: Format) {
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
}

fn count(headers: &mut HeaderMap, outcome: Outcome) {
    headers.insert(ROW_COUNT_HEADER, HeaderValue::from(outcome.rows));
    headers
        .insert(TRUNCATED_HEADER, HeaderValue::from_static(if outcome.truncated { "true" } else { "false" }));
    if let Some(affected) = outcome.affected {
        headers.insert(AFFECTED_HEADER, HeaderValue::from(affected));
    }
}

/// A failure as a trailer's value: JSON has no line break, and trailers are not read beyond some size.
fn trailer(mut failure: Failure) -> Option<HeaderValue> {
    for text in [&mut failure.message, &mut failure.detail] {
        text.truncate(text.floor_char_boundary(TRAILER_TEXT_BYTES_MAX));
    }
    HeaderValue::from_bytes(&serde_json::to_vec(&failure).ok()?).ok()
}

/// Stops the statement when whoever waits for it is gone.
struct StopOnDrop(Option<Arc<Running>>);

impl StopOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            tokio::spawn(async move { running.stop().await });
        }
    }
}

/// A streamed answer. Dropping it stops the statement.
struct Stream {
    pieces: mpsc::Receiver<Piece>,
    stop: StopOnDrop,
    ended: bool,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match ready!(self.pieces.poll_recv(cx)) {
            Some(Piece::Data(data)) => Ok(Frame::data(data)),
            Some(Piece::End(outcome)) => {
                self.ended = true;
                self.stop.0 = None;
                let mut trailers = HeaderMap::new();
                count(&mut trailers, outcome);
                Ok(Frame::trailers(trailers))
            }
            Some(Piece::Failed(failure)) => {
                self.ended = true;
                self.stop.0 = None;
                let name = HeaderName::from_static(FAILURE_TRAILER);
                trailer(failure)
                    .map(|value| Frame::trailers(HeaderMap::from_iter([(name, value)])))
                    .ok_or(Broken)
            }
            None => {
                self.ended = true;
                Err(Broken)
            }
        }))
    }
}
