//! The catalog door: a loopback reverse proxy of the Iceberg REST API.
//!
//! Given a worker's bearer it knows the [`Visitor`], and hands on to the real catalog, under this server's own login, only
//! what that worker may ask of its own warehouse: every address in it lies inside the warehouse's [`Place`]. Never shows a
//! worker a token, an endpoint or a credential, never lets a reader change anything, and never tells a writer that a change
//! failed unless the catalog has said so.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `serve` | the listener: loopback only, bounded, closes when every change is settled |
//! | `door` | one request from bearer to answer |
//! | `routes` | which requests there are, how their paths are spelled |
//! | `effects` | what a change would change, table by table |
//! | `guard` | addresses and settings in what is sent and read |
//! | `answers`, `reply` | what of an answer reaches the worker, and in which words |
//! | `cache` | tables that may not have changed since they were loaded |
//! | `settle`, `commits` | changes are repeated until their outcome is known |
//! | `upstream`, `login` | the real catalog and our login there |
//! | `listing` | what the front asks: a warehouse's place and tables |
//! | `inventory` | what maintenance asks: every table, and all of its metadata |
//!
//! Paths inside Avro manifests pass here unseen: only both doors together are the boundary.

mod answers;
mod cache;
mod commits;
mod door;
mod effects;
mod guard;
mod inventory;
mod listing;
mod login;
mod reply;
mod routes;
mod serve;
mod settings;
mod settle;
mod times;
mod upstream;

#[cfg(test)]
mod tests;

pub use inventory::TableId;
pub use serve::{ServeError, serve};
pub use settings::{Faults, Settings};
pub use upstream::{CatalogError, Upstream};

use super::{Passes, Place, Visitor};
