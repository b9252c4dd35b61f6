//! Whose turn it is to write a table.
//!
//! Writers of one table in this process go one after the other, in the order in which they came: side by side, all but one of them
//! would do their work for a commit that the catalog refuses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

/// By warehouse and table.
type Key = (String, String);

/// The tables that somebody writes, or waits to write. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Tables(Arc<Mutex<HashMap<Key, Arc<Queue<()>>>>>);

/// The turn at some tables. It ends when this is dropped.
pub struct Turn {
    tables: Tables,
    held: Vec<(Key, OwnedMutexGuard<()>)>,
}

impl Tables {
    /// Waits for the turn at all of these tables of a warehouse. Dropping the future leaves the queue.
    pub async fn turn(&self, warehouse: &str, tables: impl IntoIterator<Item = String>) -> Turn {
        let mut names: Vec<String> = tables.into_iter().map(|name| name.to_lowercase()).collect();
        // Everybody takes them in the same order, so that no two wait for each other.
        names.sort();
        names.dedup();
        let mut turn = Turn { tables: self.clone(), held: Vec::new() };
        for name in names {
            let key = (warehouse.to_owned(), name);
            let queue = self.all().entry(key.clone()).or_default().clone();
            // A queue that loses its last holder is forgotten by who waited: see `Waits`.
            let waits = Waits { tables: self, key: &key };
            let guard = queue.lock_owned().await;
            drop(waits);
            turn.held.push((key, guard));
        }
        turn
    }

    /// Tables that somebody writes or waits for.
    pub fn count(&self) -> usize {
        self.all().len()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Arc<Queue<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a queue in which nobody is.
    fn tidy(&self, key: &Key) {
        let mut all = self.all();
        // Who is in it has another reference: the guard, or the wait for it.
        if all.get(key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            all.remove(key);
        }
    }
}

/// Somebody who waits; when they give up, nobody may be left.
struct Waits<'t> {
    tables: &'t Tables,
    key: &'t Key,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.tables.tidy(self.key);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        for (key, guard) in self.held.drain(..) {
            drop(guard);
            self.tables.tidy(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(100);

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn writers_of_one_table_take_turns_and_others_do_not_wait() {
        let tables = Tables::default();
        let held = tables.turn("w", names(&["ds.t", "ds.u"])).await;
        assert!(timeout(SOON, tables.turn("w", names(&["DS.T"]))).await.is_err());
        assert!(timeout(SOON, tables.turn("w", names(&["ds.v"]))).await.is_ok());
        assert!(timeout(SOON, tables.turn("other", names(&["ds.t"]))).await.is_ok());
        drop(held);
        assert!(timeout(SOON, tables.turn("w", names(&["ds.u", "ds.t", "ds.t"]))).await.is_ok());
        assert_eq!(tables.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_served_in_its_order_and_forgotten_at_its_end() {
        let tables = Tables::default();
        let held = tables.turn("w", names(&["t"])).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..5)
            .map(|number| {
                let (tables, order) = (tables.clone(), order.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(number)).await;
                    let _turn = tables.turn("w", names(&["t"])).await;
                    order.lock().unwrap().push(number);
                })
            })
            .collect();
        // One gives up while it waits.
        assert!(timeout(SOON, tables.turn("w", names(&["t"]))).await.is_err());
        drop(held);
        for wait in waiting {
            wait.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(tables.count(), 0);
    }
}
