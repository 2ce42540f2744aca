//! The model server's commands with one answer: those of one key, and those whose keys must be on
//! one server.

use std::rc::Rc;

use crate::sim::conn::Conn;
use crate::sim::server::{Place, Server};
use crate::wire::resp::{put_array, put_bulk, put_line, put_null, put_number};

use super::server::leading;
use super::store::Held;
use super::tree::grow;

/// One command as the store sees it.
struct Deed<'a> {
    name: &'a str,
    wish: u32,
    keys: Vec<usize>,
    /// The arguments after its first key.
    rest: Vec<&'a [u8]>,
}

impl Server {
    pub fn put_text(&mut self, key: usize, conn: &Conn, out: &mut Vec<u8>) {
        match self.held(key, conn) {
            Some(Held::Text(text)) => put_bulk(out, text),
            _ => put_null(out, conn.proto_version()),
        }
    }

    pub fn held(&self, key: usize, conn: &Conn) -> Option<&Held> {
        self.redis.as_ref().expect("it is Redis").databases[conn.database()][key].as_ref()
    }

    pub fn slot(&mut self, key: usize, conn: &Conn) -> &mut Option<Held> {
        &mut self.redis.as_mut().expect("it is Redis").databases[conn.database()][key]
    }

    pub fn put(&mut self, key: usize, conn: &Conn, value: Vec<u8>) {
        *self.slot(key, conn) = Some(Held::Text(value));
    }

    /// Executes a command with one reply.
    pub fn whole(
        &mut self,
        name: &str,
        arguments: &[&[u8]],
        conn: &mut Conn,
        place: &mut Place<'_>,
    ) {
        let (first, step, last) = match name {
            "MSETNX" => (0, 2, arguments.len()),
            "SUNION" | "PFCOUNT" | "RENAME" => (0, 1, arguments.len()),
            "EVAL" | "EVALSHA" | "EVALSHA_RO" => (2, 1, arguments.len()),
            _ => (0, 1, 1),
        };
        let mut keys = Vec::new();
        let mut wish = 0;
        for text in arguments[first..last].iter().step_by(step) {
            let text = std::str::from_utf8(text).expect("the model writes text");
            let (number, at, key) = place.wish_key(text, conn);
            assert_eq!(at, keys.len(), "the keys of a command change places");
            wish = number;
            keys.push(key);
        }
        let all = place.journal.redis.wishes[wish as usize].keys.len();
        assert_eq!(keys.len(), all, "a part of what must stay together");
        place.journal.event();
        let deed = Deed { name, wish, keys, rest: arguments[first + 1..].to_vec() };
        let mut reply = Vec::new();
        self.perform(&deed, conn, place, &mut reply);
        conn.output.extend_from_slice(&reply);
        place.journal.redis.done_whole(wish, place.server, Rc::from(reply));
    }

    fn perform(&mut self, deed: &Deed<'_>, conn: &Conn, place: &mut Place<'_>, out: &mut Vec<u8>) {
        let key = deed.keys[0];
        match deed.name {
            "XRANGE" | "SMEMBERS" | "HGETALL" | "SUNION" | "EVAL" | "EVALSHA" | "EVALSHA_RO" => {
                let long = place.random.permille(100);
                *out = grow(place.random, conn.proto_version(), deed.wish, long);
            }
            "PFCOUNT" => put_number(out, i64::from(deed.wish)),
            "MSETNX" => {
                let is_free = deed.keys.iter().all(|key| self.held(*key, conn).is_none());
                if is_free {
                    for (nth, key) in deed.keys.iter().enumerate() {
                        let value = deed.rest[2 * nth];
                        let meant = &place.journal.redis.wishes[deed.wish as usize].values[nth];
                        assert!(value == meant, "the value of another key of wish {}", deed.wish);
                        self.put(*key, conn, value.to_vec());
                    }
                }
                put_number(out, i64::from(is_free));
            }
            "RENAME" => match self.slot(key, conn).take() {
                Some(held) => {
                    *self.slot(deed.keys[1], conn) = Some(held);
                    put_line(out, "+OK");
                }
                None => put_line(out, "-ERR no such key"),
            },
            "TYPE" => match self.held(key, conn) {
                None => put_line(out, "+none"),
                Some(Held::Text(_)) => put_line(out, "+string"),
                Some(Held::List(_)) => put_line(out, "+list"),
            },
            "RPUSH" | "LPOP" | "LRANGE" => self.perform_list(deed, conn, out),
            "SET" | "SETEX" => {
                let value = deed.rest[deed.rest.len() - 1];
                assert_eq!(leading(value), u64::from(deed.wish), "the value of another wish");
                self.put(key, conn, value.to_vec());
                put_line(out, "+OK");
            }
            _ => self.perform_text(deed, conn, out),
        }
    }

    fn perform_text(&mut self, deed: &Deed<'_>, conn: &Conn, out: &mut Vec<u8>) {
        let key = deed.keys[0];
        let old = match self.held(key, conn) {
            Some(Held::List(_)) => return put_line(out, WRONG_TYPE),
            Some(Held::Text(text)) => Some(text.clone()),
            None => None,
        };
        match deed.name {
            "GET" => self.put_text(key, conn, out),
            "STRLEN" => put_number(out, old.map_or(0, |old| old.len() as i64)),
            "GETDEL" => {
                self.put_text(key, conn, out);
                *self.slot(key, conn) = None;
            }
            "SETNX" => {
                put_number(out, i64::from(old.is_none()));
                if old.is_none() {
                    self.put(key, conn, deed.rest[0].to_vec());
                }
            }
            "APPEND" => {
                let mut text = old.unwrap_or_default();
                // A run may be long.
                text.truncate(APPENDED_MAX);
                text.extend_from_slice(deed.rest[0]);
                put_number(out, text.len() as i64);
                self.put(key, conn, text);
            }
            "INCRBY" => {
                assert_eq!(leading(deed.rest[0]), u64::from(deed.wish), "another wish's number");
                let old = old.unwrap_or_else(|| b"0".to_vec());
                let old = std::str::from_utf8(&old).ok().and_then(|text| text.parse::<i64>().ok());
                let sum = old.and_then(|old| old.checked_add(i64::from(deed.wish)));
                let Some(sum) = sum else {
                    return put_line(out, "-ERR value is not an integer or out of range");
                };
                self.put(key, conn, sum.to_string().into_bytes());
                put_number(out, sum);
            }
            other => panic!("the proxy sends {other:?}"),
        }
    }

    fn perform_list(&mut self, deed: &Deed<'_>, conn: &Conn, out: &mut Vec<u8>) {
        let key = deed.keys[0];
        let mut list = match self.held(key, conn) {
            Some(Held::Text(_)) => return put_line(out, WRONG_TYPE),
            Some(Held::List(list)) => list.clone(),
            None => Vec::new(),
        };
        match deed.name {
            "RPUSH" => {
                list.push(deed.rest[0].to_vec());
                put_number(out, list.len() as i64);
            }
            "LPOP" if list.is_empty() => return put_null(out, conn.proto_version()),
            "LPOP" => put_bulk(out, &list.remove(0)),
            _ => {
                put_array(out, list.len());
                list.iter().for_each(|one| put_bulk(out, one));
                return;
            }
        }
        *self.slot(key, conn) = (!list.is_empty()).then_some(Held::List(list));
    }
}

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
const APPENDED_MAX: usize = 60_000;
