//! The promises of the whole server, tested at the door where they are made: real processes, real sockets, real files.

mod answers;
mod bad_input;
mod commits;
mod datasets;
mod isolation;
mod organisations;
mod pool;
mod serving;
mod world;
