//! catalog door
