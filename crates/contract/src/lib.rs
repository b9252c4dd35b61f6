//! What every party of duck-server agrees on. No I/O, no axum, no DuckDB.
//!
//! [`query`], [`statements`] and [`audit`] are what a client sends and receives, [`code`] the closed list of what can go wrong, [`worker`] what the
//! front and an engine say to each other. `schema.json` beside `Cargo.toml` is generated from here and committed.

pub mod audit;
pub mod code;
pub mod query;
pub mod statements;
pub mod worker;

pub use code::{Code, Problem};
pub use query::{Format, Params, QueryRequest};
pub use statements::StatementRequest;
pub use worker::Role;
