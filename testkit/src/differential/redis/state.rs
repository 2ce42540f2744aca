//! A snapshot of all data of the servers, in a deterministic form.

use std::collections::BTreeMap;

use super::compare;
use super::table::Likeness;
use crate::process::Speaker;
use crate::wire::resp::Reply;

/// By database and key: the value and the remaining time to live.
pub type State = BTreeMap<(usize, Vec<u8>), (Reply, Reply)>;

/// Databases that a run uses.
pub const DATABASES: usize = 4;

pub fn read(server: &mut Speaker) -> State {
    let mut state = State::new();
    for database in 0..DATABASES {
        server.say(&format!("SELECT {database}"));
        let keys = server.say("KEYS *");
        let keys: Vec<Vec<u8>> =
            keys.elements().into_iter().filter_map(|key| Some(key.bytes()?.to_vec())).collect();
        let ask = |word: &str| {
            let words = |key: &Vec<u8>| vec![word.as_bytes().to_vec(), key.clone()];
            keys.iter().map(words).collect::<Vec<_>>()
        };
        let kinds = server.ask_all(&ask("TYPE"));
        let lives = server.ask_all(&ask("PTTL"));
        let reads: Vec<Vec<Vec<u8>>> =
            keys.iter().zip(&kinds).map(|(key, kind)| read_by_kind(key, kind)).collect();
        let values = server.ask_all(&reads);
        for (((key, kind), value), life) in keys.iter().zip(&kinds).zip(values).zip(lives) {
            let value = in_order(kind, value);
            state.insert((database, key.clone()), (value, life));
        }
    }
    server.say("SELECT 0");
    state
}

fn read_by_kind(key: &[u8], kind: &Reply) -> Vec<Vec<u8>> {
    let (word, rest): (&str, &[&str]) = match kind.bytes() {
        Some(b"string") => ("GET", &[]),
        Some(b"list") => ("LRANGE", &["0", "-1"]),
        Some(b"set") => ("SMEMBERS", &[]),
        Some(b"hash") => ("HGETALL", &[]),
        Some(b"zset") => ("ZRANGE", &["0", "-1", "WITHSCORES"]),
        Some(b"stream") => ("XRANGE", &["-", "+"]),
        other => panic!("a key of kind {other:?}"),
    };
    let mut words = vec![word.as_bytes().to_vec(), key.to_vec()];
    words.extend(rest.iter().map(|word| word.as_bytes().to_vec()));
    words
}

fn in_order(kind: &Reply, value: Reply) -> Reply {
    match kind.bytes() {
        Some(b"set") => compare::sorted(&value),
        Some(b"hash") => compare::pairs(&value),
        _ => value,
    }
}

/// Returns the first difference.
pub fn difference(direct: &State, ours: &State) -> Option<String> {
    for (place, (value, life)) in direct {
        match ours.get(place) {
            Some((other, left)) if value == other => {
                if !compare::is_like(Likeness::Near, life, left) {
                    return Some(format!("{place:?} lives {life:?} and {left:?}"));
                }
            }
            Some((other, _)) => {
                return Some(format!("{place:?} is {value:?}, and through the proxy {other:?}"));
            }
            None => return Some(format!("{place:?} is missing behind the proxy")),
        }
    }
    let more = ours.keys().find(|place| !direct.contains_key(place));
    more.map(|place| format!("{place:?} is only behind the proxy"))
}
