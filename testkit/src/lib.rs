//! Support for tests: real processes on loopback, a client load that checks every reply, random
//! requests compared with memcached's own answers, and the seeded simulator over `proxy`.
//!
//! Without the feature `models` nothing here needs the product.

#[cfg(feature = "models")]
pub mod differential;
pub mod load;
pub mod process;
pub mod random;
#[cfg(feature = "models")]
pub mod sim;
pub mod wire;
