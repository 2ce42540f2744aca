//! Answers to a client, as packets: rendered replies of servers, and the proxy's own.

use super::super::commands::{DETAIL_DUMP, FLUSH_ALL, MA, MG, SIZES_DISABLE, SIZES_ENABLE};
use super::super::{reply, stats, version};
use super::header::{self, Header, Reply};
use super::opcodes::{self, Mode, Shape};
use crate::answer::not_allowed;
use crate::scan;
use crate::{Answer, Asked, Item, ItemKind, Quiet, Refusal, Request, Shown, Span};

/// The statuses, with memcached's text for each.
const OK: u16 = 0x00;
const NOT_FOUND: (u16, &[u8]) = (0x01, b"Not found");
const EXISTS: (u16, &[u8]) = (0x02, b"Data exists for key.");
const TOO_LARGE: (u16, &[u8]) = (0x03, b"Too large.");
const TOO_LARGE_KEPT: (u16, &[u8]) = (TOO_LARGE.0, b"Too large, old value kept.");
const INVALID: u16 = 0x04;
const NOT_STORED: (u16, &[u8]) = (0x05, b"Not stored.");
const NOT_NUMERIC: (u16, &[u8]) = (0x06, b"Non-numeric server-side value for incr or decr");
const AUTH_ERROR: (u16, &[u8]) = (0x20, b"Auth failure.");
const UNKNOWN: (u16, &[u8]) = (0x81, UNKNOWN_WORDS.as_bytes());
pub(super) const UNKNOWN_WORDS: &str = "Unknown command";
const NO_MEMORY: (u16, &[u8]) = (0x82, b"Out of memory");
/// memcached does not use these, but its clients know them: "not supported", "internal error", and
/// "temporary failure". At the last, libmemcached closes and other clients may try again, so it is
/// never used where a change may have been made.
const NOT_SUPPORTED: u16 = 0x83;
const INTERNAL: u16 = 0x84;
const TEMPORARY: u16 = 0x86;

/// The extras of a value: its flags.
const FLAGS_LEN: usize = 4;

/// The packet that is answered.
struct To<'a> {
    opcode: u8,
    opaque: [u8; 4],
    shape: Shape,
    quiet: bool,
    key: &'a [u8],
}

impl<'a> To<'a> {
    fn read(asked: &Asked<'a>) -> To<'a> {
        let quiet = asked.quiet == Quiet::Sparing;
        let nobody =
            To { opcode: 0, opaque: [0; 4], shape: Shape::Unknown, quiet: false, key: b"" };
        let Some(header) = Header::read(asked.head).filter(|_| asked.head[0] == header::REQUEST)
        else {
            return nobody;
        };
        let (opcode, opaque) = (header.opcode, header.opaque);
        if asked.command == Asked::NO_REQUEST {
            return To { opcode, opaque, ..nobody };
        }
        let shape = opcodes::opcode(asked.command).shape;
        let key = if shape == Shape::Unknown { b"" } else { header.key(asked.head) };
        To { opcode, opaque, shape, quiet, key }
    }

    fn push(&self, reply: Reply, out: &mut Vec<u8>) {
        reply.push(self.opcode, self.opaque, out);
    }

    /// Writes an answer that consists of a text.
    fn say(&self, (status, words): (u16, &[u8]), out: &mut Vec<u8>) {
        self.push(Reply { status, total: words.len(), ..Reply::default() }, out);
        out.extend_from_slice(words);
    }

    /// Writes a success without a value.
    fn done(&self, cas: u64, out: &mut Vec<u8>) -> Shown {
        if self.quiet {
            return Shown::Nothing;
        }
        self.push(Reply { cas, ..Reply::default() }, out);
        Shown::Head
    }

    /// Writes a miss, for reads only: a change of a key that is not there has a status of its own.
    fn miss(&self, out: &mut Vec<u8>) -> Shown {
        if self.quiet {
            return Shown::Nothing;
        }
        if self.tells_key() {
            let (status, key) = (NOT_FOUND.0, self.key.len());
            self.push(Reply { status, key, total: key, ..Reply::default() }, out);
            out.extend_from_slice(self.key);
        } else {
            self.say(NOT_FOUND, out);
        }
        Shown::Head
    }

    /// Writes the answer to a hit: the item's flags, its cas number, and what else was requested.
    fn hit(&self, flags: u32, cas: u64, body: u64, out: &mut Vec<u8>) -> Shown {
        let has_value = !matches!(self.shape, Shape::Touch { value: false, .. });
        let key = if self.tells_key() { self.key } else { b"" };
        let value = if has_value { body as usize } else { 0 };
        let total = FLAGS_LEN + key.len() + value;
        self.push(Reply { status: OK, key: key.len(), extras: FLAGS_LEN, total, cas }, out);
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(key);
        if has_value { Shown::Body { trailer: b"" } } else { Shown::Head }
    }

    fn number(&self, number: u64, cas: u64, out: &mut Vec<u8>) -> Shown {
        if self.quiet {
            return Shown::Nothing;
        }
        self.push(Reply { total: 8, cas, ..Reply::default() }, out);
        out.extend_from_slice(&number.to_be_bytes());
        Shown::Head
    }

    fn not_stored(&self) -> (u16, &'static [u8]) {
        match self.shape {
            Shape::Store(Mode::Add) => EXISTS,
            Shape::Store(Mode::Replace) => NOT_FOUND,
            _ => NOT_STORED,
        }
    }

    fn tells_key(&self) -> bool {
        matches!(self.shape, Shape::Get { key: true } | Shape::Touch { key: true, .. })
    }
}

/// Renders a server's line, which is no error, as the whole answer to a request for several
/// servers.
pub(super) fn pass(asked: &Asked<'_>, line: &[u8], out: &mut Vec<u8>) {
    if asked.ask.command == DETAIL_DUMP {
        answer(asked, &Answer::Stat("detailed", &String::from_utf8_lossy(line)), out);
        return answer(asked, &Answer::End, out);
    }
    if matches!(asked.ask.command, SIZES_ENABLE | SIZES_DISABLE) {
        for (name, value) in stats::lines(line) {
            let [name, value] = [name, value].map(String::from_utf8_lossy);
            answer(asked, &Answer::Stat(&name, &value), out);
        }
        return answer(asked, &Answer::End, out);
    }
    let kind = ItemKind::Status;
    let (head, key) = (line.len() as u32, Span::default());
    render(asked, &Item { kind, head, body: 0, trailer: b"", key }, line, out);
}

/// Renders a server's item.
pub(super) fn render(asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    if !item.key.is_empty() {
        return tell_value(asked, item, head, out);
    }
    let to = To::read(asked);
    let text = head.strip_suffix(b"\r\n").unwrap_or(head);
    match asked.ask.command {
        MG.. => render_meta(asked.ask.command, &to, item, text, out),
        FLUSH_ALL => to.done(0, out),
        _ => render_classic(&to, text, out),
    }
}

/// Renders a value of a classic read. Most answers are such, so only the needed fields of the
/// request are read, and the front of the packet is written at once.
fn tell_value(asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    let (flags, cas) = reply::numbers(item, head);
    let [_, opcode, .., a, b, c, d] = *asked.head.first_chunk::<16>().expect("a packet was asked");
    let (has_key, has_value) = match opcodes::opcode(asked.command).shape {
        Shape::Touch { key, value } => (key, value),
        Shape::Get { key } => (key, true),
        _ => (false, true),
    };
    let key = if has_key { item.key.of(head) } else { b"" };
    let value = if has_value { item.body as usize } else { 0 };
    let total = FLAGS_LEN + key.len() + value;
    let reply = Reply { status: OK, key: key.len(), extras: FLAGS_LEN, total, cas };
    let mut front = [0; header::LEN + FLAGS_LEN];
    front[..header::LEN].copy_from_slice(&reply.bytes(opcode, [a, b, c, d]));
    front[header::LEN..].copy_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&front);
    out.extend_from_slice(key);
    if has_value { Shown::Body { trailer: b"" } } else { Shown::Head }
}

/// Renders a classic status.
fn render_classic(to: &To<'_>, text: &[u8], out: &mut Vec<u8>) -> Shown {
    match text {
        b"END" => return to.miss(out),
        b"NOT_FOUND" => to.say(NOT_FOUND, out),
        b"EXISTS" => to.say(EXISTS, out),
        b"NOT_STORED" => to.say(to.not_stored(), out),
        _ => return to.done(0, out),
    }
    Shown::Head
}

/// Renders a meta status, with the flags that were requested.
fn render_meta(command: u16, to: &To<'_>, item: &Item, text: &[u8], out: &mut Vec<u8>) -> Shown {
    match text.get(..2).unwrap_or_default() {
        b"EN" => return to.miss(out),
        b"NF" => to.say(NOT_FOUND, out),
        b"EX" => to.say(EXISTS, out),
        b"NS" => to.say(to.not_stored(), out),
        _ if command == MG => {
            let told = Told::read(text);
            return to.hit(told.flags, told.cas, item.body, out);
        }
        b"VA" if command == MA => {
            let told = Told::read(text);
            let digits = text.rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
            return to.number(number(digits), told.cas, out);
        }
        _ => return to.done(Told::read(text).cas, out),
    }
    Shown::Head
}

/// The fields of an item in a meta reply.
#[derive(Default)]
struct Told {
    flags: u32,
    cas: u64,
}

impl Told {
    /// Reads the first line of a reply.
    fn read(text: &[u8]) -> Told {
        let line = text.split(|&byte| byte == b'\r').next().unwrap_or_default();
        let mut told = Told::default();
        for option in line.split(|&byte| byte == b' ').skip(1) {
            match option.split_first() {
                Some((b'f', text)) => told.flags = number(text) as u32,
                Some((b'c', text)) => told.cas = number(text),
                _ => {}
            }
        }
        told
    }
}

/// Returns a number that a server has written.
fn number(text: &[u8]) -> u64 {
    scan::decimal(text, u64::MAX).unwrap_or(0)
}

/// Writes the ways to log in.
pub(super) fn mechanisms(request: &Request, head: &[u8]) -> Vec<u8> {
    let to = To::read(&Asked { command: request.command, head, ..Asked::no_request() });
    let mut out = Vec::new();
    to.say((OK, b"PLAIN"), &mut out);
    out
}

/// Writes an answer of the proxy.
pub(super) fn answer(asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
    let to = To::read(asked);
    match answer {
        Answer::End if to.shape == Shape::Stat => to.push(Reply::default(), out),
        Answer::End | Answer::Open(_) | Answer::Alive => {}
        Answer::Miss => drop(to.miss(out)),
        Answer::Ok | Answer::Queued | Answer::Barrier | Answer::Bye => drop(to.done(0, out)),
        Answer::Version(proxy) => to.say((OK, version(proxy).as_bytes()), out),
        Answer::Stat(name, value) => {
            let total = name.len() + value.len();
            to.push(Reply { key: name.len(), total, ..Reply::default() }, out);
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(value.as_bytes());
        }
        Answer::Refused(Refusal::Unknown) if to.shape == Shape::Stat => to.say(NOT_FOUND, out),
        Answer::Refused(Refusal::Unknown | Refusal::Bad(UNKNOWN_WORDS)) => to.say(UNKNOWN, out),
        Answer::Refused(Refusal::ByName(why)) => to.say((NOT_SUPPORTED, why.as_bytes()), out),
        Answer::Refused(Refusal::NotAllowed(name)) => {
            to.say((NOT_SUPPORTED, not_allowed(name).as_bytes()), out);
        }
        Answer::Refused(Refusal::Bad(why)) => to.say((INVALID, why.as_bytes()), out),
        Answer::Refused(Refusal::TooLong) => to.say((INVALID, b"line too long"), out),
        Answer::Refused(Refusal::BadBody) => to.say((INVALID, b"bad data chunk"), out),
        // No command of this protocol names a server or a database, or is about transactions.
        Answer::Refused(Refusal::NoPlace | Refusal::NoDatabase | Refusal::OutOfPlace)
        | Answer::Aborted(_) => to.say(UNKNOWN, out),
        Answer::Refused(Refusal::TooLarge) => to.say(TOO_LARGE, out),
        Answer::Refused(Refusal::TooLargeKept) => to.say(TOO_LARGE_KEPT, out),
        Answer::Denied(why) => to.say((NOT_SUPPORTED, why.as_bytes()), out),
        Answer::Failed(why) | Answer::Full(why) => to.say((TEMPORARY, why.as_bytes()), out),
        Answer::Uncertain(why) => to.say((INTERNAL, why.as_bytes()), out),
        Answer::Apart { .. } => to.say((INVALID, b"keys of two servers"), out),
        Answer::Error(line) => to.say(of_line(line), out),
        Answer::LoggedIn => to.say((OK, b"Authenticated"), out),
        Answer::LoginFailed | Answer::LoginFirst => to.say(AUTH_ERROR, out),
    }
}

/// Returns the status and text of a server's error line, as its own binary protocol would have
/// them.
fn of_line(line: &[u8]) -> (u16, &[u8]) {
    let text = line.strip_suffix(b"\r\n").unwrap_or(line);
    if let Some(words) = text.strip_prefix(b"CLIENT_ERROR ") {
        let non_numeric = words.ends_with(b"non-numeric value");
        return if non_numeric { NOT_NUMERIC } else { (INVALID, words) };
    }
    match text.strip_prefix(b"SERVER_ERROR ") {
        Some(b"object too large for cache") => TOO_LARGE,
        Some(b"object too large for cache, old value kept") => TOO_LARGE_KEPT,
        Some(words) if words.to_ascii_lowercase().starts_with(b"out of memory") => NO_MEMORY,
        Some(words) => (INTERNAL, words),
        None => UNKNOWN,
    }
}
