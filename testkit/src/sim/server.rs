//! A model server: memcached's rules for classic text, on values whose whole past is kept.
//!
//! It is stricter than memcached: the proxy must send canonical commands with requested keys, and
//! never a `noreply`. Each rule is asserted where the command is parsed.

use std::rc::Rc;

use proxy::plan::ServerPlan;
use proxy::{Time, limits};

use super::conn::Conn;
use super::frame::{Frame, data_number, frame, number};
use super::history::{Store, Value};
use super::journal::{Injected, Journal, Outcome, UpdateKind};
use super::random::Random;
use super::redis::{Handshakes, Model};
use super::rest::Rest;
use super::rings::Rings;
use super::scene::Key;
use super::silence::{Silence, check_cancelled};
use crate::wire::text::put_value;

pub struct Server {
    pub id: u32,
    /// The name that the ring hashes.
    pub name: String,
    pub label: String,
    pub store: Store,
    pub stalled_until: Time,
    pub refusing_until: Time,
    pub full_until: Time,
    pub dribbles_until: Time,
    /// The end of the last of these faults.
    pub rough_until: Time,
    /// The trick to use for its next command.
    pub trick: Trick,
    pub trouble: Trouble,
    /// The last time at which the proxy made progress with it.
    pub progress: Time,
    pub silence: Silence,
    /// It supports the meta commands.
    pub has_meta: bool,
    /// The last time at which a handshake reported fewer capabilities than the waiting requests may
    /// need.
    pub unfit_at: Time,
    /// At some time it had no meta commands, or its handshake did not report them.
    pub ever_lacked: bool,
    /// Its data, if it is Redis.
    pub redis: Option<Box<Model>>,
    /// The proxy considers it down.
    pub is_down: bool,
    /// When the proxy last got an answer of it, on a link that was up then.
    pub replied: Time,
    /// When the latest attempt to make a link to it began that has failed.
    pub attempted: Time,
    /// The places for links to it that were not filled.
    pub rest: Rest,
    /// The operator has it in maintenance.
    pub is_maint: bool,
    pub is_ejected: bool,
    /// The start of its repeated failures, if it has failed repeatedly.
    pub sick_since: Option<Time>,
    /// The time since which it is down without a probe, and the time by which it must be probed.
    pub unasked_since: Time,
    pub probe_by: Time,
}

/// The way to answer a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    None,
    Poison,
    ErrorLine,
    /// Executes the command, then closes without an answer.
    Die,
    /// No connect: the next socket cannot be made.
    NoSocket,
}

/// The last event of each kind of fault: an error is legal only if one explains it.
#[derive(Clone, Copy, Default)]
pub struct Trouble {
    pub refused: u64,
    /// The last event at which it said that it takes no further connection.
    pub full: u64,
    pub hung: u64,
    pub lost: u64,
    pub poisoned: u64,
    pub silent: u64,
    /// The last event at which it refused a command.
    pub injected: u64,
    /// The last socket to it that could not be made, and its time.
    pub unable: u64,
    pub unable_time: Time,
    /// When the proxy found it down last, and why: that may have happened before.
    pub verdict: (u64, &'static str),
    /// The proxy considered it down until then.
    pub back: u64,
    /// It was in maintenance until then.
    pub maint: u64,
    /// Any of these events, and stalls.
    pub any: u64,
    pub any_time: Time,
}

/// The circumstances in which a command is executed.
pub struct Place<'a> {
    pub pool: usize,
    pub server: usize,
    pub keys: &'a [Key],
    pub rings: &'a Rings,
    pub handshakes: &'a Handshakes,
    pub now: Time,
    /// The proxy still has the link.
    pub is_live: bool,
    pub hold_after: Option<u64>,
    pub journal: &'a mut Journal,
    pub random: &'a mut Random,
}

impl Server {
    /// Returns whether it had any fault since then.
    pub fn was_in_trouble(&self, event: u64, time: Time) -> bool {
        let Trouble { any, back, maint, .. } = self.trouble;
        let is_out = self.is_down || self.is_maint;
        is_out || any.max(back).max(maint) > event || self.rough_until >= time
    }

    /// Returns whether a message for it may have been refused since then, or lost with its link. A
    /// late message is not lost: a stalled server executes it when it continues.
    pub fn may_have_lost(&self, event: u64, time: Time) -> bool {
        let it = &self.trouble;
        let last = [it.refused, it.full, it.hung, it.lost, it.poisoned, it.silent, it.injected];
        let last = last.into_iter().chain([it.unable, it.back, it.maint]);
        let until = it.unable_time.after(limits::BACKOFF_LAST_US);
        let lacks_socket = it.unable != 0 && until >= time;
        let lacks_link = lacks_socket || self.rest.lasts(time);
        self.is_down || self.is_maint || lacks_link || last.max() > Some(event)
    }

    pub fn new(plan: &ServerPlan, keys: usize) -> Server {
        Server {
            id: plan.id,
            name: plan.name.clone(),
            label: plan.label.clone(),
            store: Store::new(keys),
            stalled_until: Time(0),
            refusing_until: Time(0),
            full_until: Time(0),
            dribbles_until: Time(0),
            rough_until: Time(0),
            trick: Trick::None,
            trouble: Trouble::default(),
            progress: Time(0),
            silence: Silence::default(),
            has_meta: true,
            unfit_at: Time(0),
            ever_lacked: false,
            redis: None,
            is_down: false,
            replied: Time(0),
            attempted: Time(0),
            rest: Rest::default(),
            is_maint: false,
            is_ejected: false,
            sick_since: None,
            unasked_since: Time(0),
            probe_by: Time(0),
        }
    }

    /// Executes the first command of a connection; returns false if it is not whole.
    pub fn serve(&mut self, conn: &mut Conn, place: &mut Place<'_>) -> bool {
        if self.redis.is_some() {
            return self.serve_redis(conn, place);
        }
        let input = std::mem::take(&mut conn.input);
        let Some(frame) = frame(&input) else {
            conn.input = input;
            return false;
        };
        let used = frame.len;
        let start = conn.output.len();
        let trick = match self.trick {
            Trick::NoSocket => Trick::None,
            _ => std::mem::replace(&mut self.trick, Trick::None),
        };
        match trick {
            Trick::None | Trick::NoSocket => self.execute(&frame, conn, place),
            Trick::ErrorLine => self.refuse(&frame, conn, place),
            Trick::Die => {
                self.execute(&frame, conn, place);
                conn.output.truncate(start);
                conn.is_over = true;
            }
            Trick::Poison => {
                if place.random.permille(500) {
                    self.execute(&frame, conn, place);
                    conn.output.truncate(start);
                }
                poison(&frame, conn, place.random);
                conn.poison = conn.poison.or(Some((start, conn.output.len())));
            }
        }
        conn.reply_ends.push_back(conn.output.len());
        conn.input = input;
        conn.input.drain(..used);
        conn.executed += used as u64;
        true
    }

    fn execute(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        match frame.words[0] {
            "get" | "gets" | "gat" | "gats" => self.fetch(frame, usize::MAX, conn, place),
            "version" if self.has_meta => say(conn, "VERSION 1.6.18"),
            "version" => {
                conn.has_lost_capability = true;
                say(conn, "VERSION 1.4.15");
            }
            "mg" | "ms" | "md" | "ma" | "mn" | "me" => self.execute_meta(frame, conn, place),
            "set" | "add" | "replace" | "append" | "prepend" | "cas" => {
                self.store(frame, conn, place)
            }
            "incr" | "decr" => self.count(frame, conn, place),
            "touch" => self.touch(frame, conn, place),
            "delete" => self.delete(frame, conn, place),
            "flush_all" => self.flush(frame, conn, place),
            other => panic!("the proxy sends {other:?}"),
        }
    }

    /// Answers the first `count` keys of a read.
    fn fetch(&mut self, frame: &Frame<'_>, count: usize, conn: &mut Conn, place: &mut Place<'_>) {
        let touches = frame.words[0].starts_with("gat");
        let with_cas = frame.words[0].ends_with('s');
        let from = if touches { 2 } else { 1 };
        let keys = &frame.words[from..];
        assert!(!keys.is_empty(), "a read without a key");
        assert!(keys.len() <= limits::BATCH_KEYS_MAX, "{} keys in one message", keys.len());
        assert!(frame.line_len <= limits::BATCH_BYTES_MAX, "a line of {} bytes", frame.line_len);
        for text in &keys[..count.min(keys.len())] {
            let key = place.key(text);
            let value = self.store.value(key);
            // A missing item cannot be touched.
            if touches && value.is_some() {
                let number = number(frame.words[1]);
                self.journal_update(number, UpdateKind::GetAndTouch, key, conn, place);
            } else {
                place.journal.event();
            }
            if let Some(value) = value {
                let Value { bytes, flags, cas, .. } = value;
                let cas = with_cas.then_some(*cas);
                put_value(&mut conn.output, text.as_bytes(), *flags, cas, bytes);
            }
        }
        if count == usize::MAX {
            say(conn, "END");
        }
    }

    fn store(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        let words = &frame.words;
        assert_eq!(words.len(), if words[0] == "cas" { 6 } else { 5 }, "arguments of {words:?}");
        let key = place.key(words[1]);
        let id = number(words[2]);
        let old = self.store.value(key).cloned();
        let cas = words.get(5).map(|text| number(text));
        let appended = matches!(words[0], "append" | "prepend");
        let id = if appended { data_number(frame.data) } else { id };
        let (outcome, bytes) = stored(words[0], old.as_ref(), cas, frame.data);
        let event = self.journal_store(key, id, outcome, conn, place);
        if let Some(bytes) = bytes {
            let flags = old.filter(|_| appended).map_or(id as u32, |old| old.flags);
            self.store.put(key, event, Some(Value::plain(bytes, flags, event)), Some(id as u32));
        }
        say(conn, outcome);
    }

    /// Records that an update is executed. It must be on its key's server, in order, and its client
    /// must still be waiting.
    pub fn journal_update(
        &self,
        id: u64,
        kind: UpdateKind,
        key: usize,
        conn: &mut Conn,
        place: &mut Place<'_>,
    ) -> u64 {
        let at = (place.pool, place.server, Some(key));
        let event = place.journal.execute(id, kind, at, place.is_live);
        place.check_update(id, key);
        check_cancelled(place, id, &self.silence, conn);
        event
    }

    /// Records that a store is executed, with its outcome.
    pub fn journal_store(
        &self,
        key: usize,
        id: u64,
        outcome: &'static str,
        conn: &mut Conn,
        place: &mut Place<'_>,
    ) -> u64 {
        let event = self.journal_update(id, UpdateKind::Store, key, conn, place);
        place.journal.updates[id as usize].outcome = Outcome::Words(outcome);
        event
    }

    fn count(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        let words = &frame.words;
        assert_eq!(words.len(), 3, "arguments of {words:?}");
        let key = place.key(words[1]);
        let id = number(words[2]);
        match self.journal_count(words[0], key, id, conn, place) {
            Outcome::Number(number) => say(conn, &number.to_string()),
            Outcome::Words(words) => say(conn, words),
        }
    }

    /// Executes `incr` or `decr`.
    pub fn journal_count(
        &mut self,
        word: &str,
        key: usize,
        id: u64,
        conn: &mut Conn,
        place: &mut Place<'_>,
    ) -> Outcome {
        let event = self.journal_update(id, UpdateKind::Delta, key, conn, place);
        let old = self.store.value(key).cloned();
        let text = old.as_ref().map(|old| std::str::from_utf8(&old.bytes).expect("ASCII values"));
        let outcome = match text.map(|text| text.parse::<u64>()) {
            None => Outcome::Words("NOT_FOUND"),
            Some(Err(_)) => Outcome::Words(NON_NUMERIC),
            Some(Ok(old)) if word == "incr" => Outcome::Number(old.wrapping_add(id)),
            Some(Ok(old)) => Outcome::Number(old.saturating_sub(id)),
        };
        place.journal.updates[id as usize].outcome = outcome;
        if let Outcome::Number(result) = outcome {
            let text = result.to_string();
            let flags = old.map_or(0, |old| old.flags);
            let value = Value::plain(Rc::from(text.as_bytes()), flags, event);
            self.store.put(key, event, Some(value), Some(id as u32));
        }
        outcome
    }

    fn touch(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        assert_eq!(frame.words.len(), 3, "arguments of {:?}", frame.words);
        let key = place.key(frame.words[1]);
        let id = number(frame.words[2]);
        self.journal_update(id, UpdateKind::Touch, key, conn, place);
        let found = self.store.value(key).is_some();
        let outcome = if found { "TOUCHED" } else { "NOT_FOUND" };
        place.journal.updates[id as usize].outcome = Outcome::Words(outcome);
        say(conn, outcome);
    }

    fn delete(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        assert_eq!(frame.words.len(), 2, "arguments of {:?}", frame.words);
        let key = place.key(frame.words[1]);
        let found = self.store.value(key).is_some();
        let event = place.journal.execute_delete(place.pool, key, found);
        self.store.put(key, event, None, None);
        say(conn, if found { "DELETED" } else { "NOT_FOUND" });
    }

    fn flush(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        assert_eq!(frame.words.len(), 2, "arguments of {:?}", frame.words);
        let at = (place.pool, place.server, None);
        let id = number(frame.words[1]);
        let event = place.journal.execute(id, UpdateKind::Flush, at, place.is_live);
        place.journal.updates[id as usize].outcome = Outcome::Words("OK");
        self.store.wipe(event);
        say(conn, "OK");
    }

    /// Answers with an error line without executing; some keys of a read of several may be
    /// answered.
    fn refuse(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        let line = place.journal.injected.len();
        let word = frame.words[0];
        if word == "version" {
            return self.refuse_handshake(conn, place);
        }
        let first = if word.starts_with("gat") { 2 } else { 1 };
        let is_read = word.starts_with("ge") || word.starts_with("gat");
        let alone = frame.words.len() == first + 1;
        if is_read && !alone && place.random.permille(500) {
            let count = place.random.below(frame.words.len() - first);
            self.fetch(frame, count, conn, place);
        }
        let keys = match word {
            "flush_all" => 0,
            _ if is_read => {
                frame.words[first..].iter().fold(0, |keys, text| keys | 1 << place.key(text))
            }
            _ => 1 << place.key(&frame.key()),
        };
        let alone = alone || !is_read;
        place.journal.injected.push(Injected { pool: place.pool, keys, alone });
        // A client may learn from such a line that its command was not executed.
        self.trouble.any = place.journal.event();
        self.trouble.injected = self.trouble.any;
        say(conn, &format!("SERVER_ERROR injected {line}"));
    }

    /// Refuses a handshake. A server that does not know `version` still knows the classic commands;
    /// any other error must not be accepted as a handshake.
    fn refuse_handshake(&mut self, conn: &mut Conn, place: &mut Place<'_>) {
        self.trouble.any = place.journal.event();
        if place.random.permille(500) {
            conn.has_lost_capability = true;
            self.ever_lacked = true;
            return say(conn, "ERROR");
        }
        let start = conn.output.len();
        say(conn, "SERVER_ERROR injected");
        conn.poison = conn.poison.or(Some((start, conn.output.len())));
    }
}

impl Place<'_> {
    /// Returns the key of that text. No unknown key may ever reach a server, and no key another
    /// server.
    pub fn key(&self, text: &str) -> usize {
        let key = text.get(..2).and_then(|digits| digits.parse::<usize>().ok());
        let key = key.filter(|key| self.keys.get(*key).is_some_and(|key| key.text == text));
        let key = key.unwrap_or_else(|| panic!("nobody asked for the key {text:?}"));
        self.check_way(key, 0);
        key
    }

    /// Checks that a request that arrived after that event may bring this key here.
    pub fn check_way(&self, key: usize, arrived: u64) {
        let owners = self.rings.owners(key, arrived);
        let is_one = owners & 1 << self.server != 0;
        assert!(is_one, "key {key} lives on {owners:#b} since {arrived}, not on {}", self.server);
    }

    /// Checks that the update brings this key here.
    pub fn check_update(&self, number: u64, key: usize) {
        self.check_way(key, self.journal.updates[number as usize].arrived);
    }
}

/// Returns the outcome of a storage command, and the new value.
pub fn stored(
    word: &str,
    old: Option<&Value>,
    cas: Option<u64>,
    data: &[u8],
) -> (&'static str, Option<Rc<[u8]>>) {
    let joined = |first: &[u8], second: &[u8]| Some(Rc::from([first, second].concat()));
    match (word, old) {
        ("add", Some(_)) | ("replace" | "append" | "prepend", None) => ("NOT_STORED", None),
        ("cas", None) => ("NOT_FOUND", None),
        ("cas", Some(old)) if Some(old.cas) != cas => ("EXISTS", None),
        ("append", Some(old)) => ("STORED", joined(&old.bytes, data)),
        ("prepend", Some(old)) => ("STORED", joined(data, &old.bytes)),
        _ => ("STORED", Some(Rc::from(data))),
    }
}

/// Sends a reply that is impossible for this command.
fn poison(frame: &Frame<'_>, conn: &mut Conn, random: &mut Random) {
    let is_read = frame.words[0].starts_with('g');
    let is_meta = ["mg", "ms", "md", "ma"].contains(&frame.words[0]);
    let wrong: &[&str] = if is_meta && random.permille(500) {
        // Well-formed replies to another request.
        &["HD k99never", "HD O99never", "HD kOTluZXZlcg== b", "HD k99never O7"]
    } else if is_read {
        &["STORED", "OK", "7", "VALUE 99never 0 1\r\nx", "VALUE ", "END ", "VALUE 99 0 0 0 0", ""]
    } else {
        &["END", "VALUE 99never 0 1\r\nx\r\nEND", "stored", "STORED ", " 7", "-1", "VERSION", ""]
    };
    say(conn, random.pick::<&str>(wrong));
    // The bytes that follow look valid, and must not be believed.
    if random.permille(300) {
        say(conn, "END");
    }
}

pub fn say(conn: &mut Conn, line: &str) {
    conn.output.extend_from_slice(line.as_bytes());
    conn.output.extend_from_slice(b"\r\n");
}

pub const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
