//! Support for tests: real processes on loopback, a client load that checks every reply, random
//! requests compared with memcached's own answers, and the seeded simulator over `proxy`.

pub mod differential;
pub mod differential_redis;
pub mod load;
pub mod process;
pub mod resp;
pub mod sim;
