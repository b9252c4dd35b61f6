//! What holds for the contract's text and for the tree as a whole.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod schema;
mod tidy;
