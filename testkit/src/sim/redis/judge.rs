//! Judges the replies to Redis clients: exactly the servers' replies to this request, or an error
//! with a reason.

use std::ops::Range;
use std::rc::Rc;

use proxy::plan::MultiKey;

use crate::sim::client::Expect;
use crate::sim::judge::{Explained, Judge};
use crate::sim::server::Server;
use crate::wire::{resp, whole};

use super::client::PROTOCOL_ERROR;
use super::ledger::{From, Kind, Loose, Wish};

impl Judge<'_> {
    /// Judges the first answer of `input`, if it is whole, and returns its length.
    pub fn read_redis(&mut self, number: u32, input: &[u8]) -> Option<usize> {
        let expect = self.client.next_expect()?;
        let (arrived, quiet) = (expect.arrived, expect.is_quiet);
        let wish = &self.journal.redis.wishes[number as usize];
        // The answer to HELLO already uses the version that it selects, if it can.
        let is_hello = matches!(wish.kind, Kind::Hello(_));
        let is_three = is_hello || wish.proto_version == 3;
        let kinds = if is_three { resp::THREE } else { resp::TWO };
        let ((), len) = whole(input, resp::value(input, kinds))?;
        // Input that cannot become a request is refused before its end.
        let is_hopeless = wish.kind == Kind::Begins(PROTOCOL_ERROR);
        let by_head = arrived == 0 && (self.tight_memory || is_hopeless);
        let expect = self.client.next_expect()?;
        let (end, index) = (expect.end, expect.index);
        assert!(
            by_head || arrived != 0,
            "request {index} of client {} is answered before it is whole: {} of {end} bytes",
            self.client.number,
            self.client.sent
        );
        let reply = &input[..len];
        self.say(reply);
        assert!(!quiet, "muted client {} is told {:?}", self.client.number, lossy(reply));
        if self.is_given_up(&lossy(&reply[..len - 2])) {
            assert_eq!(len, input.len(), "more follows the last answer");
            return Some(len);
        }
        let expect = self.client.drop_expect();
        self.summary.replies += 1;
        self.summary.redis += 1;
        self.journal.redis.wishes[number as usize].told = self.journal.now();
        self.judge_redis(&expect, number, reply);
        Some(len)
    }

    fn wish(&self, number: u32) -> &Wish {
        &self.journal.redis.wishes[number as usize]
    }

    fn judge_redis(&mut self, expect: &Expect, number: u32, reply: &[u8]) {
        match self.wish(number).kind.clone() {
            Kind::Exactly(words) => {
                // Where it is the only server, or was until another was added, PING and ECHO are
                // asked of it while it is busy.
                let is_echo = words == b"+PONG\r\n" || words.starts_with(b"$");
                let was_only = || reply.starts_with(b"-ERR alpha.s0: ");
                let is_asked = is_echo && (self.plan.servers.len() == 1 || was_only());
                let fits = reply == words || self.is_tight(reply);
                let fits = fits || is_asked && reply.starts_with(b"-");
                assert!(fits, "{:?}, not {:?}", lossy(reply), lossy(&words));
            }
            Kind::Begins(words) => {
                let fits = reply.starts_with(words) || self.is_tight(reply);
                assert!(fits, "{:?}, not {:?}", lossy(reply), lossy(words));
            }
            Kind::Hello(version) => self.write_handshake(expect, number, version, reply),
            Kind::Queued(multi) => self.queued(expect, (number, multi), reply),
            Kind::Exec(multi) => self.executed(expect, (number, multi), reply),
            Kind::Discard(multi) => {
                assert!(reply == b"+OK\r\n", "{:?}", lossy(reply));
                (multi..number).for_each(|one| self.forbid(one));
            }
            kind if reply[0] == b'-' && !self.is_said(number, &kind, reply) => {
                self.fails(expect, number, reply);
            }
            kind => {
                self.summary.hits += 1;
                self.fulfilled(expect, number, &kind, reply);
                self.journal.redis.wishes[number as usize].fulfilled = true;
            }
        }
    }

    /// Returns whether an error line is the command's own outcome.
    fn is_said(&self, number: u32, kind: &Kind, reply: &[u8]) -> bool {
        let whole = &self.wish(number).whole;
        *kind == Kind::Single && whole.iter().any(|(_, said)| **said == *reply)
    }

    fn fulfilled(&mut self, expect: &Expect, number: u32, kind: &Kind, reply: &[u8]) {
        let wish = self.wish(number);
        match kind {
            Kind::Single => {
                let fits = wish.whole.iter().any(|(_, said)| **said == *reply);
                assert!(fits, "wish {number} is told {:?}, which nobody said", lossy(reply));
            }
            Kind::Each => {
                let elements = array(reply);
                assert_eq!(elements.len(), wish.keys.len(), "an element for each key");
                for (at, place) in elements.into_iter().enumerate() {
                    let element = &reply[place];
                    let fits = wish.parts[at].replies.iter().any(|said| **said == *element);
                    assert!(fits, "wish {number}: element {at} is {:?}", lossy(element));
                }
            }
            Kind::Sum => {
                let sum = resp::number(reply).expect("a number");
                let ranges = wish.parts.iter().map(|part| extremes(&part.replies));
                let (low, high) = ranges.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
                assert!((low..=high).contains(&sum), "wish {number}: {sum}, not {low}..={high}");
                self.all_done(number);
            }
            Kind::All => {
                assert_eq!(reply, b"+OK\r\n");
                self.all_done(number);
            }
            Kind::Keys => self.keys(expect, number, reply),
            Kind::Load => {
                let fits = all_said(wish).any(|said| **said == *reply);
                assert!(fits, "wish {number}: {:?}", lossy(reply));
                self.by_all(expect, number);
            }
            Kind::Known => {
                let elements = array(reply);
                assert_eq!(elements.len(), 2);
                let is_known = &reply[elements[0].clone()] == b":1\r\n";
                let some = all_said(wish).any(|said| said.starts_with(b"*2\r\n:0"));
                let all = all_said(wish).any(|said| said.starts_with(b"*2\r\n:1"));
                assert!(if is_known { all } else { some }, "wish {number}: known {is_known}");
                assert_eq!(&reply[elements[1].clone()], b":0\r\n");
                self.by_all(expect, number);
            }
            Kind::Size => self.size(expect, number, reply),
            Kind::Loose(what) => self.loose(expect, number, *what, reply),
            Kind::Flush { all } => {
                assert_eq!(reply, b"+OK\r\n");
                let database = (!all).then_some(wish.database);
                let pool = wish.pool;
                let done = |server: &usize| {
                    self.journal.redis.has_flushed(pool, database, *server, expect.arrived)
                };
                let count = self.pool.servers.len();
                let members = (0..count).filter(done).fold(0, |bits, at| bits | 1 << at);
                let all = self.pool.rings.had_members_among(members, expect.arrived);
                assert!(all, "flushed on {members:#b} only");
            }
            Kind::Forget => assert_eq!(reply, b"+OK\r\n"),
            Kind::Scan => self.scanned(number, reply),
            Kind::Exactly(_) | Kind::Begins(_) | Kind::Hello(_) => unreachable!("no server's"),
            Kind::Queued(_) | Kind::Exec(_) | Kind::Discard(_) => unreachable!("judged before"),
        }
    }

    fn all_done(&self, number: u32) {
        let open = self.wish(number).parts.iter().position(|part| part.executed == 0);
        assert_eq!(open, None, "a part of wish {number} was never done");
    }

    /// Checks that every server has been asked.
    fn by_all(&self, expect: &Expect, number: u32) {
        let parts = self.wish(number).parts.iter().enumerate();
        let done = parts.filter(|(_, part)| part.executed > 0);
        let done = done.fold(0, |bits, (at, _)| bits | 1 << at);
        let all = self.pool.rings.had_members_among(done, expect.arrived);
        assert!(all, "wish {number} was done by {done:#b} only");
    }

    /// Checks the lists of all servers, one after the other.
    fn keys(&mut self, expect: &Expect, number: u32, reply: &[u8]) {
        let wish = self.wish(number);
        let elements = array(reply);
        let mut told: Vec<&[u8]> = elements.into_iter().map(|place| &reply[place]).collect();
        told.sort_unstable();
        let lists = wish.parts.iter().filter_map(|part| part.replies.last());
        let mut said: Vec<&[u8]> = Vec::new();
        for list in lists {
            let places = array(list);
            said.extend(places.into_iter().map(|place| &list[place]));
        }
        said.sort_unstable();
        assert!(told == said, "wish {number}: {} keys, not {}", told.len(), said.len());
        self.by_all(expect, number);
    }

    /// Checks the sum of one number from each server.
    fn size(&self, expect: &Expect, number: u32, reply: &[u8]) {
        let wish = self.wish(number);
        let sum = resp::number(reply).expect("a number");
        let mut sums: Vec<(u64, i64)> = vec![(0, 0)];
        for server in 0..self.pool.servers.len() {
            let said = self.said(wish, Loose::Size, expect.arrived);
            let own = said.filter(|said| said.server == server);
            let own: Vec<i64> = own.filter_map(|said| resp::number(&said.reply)).collect();
            let with = |(bits, sum): &(u64, i64)| {
                let (bits, sum) = (bits | 1 << server, *sum);
                own.iter().map(move |one| (bits, sum + one)).collect::<Vec<_>>()
            };
            let more: Vec<(u64, i64)> = sums.iter().flat_map(with).collect();
            sums.extend(more);
            if sums.len() > SUMS_MAX {
                return;
            }
        }
        let is_one = |(bits, one): &(u64, i64)| {
            *one == sum && self.pool.rings.had_members(*bits, expect.arrived)
        };
        assert!(sums.iter().any(is_one), "wish {number}: {sum} is no sum of what servers said");
    }

    fn loose(&self, expect: &Expect, number: u32, what: Loose, reply: &[u8]) {
        if matches!(what, Loose::Info | Loose::Setting) {
            return self.survey(expect, number, what, reply);
        }
        let fits = self.said(self.wish(number), what, expect.arrived);
        let fits = fits.into_iter().any(|said| *said.reply == *reply);
        assert!(fits, "wish {number}: {:?} was not said", lossy(reply));
    }

    /// Checks properties of the servers: one value from all, or each with its server's name; none
    /// that no server has sent.
    fn survey(&self, expect: &Expect, number: u32, what: Loose, reply: &[u8]) {
        let wish = self.wish(number);
        let head: &[u8] = match (what, wish.proto_version) {
            (Loose::Info, 3) => b"=",
            (Loose::Info, _) => b"$",
            (_, 3) => b"%",
            _ => b"*",
        };
        assert!(reply.starts_with(head), "wish {number}: {:?}", lossy(reply));
        let known: Vec<String> = self
            .said(wish, what, expect.arrived)
            .filter_map(|said| told(&String::from_utf8_lossy(&said.reply), what))
            .collect();
        let text = told(&String::from_utf8_lossy(reply), what).expect("a server has answered");
        for one in text.split(',') {
            let own = one.rsplit_once('=').map_or(one, |(_, own)| own);
            assert!(known.iter().any(|known| known == own), "wish {number}: nobody said {one:?}");
        }
    }

    fn said<'a>(
        &'a self,
        wish: &'a Wish,
        what: Loose,
        since: u64,
    ) -> impl Iterator<Item = &'a super::ledger::LooseReply> {
        let conn_key = (wish.pool, wish.database, wish.proto_version);
        let all =
            self.journal.redis.loose_replies.iter().rev().take_while(move |said| said.at > since);
        all.filter(move |said| {
            said.what == what && (said.pool, said.database, said.proto_version) == conn_key
        })
    }

    /// Checks one step of a scan: its keys unchanged, and a cursor of the proxy's.
    fn scanned(&mut self, number: u32, reply: &[u8]) {
        let wish = self.wish(number);
        let elements = array(reply);
        assert_eq!(elements.len(), 2, "a cursor and the keys");
        let tail = &reply[elements[1].clone()];
        let fits = all_said(wish).any(|said| **said == *tail);
        assert!(fits, "wish {number}: other keys than its server's");
        let cursor = bulk(&reply[elements[0].clone()]);
        let digits = cursor.iter().all(u8::is_ascii_digit) && !cursor.is_empty();
        assert!(digits, "no cursor: {:?}", lossy(cursor));
        let is_end = cursor == b"0";
        let (next, arrived) = (wish.next, wish.arrived);
        // After servers have come and gone, only the proxy knows their indexes in cursors.
        let turned = self.summary.installs > 0 || self.pool.rings.has_turned(arrived);
        match next {
            From::At { .. } => assert!(!is_end, "a scan ends in the middle of a server"),
            From::After { server } if !turned => {
                let members = self.plan.servers.last().map(|last| last.id);
                let is_last = members == Some(self.pool.servers[server].id);
                assert_eq!(is_end, is_last, "a scan ends with the last server");
            }
            _ => {}
        }
        let (database, cursor) = (wish.database, cursor.to_vec());
        let talk = self.client.talk.as_mut().expect("it speaks Redis");
        let keys = array(tail);
        talk.found.extend(keys.into_iter().map(|place| bulk(&tail[place]).to_vec()));
        let told = arrived;
        talk.scan = (!is_end && talk.database == database).then_some((cursor, next, told));
    }

    fn write_handshake(&mut self, expect: &Expect, number: u32, version: u8, reply: &[u8]) {
        let talk = self.client.talk.as_mut().expect("it speaks Redis");
        talk.waits = false;
        match reply[0] {
            b'%' | b'*' => {
                assert_eq!(reply[0] == b'%', version == 3, "the answer is in the other version");
                talk.proto_version = version;
                talk.scan = None;
            }
            _ if reply.starts_with(b"-NOPROTO") => {
                assert_eq!(version, 3, "RESP2 is always there");
                let lacks = self.pool.servers.iter().any(|server| server.ever_lacked);
                assert!(lacks, "all servers speak RESP3");
                self.summary.refused_forms += 1;
            }
            _ => self.fails(expect, number, reply),
        }
    }

    /// Checks an error: a server's own, or one of the proxy's with a reason.
    pub fn fails(&mut self, expect: &Expect, number: u32, reply: &[u8]) {
        let line = String::from_utf8_lossy(&reply[..reply.len() - 2]).into_owned();
        // The effects on other servers are not undone.
        let is_partly = line.ends_with(PARTLY_DONE);
        let line = line.strip_suffix(PARTLY_DONE).unwrap_or(&line).to_string();
        if is_partly {
            let wish = self.wish(number);
            let others = wish.is_executed() || wish.keys.is_empty();
            let changes = wish.writes || wish.kind == Kind::Load;
            assert!(changes && others, "wish {number}: {line:?}, and no other has done it");
        }
        let said_line = &format!("{line}\r\n").into_bytes()[..];
        if self.is_tight(reply) {
            return self.forbid(number);
        }
        if line.starts_with("-CROSSSLOT ") {
            return self.apart(expect, number, &line);
        }
        let wish = self.wish(number);
        if wish.refusals.iter().any(|(_, said)| **said == *said_line) {
            self.summary.errors += 1;
            self.check_script(number, &line);
            return;
        }
        // The reply may contain one shard's error for what all of them did, or not.
        let errors = self.journal.redis.errors.iter().rev();
        let mut errors = errors.take_while(|said| said.0 > expect.arrived);
        if wish.keys.is_empty() && errors.any(|said| *said.1 == *said_line) {
            self.summary.errors += 1;
            return;
        }
        let said_loose = self.journal.redis.loose_replies.iter().rev();
        let mut said_loose = said_loose.take_while(|said| said.at > expect.arrived);
        if wish.keys.is_empty() && said_loose.any(|said| *said.reply == *said_line) {
            return;
        }
        // Its cursor names a server that the pool no longer has.
        if line == "-ERR invalid cursor" && self.summary.installs > 0 {
            return;
        }
        let text = line.strip_prefix("-ERR ").unwrap_or_else(|| panic!("{line:?}"));
        // A reason known before the send must stop the request for all servers.
        assert!(
            !(is_partly && self.must_be_known_before(text, expect.arrived)),
            "wish {number}: {text:?}, and others did it"
        );
        if self.may_be_lost(number) && !text.contains(": ") {
            panic!("wish {number} is refused: {line:?}");
        }
        let keys = self.wish(number).keys.clone();
        let explained = self.explain(expect, &keys, &format!("SERVER_ERROR {text}"));
        if let (Explained::NeverDone, false) = (explained, is_partly) {
            self.forbid(number);
        }
    }

    fn may_be_lost(&self, number: u32) -> bool {
        !self.wish(number).keys.is_empty()
    }

    /// Records that nothing was done and the client was told so.
    pub fn forbid(&mut self, number: u32) {
        if let Kind::Exec(multi) = self.wish(number).kind {
            return (multi..number).for_each(|one| self.forbid(one));
        }
        let wish = &mut self.journal.redis.wishes[number as usize];
        if wish.writes && !matches!(wish.kind, Kind::Flush { .. } | Kind::Forget) {
            assert!(
                !wish.is_executed(),
                "wish {number} is executed, and its client told it is not"
            );
            wish.forbidden = true;
        }
    }

    /// Checks an error about keys on different servers: it names two of them and their servers.
    fn apart(&mut self, expect: &Expect, number: u32, line: &str) {
        self.summary.apart += 1;
        let wish = self.wish(number);
        let keys = wish.keys.clone();
        let splits = self.plan.multi_key == MultiKey::Split;
        // Keys that were together before may be on different servers when the request is sent
        // again.
        let turned = self.pool.rings.has_turned(expect.arrived);
        let is_whole = wish.kind == Kind::Single || !splits;
        assert!(is_whole || turned, "{line:?}, but it can be split");
        // ... the same server: 'a' is on s1, 'b' on s2; ...
        let words: Vec<&str> = line.split('\'').collect();
        let named = |at: usize, before: &str| {
            let place = words.get(at + 1).and_then(|text| text.strip_prefix(before));
            let place = place.and_then(|text| text.split([',', ';']).next());
            (words[at], place.unwrap_or_else(|| panic!("{line:?} names no two servers")))
        };
        let first = words.iter().position(|text| text.starts_with('{')).expect("a key");
        let (one, other) = (named(first, " is on "), named(first + 2, " on "));
        assert_ne!(one.1, other.1, "{line:?}");
        for (text, label) in [one, other] {
            let key = text.get(1..3).and_then(|digits| digits.parse::<u8>().ok());
            let key = key.unwrap_or_else(|| panic!("{line:?} names no key"));
            assert!(keys.contains(&key), "{line:?} names another key");
            let lives = |at: usize| self.pool.servers[at].label == label;
            let is_it = self.owners(expect, usize::from(key)).any(lives);
            assert!(is_it, "{line:?}, but key {key} does not live there");
        }
        self.forbid(number);
        self.journal.redis.wishes[number as usize].forbidden = true;
    }

    /// A script loaded through this proxy must exist, if its client has sent nothing since.
    fn check_script(&self, number: u32, line: &str) {
        let wish = self.wish(number);
        let Some(script) = wish.script.filter(|_| line.starts_with("-NOSCRIPT")) else { return };
        let loaded = self.wish(script);
        // The proxy does not learn scripts from inline requests.
        let was_known = loaded.fulfilled && loaded.told < wish.arrived && !loaded.is_inline;
        // A client that flushes the servers' scripts also clears the proxy's script cache.
        let forgets = |one: &&Wish| one.kind == Kind::Forget && one.pool == wish.pool;
        let forgot = self.journal.redis.wishes.iter().filter(forgets);
        let forgot = forgot.map(|one| if one.told == 0 { u64::MAX } else { one.told });
        let forgot = forgot.max().is_some_and(|at| at > loaded.arrived);
        // A client that leaves is not kept waiting, and a pool that was removed and added has an
        // empty script cache.
        let leaves = self.client.is_half_closed || self.client.is_leaving || self.client.is_gone();
        let leaves = leaves || (loaded.arrived_at..=self.now).contains(&self.pool.gone_since);
        // A request without an answer may be outstanding, and must not be overtaken.
        let leaves = leaves || self.client.has_been_quiet;
        // Its deadline may be over.
        let patience = self.pool.deadlines_since(wish.arrived_at).reply;
        let leaves = leaves || self.now.since(wish.arrived_at) >= patience;
        // On a retry it may go to a server without the script.
        let leaves = leaves || !self.pool.is_ordered();
        let is_alone = self.client.arrived == 0 && !leaves;
        let is_rough = |one: &Server| one.was_in_trouble(wish.arrived, wish.arrived_at);
        let troubled = self.pool.servers.iter().any(is_rough);
        let retries = forgot || !is_alone || troubled || self.tight_memory || self.tight_queues;
        assert!(!was_known || retries, "wish {number}: its script was loaded through the proxy");
    }

    /// Returns whether there was no memory for the request.
    fn is_tight(&self, reply: &[u8]) -> bool {
        let is_it = reply.starts_with(b"-ERR out of memory");
        self.tight_memory && is_it
    }
}

fn all_said(wish: &Wish) -> impl Iterator<Item = &Rc<[u8]>> {
    wish.parts.iter().flat_map(|part| &part.replies)
}

fn extremes(replies: &[Rc<[u8]>]) -> (i64, i64) {
    let numbers = || replies.iter().filter_map(|said| resp::number(said));
    (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0))
}

pub fn array(reply: &[u8]) -> Vec<Range<usize>> {
    resp::elements(reply).unwrap_or_else(|| panic!("{:?} is no array", lossy(reply)))
}

/// Returns the bytes of a bulk string.
fn bulk(value: &[u8]) -> &[u8] {
    let start = value.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    &value[start..value.len().saturating_sub(2).max(start)]
}

pub fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned()
}

const PARTLY_DONE: &str = " (on other servers it was carried out)";

/// Limit on sums to try; with more of them nothing is proved.
const SUMS_MAX: usize = 20_000;

/// Returns the value that a server reports of itself, or several.
fn told(reply: &str, what: Loose) -> Option<String> {
    let value = match what {
        Loose::Info => reply.split_once("run_id:")?.1,
        _ => reply.split_once("maxmemory\r\n")?.1.split_once("\r\n")?.1,
    };
    value.split("\r\n").next().map(str::to_string)
}
