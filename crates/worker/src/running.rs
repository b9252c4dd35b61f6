//! The statements that are running, so that each can be stopped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::Code;
use duck_contract::worker::{Failure, Progress};
use tokio::sync::watch;

use crate::fault;
use crate::sys::duckdb::Interrupt;
use crate::threads::Thread;

/// An interrupt that comes just before a statement begins to execute is lost, so it is repeated.
const REPEAT: Duration = Duration::from_millis(20);

/// All statements of this worker.
#[derive(Default)]
pub(crate) struct Register(Mutex<HashMap<String, Arc<Running>>>);

/// One statement that is running.
pub(crate) struct Running {
    cancelled: AtomicBool,
    interrupt: Mutex<Option<Interrupt>>,
    /// Where it runs, until it has ended.
    thread: Mutex<Option<Thread>>,
    rows: AtomicU64,
    ended: watch::Sender<bool>,
}

/// Takes the statement off the register when the work has ended.
pub(crate) struct Entry {
    register: Arc<Register>,
    id: String,
    pub(crate) running: Arc<Running>,
}

impl Register {
    /// Enters a statement. `None` if one of that id is running already.
    pub(crate) fn enter(self: &Arc<Self>, id: &str) -> Option<Entry> {
        let running = Arc::new(Running {
            cancelled: AtomicBool::new(false),
            interrupt: Mutex::new(None),
            thread: Mutex::new(None),
            rows: AtomicU64::new(0),
            ended: watch::Sender::new(false),
        });
        let mut all = self.all();
        if all.contains_key(id) {
            return None;
        }
        all.insert(id.to_owned(), running.clone());
        Some(Entry { register: self.clone(), id: id.to_owned(), running })
    }

    /// Stops a statement and returns when it has ended; at once if there is none of that id.
    pub(crate) async fn settle(&self, id: &str) {
        let running = self.all().get(id).cloned();
        if let Some(running) = running {
            running.stop().await;
        }
    }

    /// How far each statement is.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        self.all().iter().map(|(id, running)| running.progress(id)).collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Running>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.register.all().remove(&self.id);
        // Whoever lowers it has done so, or comes too late: the thread's next statement is not meant.
        self.running.thread().take();
        self.running.ended.send_replace(true);
    }
}

impl Running {
    /// Says how this statement's connection is interrupted; an error if it was stopped before it got here.
    pub(crate) fn attach(&self, interrupt: Interrupt) -> Result<Attached<'_>, Failure> {
        *self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) = Some(interrupt);
        self.check()?;
        Ok(Attached(self))
    }

    /// Says on which thread it runs.
    pub(crate) fn on(&self, thread: &Thread) {
        *self.thread() = Some(thread.clone());
    }

    /// From now on everybody else's work goes before this statement's.
    pub(crate) fn lower(&self) {
        if let Some(thread) = &*self.thread() {
            thread.lower();
        }
    }

    fn thread(&self) -> MutexGuard<'_, Option<Thread>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts rows that were encoded.
    pub(crate) fn count(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    fn progress(&self, id: &str) -> Progress {
        let interrupt = self.interrupt.lock().unwrap_or_else(PoisonError::into_inner);
        let percent = interrupt.as_ref().and_then(Interrupt::percent);
        Progress { id: id.to_owned(), rows: self.rows.load(Ordering::Relaxed), percent }
    }

    /// An error once the statement was stopped.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.cancelled.load(Ordering::Acquire) {
            return Err(fault::ours(Code::Cancelled, "The statement was cancelled."));
        }
        Ok(())
    }

    /// Returns when the statement has ended.
    pub(crate) async fn ended(&self) {
        // The sender lives as long as this does, so waiting cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Stops the statement, and returns when it has ended.
    pub(crate) async fn stop(&self) {
        self.cancelled.store(true, Ordering::Release);
        loop {
            if let Some(interrupt) = &*self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) {
                interrupt.fire();
            }
            if tokio::time::timeout(REPEAT, self.ended()).await.is_ok() {
                return;
            }
        }
    }
}

/// While it lives, the statement can be interrupted.
pub(crate) struct Attached<'r>(&'r Running);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.0.interrupt.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
