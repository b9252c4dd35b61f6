//! The door's promises, kept at the door: a real socket, real signatures.

mod fuzz;
mod refused;
mod rig;
mod round_trips;
mod sick_stores;
mod signer;
mod wire;
