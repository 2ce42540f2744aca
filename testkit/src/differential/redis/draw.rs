//! Draws a batch: calls of random rows, the calls that must follow some of them, and the
//! predictions.

use super::Run;
use super::item::{Expect, Item};
use super::maker::{self, Maker, Word};
use super::table::{Fate, Likeness, TRANSACTIONS};
use super::values::Values;
use crate::wire::resp::Reply;

/// Rows that change the connection's state: a test of forwarding never spoils them.
const STATEFUL: &[&str] = &["select", "hello", "auth", "reset", "quit", "client|reply"];
/// Commands that transactions are made of: their answers do not depend on chance.
const QUEUED: &[&str] = &[
    "set", "get", "incr", "append", "mset", "mget", "del", "exists", "rpush", "lpop", "lrange",
    "hset", "hlen", "zadd", "zrange", "xlen", "type", "strlen", "echo", "ping", "setrange",
    "getrange", "rename", "zscore", "hget", "select",
];
/// Valkey 9.1 copies an unknown word unchanged into its error, line breaks included, so that one
/// reply becomes three. The list of injection tests covers that.
const LEAKING: &str = "function|list";

impl Run<'_> {
    pub(super) fn draw_items(&mut self) -> Vec<Item> {
        if self.transactions > 0 {
            self.transactions -= 1;
            return self.transaction();
        }
        let len = match self.random.below(10) {
            0..2 => 1,
            2..7 => 1 + self.random.below(20),
            _ => 1 + self.random.below(100),
        };
        let mut batch = Vec::new();
        while batch.len() < len.min(self.settings.depth) {
            self.item(&mut batch);
            let ends = batch.last().is_some_and(|item: &Item| item.is("QUIT") && !item.spoilt);
            if ends {
                break;
            }
        }
        self.ask_for_keys(&mut batch);
        for item in &mut batch {
            item.spread = self.owners.spread(item.keys.iter().map(Vec::as_slice));
            item.expect = self.predict(item);
        }
        if self.settings.is_bare() {
            batch.retain(|item| item.expect != Expect::ByName);
        }
        batch
    }

    /// Returns the next row of the deck; the deck is all rows, each repeated by its share.
    fn row(&mut self) -> usize {
        if self.deck.is_empty() {
            for (at, row) in self.rows.iter().enumerate() {
                self.deck.extend(std::iter::repeat_n(at, row.share));
            }
            for at in (1..self.deck.len()).rev() {
                self.deck.swap(at, self.random.below(at + 1));
            }
        }
        self.deck.pop().expect("the table has rows")
    }

    fn item(&mut self, batch: &mut Vec<Item>) {
        if self.random.permille(3) {
            return batch.push(self.unknown());
        }
        let row = self.row();
        let name = self.rows[row].name;
        if name == "client|reply" {
            return self.reply_mode(row, batch);
        }
        if TRANSACTIONS.contains(&name) {
            self.transactions += usize::from(!self.settings.is_bare());
            return;
        }
        // Often enough to be tested, seldom enough that the servers hold data.
        if name.starts_with("flush") && self.random.permille(500) {
            return;
        }
        let words = self.call(row);
        let mut item = self.whole(row, words);
        if name == "sort" && item.says("ALPHA") && item.says("STORE") && has_pattern(&item) {
            return;
        }
        // Of two destinations the last counts, though servers report both as keys.
        if item.says("STORE") && item.says("STOREDIST") {
            return;
        }
        let spoils = self.rows[row].fate != Fate::Refused
            && !STATEFUL.contains(&name)
            && name != LEAKING
            && !item.says("BLOCK")
            && self.known[row]
            // Redis 6.2 has other texts for most mistakes.
            && !self.is_old;
        if spoils && self.random.permille(80) {
            let fixed = 1 + usize::from(name.contains('|'));
            let mut values = self.values();
            maker::spoil(&mut item.words, fixed, &mut values);
            item.spoilt = true;
            item.likeness = strict(name, &item);
        }
        let after = follow(&item, name);
        for words in precede(&item, name) {
            let row = row_of(&self.rows, &String::from_utf8_lossy(&words[0].bytes));
            batch.push(self.whole(row, words));
        }
        batch.push(item);
        for words in after {
            let name = String::from_utf8_lossy(&words[0].bytes);
            batch.push(self.whole(row_of(&self.rows, &name), words));
        }
    }

    fn values(&mut self) -> Values<'_> {
        Values { random: &mut self.random, payloads: &self.payloads, tables: &self.tables }
    }

    fn call(&mut self, row: usize) -> Vec<Word> {
        let name = self.rows[row].name;
        match self.docs.get(name) {
            // The grammar does not say that its arguments are a call.
            _ if name.starts_with("command|getkeys") => {
                let call = *self.random.pick(&["set", "mset", "zunionstore", "lmove", "xread"]);
                let mut words: Vec<Word> = name.split('|').map(Word::new).collect();
                let call = self.call(row_of(&self.rows, call));
                words.extend(call.iter().map(|word| Word::new(&word.bytes)));
                words
            }
            Some(doc) => {
                let (random, payloads, tables) = (&mut self.random, &self.payloads, &self.tables);
                let values = Values { random, payloads, tables };
                Maker::new(values, &self.keys, name, doc).call(doc)
            }
            None => name.split('|').map(Word::new).collect(),
        }
    }

    /// Makes a call that follows the grammar.
    fn whole(&self, row: usize, words: Vec<Word>) -> Item {
        let keys = words.iter().filter(|word| word.is_key).map(|word| word.bytes.clone());
        let keys = keys.collect();
        let row_of = &self.rows[row];
        // The proxy answers a local command even if servers do not know it, except when the call is
        // so long that it would have to be kept.
        let len: usize = words.iter().map(|word| word.bytes.len()).sum();
        let is_ours = row_of.fate == Fate::Own
            && (!self.known[row] || self.is_old && row_of.name.contains('|') || len > 60_000);
        let mut item = Item {
            row: Some(row),
            words,
            expect: Expect::Same,
            likeness: row_of.likeness,
            skip: row_of.skip.is_some() || is_ours,
            silent: false,
            newer: !self.known[row] || self.is_old,
            spoilt: false,
            keys,
            spread: 0,
        };
        item.likeness = strict(row_of.name, &item);
        item
    }

    fn unknown(&mut self) -> Item {
        let mut values = self.values();
        let words = [b"NOSUCH".to_vec(), values.string(), values.junk()];
        let count = 1 + self.random.below(3);
        let mut item = self.whole(0, words[..count].iter().map(Word::new).collect());
        (item.row, item.likeness, item.skip, item.newer) = (None, Likeness::Exact, false, false);
        item
    }

    /// Adds a command whose answer is switched off, with the commands around it.
    fn reply_mode(&mut self, row: usize, batch: &mut Vec<Item>) {
        let set = row_of(&self.rows, "set");
        let say = |word: &str| ["CLIENT", "REPLY", word].iter().map(Word::new).collect();
        let skips = self.random.permille(500);
        let mut first = self.whole(row, say(if skips { "SKIP" } else { "OFF" }));
        let words = self.call(set);
        let mut silent = self.whole(set, words);
        (first.silent, silent.silent) = (true, true);
        batch.extend([first, silent]);
        if !skips {
            batch.push(self.whole(row, say("ON")));
        }
    }

    /// Makes a transaction, written at once as clients do. The proxy refuses one whose keys are on
    /// several servers, and then the server does not get it either.
    fn transaction(&mut self) -> Vec<Item> {
        let mut batch = Vec::new();
        let mut keys: Vec<Vec<u8>> = Vec::new();
        self.add_call("multi", &mut batch);
        let most = 1 + self.random.below(12);
        while batch.len() <= most {
            let name = *self.random.pick(QUEUED);
            self.add_call(name, &mut batch);
            let Some(last) = batch.last() else { continue };
            let all = || keys.iter().chain(&last.keys).map(Vec::as_slice);
            let is_apart = self.owners.spread(all()) > 1;
            // A few such are enough.
            if is_apart && !self.random.permille(20) {
                batch.pop();
            } else {
                keys.extend(last.keys.iter().cloned());
            }
        }
        let end = if self.random.permille(800) { "exec" } else { "discard" };
        self.add_call(end, &mut batch);
        let is_apart = self.owners.spread(keys.iter().map(Vec::as_slice)) > 1;
        for item in &mut batch {
            item.expect = match (is_apart, end, item.is("exec") || item.is("discard")) {
                (false, _, _) => Expect::Same,
                (true, "exec", true) => Expect::Aborted,
                (true, _, true) => Expect::Discarded,
                (true, _, false) => Expect::InVain,
            };
        }
        batch
    }

    fn add_call(&mut self, name: &str, batch: &mut Vec<Item>) {
        let row = row_of(&self.rows, name);
        let words = self.call(row);
        let item = self.whole(row, words);
        batch.push(Item { likeness: Likeness::Exact, skip: false, ..item });
    }

    /// Asks a server for the keys of a spoilt call.
    fn ask_for_keys(&mut self, batch: &mut [Item]) {
        let spoilt: Vec<usize> = (0..batch.len()).filter(|at| batch[*at].spoilt).collect();
        let ask = |at: &usize| {
            let start = [b"COMMAND".to_vec(), b"GETKEYS".to_vec()];
            start.into_iter().chain(batch[*at].words.iter().map(|word| word.bytes.clone()))
        };
        let commands: Vec<Vec<Vec<u8>>> = spoilt.iter().map(|at| ask(at).collect()).collect();
        let replies = self.scratch.ask_all(&commands);
        for (at, reply) in spoilt.into_iter().zip(replies) {
            let keys = reply.elements().into_iter().filter_map(Reply::bytes);
            batch[at].keys = keys.map(<[u8]>::to_vec).collect();
        }
    }

    fn predict(&self, item: &Item) -> Expect {
        let Some(row) = item.row.map(|row| &self.rows[row]) else { return Expect::Same };
        let many = self.settings.servers.len() > 1;
        match row.fate {
            Fate::Refused => Expect::ByName,
            _ if !row.takes(item.words.len()) => Expect::Same,
            Fate::Forwarded if many && row.name.starts_with("sort") && has_pattern(item) => {
                Expect::Pattern
            }
            Fate::Forwarded if many && item.spread > 1 => Expect::Apart,
            Fate::Split if !self.settings.splits && item.spread > 1 => Expect::Apart,
            _ => Expect::Same,
        }
    }
}

/// Returns whether it makes the names of keys from a pattern.
fn has_pattern(item: &Item) -> bool {
    let pairs = item.words.windows(2);
    pairs.skip(1).any(|pair| {
        let token = &pair[0].bytes;
        let is_token = token.eq_ignore_ascii_case(b"BY") || token.eq_ignore_ascii_case(b"GET");
        is_token && pair[1].bytes.contains(&b'*')
    })
}

fn row_of(rows: &[super::Row], name: &str) -> usize {
    rows.iter().position(|row| row.name == name).expect("every server has it")
}

/// Returns calls to send before, so that the answer is not random. If scores differ, there is no
/// order by words, and the result depends on the server's internal links.
fn precede(item: &Item, name: &str) -> Vec<Vec<Word>> {
    let by_words = name.contains("lex") || item.says("BYLEX");
    let mut keys = item.words.iter().filter(|word| word.is_key);
    let Some(key) = keys.next_back().filter(|_| by_words) else { return Vec::new() };
    let line = |start: &str, rest: &[&str]| {
        let rest = rest.iter().map(Word::new);
        [Word::new(start), key.clone()].into_iter().chain(rest).collect()
    };
    vec![line("del", &[]), line("zadd", &["0", "m1", "0", "m3", "0", "m5", "0", "m6", "0", ""])]
}

/// Returns calls to send next, so that no random state is left.
fn follow(item: &Item, name: &str) -> Vec<Vec<Word>> {
    let gone = |word: &Word| word.is_key.then(|| vec![Word::new("del"), word.clone()]);
    match name {
        "spop" => item.words.iter().filter_map(gone).collect(),
        "xadd" if item.says("*") => item.words.iter().filter_map(gone).collect(),
        _ => Vec::new(),
    }
}

/// Returns the strictest comparison possible for this call.
fn strict(name: &str, item: &Item) -> Likeness {
    let of_row = item.likeness;
    match name {
        // Elements of the same weight have a random order.
        "sort" | "sort_ro" if item.says("BY") && item.says("LIMIT") => Likeness::Shape,
        "xadd" if item.says("*") => Likeness::Kind,
        // From the middle of a large collection each server returns another part.
        "hscan" | "sscan" | "zscan" if item.spoilt => Likeness::Kind,
        "hscan" | "zscan" if item.says("100000") && !item.says("NOVALUES") => Likeness::Pairs,
        "hscan" | "sscan" if item.says("100000") => Likeness::Sorted,
        _ => of_row,
    }
}
