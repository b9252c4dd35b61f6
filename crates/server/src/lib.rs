//! The front: HTTP in, one sandboxed engine per warehouse behind two doors, rows out.

pub mod doors;
