//! What an engine may reach: two doors on loopback that see every byte.
//!
//! Given a [`Pass`] (a worker's credentials: of no use until it is told for whom they are, dead when it is dropped), a door knows which
//! worker is calling, hence which warehouse and which role, and hands on to the real store or catalog only what that worker may do there. Never
//! listens on anything but 127.0.0.1, and never shows a worker a credential of ours.

pub mod catalog;
mod errand;
pub mod storage;
mod traffic;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use duck_contract::worker::Keys;
use duck_contract::{Code, Role};
use uuid::Uuid;

pub(crate) use self::errand::OnErrand;
pub use self::errand::{Act, Effect, Errand, Outcome, Rights, Table};
pub use self::traffic::Traffic;
use crate::fault::Fault;

/// Where a warehouse lies in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The bucket.
    pub bucket: String,
    /// Empty (the whole bucket), or a key prefix with a trailing slash.
    pub prefix: String,
}

impl Place {
    /// The place as a URL with a trailing slash: `s3://bucket/prefix/`.
    pub fn url(&self) -> String {
        format!("s3://{}/{}", self.bucket, self.prefix)
    }
}

/// What a door knows of the worker that is calling.
pub struct Visitor {
    /// The warehouse's name in the catalog.
    pub warehouse: String,
    /// Where that warehouse lies. Nothing outside is reachable.
    pub place: Place,
    /// Whether it may change anything.
    pub role: Role,
    /// The statements that it was sent.
    errands: Mutex<Vec<Arc<Errand>>>,
}

impl Visitor {
    /// A worker of this warehouse, with nothing to do.
    pub fn new(warehouse: impl Into<String>, place: Place, role: Role) -> Self {
        Visitor { warehouse: warehouse.into(), place, role, errands: Mutex::default() }
    }
}

/// The credentials that are good now. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub struct Passes(Arc<RwLock<Issued>>);

#[derive(Default)]
struct Issued {
    by_key_id: HashMap<String, (String, Arc<Visitor>)>,
    by_bearer: HashMap<String, Arc<Visitor>>,
}

/// One worker's credentials for both doors. They die with it.
pub struct Pass {
    /// What the worker is told.
    pub keys: Keys,
    passes: Passes,
}

impl Passes {
    /// Credentials for a new worker, random (122 bits each), which never repeat. They open nothing as long as nobody has said for which
    /// warehouse they are.
    pub fn issue(&self) -> Pass {
        let keys = Keys {
            access_key_id: format!("DUCK{}", Uuid::new_v4().simple()).to_uppercase(),
            secret_access_key: Uuid::new_v4().simple().to_string(),
            bearer: Uuid::new_v4().simple().to_string(),
        };
        Pass { keys, passes: self.clone() }
    }

    /// The secret and the visitor behind a storage key id.
    pub fn by_key_id(&self, id: &str) -> Option<(String, Arc<Visitor>)> {
        self.read().by_key_id.get(id).cloned()
    }

    /// The visitor behind a catalog bearer token.
    pub fn by_bearer(&self, bearer: &str) -> Option<Arc<Visitor>> {
        self.read().by_bearer.get(bearer).cloned()
    }

    fn read(&self) -> RwLockReadGuard<'_, Issued> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Issued> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// Says for whom it is, once and for all: that takes the pass.
    pub fn bind(self, visitor: Visitor) -> BoundPass {
        let (keys, visitor) = (&self.keys, Arc::new(visitor));
        let mut issued = self.passes.write();
        let known = (keys.secret_access_key.clone(), visitor.clone());
        issued.by_key_id.insert(keys.access_key_id.clone(), known);
        issued.by_bearer.insert(keys.bearer.clone(), visitor.clone());
        drop(issued);
        BoundPass { pass: self, visitor }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut issued = self.passes.write();
        issued.by_key_id.remove(&self.keys.access_key_id);
        issued.by_bearer.remove(&self.keys.bearer);
    }
}

/// The credentials of a worker that has a warehouse.
pub struct BoundPass {
    pass: Pass,
    pub(crate) visitor: Arc<Visitor>,
}

impl BoundPass {
    /// What the worker was told.
    pub fn keys(&self) -> &Keys {
        &self.pass.keys
    }
}

impl From<catalog::CatalogError> for Fault {
    fn from(error: catalog::CatalogError) -> Self {
        use catalog::CatalogError as E;
        let (code, sentence) = match &error {
            E::UnknownWarehouse => {
                (Code::UnknownWarehouse, "This workspace has no warehouse in the catalog.")
            }
            E::Unavailable { .. } | E::LoginRefused { .. } | E::Unusable { .. } => {
                (Code::CatalogUnavailable, "The catalog does not answer. Try again in a moment.")
            }
        };
        Fault::new(code, sentence).because(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_opens_nothing_before_it_is_bound_and_dies_with_its_worker() {
        let passes = Passes::default();
        let pass = passes.issue();
        let Keys { access_key_id: id, bearer, .. } = pass.keys.clone();
        assert!(passes.by_key_id(&id).is_none() && passes.by_bearer(&bearer).is_none());
        let place = Place { bucket: "lakehouse".into(), prefix: "w_a/".into() };
        let bound = pass.bind(Visitor::new("w_a", place, Role::Reader));
        assert!(passes.by_key_id(&id).is_some() && passes.by_bearer(&bearer).is_some());
        drop(bound);
        assert!(passes.by_key_id(&id).is_none() && passes.by_bearer(&bearer).is_none());
    }
}
