//! The ledger of Redis requests: every request of a client, its executions on servers, and their
//! replies.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proxy::Time;

/// The execution of a request, and its possible answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All its keys on one server; one reply passed on unchanged.
    Single,
    /// One element of the reply for each key.
    Each,
    /// The sum over its keys.
    Sum,
    /// `OK`, when all parts are done.
    All,
    /// The lists of all servers, joined.
    Keys,
    /// The same reply from every server.
    Load,
    /// One number for each element of the reply, from all servers: 1 if all know it.
    Known,
    /// The sum of one number from each server; the numbers do not identify the request.
    Size,
    /// A reply that a server has sent to any request of the same kind.
    Loose(Loose),
    /// Every server removes its keys, of one database or of all.
    Flush { all: bool },
    /// Every server removes its scripts.
    Forget,
    /// One step through the keys.
    Scan,
    /// A command of the transaction with this number.
    Queued(u32),
    /// Executes that transaction.
    Exec(u32),
    /// Forgets that transaction.
    Discard(u32),
    /// The proxy answers by itself, with exactly this.
    Exactly(Vec<u8>),
    /// The proxy answers by itself, with this beginning.
    Begins(&'static [u8]),
    /// HELLO with that version.
    Hello(u8),
}

/// A reply without a request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loose {
    Size,
    Random,
    Time,
    /// INFO and CONFIG GET: the servers that are up describe themselves.
    Info,
    Setting,
}

/// One request.
pub struct Wish {
    pub kind: Kind,
    pub pool: usize,
    /// The client's number in the run, and the number of its request.
    pub client: u32,
    pub index: u64,
    /// The database and the version of RESP of its client.
    pub database: u32,
    pub proto_version: u8,
    pub writes: bool,
    /// It was written as an inline command.
    pub is_inline: bool,
    /// Its client gets no answer.
    pub quiet: bool,
    pub keys: Vec<u8>,
    /// The value stored at each key, if it is not derived from the request.
    pub values: Vec<Vec<u8>>,
    /// One part for each key, or for each server if it goes to all of them.
    pub parts: Vec<Part>,
    /// Whole replies, each with its server.
    pub whole: Vec<(usize, Rc<[u8]>)>,
    /// Error replies of servers that executed nothing.
    pub refusals: Vec<(usize, Rc<[u8]>)>,
    /// The event by which the proxy had received all of it; zero before.
    pub arrived: u64,
    pub arrived_at: Time,
    /// Its client was told that nothing was done, so nothing may be done.
    pub forbidden: bool,
    /// Its client got the expected answer.
    pub fulfilled: bool,
    /// The event of that answer.
    pub told: u64,
    /// The script that it runs, as the number of the request that loaded it.
    pub script: Option<u32>,
    /// The request that watches for it, if it begins a transaction.
    pub watch: Option<u32>,
    /// The position at which a scan continues.
    pub from: From,
    /// The event at which the client got that position.
    pub since: u64,
    /// The next position of a scan, from its server's reply.
    pub next: From,
}

/// The executions for one key, or by one server.
#[derive(Clone, Default)]
pub struct Part {
    pub executed: u32,
    /// The servers' replies to it, the last one last.
    pub replies: Vec<Rc<[u8]>>,
}

/// The position of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// Unknown: the ring has changed, or there was an error.
    #[default]
    Unknown,
    /// At the beginning.
    Start,
    /// At the server's cursor.
    At { server: usize, cursor: u64 },
    /// At the beginning of the next server.
    After { server: usize },
}

/// A server's reply to a command without a request's number.
pub struct LooseReply {
    pub at: u64,
    pub pool: usize,
    pub server: usize,
    pub database: u32,
    pub proto_version: u8,
    pub what: Loose,
    pub reply: Rc<[u8]>,
}

/// All Redis requests of a run.
#[derive(Default)]
pub struct Ledger {
    pub wishes: Vec<Wish>,
    pub loose_replies: Vec<LooseReply>,
    /// Error replies to commands without a request's number, and their events.
    pub errors: Vec<(u64, Rc<[u8]>)>,
    /// Clients whose outstanding requests may never be executed, because of a fault that is
    /// nobody's.
    pub retries: BTreeSet<u32>,
    /// The scripts whose load was requested, by pool.
    pub scripts: BTreeMap<usize, Vec<u32>>,
    /// The last request of each client that a server executed, and the last one that changes
    /// something.
    order: BTreeMap<(u32, usize, usize), (u64, u64)>,
    /// The flushes that the servers of a pool may execute, and those that they did.
    flushes: BTreeMap<(usize, Option<u32>), Flushes>,
}

/// The flushes of one kind.
#[derive(Default)]
struct Flushes {
    asked: u32,
    done: BTreeMap<usize, Vec<u64>>,
}

impl Wish {
    pub fn new(kind: Kind, writes: bool, keys: Vec<u8>) -> Wish {
        let parts = vec![Part::default(); keys.len()];
        Wish {
            kind,
            pool: 0,
            client: 0,
            index: 0,
            database: 0,
            proto_version: 2,
            writes,
            is_inline: false,
            quiet: false,
            keys,
            values: Vec::new(),
            parts,
            whole: Vec::new(),
            refusals: Vec::new(),
            arrived: 0,
            arrived_at: Time(0),
            forbidden: false,
            fulfilled: false,
            told: 0,
            script: None,
            watch: None,
            from: From::Unknown,
            since: u64::MAX,
            next: From::Unknown,
        }
    }

    /// Returns whether its keys must be on one server.
    pub fn is_together(&self) -> bool {
        self.kind == Kind::Single
    }

    /// Returns whether any part of it was executed.
    pub fn is_executed(&self) -> bool {
        !self.whole.is_empty() || self.parts.iter().any(|part| part.executed > 0)
    }
}

impl Ledger {
    /// Adds a request and returns its number.
    pub fn add(&mut self, wish: Wish) -> u32 {
        if let Kind::Flush { all } = wish.kind {
            let database = (!all).then_some(wish.database);
            self.flushes.entry((wish.pool, database)).or_default().asked += 1;
        }
        self.wishes.push(wish);
        (self.wishes.len() - 1) as u32
    }

    /// Checks that a server may execute this now, in the database and the version of its link.
    pub fn check(
        &self,
        number: u32,
        (pool, is_in_transaction): (usize, bool),
        conn_key: (u32, u8),
    ) {
        let wish = self.wishes.get(number as usize);
        let wish = wish.unwrap_or_else(|| panic!("wish {number} is nobody's"));
        assert_eq!(wish.pool, pool, "wish {number} is another pool's");
        let is_queued = matches!(wish.kind, Kind::Queued(_));
        assert_eq!(is_queued, is_in_transaction, "wish {number} and its transaction come apart");
        let own = (wish.database, wish.proto_version);
        assert_eq!(own, conn_key, "wish {number} is executed in another database or version");
        assert_ne!(wish.arrived, 0, "wish {number} leaves before it is whole");
        assert!(!wish.forbidden, "wish {number} is executed, but its client was told it is not");
    }

    /// Checks that a server executes a client's requests in their order. Reads that are sent again
    /// may come after later reads.
    pub fn in_order(&mut self, number: u32, server: usize) {
        let wish = &self.wishes[number as usize];
        let place = (wish.client, wish.pool, server);
        let (any, change) = self.order.entry(place).or_default();
        let last = if wish.writes { *any } else { *change };
        assert!(
            wish.index >= last,
            "request {} of client {} is executed after request {last}",
            wish.index,
            wish.client
        );
        *any = wish.index.max(*any);
        if wish.writes {
            *change = wish.index;
        }
    }

    /// Returns the number of a transaction's EXEC, and those of its commands that have keys.
    pub fn transaction(&self, number: u32) -> (u32, Vec<u32>) {
        let numbers = number + 1..self.wishes.len() as u32;
        let is_end = |one: &u32| self.wishes[*one as usize].kind == Kind::Exec(number);
        let exec = numbers.clone().find(is_end).expect("a block ends with the client's EXEC");
        let is_its = |one: &u32| {
            let wish = &self.wishes[*one as usize];
            wish.kind == Kind::Queued(number) && !wish.keys.is_empty()
        };
        (exec, numbers.filter(is_its).collect())
    }

    /// Records that one part of a request is executed.
    pub fn done(&mut self, number: u32, at: usize, reply: Rc<[u8]>) {
        let wish = &mut self.wishes[number as usize];
        let part = &mut wish.parts[at];
        part.executed += 1;
        let is_once = !wish.writes || part.executed == 1;
        assert!(is_once, "part {at} of wish {number} is executed twice");
        part.replies.push(reply);
    }

    /// Records that a request is executed as a whole.
    pub fn done_whole(&mut self, number: u32, server: usize, reply: Rc<[u8]>) {
        let wish = &mut self.wishes[number as usize];
        assert!(!wish.writes || wish.whole.is_empty(), "wish {number} is executed twice");
        wish.whole.push((server, reply));
    }

    /// Records that a server removes the keys of a database, or of all.
    pub fn flush(&mut self, pool: usize, database: Option<u32>, server: usize, event: u64) {
        let flushes = self.flushes.entry((pool, database)).or_default();
        let done = flushes.done.entry(server).or_default();
        done.push(event);
        let is_asked = done.len() as u32 <= flushes.asked;
        assert!(is_asked, "server {server} flushes {database:?} once more than anybody asked");
    }

    /// Returns whether that server has done so since then.
    pub fn has_flushed(
        &self,
        pool: usize,
        database: Option<u32>,
        server: usize,
        since: u64,
    ) -> bool {
        let flushes = self.flushes.get(&(pool, database));
        let done = flushes.and_then(|one| one.done.get(&server));
        done.is_some_and(|done| done.iter().any(|at| *at > since))
    }
}
