//! `commands:` of a pool: the key positions of commands that the protocol does not know.
//!
//! ```text
//!   commands:
//!     json.get:  {key: 1, access: read}
//!     json.mget: {key: 1..-2, access: read}
//!     acme.put:  {key: 2..-1:2, access: write}        first[..last[:step]], as in COMMAND's rows
//! ```

use std::collections::HashSet;

use proto::Extra;

use super::draft::CommandDraft;
use super::file::{Entry, Shape};
use super::findings::Findings;
use super::report::nearest;
use super::value::{self, Fault};

/// Reads the mapping, and also returns it as one line. None after an error.
pub fn commands(entry: &Entry, findings: &mut Findings) -> Option<(Vec<CommandDraft>, String)> {
    let rows = match &entry.value.shape {
        Shape::Map(rows) => rows.as_slice(),
        Shape::Nothing => &[],
        Shape::Word(_) | Shape::List(_) => {
            let message = "commands: names were expected, each with `{key: 1, access: read}`";
            findings.error(entry.value.place, message);
            return None;
        }
    };
    if rows.len() > COMMANDS_MAX {
        let message = format!("commands: {} are too many; the limit is {COMMANDS_MAX}", rows.len());
        findings.error(entry.key_place, message);
        return None;
    }
    let mut seen = HashSet::new();
    let mut drafts = Vec::new();
    for row in rows {
        match seen.insert(row.key.to_ascii_lowercase()) {
            true => drafts.extend(command(row, findings)),
            false => findings.twice(row, rows),
        }
    }
    let shown: Vec<String> = drafts.iter().map(|draft| shown(&draft.extra)).collect();
    (drafts.len() == rows.len()).then(|| (drafts, format!("{{{}}}", shown.join(", "))))
}

fn command(row: &Entry, findings: &mut Findings) -> Option<CommandDraft> {
    let name = row.key.to_ascii_lowercase();
    let visible = name.bytes().all(|byte| byte.is_ascii_graphic());
    if name.is_empty() || name.len() > NAME_LEN_MAX || !visible {
        let message = format!(
            "commands: a command's name is one word of 1 to {NAME_LEN_MAX} visible ASCII characters"
        );
        findings.error(row.key_place, message);
        return None;
    }
    let Shape::Map(entries) = &row.value.shape else {
        let message = format!("commands: `{name}` needs `{{key: 1, access: read}}` or the like");
        findings.error(row.key_place, message);
        return None;
    };
    let mut keys: Option<Positions> = None;
    let mut writes = None;
    for entry in entries {
        let word = entry.word(findings)?;
        let read = match entry.key.as_str() {
            "key" => positions(word).map(|found| keys = Some(found)),
            "access" => access(word).map(|found| writes = Some(found)),
            other => {
                let near = nearest(other, ["key", "access"]);
                let message = format!("commands: `{other}` is neither `key` nor `access`");
                findings.fault(entry.key_place, Fault::new(message).suggest(near));
                return None;
            }
        };
        if let Err(fault) = read {
            findings.fault(entry.value.place_of(&fault), fault.about("commands"));
            return None;
        }
    }
    let missing = if keys.is_none() { "key" } else { "access" };
    let (Some(keys), Some(writes)) = (keys, writes) else {
        findings.error(row.key_place, format!("commands: `{name}` has no `{missing}`"));
        return None;
    };
    let Positions { first, last, step } = keys;
    let spot = findings.spot(row.key_place);
    Some(CommandDraft { extra: Extra { name, first, last, step, writes }, spot })
}

/// The positions of the keys among the arguments.
struct Positions {
    first: u32,
    last: i32,
    step: u32,
}

/// `first[..last[:step]]`.
fn positions(word: &str) -> Result<Positions, Fault> {
    let (first, rest) = word.split_once("..").map_or((word, None), |(a, b)| (a, Some(b)));
    let first = position(first)?;
    let Some(rest) = rest else { return Ok(Positions { first, last: first as i32, step: 1 }) };
    let (last, step) = rest.split_once(':').map_or((rest, "1"), |(a, b)| (a, b));
    let step = position(step)?;
    let last = match last.strip_prefix('-') {
        Some(back) => -(position(back)? as i32),
        None => position(last)? as i32,
    };
    if (0..first as i32).contains(&last) {
        let message = format!("`{word}` ends before it begins; -1 is the last argument");
        return Err(Fault::new(message));
    }
    Ok(Positions { first, last, step })
}

fn position(word: &str) -> Result<u32, Fault> {
    let number = value::number(word, &(1..=POSITION_MAX)).map_err(|fault| {
        let message = format!(
            "{}; a key's place is written `1`, `1..-1` or `1..-1:2`, and the name is argument 0",
            fault.message
        );
        Fault::new(message)
    })?;
    Ok(number as u32)
}

fn access(word: &str) -> Result<bool, Fault> {
    match word {
        "read" => Ok(false),
        "write" => Ok(true),
        _ => {
            let fault = Fault::new(format!("`{word}` is neither `read` nor `write`"));
            Err(fault.suggest(nearest(word, ["read", "write"])))
        }
    }
}

/// Returns the row in the plainest form.
fn shown(extra: &Extra) -> String {
    let Extra { name, first, last, step, writes } = extra;
    let last =
        if *last == *first as i32 && *step == 1 { String::new() } else { format!("..{last}") };
    let step = if *step == 1 { String::new() } else { format!(":{step}") };
    let access = if *writes { "write" } else { "read" };
    format!("{name:?}: {{key: {first}{last}{step}, access: {access}}}")
}

/// The limit on rows of one pool.
const COMMANDS_MAX: usize = 256;
const NAME_LEN_MAX: usize = 64;
/// The largest position of a key; no command has its keys further back.
const POSITION_MAX: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str) -> Result<(u32, i32, u32), String> {
        let found = positions(word).map(|found| (found.first, found.last, found.step));
        found.map_err(|fault| fault.message)
    }

    #[test]
    fn a_range_is_first_last_and_step() {
        assert_eq!(check("1"), Ok((1, 1, 1)));
        assert_eq!(check("2..5"), Ok((2, 5, 1)));
        assert_eq!(check("1..-1"), Ok((1, -1, 1)));
        assert_eq!(check("2..-2:3"), Ok((2, -2, 3)));
        for (word, told) in [
            ("0", "0 is out of range"),
            ("", "`` is not a whole number"),
            ("x", "the name is argument 0"),
            ("1..", "not a whole number"),
            ("3..2", "ends before it begins"),
            ("1..-0", "out of range"),
            ("1..-1:0", "out of range"),
            ("1..-1:2:3", "not a whole number"),
            ("1...2", "not a whole number"),
        ] {
            let message = check(word).unwrap_err();
            assert!(message.contains(told), "{word}: {message}");
        }
    }

    #[test]
    fn a_row_is_shown_as_it_would_be_written() {
        let extra = |first, last, step, writes| Extra {
            name: "a.b".to_string(),
            first,
            last,
            step,
            writes,
        };
        assert_eq!(shown(&extra(1, 1, 1, false)), "\"a.b\": {key: 1, access: read}");
        assert_eq!(shown(&extra(2, -1, 2, true)), "\"a.b\": {key: 2..-1:2, access: write}");
    }
}
