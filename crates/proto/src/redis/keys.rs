//! The positions of the keys among a request's arguments. Most of it follows from the servers'
//! description of their commands (`KeySpec`). For a few commands the description is incomplete, and
//! those are read here as servers read them.
//!
//! A request that a server would refuse is refused with the server's text and is not sent. If the
//! number of keys is unknown, a missing key cannot be noticed.

use super::array::integer;
use super::commands::{self, Begin, Find, id};
use crate::{Extra, Place, Refusal, Span};

const NO_INTEGER: &str = "value is not an integer or out of range";
const SYNTAX: &str = "syntax error";
const NEGATIVE: &str = "Number of keys can't be negative";
const TOO_MANY: &str = "Number of keys can't be greater than number of args";
const NO_NUMBER: &str = "numkeys should be greater than 0";
/// `%` stands for the command, here and in the next text.
pub(super) const ARITY: &str = "wrong number of arguments for '%' command";
const NEEDS_ONE: &str = "at least 1 input key is needed for '%' command";
const BAD_NUMBER: &str = "invalid numkeys value or out of range";
const UNBALANCED: &str =
    "Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.";
const NO_GROUP: &str = "Missing GROUP option for XREADGROUP";
const GROUP: &str = "The GROUP option is only supported by XREADGROUP. You called XREAD instead.";
const NOACK: &str = "The NOACK option is only supported by XREADGROUP. You called XREAD instead.";

/// The positions of a command's keys in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// No key.
    None,
    /// The first argument.
    First,
    /// From the first to the last, which counts from the end if negative, each `step`.
    Range { first: u8, last: i16, step: u8 },
    /// As the specifications say: several ranges, or a number of keys.
    Specs,
    /// `STREAMS key... id...`
    Streams,
    /// `key [BY pattern] [GET pattern]... [STORE key]`
    Sort,
    /// `key ... [STORE key] [STOREDIST key]`; `from` is the first option.
    Radius { from: u8 },
}

/// The shapes, by command.
static SHAPES: [Shape; commands::COUNT] = {
    let mut shapes = [Shape::None; commands::COUNT];
    let mut at = 0;
    while at < shapes.len() {
        shapes[at] = shape(at as u16);
        at += 1;
    }
    shapes
};

const fn shape(command: u16) -> Shape {
    match command {
        id::XREAD | id::XREADGROUP => return Shape::Streams,
        id::SORT | id::SORT_RO => return Shape::Sort,
        id::GEORADIUS => return Shape::Radius { from: 6 },
        id::GEORADIUSBYMEMBER => return Shape::Radius { from: 5 },
        _ => {}
    }
    match commands::row(command).keys {
        [] => Shape::None,
        [one] => match (one.begin, one.find) {
            (Begin::At(1), Find::Range { last: 0, .. }) => Shape::First,
            (Begin::At(first), Find::Range { last, step, limit: 0 }) => {
                Shape::Range { first, last, step }
            }
            _ => Shape::Specs,
        },
        _ => Shape::Specs,
    }
}

/// Whether the first argument is the only key.
pub(super) const fn is_first(command: u16) -> bool {
    matches!(shape(command), Shape::First)
}

/// Keeps only the keys of a request's arguments, in their order; returns the request's route.
#[inline]
pub(super) fn keep(command: u16, input: &[u8], words: &mut Vec<Span>) -> Result<Place, Refusal> {
    match SHAPES[usize::from(command)] {
        Shape::First => {
            words[0] = words[1];
            words.truncate(1);
            Ok(Place::Keys)
        }
        Shape::None => {
            words.clear();
            Ok(Place::Any)
        }
        Shape::Range { first, last, step } => keep_range(first, last, step, words),
        Shape::Specs => keep_specs(command, input, words),
        Shape::Streams => keep_streams(command, input, words),
        Shape::Sort => keep_sorted(command, input, words),
        Shape::Radius { from } => keep_radius(from, input, words),
    }
}

fn keep_range(first: u8, last: i16, step: u8, words: &mut Vec<Span>) -> Result<Place, Refusal> {
    let (first, step) = (usize::from(first), usize::from(step));
    let end = match last {
        0.. => first + last as usize + 1,
        _ => (words.len() + 1).saturating_sub(usize::from(last.unsigned_abs())),
    };
    // A pair must be complete.
    if end > words.len() || end <= first || (last == -1 && !(end - first).is_multiple_of(step)) {
        return Err(Refusal::Bad(ARITY));
    }
    words.truncate(end);
    if step == 1 {
        words.drain(..first);
        return Ok(Place::Keys);
    }
    let mut kept = 0;
    for place in (first..end).step_by(step) {
        words[kept] = words[place];
        kept += 1;
    }
    words.truncate(kept);
    Ok(Place::Keys)
}

fn keep_specs(command: u16, input: &[u8], words: &mut Vec<Span>) -> Result<Place, Refusal> {
    let count = words.len();
    for spec in commands::row(command).keys {
        let Begin::At(begin) = spec.begin else { continue };
        let begin = usize::from(begin);
        let (first, end, step) = match spec.find {
            Find::Range { last: last @ 0.., step, .. } => (begin, begin + last as usize + 1, step),
            Find::Range { last, step, .. } => {
                (begin, (count + 1).saturating_sub(usize::from(last.unsigned_abs())), step)
            }
            Find::Number { at, first, step } => {
                let number = words[begin + usize::from(at)].of(input);
                let first = begin + usize::from(first);
                let Some(keys) = number_of_keys(command, input, words, number, first, count)?
                else {
                    words.clear();
                    return Ok(Place::Any);
                };
                (first, first + keys * usize::from(step), step)
            }
            Find::Unknown => continue,
        };
        for place in (first..end.min(count)).step_by(usize::from(step).max(1)) {
            words.push(words[place]);
        }
    }
    words.drain(..count);
    Ok(if words.is_empty() { Place::Any } else { Place::Keys })
}

/// Returns the number of keys that an argument gives, `first` being the index of the first key.
/// `None`: the server refuses the request for another reason, before it counts.
fn number_of_keys(
    command: u16,
    input: &[u8],
    words: &[Span],
    number: &[u8],
    first: usize,
    count: usize,
) -> Result<Option<usize>, Refusal> {
    let step = if command == id::MSETEX { 2 } else { 1 };
    // The number of mandatory arguments after the keys.
    let after = usize::from(is_pop(command));
    let room = (count.saturating_sub(first + after) / step) as i64;
    let least = if is_script(command) { 0 } else { 1 };
    let wrong = match integer(number) {
        Some(keys) if (least..=room).contains(&keys) => return Ok(Some(keys as usize)),
        Some(keys) if keys > room => Wrong::TooMany,
        Some(_) => Wrong::TooFew,
        None => Wrong::NoNumber,
    };
    // Servers report a missing function or script before they count the keys.
    let is_missed = matches!(command, id::FCALL | id::FCALL_RO)
        || matches!(command, id::EVALSHA | id::EVALSHA_RO) && words[1].of(input).len() != SHA_LEN;
    if is_missed { Ok(None) } else { Err(Refusal::Bad(words_for(command, wrong))) }
}

/// The mistake in a number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    NoNumber,
    TooFew,
    TooMany,
}

/// The length of the digest that names a script.
const SHA_LEN: usize = 40;

fn is_pop(command: u16) -> bool {
    matches!(command, id::LMPOP | id::ZMPOP | id::BLMPOP | id::BZMPOP)
}

fn is_script(command: u16) -> bool {
    matches!(
        command,
        id::EVAL | id::EVAL_RO | id::EVALSHA | id::EVALSHA_RO | id::FCALL | id::FCALL_RO
    )
}

/// Returns the text of Redis 7.0, or of Valkey 9.1 for commands that only it has.
fn words_for(command: u16, wrong: Wrong) -> &'static str {
    match (command, wrong) {
        (_, Wrong::TooMany) if is_pop(command) => SYNTAX,
        (_, Wrong::NoNumber | Wrong::TooFew) if is_pop(command) => NO_NUMBER,
        (id::SINTERCARD, Wrong::NoNumber | Wrong::TooFew) => NO_NUMBER,
        (id::SINTERCARD, Wrong::TooMany) => TOO_MANY,
        (id::MSETEX, Wrong::NoNumber | Wrong::TooFew) => BAD_NUMBER,
        (id::MSETEX, Wrong::TooMany) => SYNTAX,
        (_, Wrong::NoNumber) => NO_INTEGER,
        (_, Wrong::TooFew) if is_script(command) => NEGATIVE,
        (_, Wrong::TooFew) => NEEDS_ONE,
        (_, Wrong::TooMany) if is_script(command) => TOO_MANY,
        (_, Wrong::TooMany) => SYNTAX,
    }
}

/// Reads `XREAD [COUNT n] [BLOCK ms] STREAMS key... id...`, and XREADGROUP with a group before
/// that.
fn keep_streams(command: u16, input: &[u8], words: &mut Vec<Span>) -> Result<Place, Refusal> {
    let in_group = command == id::XREADGROUP;
    let mut has_group = false;
    let mut at = 1;
    while at < words.len() {
        let option = words[at].of(input);
        let more = words.len() - at - 1;
        let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
        if is(b"BLOCK") && more > 0 {
            at += 2;
        } else if is(b"COUNT") && more > 0 {
            integer(words[at + 1].of(input)).ok_or(Refusal::Bad(NO_INTEGER))?;
            at += 2;
        } else if is(b"GROUP") && more > 1 {
            if !in_group {
                return Err(Refusal::Bad(GROUP));
            }
            has_group = true;
            at += 3;
        } else if is(b"NOACK") {
            if !in_group {
                return Err(Refusal::Bad(NOACK));
            }
            at += 1;
        } else if is(b"STREAMS") && more > 0 {
            if !more.is_multiple_of(2) {
                return Err(Refusal::Bad(UNBALANCED));
            }
            if in_group && !has_group {
                return Err(Refusal::Bad(NO_GROUP));
            }
            words.drain(..at + 1);
            words.truncate(more / 2);
            return Ok(Place::Keys);
        } else {
            break;
        }
    }
    Err(Refusal::Bad(SYNTAX))
}

/// Reads a SORT. `BY` and `GET` are followed by patterns of keys, and only the server with the
/// elements knows the keys.
fn keep_sorted(command: u16, input: &[u8], words: &mut Vec<Span>) -> Result<Place, Refusal> {
    let (mut place, mut store) = (Place::Keys, None);
    let mut at = 2;
    while at < words.len() {
        let option = words[at].of(input);
        let more = words.len() - at - 1;
        let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
        if is(b"ASC") || is(b"DESC") || is(b"ALPHA") {
            at += 1;
        } else if is(b"LIMIT") && more > 1 {
            for number in &words[at + 1..at + 3] {
                integer(number.of(input)).ok_or(Refusal::Bad(NO_INTEGER))?;
            }
            at += 3;
        } else if is(b"STORE") && more > 0 && command == id::SORT {
            store = Some(words[at + 1]);
            at += 2;
        } else if (is(b"BY") || is(b"GET")) && more > 0 {
            // A pattern without a star is the same for all elements, and no key is looked up.
            if words[at + 1].of(input).contains(&b'*') {
                place = Place::Sole;
            }
            at += 2;
        } else {
            return Err(Refusal::Bad(SYNTAX));
        }
    }
    keep_two(store, words);
    Ok(place)
}

/// Reads a GEORADIUS. Of several keys to store in, the last one counts.
fn keep_radius(from: u8, input: &[u8], words: &mut Vec<Span>) -> Result<Place, Refusal> {
    let mut store = None;
    let mut at = usize::from(from);
    while at + 1 < words.len() {
        let option = words[at].of(input);
        if option.eq_ignore_ascii_case(b"STORE") || option.eq_ignore_ascii_case(b"STOREDIST") {
            store = Some(words[at + 1]);
            at += 1;
        }
        at += 1;
    }
    keep_two(store, words);
    Ok(Place::Keys)
}

/// Returns the database that MOVE and COPY write to; 0 if they name none, or no number.
pub(super) fn database(command: u16, input: &[u8], words: &[Span]) -> u32 {
    let number = |place: usize| {
        let value = words.get(place).and_then(|word| integer(word.of(input))).unwrap_or(0);
        value.clamp(0, i64::from(u32::MAX)) as u32
    };
    let is_rendered = |place: &usize| words[*place].of(input).eq_ignore_ascii_case(b"DB");
    match command {
        id::MOVE => number(2),
        id::COPY => {
            (3..words.len()).filter(is_rendered).map(|at| number(at + 1)).max().unwrap_or(0)
        }
        _ => 0,
    }
}

fn keep_two(second: Option<Span>, words: &mut Vec<Span>) {
    words[0] = words[1];
    words.truncate(1);
    words.extend(second);
}

/// Returns the indexes of the keys of an operator's command with this many arguments; `None` if it
/// has too few.
pub(super) fn places_of(extra: &Extra, count: usize) -> Option<impl Iterator<Item = usize>> {
    let first = extra.first as usize;
    let last = match extra.last {
        0.. => extra.last as usize,
        back => count.checked_sub(back.unsigned_abs() as usize)?,
    };
    let is_there = first >= 1 && first <= last && last < count;
    is_there.then(|| (first..=last).step_by(extra.step.max(1) as usize))
}

#[cfg(test)]
mod tests;
