//! Executes one request against the store and writes the reply in memcached's format.

use cache::{Count, Counted, Item, Mode, NewItem, Outcome, Store};
use proto::memcached::Text;
use proto::memcached::meta::{Line, base64};
use proto::memcached::number;
use proto::scan::Tokens;
use proto::{Answer, Asked, Class, Protocol, Quiet, Request, Span};

use super::Options;
use super::counters::Counters;
use super::reply::{NON_NUMERIC, OUT_OF_MEMORY, TOO_LARGE, VERSION, push_number, refused};
use super::session::Session;

/// The store, with the state needed beside it.
pub struct Executor {
    pub(super) store: Store,
    pub(super) counters: Counters,
    /// Places of the keys of the request being executed.
    pub(super) keys: Vec<Span>,
    /// The decoded form of a key that a request carries as base64. Empty between requests.
    pub(super) decoded: Vec<u8>,
    /// Bytes that clients' unfinished requests hold.
    pub(super) held: usize,
    /// The verb of each row of the protocol's table.
    verbs: Vec<Verb>,
    pub(super) options: Options,
    /// The second since 1970 at which the process started.
    pub(super) started: u64,
}

/// The operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Fetch {
        cas: bool,
        touch: bool,
    },
    Store(Mode),
    Cas,
    Delete,
    Incr,
    Decr,
    Touch,
    Meta,
    /// The meta command `mn`.
    Noop,
    FlushAll,
    Version,
    Verbosity,
    Stats,
    Quit,
    Unknown,
}

/// The progress of a request.
pub(super) enum Progress {
    Done,
    /// The output is full: the client must read before more values are added.
    Full,
    Quit,
}

impl Executor {
    pub(super) fn new(options: &Options, second: u64) -> Executor {
        Executor {
            store: Store::new(options.memory_max, options.item_size_max),
            counters: Counters::default(),
            keys: Vec::new(),
            decoded: Vec::new(),
            held: 0,
            verbs: Text.commands().iter().map(|command| verb(command.name)).collect(),
            options: *options,
            started: second,
        }
    }

    /// `frame` is the whole request; `keys` are its keys.
    pub(super) fn execute(
        &mut self,
        session: &mut Session,
        request: &Request,
        frame: &[u8],
        now: u64,
    ) -> Progress {
        let verb = self.verb(request);
        let is_refused = matches!(request.class, Class::Refuse(_));
        if let Verb::Fetch { cas, touch } = verb
            && !is_refused
        {
            let exptime = if touch { Some(time(request.arguments.of(frame))) } else { None };
            return self.fetch(session, frame, cas, exptime, now);
        }
        if verb == Verb::Meta
            && !is_refused
            && let Some(line) = Line::read(&frame[..request.head as usize])
        {
            let value = frame[request.head as usize..].strip_suffix(request.trailer);
            self.meta(&line, value, &mut session.out, now);
            return Progress::Done;
        }
        let before = session.out.len();
        let progress = self.speak(verb, request, frame, &mut session.out, now);
        if request.quiet == Quiet::Silent {
            session.out.truncate(before);
        }
        progress
    }

    /// Returns the operation of a request; it may be of no known command.
    fn verb(&self, request: &Request) -> Verb {
        self.verbs.get(usize::from(request.command)).copied().unwrap_or(Verb::Unknown)
    }

    /// Executes every command but the reads. Its reply is one line, or several for `stats`.
    fn speak(
        &mut self,
        verb: Verb,
        request: &Request,
        frame: &[u8],
        out: &mut Vec<u8>,
        now: u64,
    ) -> Progress {
        let line = &frame[..request.head as usize];
        let answer: &[u8] = match (request.class, verb) {
            (Class::Refuse(refusal), _) => {
                out.extend_from_slice(&refused(refusal));
                b""
            }
            (_, Verb::Meta | Verb::Unknown) => b"ERROR\r\n",
            (_, Verb::Store(mode)) => self.write(mode, None, request, frame, now),
            (_, Verb::Cas) => self.compare_and_swap(request, frame, now),
            (_, Verb::Delete) => self.delete(line, now),
            (_, Verb::Incr | Verb::Decr) => self.count(verb == Verb::Incr, line, out, now),
            (_, Verb::Touch) => self.touch(line, now),
            (_, Verb::FlushAll) => self.flush_all(line, now),
            (_, Verb::Version) => {
                Text.answer(&Asked::no_request(), &Answer::Version(VERSION), out);
                b""
            }
            (_, Verb::Noop) => b"MN\r\n",
            (_, Verb::Verbosity) => b"OK\r\n",
            (_, Verb::Stats) => {
                self.tell(words(line)[1], out, now);
                b""
            }
            (_, Verb::Quit) => return Progress::Quit,
            (_, Verb::Fetch { .. }) => unreachable!("reads are executed by `fetch`"),
        };
        out.extend_from_slice(answer);
        Progress::Done
    }

    /// Answers the keys one by one until the output is full; the next call continues from there.
    fn fetch(
        &mut self,
        session: &mut Session,
        frame: &[u8],
        cas: bool,
        exptime: Option<i64>,
        now: u64,
    ) -> Progress {
        for span in &self.keys[session.answered..] {
            if session.out.len() - session.sent > FETCH_OUT_MAX {
                return Progress::Full;
            }
            session.answered += 1;
            let key = span.of(frame);
            let item = match exptime {
                None => self.store.get(key, now),
                Some(exptime) => self.store.get_and_touch(key, exptime, now),
            };
            self.counters.count_fetch(item.is_some(), exptime.is_some());
            if let Some(item) = item {
                write_value(key, &item, cas, &mut session.out);
            }
        }
        session.answered = 0;
        session.out.extend_from_slice(b"END\r\n");
        Progress::Done
    }

    fn write(
        &mut self,
        mode: Mode,
        cas: Option<u64>,
        request: &Request,
        frame: &[u8],
        now: u64,
    ) -> &'static [u8] {
        let (line, data) = frame.split_at(request.head as usize);
        let Some(value) = data.strip_suffix(request.trailer) else {
            return b"CLIENT_ERROR bad data chunk\r\n";
        };
        self.counters.cmd_set += 1;
        let [_, key, flags, exptime, ..] = words(line);
        let flags = number::flags(flags).unwrap_or_default();
        let exptime = time(exptime);
        let item = NewItem { key, flags, exptime, value, cas, ..NewItem::default() };
        let outcome = self.store.store(mode, &item, now);
        if cas.is_some() {
            self.counters.count_cas(outcome);
        }
        match outcome {
            Outcome::Stored => b"STORED\r\n",
            Outcome::NotStored => b"NOT_STORED\r\n",
            Outcome::Exists => b"EXISTS\r\n",
            Outcome::NotFound => b"NOT_FOUND\r\n",
            Outcome::TooLarge => TOO_LARGE,
            Outcome::NoMemory => OUT_OF_MEMORY,
        }
    }

    fn compare_and_swap(&mut self, request: &Request, frame: &[u8], now: u64) -> &'static [u8] {
        let cas = words(&frame[..request.head as usize])[5];
        let cas = number::unsigned(cas).unwrap_or_default();
        self.write(Mode::Set, Some(cas), request, frame, now)
    }

    fn delete(&mut self, line: &[u8], now: u64) -> &'static [u8] {
        let deleted = self.store.delete(words(line)[1], now);
        let counters = &mut self.counters;
        *if deleted { &mut counters.delete_hits } else { &mut counters.delete_misses } += 1;
        if deleted { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" }
    }

    fn count(&mut self, up: bool, line: &[u8], out: &mut Vec<u8>, now: u64) -> &'static [u8] {
        let [_, key, delta, ..] = words(line);
        let delta = number::unsigned(delta).unwrap_or_default();
        let count = Count { up, delta, cas: 0, new_cas: None };
        let counted = self.store.count(key, &count, now);
        self.counters.count_count(up, counted);
        match counted {
            Counted::Now(number) => {
                push_number(number, out);
                b"\r\n"
            }
            Counted::NotFound | Counted::Exists => b"NOT_FOUND\r\n",
            Counted::NonNumeric => NON_NUMERIC,
            Counted::NoMemory => b"SERVER_ERROR out of memory\r\n",
        }
    }

    fn touch(&mut self, line: &[u8], now: u64) -> &'static [u8] {
        let [_, key, exptime, ..] = words(line);
        let touched = self.store.touch(key, time(exptime), now);
        self.counters.count_touch(touched);
        if touched { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" }
    }

    fn flush_all(&mut self, line: &[u8], now: u64) -> &'static [u8] {
        self.counters.cmd_flush += 1;
        self.store.flush_all(time(words(line)[1]), now);
        b"OK\r\n"
    }

    /// Returns whether the item that a storage command announces is too large to be ever stored.
    pub(super) fn is_too_large(&self, request: &Request) -> bool {
        request.body as usize > self.options.item_size_max
    }

    /// A refused `set` removes the old value too, so that nobody reads a replaced one; an `ms` does
    /// so in every mode.
    pub(super) fn drop_stale(&mut self, request: &Request, head: &[u8], now: u64) {
        match self.verb(request) {
            Verb::Store(Mode::Set) => {
                self.store.delete(words(head)[1], now);
            }
            Verb::Meta => {
                let line = Line::read(&head[..request.head as usize]);
                let mut decoded = Vec::new();
                if let Some(line) = line {
                    self.store.delete(key_of(&line, &mut decoded), now);
                }
            }
            _ => {}
        }
    }
}

fn verb(name: &str) -> Verb {
    match name {
        "get" => Verb::Fetch { cas: false, touch: false },
        "gets" => Verb::Fetch { cas: true, touch: false },
        "gat" => Verb::Fetch { cas: false, touch: true },
        "gats" => Verb::Fetch { cas: true, touch: true },
        "set" => Verb::Store(Mode::Set),
        "add" => Verb::Store(Mode::Add),
        "replace" => Verb::Store(Mode::Replace),
        "append" => Verb::Store(Mode::Append),
        "prepend" => Verb::Store(Mode::Prepend),
        "cas" => Verb::Cas,
        "delete" => Verb::Delete,
        "incr" => Verb::Incr,
        "decr" => Verb::Decr,
        "touch" => Verb::Touch,
        "mg" | "ms" | "md" | "ma" | "me" => Verb::Meta,
        "mn" => Verb::Noop,
        "flush_all" => Verb::FlushAll,
        "version" => Verb::Version,
        "verbosity" => Verb::Verbosity,
        "stats" => Verb::Stats,
        "quit" => Verb::Quit,
        _ => Verb::Unknown,
    }
}

/// Returns the words of a request's line; missing words are empty.
fn words(line: &[u8]) -> [&[u8]; 6] {
    let mut tokens = Tokens::new(line);
    std::array::from_fn(|_| tokens.next().map_or(&b""[..], |token| tokens.text(token)))
}

/// Returns the key as the store has it.
pub(super) fn key_of<'a>(line: &Line<'a>, decoded: &'a mut Vec<u8>) -> &'a [u8] {
    if line.flags.has(b'b') { base64::decode(line.key, decoded) } else { line.key }
}

/// Returns a time that the parser has validated; anything else, such as `noreply`, is 0.
fn time(text: &[u8]) -> i64 {
    number::exptime(text).unwrap_or_default().into()
}

/// `VALUE key flags len [cas]`, the value, and a line's end.
fn write_value(key: &[u8], item: &Item<'_>, cas: bool, out: &mut Vec<u8>) {
    out.reserve(key.len() + item.value.len() + VALUE_HEAD_MAX);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_number(u64::from(item.flags), out);
    out.push(b' ');
    push_number(item.value.len() as u64, out);
    if cas {
        out.push(b' ');
        push_number(item.cas, out);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(item.value);
    out.extend_from_slice(b"\r\n");
}

/// Limit on unread replies at which a read of many keys pauses. Continuing parses its line again,
/// so the limit is higher than the one between requests.
const FETCH_OUT_MAX: usize = 4 * 1024 * 1024;
/// Length of a value's head line without its key: two words, three numbers, separators.
const VALUE_HEAD_MAX: usize = 72;
