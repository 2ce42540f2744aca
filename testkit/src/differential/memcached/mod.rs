//! The test of memcached's protocols: classic text, meta and binary.
//!
//! ```text
//!            ┌──▶ memcached                            its answers are right
//!   rounds ──┼──▶ quickack ──▶ one memcached      ┐
//!            ├──▶ quickack ──▶ four memcacheds    ├──  same answers
//!            └──▶ quickack ──▶ the embedded cache ┘
//! ```
//!
//! A **round** is one to three **lanes**: connections that are used at the same time, each with its
//! own keys. A lane carries a **burst** of pipelined requests, cut into segments at random. A burst
//! ends with a barrier, so that its last answer is known. Each side has its own cas numbers: a
//! number from memcached's answer is replaced by the side's own when a request repeats it. The same
//! seed gives the same rounds as long as memcached gives the same numbers.

mod binary;
mod book;
mod classic;
mod excuses;
mod keys;
mod maker;
mod meta;
mod reply;
mod request;
mod side;
mod tally;

use std::net::SocketAddr;

pub use excuses::Behind;
pub use tally::Tally;

use book::Given;
use keys::{Key, LANES};
use maker::Maker;
use reply::Reply;
use request::{Request, Wire};
use side::Side;

use super::exchange::cuts;
use super::{History, Subject};
use crate::random::Random;

/// The sides and the number of requests.
pub struct Settings {
    pub seed: u64,
    pub requests: usize,
    /// Requests of the longest burst; 1 assigns each answer to its request.
    pub depth: usize,
    pub memcached: SocketAddr,
    /// The sides that must give the same answers.
    pub sides: Vec<(Behind, SocketAddr)>,
}

struct Run {
    random: Random,
    keys: Vec<Key>,
    given: Given,
    opaque: u32,
    /// memcached itself, then the sides that are compared with it.
    sides: Vec<Side>,
    tally: Tally,
    depth: usize,
    history: History<usize>,
}

/// The requests of one connection in a round.
pub(crate) struct Burst {
    wire: Wire,
    /// Index among the side's connections of that protocol.
    conn: usize,
    /// The connection is opened anew before the burst.
    fresh: bool,
    requests: Vec<Request>,
    cuts: Vec<u16>,
    /// The opaque of its barrier.
    barrier: u32,
}

/// Sends everything to all sides; an error describes the first difference.
pub fn run(settings: &Settings) -> Result<Tally, String> {
    let mut random = Random::new(settings.seed);
    let keys = keys::all(&mut random);
    let others = settings.sides.iter().map(|(behind, address)| (Some(*behind), *address));
    let sides = [(None, settings.memcached)].into_iter().chain(others);
    let mut run = Run {
        given: Given::new(keys.len()),
        history: History::default(),
        random,
        keys,
        opaque: 1 << 20,
        sides: sides.map(|(behind, address)| Side::new(behind, address)).collect(),
        tally: Tally::default(),
        depth: settings.depth,
    };
    super::run(&mut run, settings.seed, settings.requests, settings.sides.len())?;
    run.tally.translated = run.sides[1..].iter().map(Side::numbers).collect();
    Ok(run.tally)
}

impl Subject for Run {
    type Batch = Vec<Burst>;
    /// By burst.
    type Answers = Vec<Vec<Reply>>;

    fn asked(&self) -> usize {
        self.tally.requests
    }

    fn draw(&mut self) -> Vec<Burst> {
        let lanes = *self.random.pick(&[1, 1, 1, 2, 3]);
        let mut round = Vec::new();
        for lane in 0..lanes {
            round.push(self.burst((lanes > 1).then_some(lane)));
        }
        // A request whose answers may differ is sent alone.
        let odd = round.iter_mut().find_map(|burst| {
            let at = burst.requests.iter().position(excuses::is_odd)?;
            let (wire, conn, barrier) = (burst.wire, burst.conn, burst.barrier);
            let cuts = burst.cuts.clone();
            let requests = vec![burst.requests.swap_remove(at)];
            Some(Burst { wire, conn, fresh: false, requests, cuts, barrier })
        });
        match odd {
            Some(burst) => vec![burst],
            None => round,
        }
    }

    fn ask(&mut self, side: usize, round: &Vec<Burst>) -> Result<Vec<Vec<Reply>>, String> {
        if side == 0 {
            for request in round.iter().flat_map(|burst| &burst.requests) {
                request.key.iter().for_each(|key| self.history.note(key, request.shown()));
            }
        }
        self.sides[side].ask(round)
    }

    /// Learns memcached's numbers from its answers.
    fn note(&mut self, round: &Vec<Burst>, direct: &Vec<Vec<Reply>>) {
        for (burst, replies) in round.iter().zip(direct) {
            self.tally.count(burst, replies);
            for reply in replies {
                if let (Some(cas), Some(key)) = (reply.cas(), self.key_of(burst, reply)) {
                    self.given.note(key, cas);
                }
            }
        }
    }

    fn compare(
        &mut self,
        side: usize,
        round: &Vec<Burst>,
        direct: &Vec<Vec<Reply>>,
        ours: &Vec<Vec<Reply>>,
    ) -> Result<(), String> {
        let answers = direct.iter().zip(ours);
        let mut all = round.iter().zip(answers);
        all.try_for_each(|(burst, (direct, ours))| self.compare_burst(side, burst, direct, ours))
    }

    /// Deletes the key of a request whose answers may differ on all sides.
    fn settle(&mut self, round: &Vec<Burst>) -> Result<(), String> {
        let [Burst { requests, .. }] = &round[..] else { return Ok(()) };
        let [request] = &requests[..] else { return Ok(()) };
        let Some(key) = request.key.filter(|_| excuses::is_odd(request)) else { return Ok(()) };
        self.sides.iter_mut().try_for_each(|side| side.forget(&self.keys[key]))
    }
}

impl Run {
    fn burst(&mut self, lane: Option<usize>) -> Burst {
        let wire = *self.random.pick(&[Wire::Text, Wire::Binary]);
        let len = match self.random.below(10) {
            0..4 => 1,
            4..9 => 1 + self.random.below(8),
            _ => 1 + self.random.below(60),
        };
        let len = len.min(self.depth);
        let mut requests: Vec<Request> = Vec::new();
        for _ in 0..len {
            let mut maker = Maker {
                random: &mut self.random,
                keys: &self.keys,
                given: &self.given,
                lane,
                skipped: &mut self.tally.skipped,
                opaque: &mut self.opaque,
            };
            let request = maker.request(wire);
            // One huge request is enough for a burst's buffers.
            if !(request.is_huge() && requests.iter().any(Request::is_huge)) {
                requests.push(request);
            }
        }
        let cuts = cuts(&mut self.random);
        let conn = lane.unwrap_or_else(|| self.random.below(LANES));
        let fresh = self.random.below(60) == 0;
        self.opaque += 1;
        Burst { wire, conn, fresh, requests, cuts, barrier: self.opaque }
    }

    /// Returns the key of an answer: by its opaque, by the key in it, or because it is the only key
    /// in the burst.
    fn key_of(&self, burst: &Burst, reply: &Reply) -> Option<usize> {
        let asked = |opaque| burst.requests.iter().find(|asked| asked.opaque == Some(opaque));
        let by_opaque = reply.opaque().and_then(asked).and_then(|asked| asked.key);
        let by_name =
            || self.keys.iter().position(|key| reply.key().is_some_and(|name| key.is_named(&name)));
        let only = || match &burst.requests[..] {
            [request] => request.key,
            _ => None,
        };
        by_opaque.or_else(by_name).or_else(only)
    }

    fn compare_burst(
        &mut self,
        at: usize,
        burst: &Burst,
        direct: &[Reply],
        ours: &[Reply],
    ) -> Result<(), String> {
        let side = &mut self.sides[at];
        let behind = side.behind.expect("memcached is not compared with itself");
        let rows: Vec<_> = match &burst.requests[..] {
            [request] => excuses::of(request, behind).collect(),
            _ => Vec::new(),
        };
        let (direct, ours) = match &burst.requests[..] {
            [request] if request.closes() => until_closed(direct, ours),
            _ => (direct, ours),
        };
        let Some(at) = side.translated.difference(direct, ours) else { return Ok(()) };
        if let Some(row) = rows.iter().find(|row| row.accepts(direct, ours)) {
            self.tally.excuse(row.name, behind);
            return Ok(());
        }
        let key = direct.get(at).and_then(|reply| self.key_of(burst, reply));
        let all = burst.requests.iter().filter_map(|request| request.key).take(6);
        let keys: Vec<usize> = key.map_or_else(|| all.collect(), |key| vec![key]);
        let past = self.history.of(&keys);
        Err(tally::difference(behind, burst, at, (direct, ours), &rows, &past))
    }
}

/// An endpoint that closes with unread input may lose its last answers.
fn until_closed<'a>(direct: &'a [Reply], ours: &'a [Reply]) -> (&'a [Reply], &'a [Reply]) {
    let closed = Some(&Reply::closed());
    let common = direct.len().min(ours.len());
    if direct.last() == closed && ours.last() == closed && common == 1 {
        return (&direct[direct.len() - 1..], &ours[ours.len() - 1..]);
    }
    (direct, ours)
}
