//! A client's request: one line, and for storage commands a data block.
//!
//! A request is forwarded only if every byte of it is understood. Input that a server might read
//! differently is written in the form that all read alike (`number.rs`), or refused here (a NUL or
//! CR in a key, a stray argument). On a shared link, a misread byte would become another
//! client's problem.

use super::commands::{self, Shape};
use super::number::Kind;
use super::{KEY_MAX, number};
use crate::scan::{self, Tokens};
use crate::{Asked, Class, Local, Parsed, Quiet, Refusal, Request, Resume, Span};

/// The longest line of a command that takes a limited number of keys, as in memcached.
const LINE_MAX: usize = 2048;
/// The largest data block that a memcached command line can announce.
pub(super) const BODY_MAX: u64 = i32::MAX as u64 - 2;

pub(super) const BAD_LINE: &str = "bad command line format";
const BAD_DELETE: &str = "bad command line format.  Usage: delete <key> [noreply]";
const BAD_DELTA: &str = "invalid numeric delta argument";
const BAD_EXPTIME: &str = "invalid exptime argument";
/// The first byte of a binary request. Such a request has no end of line to wait for.
const BINARY_MAGIC: u8 = 0x80;
const NOT_BINARY: &str = "binary is spoken from a connection's first byte on, or not at all";
/// No answer, as in memcached: the client may have been sent here by a hostile page.
const NOT_HTTP: &str = "";
const BAD_STATS: &str = "bad command line";
const BAD_DETAIL: &str = "usage: stats detail on|off|dump";
const LINE_TOO_LONG: &str = "line too long";
/// The most arguments of an administrative command: `lru tune` has four numbers.
const ADMIN_MAX: usize = 7;
/// The longest line of such a command. Servers before 1.5 close on a line longer than 1024 bytes.
const ADMIN_LINE_MAX: usize = 1000;

pub(super) fn parse(input: &[u8], resume: &mut Resume, keys: &mut Vec<Span>) -> Parsed<Request> {
    keys.clear();
    if input.first() == Some(&BINARY_MAGIC) {
        return Parsed::Malformed(NOT_BINARY);
    }
    let Some(len) = scan::line_len(input, resume) else {
        let hopeless = input.len() > LINE_MAX && !takes_many_keys(input);
        return if hopeless { Parsed::Malformed(LINE_TOO_LONG) } else { Parsed::Incomplete };
    };
    if len > LINE_MAX && !takes_many_keys(input) {
        return Parsed::Malformed(LINE_TOO_LONG);
    }
    let mut line = Line { tokens: Tokens::new(&input[..len]), keys, request: blank(len) };
    match line.read() {
        Some(refused) => refused,
        None => Parsed::Complete(line.request),
    }
}

/// Writes the canonical, answering form: single spaces, plain numbers, no `noreply`, no argument
/// without effect.
pub(super) fn write_head(request: &Request, head: &[u8], keys: &[Span], out: &mut Vec<u8>) {
    if request.plain {
        // Nearly always.
        return out.extend_from_slice(head);
    }
    let mut tokens = Tokens::new(head);
    // The tokens behind these are `noreply`, or ignored by servers as well.
    let mut left = match commands::shape(request.command) {
        Shape::Store => 5,
        Shape::StoreCas => 6,
        Shape::Delete => 2,
        Shape::Delta | Shape::Touch => 3,
        Shape::Flush if is_now(head) => 1,
        Shape::Flush => 2,
        Shape::Stats => 2,
        _ if (commands::STATS_RESET..=commands::CACHEDUMP).contains(&request.command) => {
            stats_words(request.command)
        }
        _ if request.quiet == Quiet::Loud => usize::MAX,
        _ => Tokens::new(head).count() - 1,
    };
    debug_assert!(matches!(request.class, Class::Broadcast { .. }) || keys.len() == 1);
    let mut place = 0;
    while left > 0
        && let Some(token) = tokens.next()
    {
        let text = tokens.text(token);
        match number_at(request.command, place) {
            Some(kind) => number::push(kind, text, out),
            None => out.extend_from_slice(text),
        }
        out.push(b' ');
        (place, left) = (place + 1, left - 1);
    }
    out.pop();
    out.extend_from_slice(b"\r\n");
}

/// Returns what number an entry of the table has at a place of its line.
fn number_at(command: u16, place: usize) -> Option<Kind> {
    Some(match (commands::shape(command), place) {
        (Shape::Store | Shape::StoreCas, 2) => Kind::Flags,
        (Shape::Store | Shape::StoreCas, 3) | (Shape::Touch, 2) | (Shape::Flush, 1) => {
            Kind::Exptime
        }
        (Shape::Store | Shape::StoreCas, 4) => Kind::Length,
        (Shape::StoreCas, 5) | (Shape::Delta, 2) => Kind::Unsigned,
        _ => return None,
    })
}

/// Whether servers answer `stats` with this argument by a list of facts.
pub(super) fn is_list(word: &[u8]) -> bool {
    matches!(word, b"settings" | b"items" | b"slabs" | b"sizes" | b"conns" | b"extstore")
}

/// Returns the entry of `stats` with these arguments, if its answer is no list of facts.
pub(super) fn stats_row(word: &[u8], next: &[u8]) -> Option<u16> {
    match (word, next) {
        (b"reset", _) => Some(commands::STATS_RESET),
        (b"detail", b"dump") => Some(commands::DETAIL_DUMP),
        (b"detail", _) => Some(commands::STATS_DETAIL),
        (b"sizes_enable", _) => Some(commands::SIZES_ENABLE),
        (b"sizes_disable", _) => Some(commands::SIZES_DISABLE),
        (b"cachedump", _) => Some(commands::CACHEDUMP),
        _ => None,
    }
}

/// Whether `stats detail` accepts this argument, besides `dump`.
pub(super) fn is_switch(word: &[u8]) -> bool {
    matches!(word, b"on" | b"off")
}

/// Returns how many words of the line servers read, for such an entry.
pub(super) fn stats_words(command: u16) -> usize {
    match command {
        commands::STATS_DETAIL | commands::DETAIL_DUMP => 3,
        commands::CACHEDUMP => 4,
        _ => 2,
    }
}

/// Whether a `flush_all` has no time, or one that has passed: servers then flush at once.
fn is_now(head: &[u8]) -> bool {
    let mut tokens = Tokens::new(head);
    let time = tokens.by_ref().nth(1).map_or(&b""[..], |time| tokens.text(time));
    number::exptime(time).is_none_or(|time| time < 0)
}

/// Whether a line that begins like this may be of any length.
fn takes_many_keys(input: &[u8]) -> bool {
    [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|word| input.starts_with(word))
}

fn blank(head: usize) -> Request {
    Request { command: Asked::UNKNOWN, head: head as u32, ..Request::placeholder() }
}

/// A line that is read token by token. `read_*` return `Some` when the outcome is settled early.
pub(super) struct Line<'a> {
    pub(super) tokens: Tokens<'a>,
    pub(super) keys: &'a mut Vec<Span>,
    pub(super) request: Request,
}

impl Line<'_> {
    fn read(&mut self) -> Option<Parsed<Request>> {
        let Some(word) = self.tokens.next() else { return self.refuse(Refusal::Unknown) };
        let command = commands::lookup(self.tokens.text(word));
        let Some(command) = command else { return self.unknown(word) };
        self.request.command = command;
        let row = &commands::TABLE[usize::from(command)];
        (self.request.class, self.request.family) = (row.class, row.family);
        match commands::shape(command) {
            Shape::Keys => self.read_keys(),
            Shape::ExptimeKeys => self.read_exptime_keys(),
            Shape::Store => self.read_store(5, false),
            Shape::StoreCas => self.read_store(6, true),
            Shape::Delete => self.read_delete(),
            Shape::Delta => self.read_delta(),
            Shape::Touch => self.read_touch(),
            Shape::Flush => self.read_flush(),
            Shape::Verbosity => self.read_verbosity(),
            Shape::Meta(verb) => self.read_meta(verb),
            Shape::Stats => self.read_stats(),
            Shape::Admin => self.read_admin(),
            Shape::Bare => None,
        }
    }

    /// Closes a browser that was sent here by a hostile page, before the lines of its body are
    /// read.
    #[cold]
    fn unknown(&mut self, word: Span) -> Option<Parsed<Request>> {
        let last = self.tokens.by_ref().last().unwrap_or(word);
        if self.tokens.text(last).starts_with(b"HTTP/") {
            return Some(Parsed::Malformed(NOT_HTTP));
        }
        self.refuse(Refusal::Unknown)
    }

    fn read_keys(&mut self) -> Option<Parsed<Request>> {
        while let Some(token) = self.tokens.next() {
            if !self.is_key(token) {
                return self.refuse(Refusal::Bad(BAD_LINE));
            }
            self.keys.push(token);
        }
        if self.keys.is_empty() { self.refuse(Refusal::Unknown) } else { None }
    }

    fn read_exptime_keys(&mut self) -> Option<Parsed<Request>> {
        let Some(exptime) = self.tokens.next() else { return self.refuse(Refusal::Unknown) };
        if number::exptime(self.tokens.text(exptime)).is_none() {
            return self.refuse(Refusal::Bad(BAD_EXPTIME));
        }
        self.request.arguments = exptime;
        let refused = self.read_keys();
        if self.request.class == Class::Refuse(Refusal::Unknown) {
            // memcached does the same: without a key nothing is found.
            self.request.class = Class::Local(Local::Own);
        }
        refused
    }

    /// Reads a command of `count` tokens, including its name; the fifth is the length of the data.
    fn read_store(&mut self, count: usize, cas: bool) -> Option<Parsed<Request>> {
        let tokens = self.collect::<7>();
        let given = tokens.iter().flatten().count();
        if given + 1 < count || given > count {
            return self.refuse(Refusal::Unknown);
        }
        let text = |at: usize| tokens[at].map_or(&b""[..], |token| self.tokens.text(token));
        let Some(body) = number::length(text(3)) else {
            // Without its length, the data block cannot be distinguished from commands.
            return Some(Parsed::Malformed(BAD_LINE));
        };
        self.request.body = body;
        self.request.trailer = b"\r\n";
        self.request.stores = true;
        let good = tokens[0].is_some_and(|key| self.is_key(key))
            && number::flags(text(1)).is_some()
            && number::exptime(text(2)).is_some()
            && (!cas || number::unsigned(text(4)).is_some());
        // Any other last token is ignored, as in memcached, whose own proxy writes `noreplY`.
        self.request.quiet = silent(given == count && text(count - 1) == b"noreply");
        if !good {
            return self.refuse(Refusal::Bad(BAD_LINE));
        }
        self.keys.extend(tokens[0]);
        let is_plain = (1..count - 1).all(|at| number::is_plain(text(at)));
        if is_plain && given + 1 == count {
            self.note_plain(&tokens);
        }
        None
    }

    fn read_delete(&mut self) -> Option<Parsed<Request>> {
        let tokens = self.collect::<4>();
        if tokens[0].is_none() || tokens[3].is_some() {
            return self.refuse(Refusal::Unknown);
        }
        self.request.quiet = silent(self.ends_with_noreply(&tokens[1..]));
        let text = |at: usize| tokens[at].map(|token| self.tokens.text(token));
        match (text(1), text(2)) {
            (None | Some(b"0" | b"noreply"), None) | (Some(b"0"), Some(b"noreply")) => {
                if tokens[1].is_none() {
                    self.note_plain(&tokens);
                }
                self.one_key(tokens[0])
            }
            _ => self.refuse(Refusal::Bad(BAD_DELETE)),
        }
    }

    fn read_delta(&mut self) -> Option<Parsed<Request>> {
        self.read_key_number(|text| number::unsigned(text).is_some(), BAD_DELTA)
    }

    fn read_touch(&mut self) -> Option<Parsed<Request>> {
        self.read_key_number(|text| number::exptime(text).is_some(), BAD_EXPTIME)
    }

    /// Reads `key number [noreply]`.
    fn read_key_number(
        &mut self,
        is_number: fn(&[u8]) -> bool,
        bad: &'static str,
    ) -> Option<Parsed<Request>> {
        let tokens = self.collect::<4>();
        if tokens[1].is_none() || tokens[3].is_some() {
            return self.refuse(Refusal::Unknown);
        }
        let text = |at: usize| tokens[at].map(|token| self.tokens.text(token));
        let number = text(1).is_some_and(is_number);
        self.request.quiet = silent(text(2) == Some(b"noreply"));
        if !number {
            return self.refuse(Refusal::Bad(bad));
        }
        if tokens[2].is_none() && text(1).is_some_and(number::is_plain) {
            self.note_plain(&tokens);
        }
        self.one_key(tokens[0])
    }

    fn read_flush(&mut self) -> Option<Parsed<Request>> {
        let tokens = self.collect::<3>();
        if tokens[2].is_some() {
            return self.refuse(Refusal::Unknown);
        }
        self.request.quiet = silent(self.ends_with_noreply(&tokens));
        let text = |at: usize| tokens[at].map(|token| self.tokens.text(token));
        // A time before now means now.
        let is_time = |text: &[u8]| number::exptime(text).is_some();
        match (text(0), text(1)) {
            (None | Some(b"noreply"), None) => None,
            (Some(time), _) if is_time(time) && self.tokens.are_clean() => None,
            (Some(time), _) if is_time(time) => self.refuse(Refusal::Bad(BAD_LINE)),
            _ => self.refuse(Refusal::Bad(BAD_EXPTIME)),
        }
    }

    fn read_verbosity(&mut self) -> Option<Parsed<Request>> {
        let tokens = self.collect::<3>();
        if tokens[0].is_none() || tokens[2].is_some() {
            return self.refuse(Refusal::Unknown);
        }
        self.request.quiet = silent(self.ends_with_noreply(&tokens));
        let level = tokens[0].map_or(&b""[..], |token| self.tokens.text(token));
        match scan::decimal(level, u64::from(u32::MAX)) {
            Some(_) => None,
            None => self.refuse(Refusal::Bad(BAD_LINE)),
        }
    }

    /// Reads `stats`. Servers ignore further arguments, even `noreply`.
    fn read_stats(&mut self) -> Option<Parsed<Request>> {
        let tokens = self.collect::<4>();
        self.tokens.by_ref().for_each(drop);
        let text = |at: usize| tokens[at].map_or(&b""[..], |token| self.tokens.text(token));
        let is_number = |text: &[u8]| scan::decimal(text, u64::from(u32::MAX)).is_some();
        let row = stats_row(text(0), text(1));
        if let Some(row) = row {
            self.request.command = row;
            self.request.class = commands::TABLE[usize::from(row)].class;
        }
        if !self.tokens.are_clean() {
            return self.refuse(Refusal::Unknown);
        }
        match (text(0), row) {
            (b"proxy", _) => {
                self.request.class = Class::Local(Local::Stats);
                None
            }
            (_, Some(commands::STATS_DETAIL)) if !is_switch(text(1)) => {
                self.refuse(Refusal::Bad(BAD_DETAIL))
            }
            (_, Some(commands::CACHEDUMP)) if tokens[2].is_none() => {
                self.refuse(Refusal::Bad(BAD_STATS))
            }
            (_, Some(commands::CACHEDUMP)) if !is_number(text(1)) || !is_number(text(2)) => {
                self.refuse(Refusal::Bad(BAD_LINE))
            }
            (_, Some(_)) | (b"", None) => None,
            (word, None) if is_list(word) => None,
            _ => self.refuse(Refusal::Unknown),
        }
    }

    /// Reads an administrative command. Some of these accept `noreply`. For others it is an
    /// argument that makes them an error, and so it is here: a server that accepted it would send
    /// no answer.
    fn read_admin(&mut self) -> Option<Parsed<Request>> {
        let tokens = self.collect::<{ ADMIN_MAX + 1 }>();
        let count = tokens.iter().flatten().count();
        let word = tokens[0].map(|token| self.tokens.text(token));
        let noreply = self.ends_with_noreply(&tokens);
        let (counts, hears_noreply) = match (self.request.command, word) {
            (commands::CACHE_MEMLIMIT, _) => (1..=1, true),
            (commands::SLABS, Some(b"automove")) => (2..=ADMIN_MAX, true),
            (commands::SLABS, _) => (3..=3, false),
            (commands::LRU_CRAWLER, Some(b"metadump" | b"mgdump")) => {
                return self.refuse(Refusal::ByName(commands::STREAM));
            }
            (commands::LRU_CRAWLER, Some(b"enable" | b"disable")) => (1..=1, false),
            (commands::LRU_CRAWLER, Some(b"crawl" | b"tocrawl" | b"sleep")) => (2..=2, false),
            (commands::LRU_CRAWLER, _) => return self.refuse(Refusal::Unknown),
            (commands::DEBUGTIME, _) => (1..=1, false),
            _ => (1..=ADMIN_MAX, true),
        };
        let count = count - usize::from(noreply);
        let is_strange = noreply && !hears_noreply || !self.tokens.are_clean();
        if is_strange || count > *counts.end() {
            return self.refuse(Refusal::Unknown);
        }
        self.request.quiet = silent(noreply);
        if count < *counts.start() {
            return self.refuse(Refusal::Unknown);
        }
        match self.request.head as usize {
            ..=ADMIN_LINE_MAX => None,
            _ => self.refuse(Refusal::Bad(LINE_TOO_LONG)),
        }
    }

    fn one_key(&mut self, key: Option<Span>) -> Option<Parsed<Request>> {
        if !key.is_some_and(|key| self.is_key(key)) {
            return self.refuse(Refusal::Bad(BAD_LINE));
        }
        self.keys.extend(key);
        None
    }

    /// Notes that servers are sent the line as it is, if single spaces are between its words.
    /// `tokens` are all words behind the command, and all of them are sent.
    fn note_plain(&mut self, tokens: &[Option<Span>]) {
        let row = &commands::TABLE[usize::from(self.request.command)];
        let mut end = row.name.len() as u32;
        for token in tokens.iter().flatten() {
            if token.start != end + 1 {
                return;
            }
            end = token.end;
        }
        let line_end = self.request.head - end;
        self.request.plain =
            self.tokens.line_len() == end as usize && line_end as usize == b"\r\n".len();
    }

    /// Whether the last of these tokens is `noreply`. It counts for a refused request too: a client
    /// that wants no answer would take one for the answer to its next request.
    fn ends_with_noreply(&self, tokens: &[Option<Span>]) -> bool {
        tokens.iter().flatten().next_back().map(|token| self.tokens.text(*token))
            == Some(&b"noreply"[..])
    }

    /// Whether this is a key: 1 to 250 bytes without space, NUL, CR and LF. memcached takes a CR,
    /// and finds the end of the line elsewhere than others do; at a NUL its key ends. One of them
    /// anywhere before in the line refuses the key as well. Numbers are checked where they are
    /// read.
    pub(super) fn is_key(&self, token: Span) -> bool {
        self.tokens.are_whole() && self.tokens.text(token).len() <= KEY_MAX
    }

    /// Returns the next `N` tokens. Only a line with too many tokens fills the last place.
    fn collect<const N: usize>(&mut self) -> [Option<Span>; N] {
        std::array::from_fn(|_| self.tokens.next())
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) -> Option<Parsed<Request>> {
        self.keys.clear();
        (self.request.arguments, self.request.plain) = (Span::default(), false);
        self.request.class = Class::Refuse(refusal);
        None
    }
}

fn silent(noreply: bool) -> Quiet {
    if noreply { Quiet::Silent } else { Quiet::Loud }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a line is taken for plain, and what servers are sent of it.
    fn sent(line: &str) -> (bool, String) {
        let mut keys = Vec::new();
        let parsed = parse(line.as_bytes(), &mut Resume::default(), &mut keys);
        let Parsed::Complete(request) = parsed else { panic!("{line:?}: {parsed:?}") };
        assert!(!matches!(request.class, Class::Refuse(_)), "{line:?}");
        let is_plain = request.plain;
        let written = |request: &Request| {
            let mut out = Vec::new();
            write_head(request, line.as_bytes(), &keys, &mut out);
            String::from_utf8(out).expect("it is text")
        };
        let out = written(&request);
        let word_by_word = Request { plain: false, ..request };
        assert_eq!(out, written(&word_by_word), "{line:?}");
        (is_plain, out)
    }

    #[test]
    fn a_line_in_the_form_that_servers_are_sent_is_sent_as_it_is() {
        for line in ["set k 0 0 1", "cas k 7 010 1 999999999", "incr k 1", "touch k 50", "delete k"]
        {
            let plain = format!("{line}\r\n");
            assert_eq!(sent(&plain), (true, plain.clone()));
            let words: Vec<&str> = line.split(' ').collect();
            let mut others = vec![
                format!("{line}\n"),
                format!(" {line}\r\n"),
                format!("{line} \r\n"),
                format!("{line} \n"),
                format!("{line} noreply\r\n"),
            ];
            for at in 1..words.len() {
                let (before, behind) = (words[..at].join(" "), words[at..].join(" "));
                others.push(format!("{before}  {behind}\r\n"));
                if at > 1 {
                    let behind = words[at + 1..].iter().map(|word| format!(" {word}"));
                    let behind: String = behind.collect();
                    others.push(format!("{before} +{}{behind}\r\n", words[at]));
                    others.push(format!("{before} 000000000{}{behind}\r\n", words[at]));
                }
            }
            for other in others {
                let (is_plain, out) = sent(&other);
                assert!(!is_plain && out != other, "{other:?}");
            }
        }
        assert_eq!(sent("delete k 0\r\n"), (false, "delete k\r\n".into()));
    }
}
