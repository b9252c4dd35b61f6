//! The catalog's promises, each kept over a real socket and a real object store.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod access;
mod commits;
mod names;
mod places;
mod replay;
mod tables;
mod world;
