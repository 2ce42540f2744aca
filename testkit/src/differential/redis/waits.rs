//! Commands that wait, and a second client that gives them what they wait for.
//!
//! The answers are the same whichever of the two comes first, so the single server and quickack
//! need not agree in that. Each wait is for keys of its own; what is left of them is compared with
//! all other data.

use super::super::exchange::{Conn, Lane, cuts, exchange};
use super::{Run, connect, parse};
use crate::random::Random;
use crate::wire::resp::{Reply, push_command};

/// The connections of the two clients: RESP2 and RESP3, and either may be the one that waits.
pub(super) struct Waits {
    sides: [[Conn; 2]; 2],
    random: Random,
    pub(super) count: usize,
}

/// Commands of the client that waits, and of the one that feeds it.
type Round = [Vec<Vec<String>>; 2];

impl Waits {
    pub(super) fn new(sides: [std::net::SocketAddr; 2], seed: u64) -> Waits {
        let sides = sides.map(|address| [0, 1].map(|lane| connect(address, lane)));
        Waits { sides, random: Random::new(seed), count: 0 }
    }
}

impl Run<'_> {
    /// Now and then plays a wait, and compares all answers.
    pub(super) fn wait_sometimes(&mut self) -> Result<(), String> {
        if self.waits.random.below(3) > 0 {
            return Ok(());
        }
        let has_pops =
            self.rows.iter().zip(&self.known).any(|(row, known)| row.name == "blmpop" && *known);
        let Waits { sides, random, count } = &mut self.waits;
        *count += 1;
        let round = draw(random, *count, has_pops);
        self.tally.commands += round[0].len() + round[1].len();
        let (waiter, parts) = (random.below(2), [cuts(random), cuts(random)]);
        let [direct, ours] = [0, 1].map(|side| play(&mut sides[side], waiter, &round, &parts));
        let (direct, ours) = (direct?, ours?);
        match direct == ours {
            true => Ok(()),
            false => Err(format!(
                "RESP{} waits: {round:?}\n  server:   {direct:?}\n  quickack: {ours:?}",
                waiter + 2
            )),
        }
    }
}

/// Sends both clients' commands to a side; returns their answers.
fn play(
    conns: &mut [Conn; 2],
    waiter: usize,
    round: &Round,
    parts: &[Vec<u16>; 2],
) -> Result<[Vec<Reply>; 2], String> {
    let lane = |(at, conn)| {
        let role = usize::from(at != waiter);
        let (commands, mut bytes) = (&round[role], Vec::new());
        commands.iter().for_each(|words| push_command(words, &mut bytes));
        let count = commands.len();
        Lane::new(conn, bytes, &parts[role], parse, move |all: &[Reply]| all.len() >= count)
    };
    let mut lanes: Vec<Lane<'_, Reply>> = conns.iter_mut().enumerate().map(lane).collect();
    if !exchange(&mut lanes) {
        let told: Vec<_> = lanes.iter().map(|lane| &lane.replies).collect();
        return Err(format!("not all is answered of {round:?}: {told:?}"));
    }
    let mut replies = lanes.into_iter().map(|lane| lane.replies);
    let mut next = || replies.next().unwrap_or_default();
    Ok([next(), next()])
}

/// Draws a wait for keys that nothing else uses.
fn draw(random: &mut Random, nth: usize, has_pops: bool) -> Round {
    let key = |name: &str| format!("{{w{nth}}}{name}");
    let (a, b, x) = (key("a"), key("b"), key("x"));
    let (a, b, x) = (a.as_str(), b.as_str(), x.as_str());
    let side = |random: &mut Random| ["LEFT", "RIGHT"][random.below(2)];
    let (from, to) = (side(random), side(random));
    let end = ["MIN", "MAX"][random.below(2)];
    let count = ["1", "2", "9"][random.below(3)];
    let long = "v".repeat([3, 300, 70_000][random.below(3)]);
    let list = ["RPUSH", a, "1", &long, "3"];
    let sorted = ["ZADD", a, "1", "m", "2.5", "n"];
    let (wait, feed): (Vec<&str>, &[&str]) = match random.below(if has_pops { 10 } else { 8 }) {
        0 => (vec!["BLPOP", b, a, "0"], &list),
        1 => (vec!["BRPOP", a, b, "0"], &list),
        2 => (vec!["BLMOVE", a, b, from, to, "0"], &list),
        3 => (vec!["BRPOPLPUSH", a, b, "0"], &list),
        4 => (vec!["BZPOPMIN", b, a, "0"], &sorted),
        5 => (vec!["BZPOPMAX", a, "0"], &sorted),
        6 => (
            vec!["XREAD", "COUNT", count, "BLOCK", "0", "STREAMS", x, "0"],
            &["XADD", x, "1-1", "f", &long],
        ),
        7 => (
            vec!["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", x, ">"],
            &["XADD", x, "1-1", "f", &long],
        ),
        8 => (vec!["BLMPOP", "0", "2", b, a, from, "COUNT", count], &list),
        _ => (vec!["BZMPOP", "0", "2", b, a, end, "COUNT", count], &sorted),
    };
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<String>>();
    let mut waiter = Vec::new();
    if wait[0] == "XREADGROUP" {
        waiter.push(words(&["XGROUP", "CREATE", x, "g", "0", "MKSTREAM"]));
    }
    waiter.push(words(&wait));
    // What follows on its connection is answered when the wait is over; and a wait in vain ends.
    // The latter takes a server up to 100 ms, so it is rare.
    match random.below(16) {
        0..4 => waiter.push(words(&["ECHO", "behind"])),
        4 => waiter.push(words(&["BLPOP", &key("none"), "0.01"])),
        5..9 => {
            let block =
                [&["MULTI"][..], &["BLPOP", &key("none"), "0"], &["GET", &key("s")], &["EXEC"]];
            waiter.extend(block.map(words));
        }
        _ => {}
    }
    [waiter, vec![words(feed)]]
}
