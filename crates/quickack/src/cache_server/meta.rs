//! The meta commands, each flag as memcached 1.6.18 executes it: in the client's order, so that a
//! `t` before a `T` returns the old time to live, and after it the new one.
//!
//! Two flags of newer versions are executed: `E` (the cas to give) and `md x` (keep the item, drop
//! its value). Flags that 1.6.18 reads and ignores are ignored.

use cache::{Count, Counted, Entry, Item, Mode, NewItem, Outcome};
use proto::memcached::meta::{Flags, Line, Verb, base64};

use super::execute::{Executor, key_of};
use super::reply::{NON_NUMERIC, OUT_OF_MEMORY, TOO_LARGE, digits, push_number};

impl Executor {
    /// Executes the request of that line. `value` is the data block without its line end, or None
    /// if the line end is missing.
    pub(super) fn meta(
        &mut self,
        line: &Line<'_>,
        value: Option<&[u8]>,
        out: &mut Vec<u8>,
        now: u64,
    ) {
        let mut decoded = std::mem::take(&mut self.decoded);
        let key = key_of(line, &mut decoded);
        let before = out.len();
        let is_nominal = match line.verb {
            Verb::Get => self.meta_get(line, key, out, now),
            Verb::Set => self.meta_set(line, key, value, out, now),
            Verb::Delete => self.meta_delete(line, key, out, now),
            Verb::Arithmetic => self.meta_arithmetic(line, key, out, now),
            Verb::Debug => self.meta_debug(key, out, now),
            Verb::Noop => unreachable!("it has no flags and is executed before"),
        };
        if is_nominal && line.flags.has(b'q') {
            out.truncate(before);
        }
        self.decoded = decoded;
    }

    /// Each command returns whether a quiet client may skip its reply.
    fn meta_get(&mut self, line: &Line<'_>, key: &[u8], out: &mut Vec<u8>, now: u64) -> bool {
        let flags = &line.flags;
        let entry = if flags.has(b'N') {
            let item = NewItem { key, new_cas: new_cas(flags), ..NewItem::default() };
            self.store.entry_or_create(&item, now)
        } else {
            self.store.entry(key, now)
        };
        self.counters.count_meta_get(entry.is_some(), flags.has(b'T'));
        let Some(mut entry) = entry else {
            out.extend_from_slice(b"EN");
            push_echo(line, key, None, out);
            return true;
        };
        let item = entry.item();
        if flags.has(b'v') {
            out.reserve(key.len() + item.value.len() + HEAD_MAX);
            out.extend_from_slice(b"VA ");
            push_number(item.value.len() as u64, out);
        } else {
            out.extend_from_slice(b"HD");
        }
        for (letter, token) in line.options() {
            match letter {
                b'T' => entry.touch(flags.ttl.into()),
                b'N' => entry.win_created(flags.vivify.into()),
                b'R' => entry.win_expiring(flags.recache.into()),
                b'O' => push_opaque(token, out),
                b'k' => push_key(key, shows_base64(&entry.item(), key), out),
                _ => push_fact(letter, &entry.item(), now, out),
            }
        }
        let standing = entry.settle();
        for (mark, holds) in
            [(b" Z", standing.sent), (b" X", standing.stale), (b" W", standing.won)]
        {
            out.extend_from_slice(if holds { mark } else { b"" });
        }
        out.extend_from_slice(b"\r\n");
        if flags.has(b'v') {
            out.extend_from_slice(entry.item().value);
            out.extend_from_slice(b"\r\n");
        }
        if !flags.has(b'u') {
            entry.read();
        }
        false
    }

    fn meta_set(
        &mut self,
        line: &Line<'_>,
        key: &[u8],
        value: Option<&[u8]>,
        out: &mut Vec<u8>,
        now: u64,
    ) -> bool {
        let flags = &line.flags;
        let Some(value) = value else {
            out.extend_from_slice(b"CLIENT_ERROR bad data chunk\r\n");
            return false;
        };
        let item = NewItem {
            key,
            flags: flags.client,
            exptime: flags.ttl.into(),
            value,
            binary: flags.has(b'b'),
            cas: flags.has(b'C').then_some(flags.cas),
            even_stale: flags.has(b'I'),
            new_cas: new_cas(flags),
        };
        self.counters.cmd_set += 1;
        let outcome = self.store.store(mode(flags.mode), &item, now);
        if item.cas.is_some() {
            self.counters.count_cas(outcome);
        }
        let word = match outcome {
            Outcome::Stored => b"HD",
            Outcome::NotStored => b"NS",
            Outcome::Exists => b"EX",
            Outcome::NotFound => b"NF",
            Outcome::TooLarge | Outcome::NoMemory => {
                // In every mode: nobody may read a value that was meant to be replaced.
                self.store.delete(key, now);
                let is_large = outcome == Outcome::TooLarge;
                out.extend_from_slice(if is_large { TOO_LARGE } else { OUT_OF_MEMORY });
                return false;
            }
        };
        out.extend_from_slice(word);
        let is_stored = outcome == Outcome::Stored;
        let cas = if is_stored { self.store.last_cas() } else { 0 };
        push_echo(line, key, Some(cas), out);
        is_stored
    }

    fn meta_delete(&mut self, line: &Line<'_>, key: &[u8], out: &mut Vec<u8>, now: u64) -> bool {
        let flags = &line.flags;
        let word = match self.store.entry(key, now) {
            None => b"NF",
            Some(entry) if flags.has(b'C') && entry.item().cas != flags.cas => b"EX",
            Some(entry) if !flags.has_any(b"Ix") => {
                entry.remove();
                b"HD"
            }
            Some(_) => {
                self.hollow(flags, key, now);
                b"HD"
            }
        };
        let is_done = word == b"HD";
        if !flags.has_any(b"Ix") || !is_done {
            let Self { counters, .. } = self;
            *if is_done { &mut counters.delete_hits } else { &mut counters.delete_misses } += 1;
        }
        out.extend_from_slice(word);
        push_echo(line, key, None, out);
        is_done
    }

    /// Executes a delete that keeps the item: without its value, or stale, or both.
    fn hollow(&mut self, flags: &Flags, key: &[u8], now: u64) {
        if flags.has(b'x') {
            let (exptime, new_cas) = (flags.ttl.into(), new_cas(flags));
            let item = NewItem { key, flags: flags.client, exptime, new_cas, ..NewItem::default() };
            self.store.store(Mode::Set, &item, now);
        }
        if flags.has(b'I')
            && let Some(mut entry) = self.store.entry(key, now)
        {
            let exptime = flags.has(b'T').then_some(i64::from(flags.ttl));
            entry.invalidate(exptime, new_cas(flags));
        }
    }

    fn meta_arithmetic(
        &mut self,
        line: &Line<'_>,
        key: &[u8],
        out: &mut Vec<u8>,
        now: u64,
    ) -> bool {
        let flags = &line.flags;
        let up = !matches!(flags.mode, b'D' | b'-');
        let mut room = [0; 20];
        let entry = if flags.has(b'N') {
            let (value, new_cas) = (digits(flags.initial, &mut room), new_cas(flags));
            self.store.entry_or_create(&NewItem { key, value, new_cas, ..NewItem::default() }, now)
        } else {
            self.store.entry(key, now)
        };
        let Some(mut entry) = entry else {
            if flags.has(b'N') {
                out.extend_from_slice(b"SERVER_ERROR Out of memory allocating new item\r\n");
                return false;
            }
            self.counters.count_count(up, Counted::NotFound);
            out.extend_from_slice(b"NF");
            push_echo(line, key, None, out);
            return false;
        };
        if entry.is_created() {
            answer_number(line, key, flags.initial, &mut entry, now, out);
            return false;
        }
        let (delta, cas, new_cas) = (flags.delta, flags.cas, new_cas(flags));
        let counted = entry.count(&Count { up, delta, cas, new_cas });
        self.counters.count_count(up, counted);
        match counted {
            Counted::Now(number) => answer_number(line, key, number, &mut entry, now, out),
            Counted::NotFound | Counted::Exists => {
                out.extend_from_slice(b"EX");
                push_echo(line, key, None, out);
            }
            Counted::NonNumeric => out.extend_from_slice(NON_NUMERIC),
            Counted::NoMemory => out.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
        }
        matches!(counted, Counted::Now(_))
    }

    /// Renders all properties of an item for people. This store has no slab classes.
    fn meta_debug(&mut self, key: &[u8], out: &mut Vec<u8>, now: u64) -> bool {
        let Some(entry) = self.store.entry(key, now) else {
            out.extend_from_slice(b"EN\r\n");
            return false;
        };
        let item = entry.item();
        out.extend_from_slice(b"ME ");
        if shows_base64(&item, key) {
            base64::push(key, out);
        } else {
            out.extend_from_slice(key);
        }
        let expires = item.expires.map_or(-1, |second| now as i64 - i64::from(second));
        let unread = now.saturating_sub(item.accessed.into());
        let fetched = if item.fetched { "yes" } else { "no" };
        let size = item_size(&item, key);
        let cas = item.cas;
        let facts =
            format!(" exp={expires} la={unread} cas={cas} fetch={fetched} cls=1 size={size}\r\n");
        out.extend_from_slice(facts.as_bytes());
        false
    }
}

fn new_cas(flags: &Flags) -> Option<u64> {
    flags.has(b'E').then_some(flags.new_cas)
}

fn mode(letter: u8) -> Mode {
    match letter {
        b'E' => Mode::Add,
        b'A' => Mode::Append,
        b'P' => Mode::Prepend,
        b'R' => Mode::Replace,
        _ => Mode::Set,
    }
}

/// Writes the reply of `ma` with a number, and executes the flags.
fn answer_number(
    line: &Line<'_>,
    key: &[u8],
    number: u64,
    entry: &mut Entry<'_>,
    now: u64,
    out: &mut Vec<u8>,
) {
    let mut room = [0; 20];
    let digits = digits(number, &mut room);
    if line.flags.has(b'v') {
        out.extend_from_slice(b"VA ");
        push_number(digits.len() as u64, out);
    } else {
        out.extend_from_slice(b"HD");
    }
    for (letter, token) in line.options() {
        match letter {
            b'T' => entry.touch(line.flags.ttl.into()),
            b'N' => entry.win_created(line.flags.vivify.into()),
            b'O' => push_opaque(token, out),
            b'k' => push_key(key, line.flags.has(b'b'), out),
            b'c' | b't' => push_fact(letter, &entry.item(), now, out),
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
    if line.flags.has(b'v') {
        out.extend_from_slice(digits);
        out.extend_from_slice(b"\r\n");
    }
}

/// Echoes opaque and key, and for an `ms` the cas, in a reply without an item.
fn push_echo(line: &Line<'_>, key: &[u8], cas: Option<u64>, out: &mut Vec<u8>) {
    for (letter, token) in line.options() {
        match (letter, cas) {
            (b'O', _) => push_opaque(token, out),
            (b'k', _) => push_key(key, line.flags.has(b'b'), out),
            (b'c', Some(cas)) => push_named(b'c', cas, out),
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes one property of an item, chosen by its flag letter.
fn push_fact(letter: u8, item: &Item<'_>, now: u64, out: &mut Vec<u8>) {
    let fact = match letter {
        b's' => item.value.len() as u64,
        b'c' => item.cas,
        b'f' => u64::from(item.flags),
        b'h' => u64::from(item.fetched),
        b'l' => now.saturating_sub(item.accessed.into()),
        b't' => match item.expires {
            // For an item just made to expire, memcached returns the wrapped difference too.
            Some(second) => u64::from(second.wrapping_sub(now as u32)),
            None => return out.extend_from_slice(b" t-1"),
        },
        _ => return,
    };
    push_named(letter, fact, out);
}

fn push_named(letter: u8, number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', letter]);
    push_number(number, out);
}

fn push_opaque(token: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b" O");
    out.extend_from_slice(token);
}

fn push_key(key: &[u8], as_base64: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b" k");
    if as_base64 {
        base64::push(key, out);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// memcached 1.6.18 returns the key as base64 if an `ms` brought it so, and otherwise raw, even if
/// that breaks the line. Such a key is base64 here.
fn shows_base64(item: &Item<'_>, key: &[u8]) -> bool {
    item.binary || !proto::memcached::is_plain(key)
}

/// Counts as memcached does: its own head, a cas, the key and its NUL, flags, the value and its
/// end.
fn item_size(item: &Item<'_>, key: &[u8]) -> usize {
    let flags = if item.flags == 0 { 0 } else { 4 };
    48 + 8 + key.len() + 1 + flags + item.value.len() + 2
}

/// Length of a reply's head without key and value.
const HEAD_MAX: usize = 160;
