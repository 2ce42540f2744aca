//! The requests of model clients: a random mix of the whole protocol, good and bad.

use proxy::plan::PoolPlan;

use super::client::{Asked, Client};
use super::journal::{Journal, Update, UpdateKind};
use super::judge::TOO_LARGE;
use super::random::Random;
use super::scene::{Key, Scene};
use crate::wire::text::put_number;

/// The parts from which a request is made.
pub struct Asker<'a> {
    pub client: &'a mut Client,
    pub keys: &'a [Key],
    pub plan: &'a PoolPlan,
    pub journal: &'a mut Journal,
    pub random: &'a mut Random,
    pub scene: &'a Scene,
}

#[derive(Clone, Copy)]
enum Kind {
    Get,
    GetMany,
    Gets,
    Gat,
    Store,
    Cas,
    Delete,
    Delta,
    Touch,
    Flush,
    Local,
    Bad,
    Meta,
    Closing,
}

const MIX: &[(usize, Kind)] = &[
    (280, Kind::Get),
    (140, Kind::GetMany),
    (50, Kind::Gets),
    (40, Kind::Gat),
    (220, Kind::Store),
    (30, Kind::Cas),
    (40, Kind::Delete),
    (70, Kind::Delta),
    (30, Kind::Touch),
    (8, Kind::Flush),
    (20, Kind::Local),
    (40, Kind::Bad),
    (160, Kind::Meta),
    (4, Kind::Closing),
];

/// A request that is refused whatever the servers hold: its text and its answer.
type Bad = (&'static str, Asked);

impl Asker<'_> {
    pub fn ask(&mut self) {
        if self.client.talk.is_some() {
            return self.redis();
        }
        if self.client.is_binary {
            return self.binary();
        }
        match self.random.weighted(MIX) {
            Kind::Get => self.read("get", 1),
            Kind::GetMany => {
                let word = if self.random.permille(850) { "get" } else { "gets" };
                let count = self.key_count();
                self.read(word, count);
            }
            Kind::Gets => self.read("gets", 1),
            Kind::Gat => self.get_and_touch(),
            Kind::Store => self.store(),
            Kind::Cas => self.cas(),
            Kind::Delete => self.delete(),
            Kind::Delta => {
                let word = if self.random.permille(700) { "incr" } else { "decr" };
                self.keyed_number(word, UpdateKind::Delta);
            }
            Kind::Touch => self.keyed_number("touch", UpdateKind::Touch),
            Kind::Flush => self.flush(),
            Kind::Local => self.local(),
            Kind::Bad => self.bad(),
            Kind::Meta => self.meta(),
            Kind::Closing => self.closing(),
        }
    }

    /// Reads all keys, each once.
    pub fn read_all(&mut self) {
        if self.client.talk.is_some() {
            return self.read_all_redis();
        }
        if self.client.is_binary {
            return self.read_all_binary();
        }
        let is_plain = |key: &u8| !self.keys[usize::from(*key)].is_foreign;
        let keys = (0..self.keys.len() as u8).filter(is_plain).collect();
        self.read_keys("get", keys);
    }

    fn key_count(&mut self) -> usize {
        match self.random.below(100) {
            0 => self.random.range(90, 260),
            1..10 => self.random.range(10, 40),
            _ => self.random.range(2, 6),
        }
    }

    pub fn key(&mut self) -> usize {
        // A few hot keys, so that clients share them.
        let last = if self.random.permille(600) { 3 } else { self.keys.len() - 1 };
        let key = self.random.range(0, last);
        let may_ask =
            self.client.is_binary || self.client.talk.is_some() || !self.keys[key].is_foreign;
        if may_ask { key } else { self.random.range(0, 3) }
    }

    pub fn read(&mut self, word: &str, count: usize) {
        let keys = (0..count).map(|_| self.key() as u8).collect();
        self.read_keys(word, keys);
    }

    fn read_keys(&mut self, word: &str, keys: Vec<u8>) {
        let before = self.client.unsent.len();
        let out = &mut self.client.unsent;
        out.extend_from_slice(word.as_bytes());
        for key in &keys {
            out.push(b' ');
            out.extend_from_slice(self.keys[usize::from(*key)].text.as_bytes());
        }
        // memcached accepts stray spaces and a lone LF; the servers must never receive them.
        let end = *self.random.pick(&["\r\n", "\r\n", "\r\n", " \r\n", "\n"]);
        out.extend_from_slice(end.as_bytes());
        let with_cas = word.ends_with('s');
        self.expect(Asked::Read { keys, with_cas }, before, false, false);
    }

    fn get_and_touch(&mut self) {
        let count = self.random.range(1, 4);
        let mut keys: Vec<u8> = (0..count).map(|_| self.key() as u8).collect();
        keys.sort_unstable();
        keys.dedup();
        let number = self.new_update(UpdateKind::GetAndTouch, None, false);
        let with_cas = self.random.permille(400);
        let before = self.client.unsent.len();
        let out = &mut self.client.unsent;
        out.extend_from_slice(if with_cas { b"gats" } else { b"gat" });
        put_number(out, u64::from(number));
        for key in &keys {
            out.push(b' ');
            out.extend_from_slice(self.keys[usize::from(*key)].text.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        self.expect(Asked::Read { keys, with_cas }, before, false, false);
        self.client.expects.back_mut().expect("one was just added").touch = Some(number);
    }

    fn store(&mut self) {
        let word = *self.random.pick(&["set", "set", "set", "add", "replace", "append", "prepend"]);
        self.store_with(word, None);
    }

    fn cas(&mut self) {
        let key = self.key();
        // A cas number never seen is one that no server gave.
        let cas = self.client.cas[key];
        self.store_to("cas", key, Some(cas));
    }

    fn store_with(&mut self, word: &str, cas: Option<u64>) {
        let key = self.key();
        self.store_to(word, key, cas);
    }

    fn store_to(&mut self, word: &str, key: usize, cas: Option<u64>) {
        let quiet = self.is_quiet();
        self.store_as(word, key, cas, quiet);
    }

    /// Stores without an answer.
    pub fn quiet_store(&mut self) {
        let key = self.key();
        self.store_as("set", key, None, true);
    }

    /// Asks again for an update that was not done, as far as its client knows.
    pub fn repeat(&mut self, first: u32) {
        let Update { kind, key, .. } = self.journal.updates[first as usize];
        let key = key.filter(|key| !self.keys[*key].is_foreign);
        let Some(key) = key else { return };
        match kind {
            UpdateKind::Store => {
                let word = if self.random.permille(500) { "append" } else { "set" };
                self.store_as(word, key, None, false);
            }
            _ => self.number_to("incr", UpdateKind::Delta, key, false),
        }
        self.journal.updates.last_mut().expect("it was just added").repeats = Some(first);
    }

    /// Stores with an answer.
    pub fn loud_store(&mut self) {
        let key = self.key();
        self.store_as("set", key, None, false);
    }

    fn store_as(&mut self, word: &str, key: usize, cas: Option<u64>, quiet: bool) {
        let number = self.new_update(UpdateKind::Store, Some(key), quiet);
        self.may_remove(number, word == "set");
        let before = self.client.unsent.len();
        let value = self.value(number);
        let out = &mut self.client.unsent;
        out.extend_from_slice(word.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.keys[key].text.as_bytes());
        put_number(out, u64::from(number));
        out.extend_from_slice(b" 0");
        put_number(out, value.len() as u64);
        if let Some(cas) = cas {
            put_number(out, cas);
        }
        if quiet {
            out.extend_from_slice(b" noreply");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&value);
        out.extend_from_slice(b"\r\n");
        self.expect(Asked::Update(number), before, quiet, false);
    }

    /// Returns the value that an update stores: its number, and usually more bytes.
    pub fn value(&mut self, number: u32) -> Vec<u8> {
        let value_len = self.value_len();
        let digits = self.random.permille(300);
        let mut value = Vec::with_capacity(value_len + 12);
        put_number(&mut value, u64::from(number));
        value.remove(0);
        if !digits {
            value.push(b'.');
            let fill = value_len.saturating_sub(value.len());
            value.extend((0..fill).map(|at| b'a' + (at % 26) as u8));
        }
        value
    }

    fn value_len(&mut self) -> usize {
        let max = self.item_size_max();
        if self.random.permille(self.scene.large_permille) {
            return self.random.range(max / 10, max);
        }
        self.random.range(0, 40).min(max)
    }

    fn item_size_max(&self) -> usize {
        self.plan.item_size_max
    }

    fn keyed_number(&mut self, word: &str, kind: UpdateKind) {
        let key = self.key();
        let quiet = self.is_quiet();
        self.number_to(word, kind, key, quiet);
    }

    fn number_to(&mut self, word: &str, kind: UpdateKind, key: usize, quiet: bool) {
        let number = self.new_update(kind, Some(key), quiet);
        let before = self.client.unsent.len();
        let out = &mut self.client.unsent;
        out.extend_from_slice(word.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.keys[key].text.as_bytes());
        put_number(out, u64::from(number));
        self.end_line(quiet);
        self.expect(Asked::Update(number), before, quiet, false);
    }

    fn delete(&mut self) {
        let key = self.key();
        let quiet = self.is_quiet();
        let before = self.client.unsent.len();
        let out = &mut self.client.unsent;
        out.extend_from_slice(b"delete ");
        out.extend_from_slice(self.keys[key].text.as_bytes());
        if self.random.permille(300) {
            out.extend_from_slice(b" 0");
        }
        self.end_line(quiet);
        self.expect(Asked::Delete { key }, before, quiet, false);
    }

    fn flush(&mut self) {
        let quiet = self.is_quiet();
        let allowed = !self.plan.allow.is_empty();
        let before = self.client.unsent.len();
        if !allowed {
            self.client.unsent.extend_from_slice(b"flush_all 0");
            self.end_line(quiet);
            return self.expect(Asked::Prefix("CLIENT_ERROR refused"), before, quiet, false);
        }
        let number = self.new_update(UpdateKind::Flush, None, quiet);
        self.client.unsent.extend_from_slice(b"flush_all");
        put_number(&mut self.client.unsent, u64::from(number));
        self.end_line(quiet);
        self.expect(Asked::Update(number), before, quiet, false);
    }

    fn local(&mut self) {
        let quiet = Asked::Nothing;
        let (text, asked, is_quiet) = match self.random.below(4) {
            0 => ("version\r\n", Asked::Prefix("VERSION "), false),
            1 => ("verbosity 1\r\n", Asked::Line("OK"), false),
            2 => ("verbosity 1 noreply\r\n", quiet, true),
            _ => ("stats proxy\r\n", Asked::Stats, false),
        };
        self.say(text, asked, is_quiet, false);
    }

    fn bad(&mut self) {
        match self.random.below(20) {
            0..2 => self.too_large(),
            2 => self.long_key(),
            3..5 => self.say("incr 00 x noreply\r\n", Asked::Nothing, true, false),
            _ => {
                let (text, asked) = bad(self.random.below(12));
                let by_head = matches!(asked, Asked::Line(BAD_LINE) | Asked::Prefix(_));
                let head_len = text.find('\n').map_or(0, |at| at + 1);
                self.say(text, asked, false, false);
                if by_head {
                    self.client.answered_by_head((text.len() - head_len) as u64);
                }
            }
        }
    }

    /// Refused by its head; the proxy must discard its data all the same.
    fn too_large(&mut self) {
        let quiet = self.is_quiet();
        let len = self.item_size_max() + self.random.range(1, 300);
        let key = self.key();
        let word = *self.random.pick(&["set", "set", "set", "add"]);
        let before = self.client.unsent.len();
        let out = &mut self.client.unsent;
        out.extend_from_slice(word.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.keys[key].text.as_bytes());
        out.extend_from_slice(b" 0 0");
        put_number(out, len as u64);
        self.end_line(quiet);
        let out = &mut self.client.unsent;
        let head_end = out.len();
        // The data look like commands, in case the proxy parses them.
        out.extend(b"get 99\r\n".iter().cycle().take(len));
        out.extend_from_slice(b"\r\n");
        let body_len = (out.len() - head_end) as u64;
        let asked = match word {
            "set" => Asked::TooLarge { key },
            _ => Asked::Line(TOO_LARGE),
        };
        self.expect(asked, before, quiet, false);
        self.client.answered_by_head(body_len);
    }

    fn long_key(&mut self) {
        let before = self.client.unsent.len();
        self.client.unsent.extend_from_slice(b"get ");
        self.client.unsent.extend(std::iter::repeat_n(b'9', 251));
        self.client.unsent.extend_from_slice(b"\r\n");
        self.expect(Asked::Line(BAD_LINE), before, false, false);
    }

    /// Sends a request after which the proxy closes, and more that must not be answered.
    fn closing(&mut self) {
        let (text, asked) = match self.random.below(4) {
            0 => ("GET / HTTP/1.1\r\n", Asked::Nothing),
            1 => ("set 00 0 0 -1\r\n", Asked::Line(BAD_LINE)),
            _ => ("quit\r\n", Asked::Nothing),
        };
        let is_quiet = matches!(asked, Asked::Nothing);
        self.say(text, asked, is_quiet, true);
        if self.random.permille(500) {
            self.client.unsent.extend_from_slice(b"get 99\r\nversion\r\n");
            self.client.written += 17;
        }
    }

    fn say(&mut self, text: &str, asked: Asked, is_quiet: bool, is_last: bool) {
        let before = self.client.unsent.len();
        self.client.unsent.extend_from_slice(text.as_bytes());
        self.expect(asked, before, is_quiet, is_last);
    }

    fn is_quiet(&mut self) -> bool {
        self.random.permille(150)
    }

    fn end_line(&mut self, quiet: bool) {
        let end: &[u8] = if quiet { b" noreply\r\n" } else { b"\r\n" };
        self.client.unsent.extend_from_slice(end);
    }

    pub fn new_update(&mut self, kind: UpdateKind, key: Option<usize>, quiet: bool) -> u32 {
        let whose = (self.client.number, self.client.requests + 1);
        self.journal.add(kind, (self.client.pool, key), whose, quiet)
    }

    /// Records that a store without memory for its data removes its key, if `removes`.
    pub fn may_remove(&mut self, number: u32, removes: bool) {
        if removes && self.scene.tight_memory {
            self.journal.may_remove(number);
        }
    }

    pub fn expect(&mut self, asked: Asked, before: usize, is_quiet: bool, is_last: bool) {
        let len = self.client.unsent.len() - before;
        self.client.expect(asked, len, is_quiet, is_last);
    }
}

fn bad(which: usize) -> Bad {
    let refused = || Asked::Prefix("CLIENT_ERROR refused by the proxy");
    match which {
        0 => ("bogus 00\r\n", Asked::Line("ERROR")),
        1 => ("get\r\n", Asked::Line("ERROR")),
        2 => ("\r\n", Asked::Line("ERROR")),
        3 => ("incr 00 x\r\n", Asked::Line("CLIENT_ERROR invalid numeric delta argument")),
        4 => ("touch 00 x\r\n", Asked::Line("CLIENT_ERROR invalid exptime argument")),
        5 => ("delete 00 5\r\n", Asked::Prefix("CLIENT_ERROR bad command line format")),
        6 => ("add 00 0 0 5\r\nabcdeXY", Asked::Line("CLIENT_ERROR bad data chunk")),
        7 => ("set 00 -1 0 5\r\nabcde\r\n", Asked::Line(BAD_LINE)),
        8 => ("mg\r\n", Asked::Line("ERROR")),
        9 => ("flush_all x\r\n", Asked::Line("CLIENT_ERROR invalid exptime argument")),
        10 => ("shutdown\r\n", refused()),
        _ => ("slabs reassign 1 2\r\n", refused()),
    }
}

const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
