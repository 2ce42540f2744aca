//! The fuzzers of Redis's protocol: its naive reader, and what is measured against it.

pub mod grammar;
pub mod injection;
pub mod naive;
pub mod reply;
pub mod request;
