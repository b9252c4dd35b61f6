//! The worker without some of its layers, to show that the doors hold without them: `layers_off LAYERS …`, and then what a worker is
//! told. LAYERS is a list with commas: `policy`, `lockdown`, `sandbox`; or `settings`, `confinement` for what should be noticed.
//!
//! A server is given it as `worker.program` by a script that puts LAYERS before the rest (see `crates/server/tests/corpus`). All
//! modules are the worker's own but three, each of which asks the real one or nobody. So no switch is in `duck-worker`.

#![allow(dead_code, missing_docs)]

#[path = "../../src/birth.rs"]
mod birth;
#[path = "../../src/calls.rs"]
mod calls;
#[path = "../../src/encode/mod.rs"]
mod encode;
#[path = "../../src/execute.rs"]
mod execute;
#[path = "../../src/fault.rs"]
mod fault;
mod layers;
mod lockdown;
mod policy;
#[path = "../../src/running.rs"]
mod running;
mod sandbox;
#[path = "../../src/serve.rs"]
mod serve;
#[path = "../../src/session.rs"]
mod session;
#[path = "../../src/sink.rs"]
mod sink;
#[path = "../../src/sys/mod.rs"]
mod sys;
#[path = "../../src/template.rs"]
mod template;
#[path = "../../src/threads.rs"]
mod threads;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some((off, rest)) = arguments.split_first() else { return Err(layers::USAGE.into()) };
    layers::take_off(off)?;
    match rest {
        ["probe"] => Ok(serde_json::to_writer(std::io::stdout(), &sandbox::probe()?)?),
        [mode, common] => birth::begin(mode, common),
        _ => Err(layers::USAGE.into()),
    }
}
