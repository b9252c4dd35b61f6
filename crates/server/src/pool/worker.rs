//! One worker, from birth to death.
//!
//! The worker's process, directory and credentials all end when the last handle on it is dropped.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use duck_contract::Code;
use duck_contract::worker::{Cell, Progress, Report, Spec};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::HOST;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::nursery::{Birth, Nursery};
use super::usage::Usage;
use crate::doors::{BoundPass, Errand, OnErrand, Pass, Visitor};
use crate::fault::Fault;

/// What a worker may say before it ends; the rest is dropped.
const STDERR_BYTES_MAX: usize = 8 << 10;
/// How far above its hard limit a worker is killed: what the limit does not count (pages of libraries that it has changed, stacks).
const OUTGROWN_BYTES: u64 = 64 << 20;
/// Files in a worker's directory. DuckDB makes a few; more would make counting them slow.
const FILES_MAX: u32 = 4_096;
/// A few lines for each statement.
const PROGRESS_BYTES_MAX: usize = 64 << 10;
/// Connections to a worker that are kept for the next statement.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// An answer that has begun, and the connection it comes on.
pub(crate) type Sent = (Response<Incoming>, SendRequest<Full<Bytes>>);

/// A request that was not answered.
#[derive(Debug, thiserror::Error)]
#[error("the worker did not answer")]
pub(crate) struct NotSent {
    /// Whether the worker may have seen it.
    pub(crate) begun: bool,
    #[source]
    cause: Box<dyn std::error::Error + Send + Sync>,
}

impl NotSent {
    fn never(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        NotSent { begun: false, cause: cause.into() }
    }
}

/// A process that is confined and attached, and waits to be told which warehouse it is for. It ends when this is dropped.
pub(super) struct Spare {
    id: u64,
    process: Process,
    home: Home,
    control: UnixStream,
    listening: JoinHandle<()>,
    said: Arc<Mutex<Vec<u8>>>,
    pass: Pass,
}

/// A worker that has reported ready.
pub(crate) struct Worker {
    /// Tells it apart from all others of this server's life.
    pub(crate) id: u64,
    /// Its process.
    pub(crate) pid: i32,
    process: Process,
    directory: PathBuf,
    socket: PathBuf,
    said: Arc<Mutex<Vec<u8>>>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    end: Arc<End>,
    code_bytes: u64,
    memory_bytes_max: u64,
    spill_bytes_max: u64,
    pass: BoundPass,
}

/// How a worker came to its end.
#[derive(Default)]
struct End {
    came: CancellationToken,
    /// Who had it leased, and how many of them at its end.
    leases: AtomicUsize,
    bereaved: AtomicUsize,
    /// It was killed for what it used.
    outgrown: OnceLock<Outgrown>,
}

/// What a worker has used too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outgrown {
    /// Memory.
    Memory,
    /// Disk, or files.
    Disk,
}

/// A child, by descriptors that never mean another one. Killed when this is dropped.
struct Process {
    pid: i32,
    fd: OwnedFd,
    usage: Usage,
}

impl Process {
    fn of(pid: i32) -> io::Result<Self> {
        let raw = Pid::from_raw(pid).ok_or_else(|| io::Error::other("that is no pid"))?;
        let fd = rustix::process::pidfd_open(raw, PidfdFlags::empty())?;
        Ok(Process { pid, fd, usage: Usage::of(pid)? })
    }

    fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.fd, Signal::KILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A worker's own directory and the socket it listens on. Both are removed when its process has ended.
struct Home {
    directory: PathBuf,
    socket: PathBuf,
}

impl Home {
    fn make(runtime: &Path, id: u64, uid: Option<u32>) -> io::Result<Self> {
        let home =
            Home { directory: runtime.join(format!("w{id}")), socket: runtime.join(format!("w{id}.sock")) };
        fs::DirBuilder::new().mode(0o700).create(&home.directory)?;
        if let Some(uid) = uid {
            chown(&home.directory, Some(uid), Some(uid))?;
        }
        Ok(home)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_file(&self.socket);
    }
}

impl Spare {
    /// A new process in a home of its own. `cell` lacks its `directory` and its `keys`. Does not wait until it is confined.
    pub(super) async fn bear(
        id: u64,
        nursery: &Nursery,
        runtime: &Path,
        mut cell: Cell,
        pass: Pass,
    ) -> io::Result<Spare> {
        let home = Home::make(runtime, id, cell.uid)?;
        (cell.directory, cell.keys) = (home.directory.to_string_lossy().into_owned(), pass.keys.clone());
        let listener = UnixListener::bind(&home.socket)?;
        let (mut control, theirs) = UnixStream::pair()?;
        let (their_stderr, stderr) = stderr_pipe()?;
        let control_fd = theirs.into_std().and_then(blocking)?;
        let birth = Birth { control: control_fd, listener: listener.into(), stderr: their_stderr };
        let process = Process::of(nursery.bear(birth).await?)?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let listening = tokio::spawn(listen(stderr, said.clone()));
        tell(&mut control, &cell).await?;
        Ok(Spare { id, process, home, control, listening, said, pass })
    }

    /// What it said when it ended, if it has, as far as can be seen without waiting.
    pub(super) fn obituary(&self) -> Option<String> {
        // Nothing is sent before the report, so that anything to read is its end.
        let mut report = [0; 1_024];
        let n = match self.control.try_read(&mut report) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => 0,
        };
        Some(format!("{} {}", String::from_utf8_lossy(&report[..n]).trim(), last_words(&self.said)))
    }

    /// Becomes the worker of a warehouse, and returns when it has reported.
    pub(super) async fn become_worker(
        mut self,
        cell: &Cell,
        spec: &Spec,
        visitor: Visitor,
        report_ms_max: u64,
    ) -> Result<Worker, Fault> {
        let unable =
            |e: io::Error| Fault::new(Code::EngineUnavailable, "No engine could be started.").because(e);
        // Before it can ask for anything of the warehouse.
        let pass = self.pass.bind(visitor);
        let exchange = async {
            // One that has failed before does not listen any more: its report says why.
            let _ = tell(&mut self.control, spec).await;
            // The first statement's connection is made meanwhile; the worker takes it up when it serves.
            let (report, connection) = tokio::join!(report(&mut self.control), connect(&self.home.socket));
            Ok::<_, io::Error>((report?, connection.ok()))
        };
        let (report, connection) = tokio::time::timeout(Duration::from_millis(report_ms_max), exchange)
            .await
            .map_err(|_| unable(io::Error::other("no report in time")))?
            .map_err(|e| unable(io::Error::other(format!("{e}: {}", last_words(&self.said)))))?;
        let code_bytes = match report {
            Report::Ready { sandbox, code_bytes } => {
                tracing::debug!(worker = self.id, ?sandbox, code_bytes, "confined");
                code_bytes
            }
            Report::Failed(failure) => {
                return Err(Fault::new(failure.code, failure.message).because(failure.detail));
            }
        };
        let Spare { id, process, home, control, listening, said, .. } = self;
        let end = Arc::<End>::default();
        let (directory, socket) = (home.directory.clone(), home.socket.clone());
        tokio::spawn(watch(control, listening, home, end.clone()));
        Ok(Worker {
            id,
            pid: process.pid,
            process,
            directory,
            socket,
            said,
            idle: Mutex::new(Vec::from_iter(connection)),
            end,
            code_bytes,
            memory_bytes_max: cell.memory_bytes_max,
            spill_bytes_max: cell.spill_bytes_max,
            pass,
        })
    }
}

impl Worker {
    /// Ends the process at once. What it was doing for anybody is lost.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// Completes when the process has ended and its last words were read. Does not keep the worker.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.end.came.clone().cancelled_owned()
    }

    /// Whether a statement that was on this worker when it ended may be another one's victim.
    pub(crate) fn was_shared(&self) -> bool {
        self.end.bereaved.load(Ordering::Acquire) > 1
    }

    /// What it was ended for, if it used too much of it.
    pub(crate) fn outgrown(&self) -> Option<Outgrown> {
        self.end.outgrown.get().copied()
    }

    /// Ends the process if it uses more than it may: the backstop behind its own limits, which know files one by one only.
    pub(super) fn kill_if_outgrown(&self) {
        let memory = self.memory_bytes().is_some_and(|bytes| bytes > self.memory_bytes_max + OUTGROWN_BYTES);
        let disk =
            || disk_bytes(&self.directory, &mut FILES_MAX.clone()) > self.spill_bytes_max + OUTGROWN_BYTES;
        let what = if memory {
            Outgrown::Memory
        } else if disk() {
            Outgrown::Disk
        } else {
            return;
        };
        tracing::warn!(worker = self.id, ?what, "killed: it uses more than it may");
        let _ = self.end.outgrown.set(what);
        self.kill();
    }

    /// From now on what it does at the doors is done on this errand, too.
    pub(super) fn sent(&self, errand: Arc<Errand>) -> OnErrand {
        self.pass.visitor.sent(errand)
    }

    pub(super) fn leased(&self) {
        self.end.leases.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn returned(&self) {
        self.end.leases.fetch_sub(1, Ordering::AcqRel);
    }

    /// The last of what it wrote to standard error: the reason of an abort.
    pub(crate) fn last_words(&self) -> String {
        last_words(&self.said)
    }

    /// The memory that it alone uses, bytes: its resident pages less what is shared with files and with all workers, and what the kernel keeps for
    /// it that grows without them: page tables and threads.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.process.usage.memory_bytes(self.code_bytes)
    }

    /// The processor time that it has used so far, milliseconds in steps of ten.
    pub(crate) fn cpu_ms(&self) -> Option<u64> {
        self.process.usage.cpu_ms()
    }

    /// The most memory that it ever had, bytes, with the pages that it shares with files.
    pub(crate) fn memory_bytes_peak(&self) -> Option<u64> {
        self.process.usage.memory_bytes_peak()
    }

    /// Sends a request on a connection that no other request uses. Give the connection back when the answer was read.
    pub(crate) async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Sent, NotSent> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match kept {
                Some(connection) if connection.is_closed() => continue,
                Some(connection) => connection,
                None => connect(&self.socket).await.map_err(NotSent::never)?,
            };
            connection.ready().await.map_err(NotSent::never)?;
            match connection.try_send_request(request).await {
                Ok(answer) => return Ok((answer, connection)),
                Err(mut e) => match e.take_message() {
                    // The connection had closed before anything was sent: another one may do.
                    Some(back) if !self.end.came.is_cancelled() => request = back,
                    Some(_) => return Err(NotSent::never(e.into_error())),
                    None => return Err(NotSent { begun: true, cause: e.into_error().into() }),
                },
            }
        }
    }

    /// How far its statements are.
    pub(crate) async fn progress(&self) -> Result<Vec<Progress>, Box<dyn std::error::Error + Send + Sync>> {
        let request = Request::builder().uri("/statements").header(HOST, "worker").body(Full::default())?;
        let (answer, connection) = self.send(request).await?;
        let body = Limited::new(answer.into_body(), PROGRESS_BYTES_MAX).collect().await?.to_bytes();
        self.keep(connection);
        Ok(serde_json::from_slice(&body)?)
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(crate) fn keep(&self, connection: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !connection.is_closed() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
    }
}

async fn connect(
    socket: &Path,
) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = UnixStream::connect(socket).await?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // An error of the connection is an error of the request on it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn blocking(stream: std::os::unix::net::UnixStream) -> io::Result<OwnedFd> {
    stream.set_nonblocking(false)?;
    Ok(stream.into())
}

async fn tell(control: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    control.write_all(&line).await
}

async fn report(control: &mut UnixStream) -> io::Result<Report> {
    let mut answer = String::new();
    BufReader::new(control).take(64 << 10).read_line(&mut answer).await?;
    if answer.is_empty() {
        return Err(io::Error::other("it ended before it reported"));
    }
    Ok(serde_json::from_str(&answer)?)
}

/// The control socket carries nothing more; its end is the process's. By then its last words are read, too, and nobody writes in
/// its home any more.
async fn watch(mut control: UnixStream, listening: JoinHandle<()>, home: Home, end: Arc<End>) {
    let mut byte = [0];
    while matches!(control.read(&mut byte).await, Ok(n) if n > 0) {}
    end.bereaved.store(end.leases.load(Ordering::Acquire), Ordering::Release);
    let _ = listening.await;
    end.came.cancel();
    // Spilled gigabytes take their time.
    let _ = tokio::task::spawn_blocking(move || drop(home)).await;
}

async fn listen(mut stderr: tokio::net::unix::pipe::Receiver, said: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1_024];
    while let Ok(n @ 1..) = stderr.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&buffer[..n]);
        let over = said.len().saturating_sub(STDERR_BYTES_MAX);
        said.drain(..over);
    }
}

/// What lies in a folder, bytes on disk. With more files in it than that it is as good as full.
fn disk_bytes(folder: &Path, files: &mut u32) -> u64 {
    let mut bytes = 0_u64;
    for entry in fs::read_dir(folder).into_iter().flatten().map_while(Result::ok) {
        *files = files.saturating_sub(1);
        if *files == 0 {
            return u64::MAX;
        }
        // Not followed: a link is a file of its own.
        let Ok(about) = entry.metadata() else { continue };
        let inside = if about.is_dir() { disk_bytes(&entry.path(), files) } else { about.blocks() * 512 };
        bytes = bytes.saturating_add(inside);
    }
    bytes
}

fn last_words(said: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&said.lock().unwrap_or_else(PoisonError::into_inner)).trim().to_owned()
}

fn stderr_pipe() -> io::Result<(OwnedFd, tokio::net::unix::pipe::Receiver)> {
    let (reader, writer) = io::pipe()?;
    let reader = OwnedFd::from(reader);
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((writer.into(), tokio::net::unix::pipe::Receiver::from_owned_fd(reader)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_counted_with_what_is_in_it_and_only_so_far() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("data")).unwrap();
        for name in ["a", "data/b", "data/c"] {
            fs::write(home.path().join(name), [7; 10_000]).unwrap();
        }
        let counted = |mut files| disk_bytes(home.path(), &mut files);
        assert!((30_000..90_000).contains(&counted(100)), "{}", counted(100));
        assert_eq!(counted(3), u64::MAX);
    }
}
