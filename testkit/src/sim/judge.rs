//! Judges each reply: may this client get this answer, now, to that request?
//!
//! A value must have been on the key's server at some time after the request had arrived, and after
//! everything that the client knew of that key. An outcome must be the server's outcome for exactly
//! this update. An error must name a fault that happened; if it says that nothing was sent, the
//! request may never be executed.

use proxy::fault::{FAULTS, Fault, Row};
use proxy::limits::Limits;
use proxy::plan::{Partial, PoolPlan};
use proxy::{Time, limits};

use super::client::{Asked, Client, Expect, Floor};
use super::full::without_said;
use super::history::{Value, Version};
use super::journal::{Journal, Outcome, Update, UpdateKind};
use super::reply::{Hit, Reply};
use super::rest::is_of_attempt;
use super::server::Server;
use super::summary::Summary;
use super::world::PoolModel;

pub struct Judge<'a> {
    pub pool_at: usize,
    pub pool: &'a PoolModel,
    pub plan: &'a PoolPlan,
    pub journal: &'a mut Journal,
    pub client: &'a mut Client,
    pub summary: &'a mut Summary,
    pub now: Time,
    pub tight_memory: bool,
    /// Queues are so short that they get full.
    pub tight_queues: bool,
    pub limits: Limits,
    /// A request of the pool has waited too long in a queue.
    pub has_late: bool,
    /// No server sends error lines. After an error line, keys are requested one by one, after later
    /// reads.
    pub reads_in_order: bool,
    /// No fault can explain an error: there were none, or they are long over.
    pub is_calm: bool,
    /// The event from which `is_calm` applies.
    pub over: u64,
    pub trace: bool,
}

/// The conclusion from an error line.
pub enum Explained {
    /// The request was not sent, or not executed, and never will be.
    NeverDone,
    /// The outcome is unknown.
    Unknown,
}

impl Judge<'_> {
    pub fn judge(&mut self, expect: &Expect, reply: &Reply, input: &[u8]) {
        let line = std::str::from_utf8(&input[reply.line.clone()]).expect("an ASCII line");
        self.summary.replies += 1;
        match &expect.asked {
            Asked::Read { keys, .. } => self.read(expect, keys, reply, input, line),
            Asked::Update(number) => self.update(expect, *number, line),
            Asked::Delete { key } => self.delete(expect, *key, line),
            Asked::TooLarge { key } => self.too_large(expect, *key, line),
            Asked::Line(words) => {
                let is_tight = self.tight_memory && line == NO_MEMORY;
                assert!(line == *words || is_tight, "{line:?}, not {words:?}");
            }
            Asked::Prefix(words) => assert!(line.starts_with(words), "{line:?}, not {words:?}"),
            Asked::Stats => assert_eq!(line, "END"),
            Asked::Form(_) | Asked::Redis(_) => unreachable!("it is judged elsewhere"),
            Asked::Nothing => panic!("{line:?} answers a request that has no answer"),
        }
    }

    fn read(&mut self, expect: &Expect, keys: &[u8], reply: &Reply, input: &[u8], line: &str) {
        let is_error = line != "END";
        let many = keys.len() > 1;
        // A read without enough memory is refused as a whole, before any key is requested.
        let refused = line == NO_MEMORY_FOR_KEYS;
        let hides = many && !refused && self.plan.partial == Partial::Miss;
        if is_error {
            assert!(!hides, "{line:?} although `partial: miss` hides it");
            assert!(many || reply.values.is_empty(), "{line:?} after the value");
            self.explain(expect, keys, line);
        }
        let mut next = 0;
        for hit in &reply.values {
            let found = self.find(keys, next, &input[hit.key.clone()]);
            for missed in next..found {
                self.miss(expect, keys, missed, is_error, hides);
            }
            self.hit(expect, usize::from(keys[found]), hit, input);
            next = found + 1;
        }
        for missed in next..keys.len() {
            self.miss(expect, keys, missed, is_error, hides);
        }
    }

    /// Returns the index of the key that a value answers: values come in the order of the request.
    fn find(&self, keys: &[u8], from: usize, text: &[u8]) -> usize {
        let is_it = |at: &usize| self.pool.keys[usize::from(keys[*at])].text.as_bytes() == text;
        let found = (from..keys.len()).find(is_it);
        found.unwrap_or_else(|| panic!("a value of {:?}", String::from_utf8_lossy(text)))
    }

    fn hit(&mut self, expect: &Expect, key: usize, hit: &Hit, input: &[u8]) {
        self.summary.hits += 1;
        let bytes = &input[hit.bytes.clone()];
        let is_it = |version: &&Version| {
            version.value.as_ref().is_some_and(|value| is_value(value, hit, bytes))
        };
        let Some(version) = self.version(expect, key, is_it) else {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
            panic!("key {key}: {shown:?} was not there after {}", self.since(expect, key))
        };
        self.seen(expect, key, version);
        if let Some(cas) = hit.cas {
            self.client.cas[key] = cas;
        }
    }

    pub fn miss(&mut self, expect: &Expect, keys: &[u8], at: usize, is_error: bool, hides: bool) {
        let key = usize::from(keys[at]);
        // If a key occurs twice, one of the two may have been found.
        let is_twice = keys.iter().filter(|other| **other == keys[at]).count() > 1;
        let is_tight = self.tight_memory || self.tight_queues;
        if is_error || is_twice || is_tight && hides {
            return;
        }
        self.summary.misses += 1;
        // A miss that hides a fault proves nothing about the key.
        if hides && self.may_have_failed(expect, key) {
            return;
        }
        let Some(version) = self.version(expect, key, |version| version.value.is_none()) else {
            panic!("key {key} is missed; it was there since {}", self.since(expect, key))
        };
        self.seen(expect, key, version);
    }

    /// Returns whether a fault may have kept a key's server from answering.
    fn may_have_failed(&self, expect: &Expect, key: usize) -> bool {
        let waited = self.now.since(expect.arrived_at);
        let queue = self.pool.deadlines_since(expect.arrived_at).queue;
        let is_late = !self.is_calm && waited >= queue;
        let in_trouble = |server: usize| {
            let server = &self.pool.servers[server];
            server.was_in_trouble(expect.arrived, expect.arrived_at)
                || self.may_be_dropped(server, expect)
        };
        let was_empty = self.pool.rings.was_empty(expect.arrived);
        is_late || was_empty || self.owners(expect, key).any(in_trouble)
    }

    /// Returns the version of a key that a read may have seen; the oldest, if there are several.
    pub fn version(
        &self,
        expect: &Expect,
        key: usize,
        is_it: impl FnMut(&&Version) -> bool + Copy,
    ) -> Option<(u64, Option<u32>)> {
        let since = self.since(expect, key);
        let stores = self.owners(expect, key).map(|server| &self.pool.servers[server].store);
        let fitting = stores.filter_map(|store| store.since(key, since).filter(is_it).last());
        let oldest = fitting.min_by_key(|version| version.from)?;
        Some((oldest.from, oldest.by))
    }

    /// Returns the servers that may have owned a key since a request arrived.
    pub fn owners(&self, expect: &Expect, key: usize) -> impl Iterator<Item = usize> {
        self.pool.owners(key, expect.arrived)
    }

    /// Returns the event before which a value may not have ended: the request's arrival, or the
    /// client's knowledge of the key from answers and from its own quiet updates executed earlier.
    fn since(&self, expect: &Expect, key: usize) -> u64 {
        if !self.pool.is_ordered() {
            return expect.arrived;
        }
        let epoch = self.pool.epoch;
        let floor = self.client.floors[key];
        let known = if floor.epoch == epoch { floor.event } else { 0 };
        let quiet = self.client.quiet_updates.iter().rev();
        let quiet = quiet.filter(|(index, _)| *index < expect.index);
        let quiet = quiet.map(|(_, number)| &self.journal.updates[*number as usize]);
        let mut done = quiet.filter(|update| {
            update.key == Some(key) && update.live && update.executed != 0 && update.epoch == epoch
        });
        let quiet = done.next().map_or(0, |update| update.at);
        expect.arrived.max(known).max(quiet)
    }

    /// Records that a read saw that version.
    pub fn seen(&mut self, expect: &Expect, key: usize, (from, by): (u64, Option<u32>)) {
        if let Some(by) = by.map(|by| &self.journal.updates[by as usize]) {
            let is_later = by.client == self.client.number && by.index > expect.index;
            let is_later = is_later && self.pool.is_ordered();
            assert!(!is_later, "key {key}: a read sees its own client's later update");
        }
        if self.reads_in_order {
            self.raise(expect, key, from);
        }
    }

    fn raise(&mut self, expect: &Expect, key: usize, event: u64) {
        let epoch = self.pool.epoch;
        let floor = &mut self.client.floors[key];
        if expect.epoch != epoch {
            return;
        }
        let known = if floor.epoch == epoch { floor.event } else { 0 };
        *floor = Floor { event: event.max(known), epoch };
    }

    pub fn update(&mut self, expect: &Expect, number: u32, line: &str) {
        let update = &self.journal.updates[number as usize];
        let kind = update.kind;
        let removable = update.key.filter(|_| update.may_remove);
        if removable.is_some() && is_unknown(line) {
            // The removal's link may have died before all of the data had arrived.
            self.summary.errors += 1;
            return;
        }
        if let Some(key) = removable.filter(|_| !self.is_removed(number, line)) {
            self.journal.forbid_delete(self.pool_at, key);
        }
        let update = &self.journal.updates[number as usize];
        if line.starts_with("SERVER_ERROR ") {
            let key = update.key.map(|key| key as u8);
            let explained = self.explain(expect, key.as_slice(), line);
            // An update to several servers may fail at one of them, but not for a reason known in
            // advance.
            let is_one =
                kind != UpdateKind::Flush || self.must_be_known_before(line, expect.arrived);
            let update = &mut self.journal.updates[number as usize];
            if let (Explained::NeverDone, true) = (explained, is_one) {
                assert_eq!(update.executed, 0, "update {number} is executed, but {line:?}");
                update.forbidden = true;
                self.client.is_let_down = true;
                self.journal.to_repeat.push(number);
            }
            return;
        }
        assert_ne!(update.executed, 0, "update {number} was not executed, but {line:?}");
        assert!(is_outcome(update, line), "update {number}: {line:?}, not {:?}", update.outcome);
        let (at, key) = (update.at, update.key);
        assert!(at > expect.arrived, "update {number} was executed before it arrived");
        self.summary.updates += 1;
        let Some(key) = key else {
            let all = self.pool.rings.had_members(update.executed, expect.arrived);
            assert!(all, "a broadcast goes to all servers, not to {:#b}", update.executed);
            return;
        };
        let since = self.since(expect, key);
        assert!(at >= since, "update {number} of key {key} is out of order");
        self.raise(expect, key, at);
    }

    /// Returns whether the answer to an update allows that its key is removed instead.
    fn is_removed(&mut self, number: u32, line: &str) -> bool {
        let update = &self.journal.updates[number as usize];
        let key = update.key.expect("a store has a key");
        if line == NO_MEMORY {
            // It may have happened before all of the data had arrived.
            self.journal.tell_removal(self.pool_at, key, 0);
        }
        line == NO_MEMORY
    }

    /// Checks a value that is too large: the old value is removed.
    fn too_large(&mut self, expect: &Expect, key: usize, line: &str) {
        match line {
            TOO_LARGE => {
                let since = self.since(expect, key);
                let at = self.journal.tell_removal(self.pool_at, key, since);
                self.summary.updates += 1;
                self.raise(expect, key, at);
            }
            TOO_LARGE_KEPT => {
                self.check_kept(expect);
                self.journal.forbid_delete(self.pool_at, key);
            }
            error => {
                let explained = self.explain(expect, &[key as u8], error);
                let is_unknown = matches!(explained, Explained::Unknown);
                assert!(is_unknown, "{line:?} says not whether the old value is kept");
            }
        }
    }

    /// Checks that a fault may have kept a removal from its server.
    fn check_kept(&self, expect: &Expect) {
        let is_full = self.tight_queues || self.client.is_half_closed;
        // Its head is enough for the proxy to refuse the value.
        let begun = if expect.begun > 0 { expect.begun } else { expect.arrived };
        let was_out = |one: &Server| one.is_maint || one.trouble.maint > begun;
        let is_unfit = self.pool.servers.iter().any(|one| one.ever_lacked || was_out(one));
        assert!(!self.is_calm || is_full || is_unfit, "a value is kept without any fault");
    }

    pub fn delete(&mut self, expect: &Expect, key: usize, line: &str) {
        let found = match line {
            "DELETED" => true,
            "NOT_FOUND" => false,
            error => {
                let explained = self.explain(expect, &[key as u8], error);
                if let Explained::NeverDone = explained {
                    self.journal.forbid_delete(self.pool_at, key);
                }
                return;
            }
        };
        let since = self.since(expect, key);
        let at = self.journal.tell_delete(self.pool_at, key, found, since);
        self.summary.updates += 1;
        self.raise(expect, key, at);
    }

    /// Checks that an error line names a fault that happened while the request waited.
    pub fn explain(&mut self, expect: &Expect, keys: &[u8], line: &str) -> Explained {
        let line = &*without_said(line);
        let Some(text) = line.strip_prefix("SERVER_ERROR ") else { panic!("{line:?}") };
        self.summary.errors += 1;
        if line == NO_MEMORY_KEPT {
            self.check_kept(expect);
        }
        if [NO_MEMORY, NO_MEMORY_KEPT, NO_MEMORY_FOR_KEYS].contains(&line) {
            assert!(self.tight_memory, "{line:?} without a ceiling");
            return Explained::NeverDone;
        }
        if let Some(number) = text.strip_prefix("injected ") {
            return self.explain_injected(expect, keys, number.parse().expect("a number"));
        }
        // The line gives the removal's reason, not its outcome.
        let mut all = [TOO_LARGE, NO_MEMORY].iter();
        let text = all.find_map(|why| line.strip_prefix(why)?.strip_prefix("; "));
        let text = text.filter(|told| told.ends_with("outcome unknown"));
        let text = text.unwrap_or(line.strip_prefix("SERVER_ERROR ").unwrap_or_default());
        let each = text.strip_prefix("the servers do not agree: ");
        if each.is_some() || text.contains("; ") {
            return self.explain_each(expect, keys, each.unwrap_or(text));
        }
        let (label, words) = text.split_once(": ").expect("a server and a fault");
        let words = if words.starts_with("busy with ") { Fault::Busy.row().words } else { words };
        let is_it = |row: &&Row| [row.words, row.words_unsent, row.words_sent].contains(&words);
        let row = FAULTS.iter().find(is_it);
        let row = row.unwrap_or_else(|| panic!("{line:?} is in no table"));
        let shed = [
            Fault::OutOfMemory,
            Fault::QueueFull,
            Fault::Dropped,
            Fault::Maint,
            Fault::PrivateFull,
        ];
        let is_shed = shed.contains(&row.fault);
        // The handshake of a server that was restarted long ago may arrive only now.
        let is_unfit = row.fault == Fault::NoBlocks
            || matches!(row.fault, Fault::LinkLost | Fault::SetupRefused)
                && self.pool.servers.iter().any(|one| one.label == label && one.ever_lacked);
        assert!(!self.is_calm || is_shed || is_unfit, "{line:?} without any fault");
        self.summary.faults[row.fault as usize] += 1;
        if row.fault == Fault::NoServer {
            assert_eq!(label, self.plan.name);
            let was_empty = self.pool.rings.was_empty(expect.arrived);
            assert!(was_empty, "{line:?}, but one is in the ring");
            return Explained::NeverDone;
        }
        let server = self.pool.servers.iter().position(|server| server.label == label);
        let server = server.unwrap_or_else(|| panic!("{line:?} names no server"));
        let owns = |key: &u8| self.owners(expect, usize::from(*key)).any(|at| at == server);
        assert!(keys.is_empty() || keys.iter().any(owns), "{line:?} is not the key's server");
        let happened = self.happened(row.fault, server, expect);
        assert!(happened, "{line:?}, but that did not happen since {}", expect.arrived);
        match row.words != row.words_sent && words == row.words_sent {
            true => Explained::Unknown,
            false => Explained::NeverDone,
        }
    }

    /// Checks each server's answer, or its error, in an answer that names several servers.
    fn explain_each(&mut self, expect: &Expect, keys: &[u8], told: &str) -> Explained {
        for part in told.split("; ") {
            let Some((label, said)) = part.split_once(" says '") else {
                self.explain(expect, keys, &format!("SERVER_ERROR {part}"));
                continue;
            };
            let is_known = self.pool.servers.iter().any(|server| server.label == label);
            assert!(is_known, "{part:?} names no server");
            let said = said.strip_suffix('\'').expect("its words stand in quotes");
            let line = format!("-{said}\r\n").into_bytes();
            let mut errors = self.journal.redis.errors.iter().rev();
            let mut errors = errors.by_ref().take_while(|said| said.0 > expect.arrived);
            let is_own = errors.any(|said| *said.1 == *line);
            let is_injected = said.starts_with("SERVER_ERROR injected ");
            assert!(said == "OK" || is_own || is_injected, "{part:?} was not said");
        }
        Explained::Unknown
    }

    fn happened(&self, fault: Fault, server: usize, expect: &Expect) -> bool {
        let server = &self.pool.servers[server];
        let trouble = &server.trouble;
        let since = expect.arrived;
        // The attempt may have failed before that, while another link was up.
        let (down_since, why) = trouble.verdict;
        let is_verdict = down_since > since && why == fault.row().words;
        let rests = server.rest.lasts(expect.arrived_at);
        if is_of_attempt(fault) && (is_verdict || rests) {
            return true;
        }
        match fault {
            // When a server is down, all that waits for it is told why.
            Fault::ConnectFailed | Fault::ConnectClosed | Fault::ConnectTimeout => {
                trouble.refused.max(trouble.hung).max(trouble.silent) > since
            }
            // Both lines are possible: a message may be held only at the last moment.
            Fault::QueueTimeout | Fault::Held | Fault::Busy => {
                let queue = self.pool.deadlines_since(expect.arrived_at).queue;
                self.now.since(expect.arrived_at) >= queue
            }
            Fault::QueueFull => self.tight_queues && self.may_fill_queue(expect),
            // A slow request may have kept the server silent. That closes no link.
            Fault::ReplyTimeout => {
                let most = self.pool.deadlines_since(expect.arrived_at).reply;
                let is_late = self.pool.is_redis && self.now.since(expect.arrived_at) >= most;
                trouble.silent.max(trouble.hung).max(trouble.refused) > since || is_late
            }
            Fault::Refused => trouble.full > since,
            Fault::LinkLost => trouble.lost > since,
            Fault::Poisoned => trouble.poisoned > since,
            Fault::Down => server.is_down || trouble.back > since,
            Fault::OutOfMemory => self.tight_memory,
            Fault::Unable => {
                let until = trouble.unable_time.after(limits::BACKOFF_LAST_US);
                trouble.unable != 0 && (trouble.unable > since || until >= expect.arrived_at)
            }
            Fault::Dropped => self.may_be_dropped(server, expect),
            Fault::Maint => server.is_maint || trouble.maint > since,
            Fault::FurtherFailed | Fault::FurtherClosed | Fault::FurtherTimeout => rests,
            Fault::FurtherSilent | Fault::FurtherLost => rests,
            Fault::NoServer => unreachable!("it names no server"),
            Fault::SetupRefused => server.ever_lacked,
            Fault::NoBlocks => server.may_refuse_blocks(expect),
            Fault::PrivateFull => true,
            Fault::LoginRefused | Fault::Unresolved | Fault::TenantFull => {
                unreachable!("no scene has these")
            }
        }
    }

    /// Returns whether this client alone may have had a queue full when the request came.
    fn may_fill_queue(&self, expect: &Expect) -> bool {
        let (count, bytes) = expect.queued;
        // A change to several servers needs room for the most messages that it may be.
        let is_full = count + 1 + bytes / 3_000 >= self.limits.link_queue;
        is_full || bytes >= self.limits.link_outbox || self.client.has_been_quiet
    }

    fn explain_injected(&self, expect: &Expect, keys: &[u8], number: usize) -> Explained {
        let injected = &self.journal.injected[number];
        assert_eq!(injected.pool, self.pool_at, "another pool's error line");
        let is_one = |key: &u8| injected.keys & 1 << key != 0;
        let is_own = injected.keys == 0 || keys.iter().any(is_one);
        assert!(is_own, "another key's error line");
        // A get of several keys is sent again key by key, unless its client has sent a change
        // since.
        let changed = self.client.expects.iter().any(Expect::changes) || self.client.has_been_quiet;
        // A gat is not, since it changes something; nor is any request while the queue is full.
        let retries = changed || expect.update().is_some() || self.tight_queues;
        assert!(injected.alone || retries, "a get is not asked again alone");
        Explained::NeverDone
    }
}

pub fn is_value(value: &Value, hit: &Hit, bytes: &[u8]) -> bool {
    value.flags == hit.flags && hit.cas.is_none_or(|cas| cas == value.cas) && *value.bytes == *bytes
}

/// Whether an error says that an update was sent and its outcome is unknown.
fn is_unknown(line: &str) -> bool {
    line.starts_with("SERVER_ERROR ") && line.ends_with("outcome unknown")
}

fn is_outcome(update: &Update, line: &str) -> bool {
    match update.outcome {
        Outcome::Words(words) => line == words,
        Outcome::Number(number) => line == number.to_string(),
    }
}

pub const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
const NO_MEMORY_KEPT: &str = "SERVER_ERROR out of memory storing object, old value kept";
pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const TOO_LARGE_KEPT: &str = "SERVER_ERROR object too large for cache, old value kept";
const NO_MEMORY_FOR_KEYS: &str = "SERVER_ERROR out of memory for so many keys";
