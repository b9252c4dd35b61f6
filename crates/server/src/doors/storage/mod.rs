//! storage door
