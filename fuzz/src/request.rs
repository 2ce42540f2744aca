//! Tests the request parser alone: any bytes, in any pieces.

use proto::{Asked, Class, PROTOCOLS, Parsed, Protocol, Refusal, Resume, Span};

use testkit::wire::binary;

use crate::mutate::{self, Dice};
use crate::naive;

pub fn run(seed: u64, budget: usize) {
    for target in ["request", "packet"] {
        mutate::run(target, seed, budget / 2, |bytes, dice| {
            // Redis requests have their own fuzzer.
            for &protocol in PROTOCOLS.iter().filter(|one| one.name() != "redis") {
                check(protocol, bytes, dice);
            }
        });
    }
}

fn check(protocol: &dyn Protocol, bytes: &[u8], dice: &mut Dice) {
    let mut keys = Vec::new();
    let whole = protocol.parse_request(bytes, &mut Resume::default(), &mut keys);
    pieces(protocol, bytes, whole, &keys, dice);
    let Parsed::Complete(request) = whole else { return };
    let head = request.head as usize;
    assert!(head > 0 && head <= bytes.len(), "the head is in the input");
    assert!(bytes[head - 1] == b'\n' || bytes[0] == binary::REQUEST, "a line or a packet");
    let is_refused = request.class == Class::Refuse(Refusal::Unknown);
    let is_unknown = request.command == Asked::UNKNOWN && is_refused;
    assert!(is_unknown || usize::from(request.command) < protocol.commands().len());
    assert!(request.arguments.end as usize <= head, "arguments stand in the head");
    for key in &keys {
        let text = key.of(&bytes[..head]);
        assert!((1..=250).contains(&text.len()), "a key of {} bytes", text.len());
        let mut scratch = b"old".to_vec();
        let known = protocol.key(&request, &bytes[..head], *key, &mut scratch);
        assert!((1..=250).contains(&known.len()), "a key of {} bytes", known.len());
        if let Class::Fetch { .. } = request.class {
            assert!(naive::clean(text), "an unclean key");
            assert_eq!(known, text, "a read is asked as it stands in the head");
        }
    }
    match request.class {
        Class::Fetch { .. } | Class::Split { .. } => assert!(!keys.is_empty()),
        Class::Single { .. } => assert_eq!(keys.len(), 1),
        Class::Broadcast { .. } | Class::Local(_) | Class::Refuse(_) => assert!(keys.is_empty()),
    }
    let mut again = Vec::new();
    let mut alone = bytes[..head].to_vec();
    assert_eq!(protocol.parse_request(&alone, &mut Resume::default(), &mut again), whole);
    alone.resize(head + dice.below(20), dice.roll() as u8);
    assert_eq!(protocol.parse_request(&alone, &mut Resume::default(), &mut again), whole);
    assert_eq!(again, keys);
}

/// Checks that the same input in random pieces ends in the same way.
pub fn pieces(
    protocol: &dyn Protocol,
    bytes: &[u8],
    whole: Parsed<proto::Request>,
    keys: &[Span],
    dice: &mut Dice,
) {
    let mut resume = Resume::default();
    let mut found = Vec::new();
    let mut end = 0;
    loop {
        end = (end + 1 + dice.below(12)).min(bytes.len());
        let before = resume.scanned;
        let outcome = protocol.parse_request(&bytes[..end], &mut resume, &mut found);
        assert!(resume.scanned >= before && resume.scanned <= end, "the search goes forward");
        if outcome == Parsed::Incomplete && end < bytes.len() {
            continue;
        }
        assert_eq!(outcome, whole, "the first {end} bytes, in pieces");
        assert_eq!(found, keys);
        return;
    }
}
