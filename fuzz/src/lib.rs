//! Fuzzers: functions of a seed and a budget that panic when they find a fault.
//!
//! Each fuzzer is one row in [`FUZZERS`]. `cargo xtask fuzz [NAME] [--seed N] [--budget N]` runs
//! them for any time; `tests/smoke.rs` runs each briefly, and checks that the canary is caught. The
//! same seed gives the same run, so the line that reported a failure repeats it.
//!
//! ```text
//!   corpus/ + grammar ──mutate──▶ input ──▶ oracle: naive reader, model of the server, check()
//! ```
//!
//! There are no libFuzzer shims: they need a nightly compiler, and the project builds with stable.
//! To find bugs in a line protocol, knowledge of its grammar (`mutate.rs`) helps more than coverage
//! feedback. A corpus file is raw bytes, so a shim can use the same folders later.

pub mod canary;
pub mod http;
pub mod keys;
pub mod meta;
pub mod mutate;
pub mod naive;
pub mod packet;
pub mod redis;
pub mod reply;
pub mod request;
pub mod server;
pub mod tenants;
pub mod told;
pub mod whole;

/// Prints how to repeat a scene if it unwinds; does nothing if it does not.
pub(crate) struct Shown {
    pub(crate) fuzzer: &'static str,
    pub(crate) seed: u64,
}

impl Drop for Shown {
    fn drop(&mut self) {
        eprintln!("again: cargo xtask fuzz {} --seed {} --budget 1", self.fuzzer, self.seed);
    }
}

/// One fuzzer.
pub struct Fuzzer {
    pub name: &'static str,
    pub about: &'static str,
    /// Runs `budget` inputs from `seed`; panics with the input on a fault.
    pub run: fn(seed: u64, budget: usize),
    /// Inputs in a smoke run: about a second of an unoptimised build.
    pub smoke: usize,
}

/// Every fuzzer except the canary, which must fail.
pub const FUZZERS: &[Fuzzer] = &[
    Fuzzer {
        name: "request",
        about: "the request parser: any cut, spans inside the head, nothing read past a frame",
        run: request::run,
        smoke: 20_000,
    },
    Fuzzer {
        name: "differential",
        about: "the request parser against a naive one",
        run: naive::run,
        smoke: 50_000,
    },
    Fuzzer {
        name: "smuggling",
        about: "what is forwarded, read by a model of memcached's own tokenizer",
        run: server::run,
        smoke: 50_000,
    },
    Fuzzer {
        name: "packet",
        about: "packets: a naive reader, and what reaches the server, read by the same model",
        run: packet::run,
        smoke: 50_000,
    },
    Fuzzer {
        name: "told",
        about: "whatever a server says, told to whoever asked: whole lines or packets, with opaque",
        run: told::run,
        smoke: 50_000,
    },
    Fuzzer {
        name: "reply",
        about: "the reply parser: any cut, spans inside the head, possible answers only",
        run: reply::run,
        smoke: 50_000,
    },
    Fuzzer {
        name: "resp-request",
        about: "Redis's requests: a naive reader, any cut, and what reaches the server",
        run: redis::request::run,
        smoke: 50_000,
    },
    Fuzzer {
        name: "resp-reply",
        about: "Redis's replies: a naive reader, any cut, and what is gathered of several",
        run: redis::reply::run,
        smoke: 50_000,
    },
    Fuzzer {
        name: "injection",
        about: "three clients beside those that send anything: each gets its own bytes only",
        run: redis::injection::run,
        smoke: 300,
    },
    Fuzzer {
        name: "tenants",
        about: "a tenant with a key prefix sends anything: no key of others reaches a server",
        run: tenants::run,
        smoke: 5_000,
    },
    Fuzzer {
        name: "keys",
        about: "any bytes as a key, through hash, tag and ring",
        run: keys::run,
        smoke: 5_000,
    },
    Fuzzer {
        name: "http",
        about: "HTTP requests: any cut, no body, one meaning, answers in order",
        run: http::run,
        smoke: 10_000,
    },
    Fuzzer {
        name: "exposition",
        about: "any names in metrics, read back by a naive reader",
        run: http::exposition,
        smoke: 10_000,
    },
    Fuzzer {
        name: "whole",
        about: "the data plane between lying clients and lying servers, its invariants checked",
        run: whole::run,
        smoke: 300,
    },
];

/// A fuzzer with a seeded fault, to show that the oracles detect faults.
pub const CANARY: Fuzzer = Fuzzer {
    name: "canary",
    about: "a writer that forwards one rare noreply: must be caught",
    run: canary::run,
    smoke: 50_000,
};

/// Returns the fuzzer of that name, the canary included.
pub fn find(name: &str) -> Option<&'static Fuzzer> {
    FUZZERS.iter().chain([&CANARY]).find(|fuzzer| fuzzer.name == name)
}
