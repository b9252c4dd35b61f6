//! Answers that readers may share for a moment.
//!
//! A change that passes this door moves its warehouse to a new generation. The generation is part of the key, so a load that
//! began before the change and ends after it lands where nobody looks any more.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::future::Cache;

use super::Visitor;
use super::reply::Reply;

const WEIGHT_MAX: u64 = 64 << 20;
/// What an entry weighs at least, which bounds their number: 16,384.
const ENTRY_WEIGHT_MIN: usize = 4 << 10;
/// Warehouses that share one only lose a few hits to each other.
const GENERATIONS: usize = 1_024;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    warehouse: String,
    place: String,
    generation: u64,
    path: String,
}

/// For readers only: a writer on a stale table would conflict with itself.
pub(super) struct ReaderCache {
    /// None: every read is asked of the catalog.
    entries: Option<Cache<Key, Reply>>,
    generations: Vec<AtomicU64>,
    spread: RandomState,
}

impl ReaderCache {
    pub(super) fn new(cache_ms: u64) -> Self {
        let entries = (cache_ms > 0).then(|| {
            Cache::builder()
                .weigher(|key: &Key, reply: &Reply| {
                    let weight = (key.path.len() + reply.body.len()).max(ENTRY_WEIGHT_MIN);
                    u32::try_from(weight).unwrap_or(u32::MAX)
                })
                .max_capacity(WEIGHT_MAX)
                .time_to_live(Duration::from_millis(cache_ms))
                .build()
        });
        let generations = (0..GENERATIONS).map(|_| AtomicU64::new(0)).collect();
        Self { entries, generations, spread: RandomState::new() }
    }

    /// The answer for this path, loaded once however many ask at the same time. Refusals and failures are not kept.
    pub(super) async fn get(
        &self,
        visitor: &Visitor,
        path: &str,
        load: impl Future<Output = Result<Reply, Reply>>,
    ) -> Result<Reply, Reply> {
        let Some(entries) = &self.entries else { return load.await };
        let key = Key {
            warehouse: visitor.warehouse.clone(),
            place: visitor.place.url(),
            generation: self.generation(&visitor.warehouse).load(Ordering::Acquire),
            path: path.to_owned(),
        };
        entries.try_get_with(key, load).await.map_err(Arc::unwrap_or_clone)
    }

    /// From now on nobody sees what was loaded of this warehouse before.
    pub(super) fn changed(&self, warehouse: &str) {
        self.generation(warehouse).fetch_add(1, Ordering::AcqRel);
    }

    fn generation(&self, warehouse: &str) -> &AtomicU64 {
        let hash = usize::try_from(self.spread.hash_one(warehouse) % GENERATIONS as u64).unwrap_or_default();
        &self.generations[hash]
    }
}

#[cfg(test)]
mod tests {
    use duck_contract::Role;
    use http::StatusCode;
    use tokio::sync::oneshot;

    use super::super::Place;
    use super::*;

    fn visitor(warehouse: &str) -> Visitor {
        let place = Place { bucket: "lake".into(), prefix: format!("{warehouse}/") };
        Visitor::new(warehouse, place, Role::Reader)
    }

    fn reply(text: &'static str) -> Reply {
        Reply { status: StatusCode::OK, body: text.into() }
    }

    #[tokio::test]
    async fn a_load_that_began_before_a_change_is_not_kept() {
        let cache = Arc::new(ReaderCache::new(60_000));
        let (go, wait) = oneshot::channel::<()>();
        let slow = tokio::spawn({
            let cache = cache.clone();
            async move {
                let load = async {
                    wait.await.unwrap();
                    Ok(reply("old"))
                };
                cache.get(&visitor("w_a"), "/t", load).await
            }
        });
        tokio::task::yield_now().await;
        cache.changed("w_a");
        go.send(()).unwrap();
        assert_eq!(slow.await.unwrap(), Ok(reply("old")));
        assert_eq!(cache.get(&visitor("w_a"), "/t", async { Ok(reply("new")) }).await, Ok(reply("new")));
    }

    #[tokio::test]
    async fn failures_are_not_kept_and_warehouses_do_not_meet() {
        let cache = ReaderCache::new(60_000);
        let a = visitor("w_a");
        assert!(cache.get(&a, "/t", async { Err(Reply::busy()) }).await.is_err());
        assert_eq!(cache.get(&a, "/t", async { Ok(reply("a")) }).await, Ok(reply("a")));
        assert_eq!(cache.get(&a, "/t", async { Ok(reply("again")) }).await, Ok(reply("a")));
        assert_eq!(cache.get(&visitor("w_b"), "/t", async { Ok(reply("b")) }).await, Ok(reply("b")));
    }
}
