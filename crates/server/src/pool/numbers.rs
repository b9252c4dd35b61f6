//! Numbers for the writers of a warehouse: each has the lowest that is free, so that few workers are made and those stay warm.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The numbers that are taken. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub(super) struct Numbers(Arc<Mutex<HashMap<String, BTreeSet<usize>>>>);

/// A number that nobody else of its warehouse has. Free again when this is dropped.
pub(super) struct Number {
    numbers: Numbers,
    warehouse: String,
    value: usize,
}

impl Numbers {
    pub(super) fn take(&self, warehouse: &str) -> Number {
        let mut all = self.all();
        let taken = all.entry(warehouse.to_owned()).or_default();
        let value = (0..taken.len()).find(|number| !taken.contains(number)).unwrap_or(taken.len());
        taken.insert(value);
        drop(all);
        Number { numbers: self.clone(), warehouse: warehouse.to_owned(), value }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, BTreeSet<usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Number {
    pub(super) fn value(&self) -> usize {
        self.value
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut all = self.numbers.all();
        if let Some(taken) = all.get_mut(&self.warehouse) {
            taken.remove(&self.value);
            if taken.is_empty() {
                all.remove(&self.warehouse);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_have_the_same_and_the_lowest_is_taken_again() {
        let numbers = Numbers::default();
        let (a, b, other) = (numbers.take("w"), numbers.take("w"), numbers.take("v"));
        assert_eq!((a.value(), b.value(), other.value()), (0, 1, 0));
        drop(a);
        assert_eq!(numbers.take("w").value(), 0);
        drop((b, other));
        assert!(numbers.all().is_empty());
    }
}
