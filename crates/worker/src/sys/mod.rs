//! The one module with `unsafe`: DuckDB's C interface, its code's place in memory, and the few system calls that no
//! safe crate offers. Every block says why it is sound; everything above is safe code.
#![allow(unsafe_code)]

pub(crate) mod code;
pub(crate) mod doors;
pub(crate) mod duckdb;
pub(crate) mod process;
mod rows;
mod types;
