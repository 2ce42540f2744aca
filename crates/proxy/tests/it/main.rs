//! The data plane as its driver sees it: bytes and the time in, bytes and actions out. One module
//! for each question; `stage` has the driver, the clients and the servers.
// A test that cannot continue panics, in its helper functions as well.
#![allow(clippy::unwrap_used)]

mod access;
mod again;
mod ahead;
mod around;
mod capabilities;
mod changes;
mod classes;
mod clients;
mod counts;
mod endings;
mod fair;
mod further;
mod holds;
mod inputs;
mod inquiries;
mod installs;
mod large;
mod large_links;
mod locals;
mod logins;
mod many_keys;
mod operators;
mod phases;
mod plans;
mod private;
mod removals;
mod renewals;
mod returns;
mod routes;
mod shares;
mod stage;
mod states;
mod stories;
mod tenants;
mod third;
mod topics;
mod topics_at_random;
mod transactions;
mod trials;
mod values;
mod verdicts;
mod waits_at_random;
mod watches;
mod whole;
mod works;
