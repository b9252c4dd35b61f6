//! One worker, from birth to death.
//!
//! The worker's process, directory and credentials all end when the last handle on it is dropped.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use duck_contract::Code;
use duck_contract::worker::{Report, Spec};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::nursery::{Birth, Nursery};
use crate::doors::Pass;
use crate::fault::Fault;

/// What a worker may say before it ends; the rest is dropped.
const STDERR_BYTES_MAX: usize = 8 << 10;
/// Connections to a worker that are kept for the next statement.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// A worker that has reported ready.
pub(crate) struct Worker {
    /// Tells it apart from all others of this server's life.
    pub(crate) id: u64,
    /// Its process.
    pub(crate) pid: i32,
    process: OwnedFd,
    home: Home,
    said: Arc<Mutex<Vec<u8>>>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    /// Cancelled when the process has ended.
    pub(crate) ended: CancellationToken,
    _pass: Pass,
}

/// A worker's own directory and the socket it listens on. Both are removed with it.
struct Home {
    directory: PathBuf,
    socket: PathBuf,
}

impl Home {
    fn make(runtime: &Path, id: u64, uid: Option<u32>) -> io::Result<Self> {
        let home =
            Home { directory: runtime.join(format!("w{id}")), socket: runtime.join(format!("w{id}.sock")) };
        fs::create_dir(&home.directory)?;
        fs::set_permissions(&home.directory, fs::Permissions::from_mode(0o700))?;
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

/// Kills a process that did not become a worker.
struct Kill<'p>(Option<&'p OwnedFd>);

impl Drop for Kill<'_> {
    fn drop(&mut self) {
        if let Some(process) = self.0 {
            let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }
}

impl Worker {
    /// Starts one and returns when it has reported. `spec` lacks its `directory`.
    pub(crate) async fn start(
        id: u64,
        nursery: &Nursery,
        runtime: &Path,
        mut spec: Spec,
        pass: Pass,
        report_ms_max: u64,
    ) -> Result<Worker, Fault> {
        let unable =
            |e: io::Error| Fault::new(Code::EngineUnavailable, "No engine could be started.").because(e);
        let home = Home::make(runtime, id, spec.uid).map_err(unable)?;
        spec.directory = home.directory.to_string_lossy().into_owned();
        let listener = UnixListener::bind(&home.socket).map_err(unable)?;
        let (control, theirs) = UnixStream::pair().map_err(unable)?;
        let (their_stderr, stderr) = stderr_pipe().map_err(unable)?;
        let birth = Birth {
            control: theirs.into_std().and_then(blocking).map_err(unable)?,
            listener: listener.into(),
            stderr: their_stderr,
        };
        let pid = nursery.bear(birth).await.map_err(unable)?;
        let process = Pid::from_raw(pid)
            .ok_or_else(|| io::Error::other("that is no pid"))
            .and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
            .map_err(unable)?;

        let mut kill = Kill(Some(&process));
        let said = Arc::new(Mutex::new(Vec::new()));
        let listening = tokio::spawn(listen(stderr, said.clone()));
        let (control, report) =
            tokio::time::timeout(Duration::from_millis(report_ms_max), exchange(control, &spec))
                .await
                .map_err(|_| unable(io::Error::other("no report in time")))?
                .map_err(|e| unable(io::Error::other(format!("{e}: {}", last_words(&said)))))?;
        match report {
            Report::Ready { sandbox } => tracing::debug!(worker = id, ?sandbox, "confined"),
            Report::Failed(failure) => {
                return Err(Fault::new(failure.code, failure.message).because(failure.detail));
            }
        }
        kill.0 = None;
        drop(kill);
        let ended = CancellationToken::new();
        tokio::spawn(watch(control, listening, ended.clone()));
        Ok(Worker { id, pid, process, home, said, idle: Mutex::default(), ended, _pass: pass })
    }

    /// Ends the process at once. What it was doing for anybody is lost.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
    }

    /// The last of what it wrote to standard error: the reason of an abort.
    pub(crate) fn last_words(&self) -> String {
        last_words(&self.said)
    }

    /// The memory that it alone uses, bytes: its resident pages less what is shared with files.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:"))?;
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok().map(|kb| kb << 10)
    }

    /// Sends a request on a connection that no other request uses. Give the connection back when the answer was read.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), Box<dyn std::error::Error + Send + Sync>>
    {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match kept {
                Some(connection) if connection.is_closed() => continue,
                Some(connection) => connection,
                None => self.connect().await?,
            };
            connection.ready().await?;
            return Ok((connection.send_request(request).await?, connection));
        }
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(crate) fn keep(&self, connection: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !connection.is_closed() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
        let stream = UnixStream::connect(&self.home.socket).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // An error of the connection is an error of the request on it.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn blocking(stream: std::os::unix::net::UnixStream) -> io::Result<OwnedFd> {
    stream.set_nonblocking(false)?;
    Ok(stream.into())
}

async fn exchange(mut control: UnixStream, spec: &Spec) -> io::Result<(UnixStream, Report)> {
    let mut line = serde_json::to_vec(spec)?;
    line.push(b'\n');
    control.write_all(&line).await?;
    let mut answer = String::new();
    BufReader::new(&mut control).take(64 << 10).read_line(&mut answer).await?;
    if answer.is_empty() {
        return Err(io::Error::other("it ended before it reported"));
    }
    Ok((control, serde_json::from_str(&answer)?))
}

/// The control socket carries nothing more; its end is the process's. By then its last words are read, too.
async fn watch(mut control: UnixStream, listening: JoinHandle<()>, ended: CancellationToken) {
    let mut byte = [0];
    while matches!(control.read(&mut byte).await, Ok(n) if n > 0) {}
    let _ = listening.await;
    ended.cancel();
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

fn last_words(said: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&said.lock().unwrap_or_else(PoisonError::into_inner)).trim().to_owned()
}

fn stderr_pipe() -> io::Result<(OwnedFd, tokio::net::unix::pipe::Receiver)> {
    let (reader, writer) = io::pipe()?;
    let reader = OwnedFd::from(reader);
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((writer.into(), tokio::net::unix::pipe::Receiver::from_owned_fd(reader)?))
}
