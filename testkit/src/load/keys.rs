//! A client's knowledge of its keys, and the check of answers against it.

use super::Trust;
use crate::wire::Unread;
use crate::wire::text::{self, Line};

/// A key that one connection alone uses.
pub struct Key {
    base: String,
    /// After an update of unknown outcome the next one uses a new key, because the lost update may
    /// still be executed at any time.
    generation: u32,
    /// Number of values written.
    counter: u64,
    /// Possible contents on the server: a value's number, or None. Several while in doubt.
    possible: Vec<Option<u64>>,
    value_max: usize,
}

/// One request.
pub enum Ask {
    /// Indexes of the keys.
    Get(Vec<usize>),
    Set(usize, u64),
    Delete(usize),
}

/// A whole reply.
pub struct Reply {
    pub len: usize,
    /// Its error line, if it is an error.
    pub error: Option<String>,
}

impl Key {
    pub fn new(base: String, value_max: usize) -> Key {
        Key { base, generation: 0, counter: 0, possible: vec![None], value_max }
    }

    fn name(&self) -> String {
        format!("{}.{}", self.base, self.generation)
    }

    /// Returns a value that contains its owner and its age; the number determines the length.
    fn value(&self, number: u64) -> Vec<u8> {
        let mut value = format!("{}={number};", self.name()).into_bytes();
        let padding = (number as usize).wrapping_mul(37) % (self.value_max + 1);
        value.resize(value.len() + padding, b'a' + (number % 26) as u8);
        value
    }

    /// Resolves doubts; call it before each update.
    fn settle(&mut self) {
        if self.possible.len() > 1 {
            self.generation += 1;
            self.possible = vec![None];
        }
    }

    fn doubt(&mut self, number: Option<u64>) {
        if !self.possible.contains(&number) {
            self.possible.push(number);
        }
    }

    /// Checks a get's result against the possible contents.
    fn hear(&mut self, found: Option<u64>, trust: Trust) -> Result<(), String> {
        let fine = match (trust, found) {
            (Trust::Misses, None) => {
                // An update still to be executed may appear; an old value may not.
                match self.possible.len() {
                    1 => self.possible = vec![None],
                    _ => self.doubt(None),
                }
                true
            }
            (Trust::Old, found) => found.is_none_or(|number| number <= self.counter),
            (_, found) => self.possible.contains(&found),
        };
        if fine {
            return Ok(());
        }
        let (name, possible) = (self.name(), &self.possible);
        Err(format!("{name} holds {found:?} where its client knows of {possible:?}"))
    }
}

impl Ask {
    /// Writes a get of the keys at `places`.
    pub fn get(places: Vec<usize>, keys: &[Key], output: &mut Vec<u8>) -> Ask {
        output.extend_from_slice(b"get");
        for place in &places {
            output.push(b' ');
            output.extend_from_slice(keys[*place].name().as_bytes());
        }
        output.extend_from_slice(b"\r\n");
        Ask::Get(places)
    }

    pub fn set(place: usize, keys: &mut [Key], output: &mut Vec<u8>) -> Ask {
        let key = &mut keys[place];
        key.settle();
        key.counter += 1;
        let (number, value) = (key.counter, key.value(key.counter));
        let head = format!("set {} {} 0 {}\r\n", key.name(), flags(number), value.len());
        output.extend_from_slice(head.as_bytes());
        output.extend_from_slice(&value);
        output.extend_from_slice(b"\r\n");
        Ask::Set(place, number)
    }

    pub fn delete(place: usize, keys: &mut [Key], output: &mut Vec<u8>) -> Ask {
        keys[place].settle();
        output.extend_from_slice(format!("delete {}\r\n", keys[place].name()).as_bytes());
        Ask::Delete(place)
    }

    pub fn is_get(&self) -> bool {
        matches!(self, Ask::Get(_))
    }

    /// Handles a lost connection or an error line: an update may have been executed, or may still
    /// be.
    pub fn lose(&self, keys: &mut [Key]) {
        match self {
            Ask::Get(_) => {}
            Ask::Set(place, number) => keys[*place].doubt(Some(*number)),
            Ask::Delete(place) => keys[*place].doubt(None),
        }
    }

    /// Parses a whole reply at the start of `input` and learns from it. None if it is not whole.
    pub fn hear(
        &self,
        input: &[u8],
        keys: &mut [Key],
        trust: Trust,
    ) -> Result<Option<Reply>, String> {
        match self {
            Ask::Get(places) => hear_get(places, input, keys, trust),
            Ask::Set(..) | Ask::Delete(_) => self.hear_update(input, keys, trust),
        }
    }

    fn hear_update(
        &self,
        input: &[u8],
        keys: &mut [Key],
        trust: Trust,
    ) -> Result<Option<Reply>, String> {
        let Some((line, len)) = next_line(input)? else { return Ok(None) };
        let line = line.text;
        if let Some(error) = error(line) {
            self.lose(keys);
            return Ok(Some(Reply { len, error: Some(error) }));
        }
        let (place, now) = match self {
            Ask::Set(place, number) => (*place, Some(*number)),
            Ask::Delete(place) => (*place, None),
            Ask::Get(_) => unreachable!("a get is no update"),
        };
        let possible = &keys[place].possible;
        let fine = match (self, line) {
            (Ask::Set(..), b"STORED") => true,
            (Ask::Delete(_), b"DELETED") => possible.iter().any(Option::is_some) || moves(trust),
            (Ask::Delete(_), b"NOT_FOUND") => possible.contains(&None) || trust != Trust::Whole,
            _ => false,
        };
        if !fine {
            let (name, line) = (keys[place].name(), line.escape_ascii());
            return Err(format!("an update of {name}, known as {possible:?}, is answered {line}"));
        }
        keys[place].possible = vec![now];
        Ok(Some(Reply { len, error: None }))
    }
}

fn moves(trust: Trust) -> bool {
    trust == Trust::Old
}

fn hear_get(
    places: &[usize],
    input: &[u8],
    keys: &mut [Key],
    trust: Trust,
) -> Result<Option<Reply>, String> {
    let mut found = vec![None; places.len()];
    let mut at = 0;
    let error = loop {
        let Some((line, len)) = next_line(&input[at..])? else { return Ok(None) };
        let Some(data) = line.data.clone() else {
            at += len;
            break match line.text {
                b"END" => None,
                text => {
                    Some(error(text).ok_or_else(|| format!("a get is answered {}", show(text)))?)
                }
            };
        };
        let name = line.words().nth(1).map(String::from_utf8_lossy).unwrap_or_default();
        let flags = line.number(2).ok_or_else(|| format!("{} has no flags", show(line.text)))?;
        let data = &input[at..][data];
        at += len;
        let asked = places.iter().position(|place| keys[*place].name() == name);
        let Some(asked) = asked else {
            return Err(format!("VALUE {name} came to a client that did not ask for it"));
        };
        if found[asked].is_some() {
            return Err(format!("VALUE {name} came twice"));
        }
        found[asked] = Some(number_of(&keys[places[asked]], flags, data)?);
    };
    // In a reply with an error line a key without a value is not a miss.
    let misses = error.is_none();
    for (place, found) in places.iter().zip(found) {
        if found.is_some() || misses {
            keys[*place].hear(found, trust)?;
        }
    }
    Ok(Some(Reply { len: at, error }))
}

/// Returns the number of a value after checking every byte.
fn number_of(key: &Key, flagged: u64, data: &[u8]) -> Result<u64, String> {
    let told = data.strip_prefix(format!("{}=", key.name()).as_bytes()).and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b';')?;
        std::str::from_utf8(&rest[..end]).ok()?.parse::<u64>().ok()
    });
    let Some(number) = told else {
        return Err(format!("VALUE {} holds another's {}", key.name(), show(data)));
    };
    let value = key.value(number);
    if data != value || flagged != flags(number) {
        return Err(format!("VALUE {} {number} is mangled: {}", key.name(), show(data)));
    }
    Ok(number)
}

fn flags(number: u64) -> u64 {
    number & 0xffff
}

/// Reads one line of a reply. None if it is not whole.
pub fn next_line(input: &[u8]) -> Result<Option<(Line<'_>, usize)>, String> {
    match text::reply(input) {
        Ok(read) => Ok(Some(read)),
        Err(Unread::Incomplete) => Ok(None),
        Err(Unread::Hopeless) => Err(format!("no reply: {}", show(input))),
    }
}

/// Returns an error that a proxy may answer with. `ERROR` and `CLIENT_ERROR` would mean that the
/// request was invalid, but the load sends only valid requests.
pub fn error(line: &[u8]) -> Option<String> {
    line.starts_with(b"SERVER_ERROR ").then(|| String::from_utf8_lossy(line).into_owned())
}

pub fn show(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<Key> {
        (0..3).map(|n| Key::new(format!("k{n}"), 0)).collect()
    }

    /// Checks the effect of an answer to a set, and then of `get` as the answer to a get.
    fn check(set: &[u8], get: &str, expected: bool) {
        let (mut keys, mut output) = (keys(), Vec::new());
        for answer in [b"STORED\r\n", set] {
            let ask = Ask::set(0, &mut keys, &mut output);
            match answer {
                b"" => ask.lose(&mut keys),
                answer => assert!(ask.hear(answer, &mut keys, Trust::Whole).is_ok()),
            }
        }
        let ask = Ask::get(vec![0, 1], &keys, &mut output);
        let heard = ask.hear(get.as_bytes(), &mut keys, Trust::Whole);
        assert_eq!(heard.is_ok(), expected, "{:?} {get}", heard.err());
    }

    const ONE: &str = "VALUE k0.0 1 7\r\nk0.0=1;\r\nEND\r\n";
    const TWO: &str = "VALUE k0.0 2 7\r\nk0.0=2;\r\nEND\r\n";

    #[test]
    fn an_acknowledged_value_is_the_only_true_one() {
        check(b"STORED\r\n", TWO, true);
        check(b"STORED\r\n", ONE, false);
        check(b"STORED\r\n", "END\r\n", false);
    }

    #[test]
    fn after_a_lost_update_the_value_is_old_or_new() {
        for lost in [&b""[..], b"SERVER_ERROR gone\r\n"] {
            check(lost, TWO, true);
            check(lost, ONE, true);
            check(lost, "END\r\n", false);
        }
    }

    #[test]
    fn what_is_not_the_clients_own_is_wrong() {
        check(b"STORED\r\n", "VALUE k2.0 1 7\r\nk2.0=1;\r\nEND\r\n", false);
        check(b"STORED\r\n", "VALUE k0.0 2 7\r\nk2.0=2;\r\nEND\r\n", false);
        check(b"STORED\r\n", "VALUE k0.0 3 7\r\nk0.0=2;\r\nEND\r\n", false);
        check(b"STORED\r\n", "VALUE k0.0 2 8\r\nk0.0=2;x\r\nEND\r\n", false);
        check(b"STORED\r\n", &TWO.replace("END", TWO), false);
        check(b"STORED\r\n", "STORED\r\n", false);
        check(b"STORED\r\n", "ERROR\r\n", false);
        check(b"STORED\r\n", "SERVER_ERROR gone\r\n", true);
    }
}
