//! `duck-worker`: the untrusted engine.
//!
//! `duck-worker probe` prints how much of the sandbox this machine offers. `duck-worker zygote|solo --extensions DIR --threads N --parent PID`, with a Unix stream socket as standard input, on which the front asks
//! for workers (see `birth`). It is started by `duck-server` and of no use by hand.

mod birth;
mod calls;
mod encode;
mod execute;
mod fault;
mod lockdown;
mod policy;
mod running;
mod sandbox;
mod serve;
mod session;
mod sink;
mod sys;
mod template;
mod threads;

use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// Also DuckDB's and its extensions', which find `malloc` in this program first.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("duck-worker: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let usage = "usage: duck-worker zygote|solo --extensions DIR --threads N --parent PID";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["probe"] {
        return probe();
    }
    let [mode, flag, extensions, threads_flag, threads, parent_flag, parent] = arguments.as_slice() else {
        return Err(usage.into());
    };
    if [flag, threads_flag, parent_flag] != ["--extensions", "--threads", "--parent"] {
        return Err(usage.into());
    }
    // Nothing reads it after the loader.
    sys::process::forget_environment();
    let front = parent.parse()?;
    sandbox::die_with_parent(front)?;
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let template = template::open(&PathBuf::from(extensions), threads.parse()?)?;
    match mode.as_str() {
        "zygote" => birth::zygote(socket, template)?,
        "solo" => birth::solo(socket, template, front)?,
        _ => return Err(usage.into()),
    }
    Ok(())
}

/// Tries the sandbox on this process and prints what holds.
fn probe() -> Result<(), Box<dyn Error>> {
    let level = sandbox::probe()?;
    let mut out = std::io::stdout();
    serde_json::to_writer(&mut out, &level)?;
    Ok(out.flush()?)
}
