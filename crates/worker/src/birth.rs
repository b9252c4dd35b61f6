//! How a worker comes to be: three descriptors over the parent's socket, then, for a zygote, a fork.
//!
//! The front sends one byte with three descriptors (control socket, listening socket, pipe for standard error) and gets the
//! worker's pid back, four bytes, little-endian. Whatever is secret comes later, over the control socket, to the worker alone.

use std::io::{self, BufRead, BufReader, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use duck_contract::worker::{Cell, Common, Failure, Report, SandboxLevel};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use serde::de::DeserializeOwned;

use crate::fault;
use crate::sandbox;
use crate::serve;
use crate::session;
use crate::sys::code;
use crate::sys::process::{self, Forked};
use crate::template::{self, Template};

/// What a worker is born with.
struct Inheritance {
    control: OwnedFd,
    listener: OwnedFd,
    stderr: OwnedFd,
}

type Error = Box<dyn std::error::Error>;

pub(crate) const USAGE: &str = "usage: duck-worker probe | zygote COMMON | solo COMMON";

/// Becomes what the front has asked for, told in JSON what is common to all workers.
pub(crate) fn begin(mode: &str, common: &str) -> Result<(), Error> {
    match mode {
        "zygote" => zygote(serde_json::from_str(common)?),
        "solo" => solo(serde_json::from_str(common)?),
        _ => Err(USAGE.into()),
    }
}

/// Forks a worker for every message, until the parent closes the socket.
#[allow(clippy::print_stderr)]
fn zygote(common: Common) -> Result<(), Error> {
    let (parent, mut template) = open(common)?;
    process::ignore_children();
    if let Err(e) = code::enlarge(&mut template.code_bytes) {
        // The front hears it. Workers are a tenth slower without, and that is all.
        eprintln!("the engine's code is not in large pages: {e}");
    }
    announce(&parent, 0)?;
    let this = std::process::id();
    let mut template = Some(template);
    while let Some(inheritance) = receive(&parent)? {
        match process::fork()? {
            Forked::Parent(pid) => announce(&parent, pid.unsigned_abs())?,
            Forked::Child => {
                drop(parent);
                let Some(template) = template.take() else { process::exit_now(1) };
                live(inheritance, template, this);
            }
        }
    }
    Ok(())
}

/// Becomes a worker itself at the first message: the start where forking is not possible.
fn solo(common: Common) -> Result<(), Error> {
    let front = common.front;
    let (parent, template) = open(common)?;
    announce(&parent, 0)?;
    let Some(inheritance) = receive(&parent)? else { return Ok(()) };
    announce(&parent, std::process::id())?;
    drop(parent);
    live(inheritance, template, front)
}

/// The socket to the front, and an engine. Ends with the front.
fn open(common: Common) -> Result<(UnixStream, Template), Error> {
    // Nothing reads it after the loader.
    process::forget_environment();
    sandbox::die_with_parent(common.front)?;
    let parent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok((parent, template::open(common)?))
}

fn announce(mut parent: &UnixStream, pid: u32) -> io::Result<()> {
    parent.write_all(&pid.to_le_bytes())
}

/// The next birth; `None` when the parent has closed the socket.
fn receive(parent: &UnixStream) -> io::Result<Option<Inheritance>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let message = rustix::net::recvmsg(
        parent.as_fd(),
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if message.bytes == 0 {
        return Ok(None);
    }
    let mut fds = ancillary.drain().filter_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = fds.next().into_iter().flatten();
    match (fds.next(), fds.next(), fds.next()) {
        (Some(control), Some(listener), Some(stderr)) => Ok(Some(Inheritance { control, listener, stderr })),
        _ => Err(io::Error::other("a birth without its three descriptors")),
    }
}

/// A worker's whole life. Ends with the process: a child has no business in what its parent's destructors would do.
fn live(inheritance: Inheritance, template: Template, parent: u32) -> ! {
    let Inheritance { control, listener, stderr } = inheritance;
    let Ok((control, listener)) = process::keep_only(control, listener, stderr) else { process::exit_now(1) };
    let control = UnixStream::from(control);
    let mut told = BufReader::new(&control);
    let mut level = SandboxLevel::default();
    let code_bytes = template.code_bytes;
    let born = read::<Cell>(&mut told).and_then(|cell| {
        level =
            sandbox::enter(&cell, parent, &template.calls).map_err(|e| fault::self_test(&e.to_string()))?;
        let embryo = session::prepare(template, cell, level)?;
        let runtime = serve::runtime().map_err(|e| fault::self_test(&e.to_string()))?;
        Ok((runtime, embryo.assign(&read(&mut told)?)?))
    });
    match born {
        Ok((runtime, session)) => {
            report(&control, &Report::Ready { sandbox: level, code_bytes });
            serve::forever(runtime, session, UnixListener::from(listener))
        }
        Err(failure) => {
            report(&control, &Report::Failed(failure));
            process::exit_now(1)
        }
    }
}

/// The next line. A spare waits here, perhaps for ever: it ends with its parent.
fn read<T: DeserializeOwned>(told: &mut impl BufRead) -> Result<T, Failure> {
    let mut line = String::new();
    told.read_line(&mut line).map_err(|e| fault::self_test(&e.to_string()))?;
    serde_json::from_str(&line).map_err(|e| fault::self_test(&e.to_string()))
}

/// The front may be gone already; then there is nobody to report to, and the worker is about to be killed.
fn report(mut control: &UnixStream, report: &Report) {
    let mut line = serde_json::to_vec(report).unwrap_or_default();
    line.push(b'\n');
    let _ = control.write_all(&line);
}
