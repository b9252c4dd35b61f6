//! Tables that may not have changed since they were last loaded.
//!
//! The catalog is asked every time, so that whatever was committed before a query is seen by it, at any server. But it is asked with the
//! tag of the answer that is kept: where nothing has changed, it need not send, nor we check, all of a table's metadata again.

use http::HeaderValue;
use moka::future::Cache;

use super::Visitor;
use super::reply::Reply;

const WEIGHT_MAX: u64 = 64 << 20;
/// What an entry weighs at least, which bounds their number: 16,384.
const ENTRY_WEIGHT_MIN: usize = 4 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    warehouse: String,
    place: String,
    path: String,
}

impl Key {
    /// `path` is path and query on the wire.
    pub(super) fn new(visitor: &Visitor, path: &str) -> Self {
        let (warehouse, place) = (visitor.warehouse.clone(), visitor.place.url());
        Self { warehouse, place, path: path.to_owned() }
    }
}

/// A checked answer, and the `ETag` by which the catalog knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tagged {
    pub(super) tag: HeaderValue,
    pub(super) reply: Reply,
}

/// The answers of all warehouses, each under its own key. Refusals and failures are not kept.
pub(super) struct Tables(Cache<Key, Tagged>);

impl Tables {
    pub(super) fn new() -> Self {
        let weight = |key: &Key, kept: &Tagged| {
            let bytes = key.path.len() + kept.reply.body.len();
            u32::try_from(bytes.max(ENTRY_WEIGHT_MIN)).unwrap_or(u32::MAX)
        };
        Self(Cache::builder().weigher(weight).max_capacity(WEIGHT_MAX).build())
    }

    pub(super) async fn get(&self, key: &Key) -> Option<Tagged> {
        self.0.get(key).await
    }

    pub(super) async fn keep(&self, key: Key, answer: Tagged) {
        self.0.insert(key, answer).await;
    }
}

#[cfg(test)]
mod tests {
    use duck_contract::Role;
    use http::StatusCode;

    use super::super::Place;
    use super::*;

    fn key(warehouse: &str, prefix: &str, path: &str) -> Key {
        let place = Place { bucket: "lake".into(), prefix: prefix.into() };
        Key::new(&Visitor::new(warehouse, place, Role::Reader), path)
    }

    #[tokio::test]
    async fn warehouses_places_and_paths_do_not_meet() {
        let tables = Tables::new();
        let reply = Reply { status: StatusCode::OK, body: "a's".into() };
        let tagged = Tagged { tag: HeaderValue::from_static("\"1\""), reply };
        tables.keep(key("w_a", "w_a/", "/t"), tagged.clone()).await;
        assert_eq!(tables.get(&key("w_a", "w_a/", "/t")).await, Some(tagged));
        for other in [key("w_b", "w_a/", "/t"), key("w_a", "w_b/", "/t"), key("w_a", "w_a/", "/t?x=1")] {
            assert_eq!(tables.get(&other).await, None);
        }
    }
}
