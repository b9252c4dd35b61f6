//! What a worker moves at the doors, counted for each statement that it is on.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Errand, Visitor};

/// What a worker moved while it was on a statement.
#[derive(Debug, Default)]
pub(super) struct Counts {
    store_bytes_read: AtomicU64,
    store_bytes_written: AtomicU64,
    store_calls: AtomicU64,
    catalog_calls: AtomicU64,
    shared: AtomicBool,
}

/// The same, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of objects.
    pub store_bytes_read: u64,
    /// Bytes of uploads.
    pub store_bytes_written: u64,
    /// Requests to the store.
    pub store_calls: u64,
    /// Requests to the catalog.
    pub catalog_calls: u64,
    /// The worker was on another statement at the same time: some of it may be that one's.
    pub shared: bool,
}

impl Counts {
    /// There is another statement on the worker.
    pub(super) fn shares(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }
}

impl Errand {
    /// What its worker moved at the doors meanwhile.
    pub fn traffic(&self) -> Traffic {
        let Counts { store_bytes_read, store_bytes_written, store_calls, catalog_calls, shared } =
            &self.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Traffic {
            store_bytes_read: read(store_bytes_read),
            store_bytes_written: read(store_bytes_written),
            store_calls: read(store_calls),
            catalog_calls: read(catalog_calls),
            shared: shared.load(Ordering::Relaxed),
        }
    }
}

impl Visitor {
    fn counts(&self, count: impl Fn(&Counts) -> &AtomicU64, more: u64) {
        for errand in self.errands.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            count(&errand.counts).fetch_add(more, Ordering::Relaxed);
        }
    }

    /// It asked the catalog.
    pub(super) fn asked_catalog(&self) {
        self.counts(|counts| &counts.catalog_calls, 1);
    }

    /// It asked the store.
    pub(super) fn asked_store(&self) {
        self.counts(|counts| &counts.store_calls, 1);
    }

    /// It read so many bytes from the store.
    pub(super) fn read(&self, bytes: u64) {
        self.counts(|counts| &counts.store_bytes_read, bytes);
    }

    /// It sent so many bytes to the store.
    pub(super) fn wrote(&self, bytes: u64) {
        self.counts(|counts| &counts.store_bytes_written, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use duck_contract::Role;

    use super::*;
    use crate::doors::Place;

    #[test]
    fn what_is_moved_counts_for_every_statement_that_is_there_and_says_when_it_is_shared() {
        let place = Place { bucket: "lake".into(), prefix: "w_a/".into() };
        let visitor = Arc::new(Visitor::new("w_a", place, Role::Reader));
        let (one, two) = (Errand::reading(), Errand::reading());
        let first = visitor.sent(one.clone());
        visitor.read(5);
        visitor.asked_catalog();
        assert!(!one.traffic().shared);
        let second = visitor.sent(two.clone());
        visitor.read(7);
        visitor.wrote(1);
        drop(first);
        visitor.asked_store();
        drop(second);
        visitor.read(100);
        let of = |errand: &Errand| {
            let traffic = errand.traffic();
            (
                traffic.store_bytes_read,
                traffic.store_bytes_written,
                traffic.store_calls,
                traffic.catalog_calls,
            )
        };
        assert_eq!((of(&one), of(&two)), ((12, 1, 0, 1), (7, 1, 1, 0)));
        assert!(one.traffic().shared && two.traffic().shared);
    }
}
