//! A tick that is finer than the kernel's.
//!
//! A kernel asks who should run next when a thread wakes or sleeps, and else only at its tick, every 1 to 10 ms. A short statement
//! sleeps and wakes a dozen times on its way through doors and engine, and where long ones keep the cores busy some of that waits for
//! a tick, or for several. So while statements that go on could fill the cores, a thread on each core wakes for nothing, twice in a
//! millisecond, for as long as a statement that comes is a short one ([why](../../../../docs/decisions/2026-11-30-finer-tick.md)).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use duck_contract::worker::SHORT;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Register;

const EVERY: Duration = Duration::from_micros(500);

/// Ends when it is dropped.
pub(crate) struct Beat {
    state: Arc<State>,
    drummers: Vec<JoinHandle<()>>,
    watching: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct State {
    beating: AtomicBool,
    over: AtomicBool,
}

impl Beat {
    /// For the statements of this register, each of which can use that many cores. None where a quota leaves less than the cores that
    /// there are: there, nobody waits for a tick but for the quota, and this would use it up.
    pub(crate) fn start(register: Register, cores_each: usize) -> io::Result<Option<Beat>> {
        let (state, allowed) = (Arc::<State>::default(), sched_getaffinity(None)?);
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        if std::thread::available_parallelism()?.get() < cores.len() {
            return Ok(None);
        }
        let count = cores.len();
        let drum = |core| {
            let state = state.clone();
            std::thread::Builder::new().name("beat".to_owned()).spawn(move || drum(core, &state))
        };
        let drummers: Vec<_> = cores.into_iter().map(drum).collect::<Result<_, _>>()?;
        let threads: Vec<_> = drummers.iter().map(|drummer| drummer.thread().clone()).collect();
        let watching = tokio::spawn({
            let state = state.clone();
            async move {
                loop {
                    register.moved().await;
                    if register.going_on(SHORT) * cores_each >= count {
                        state.beating.store(true, Ordering::Release);
                        threads.iter().for_each(std::thread::Thread::unpark);
                    }
                    tokio::time::sleep(SHORT).await;
                    state.beating.store(false, Ordering::Release);
                }
            }
        });
        Ok(Some(Beat { state, drummers, watching }))
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.watching.abort();
        self.state.over.store(true, Ordering::Release);
        for drummer in &self.drummers {
            drummer.thread().unpark();
        }
    }
}

fn drum(core: usize, state: &State) {
    let mut here = CpuSet::new();
    here.set(core);
    if let Err(e) = sched_setaffinity(None, &here) {
        tracing::warn!(core, cause = %e, "short statements may wait for this core's tick");
        return;
    }
    while !state.over.load(Ordering::Acquire) {
        if state.beating.load(Ordering::Acquire) {
            std::thread::sleep(EVERY);
        } else {
            std::thread::park();
        }
    }
}
