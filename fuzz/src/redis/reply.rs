//! Replies: any bytes from a server, in any pieces, are parsed as the naive parser does, and
//! several replies are gathered into one value.

use proto::{
    Ask, Asked, Capabilities, Class, ConnKey, Facts, ItemKind, Outcome, Parsed, Part, Progress,
    Protocol, ProxyFacts, Quiet, Totals,
};
use testkit::wire::{Unread, resp};

use super::grammar;
use crate::mutate::{self, Dice};

pub fn run(seed: u64, budget: usize) {
    let protocol = proto::protocol("redis").expect("the table has the protocol");
    let get = row(protocol, "get");
    let mut last: Vec<Vec<u8>> = Vec::new();
    mutate::run_of("redis-reply", grammar::reply, seed, budget, |bytes, dice| {
        let read = one(protocol, get, bytes, dice);
        if let Some(len) = read {
            last.push(bytes[..len].to_vec());
        }
        for name in ["mget", "scan", "del"] {
            possible(protocol, name, bytes, dice);
        }
        if last.len() == 3 {
            gather(protocol, &last, dice);
            last.clear();
        }
    });
}

fn row(protocol: &dyn Protocol, name: &str) -> u16 {
    let rows = protocol.commands().iter();
    rows.enumerate().find(|(_, row)| row.name == name).expect("a known command").0 as u16
}

/// Parses a reply to its end, from input that arrives in pieces; returns its length.
fn one(protocol: &dyn Protocol, command: u16, bytes: &[u8], dice: &mut Dice) -> Option<usize> {
    let read = items(protocol, Ask { command }, bytes, dice);
    let naive = resp::value(bytes, resp::THREE);
    match (&read, &naive) {
        (Taken::Whole(len, _), Ok(((), end))) => assert_eq!(len, end),
        (Taken::Open, Err(Unread::Incomplete)) | (Taken::Wrong, Err(Unread::Hopeless)) => {}
        // The product may report an error as soon as it is certain.
        (Taken::Wrong, Err(Unread::Incomplete)) => {
            let longer = [bytes, b"\r\n+\r\n+\r\n"].concat();
            assert!(resp::value(&longer, resp::THREE).is_err(), "given up too early");
        }
        _ => panic!("{read:?}, and naively {naive:?}"),
    }
    match read {
        Taken::Whole(len, kinds) => {
            let is_error = matches!(bytes[0], b'-' | b'!');
            let last = kinds.last().expect("a reply has an item");
            assert_eq!(*last == ItemKind::Error, is_error, "{kinds:?}");
            let before = &kinds[..kinds.len() - 1];
            assert!(before.iter().all(|kind| *kind == ItemKind::Part), "{kinds:?}");
            Some(len)
        }
        _ => None,
    }
}

#[derive(Debug)]
enum Taken {
    Whole(usize, Vec<ItemKind>),
    Open,
    Wrong,
}

fn items(protocol: &dyn Protocol, ask: Ask, bytes: &[u8], dice: &mut Dice) -> Taken {
    let upstream = protocol.upstream();
    let mut progress = Progress::default();
    let mut kinds = Vec::new();
    let (mut at, mut end) = (0, 0);
    loop {
        end = (end + 1 + dice.below(40)).min(bytes.len());
        let before = progress;
        match upstream.parse_reply(ask, &mut progress, &bytes[at..end]) {
            Parsed::Incomplete if end == bytes.len() => return Taken::Open,
            Parsed::Incomplete => assert_eq!(progress, before, "nothing was taken"),
            Parsed::Malformed(_) => return Taken::Wrong,
            Parsed::Complete(item) => {
                assert!(item.head > 0 && at + item.head as usize <= end, "the head is there");
                kinds.push(item.kind);
                let body = at + item.head as usize + item.body as usize;
                at += item.len() as usize;
                match bytes.get(body..at) {
                    None => return Taken::Open,
                    Some(trailer) if trailer != item.trailer => return Taken::Wrong,
                    Some(_) => end = end.max(at),
                }
                if item.kind.ends_reply() {
                    return Taken::Whole(at, kinds);
                }
                if at == bytes.len() {
                    return Taken::Open;
                }
            }
        }
    }
}

/// Checks that a reply tested against its request's shape is still one value.
fn possible(protocol: &dyn Protocol, name: &str, bytes: &[u8], dice: &mut Dice) {
    let command = row(protocol, name);
    let ask = match protocol.commands()[usize::from(command)].class {
        Class::Split { ask, .. } => ask,
        _ => Ask { command },
    };
    if let Taken::Whole(len, _) = items(protocol, ask, bytes, dice) {
        assert_eq!(resp::value(bytes, resp::THREE), Ok(((), len)), "{name}");
    }
}

/// Checks that the client gets one value, whatever three servers reply.
fn gather(protocol: &dyn Protocol, replies: &[Vec<u8>], dice: &mut Dice) {
    let rows = protocol.commands().iter().enumerate();
    for (at, row) in rows {
        let is_gathered = match row.class {
            Class::Split { element_per_key, .. } => !element_per_key,
            Class::Broadcast { .. } => true,
            _ => false,
        };
        if !is_gathered || !dice.one_in(8) {
            continue;
        }
        let (command, quiet) = (at as u16, Quiet::Loud);
        let asked = Asked { command, quiet, ask: Ask { command }, head: b"", at: 0, next: None };
        let mut parts = replies.iter().enumerate().map(|(nth, reply)| {
            let outcome = match reply[0] {
                b'-' | b'!' => Outcome::Error(&reply[..]),
                _ => Outcome::Reply(&reply[..]),
            };
            Part { server: "10.0.0.1:6379", place: Some(nth as u32), outcome }
        });
        let mut out = Vec::new();
        protocol.gather(&asked, &mut parts, &Nothing, &mut out);
        let read = resp::value(&out, resp::THREE);
        assert_eq!(read, Ok(((), out.len())), "{}: b\"{}\"", row.name, out.escape_ascii());
    }
}

/// A proxy without any knowledge.
struct Nothing;

impl ProxyFacts for Nothing {
    fn facts(&self) -> Facts<'_> {
        Facts {
            pool: "p",
            version: "quickack-0.0.0",
            capabilities: Some(Capabilities::default()),
            databases: 1,
            conn_key: ConnKey::default(),
            servers: 3,
            clients: 0,
            uptime_s: 0,
            has_users: false,
            endpoints: None,
            age_s: 0,
            topics: [0; 3],
        }
    }

    fn totals(&self) -> Totals {
        Totals::default()
    }
}
