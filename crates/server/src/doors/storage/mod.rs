//! The storage door: the S3 endpoint that an engine sees.
//!
//! Given a request signed with a [`super::Pass`], hands on to the configured [`Store`] what that worker's role may do
//! below its warehouse's prefix, and never anything else: not another key, not another operation, and not a DELETE, which
//! only goes to the [`Ledger`]. Never shows the worker a key, an address or an error of the store.
//!
//! A request's way: [`serve`] takes the connection, [`guard`] reads the head as it stands on the wire, s3s checks the
//! signature, [`access`] the operation and the key, [`api`] translates, [`reads`], [`writes`] and [`listing`] do the work
//! at the [`desk`], [`health`] holds the deadlines, [`backend`] knows the store, [`answers`] words its failures.
//! [`upkeep`] is what maintenance does in the store, past the door.

mod access;
mod answers;
mod api;
mod backend;
mod breaker;
mod desk;
mod guard;
mod guests;
mod health;
mod ledger;
mod listing;
mod local;
mod reads;
mod serve;
mod settings;
#[cfg(test)]
mod tests;
mod upkeep;
mod writes;

pub use backend::{Store, StoreError};
pub use guests::Traffic;
pub use ledger::{Candidate, Ledger, candidates, settle, stamp};
pub use serve::{Door, ServeError};
pub use settings::{Kind, Limits, Settings};
pub use upkeep::Object;
