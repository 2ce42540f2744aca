//! What tests are made of: real processes on loopback, and the seeded simulator over `proxy`.

pub mod process;
pub mod sim;
