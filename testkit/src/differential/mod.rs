//! The differential test: sends the same random requests to a real memcached and to quickack in
//! front of several kinds of servers. All answers must be the same.
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
mod wire;

use std::collections::VecDeque;
use std::net::SocketAddr;

pub use excuses::Behind;
pub use tally::Tally;

use book::Given;
use keys::{Key, LANES};
use maker::Maker;
use reply::Reply;
use request::{Request, Wire};
use side::Side;

use crate::sim::random::Random;

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
    direct: Side,
    sides: Vec<Side>,
    tally: Tally,
    depth: usize,
    /// The last requests about each key, to explain a difference.
    history: Vec<VecDeque<String>>,
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
    let sides = settings.sides.iter().map(|(behind, address)| Side::new(Some(*behind), *address));
    let mut run = Run {
        given: Given::new(keys.len()),
        history: vec![VecDeque::new(); keys.len()],
        random,
        keys,
        opaque: 1 << 20,
        direct: Side::new(None, settings.memcached),
        sides: sides.collect(),
        tally: Tally::default(),
        depth: settings.depth,
    };
    while run.tally.requests < settings.requests {
        let round = run.draw();
        run.play(&round).map_err(|what| format!("seed {}: {what}", settings.seed))?;
    }
    run.tally.translated = run.sides.iter().map(Side::numbers).collect();
    Ok(run.tally)
}

impl Run {
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
        let cuts = match self.random.below(3) {
            0 => Vec::new(),
            1 => vec![self.random.next() as u16],
            _ => (0..self.random.below(8)).map(|_| self.random.next() as u16).collect(),
        };
        let mut cuts: Vec<u16> = cuts;
        cuts.sort_unstable();
        let conn = lane.unwrap_or_else(|| self.random.below(LANES));
        let fresh = self.random.below(60) == 0;
        self.opaque += 1;
        Burst { wire, conn, fresh, requests, cuts, barrier: self.opaque }
    }

    fn play(&mut self, round: &[Burst]) -> Result<(), String> {
        round.iter().flat_map(|burst| &burst.requests).for_each(|request| {
            let Some(key) = request.key else { return };
            self.history[key].push_back(request.shown());
            if self.history[key].len() > 8 {
                self.history[key].pop_front();
            }
        });
        let direct = self.direct.ask(round)?;
        for (burst, replies) in round.iter().zip(&direct) {
            self.note(burst, replies);
        }
        let odd = match round {
            [burst] if burst.requests.len() == 1 => burst.requests.first(),
            _ => None,
        };
        for at in 0..self.sides.len() {
            let ours = self.sides[at].ask(round)?;
            for (burst, (direct, ours)) in round.iter().zip(direct.iter().zip(&ours)) {
                self.compare(at, burst, direct, ours)?;
            }
        }
        match odd {
            Some(request) if excuses::is_odd(request) => self.agree_again(request),
            _ => Ok(()),
        }
    }

    /// Learns memcached's numbers from its answers.
    fn note(&mut self, burst: &Burst, replies: &[Reply]) {
        self.tally.count(burst, replies);
        for reply in replies {
            if let (Some(cas), Some(key)) = (reply.cas(), self.key_of(burst, reply)) {
                self.given.note(key, cas);
            }
        }
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

    fn compare(
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
        let past = keys.iter().flat_map(|key| &self.history[*key]);
        Err(tally::difference(behind, burst, at, (direct, ours), &rows, past))
    }

    /// Deletes the key of that request on all sides.
    fn agree_again(&mut self, request: &Request) -> Result<(), String> {
        let Some(key) = request.key else { return Ok(()) };
        let all = std::iter::once(&mut self.direct).chain(&mut self.sides);
        for side in all {
            side.forget(&self.keys[key])?;
        }
        Ok(())
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
