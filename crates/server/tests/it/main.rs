//! The promises of the whole server, tested at the door where they are made: real processes, real sockets, real files.

// A test fails by panicking, also in the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

mod analytics;
mod answers;
mod attacks;
mod audit;
mod auth;
mod bad_input;
mod between;
mod cancellation;
mod commits;
mod containment;
mod datasets;
mod faults;
mod isolation;
mod issuers;
mod layers;
mod loadtest;
mod lossy;
mod maintain;
mod organisations;
mod outcomes;
mod own_catalog;
mod policy;
mod pool;
mod reports;
mod routes;
mod s3_world;
mod secrets;
mod serving;
mod statements;
mod takeover;
mod upkeep;
mod world;
mod writers;
mod writes;
