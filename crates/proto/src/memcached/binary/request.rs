//! A client's request: a header, extras, key, and an optional value.

use super::super::commands;
use super::super::meta::base64;
use super::super::request::{is_list, is_switch, stats_row};
use super::super::{KEY_MAX, is_plain};
use super::header::{self, Header};
use super::opcodes::{self, Shape};
use crate::{Class, Local, Login, Parsed, Refusal, Request, Span};

/// memcached sends this too, and closes.
const INVALID: &str = "Invalid arguments";
const BAD_MAGIC: &str = "this is no request of the binary protocol";
const LONG_KEY: &str = "refused by the proxy: a key with such bytes may have 186 of them";

pub(super) fn parse(input: &[u8], keys: &mut Vec<Span>) -> Parsed<Request> {
    keys.clear();
    match input.first() {
        None => return Parsed::Incomplete,
        Some(&header::REQUEST) => {}
        Some(_) => return Parsed::Malformed(BAD_MAGIC),
    }
    let Some(header) = Header::read(input) else { return Parsed::Incomplete };
    let command = opcodes::of_code(header.opcode);
    let row = opcodes::opcode(command);
    let Some(value) = header.total.checked_sub(header.extras + header.key) else {
        return Parsed::Malformed(super::answer::UNKNOWN_WORDS);
    };
    let mut request = Request {
        command,
        class: opcodes::class(command),
        family: opcodes::family_of(command),
        quiet: row.quiet,
        keep: true,
        head: header::LEN as u32,
        body: header.total as u64,
        ..Request::placeholder()
    };
    if row.shape == Shape::Unknown {
        return Parsed::Complete(request);
    }
    if header.key > KEY_MAX || !fits(row.shape, &header, value) {
        return Parsed::Malformed(INVALID);
    }
    let key = Span::new(header::LEN + header.extras, header::LEN + header.extras + header.key);
    let Some(head) = input.get(..key.end as usize) else { return Parsed::Incomplete };
    request.head = key.end;
    request.body = value as u64;
    request.stores = matches!(row.shape, Shape::Store(_) | Shape::Concat { .. });
    match request.class {
        Class::Fetch { .. } | Class::Single { .. } => {
            request.class = with_key(request.class, row.shape, key.of(head));
            if !matches!(request.class, Class::Refuse(_)) {
                keys.push(key);
            }
        }
        Class::Broadcast { .. } if row.shape == Shape::Stat => {
            request.class = with_argument(request.class, key.of(head));
        }
        _ => {}
    }
    Parsed::Complete(request)
}

/// Joins the reads that follow a read of one key and differ from it only in key and opaque.
pub(super) fn join(request: &mut Request, input: &[u8], keys: &mut Vec<Span>, most: usize) {
    let opcode = opcodes::opcode(request.command).code;
    while keys.len() < most {
        let start = request.head as usize;
        let Some(header) = input[start..].first_chunk::<{ header::LEN }>() else { return };
        let key_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let total = [header[8], header[9], header[10], header[11]];
        let is_alike = [header[0], header[1], header[4]] == [header::REQUEST, opcode, 0]
            && u32::from_be_bytes(total) as usize == key_len;
        let key = Span::new(start + header::LEN, start + header::LEN + key_len);
        // A key that is empty or too long is not plain.
        if !is_alike || input.len() < key.end as usize || !is_plain(key.of(input)) {
            return;
        }
        request.head = key.end;
        keys.push(key);
    }
}

/// Whether the lengths fit the command's shape.
fn fits(shape: Shape, header: &Header, value: usize) -> bool {
    let (extras, has_key, no_value) = (header.extras, header.key > 0, value == 0);
    match shape {
        Shape::Get { .. } | Shape::Delete => extras == 0 && has_key && no_value,
        Shape::Touch { .. } => extras == 4 && has_key && no_value,
        Shape::Store(_) => extras == 8 && has_key,
        Shape::Concat { .. } | Shape::Sasl => extras == 0 && has_key,
        Shape::Delta { .. } => extras == 20 && has_key && no_value,
        Shape::Flush => (extras == 0 || extras == 4) && !has_key && no_value,
        Shape::Stat => extras == 0 && no_value,
        Shape::Bare => extras == 0 && !has_key && no_value,
        Shape::Unknown => true,
    }
}

/// Returns the class of a `Stat` with this argument. Servers ignore the words behind those that
/// they read.
fn with_argument(class: Class, argument: &[u8]) -> Class {
    let mut words = argument.split(|&byte| byte == b' ');
    let mut word = || words.next().unwrap_or_default();
    let (word, next) = (word(), word());
    match (word, stats_row(word, next)) {
        (b"", _) if argument.is_empty() => class,
        (b"proxy", _) => Class::Local(Local::Stats),
        (_, Some(commands::CACHEDUMP)) => Class::Refuse(Refusal::Unknown),
        (_, Some(commands::STATS_DETAIL)) if !is_switch(next) => Class::Refuse(Refusal::Unknown),
        (_, Some(row)) => commands::TABLE[usize::from(row)].class,
        _ if is_list(word) => class,
        _ => Class::Refuse(Refusal::Unknown),
    }
}

/// Returns the class for a key. A key that a line cannot hold is sent as base64, in a request of
/// its own.
fn with_key(class: Class, shape: Shape, key: &[u8]) -> Class {
    if is_plain(key) {
        return class;
    }
    if base64::encoded_len(key.len()) > KEY_MAX {
        return Class::Refuse(Refusal::Bad(LONG_KEY));
    }
    Class::Single { writes: !matches!(shape, Shape::Get { .. }) }
}

/// Reads a login by the mechanism PLAIN: an identity to act for, a name and a password, with a NUL
/// before each of the last two. Any other mechanism is a login that fails.
pub(super) fn plain<'a>(head: &[u8], body: &'a [u8]) -> Login<'a> {
    let mechanism = Header::read(head).map(|header| header.key(head));
    let mut parts = body.splitn(3, |&byte| byte == 0).skip(1);
    let (name, password) = match (mechanism, parts.next(), parts.next()) {
        (Some(b"PLAIN"), Some(name), Some(password)) => (name, password),
        _ => Default::default(),
    };
    Login::Attempt { name: name.into(), password: password.into(), goes_on: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(opcode: u8, key: &[u8]) -> Vec<u8> {
        let len = key.len() as u8;
        let header = [0x80, opcode, 0, len, 0, 0, 0, 0, 0, 0, 0, len, 0, 0, 0, 9];
        [&header[..], &[0; 8], key].concat()
    }

    /// Checks that `joined` of the packets are one read, and that each is the same as it is alone.
    fn check(packets: &[Vec<u8>], most: usize, joined: usize) {
        let stream = packets.concat();
        let (mut keys, mut alone) = (Vec::new(), Vec::new());
        let Parsed::Complete(mut request) = parse(&stream, &mut keys) else { panic!("a get") };
        join(&mut request, &stream, &mut keys, most);
        let len: usize = packets[..joined].iter().map(Vec::len).sum();
        assert_eq!((keys.len(), request.head as usize), (joined, len));
        for (packet, key) in packets[..joined].iter().zip(keys) {
            assert!(matches!(parse(packet, &mut alone), Parsed::Complete(_)));
            assert_eq!(key.of(&stream), alone[0].of(packet));
        }
    }

    #[test]
    fn what_follows_is_joined_as_far_as_it_is_alike() {
        let quiet = |keys: &[&str]| keys.iter().map(|key| get(0x0d, key.as_bytes())).collect();
        let mut packets: Vec<Vec<u8>> = quiet(&["a", "bb", "ccc", "d"]);
        check(&packets, 9, 4);
        check(&packets, 3, 3);
        for other in [get(0x09, b"e"), get(0x0d, b"a b"), get(0x0d, b"")] {
            packets.push(other);
            packets.push(get(0x0d, b"f"));
            check(&packets, 9, 4);
            packets.truncate(4);
        }
        packets.push(get(0x0d, b"e")[..24].to_vec());
        check(&packets, 9, 4);
        let (mut longer, mut with_extras) = (get(0x0d, b"e"), get(0x0d, b"e"));
        longer[11] += 1;
        with_extras[4] = 1;
        check(&[packets[0].clone(), longer], 9, 1);
        check(&[packets[0].clone(), with_extras], 9, 1);
    }
}
