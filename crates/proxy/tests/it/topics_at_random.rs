//! Subscriptions at random: servers that answer when they like and in pieces, links that are lost,
//! clients that come, ask for values in between, change their mind and go.
//!
//! ```text
//!   a message ─▶ each who listens, once, in the order of its server and topic; nobody else
//!            └─▶ between two replies, behind the acknowledgement of its topic
//!   a link is lost ─▶ its subscribers are closed (`close`), or hear what comes later (`keep`)
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proto::protocol;
use proxy::plan::OnSubscriptionLost;
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::resp::{Dice, array, bulk, cut};
use crate::stage::{SECOND, Stage};

/// The topics: two channels, and a pattern with the only channel that it matches.
const TOPICS: [(&str, &str); 3] = [("a", "a"), ("b", "b"), ("p*", "px")];
const CLIENTS: usize = 6;
const STEPS: usize = 400;
/// From here on everything comes to its end.
const LAST: usize = 300;
/// A value that reaches its client in pieces.
const STREAMED: usize = 20_000;

/// A link, as its server sees it.
struct Link {
    id: ConnId,
    server: usize,
    input: String,
    /// What it was told and has not carried out.
    told: VecDeque<Vec<String>>,
    topics: BTreeSet<String>,
    /// What it has said and has not arrived; a message with its topic.
    said: VecDeque<(String, Option<(String, String)>)>,
}

/// A client: what was acknowledged, what it has asked for last, and what it is still to hear.
struct Client {
    id: ConnId,
    version: usize,
    text: String,
    awaits: VecDeque<Awaited>,
    acknowledged: BTreeSet<String>,
    wanted: BTreeSet<String>,
    /// What was refused because a server was lost: messages that came before that may be behind it.
    refused: BTreeSet<String>,
    due: BTreeSet<String>,
    heard: BTreeSet<String>,
    /// The number of the last message of a server and topic.
    last: BTreeMap<(String, String), usize>,
}

/// What a client is owed, in its order.
#[derive(Debug)]
enum Awaited {
    Hello,
    Value(String),
    /// With the number of links that were lost before it.
    Change {
        joins: bool,
        topic: String,
        losses: usize,
    },
}

/// All that plays.
struct Story {
    dice: Dice,
    stage: Stage,
    links: Vec<Link>,
    clients: Vec<Client>,
    closes: bool,
    /// A server may be down then, and requests are refused.
    losses: usize,
    sent: usize,
}

impl Link {
    fn hear(&mut self, stage: &mut Stage) {
        self.input += &stage.received(self.id);
        while let Some((_, words)) = cut(&mut self.input) {
            self.told.push_back(words);
        }
    }

    /// Carries out the oldest command.
    fn obey(&mut self, dice: &mut Dice) {
        let Some(words) = self.told.pop_front() else { return };
        let about = |verb: &str, topic: &str| {
            let (verb, topic) = (bulk(&verb.to_lowercase()), bulk(topic));
            format!("*3\r\n{verb}{topic}:1\r\n")
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = match words[..] {
            ["HELLO", "2"] => format!("*2\r\n{}:2\r\n", bulk("proto")),
            ["HELLO", "3"] => format!("%1\r\n{}:3\r\n", bulk("proto")),
            [verb @ ("SUBSCRIBE" | "PSUBSCRIBE"), topic] => {
                self.topics.insert(topic.to_string());
                about(verb, topic)
            }
            [verb @ ("UNSUBSCRIBE" | "PUNSUBSCRIBE"), topic] => {
                self.topics.remove(topic);
                about(verb, topic)
            }
            ["PING"] if !self.topics.is_empty() => array(&["pong", ""]),
            ["GET", key] => {
                let len = if dice.one_in(3) { STREAMED } else { key.len() };
                bulk(&format!("{key:.<len$}"))
            }
            ["PING"] => "+PONG\r\n".to_string(),
            _ => panic!("{words:?}"),
        };
        self.said.push_back((reply, None));
    }
}

impl Client {
    fn hear(&mut self, stage: &mut Stage, links: &[Link], losses: usize) {
        self.text += &stage.received(self.id);
        while let Some((mark, words)) = cut(&mut self.text) {
            let is_push = mark == '>' || self.version == 2 && mark == '*';
            match &words[..] {
                [word, topic, text] if is_push && word == "message" => self.take(topic, text),
                [word, topic, channel, text] if is_push && word == "pmessage" => {
                    assert_eq!((&topic[..], &channel[..]), TOPICS[2]);
                    self.take(topic, text);
                }
                words => self.take_reply(links, mark, words, losses),
            }
        }
    }

    fn take(&mut self, topic: &str, text: &str) {
        let may_hear = self.acknowledged.contains(topic) || self.refused.contains(topic);
        assert!(may_hear, "{topic}: it does not listen");
        let whole = format!("{topic} {text}");
        self.due.remove(&whole);
        assert!(self.heard.insert(whole), "{topic} {text} comes twice");
        let (server, number) = text.split_once('-').expect("as it was sent");
        let number = number.parse().expect("as it was sent");
        let last = self.last.insert((server.to_string(), topic.to_string()), number);
        assert!(last < Some(number), "{topic}: {number} comes behind {last:?}");
    }

    fn take_reply(&mut self, links: &[Link], mark: char, words: &[String], losses: usize) {
        let may_fail = losses > 0;
        let first = self.awaits.pop_front();
        let first = first.unwrap_or_else(|| panic!("nobody asked for {words:?}"));
        match first {
            Awaited::Hello => assert!(words.iter().any(|word| word == "proto"), "{words:?}"),
            Awaited::Change { joins: true, topic, .. } if mark == '-' => {
                assert!(may_fail, "{words:?}");
                self.refused.insert(topic.clone());
                if !self.is_changing(&topic) {
                    self.wanted.remove(&topic);
                }
            }
            Awaited::Value(_) if mark == '-' => assert!(may_fail, "{words:?}"),
            Awaited::Value(key) => {
                let is_it = words[0].trim_end_matches('.') == key;
                assert!(is_it, "{key} is answered {words:?}");
            }
            Awaited::Change { joins, topic, losses: before } => {
                let verb = match (joins, topic == TOPICS[2].0) {
                    (true, false) => "subscribe",
                    (false, false) => "unsubscribe",
                    (true, true) => "psubscribe",
                    (false, true) => "punsubscribe",
                };
                assert_eq!((&words[0], &words[1]), (&verb.to_string(), &topic));
                match joins {
                    true => self.acknowledged.insert(topic.clone()),
                    false => self.acknowledged.remove(&topic),
                };
                let stands = |link: &Link| !link.subscribes() || link.topics.contains(&topic);
                // An answer that was ready may have waited while a link was lost and came again.
                if joins && !self.is_changing(&topic) && before == losses {
                    assert!(links.iter().all(stands), "{topic}: before the servers have");
                }
            }
        }
    }

    /// Whether it is owed the answer to a change of this topic.
    fn is_changing(&self, topic: &str) -> bool {
        let about = |one: &Awaited| matches!(one, Awaited::Change { topic: it, .. } if it == topic);
        self.awaits.iter().any(about)
    }

    /// Whether it hears each message of a topic from now on.
    fn listens(&self, topic: &str) -> bool {
        self.acknowledged.contains(topic) && self.wanted.contains(topic) && !self.is_changing(topic)
    }

    /// Whether it may ask for values: in RESP2 a subscriber may not.
    fn may_get(&self) -> bool {
        let is_free = self.wanted.is_empty() && self.acknowledged.is_empty();
        self.version == 3 || is_free && self.awaits.is_empty()
    }
}

impl Link {
    /// Whether it is one for subscriptions.
    fn subscribes(&self) -> bool {
        !self.topics.is_empty() || self.told.iter().any(|words| words[0].ends_with("SUBSCRIBE"))
    }
}

impl Story {
    fn new(seed: u64) -> Story {
        let mut dice = Dice::new(seed);
        let closes = dice.one_in(2);
        let stage = Stage::of(&["s0", "s1"], |plan| {
            plan.limits.stream_min = STREAMED / 10;
            let pool = &mut plan.pools[0];
            pool.protocol = protocol("redis").expect("the table has it");
            pool.distribution = Distribution::Modula;
            // Servers take their time.
            (pool.timeouts.reply, pool.timeouts.queue) = (1 << 40, 1 << 40);
            pool.hold_after = None;
            if !closes {
                pool.on_subscription_lost = OnSubscriptionLost::Keep;
            }
        });
        let (links, clients) = (Vec::new(), Vec::new());
        Story { dice, stage, links, clients, closes, losses: 0, sent: 0 }
    }

    fn step(&mut self, is_last: bool) {
        self.stage.end_turn();
        while let Some((id, server)) = self.stage.begins() {
            let (told, said) = (VecDeque::new(), VecDeque::new());
            let topics = BTreeSet::new();
            self.links.push(Link { id, server, input: String::new(), told, topics, said });
        }
        let closed = std::mem::take(&mut self.stage.closed);
        self.links.retain(|link| !closed.contains(&link.id));
        self.links.iter_mut().for_each(|link| link.hear(&mut self.stage));
        match self.dice.below(10) {
            0 if self.clients.len() < CLIENTS && !is_last => self.comes(),
            1 if self.dice.one_in(4) && !is_last => self.leaves(),
            2 | 3 if !is_last => self.changes_its_mind(),
            4 if !is_last => self.asks_for_a_value(),
            5 | 6 => self.publishes(),
            7 if self.dice.one_in(8) && !is_last => self.loses_a_link(),
            _ => {
                let at = self.dice.below(self.links.len());
                if let Some(link) = self.links.get_mut(at) {
                    link.obey(&mut self.dice);
                }
            }
        }
        if is_last {
            self.links.iter_mut().for_each(|link| link.obey(&mut self.dice));
        }
        for at in 0..self.links.len() {
            self.delivers(at, is_last);
        }
        self.all_hear();
    }

    fn comes(&mut self) {
        let (id, version) = (self.stage.client(), 2 + self.dice.below(2));
        let mut awaits = VecDeque::new();
        if version == 3 {
            self.stage.says(id, "HELLO 3\r\n");
            awaits.push_back(Awaited::Hello);
        }
        self.clients.push(Client {
            id,
            version,
            text: String::new(),
            awaits,
            acknowledged: BTreeSet::new(),
            wanted: BTreeSet::new(),
            refused: BTreeSet::new(),
            due: BTreeSet::new(),
            heard: BTreeSet::new(),
            last: BTreeMap::new(),
        });
    }

    fn leaves(&mut self) {
        if !self.clients.is_empty() {
            let gone = self.clients.remove(self.dice.below(self.clients.len()));
            self.stage.closes(gone.id, Closed::Reset);
        }
    }

    fn changes_its_mind(&mut self) {
        let (topic, joins) = (TOPICS[self.dice.below(3)].0, self.dice.one_in(2));
        let (at, losses) = (self.dice.below(self.clients.len()), self.losses);
        let Some(client) = self.clients.get_mut(at) else { return };
        let verb = if joins { "SUBSCRIBE" } else { "UNSUBSCRIBE" };
        let letter = if topic == TOPICS[2].0 { "P" } else { "" };
        match joins {
            true => client.wanted.insert(topic.to_string()),
            false => client.wanted.remove(topic),
        };
        client.awaits.push_back(Awaited::Change { joins, topic: topic.to_string(), losses });
        self.stage.says(client.id, &format!("{letter}{verb} {topic}\r\n"));
    }

    fn asks_for_a_value(&mut self) {
        let at = self.dice.below(self.clients.len());
        let Some(client) = self.clients.get_mut(at).filter(|one| one.may_get()) else { return };
        self.sent += 1;
        let key = format!("k{}", self.sent);
        self.stage.says(client.id, &format!("GET {key}\r\n"));
        client.awaits.push_back(Awaited::Value(key));
    }

    /// A server sends a message of a topic that was subscribed to there.
    fn publishes(&mut self) {
        let (topic, channel) = TOPICS[self.dice.below(3)];
        let at = self.dice.below(self.links.len());
        let Some(link) = self.links.get_mut(at).filter(|link| link.topics.contains(topic)) else {
            return;
        };
        self.sent += 1;
        let text = format!("s{}-{}", link.server, self.sent);
        let frame = match topic == channel {
            true => array(&["message", channel, &text]),
            false => array(&["pmessage", topic, channel, &text]),
        };
        link.said.push_back((frame, Some((topic.to_string(), text))));
    }

    /// What a server has said arrives, or some of it.
    fn delivers(&mut self, at: usize, all: bool) {
        let mut rest = match all {
            true => usize::MAX,
            false => self.dice.below(3) * self.dice.below(120),
        };
        // A long value comes in long pieces.
        rest = rest.saturating_mul(if self.dice.one_in(4) { 200 } else { 1 });
        while rest > 0 {
            let Some((text, message)) = self.links[at].said.pop_front() else { return };
            if text.len() > rest {
                let (now, later) = text.split_at(rest);
                self.stage.says(self.links[at].id, now);
                self.links[at].said.push_front((later.to_string(), message));
                return;
            }
            rest = rest.saturating_sub(text.len());
            self.all_hear();
            if let Some((topic, text)) = message {
                let listeners = self.clients.iter_mut().filter(|one| one.listens(&topic));
                listeners.for_each(|one| {
                    one.due.insert(format!("{topic} {text}"));
                });
            }
            self.stage.says(self.links[at].id, &text);
        }
    }

    fn loses_a_link(&mut self) {
        let at = self.dice.below(self.links.len());
        if self.links.get(at).is_none_or(|link| !link.subscribes()) {
            return;
        }
        self.losses += 1;
        self.all_hear();
        let link = self.links.remove(at);
        // What is settled there stands; of the rest nobody can tell.
        let is_settled = link.told.is_empty() && link.said.is_empty();
        let heard_there = |one: &Client| {
            is_settled && self.closes && link.topics.iter().any(|topic| one.listens(topic))
        };
        let ended: Vec<ConnId> =
            self.clients.iter().filter(|one| heard_there(one)).map(|one| one.id).collect();
        self.stage.closes(link.id, Closed::Reset);
        let closed = |id: &ConnId| self.stage.closed.contains(id);
        assert!(ended.iter().all(closed), "messages may be missing, and it is not told");
        assert!(self.closes || !self.clients.iter().any(|one| closed(&one.id)), "`keep` keeps");
        self.clients.retain(|one| !closed(&one.id));
        self.all_hear();
        self.stage.passes(SECOND);
    }

    fn all_hear(&mut self) {
        let Story { stage, links, clients, losses, .. } = self;
        clients.iter_mut().for_each(|one| one.hear(stage, links, *losses));
    }

    /// Checks that everything has come to its end: answers, messages, and what servers were told.
    fn check_end(&self) {
        let mut listening = BTreeSet::new();
        for one in &self.clients {
            assert!(one.awaits.is_empty(), "{:?} is not answered", one.awaits);
            assert_eq!((&one.acknowledged, &one.text[..]), (&one.wanted, ""));
            assert!(one.due.is_empty(), "{:?} did not come", one.due);
            listening.extend(one.wanted.iter().cloned());
        }
        for server in 0..2 {
            let of = self.links.iter().filter(|link| link.server == server);
            let stands: Vec<&String> = of.flat_map(|link| &link.topics).collect();
            let expected: Vec<&String> = listening.iter().collect();
            assert_eq!(stands, expected, "one copy of what clients want stands on each server");
        }
    }
}

fn play(seed: u64) {
    let mut story = Story::new(seed);
    (0..STEPS).for_each(|step| story.step(step > LAST));
    // A server that was down is asked again, and joined.
    for _ in 0..20 {
        story.stage.passes(SECOND);
        (0..10).for_each(|_| story.step(true));
    }
    story.check_end();
}

#[cfg(not(seeded_bugs))]
#[test]
fn at_random_each_message_is_heard_once_by_those_who_listen() {
    crate::stage::resp::check_seeds(1..=150, play);
}

#[cfg(seeded_bugs)]
#[test]
fn seeded_bugs_of_subscriptions_are_found() {
    crate::stage::resp::check_bugs(proxy::bug::TOPIC_BUGS, play);
}
