//! What a client says: an array of bulk strings, or a line (`inline.rs`).
//!
//! ```text
//!   *3\r\n $3\r\nSET\r\n $1\r\nk\r\n $100000\r\n   <the value>   \r\n
//!   └──────────────── head ────────────────────┘    body       trailer
//! ```
//!
//! All of a request is its head, but for a last argument of [`BODY_MIN`] bytes or more that is
//! no key of a command that one server answers: that is a body, and passes unread.
//!
//! Servers of the newest versions do not look at the two bytes that end a length or a string. Here
//! they must be CR LF: whoever writes others and whoever reads them would part the stream
//! differently one day.

use std::borrow::Cow;

use super::commands::{self, Row, id};
use super::refusal::BAD_ARGUMENT;
use super::{inline, keys, scan, split};
use crate::{Class, Extra, Local, Marks, Parsed, Place, Quiet, Refusal, Request, Resume, Span};

/// From this length on a last argument is a body.
const BODY_MIN: usize = 4096;
/// Longest line that says a length.
pub(super) const LINE_MAX: usize = 64 * 1024;
/// Most arguments that a request can have.
const COUNT_MAX: i64 = i32::MAX as i64;
/// Longest argument that servers take unless they are told otherwise.
const BULK_MAX: i64 = 512 * 1024 * 1024;
/// Beside the number of arguments that are to come: the last one has to be there whole.
const WHOLE: u32 = 1 << 31;

const BAD_COUNT: &str = "Protocol error: invalid multibulk length";
const LONG_COUNT: &str = "Protocol error: too big mbulk count string";
const BAD_LENGTH: &str = "Protocol error: invalid bulk length";
const LONG_LENGTH: &str = "Protocol error: too big bulk count string";
/// What stands there instead is added when it is said.
pub(super) const EXPECTED_BULK: &str = "Protocol error: expected '$', got ";
const BAD_END: &str = "Protocol error: expected CR LF";
const NOT_HTTP: &str = "Protocol error: this is no HTTP server";
/// `%` stands for the command.
pub(super) const ARITY: &str = "wrong number of arguments for '%' command";
const BAD_CURSOR: &str = "invalid cursor";

pub(super) fn parse(input: &[u8], resume: &mut Resume, keys: &mut Vec<Span>) -> Parsed<Request> {
    keys.clear();
    let stop = match input.first() {
        None => Stop::More,
        Some(b'*') => match array(input, resume, keys) {
            Ok(request) => return Parsed::Complete(request),
            Err(stop) => stop,
        },
        Some(_) => return inline::parse(input, resume, keys),
    };
    keys.clear();
    match stop {
        Stop::More => Parsed::Incomplete,
        Stop::Never(why) => Parsed::Malformed(why),
    }
}

/// What is said with no word: nothing is answered.
pub(super) fn blank(head: usize) -> Request {
    Request {
        command: id::PING,
        class: Class::Local(Local::Nothing),
        quiet: Quiet::Silent,
        place: Place::Any,
        head: head as u32,
        ..Request::nobody()
    }
}

/// What a server is sent: what the client sent, or what it meant by a line.
pub(super) fn write_head(head: &[u8], out: &mut Vec<u8>) {
    if head.first() == Some(&b'*') {
        out.extend_from_slice(head);
    } else {
        split::push_request(&arguments(head), out);
    }
}

/// The arguments in a request's head, the command's name first. A body is not among them.
pub(super) fn arguments(head: &[u8]) -> Vec<Cow<'_, [u8]>> {
    if head.first() != Some(&b'*') {
        return inline::arguments(head);
    }
    let mut found = Vec::new();
    let Ok(mut walk) = Walk::begin(head) else { return found };
    while walk.left > 0 {
        let Ok(Step::Argument(span)) = walk.step() else { break };
        found.push(Cow::Borrowed(span.of(head)));
    }
    found
}

/// The byte where an argument should have begun.
pub(super) fn offender(head: &[u8]) -> u8 {
    let Ok(mut walk) = Walk::begin(head) else { return 0 };
    while let Ok(Step::Argument(_)) = walk.step() {}
    head.get(walk.at).copied().unwrap_or(0)
}

/// Makes a request that can be routed of one whose command only the operator knows.
pub(super) fn adopt(
    request: &mut Request,
    input: &[u8],
    keys: &mut Vec<Span>,
    extras: &[Extra],
) -> bool {
    let head = &input[..request.head as usize];
    let words = arguments(head);
    let Some(name) = words.first() else { return false };
    let is_it = |extra: &&Extra| name.eq_ignore_ascii_case(extra.name.as_bytes());
    let Some(extra) = extras.iter().find(is_it).filter(|_| commands::lookup(name).is_none()) else {
        return false;
    };
    // Of the rows that every server answers alike.
    request.command = if extra.writes { id::SET } else { id::GET };
    let Some(places) = keys::places_of(extra, words.len()) else {
        request.class = Class::Refuse(Refusal::Bad(TOO_FEW));
        return true;
    };
    let spans = match inline::spans(head) {
        Some(spans) => spans,
        None => spans(head),
    };
    keys.clear();
    keys.extend(places.map(|place| spans[place]));
    request.class = Class::Single { writes: extra.writes };
    request.place = Place::Keys;
    true
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// There is not enough of it.
    More,
    /// It can never become a request.
    Never(&'static str),
}

fn array(input: &[u8], resume: &mut Resume, keys: &mut Vec<Span>) -> Result<Request, Stop> {
    let mut whole = false;
    if resume.left > 0 {
        let mut walk = Walk::resume(input, resume);
        while walk.left > 0 {
            match walk.step() {
                Ok(Step::Argument(_)) => {}
                Ok(Step::Long { .. }) => break,
                Err(stop) => return walk.pause(stop, resume),
            }
        }
        whole = walk.whole;
    }
    let mut walk = Walk::begin(input)?;
    walk.whole = whole;
    while walk.left > 0 {
        match walk.step() {
            Ok(Step::Argument(span)) => keys.push(span),
            Ok(Step::Long { start, len }) => {
                keys.push(Span::new(start, start));
                let request = understand(input, keys, start).map_err(Stop::Never)?;
                if takes_body(&request, keys, start) {
                    return Ok(Request { body: len as u64, trailer: b"\r\n", ..request });
                }
                keys.clear();
                walk = Walk::begin(input)?;
                walk.whole = true;
            }
            Err(stop) => return walk.pause(stop, resume),
        }
    }
    if keys.is_empty() {
        return Ok(blank(walk.at));
    }
    understand(input, keys, walk.at).map_err(Stop::Never)
}

/// Whether the last argument, which begins at `start`, passes unread.
fn takes_body(request: &Request, keys: &[Span], start: usize) -> bool {
    matches!(request.class, Class::Single { .. })
        && !request.keep
        && !matches!(request.command, id::SORT | id::SORT_RO | id::FUNCTION_LIST)
        && keys.last().is_none_or(|key| key.start as usize != start)
}

/// A request's arguments, one after the other.
struct Walk<'a> {
    input: &'a [u8],
    /// Where the next argument begins.
    at: usize,
    /// Arguments to come.
    left: u32,
    /// A long last argument has to be there whole.
    whole: bool,
}

enum Step {
    Argument(Span),
    /// The last one may be a body.
    Long {
        start: usize,
        len: usize,
    },
}

impl<'a> Walk<'a> {
    #[inline(always)]
    fn begin(input: &'a [u8]) -> Result<Walk<'a>, Stop> {
        if let [b'*', digit @ b'0'..=b'9', b'\r', b'\n', ..] = input {
            return Ok(Walk { input, at: 4, left: u32::from(digit - b'0'), whole: false });
        }
        let (count, at) = length(input, 0, &COUNT)?;
        Ok(Walk { input, at, left: count.max(0) as u32, whole: false })
    }

    fn resume(input: &'a [u8], resume: &Resume) -> Walk<'a> {
        let (left, whole) = (resume.left & !WHOLE, resume.left & WHOLE != 0);
        Walk { input, at: resume.scanned, left, whole }
    }

    /// Remembers how far it came, where more input may help.
    fn pause<T>(&self, stop: Stop, resume: &mut Resume) -> Result<T, Stop> {
        let whole = if self.whole { WHOLE } else { 0 };
        *resume = Resume { scanned: self.at, left: self.left | whole };
        Err(stop)
    }

    // Measured: every argument of every request comes through here.
    #[inline(always)]
    fn step(&mut self) -> Result<Step, Stop> {
        let Some((start, end)) = short(self.input, self.at) else { return self.long_step() };
        self.at = end + 2;
        self.left -= 1;
        Ok(Step::Argument(Span::new(start, end)))
    }

    #[inline(never)]
    fn long_step(&mut self) -> Result<Step, Stop> {
        let (len, start) = length(self.input, self.at, &LENGTH)?;
        let len = len as usize;
        if self.left == 1 && len >= BODY_MIN && !self.whole {
            return Ok(Step::Long { start, len });
        }
        match self.input.get(start + len..start + len + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Stop::Never(BAD_END)),
            None => return Err(Stop::More),
        }
        self.at = start + len + 2;
        self.left -= 1;
        Ok(Step::Argument(Span::new(start, start + len)))
    }
}

/// Where the text of a short argument starts and ends that is there whole. Most are: their length is
/// read as one number of eight bytes, `$` first.
#[inline(always)]
fn short(input: &[u8], at: usize) -> Option<(usize, usize)> {
    let eight = u64::from_le_bytes(*input.get(at..)?.first_chunk()?);
    let digit = |nth: u32| usize::from(((eight >> (8 * nth)) as u8).wrapping_sub(b'0'));
    let (len, start) = if eight & 0xffff_00ff == 0x0a0d_0024 {
        (digit(1), at + 4)
    } else if eight & 0xff_ff00_00ff == 0x0a_0d00_0024 && digit(1) != 0 {
        (digit(1) * 10 + digit(2) + NO_DIGIT * usize::from(digit(2) > 9), at + 5)
    } else if eight & 0xffff_0000_00ff == 0x0a0d_0000_0024 && digit(1) != 0 {
        let no_digit = NO_DIGIT * usize::from(digit(2) > 9 || digit(3) > 9);
        (digit(1) * 100 + digit(2) * 10 + digit(3) + no_digit, at + 6)
    } else {
        return None;
    };
    // A first digit that is none makes more of it than any three digits can, or ends it elsewhere.
    let end = start + len;
    (digit(1) <= 9 && len < NO_DIGIT && input.get(end..end + 2)? == b"\r\n").then_some((start, end))
}

/// More than three digits can say.
const NO_DIGIT: usize = 1000;

/// The spans of the arguments of an array.
fn spans(head: &[u8]) -> Vec<Span> {
    let mut found = Vec::new();
    let Ok(mut walk) = Walk::begin(head) else { return found };
    while walk.left > 0 {
        match walk.step() {
            Ok(Step::Argument(span)) => found.push(span),
            Ok(Step::Long { start, .. }) if start < head.len() => walk.whole = true,
            _ => break,
        }
    }
    found
}

/// A line that says a length.
struct Kind {
    first: u8,
    range: std::ops::RangeInclusive<i64>,
    bad: &'static str,
    long: &'static str,
}

const COUNT: Kind =
    Kind { first: b'*', range: i64::MIN..=COUNT_MAX, bad: BAD_COUNT, long: LONG_COUNT };
const LENGTH: Kind = Kind { first: b'$', range: 0..=BULK_MAX, bad: BAD_LENGTH, long: LONG_LENGTH };

/// The length that the line at `at` says, and where the line ends.
fn length(input: &[u8], at: usize, kind: &Kind) -> Result<(i64, usize), Stop> {
    let line = input.get(at..).unwrap_or_default();
    match line.first() {
        None => return Err(Stop::More),
        Some(&first) if first != kind.first => return Err(Stop::Never(EXPECTED_BULK)),
        Some(_) => {}
    }
    let Some(end) = memchr::memchr(b'\r', &line[..line.len().min(LINE_MAX + 1)]) else {
        return Err(if line.len() > LINE_MAX { Stop::Never(kind.long) } else { Stop::More });
    };
    let Some(value) = keys::integer(&line[1..end]).filter(|value| kind.range.contains(value))
    else {
        return Err(Stop::Never(kind.bad));
    };
    match line.get(end + 1) {
        Some(b'\n') => Ok((value, at + end + 2)),
        Some(_) => Err(Stop::Never(BAD_END)),
        None => Err(Stop::More),
    }
}

/// What these arguments of a request mean, whose head is so long. Afterwards `words` has its keys.
/// An error is the reason why nothing after it can be believed.
#[inline(always)]
pub(super) fn understand(
    input: &[u8],
    words: &mut Vec<Span>,
    head: usize,
) -> Result<Request, &'static str> {
    let name = words[0];
    let found = commands::lookup_at(input, name.start as usize, name.end as usize);
    // Nearly all that is asked has its key behind its name.
    if let Some(command) = found
        && let Plan { first: true, least, most, request } = &PLANS[usize::from(command)]
        && (*least..=*most).contains(&words.len())
    {
        words[0] = words[1];
        words.truncate(1);
        return Ok(Request { head: head as u32, ..*request });
    }
    understand_other(found, input, words, head)
}

/// What can be known of a request by its command alone.
struct Plan {
    /// The first argument is its only key, and one server answers.
    first: bool,
    /// How many arguments it may have.
    least: usize,
    most: usize,
    request: Request,
}

static PLANS: [Plan; commands::COUNT] = {
    let mut plans = [const { plan(0) }; commands::COUNT];
    let mut at = 0;
    while at < plans.len() {
        plans[at] = plan(at as u16);
        at += 1;
    }
    plans
};

const fn plan(command: u16) -> Plan {
    let Row { class, place, arity, .. } = *commands::row(command);
    let is_single = matches!(class, Class::Single { .. });
    let least = arity.unsigned_abs() as usize;
    let request = Request {
        command,
        class,
        quiet: Quiet::Loud,
        marks: Marks::None,
        keep: false,
        repeat: is_single || matches!(class, Class::Split { .. }),
        place,
        head: 0,
        body: 0,
        trailer: b"",
        arguments: Span { start: 0, end: 0 },
    };
    let most = if arity < 0 { usize::MAX } else { least };
    Plan { first: is_single && keys::is_first(command), least, most, request }
}

#[inline(never)]
fn understand_other(
    found: Option<u16>,
    input: &[u8],
    words: &mut Vec<Span>,
    head: usize,
) -> Result<Request, &'static str> {
    let unknown = Request { head: head as u32, command: 0, ..Request::nobody() };
    let Some(command) = found else {
        let name = words[0].of(input);
        words.clear();
        return if is_http(name) { Err(NOT_HTTP) } else { Ok(unknown) };
    };
    let mut row = command;
    if commands::row(command).container && words.len() > 1 {
        let Some(sub) = commands::lookup_sub(command, words[1].of(input)) else {
            words.clear();
            return Ok(Request { command, ..unknown });
        };
        row = sub;
    }
    let request = Request { head: head as u32, ..PLANS[usize::from(row)].request };
    Ok(understand_row(request, input, words))
}

/// The rest, once its row is found.
fn understand_row(mut request: Request, input: &[u8], words: &mut Vec<Span>) -> Request {
    let row = commands::row(request.command);
    if !row.takes(words.len()) {
        words.clear();
        request.class = Class::Refuse(Refusal::Bad(ARITY));
        return request;
    }
    let command = request.command;
    match row.class {
        Class::Single { .. } if command == id::SCAN => {
            request.keep = true;
            match scan::split(words[1].of(input)) {
                Some((_, place)) => request.place = Place::Nth(place),
                None => request.class = Class::Refuse(Refusal::Bad(BAD_CURSOR)),
            }
            words.clear();
        }
        Class::Single { .. } if command == id::FUNCTION_LIST => {
            let meant: Vec<_> = words.iter().map(|word| Cow::Borrowed(word.of(input))).collect();
            if stray(&meant).is_some() {
                request.class = Class::Refuse(Refusal::Bad(BAD_ARGUMENT));
            }
            words.clear();
        }
        Class::Single { .. } | Class::Split { .. } => match keys::keep(command, input, words) {
            Ok(place) if request.place == Place::Keys => request.place = place,
            Ok(_) => {}
            Err(refusal) => {
                words.clear();
                request.class = Class::Refuse(refusal);
            }
        },
        _ => {
            // Nothing of the connection has to be known for it, and it is asked often.
            if command == id::PING && words.len() <= 2 {
                request.class = Class::Local(Local::Nothing);
            }
            words.clear();
        }
    }
    request
}

/// What `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]` does not know. Valkey 9.1 repeats it as it
/// is, line ends and all, and whoever shares the link would take them for an answer.
pub(super) fn stray<'a>(arguments: &'a [Cow<'_, [u8]>]) -> Option<&'a [u8]> {
    let (mut named, mut coded) = (false, false);
    let mut rest = arguments.get(2..).unwrap_or_default().iter();
    while let Some(word) = rest.next() {
        if !named && word.eq_ignore_ascii_case(b"LIBRARYNAME") {
            named = true;
            rest.next();
        } else if !coded && word.eq_ignore_ascii_case(b"WITHCODE") {
            coded = true;
        } else {
            return Some(word);
        }
    }
    None
}

/// A browser that was sent here by a hostile page must not get as far as the lines of its body.
#[cold]
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

const TOO_FEW: &str = "too few arguments for the keys that `commands:` names";

#[cfg(test)]
mod tests;
