//! A model Redis server. It is stricter than Redis. A command must be canonical, carry the number
//! of a request that may be executed now, and arrive on a link of the right database and version of
//! RESP. The link's handshake selects both, once and for all.

use std::rc::Rc;

use crate::sim::conn::Conn;
use crate::sim::server::{Place, Server, Trick};
use crate::wire::resp::{
    THREE, put_array, put_bulk, put_line, put_null, put_number, read_command, value,
};

use super::client::MARK;
use super::ledger::{From, Kind, Loose, LooseReply, Wish};

/// A command as the server parses it.
pub struct Words {
    words: Vec<Vec<u8>>,
    /// Its name in capitals.
    pub name: String,
    pub len: usize,
}

impl Words {
    pub fn read(input: &[u8]) -> Option<Words> {
        let (words, len) = read_command(input)?;
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        Some(Words { words, name, len })
    }

    pub fn at(&self, at: usize) -> &[u8] {
        &self.words[at]
    }

    pub fn text(&self, at: usize) -> &str {
        std::str::from_utf8(self.at(at)).expect("the model writes text")
    }

    pub fn count(&self) -> usize {
        self.words.len()
    }
}

impl Server {
    /// Executes the first command of a connection, or its handshake. False: it is not whole.
    pub fn serve_redis(&mut self, conn: &mut Conn, place: &mut Place<'_>) -> bool {
        let input = std::mem::take(&mut conn.input);
        let used = match conn.conn_key {
            None => self.handshake(&input, conn, place),
            Some(_) => self.serve_one(&input, conn, place),
        };
        conn.input = input;
        let Some(used) = used else { return false };
        conn.reply_ends.push_back(conn.output.len());
        conn.input.drain(..used);
        conn.executed += used as u64;
        conn.messages += 1;
        true
    }

    pub fn trick_of(&mut self) -> Trick {
        match self.trick {
            Trick::NoSocket => Trick::None,
            _ => std::mem::replace(&mut self.trick, Trick::None),
        }
    }

    fn serve_one(&mut self, input: &[u8], conn: &mut Conn, place: &mut Place<'_>) -> Option<usize> {
        let words = Words::read(input)?;
        conn.is_mid_trial = words.name == "DISCARD" && conn.queue.is_none();
        conn.is_tried |= conn.is_mid_trial;
        conn.has_request |= !matches!(words.name.as_str(), "MULTI" | "EXEC" | "DISCARD");
        if conn.queue.is_some() || matches!(words.name.as_str(), "MULTI" | "EXEC" | "DISCARD") {
            let len = words.len;
            self.serve_transaction(words, conn, place);
            return Some(len);
        }
        if matches!(words.name.as_str(), "UNWATCH" | "PING" | "ECHO") {
            return Some(Server::unwatch_or_echo(&words, conn));
        }
        let start = conn.output.len();
        match self.trick_of() {
            Trick::None | Trick::NoSocket => self.do_one(&words, conn, place),
            Trick::ErrorLine => self.refuse_redis(&words, conn, place),
            Trick::Die => {
                self.do_one(&words, conn, place);
                conn.output.truncate(start);
                conn.is_over = true;
            }
            Trick::Poison => {
                // A transaction that follows `WATCH` is executed, and must be watched for.
                if words.name == "WATCH" || place.random.permille(500) {
                    self.do_one(&words, conn, place);
                    conn.output.truncate(start);
                }
                poison(&words.name, conn, place);
                conn.poison = conn.poison.or(Some((start, conn.output.len())));
            }
        }
        Some(words.len)
    }

    pub fn do_one(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let model = self.redis.as_ref().expect("it is Redis");
        if place.now < model.loads_until {
            return self.say_refusal(LOADING, words, conn, place);
        }
        match words.name.as_str() {
            "MGET" => self.mget(words, conn, place),
            "MSET" => self.mset(words, conn, place),
            "DEL" | "UNLINK" | "EXISTS" | "TOUCH" => self.sum(words, conn, place),
            "KEYS" => self.list_keys(words, conn, place),
            "SCAN" => self.scan(words, conn, place),
            "DBSIZE" | "RANDOMKEY" | "TIME" | "INFO" | "CONFIG" => {
                self.say_loose(words, conn, place)
            }
            "FLUSHDB" | "FLUSHALL" => self.flush_redis(words, conn, place),
            "SCRIPT" => self.script(words, conn, place),
            "WATCH" => self.watch(words, conn, place),
            "EVALSHA" | "EVALSHA_RO" if !self.knows(words) => {
                self.say_refusal(NO_SCRIPT, words, conn, place);
            }
            _ => {
                let arguments: Vec<&[u8]> = (1..words.count()).map(|at| words.at(at)).collect();
                self.whole(&words.name, &arguments, conn, place);
            }
        }
    }

    fn knows(&self, words: &Words) -> bool {
        let script = u64::from_str_radix(words.text(1), 16).expect("the model writes hashes");
        let scripts = &self.redis.as_ref().expect("it is Redis").scripts;
        u32::try_from(script).is_ok_and(|script| scripts.contains(&script))
    }

    /// Sends an error in place of the reply; nothing is executed.
    fn say_refusal(&mut self, line: &str, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let event = place.journal.event();
        let mut reply = Vec::new();
        put_line(&mut reply, line);
        if let Some(number) = wish_of(words, place) {
            place.check_wish(number, conn);
            let wish = &mut place.journal.redis.wishes[number as usize];
            wish.refusals.push((place.server, Rc::from(&reply[..])));
        } else if let Some(what) = loose_of(&words.name) {
            said(what, reply.clone(), event, conn, place);
        } else {
            place.journal.redis.errors.push((event, Rc::from(&reply[..])));
            // A command without a number may have met it as well.
            self.trouble.any = event;
        }
        conn.output.extend_from_slice(&reply);
    }

    /// Sends an error that any command may meet; some of these errors are retryable.
    fn refuse_redis(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let line = *place.random.pick(&[
            "-OOM command not allowed when used memory > 'maxmemory'.",
            "-ERR injected",
            "-MISCONF Redis is configured to save RDB snapshots, and cannot",
            "-TRYAGAIN Multiple keys request during rehashing of slot",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "-CLUSTERDOWN The cluster is down",
            LOADING,
        ]);
        self.say_refusal(line, words, conn, place);
    }

    fn mget(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let keys = place.wishes(words, 1, 1, conn);
        assert!(keys.len() <= KEYS_MAX, "{} keys in one message", keys.len());
        let mut whole = Vec::new();
        put_array(&mut whole, keys.len());
        for (number, at, key) in keys {
            let mut reply = Vec::new();
            self.put_text(key, conn, &mut reply);
            place.journal.event();
            whole.extend_from_slice(&reply);
            place.journal.redis.done(number, at, Rc::from(reply));
        }
        debug_assert!(value(&whole, THREE).is_ok());
        conn.output.extend_from_slice(&whole);
    }

    fn mset(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        assert!(words.count() % 2 == 1, "a key without its value");
        for (nth, (number, at, key)) in place.wishes(words, 1, 2, conn).into_iter().enumerate() {
            let value = words.at(2 + 2 * nth);
            let meant = &place.journal.redis.wishes[number as usize].values[at];
            assert!(
                value == meant,
                "the value of another key of wish {number}, or of another wish"
            );
            self.put(key, conn, value.to_vec());
            place.journal.event();
            place.journal.redis.done(number, at, Rc::from(&b"+OK\r\n"[..]));
        }
        put_line(&mut conn.output, "+OK");
    }

    fn sum(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let keys = place.wishes(words, 1, 1, conn);
        assert!(keys.len() <= KEYS_MAX, "{} keys in one message", keys.len());
        let mut sum = 0;
        for (number, at, key) in keys {
            let is_there = self.held(key, conn).is_some();
            if matches!(words.name.as_str(), "DEL" | "UNLINK") {
                *self.slot(key, conn) = None;
            }
            place.journal.event();
            let mut reply = Vec::new();
            put_number(&mut reply, i64::from(is_there));
            place.journal.redis.done(number, at, Rc::from(reply));
            sum += i64::from(is_there);
        }
        put_number(&mut conn.output, sum);
    }

    /// Lists all keys of the database, each with the name of this server.
    fn list_keys(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let number = mark(words.at(1));
        place.check_wish(number, conn);
        let keys = self.keys_of(conn, place);
        let mut reply = Vec::new();
        put_array(&mut reply, keys.len());
        keys.iter().for_each(|key| put_bulk(&mut reply, key));
        place.journal.event();
        conn.output.extend_from_slice(&reply);
        place.journal.redis.done(number, place.server, Rc::from(reply));
    }

    fn keys_of(&self, conn: &Conn, place: &Place<'_>) -> Vec<Vec<u8>> {
        let model = self.redis.as_ref().expect("it is Redis");
        model.keys(conn.database(), place.keys, place.server)
    }

    fn scan(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let number = mark(words.at(3));
        place.check_wish(number, conn);
        let cursor: u64 = words.text(1).parse().expect("a cursor");
        place.check_scan(number, cursor);
        let count: usize = words.text(5).parse().expect("a count");
        let keys = self.keys_of(conn, place);
        let from = place_of(cursor).min(keys.len());
        let to = (from + count).min(keys.len());
        let is_end = to == keys.len();
        let next = if is_end { 0 } else { cursor_of(to) };
        let mut tail = Vec::new();
        put_array(&mut tail, to - from);
        keys[from..to].iter().for_each(|key| put_bulk(&mut tail, key));
        put_array(&mut conn.output, 2);
        put_bulk(&mut conn.output, next.to_string().as_bytes());
        conn.output.extend_from_slice(&tail);
        let wish = &mut place.journal.redis.wishes[number as usize];
        wish.next = match is_end {
            true => From::After { server: place.server },
            false => From::At { server: place.server, cursor: next },
        };
        place.journal.event();
        place.journal.redis.done(number, place.server, Rc::from(tail));
    }

    /// Sends a reply without a number: any client with the same request and connection key may get
    /// it.
    fn say_loose(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let what = loose_of(&words.name).expect("the caller looked");
        let count = if what == Loose::Setting { 3 } else { 1 };
        assert_eq!(words.count(), count, "arguments of {}", words.name);
        let event = place.journal.event();
        let own = place.random.number() >> 30;
        let mut reply = Vec::new();
        match what {
            Loose::Size => put_number(&mut reply, own as i64),
            Loose::Random if own.is_multiple_of(3) => put_null(&mut reply, conn.proto_version()),
            Loose::Random => put_bulk(&mut reply, format!("some key {own}").as_bytes()),
            Loose::Time => {
                put_array(&mut reply, 2);
                put_bulk(&mut reply, own.to_string().as_bytes());
                put_bulk(&mut reply, b"0");
            }
            Loose::Info => {
                let text = format!("# Server\r\nrun_id:{own}\r\n");
                match conn.proto_version() {
                    3 => put_line(&mut reply, &format!("={}\r\ntxt:{text}", text.len() + 4)),
                    _ => put_bulk(&mut reply, text.as_bytes()),
                }
            }
            Loose::Setting => {
                put_line(&mut reply, if conn.proto_version() == 3 { "%1" } else { "*2" });
                put_bulk(&mut reply, words.at(2));
                put_bulk(&mut reply, own.to_string().as_bytes());
            }
        }
        conn.output.extend_from_slice(&reply);
        said(what, reply, event, conn, place);
    }

    fn flush_redis(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        assert_eq!(words.count(), 1, "{} has no arguments", words.name);
        let database = (words.name == "FLUSHDB").then_some(conn.database());
        let event = place.journal.event();
        let own = database.map(|database| database as u32);
        place.journal.redis.flush(place.pool, own, place.server, event);
        self.redis.as_mut().expect("it is Redis").wipe(database);
        put_line(&mut conn.output, "+OK");
    }

    fn script(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let model = self.redis.as_mut().expect("it is Redis");
        match words.text(1).to_ascii_uppercase().as_str() {
            "LOAD" => {
                // Any client that misses the script may load it again.
                let number =
                    words.text(2).strip_prefix("return ").expect("a script of the model's");
                let number: u32 = number.parse().expect("a number");
                let wish = &place.journal.redis.wishes[number as usize];
                assert_eq!((wish.pool, &wish.kind), (place.pool, &Kind::Load));
                model.scripts.insert(number);
                let mut reply = Vec::new();
                put_bulk(&mut reply, &super::client::sha(number));
                conn.output.extend_from_slice(&reply);
                place.journal.event();
                place.journal.redis.done(number, place.server, Rc::from(reply));
            }
            "EXISTS" => {
                let number = mark_of_sha(words.text(3));
                let known = mark_of_sha(words.text(2));
                let is_known = model.scripts.contains(&known);
                let reply = format!("*2\r\n:{}\r\n:0\r\n", u8::from(is_known)).into_bytes();
                conn.output.extend_from_slice(&reply);
                place.check_wish(number, conn);
                place.journal.event();
                place.journal.redis.done(number, place.server, Rc::from(reply));
            }
            "FLUSH" => {
                model.scripts.clear();
                place.journal.event();
                put_line(&mut conn.output, "+OK");
            }
            other => panic!("the proxy sends SCRIPT {other}"),
        }
    }
}

impl Place<'_> {
    /// Returns the requests of a command's keys: number, index of the key in it, key. Checks all of
    /// them.
    fn wishes(
        &mut self,
        words: &Words,
        first: usize,
        step: usize,
        conn: &Conn,
    ) -> Vec<(u32, usize, usize)> {
        let texts = (first..words.count()).step_by(step).map(|at| words.text(at));
        texts.map(|text| self.wish_key(text, conn)).collect()
    }

    /// `{03alpha:kk}#17.2`
    pub fn wish_key(&mut self, text: &str, conn: &Conn) -> (u32, usize, usize) {
        let (key, number, at) = split_key(text);
        let number_of: usize = key[1..3].parse().expect("a key begins with its number");
        assert_eq!(self.keys[number_of].text, key, "nobody has that key");
        self.check_wish(number, conn);
        let wish = &self.journal.redis.wishes[number as usize];
        assert_eq!(wish.keys.get(at).copied(), Some(number_of as u8), "another key of the wish");
        self.check_way(number_of, wish.arrived);
        (number, at, number_of)
    }

    /// Checks that the request may be executed now.
    pub fn check_wish(&mut self, number: u32, conn: &Conn) {
        let conn_key = (conn.database() as u32, conn.proto_version());
        self.journal.redis.check(number, (self.pool, conn.in_transaction), conn_key);
        if self.is_live {
            self.journal.redis.in_order(number, self.server);
        }
    }

    /// Checks that a scan continues at its position.
    fn check_scan(&self, number: u32, cursor: u64) {
        let wish = &self.journal.redis.wishes[number as usize];
        match wish.from {
            From::Unknown => {}
            // After a change of the ring, the first or next server is unknown.
            _ if self.rings.has_turned(wish.since.min(wish.arrived)) => {}
            From::Start => assert_eq!(cursor, 0, "a scan begins in the middle"),
            From::At { server, cursor: own } => {
                assert_eq!((self.server, cursor), (server, own), "a scan goes on elsewhere");
            }
            From::After { server } => {
                assert_eq!(cursor, 0, "a scan of the next server begins in the middle");
                assert_ne!(self.server, server, "a scan begins again");
            }
        }
    }
}

/// Returns the key, the request's number and the index in it.
pub fn split_key(text: &str) -> (&str, u32, usize) {
    let (key, mark) = text.rsplit_once('#').unwrap_or_else(|| panic!("no key: {text:?}"));
    let (wish, at) = mark.split_once('.').expect("a wish and a place");
    (key, wish.parse().expect("a number"), at.parse().expect("a number"))
}

/// Returns the request of a command, if the command carries its number.
pub fn wish_of(words: &Words, place: &Place<'_>) -> Option<u32> {
    match words.name.as_str() {
        "DBSIZE" | "RANDOMKEY" | "TIME" | "INFO" | "CONFIG" | "FLUSHDB" | "FLUSHALL" => None,
        "KEYS" => Some(mark(words.at(1))),
        "SCAN" => Some(mark(words.at(3))),
        // A load may be the proxy's own recovery, which belongs to no request.
        "SCRIPT" if words.at(1).eq_ignore_ascii_case(b"EXISTS") => Some(mark_of_sha(words.text(3))),
        "SCRIPT" if words.at(1).eq_ignore_ascii_case(b"LOAD") => {
            let number: u32 = words.text(2).strip_prefix("return ")?.parse().ok()?;
            let wish = &place.journal.redis.wishes[number as usize];
            (wish.parts[place.server].executed == 0 && wish.told == 0).then_some(number)
        }
        "SCRIPT" => None,
        "EVAL" | "EVALSHA" | "EVALSHA_RO" => Some(split_key(words.text(3)).1),
        _ => Some(split_key(words.text(1)).1),
    }
}

fn loose_of(name: &str) -> Option<Loose> {
    match name {
        "DBSIZE" => Some(Loose::Size),
        "RANDOMKEY" => Some(Loose::Random),
        "TIME" => Some(Loose::Time),
        "INFO" => Some(Loose::Info),
        "CONFIG" => Some(Loose::Setting),
        _ => None,
    }
}

fn said(what: Loose, reply: Vec<u8>, at: u64, conn: &Conn, place: &mut Place<'_>) {
    let (database, proto_version) = (conn.database() as u32, conn.proto_version());
    let (pool, server) = (place.pool, place.server);
    let is_his = |wish: &Wish| {
        let asks = match wish.kind {
            Kind::Size => what == Loose::Size,
            Kind::Loose(own) => own == what,
            _ => false,
        };
        let conn_key = (wish.pool, wish.database, wish.proto_version);
        asks && conn_key == (pool, database, proto_version) && wish.arrived != 0
    };
    let asked = place.journal.redis.wishes.iter().rev().any(is_his);
    assert!(asked, "nobody has asked for {what:?} in this database and version");
    let reply = Rc::from(reply);
    let loose = LooseReply { at, pool, server, database, proto_version, what, reply };
    place.journal.redis.loose_replies.push(loose);
}

/// `w17*`
fn mark(text: &[u8]) -> u32 {
    let text = std::str::from_utf8(text).expect("the model writes text");
    let digits = text.strip_prefix('w').and_then(|text| text.strip_suffix('*'));
    digits.expect("a mark").parse().expect("a number")
}

fn mark_of_sha(text: &str) -> u32 {
    let number = u64::from_str_radix(text, 16).expect("a hash of the model's");
    (number % MARK) as u32
}

/// Returns the number at the start of a value.
pub fn leading(value: &[u8]) -> u64 {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&value[..digits]).expect("digits").parse().expect("a number")
}

/// Makes a cursor: servers' cursors are not small numbers.
fn cursor_of(place: usize) -> u64 {
    (place as u64) << 40 | 7
}

fn place_of(cursor: u64) -> usize {
    (cursor >> 40) as usize
}

/// Sends a reply that is impossible for this command.
pub fn poison(name: &str, conn: &mut Conn, place: &mut Place<'_>) {
    const NOTHING: &[&str] =
        &["?what", "hello", "$-7", "*x", ">1\r\n+message", "$99999999999999999", ":", "*+1", ""];
    // The reply must have one element for each of its keys.
    const NO_ELEMENTS: &[&str] = &["*0", ":1", "+OK", "$1\r\nx", "*-1", "*1000"];
    let wrong = if name == "MGET" && place.random.permille(500) { NO_ELEMENTS } else { NOTHING };
    put_line(&mut conn.output, place.random.pick::<&str>(wrong));
    // The bytes that follow look valid, and must not be believed.
    if place.random.permille(300) {
        put_line(&mut conn.output, "+OK");
    }
}

pub const LOADING: &str = "-LOADING Redis is loading the dataset in memory";
const NO_SCRIPT: &str = "-NOSCRIPT No matching script. Please use EVAL.";

/// Limit on keys in a message for several clients, or in a part of a split request.
const KEYS_MAX: usize = 260;
