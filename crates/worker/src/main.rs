//! `duck-worker`: the untrusted engine.
//!
//! `duck-worker probe` prints how much of the sandbox this machine offers. `duck-worker zygote|solo COMMON` is told in JSON what is
//! common to all workers, and has a Unix stream socket as standard input, on which the front asks for workers (see `birth`). It is
//! started by `duck-server` and of no use by hand.

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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [mode] if mode == "probe" => probe(),
        [mode, common] => birth::begin(mode, common),
        _ => Err(birth::USAGE.into()),
    }
}

/// Tries the sandbox on this process and prints what holds.
fn probe() -> Result<(), Box<dyn Error>> {
    let level = sandbox::probe()?;
    let mut out = std::io::stdout();
    serde_json::to_writer(&mut out, &level)?;
    Ok(out.flush()?)
}
