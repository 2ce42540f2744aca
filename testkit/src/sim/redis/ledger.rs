//! The ledger of wishes: every request that a Redis client made, what servers did for it, and what
//! they said.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proxy::Time;

/// How a wish is served, and what may answer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All its keys on one server, one reply that passes as it came.
    Single,
    /// One element of the reply for each key.
    Each,
    /// The sum over its keys.
    Sum,
    /// `OK`, when all is done.
    All,
    /// One more element of a list by each server.
    Keys,
    /// The same from every server.
    Load,
    /// One number of each key of the reply, from all servers: known by all or not.
    Known,
    /// A number of each server's, summed up; nothing tells whose it is.
    Size,
    /// One of what a server has said to anybody who asked the same.
    Loose(Loose),
    /// Every server forgets its keys, of one database or of all.
    Flush { all: bool },
    /// Every server forgets its scripts.
    Forget,
    /// One step through the keys.
    Scan,
    /// The proxy answers by itself: exactly this.
    Exactly(Vec<u8>),
    /// The proxy answers by itself: something that begins so.
    Begins(&'static [u8]),
    /// HELLO, of that version.
    Hello(u8),
}

/// What bears no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loose {
    Size,
    Random,
    Time,
    /// INFO and CONFIG GET: the servers that are up tell of themselves.
    Info,
    Setting,
}

/// One request.
pub struct Wish {
    pub kind: Kind,
    pub pool: usize,
    /// The client's number in the run, and which of its requests it is.
    pub client: u32,
    pub index: u64,
    /// The database and the version of RESP that its client has chosen.
    pub space: u32,
    pub dialect: u8,
    pub writes: bool,
    /// It was written as a line.
    pub is_inline: bool,
    /// Its client wants no answer.
    pub quiet: bool,
    pub keys: Vec<u8>,
    /// What is stored at each of them, where that is something of its own.
    pub values: Vec<Vec<u8>>,
    /// By key; by server, where it goes to all of them.
    pub parts: Vec<Part>,
    /// Whole replies, each with its server.
    pub whole: Vec<(usize, Rc<[u8]>)>,
    /// Error replies of servers that did nothing.
    pub refusals: Vec<(usize, Rc<[u8]>)>,
    /// The event by which the proxy had all of it; zero before.
    pub arrived: u64,
    pub arrived_at: Time,
    /// Its client was told that nothing was done: nothing may be.
    pub forbidden: bool,
    /// Its client was told what it wanted.
    pub fulfilled: bool,
    /// The event at which that was.
    pub told: u64,
    /// The script that it runs, by the wish that loaded it.
    pub script: Option<u32>,
    /// Of a scan: where it goes on.
    pub from: From,
    /// The event at which that was told.
    pub since: u64,
    /// Of a scan: where its server has told to go on.
    pub next: From,
}

/// What was done for one key, or by one server.
#[derive(Clone, Default)]
pub struct Part {
    pub executed: u32,
    /// What the servers said of it, the last one last.
    pub replies: Vec<Rc<[u8]>>,
}

/// Where a scan goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// Nobody knows: the ring has turned, or an error came.
    #[default]
    Unknown,
    /// At the beginning of all.
    Start,
    /// There, where the server has said.
    At { server: usize, cursor: u64 },
    /// At the beginning of the next one.
    After { server: usize },
}

/// Something that a server said without knowing for whom.
pub struct Said {
    pub at: u64,
    pub pool: usize,
    pub server: usize,
    pub space: u32,
    pub dialect: u8,
    pub what: Loose,
    pub reply: Rc<[u8]>,
}

/// All of them.
#[derive(Default)]
pub struct Ledger {
    pub wishes: Vec<Wish>,
    pub said: Vec<Said>,
    /// Error replies to commands that bear no number, and when.
    pub errors: Vec<(u64, Rc<[u8]>)>,
    /// Clients that wait for what may never be done, for no fault of anybody's.
    pub excused: BTreeSet<u32>,
    /// The scripts that were asked to be loaded, by pool.
    pub scripts: BTreeMap<usize, Vec<u32>>,
    /// The last request of each client that a server executed, and the last that changes something.
    order: BTreeMap<(u32, usize, usize), (u64, u64)>,
    /// How often the servers of a pool may and did forget their keys.
    flushes: BTreeMap<(usize, Option<u32>), Flushes>,
}

/// Flushes of one kind.
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
            space: 0,
            dialect: 2,
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
            from: From::Unknown,
            since: u64::MAX,
            next: From::Unknown,
        }
    }

    /// Its keys must live together.
    pub fn is_together(&self) -> bool {
        self.kind == Kind::Single
    }

    /// Something was done for it.
    pub fn is_executed(&self) -> bool {
        !self.whole.is_empty() || self.parts.iter().any(|part| part.executed > 0)
    }
}

impl Ledger {
    /// A new wish; its number.
    pub fn add(&mut self, wish: Wish) -> u32 {
        if let Kind::Flush { all } = wish.kind {
            let space = (!all).then_some(wish.space);
            self.flushes.entry((wish.pool, space)).or_default().asked += 1;
        }
        self.wishes.push(wish);
        (self.wishes.len() - 1) as u32
    }

    /// A server may do this now, in the database and the version of its link.
    pub fn check(&self, number: u32, pool: usize, lane: (u32, u8)) {
        let wish = self.wishes.get(number as usize);
        let wish = wish.unwrap_or_else(|| panic!("wish {number} is nobody's"));
        assert_eq!(wish.pool, pool, "wish {number} is another pool's");
        let own = (wish.space, wish.dialect);
        assert_eq!(own, lane, "wish {number} is executed in another database or version");
        assert_ne!(wish.arrived, 0, "wish {number} leaves before it is whole");
        assert!(!wish.forbidden, "wish {number} is executed, but its client was told it is not");
    }

    /// A server does what a client has asked: after what that client has asked before. Reads that
    /// are asked once more may come behind later reads.
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

    /// One part of a wish is done.
    pub fn done(&mut self, number: u32, at: usize, reply: Rc<[u8]>) {
        let wish = &mut self.wishes[number as usize];
        let part = &mut wish.parts[at];
        part.executed += 1;
        let is_once = !wish.writes || part.executed == 1;
        assert!(is_once, "part {at} of wish {number} is executed twice");
        part.replies.push(reply);
    }

    /// A wish is done as a whole.
    pub fn done_whole(&mut self, number: u32, server: usize, reply: Rc<[u8]>) {
        let wish = &mut self.wishes[number as usize];
        assert!(!wish.writes || wish.whole.is_empty(), "wish {number} is executed twice");
        wish.whole.push((server, reply));
    }

    /// A server forgets the keys of a database, or of all.
    pub fn flush(&mut self, pool: usize, space: Option<u32>, server: usize, event: u64) {
        let flushes = self.flushes.entry((pool, space)).or_default();
        let done = flushes.done.entry(server).or_default();
        done.push(event);
        let is_asked = done.len() as u32 <= flushes.asked;
        assert!(is_asked, "server {server} flushes {space:?} once more than anybody asked");
    }

    /// Whether that server has done so since then.
    pub fn has_flushed(&self, pool: usize, space: Option<u32>, server: usize, since: u64) -> bool {
        let flushes = self.flushes.get(&(pool, space));
        let done = flushes.and_then(|one| one.done.get(&server));
        done.is_some_and(|done| done.iter().any(|at| *at > since))
    }
}
