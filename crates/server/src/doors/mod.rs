//! What an engine may reach: two doors on loopback that see every byte.
//!
//! Given a [`Pass`] (a worker's credentials, dead when the pass is dropped), a door knows which worker is calling, hence
//! which warehouse and which role, and hands on to the real store or catalog only what that worker may do there. Never
//! listens on anything but 127.0.0.1, and never shows a worker a credential of ours.

pub mod catalog;
mod errand;
pub mod storage;
mod traffic;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

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
    /// Key id for the storage door.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: String,
    /// Bearer token for the catalog door.
    pub bearer: String,
    pub(crate) visitor: Arc<Visitor>,
    passes: Passes,
}

impl Passes {
    /// Credentials for a new worker. Both are random (122 bits each) and never repeat.
    pub fn issue(&self, visitor: Visitor) -> Pass {
        let visitor = Arc::new(visitor);
        let pass = Pass {
            access_key_id: format!("DUCK{}", Uuid::new_v4().simple()).to_uppercase(),
            secret_access_key: Uuid::new_v4().simple().to_string(),
            bearer: Uuid::new_v4().simple().to_string(),
            visitor: visitor.clone(),
            passes: self.clone(),
        };
        let mut issued = self.0.write().unwrap_or_else(PoisonError::into_inner);
        issued
            .by_key_id
            .insert(pass.access_key_id.clone(), (pass.secret_access_key.clone(), visitor.clone()));
        issued.by_bearer.insert(pass.bearer.clone(), visitor);
        drop(issued);
        pass
    }

    /// The secret and the visitor behind a storage key id.
    pub fn by_key_id(&self, id: &str) -> Option<(String, Arc<Visitor>)> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_key_id.get(id).cloned()
    }

    /// The visitor behind a catalog bearer token.
    pub fn by_bearer(&self, bearer: &str) -> Option<Arc<Visitor>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_bearer.get(bearer).cloned()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut issued = self.passes.0.write().unwrap_or_else(PoisonError::into_inner);
        issued.by_key_id.remove(&self.access_key_id);
        issued.by_bearer.remove(&self.bearer);
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
    fn a_pass_dies_with_its_worker() {
        let passes = Passes::default();
        let place = Place { bucket: "lakehouse".into(), prefix: "w_a/".into() };
        let pass = passes.issue(Visitor::new("w_a", place, Role::Reader));
        let (id, bearer) = (pass.access_key_id.clone(), pass.bearer.clone());
        assert!(passes.by_key_id(&id).is_some() && passes.by_bearer(&bearer).is_some());
        drop(pass);
        assert!(passes.by_key_id(&id).is_none() && passes.by_bearer(&bearer).is_none());
    }
}
