//! Where workers come from: a zygote that forks them, or, where that is not wanted, a spare that becomes one.
//!
//! One thread owns the processes for the server's whole life: a child with `PDEATHSIG` dies with the *thread* that started it.

use std::io::{self, BufRead, BufReader, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use duck_contract::worker::Common;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// Opening DuckDB and loading the extensions takes 30 ms; reading and hashing 84 MB of them comes first.
const READY_MAX: Duration = Duration::from_secs(30);
const BIRTH_MAX: Duration = Duration::from_secs(5);
/// How often the template is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// After a template that could not be started.
const PAUSE: Duration = Duration::from_millis(500);

/// How a worker comes to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// Forked from a warm template: 1 ms of CPU and 1 MB.
    #[default]
    Fork,
    /// A process of its own, one kept ready: 30 ms and 7 MB.
    Spawn,
}

/// What the process that workers come from is started with.
pub(crate) struct Recipe {
    pub(crate) start: Start,
    pub(crate) program: PathBuf,
    pub(crate) common: Common,
}

/// What a worker is born with.
pub(crate) struct Birth {
    pub(crate) control: OwnedFd,
    pub(crate) listener: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

type Wish = (Birth, oneshot::Sender<io::Result<i32>>);

/// The thread that owns the processes. Dropping it ends them, and with a zygote all its workers.
pub(crate) struct Nursery {
    wishes: Mutex<Option<mpsc::SyncSender<Wish>>>,
    /// Whether a process is kept ready.
    ready: Arc<AtomicBool>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Nursery {
    /// Starts the zygote, or the first spare, and returns when it is ready.
    pub(crate) fn open(recipe: Recipe) -> io::Result<Self> {
        let (wishes, inbox) = mpsc::sync_channel::<Wish>(64);
        let (ready_sender, begun) = mpsc::sync_channel(1);
        let ready = Arc::new(AtomicBool::new(true));
        let keep_ready = ready.clone();
        let thread = std::thread::Builder::new().name("nursery".to_owned()).spawn(move || {
            let mut mother = Mother { recipe, process: None };
            if ready_sender.send(mother.ready().map(|_| ())).is_err() {
                return;
            }
            loop {
                match inbox.recv_timeout(LOOK) {
                    Ok((birth, answer)) => {
                        let born = mother.bear(&birth);
                        drop(birth);
                        let _ = answer.send(born);
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                }
                // A template that has died is replaced at once, not when somebody needs it.
                if keep_ready.load(Ordering::Relaxed)
                    && let Err(e) = mother.ready()
                {
                    tracing::error!(error = %e, "no template for the next worker");
                    std::thread::sleep(PAUSE);
                }
            }
        })?;
        begun.recv().map_err(|_| io::Error::other("the nursery ended"))??;
        Ok(Nursery { wishes: Mutex::new(Some(wishes)), ready, thread: Mutex::new(Some(thread)) })
    }

    /// A new worker's pid.
    pub(crate) async fn bear(&self, birth: Birth) -> io::Result<i32> {
        let ended = || io::Error::other("the nursery ended");
        let (sender, answer) = oneshot::channel();
        let wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(ended)?;
        wishes.try_send((birth, sender)).map_err(|e| io::Error::other(e.to_string()))?;
        answer.await.map_err(|_| ended())?
    }
}

impl Nursery {
    /// Keeps no process ready any more: the doors, which it needs, are about to close.
    pub(crate) fn retire(&self) {
        self.ready.store(false, Ordering::Relaxed);
    }

    /// Ends the processes, and with a zygote all its workers. Blocks until they are gone.
    pub(crate) fn close(&self) {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        self.close();
    }
}

/// The process that the next worker comes from.
struct Mother {
    recipe: Recipe,
    process: Option<Process>,
}

impl Mother {
    /// Starts a process if there is none.
    fn ready(&mut self) -> io::Result<&mut Process> {
        if !self.process.as_mut().is_some_and(Process::alive) {
            if self.process.is_some() {
                tracing::error!(
                    "the workers' template has died, and its workers with it: another is started"
                );
            }
            self.process = Some(Process::start(&self.recipe)?);
        }
        self.process.as_mut().ok_or_else(|| io::Error::other("no process"))
    }

    fn bear(&mut self, birth: &Birth) -> io::Result<i32> {
        let born = self.ready()?.bear(birth);
        match (self.recipe.start, &born) {
            // It has become the worker; the next one needs another spare.
            (Start::Spawn, Ok(_)) => {
                if let Some(spare) = self.process.take() {
                    spare.leave();
                }
            }
            (_, Err(_)) => self.process = None,
            (Start::Fork, Ok(_)) => {}
        }
        born
    }
}

struct Process {
    child: Option<Child>,
    socket: UnixStream,
}

impl Process {
    fn start(Recipe { start, program, common }: &Recipe) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let mode = match start {
            Start::Fork => "zygote",
            Start::Spawn => "solo",
        };
        let mut child = Command::new(program)
            .arg(mode)
            .arg(serde_json::to_string(common)?)
            .env_clear()
            // Names are resolved here, once, and not again by every worker at its first use of each.
            .env("LD_BIND_NOW", "1")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let complaints = child.stderr.take();
        let mut process = Process { child: Some(child), socket };
        match process.pid_within(READY_MAX) {
            Ok(_) => {
                if let Some(complaints) = complaints {
                    std::thread::Builder::new().name("nursery-stderr".to_owned()).spawn(move || {
                        for line in BufReader::new(complaints).lines().map_while(Result::ok) {
                            tracing::warn!(line, "the workers' template complains");
                        }
                    })?;
                }
                Ok(process)
            }
            Err(e) => {
                process.end();
                let mut said = String::new();
                if let Some(complaints) = complaints {
                    let _ = complaints.take(4_096).read_to_string(&mut said);
                }
                Err(io::Error::other(format!("{} {mode} did not get ready: {e}: {said}", program.display())))
            }
        }
    }

    fn bear(&mut self, birth: &Birth) -> io::Result<i32> {
        let fds: [BorrowedFd<'_>; 3] = [birth.control.as_fd(), birth.listener.as_fd(), birth.stderr.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::Error::other("no room for three descriptors"));
        }
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(b"b")], &mut ancillary, SendFlags::NOSIGNAL)?;
        self.pid_within(BIRTH_MAX)
    }

    /// The four bytes of an answer.
    fn pid_within(&mut self, wait: Duration) -> io::Result<i32> {
        self.socket.set_read_timeout(Some(wait))?;
        let mut pid = [0; 4];
        self.socket.read_exact(&mut pid)?;
        i32::try_from(u32::from_le_bytes(pid)).map_err(|_| io::Error::other("that is no pid"))
    }

    fn alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// It is a worker now, ended by whoever holds that worker; a thread collects its status.
    fn leave(mut self) {
        if let Some(mut child) = self.child.take() {
            let reap = move || drop(child.wait());
            if let Err(e) = std::thread::Builder::new().name("reap".to_owned()).spawn(reap) {
                tracing::warn!(error = %e, "a worker's status will not be collected");
            }
        }
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
