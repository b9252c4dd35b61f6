//! How many bytes are kept, and for whom. A [`Room`] gives itself back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What there is. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Space(Arc<Mutex<Taken>>);

/// What is taken of it, as plain data.
struct Taken {
    bytes_max: u64,
    tenant_bytes_max: u64,
    bytes: u64,
    tenants: HashMap<String, u64>,
}

/// Whose share is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Tenant,
    Server,
}

/// Bytes that one statement may keep. They are free again when this is dropped.
pub(super) struct Room {
    space: Space,
    tenant: String,
    bytes: u64,
}

impl Space {
    pub(super) fn new(bytes_max: u64, tenant_bytes_max: u64) -> Self {
        let taken = Taken { bytes_max, tenant_bytes_max, bytes: 0, tenants: HashMap::new() };
        Space(Arc::new(Mutex::new(taken)))
    }

    /// Room for so much.
    pub(super) fn room(&self, tenant: &str, bytes: u64) -> Result<Room, Full> {
        self.taken().take(tenant, bytes)?;
        Ok(Room { space: self.clone(), tenant: tenant.to_owned(), bytes })
    }

    /// How much is taken in all.
    pub(super) fn bytes(&self) -> u64 {
        self.taken().bytes
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Makes it at least so large.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), Full> {
        if bytes > self.bytes {
            self.space.taken().take(&self.tenant, bytes - self.bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Makes it no larger than that.
    pub(super) fn shrink(&mut self, bytes: u64) {
        if bytes < self.bytes {
            self.space.taken().give(&self.tenant, self.bytes - bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

impl Taken {
    fn take(&mut self, tenant: &str, bytes: u64) -> Result<(), Full> {
        let own = self.tenants.get(tenant).copied().unwrap_or(0);
        if own.saturating_add(bytes) > self.tenant_bytes_max {
            return Err(Full::Tenant);
        }
        if self.bytes.saturating_add(bytes) > self.bytes_max {
            return Err(Full::Server);
        }
        if bytes > 0 {
            self.bytes += bytes;
            self.tenants.insert(tenant.to_owned(), own + bytes);
        }
        Ok(())
    }

    fn give(&mut self, tenant: &str, bytes: u64) {
        self.bytes -= bytes;
        if let Some(own) = self.tenants.get_mut(tenant) {
            *own -= bytes;
            if *own == 0 {
                self.tenants.remove(tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Neither bound is ever passed, what does not fit changes nothing, and all of it comes back.
        #[test]
        fn what_is_kept_never_passes_a_bound(acts in prop::collection::vec((0_u8..4, 0_u8..3, 0_u64..60), 1..200)) {
            let space = Space::new(100, 40);
            let mut rooms: Vec<Room> = Vec::new();
            for (act, tenant, bytes) in acts {
                match (act, rooms.last_mut()) {
                    (1, Some(room)) => drop(room.grow(bytes)),
                    (2, Some(room)) => room.shrink(bytes),
                    (3, Some(_)) => drop(rooms.pop()),
                    _ => rooms.extend(space.room(&tenant.to_string(), bytes).ok()),
                }
                let of = |t: &str| rooms.iter().filter(|r| r.tenant == t).map(|r| r.bytes).sum::<u64>();
                prop_assert_eq!(space.bytes(), rooms.iter().map(|room| room.bytes).sum::<u64>());
                prop_assert!(space.bytes() <= 100 && ["0", "1", "2"].iter().all(|t| of(t) <= 40));
            }
            drop(rooms);
            prop_assert_eq!(space.bytes(), 0);
            prop_assert!(space.taken().tenants.is_empty());
        }
    }

    #[test]
    fn a_tenant_that_uses_its_share_takes_nothing_from_others() {
        let space = Space::new(100, 40);
        let mut room = space.room("a", 40).unwrap();
        assert_eq!(room.grow(41), Err(Full::Tenant));
        let _others = (space.room("b", 40).unwrap(), space.room("c", 20).unwrap());
        assert_eq!(space.room("c", 1).err(), Some(Full::Server));
        room.shrink(39);
        assert!(space.room("c", 1).is_ok());
    }
}
