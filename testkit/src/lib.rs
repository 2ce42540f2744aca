//! What tests are made of: real processes on loopback, a client load that checks every reply, and
//! the seeded simulator over `proxy`.

pub mod load;
pub mod process;
pub mod sim;
