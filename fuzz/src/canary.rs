//! A fuzzer that must fail: a writer with a fault that only a rare input triggers. It proves that
//! the inputs reach such places and that the oracle detects them. A successful run of the others
//! means something only while this one fails.

use proto::{Protocol, Request, Span};

use crate::{mutate, server};

pub fn run(seed: u64, budget: usize) {
    mutate::run("request", seed, budget, |bytes, _| server::check(bytes, &leaky));
}

/// Writes correctly, except that it forwards a quiet cas unchanged.
fn leaky(
    protocol: &dyn Protocol,
    request: &Request,
    head: &[u8],
    keys: &[Span],
    meta: bool,
) -> Vec<u8> {
    let name = protocol.command_name(request.command);
    if name == "cas" && request.quiet == proto::Quiet::Silent {
        return head.to_vec();
    }
    server::written(protocol, request, head, keys, meta)
}
