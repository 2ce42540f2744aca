//! Requests that wait at their server, at random: clients that wait, ask for values in between and
//! leave; servers that answer when they like, and give elements to those who wait.
//!
//! ```text
//!   while a client has state on a link ─▶ nothing of another client is there
//!   behind a request that waits        ─▶ nothing is sent
//!   an element                         ─▶ the client that waited for it, once
//! ```

use std::collections::{BTreeSet, VecDeque};

use metrics::WorkerCounter;
use proto::protocol;
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::resp::{Dice, array, bulk, cut};
use crate::stage::{SECOND, Stage};

const CLIENTS: usize = 6;
const STEPS: usize = 400;
/// From here on everything comes to its end.
const LAST: usize = 320;
/// A reply has this long, and a wait as long as it takes.
const REPLY: u64 = 2 * SECOND;

/// A link, as its server sees it.
struct Link {
    id: ConnId,
    input: String,
    told: VecDeque<Vec<String>>,
    /// Whose requests it has had since it was new, and whether one of them waited.
    owners: BTreeSet<String>,
    has_waited: bool,
}

struct Client {
    id: ConnId,
    name: String,
    text: String,
    awaits: VecDeque<Awaited>,
}

#[derive(Debug)]
enum Awaited {
    Value(String),
    Stored,
    Element(String),
}

struct Story {
    dice: Dice,
    stage: Stage,
    links: Vec<Link>,
    clients: Vec<Client>,
    count: usize,
}

impl Link {
    fn hear(&mut self, stage: &mut Stage) {
        self.input += &stage.received(self.id);
        while let Some((_, words)) = cut(&mut self.input) {
            assert!(!self.is_waited_at(), "{words:?} is sent behind a wait");
            if let Some(key) = words.get(1).filter(|_| words[0] != "HELLO") {
                let (owner, _) = key.split_once('-').expect("keys name their clients");
                self.owners.insert(owner.to_string());
                self.has_waited |= words[0] == "BLPOP";
                let is_shared = self.owners.len() > 1;
                assert!(!(self.has_waited && is_shared), "{words:?}: the link is another's");
            }
            self.told.push_back(words);
        }
    }

    /// Whether the newest that it was told is a wait.
    fn is_waited_at(&self) -> bool {
        self.told.back().is_some_and(|words| words[0] == "BLPOP")
    }

    /// Carries out the oldest command, if it is no wait.
    fn obey(&mut self, stage: &mut Stage) {
        let Some(words) = self.told.front() else { return };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = match words[..] {
            ["BLPOP", ..] => return,
            ["HELLO", version] => format!("*2\r\n{}:{version}\r\n", bulk("proto")),
            ["GET", key] => bulk(key),
            ["SET", ..] => "+OK\r\n".to_string(),
            ["PING"] => "+PONG\r\n".to_string(),
            _ => panic!("{words:?}"),
        };
        self.told.pop_front();
        stage.says(self.id, &reply);
    }

    /// Gives an element to who waits, or ends its wait.
    fn gives(&mut self, dice: &mut Dice, stage: &mut Stage) {
        let Some([verb, key, _]) = self.told.front().map(Vec::as_slice) else { return };
        if verb == "BLPOP" {
            let reply = match dice.one_in(5) {
                true => "*-1\r\n".to_string(),
                false => array(&[key, &format!("{key}!")]),
            };
            self.told.pop_front();
            stage.says(self.id, &reply);
        }
    }
}

impl Client {
    fn hear(&mut self, stage: &mut Stage) {
        self.text += &stage.received(self.id);
        while let Some((mark, words)) = cut(&mut self.text) {
            let first = self.awaits.pop_front();
            let first = first.unwrap_or_else(|| panic!("nobody asked for {words:?}"));
            let is_right = match &first {
                Awaited::Value(key) => mark == '$' && words == [key.clone()],
                Awaited::Stored => mark == '+' && words == ["OK"],
                Awaited::Element(_) if words.is_empty() => mark == '*',
                Awaited::Element(key) => words == [key.clone(), format!("{key}!")],
            };
            assert!(is_right, "{first:?} is answered {mark}{words:?}");
        }
    }
}

impl Story {
    fn new(seed: u64) -> Story {
        let stage = Stage::of(&["s0", "s1"], |plan| {
            let pool = &mut plan.pools[0];
            pool.protocol = protocol("redis").expect("the table has it");
            pool.distribution = Distribution::Modula;
            (pool.timeouts.reply, pool.hold_after) = (REPLY, Some(REPLY / 2));
        });
        let (links, clients) = (Vec::new(), Vec::new());
        Story { dice: Dice::new(seed), stage, links, clients, count: 0 }
    }

    fn step(&mut self, is_last: bool) {
        self.stage.end_turn();
        while let Some((id, _)) = self.stage.begins() {
            let (owners, told) = (BTreeSet::new(), VecDeque::new());
            self.links.push(Link { id, input: String::new(), told, owners, has_waited: false });
        }
        let closed = std::mem::take(&mut self.stage.closed);
        let is_client = |id: &ConnId| self.clients.iter().any(|one| one.id == *id);
        assert!(!closed.iter().any(is_client), "a client is closed");
        self.links.retain(|link| !closed.contains(&link.id));
        self.links.iter_mut().for_each(|link| link.hear(&mut self.stage));
        match self.dice.below(8) {
            0 if self.clients.len() < CLIENTS && !is_last => self.comes(),
            1 if self.dice.one_in(3) && !is_last => self.leaves(),
            2..=4 if !is_last => self.asks(),
            5 if self.dice.one_in(4) => self.passes(),
            _ => {
                let at = self.dice.below(self.links.len());
                if let Some(link) = self.links.get_mut(at) {
                    link.obey(&mut self.stage);
                }
                let at = self.dice.below(self.links.len());
                if let Some(link) = self.links.get_mut(at).filter(|_| self.dice.one_in(2)) {
                    link.gives(&mut self.dice, &mut self.stage);
                }
            }
        }
        if is_last {
            for link in &mut self.links {
                link.obey(&mut self.stage);
                link.gives(&mut self.dice, &mut self.stage);
            }
        }
        self.clients.iter_mut().for_each(|one| one.hear(&mut self.stage));
    }

    fn comes(&mut self) {
        self.count += 1;
        let (id, name) = (self.stage.client(), format!("c{}", self.count));
        self.clients.push(Client { id, name, text: String::new(), awaits: VecDeque::new() });
    }

    /// A client leaves, whatever it is owed.
    fn leaves(&mut self) {
        if !self.clients.is_empty() {
            let gone = self.clients.remove(self.dice.below(self.clients.len()));
            self.stage.closes(gone.id, Closed::Reset);
        }
    }

    fn asks(&mut self) {
        let at = self.dice.below(self.clients.len());
        let kind = self.dice.below(5);
        self.count += 1;
        let Some(client) = self.clients.get_mut(at) else { return };
        let key = format!("{}-{}", client.name, self.count);
        let (text, awaited) = match kind {
            0 | 1 => (format!("BLPOP {key} 0\r\n"), Awaited::Element(key)),
            2 => (format!("SET {key} 1\r\n"), Awaited::Stored),
            _ => (format!("GET {key}\r\n"), Awaited::Value(key)),
        };
        client.awaits.push_back(awaited);
        self.stage.says(client.id, &text);
    }

    /// Much time passes in which servers owe nothing but elements: no wait ends by that.
    fn passes(&mut self) {
        let is_idle = |link: &Link| link.told.iter().all(|words| words[0] == "BLPOP");
        for _ in 0..40 {
            self.stage.end_turn();
            self.links.iter_mut().for_each(|link| link.hear(&mut self.stage));
            self.links.iter_mut().for_each(|link| link.obey(&mut self.stage));
        }
        if self.links.iter().all(is_idle) && self.stage.connects.is_empty() {
            self.stage.passes(REPLY * 10);
        }
    }
}

fn play(seed: u64) {
    let mut story = Story::new(seed);
    (0..STEPS).for_each(|step| story.step(step > LAST));
    for client in &story.clients {
        assert!(client.awaits.is_empty() && client.text.is_empty(), "each request is answered");
    }
    while let Some(client) = story.clients.pop() {
        story.stage.closes(client.id, Closed::Eof);
    }
    story.stage.end_turn();
    let left = story.stage.registry.total(0, WorkerCounter::PrivateLinksNow);
    assert_eq!(left, 0, "nobody is left who has a link");
    assert_eq!(story.stage.healths(), ["s0 ready", "s1 ready"], "a wait is no failure");
}

#[cfg(not(seeded_bugs))]
#[test]
fn at_random_who_waits_has_its_link_alone_and_gets_what_it_waits_for() {
    crate::stage::resp::check_seeds(1..=200, play);
}

#[cfg(seeded_bugs)]
#[test]
fn seeded_bugs_of_waits_are_found() {
    crate::stage::resp::check_bugs(proxy::bug::WAIT_BUGS, play);
}
