//! server

pub mod doors;
