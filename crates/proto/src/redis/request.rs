//! A client's request, an array of strings or a line: its end, and its class.
//!
//! ```text
//!   *3\r\n $3\r\nSET\r\n $1\r\nk\r\n $100000\r\n   <the value>   \r\n
//!   └──────────────── head ────────────────────┘    body       trailer
//! ```
//!
//! All of a request is its head, with one exception: in a command that one server answers, a last
//! argument of `array::BODY_MIN` bytes or more that is no key is a body, and passes unread. It
//! stays in the head if what is before it is long.

use std::borrow::Cow;

use super::array::{self, BODY_HEAD_MAX, Step, Stop, Walk, short};
use super::commands::{self, Effort, Row, id};
use super::keys::ARITY;
use super::refusal::{BAD_ARGUMENT, stray};
use super::{inline, keys, pubsub, scan};
use crate::{
    Asked, Class, Extra, Local, MarkUse, Parsed, Place, Quiet, Reach, Refusal, Request, Resume,
    Span, Work,
};

/// No answer, as in Redis.
const NOT_HTTP: &str = "";

pub(super) fn parse(input: &[u8], resume: &mut Resume, keys: &mut Vec<Span>) -> Parsed<Request> {
    keys.clear();
    if resume.left == 0
        && let Some((plan, head)) = common(input, keys)
    {
        return Parsed::Complete(Request { head: head as u32, ..plan.request });
    }
    let outcome = match input.first() {
        None => Err(Stop::More),
        Some(b'*') => read_array(input, resume, keys),
        Some(_) => read_line(input, resume, keys),
    };
    match outcome {
        Ok(request) => Parsed::Complete(request),
        Err(stop) => {
            keys.clear();
            match stop {
                Stop::More => Parsed::Incomplete,
                Stop::Never(why) => Parsed::Malformed(why),
            }
        }
    }
}

/// Reads the common case: a request that is short and complete, with its key after its name or with
/// no key. Returns its plan and its length. `read_array` handles everything else.
#[inline(always)]
fn common(input: &[u8], keys: &mut Vec<Span>) -> Option<(&'static Plan, usize)> {
    let Some([b'*', count @ b'1'..=b'9', b'\r', b'\n']) = input.first_chunk() else { return None };
    let count = usize::from(count - b'0');
    let (start, end) = short(input, 4)?;
    let plan = &PLANS[usize::from(commands::lookup_at(input, start, end)?)];
    let mut at = end + 2;
    if count < plan.least || count > plan.most || plan.keys == Keys::Many {
        return None;
    }
    let mut key = Span::default();
    if count > 1 {
        let (start, end) = short(input, at)?;
        key = Span::new(start, end);
        at = end + 2;
        for _ in 2..count {
            at = short(input, at)?.1 + 2;
        }
    }
    if plan.keys == Keys::First {
        keys.push(key);
    }
    Some((plan, at))
}

/// Makes a request without words, which gets no answer.
fn blank(head: usize) -> Request {
    Request {
        command: id::PING,
        class: Class::Local(Local::Nothing),
        quiet: Quiet::Silent,
        place: Place::Any,
        head: head as u32,
        ..Request::placeholder()
    }
}

/// Makes a routable request from one whose command only the operator knows.
pub(super) fn recognize(
    request: &mut Request,
    input: &[u8],
    keys: &mut Vec<Span>,
    extras: &[Extra],
) -> bool {
    let head = &input[..request.head as usize];
    let spans = inline::spans(head).unwrap_or_else(|| array::spans(head, usize::MAX));
    let mut scratch = Vec::new();
    let Some(name) = spans.first() else { return false };
    let name = inline::argument(head, *name, &mut scratch);
    let is_it = |extra: &&Extra| name.eq_ignore_ascii_case(extra.name.as_bytes());
    let Some(extra) = extras.iter().find(is_it).filter(|_| commands::lookup(name).is_none()) else {
        return false;
    };
    // These commands stand for it: every server answers them in the same form.
    request.command = if extra.writes { id::SET } else { id::GET };
    request.family = commands::FAMILY_OTHER;
    let Some(places) = keys::places_of(extra, spans.len()) else {
        request.class = Class::Refuse(Refusal::Bad(TOO_FEW));
        return true;
    };
    keys.clear();
    keys.extend(places.map(|place| spans[place]));
    request.class = Class::Single { writes: extra.writes };
    request.work = Work::Varies;
    request.place = Place::Keys;
    true
}

fn read_array(input: &[u8], resume: &mut Resume, keys: &mut Vec<Span>) -> Result<Request, Stop> {
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
    loop {
        walk.take_short(keys);
        if walk.left == 0 {
            break;
        }
        match walk.step() {
            Ok(Step::Argument(span)) => keys.push(span),
            Ok(Step::Long { start, len }) => {
                keys.push(Span::new(start, start));
                let request = understand(input, keys, start).map_err(Stop::Never)?;
                if takes_body(&request, keys, start) {
                    resume.longest = walk.longest;
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
    resume.longest = walk.longest;
    understand(input, keys, walk.at).map_err(Stop::Never)
}

fn read_line(input: &[u8], resume: &mut Resume, keys: &mut Vec<Span>) -> Result<Request, Stop> {
    let line = inline::read(input, resume, keys)?;
    if keys.is_empty() {
        return Ok(blank(line.len()));
    }
    let understood = if inline::has_quotes(line) {
        understand_quoted(line, keys)
    } else {
        understand(line, keys, line.len())
    };
    understood.map_err(Stop::Never)
}

/// Finds the keys of a line with quotes: in the unquoted text, returned as positions in the line.
fn understand_quoted(line: &[u8], keys: &mut Vec<Span>) -> Result<Request, &'static str> {
    let words = std::mem::take(keys);
    let (mut text, mut meant) = (Vec::with_capacity(line.len()), Vec::new());
    for word in &words {
        let start = text.len();
        inline::unquote(word.of(line), &mut text);
        meant.push(Span::new(start, text.len()));
        // Keeps two arguments from beginning at the same position.
        text.push(b'\n');
    }
    let mut found = meant.clone();
    let request = understand(&text, &mut found, line.len())?;
    let request = Request { arguments: Span::default(), ..request };
    // The positions are ordered, so this is a binary search: a line may have thousands of them.
    let place = |key: &Span| meant.partition_point(|word| word.start < key.start);
    keys.extend(found.iter().map(|key| words[place(key)]));
    Ok(request)
}

/// Whether the last argument, which begins at `start`, passes unread.
fn takes_body(request: &Request, keys: &[Span], start: usize) -> bool {
    matches!(request.class, Class::Single { .. })
        && !request.keep
        && start <= BODY_HEAD_MAX
        && !matches!(request.command, id::SORT | id::SORT_RO | id::FUNCTION_LIST)
        && keys.last().is_none_or(|key| key.start as usize != start)
}

/// The facts about a request that follow from its command alone.
struct Plan {
    /// The number of arguments that it may have.
    least: usize,
    most: usize,
    keys: Keys,
    request: Request,
}

/// The kind of keys that a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    /// No keys, and the proxy answers.
    None,
    /// Only the first argument, and one server answers.
    First,
    /// The arguments decide, or the command has subcommands.
    Many,
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
    let Row { class, place, arity, effort, container, .. } = *commands::row(command);
    let is_single = matches!(class, Class::Single { .. });
    // A ping needs no state of the connection, and it is frequent.
    let class = if command == id::PING { Class::Local(Local::Nothing) } else { class };
    let keys = match class {
        Class::Local(Local::Subscribe) => Keys::Many,
        Class::Local(_) if !container => Keys::None,
        Class::Single { .. } if command != id::MOVE && keys::is_first(command) => Keys::First,
        _ => Keys::Many,
    };
    let request = Request {
        command,
        class,
        family: commands::family(command),
        quiet: Quiet::Loud,
        marks: MarkUse::None,
        keep: false,
        // SCRIPT LOAD is kept as well, so that the script can be learned.
        repeat: is_single || matches!(class, Class::Split { .. }) || command == id::SCRIPT_LOAD,
        plain: false,
        stores: false,
        work: effort.work(),
        place,
        database: 0,
        head: 0,
        body: 0,
        trailer: b"",
        arguments: Span { start: 0, end: 0 },
    };
    let least = arity.unsigned_abs() as usize;
    let most = match command {
        // Servers check it themselves.
        id::PING => 2,
        _ if arity < 0 => usize::MAX,
        _ => least,
    };
    Plan { least, most, keys, request }
}

/// Classifies a request with these arguments and a head of this length. Afterwards `words` holds
/// its keys. An error is the reason why nothing after the request can be believed.
fn understand(input: &[u8], words: &mut Vec<Span>, head: usize) -> Result<Request, &'static str> {
    let name = words[0].of(input);
    let command = Asked::UNKNOWN;
    let unknown = Request { head: head as u32, command, ..Request::placeholder() };
    let Some(command) = commands::lookup(name) else {
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

/// Classifies a request whose command is found.
fn understand_row(mut request: Request, input: &[u8], words: &mut Vec<Span>) -> Request {
    let Plan { least, most, .. } = &PLANS[usize::from(request.command)];
    if !(*least..=*most).contains(&words.len()) {
        words.clear();
        request.class = Class::Refuse(Refusal::Bad(ARITY));
        return request;
    }
    let command = request.command;
    match request.class {
        Class::Single { .. } if command == id::SCAN => {
            request.keep = true;
            match scan::split(words[1].of(input)) {
                Some((0, place)) => request.place = Place::From(place),
                Some((_, place)) => request.place = Place::Nth(place),
                None => request.place = Place::Nowhere,
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
        Class::Single { .. } | Class::Split { .. } | Class::Broadcast { gated: true, .. } => {
            if commands::row(command).effort == Effort::Script {
                // Its text, or what names it.
                request.arguments = words[1];
            }
            request.database = keys::database(command, input, words);
            match keys::keep(command, input, words) {
                Ok(place) if request.place == Place::Keys => request.place = place,
                Ok(_) => {}
                Err(refusal) => {
                    words.clear();
                    request.class = Class::Refuse(refusal);
                }
            }
        }
        Class::Broadcast { reach: Reach::Channel(_), .. } => {
            words[0] = words[1];
            words.truncate(1);
        }
        Class::Local(Local::Subscribe) if pubsub::names_topics(command) => {
            words.remove(0);
        }
        _ => words.clear(),
    }
    request
}

/// A browser that was sent here by a hostile page is closed before the lines of its body are read.
#[cold]
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

const TOO_FEW: &str = "too few arguments for the keys that `commands:` names";

#[cfg(test)]
mod tests;
