//! The front: HTTP in, one sandboxed engine per warehouse behind two doors, rows out. It never links DuckDB.
//!
//! The modules in the order of a request; then what the engine may reach, and what holds it all together.

pub mod api;
pub mod audit;
pub mod auth;
pub mod governance;
pub mod limits;
pub mod pool;
pub mod query;
pub mod results;
pub mod statements;

pub mod doors;

pub mod config;
pub mod dev;
pub mod fault;
pub mod journey;
pub mod loadtest;
pub mod maintain;
pub mod places;
pub mod secret;
pub mod server;
mod terminal;
