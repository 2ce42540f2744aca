//! The fuzzers of Redis's protocol: its naive parser, and the tests against it.

pub mod grammar;
pub mod injection;
pub mod naive;
pub mod reply;
pub mod request;
