//! The requests of Redis clients: all kinds, in pipelines, in several databases and both versions
//! of RESP, with and without answers.

use crate::sim::ask::Asker;
use crate::sim::client::Asked;
use crate::wire::resp::push_command;

use super::inline::{is_inline, put_inline};
use super::ledger::{From, Kind, Loose, Wish};

/// A client's session settings.
pub struct Talk {
    pub database: u32,
    pub proto_version: u8,
    pub reply_mode: ReplyMode,
    /// Its last request determines the meaning of the next ones, so it waits for the answer.
    pub waits: bool,
    /// Its scan: the cursor that it was given, the position behind it, and the event at which it
    /// was given.
    pub scan: Option<(Vec<u8>, From, u64)>,
    /// The keys that the scan has found.
    pub found: Vec<Vec<u8>>,
    pub name: String,
}

/// The reply mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyMode {
    On,
    Off,
    /// All answers but the next.
    SkipNext,
}

impl Talk {
    pub fn new() -> Talk {
        Talk {
            database: 0,
            proto_version: 2,
            reply_mode: ReplyMode::On,
            waits: false,
            scan: None,
            found: Vec::new(),
            name: String::new(),
        }
    }
}

#[derive(Clone, Copy)]
enum Ask {
    Read,
    Change,
    Tree,
    Each,
    All,
    Sum,
    Together,
    Script,
    Broad,
    Scan,
    Transaction,
    Flush,
    Select,
    Hello,
    Mute,
    Local,
    Bad,
    Closing,
}

const MIX: &[(usize, Ask)] = &[
    (190, Ask::Read),
    (190, Ask::Change),
    (60, Ask::Tree),
    (90, Ask::Each),
    (50, Ask::All),
    (70, Ask::Sum),
    (50, Ask::Together),
    (60, Ask::Script),
    (35, Ask::Broad),
    (40, Ask::Scan),
    (60, Ask::Transaction),
    (6, Ask::Flush),
    (40, Ask::Select),
    (15, Ask::Hello),
    (25, Ask::Mute),
    (40, Ask::Local),
    (30, Ask::Bad),
    (3, Ask::Closing),
];

impl Asker<'_> {
    pub fn redis(&mut self) {
        if self.talk().waits {
            return;
        }
        match self.random.weighted(MIX) {
            Ask::Read => self.read_text(),
            Ask::Change => self.change(),
            Ask::Tree => self.tree(),
            Ask::Each => self.each(),
            Ask::All => self.all(),
            Ask::Sum => self.sum(),
            Ask::Together => self.together(),
            Ask::Script => self.script(),
            Ask::Broad => self.broad(),
            Ask::Scan => self.scan(),
            Ask::Transaction => self.transaction(),
            Ask::Flush => self.flush_all(),
            Ask::Select => self.select(),
            Ask::Hello => self.write_handshake(),
            Ask::Mute => self.mute(),
            Ask::Local => self.redis_local(),
            Ask::Bad => self.redis_bad(),
            Ask::Closing => self.redis_closing(),
        }
    }

    pub fn talk(&mut self) -> &mut Talk {
        self.client.talk.as_mut().expect("it speaks Redis")
    }

    /// Reads all keys of its database at once, and then each of them alone.
    pub fn read_all_redis(&mut self) {
        if self.talk().reply_mode != ReplyMode::On {
            self.say_mute("ON");
        }
        let keys: Vec<u8> = (0..self.keys.len() as u8).collect();
        self.keyed("MGET", Wish::new(Kind::Each, false, keys.clone()), &[]);
        for key in keys {
            self.keyed("GET", Wish::new(Kind::Single, false, vec![key]), &[]);
        }
        self.one_of("DBSIZE", Kind::Size);
        // Its server has just forgotten the script.
        let known = self.journal.redis.scripts.get(&self.client.pool).cloned().unwrap_or_default();
        if let Some(script) = known.last().copied() {
            let keys = vec![self.key() as u8];
            let wish = Wish { script: Some(script), ..Wish::new(Kind::Single, true, keys) };
            self.numbered("EVALSHA", &sha(script), wish);
        }
    }

    fn some_keys(&mut self, most: usize) -> Vec<u8> {
        let count = match self.random.below(60) {
            0 => self.random.range(90, 260),
            1..8 => self.random.range(8, 30),
            _ => self.random.range(1, 6),
        };
        (0..count.min(most)).map(|_| self.key() as u8).collect()
    }

    fn read_text(&mut self) {
        let word = *self.random.pick(&["GET", "GET", "GET", "STRLEN", "TYPE", "get"]);
        let key = self.key() as u8;
        self.keyed(word, Wish::new(Kind::Single, false, vec![key]), &[]);
    }

    fn tree(&mut self) {
        let key = self.key() as u8;
        let wish = Wish::new(Kind::Single, false, vec![key]);
        match self.random.below(4) {
            0 => self.keyed("LRANGE", wish, &[b"0", b"-1"]),
            1 => self.keyed("SMEMBERS", wish, &[]),
            2 => self.keyed("HGETALL", wish, &[]),
            _ => self.keyed("XRANGE", wish, &[b"-", b"+"]),
        }
    }

    fn change(&mut self) {
        let key = self.key() as u8;
        let wish = || Wish::new(Kind::Single, true, vec![key]);
        let number = self.journal.redis.wishes.len() as u32;
        match self.random.below(12) {
            0..4 => {
                let value = self.value(number);
                self.keyed("SET", wish(), &[&value]);
            }
            4 => {
                let value = self.value(number);
                self.keyed("SETEX", wish(), &[b"100", &value]);
            }
            5 => {
                let value = self.value(number);
                self.keyed("SETNX", wish(), &[&value]);
            }
            6 => {
                let value = self.value(number);
                self.keyed("APPEND", wish(), &[&value]);
            }
            7 => self.keyed("GETDEL", wish(), &[]),
            8 => self.keyed("RPUSH", wish(), &[number.to_string().as_bytes()]),
            9 => self.keyed("LPOP", wish(), &[]),
            _ => {
                let by = number.to_string();
                self.keyed("INCRBY", wish(), &[by.as_bytes()]);
            }
        }
    }

    fn each(&mut self) {
        let keys = self.some_keys(260);
        self.keyed("MGET", Wish::new(Kind::Each, false, keys), &[]);
    }

    fn sum(&mut self) {
        let (word, writes) = *self.random.pick(&[
            ("DEL", true),
            ("UNLINK", true),
            ("EXISTS", false),
            ("TOUCH", false),
        ]);
        let keys = self.some_keys(260);
        // Such a command with one key counts only that key.
        self.keyed(word, Wish::new(Kind::Sum, writes, keys), &[]);
    }

    fn all(&mut self) {
        let keys = self.some_keys(120);
        let number = self.journal.redis.wishes.len() as u32;
        let values: Vec<Vec<u8>> = keys.iter().map(|_| self.value(number)).collect();
        self.paired("MSET", Wish::new(Kind::All, true, keys), &values);
    }

    /// Sends a command whose keys must be on one server.
    fn together(&mut self) {
        let mut keys = self.some_keys(4);
        if self.random.permille(400) {
            let first = keys[0];
            keys.iter_mut().for_each(|key| *key = first);
        }
        let number = self.journal.redis.wishes.len() as u32;
        match self.random.below(4) {
            0 => {
                let values: Vec<Vec<u8>> = keys.iter().map(|_| self.value(number)).collect();
                self.paired("MSETNX", Wish::new(Kind::Single, true, keys), &values);
            }
            1 => self.keyed("SUNION", Wish::new(Kind::Single, false, keys), &[]),
            2 => self.keyed("PFCOUNT", Wish::new(Kind::Single, false, keys), &[]),
            _ => {
                keys.resize(2, keys[0]);
                self.keyed("RENAME", Wish::new(Kind::Single, true, keys), &[]);
            }
        }
    }

    fn script(&mut self) {
        let pool = self.client.pool;
        let number = self.journal.redis.wishes.len() as u32;
        let known = self.journal.redis.scripts.get(&pool).cloned().unwrap_or_default();
        match self.random.below(20) {
            0..4 => {
                let text = format!("return {number}");
                self.journal.redis.scripts.entry(pool).or_default().push(number);
                let wish = Wish::new(Kind::Load, false, Vec::new());
                self.broadcast(wish, &[b"SCRIPT", b"LOAD", text.as_bytes()]);
            }
            4 if !known.is_empty() => {
                let sha = sha(*self.random.pick(&known));
                let wish = Wish::new(Kind::Known, false, Vec::new());
                // The second hash identifies the request; nobody has loaded a script with it.
                let mark = format!("{:040x}", MARK + u64::from(number));
                self.broadcast(wish, &[b"SCRIPT", b"EXISTS", &sha, mark.as_bytes()]);
            }
            5 if self.random.permille(200) => {
                let wish = Wish::new(Kind::Forget, true, Vec::new());
                self.plain(wish, &[b"SCRIPT", b"FLUSH"]);
            }
            6 => {
                let key = self.key() as u8;
                let wish = Wish::new(Kind::Single, true, vec![key]);
                self.numbered("EVAL", b"return 0", wish);
            }
            _ => {
                let (script, text) = match known.is_empty() || self.random.permille(50) {
                    true => (None, sha(u32::MAX)),
                    false => {
                        // Usually a recent script, which other clients have loaded too.
                        let first = known.len().saturating_sub(3);
                        let script = *self.random.pick(&known[first..]);
                        (Some(script), sha(script))
                    }
                };
                let keys = vec![self.key() as u8];
                let writes = self.random.permille(700);
                let word = if writes { "EVALSHA" } else { "EVALSHA_RO" };
                let wish = Wish { script, ..Wish::new(Kind::Single, writes, keys) };
                self.numbered(word, &text, wish);
            }
        }
    }

    /// Sends a script, the number of keys, and the keys.
    fn numbered(&mut self, word: &str, script: &[u8], wish: Wish) {
        let keys = self.key_texts(&wish.keys);
        let count = keys.len().to_string();
        let mut arguments: Vec<&[u8]> = vec![word.as_bytes(), script, count.as_bytes()];
        arguments.extend(keys.iter().map(Vec::as_slice));
        self.ask_for(wish, &arguments);
    }

    fn broad(&mut self) {
        match self.random.below(5) {
            0..2 => {
                let pattern = format!("w{}*", self.journal.redis.wishes.len());
                let wish = Wish::new(Kind::Keys, false, Vec::new());
                self.broadcast(wish, &[b"KEYS", pattern.as_bytes()]);
            }
            2 => self.one_of("RANDOMKEY", Kind::Loose(Loose::Random)),
            3 => self.one_of("TIME", Kind::Loose(Loose::Time)),
            _ => self.one_of("DBSIZE", Kind::Size),
        }
    }

    fn one_of(&mut self, word: &str, kind: Kind) {
        self.plain(Wish::new(kind, false, Vec::new()), &[word.as_bytes()]);
    }

    fn scan(&mut self) {
        let (cursor, from, told) = match self.talk().scan.take() {
            Some(scan) if !self.random.permille(100) => scan,
            _ => (b"0".to_vec(), From::Start, u64::MAX),
        };
        self.scan_from(&cursor, from, told);
    }

    pub fn scan_from(&mut self, cursor: &[u8], from: From, since: u64) {
        let pattern = format!("w{}*", self.journal.redis.wishes.len());
        let count = self.random.range(1, 12).to_string();
        let wish = Wish { from, since, ..Wish::new(Kind::Scan, false, Vec::new()) };
        self.broadcast(
            wish,
            &[b"SCAN", cursor, b"MATCH", pattern.as_bytes(), b"COUNT", count.as_bytes()],
        );
    }

    fn flush_all(&mut self) {
        let all = self.random.permille(300);
        let word = if all { "FLUSHALL" } else { "FLUSHDB" };
        let allowed = self.plan.allow.iter().any(|one| one.eq_ignore_ascii_case(word));
        let kind = if allowed { Kind::Flush { all } } else { Kind::Begins(b"-ERR ") };
        self.plain(Wish::new(kind, allowed, Vec::new()), &[word.as_bytes()]);
    }

    fn select(&mut self) {
        let databases = self.plan.databases;
        let number = self.random.below(databases as usize + 1) as u32;
        let is_good = number < databases;
        let kind = if is_good { OK.into() } else { Kind::Begins(b"-ERR ") };
        self.plain(Wish::new(kind, false, Vec::new()), &[b"SELECT", number.to_string().as_bytes()]);
        if is_good {
            let talk = self.talk();
            talk.database = number;
            talk.scan = None;
        }
    }

    fn write_handshake(&mut self) {
        let version = if self.random.permille(600) { 3 } else { 2 };
        // The session settings take effect when the request is answered.
        if self.talk().reply_mode != ReplyMode::On {
            return;
        }
        let text = [b'0' + version];
        self.plain(Wish::new(Kind::Hello(version), false, Vec::new()), &[b"HELLO", &text]);
        self.talk().waits = true;
    }

    fn mute(&mut self) {
        let word = match (self.talk().reply_mode, self.random.below(4)) {
            (ReplyMode::On, 0) => "OFF",
            (ReplyMode::On, _) => "SKIP",
            _ => "ON",
        };
        self.say_mute(word);
    }

    fn say_mute(&mut self, word: &str) {
        let talk = self.talk();
        let after = match word {
            "ON" => ReplyMode::On,
            "OFF" => ReplyMode::Off,
            _ => ReplyMode::SkipNext,
        };
        // `ON` is always answered, the others never are.
        talk.reply_mode = if word == "ON" { ReplyMode::On } else { ReplyMode::Off };
        self.plain(
            Wish::new(OK.into(), false, Vec::new()),
            &[b"CLIENT", b"REPLY", word.as_bytes()],
        );
        self.talk().reply_mode = after;
    }

    /// Returns the keys of a request as they are sent, each with its number.
    fn key_texts(&self, keys: &[u8]) -> Vec<Vec<u8>> {
        let wish = self.journal.redis.wishes.len();
        let text = |(at, key): (usize, &u8)| {
            format!("{}#{wish}.{at}", self.keys[usize::from(*key)].text).into_bytes()
        };
        keys.iter().enumerate().map(text).collect()
    }

    pub fn keyed(&mut self, word: &str, wish: Wish, rest: &[&[u8]]) {
        let keys = self.key_texts(&wish.keys);
        let mut arguments = vec![word.as_bytes()];
        arguments.extend(keys.iter().map(Vec::as_slice));
        arguments.extend_from_slice(rest);
        self.ask_for(wish, &arguments);
    }

    /// Sends each key with its value.
    fn paired(&mut self, word: &str, mut wish: Wish, values: &[Vec<u8>]) {
        let keys = self.key_texts(&wish.keys);
        let mut arguments = vec![word.as_bytes()];
        for (key, value) in keys.iter().zip(values) {
            arguments.extend_from_slice(&[key, value]);
        }
        wish.values = values.to_vec();
        self.ask_for(wish, &arguments);
    }

    /// Sends a command that goes to all servers, or to each in turn.
    fn broadcast(&mut self, mut wish: Wish, arguments: &[&[u8]]) {
        wish.parts.resize_with(SERVERS_MAX, Default::default);
        self.ask_for(wish, arguments);
    }

    pub fn plain(&mut self, wish: Wish, arguments: &[&[u8]]) {
        self.ask_for(wish, arguments);
    }

    fn ask_for(&mut self, mut wish: Wish, arguments: &[&[u8]]) {
        let before = self.client.unsent.len();
        let is_plain = arguments.iter().all(|one| is_inline(one));
        let out = &mut self.client.unsent;
        if is_plain && self.random.permille(100) {
            put_inline(out, arguments, self.random);
            wish.is_inline = true;
        } else {
            push_command(arguments, out);
        }
        self.wish(wish, before, false);
    }

    /// Records the command just written as a request of this client.
    pub fn wish(&mut self, wish: Wish, before: usize, is_last: bool) {
        let talk = self.client.talk.as_mut().expect("it speaks Redis");
        let quiet = talk.reply_mode != ReplyMode::On;
        if talk.reply_mode == ReplyMode::SkipNext {
            talk.reply_mode = ReplyMode::On;
        }
        let (database, proto_version) = (talk.database, talk.proto_version);
        let (client, index) = (self.client.number, self.client.requests + 1);
        let pool = self.client.pool;
        let number = self.journal.redis.add(Wish {
            pool,
            client,
            index,
            database,
            proto_version,
            quiet,
            ..wish
        });
        self.expect(Asked::Redis(number), before, quiet, is_last);
    }
}

/// Returns the stand-in for a script's hash.
pub fn sha(wish: u32) -> Vec<u8> {
    format!("{wish:040x}").into_bytes()
}

/// A command that always gets the same answer.
pub struct Simple(&'static [u8]);

impl std::convert::From<Simple> for Kind {
    fn from(simple: Simple) -> Kind {
        Kind::Exactly(simple.0.to_vec())
    }
}

pub const OK: Simple = Simple(b"+OK\r\n");

/// The answer before the proxy closes.
pub const PROTOCOL_ERROR: &[u8] = b"-ERR Protocol error: ";

/// Greater than all numbers of scripts: marks a hash that identifies a request.
pub const MARK: u64 = 1 << 40;

/// More servers than any pool has.
pub const SERVERS_MAX: usize = 8;
