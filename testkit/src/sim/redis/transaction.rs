//! Transactions: model clients write them, model servers execute them whole, and the judge
//! compares each element with what the server answered to that command.
//!
//! The number of the MULTI is the number of the transaction: its commands have the next numbers,
//! and its end has the one after them.

use std::rc::Rc;

use crate::sim::ask::Asker;
use crate::sim::client::Expect;
use crate::sim::conn::Conn;
use crate::sim::judge::Judge;
use crate::sim::server::{Place, Server, Trick};
use crate::wire::resp::{put_array, put_line};
use crate::wire::without_first_error;

use super::client::{OK, ReplyMode};
use super::judge::{array, lossy};
use super::ledger::{Kind, Wish};
use super::server::{LOADING, Words, poison, wish_of};

/// The transaction of a connection at a model server.
#[derive(Default)]
pub struct Queue {
    /// Its number, once a command has shown it.
    number: Option<u32>,
    commands: Vec<Words>,
    /// A command was refused.
    is_spoilt: bool,
}

const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.";
const ABORTED_LOADING: &str = "-EXECABORT Transaction discarded because of: \
    LOADING Redis is loading the dataset in memory";
const MOVED: &str =
    "-ERR the keys of the transaction are on different servers by now; nothing was executed\r\n";

impl Asker<'_> {
    /// Writes a transaction. Most have all keys on one server.
    pub fn transaction(&mut self) {
        if self.talk().reply_mode != ReplyMode::On {
            return;
        }
        let own = self.key() as u8;
        let watch = self.watch(own);
        let number = self.journal.redis.wishes.len() as u32;
        self.plain(Wish::new(OK.into(), false, Vec::new()), &[b"MULTI"]);
        self.journal.redis.wishes[number as usize].watch = watch;
        let count = self.random.below(6) as u32;
        let (mut keys, mut writes) = (Vec::new(), false);
        for _ in 0..count {
            let key = if self.random.permille(40) { self.key() as u8 } else { own };
            let wish = |writes, keys| Wish::new(Kind::Queued(number), writes, keys);
            let value = self.value(self.journal.redis.wishes.len() as u32);
            let is_update = self.random.permille(600);
            match (self.random.below(6), is_update) {
                (0, _) => {
                    let values = vec![b"+PONG\r\n".to_vec()];
                    let wish = Wish { values, ..wish(false, Vec::new()) };
                    self.plain(wish, &[b"PING"]);
                    continue;
                }
                (1, false) => self.keyed("GET", wish(false, vec![key]), &[]),
                (2, false) => self.keyed("SUNION", wish(false, vec![key, key]), &[]),
                (_, false) => self.keyed("HGETALL", wish(false, vec![key]), &[]),
                (1, true) => self.keyed("SET", wish(true, vec![key]), &[&value]),
                (2, true) => self.keyed("APPEND", wish(true, vec![key]), &[&value]),
                (3, true) => self.keyed("LPOP", wish(true, vec![key]), &[]),
                (_, true) => {
                    let by = self.journal.redis.wishes.len().to_string();
                    self.keyed("INCRBY", wish(true, vec![key]), &[by.as_bytes()]);
                }
            }
            keys.push(key);
            writes |= is_update;
        }
        match self.random.permille(850) {
            true => self.plain(Wish::new(Kind::Exec(number), writes, keys), &[b"EXEC"]),
            false => {
                self.plain(Wish::new(Kind::Discard(number), false, Vec::new()), &[b"DISCARD"]);
            }
        }
    }
}

impl Asker<'_> {
    /// Writes what watches a key, sometimes; returns its number, unless it is given up again.
    fn watch(&mut self, key: u8) -> Option<u32> {
        if !self.random.permille(300) {
            return None;
        }
        let number = self.journal.redis.wishes.len() as u32;
        self.keyed("WATCH", Wish::new(Kind::Single, false, vec![key]), &[]);
        if self.random.permille(500) {
            self.keyed("GET", Wish::new(Kind::Single, false, vec![key]), &[]);
        }
        if self.random.permille(150) {
            self.plain(Wish::new(OK.into(), false, Vec::new()), &[b"UNWATCH"]);
            return None;
        }
        Some(number)
    }
}

impl Server {
    /// Watches a key for a connection.
    pub fn watch(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let number = wish_of(words, place).expect("it has a key");
        assert!(conn.is_private, "wish {number} is watched on a link that others share");
        place.check_wish(number, conn);
        place.journal.event();
        put_line(&mut conn.output, "+OK");
        place.journal.redis.done_whole(number, place.server, Rc::from(&b"+OK\r\n"[..]));
        conn.watches.push(number);
    }

    /// Watches nothing any more for a connection, or answers a client that asks only whether the
    /// server is there; returns how many bytes that took.
    pub fn unwatch_or_echo(words: &Words, conn: &mut Conn) -> usize {
        match (words.name.as_str(), words.count()) {
            ("UNWATCH", _) => {
                conn.watches.clear();
                put_line(&mut conn.output, "+OK");
            }
            (_, 1) => put_line(&mut conn.output, "+PONG"),
            _ => {
                let word = String::from_utf8_lossy(words.at(1));
                put_line(&mut conn.output, &format!("${}\r\n{word}", word.len()));
            }
        }
        words.len
    }

    /// Returns whether a connection watches what has changed meanwhile, as far as the transaction
    /// with this number knows. It must watch what its client does, and nothing else.
    fn has_changed(number: Option<u32>, conn: &mut Conn, place: &mut Place<'_>) -> bool {
        let watches = std::mem::take(&mut conn.watches);
        let wishes = &place.journal.redis.wishes;
        if let Some(number) = number {
            let own = wishes[number as usize].watch;
            let is_other = |one: &u32| Some(*one) != own;
            let other = watches.iter().find(|one| is_other(one));
            assert_eq!(
                other, None,
                "transaction {number} depends on what its client does not watch"
            );
            // A server that refuses to watch keys executes a transaction without.
            let is_free = own.is_none_or(|own| !wishes[own as usize].refusals.is_empty());
            assert!(is_free || !watches.is_empty(), "transaction {number} is not watched for");
        }
        !watches.is_empty() && place.random.permille(200)
    }

    /// Takes a command that begins or ends a transaction, or belongs to one.
    pub fn serve_transaction(&mut self, words: Words, conn: &mut Conn, place: &mut Place<'_>) {
        let start = conn.output.len();
        let trick = self.trick_of();
        let lacks = self.redis.as_ref().and_then(|model| model.lacks);
        match words.name.as_str() {
            name if lacks == Some(name) => {
                put_line(&mut conn.output, &format!("-ERR unknown command '{name}'"));
                conn.queue.iter_mut().for_each(|queue| queue.is_spoilt = true);
            }
            "MULTI" if conn.queue.is_none() => {
                conn.queue = Some(Queue::default());
                put_line(&mut conn.output, "+OK");
            }
            "MULTI" => put_line(&mut conn.output, "-ERR MULTI calls can not be nested"),
            "DISCARD" => {
                conn.watches.clear();
                let line = match conn.queue.take() {
                    Some(_) => "+OK",
                    None => "-ERR DISCARD without MULTI",
                };
                put_line(&mut conn.output, line);
            }
            "EXEC" => match conn.queue.take() {
                Some(queue) => self.end_transaction(queue, trick == Trick::ErrorLine, conn, place),
                None => put_line(&mut conn.output, "-ERR EXEC without MULTI"),
            },
            _ => self.queue(words, trick == Trick::ErrorLine, conn, place),
        }
        match trick {
            Trick::Die => {
                conn.output.truncate(start);
                conn.is_over = true;
            }
            Trick::Poison => {
                conn.output.truncate(start);
                poison("", conn, place);
                conn.poison = conn.poison.or(Some((start, conn.output.len())));
            }
            Trick::ErrorLine | Trick::None | Trick::NoSocket => {}
        }
    }

    fn queue(&mut self, words: Words, refuses: bool, conn: &mut Conn, place: &mut Place<'_>) {
        let model = self.redis.as_ref().expect("it is Redis");
        let is_loading = place.now < model.loads_until;
        let number = wish_of(&words, place).expect("commands of a transaction have numbers");
        let Kind::Queued(own) = place.journal.redis.wishes[number as usize].kind else {
            panic!("wish {number} is queued in a transaction of others");
        };
        let Some(queue) = &mut conn.queue else { return };
        assert_eq!(*queue.number.get_or_insert(own), own, "two transactions in one block");
        if is_loading || refuses {
            queue.is_spoilt = true;
            let line = if is_loading { LOADING } else { "-OOM command not allowed" };
            return put_line(&mut conn.output, line);
        }
        queue.commands.push(words);
        put_line(&mut conn.output, "+QUEUED");
    }

    fn end_transaction(
        &mut self,
        queue: Queue,
        refuses: bool,
        conn: &mut Conn,
        place: &mut Place<'_>,
    ) {
        let Queue { number, commands, is_spoilt } = queue;
        let has_changed = Server::has_changed(number, conn, place);
        if has_changed && !is_spoilt && !refuses {
            let null = if conn.proto_version() == 3 { "_" } else { "*-1" };
            return put_line(&mut conn.output, null);
        }
        let Some(number) = number else {
            // The proxy has tried whether it executes transactions, or something was watched.
            return put_array(&mut conn.output, 0);
        };
        let (exec, all) = place.journal.redis.transaction(number);
        // A server that has begun to load since it queued them executes none of them.
        let model = self.redis.as_ref().expect("it is Redis");
        let is_loading = place.now < model.loads_until;
        if is_spoilt || refuses || is_loading {
            let mut line = Vec::new();
            put_line(&mut line, if is_loading { ABORTED_LOADING } else { ABORTED });
            conn.output.extend_from_slice(&line);
            let wish = &mut place.journal.redis.wishes[exec as usize];
            return wish.refusals.push((place.server, Rc::from(line)));
        }
        let told: Vec<u32> = commands.iter().filter_map(|words| wish_of(words, place)).collect();
        assert_eq!(told, all, "transaction {number} is not executed as its client wrote it");
        put_array(&mut conn.output, commands.len());
        conn.in_transaction = true;
        commands.iter().for_each(|words| self.do_one(words, conn, place));
        conn.in_transaction = false;
    }
}

impl Judge<'_> {
    /// Checks the answer to a command of a transaction.
    pub fn queued(&mut self, expect: &Expect, (number, multi): (u32, u32), reply: &[u8]) {
        if reply == b"+QUEUED\r\n" {
            self.journal.redis.wishes[number as usize].fulfilled = true;
            return;
        }
        if reply.starts_with(b"-CROSSSLOT ") {
            self.summary.apart += 1;
            let wishes = &self.journal.redis.wishes;
            let watch = wishes[multi as usize].watch;
            let others = watch.into_iter().chain(multi..=number);
            let others = others.flat_map(|one| &wishes[one as usize].keys);
            let own = wishes[number as usize].keys.first();
            let is_apart = others.into_iter().any(|key| Some(key) != own);
            let turned = self.pool.rings.has_turned(wishes[multi as usize].arrived);
            assert!(is_apart || turned, "{:?} of one key", lossy(reply));
            return self.forbid(number);
        }
        self.fails(expect, number, reply);
        self.forbid(number);
    }

    /// Checks the answer to EXEC.
    pub fn executed(&mut self, expect: &Expect, (number, multi): (u32, u32), reply: &[u8]) {
        let wishes = &self.journal.redis.wishes;
        let commands = multi + 1..number;
        let refused =
            |one: &u32| !wishes[*one as usize].fulfilled && !self.is_mute(&wishes[*one as usize]);
        let is_spoilt = commands.clone().any(|one| refused(&one));
        let watch = wishes[multi as usize].watch.map(|one| &wishes[one as usize]);
        let unwatched = watch.filter(|watch| !watch.fulfilled);
        if reply == b"*-1\r\n" || reply == b"_\r\n" {
            let is_watched = wishes[multi as usize].watch.is_some();
            assert!(is_watched && !is_spoilt, "transaction {multi} depends on nothing");
            self.summary.unexecuted += 1;
            return (multi + 1..=number).for_each(|one| self.forbid(one));
        }
        if reply.starts_with(b"*") {
            assert!(!is_spoilt, "transaction {multi} is executed in spite of an error");
            let elements = array(reply);
            assert_eq!(elements.len(), commands.len(), "an element for each command");
            for (one, element) in commands.zip(elements) {
                let wish = &wishes[one as usize];
                let said = wish.whole.iter().map(|(_, said)| &said[..]);
                let own = wish.values.iter().filter(|_| wish.keys.is_empty());
                let mut all = said.chain(own.map(Vec::as_slice));
                let element = &reply[element];
                assert!(all.any(|said| said == element), "wish {one}: {:?}", lossy(element));
            }
            self.summary.hits += 1;
            self.summary.transactions += 1;
            self.journal.redis.wishes[number as usize].fulfilled = true;
            return;
        }
        let refusals = &wishes[number as usize].refusals;
        let line = without_first_error(reply.trim_ascii_end());
        let is_by_server = refusals.iter().any(|(_, refusal)| refusal.trim_ascii_end() == line);
        if reply.starts_with(b"-EXECABORT ") {
            let may = is_spoilt || unwatched.is_some() || is_by_server;
            assert!(may, "transaction {multi}: {:?}", lossy(reply));
            self.summary.errors += 1;
            return self.forbid(number);
        }
        if reply == MOVED.as_bytes() {
            let turned = self.pool.rings.has_turned(wishes[multi as usize].arrived);
            assert!(turned || self.summary.installs > 0, "keys that have not moved");
            return self.forbid(number);
        }
        // It fails with what was to be watched for it, which has waited longer.
        let watched = unwatched.map(|watch| Expect {
            arrived: watch.arrived,
            arrived_at: watch.arrived_at,
            ..expect.clone()
        });
        self.fails(watched.as_ref().unwrap_or(expect), number, reply);
    }

    /// Whether its client gets no answer to it.
    fn is_mute(&self, wish: &Wish) -> bool {
        wish.quiet
    }
}

impl Server {
    /// Whether it may have refused the trial of transactions that a request waited for.
    pub fn may_refuse_blocks(&self, expect: &Expect) -> bool {
        let lacks = self.redis.as_ref().is_some_and(|model| model.lacks.is_some());
        lacks || self.trouble.any_time.after(proxy::limits::CONN_KEY_PAUSE_US) >= expect.arrived_at
    }
}
