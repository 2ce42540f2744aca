//! Redis' words in stories. In random ones whole frames are cut off, so that nothing split passes.

use proxy::{Closed, ConnId};

use super::Stage;

/// The handshake of a link in RESP2 and of the first database, and its answer.
pub const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
pub const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";
pub const BUSY: &str =
    "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";

/// The words of a full server, and what a client reads of them.
pub const FULL: &str = "-ERR max number of clients reached\r\n";
pub const TOLD_FULL: &str =
    "-ERR s0: takes no further connection: ERR max number of clients reached; not sent\r\n";

/// The replies of a server without a block to the commands that end one.
pub const NO_BLOCK: &str = "-ERR DISCARD without MULTI\r\n-ERR EXEC without MULTI\r\n";

/// The trials of a server, whether it executes transactions.
pub fn ends() -> String {
    all(&["DISCARD", "EXEC"])
}

pub fn empty_block() -> String {
    all(&["MULTI", "DISCARD"])
}

/// Has a server answer the trial on this link: the commands that end a transaction, and then an
/// empty one.
pub fn answers_trial(stage: &mut Stage, link: ConnId, answers: &[&str]) {
    for (trial, answer) in [ends(), empty_block()].iter().zip(answers) {
        assert_eq!(stage.turn(link), *trial);
        stage.says(link, answer);
    }
}

/// Has a server execute transactions, as the trial shows on the link that was ordered first.
pub fn is_tried(stage: &mut Stage) {
    tries(stage, &[NO_BLOCK, "+OK\r\n+OK\r\n"]);
}

/// As `is_tried`, with these answers.
pub fn tries(stage: &mut Stage, answers: &[&str]) {
    stage.end_turn();
    let link = comes_up(stage);
    answers_trial(stage, link, answers);
    assert!(stage.closed.contains(&link), "a trial's link serves nobody");
    stage.end_turn();
}

/// Brings up the link that was ordered first.
pub fn comes_up(stage: &mut Stage) -> ConnId {
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    link
}

/// Returns a request as servers receive it.
pub fn request(text: &str) -> String {
    array(&text.split(' ').collect::<Vec<_>>())
}

/// Has the server refuse the link that was ordered.
pub fn refuses(stage: &mut Stage) {
    stage.end_turn();
    let (link, _) = stage.begins().expect("a link was ordered");
    stage.says(link, FULL);
    stage.closes(link, Closed::Eof);
}

/// Returns requests as servers receive them.
pub fn all(requests: &[&str]) -> String {
    requests.iter().map(|one| request(one)).collect()
}

/// A small generator (xorshift), so that a failure repeats.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end.max(1)
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

pub fn array(words: &[&str]) -> String {
    let words = words.iter().map(|word| bulk(word));
    format!("*{}\r\n{}", words.len(), words.collect::<String>())
}

/// Cuts the first whole frame off: its mark, and its words.
pub fn cut(text: &mut String) -> Option<(char, Vec<String>)> {
    let mut words = Vec::new();
    let len = frame(text, &mut words)?;
    let mark = text.chars().next()?;
    text.drain(..len);
    Some((mark, words))
}

/// Returns the length of the frame at the start, if all of it is there.
fn frame(text: &str, words: &mut Vec<String>) -> Option<usize> {
    let line = text.find("\r\n")?;
    let (rest, end) = (&text[1..line], line + 2);
    let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("split: {text:?}"));
    match text.as_bytes()[0] {
        b'$' if number() < 0 => {
            words.push("nil".to_string());
            Some(end)
        }
        b'$' => {
            let len = number() as usize;
            let body = text.get(end..end + len + 2)?;
            assert!(body.ends_with("\r\n"), "split: {text:?}");
            words.push(body[..len].to_string());
            Some(end + len + 2)
        }
        mark @ (b'*' | b'>' | b'%') => {
            let count = number() * if mark == b'%' { 2 } else { 1 };
            let mut at = end;
            for _ in 0..count {
                at += frame(&text[at..], words)?;
            }
            Some(at)
        }
        b'+' | b'-' | b':' | b'_' | b'#' | b',' => {
            words.push(rest.to_string());
            Some(end)
        }
        _ => panic!("split: {text:?}"),
    }
}

/// Checks that a story finds nothing with any of these seeds.
#[cfg(not(seeded_bugs))]
pub fn check_seeds(seeds: std::ops::RangeInclusive<u64>, play: fn(u64)) {
    for seed in seeds {
        let played = std::panic::catch_unwind(|| play(seed));
        assert!(played.is_ok(), "seed {seed}: see above");
    }
}

/// Checks that a story finds each of these bugs, and nothing without one.
#[cfg(seeded_bugs)]
pub fn check_bugs(bugs: &[proxy::bug::Bug], play: fn(u64)) {
    (1..=50).for_each(play);
    let survived: Vec<_> = bugs
        .iter()
        .filter(|bug| match finds(**bug, 1..300, play) {
            Some(found) => {
                println!("{bug:?}: {found}");
                false
            }
            None => true,
        })
        .collect();
    assert!(survived.is_empty(), "not found: {survived:?}");
}

/// Plays a story with seeds until a bug is found; returns what was found.
#[cfg(seeded_bugs)]
fn finds(bug: proxy::bug::Bug, seeds: std::ops::Range<u64>, play: fn(u64)) -> Option<String> {
    std::panic::set_hook(Box::new(|_| ()));
    let found = seeds.into_iter().find_map(|seed| {
        proxy::bug::switch(Some(bug));
        let said = std::panic::catch_unwind(|| play(seed)).err()?;
        let words = said.downcast_ref::<String>().cloned();
        let words = words.or_else(|| said.downcast_ref::<&str>().map(|it| it.to_string()));
        Some(format!("seed {seed}: {}", words.unwrap_or_default()))
    });
    proxy::bug::switch(None);
    let _ = std::panic::take_hook();
    found
}
