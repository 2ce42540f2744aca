//! The differential test for RESP: sends random commands of the whole table to one real server, and
//! through quickack to several of the same kind. The answers must be the same.
//!
//! ```text
//!            ┌──▶ a server                       its answers are right
//!   batch ───┤
//!            └──▶ quickack ──▶ s1 s2 s3 s4       same answers, or the table's refusals
//!
//!   scratch: a third server, which finds the keys of a spoilt call
//! ```
//!
//! There are two valid results. One is the single server's answer, compared as strictly as the
//! row's class demands. The other is a refusal that was **predicted** before the command was sent:
//! by name if the table refuses it, `CROSSSLOT` exactly if the keys have different owners. A
//! refused command is not sent to the single server either, so both sides hold the same data at all
//! times. Now and then all data are compared, and each key must be on its owner.
//!
//! A batch is pipelined on one of two connections, of RESP2 and of RESP3. No command depends on an
//! answer, so the same seed always gives the same commands.

mod compare;
mod docs;
mod draw;
mod item;
mod keys;
mod maker;
mod scripts;
mod state;
mod table;
mod tally;
mod values;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

pub use table::{Row, rows};
pub use tally::Tally;

use crate::process::Speaker;
use crate::sim::random::Random;
use crate::wire::resp::{Reply, push_command};
use docs::Doc;
use item::{Expect, Item};
use keys::{Keys, Owners};
use scripts::Payloads;
use values::Tables;

/// The servers and the number of commands.
pub struct Settings {
    pub seed: u64,
    pub commands: usize,
    /// Commands of the longest batch; 1 assigns each answer to its command.
    pub depth: usize,
    /// The single server, whose answers are right.
    pub direct: SocketAddr,
    pub quickack: SocketAddr,
    /// The servers behind the proxy, and their names in the ring.
    pub servers: Vec<(String, SocketAddr)>,
    /// True for `multi_key: split`, false for `refuse`.
    pub splits: bool,
    pub scratch: SocketAddr,
    /// Another server that documents commands, possibly newer.
    pub documented: Option<SocketAddr>,
}

impl Settings {
    /// Returns whether this is the test of the test: two servers without a proxy.
    fn is_bare(&self) -> bool {
        self.servers.iter().any(|(_, address)| *address == self.quickack)
    }
}

struct Run<'s> {
    settings: &'s Settings,
    random: Random,
    rows: Vec<Row>,
    docs: BTreeMap<String, Doc>,
    /// For each row, whether the servers know it.
    known: Vec<bool>,
    /// The servers are older than the texts that the proxy uses for mistakes.
    is_old: bool,
    keys: Keys,
    tables: Tables,
    payloads: Payloads,
    owners: Owners,
    /// By RESP version, in this order: 2, 3.
    direct: Vec<Speaker>,
    quickack: Vec<Speaker>,
    scratch: Speaker,
    tally: Tally,
    /// Transactions drawn; each has its own batch.
    transactions: usize,
    /// Rows still to be drawn before any is repeated.
    deck: Vec<usize>,
    /// The last commands about each key, to explain a difference.
    history: BTreeMap<Vec<u8>, VecDeque<String>>,
}

/// Sends everything to both sides; an error describes the first difference.
pub fn run(settings: &Settings) -> Result<Tally, String> {
    let mut run = Run::new(settings);
    let outcome = run.all();
    outcome.map_err(|what| format!("seed {}: {what}", settings.seed))?;
    Ok(run.tally)
}

impl<'s> Run<'s> {
    fn new(settings: &'s Settings) -> Run<'s> {
        let mut scratch = Speaker::connect(settings.scratch);
        let documented = settings.documented.iter().map(|address| Speaker::connect(*address));
        let known = docs::names(&mut scratch);
        let tells_subs = known.iter().any(|name| name.contains('|'));
        let is_known = |name: &str| match name.split_once('|') {
            Some((container, _)) if !tells_subs => known.contains(container),
            _ => known.contains(name),
        };
        let mut documents = vec![Speaker::connect(settings.scratch)];
        documents.extend(documented);
        let rows = rows();
        let names: Vec<&str> = settings.servers.iter().map(|(name, _)| name.as_str()).collect();
        let payloads = Payloads::make(&mut scratch);
        Run {
            settings,
            random: Random::new(settings.seed),
            known: rows.iter().map(|row| is_known(row.name)).collect(),
            is_old: !tells_subs,
            docs: docs::load(&mut documents),
            keys: Keys::new(),
            tables: Tables::new(),
            payloads,
            owners: Owners::new(&names),
            direct: connect(settings.direct),
            quickack: connect(settings.quickack),
            scratch,
            tally: Tally::new(&rows),
            transactions: 0,
            deck: Vec::new(),
            history: BTreeMap::new(),
            rows,
        }
    }

    fn all(&mut self) -> Result<(), String> {
        self.load_scripts()?;
        let every = (self.settings.commands / 10).max(1_000);
        let mut next = every;
        while self.tally.commands < self.settings.commands {
            let batch = self.draw();
            self.play(&batch)?;
            if self.tally.commands >= next {
                next += every;
                self.compare_states()?;
                self.scan_all()?;
            }
        }
        self.compare_states()
    }

    /// Loads the scripts that are run by their sums on both sides.
    fn load_scripts(&mut self) -> Result<(), String> {
        for script in scripts::LOADED {
            for side in [&mut self.direct[0], &mut self.quickack[0]] {
                let reply = side.ask(&["SCRIPT", "LOAD", script]);
                reply.bytes().ok_or_else(|| format!("SCRIPT LOAD: {reply:?}"))?;
            }
        }
        Ok(())
    }

    fn play(&mut self, batch: &[Item]) -> Result<(), String> {
        let lane = self.random.below(2);
        self.tally.batches += 1;
        let (mut to_direct, mut to_quickack) = (Vec::new(), Vec::new());
        for item in batch {
            self.remember(item);
            push_command(&item.bytes(), &mut to_quickack);
            if item.expect == Expect::Same {
                push_command(&item.bytes(), &mut to_direct);
            }
        }
        self.direct[lane].send(&to_direct);
        self.quickack[lane].send(&to_quickack);
        for (at, item) in batch.iter().enumerate() {
            if item.silent {
                self.tally.note(item, None);
                continue;
            }
            let direct = match item.expect {
                Expect::Same => {
                    let reply = self.direct[lane].reply();
                    Some(reply.map_err(|error| self.ended("the server", &error, batch, at))?)
                }
                _ => None,
            };
            let ours = self.quickack[lane].reply();
            let ours = ours.map_err(|error| self.ended("quickack", &error, batch, at))?;
            if !item.accepts(direct.as_ref(), &ours) || !self.names_right(item, &ours) {
                return Err(self.difference(lane, batch, at, direct.as_ref(), &ours));
            }
            self.tally.note(item, direct.as_ref());
            if let Some(direct) = direct.filter(|direct| item.is_said_otherwise(direct, &ours)) {
                self.tally.note_otherwise(&direct, &ours);
            }
        }
        if batch.last().is_some_and(|item| item.is("QUIT") && !item.spoilt) {
            self.direct[lane] = connect(self.settings.direct).remove(lane);
            self.quickack[lane] = connect(self.settings.quickack).remove(lane);
        }
        Ok(())
    }

    /// Checks that a `CROSSSLOT` names two of the keys with their owners, and a solution.
    fn names_right(&self, item: &Item, ours: &Reply) -> bool {
        if item.expect != Expect::Apart || item.spoilt {
            return true;
        }
        let text = ours.error();
        let said = |key: &&Vec<u8>| {
            let owner = &self.owners.names[self.owners.of(key)];
            // Line breaks become spaces, and long keys are cut.
            let plain = key.iter().all(u8::is_ascii_graphic) && key.len() < 100;
            let key = if plain { String::from_utf8_lossy(key) } else { "".into() };
            let named = ["is on", "on"].map(|on| format!("{key}' {on} {owner}"));
            named.iter().any(|named| text.contains(named)) || !plain && text.contains(owner)
        };
        item.keys.iter().filter(said).count() >= 2 && text.contains("hash tag")
    }

    fn remember(&mut self, item: &Item) {
        for key in &item.keys {
            let past = self.history.entry(key.clone()).or_default();
            past.push_back(format!("{:?} {}", item.expect, item.shown()));
            if past.len() > 12 {
                past.pop_front();
            }
        }
    }

    /// Compares the data of both sides, and checks that each key is on its owner.
    fn compare_states(&mut self) -> Result<(), String> {
        let direct = state::read(&mut Speaker::connect(self.settings.direct));
        let mut ours = state::State::new();
        for (at, (name, address)) in self.settings.servers.iter().enumerate() {
            for (place, value) in state::read(&mut Speaker::connect(*address)) {
                let owner = self.owners.of(&place.1);
                if self.settings.servers.len() > 1 && owner != at {
                    return Err(format!("{place:?} is on {name}"));
                }
                ours.insert(place, value);
            }
        }
        self.tally.states.0 += 1;
        self.tally.states.1 += direct.len();
        let Some(difference) = state::difference(&direct, &ours) else { return Ok(()) };
        let past: Vec<String> = self
            .history
            .iter()
            .filter(|(key, _)| difference.contains(&crate::wire::shown(key)) && !key.is_empty())
            .flat_map(|(_, past)| past.iter().map(|line| format!("    {line}\n")))
            .collect();
        Err(format!("after {} commands {difference}\n{}", self.tally.commands, past.concat()))
    }

    /// Checks that a whole SCAN of data at rest returns each key once.
    fn scan_all(&mut self) -> Result<(), String> {
        self.direct[0].say("SELECT 0");
        self.quickack[0].say("SELECT 0");
        let count = 1 + self.random.below(30);
        let direct = scan(&mut self.direct[0], count)?;
        let ours = scan(&mut self.quickack[0], count)?;
        self.tally.scans.0 += 1;
        self.tally.scans.1 += ours.len();
        let mut once = direct.clone();
        once.dedup();
        match once == ours {
            true => Ok(()),
            false => Err(format!("SCAN COUNT {count} told of {ours:?}, not of {once:?}")),
        }
    }

    fn ended(&self, who: &str, error: &str, batch: &[Item], at: usize) -> String {
        format!("{who}: {error}, asked for {}\n{}", batch[at].shown(), dialogue(batch, at))
    }

    fn difference(
        &self,
        lane: usize,
        batch: &[Item],
        at: usize,
        direct: Option<&Reply>,
        ours: &Reply,
    ) -> String {
        let item = &batch[at];
        let past = item.keys.iter().filter_map(|key| self.history.get(key)).flatten();
        let past: String = past.map(|line| format!("    {line}\n")).collect();
        let direct = direct.map_or("was not asked".to_string(), |reply| format!("{reply:?}"));
        format!(
            "command {} (RESP{}), {:?} {:?}, keys on {} servers{}\n  asked:    {}\n  server:   \
             {direct}\n  quickack: {ours:?}\n  lately about its keys (the whole batch counts, also \
             what comes after):\n{past}{}",
            self.tally.commands,
            lane + 2,
            item.expect,
            item.likeness,
            item.spread,
            if item.spoilt { ", spoilt on purpose" } else { "" },
            item.shown(),
            dialogue(batch, at)
        )
    }
}

/// Renders the earlier commands of the same batch on the same connection.
fn dialogue(batch: &[Item], at: usize) -> String {
    let before = batch[..=at].iter().rev().take(12).rev();
    let lines = before.map(|item| format!("    {:?} {}\n", item.expect, item.shown()));
    format!("  and in its batch:\n{}", lines.collect::<String>())
}

fn connect(address: SocketAddr) -> Vec<Speaker> {
    let mut both = vec![Speaker::connect(address), Speaker::connect(address)];
    both[1].say("HELLO 3");
    both
}

/// Returns the keys of a whole SCAN, sorted.
fn scan(side: &mut Speaker, count: usize) -> Result<Vec<Vec<u8>>, String> {
    let (mut cursor, mut keys) = ("0".to_string(), Vec::new());
    for _ in 0..10_000 {
        let reply = side.say(&format!("SCAN {cursor} COUNT {count}"));
        let parts = reply.elements();
        let [next, found] = parts[..] else { return Err(format!("SCAN {cursor}: {reply:?}")) };
        let found = found.elements().into_iter().filter_map(|key| Some(key.bytes()?.to_vec()));
        keys.extend(found);
        cursor = String::from_utf8_lossy(next.bytes().unwrap_or_default()).into_owned();
        if cursor == "0" {
            keys.sort();
            return Ok(keys);
        }
    }
    Err(format!("SCAN COUNT {count} has no end; the cursor is {cursor}"))
}
