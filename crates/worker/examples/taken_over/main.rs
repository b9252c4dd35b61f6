//! A worker that is not ours any more: native code of an attacker, in the real sandbox, with real keys.
//!
//! A server starts it as `worker.program` (see `crates/server/tests/it/takeover.rs`). Birth, fork, sandbox, session and self-test
//! are the worker's own modules; only what serves statements is the attacker's. `taken_over bare PLAN` tries the same without any
//! sandbox, to show which attempts are stopped by it and which would fail anywhere.

#![allow(dead_code, missing_docs)]
// A register has no sign; the signatures are those of the worker's own module.
#![allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
#![allow(clippy::many_single_char_names, clippy::needless_pass_by_value)]

#[path = "../../src/birth.rs"]
mod birth;
#[path = "../../src/calls.rs"]
mod calls;
#[path = "../../src/fault.rs"]
mod fault;
#[path = "../../src/lockdown.rs"]
mod lockdown;
#[path = "../../src/policy/mod.rs"]
mod policy;
#[path = "../../src/sandbox.rs"]
mod sandbox;
mod serve;
mod session;
#[path = "../../src/sys/mod.rs"]
mod sys;
#[path = "../../src/template.rs"]
mod template;

mod attempts;
mod means;

use std::error::Error;
use std::io::Write;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["probe"] => Ok(serde_json::to_writer(std::io::stdout(), &sandbox::probe()?)?),
        ["bare", plan] => {
            if rustix::process::geteuid().is_root() {
                return Err("not as root: some of it would succeed".into());
            }
            let done = attempts::all(&serde_json::from_str(plan)?);
            Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&done)?)?)
        }
        [mode, common] => birth::begin(mode, common),
        _ => Err("it is started by a server".into()),
    }
}
