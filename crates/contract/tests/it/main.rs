//! What holds for the contract's text and for the tree as a whole.

mod schema;
mod tidy;
