//! Processes that are confined and wait for a warehouse, so that a first query need not wait for a process.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_contract::worker::Cell;
use tokio::time::Instant;

use super::worker::Spare;

/// A few of them, all alike.
pub(super) struct Spares(Mutex<Waiting>);

struct Waiting {
    wanted: usize,
    /// Being born.
    coming: usize,
    here: Vec<Spare>,
    cell: Option<Cell>,
    /// None is born before: the first query that one was taken for needs the cores now.
    not_before: Instant,
}

/// Longer than most first queries.
const PAUSE: Duration = Duration::from_millis(150);
/// After one that has ended by itself: the next may do the same.
const MOURNING: Duration = Duration::from_secs(1);

impl Waiting {
    /// Lets go of those that have ended.
    fn bury(&mut self) {
        let not_before = &mut self.not_before;
        self.here.retain(|spare| {
            let Some(said) = spare.obituary() else { return true };
            tracing::warn!(said, "a spare worker ended by itself");
            *not_before = Instant::now() + MOURNING;
            false
        });
    }
}

impl Spares {
    pub(super) fn new(wanted: usize) -> Self {
        let not_before = Instant::now();
        Spares(Mutex::new(Waiting { wanted, coming: 0, here: Vec::new(), cell: None, not_before }))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that lives, if it is confined as is asked.
    pub(super) fn take(&self, cell: &Cell) -> Option<Spare> {
        let mut waiting = self.waiting();
        if waiting.cell.as_ref() != Some(cell) {
            return None;
        }
        // The one that has waited longest: it is most likely done with its confinement.
        waiting.bury();
        if waiting.here.is_empty() { None } else { Some(waiting.here.remove(0)) }
    }

    /// Whether another should be born; then say how that ended with `put` or `give_up`.
    pub(super) fn want(&self, cell: &Cell) -> bool {
        let mut waiting = self.waiting();
        waiting.bury();
        waiting.cell = Some(cell.clone());
        let wants =
            waiting.here.len() + waiting.coming < waiting.wanted && Instant::now() >= waiting.not_before;
        waiting.coming += usize::from(wants);
        wants
    }

    /// A worker is being started.
    pub(super) fn pause(&self) {
        let mut waiting = self.waiting();
        waiting.not_before = waiting.not_before.max(Instant::now() + PAUSE);
    }

    pub(super) fn put(&self, spare: Spare) {
        let mut waiting = self.waiting();
        waiting.coming -= 1;
        // It may have been closed in the meantime.
        if waiting.wanted > 0 {
            waiting.here.push(spare);
        }
    }

    pub(super) fn give_up(&self) {
        self.waiting().coming -= 1;
    }

    pub(super) fn count(&self) -> usize {
        self.waiting().here.len()
    }

    /// Ends them, and wants no more.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.wanted = 0;
        waiting.here.clear();
    }
}
