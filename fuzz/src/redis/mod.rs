//! The fuzzers of Redis's protocol: the tests against a naive parser.

pub mod grammar;
pub mod injection;
pub mod reply;
pub mod request;
