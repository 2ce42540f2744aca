//! The test of RESP: random commands of the whole table to one real server, and through quickack to
//! several of the same kind.
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
//! Two clients more play waits (`waits.rs`).
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
mod waits;

use std::collections::BTreeMap;
use std::net::SocketAddr;

pub use table::{Row, rows};
pub use tally::Tally;

use docs::Doc;
use item::{Expect, Item};
use keys::{Keys, Owners};
use scripts::Payloads;
use values::Tables;
use waits::Waits;

use super::exchange::{Conn, Lane, cuts, exchange};
use super::{History, Subject, report};
use crate::process::Speaker;
use crate::random::Random;
use crate::wire::resp::{self, Reply, push_command};
use crate::wire::{Unread, shown};

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
    /// The server and quickack, each by RESP version, in this order: 2, 3.
    sides: [[Conn; 2]; 2],
    /// Draws the segments, so that they do not change the commands.
    cutter: Random,
    scratch: Speaker,
    waits: Waits,
    tally: Tally,
    /// Transactions drawn; each has its own batch.
    transactions: usize,
    /// Rows still to be drawn before any is repeated.
    deck: Vec<usize>,
    history: History<Vec<u8>>,
    /// The number of commands at which all data are compared next.
    next: usize,
}

/// Commands of one connection, by its place.
struct Batch {
    lane: usize,
    items: Vec<Item>,
    cuts: Vec<u16>,
}

/// Sends everything to both sides; an error describes the first difference.
pub fn run(settings: &Settings) -> Result<Tally, String> {
    let mut run = Run::new(settings);
    run.load_scripts()?;
    super::run(&mut run, settings.seed, settings.commands, 1)?;
    run.compare_states().map_err(|what| format!("seed {}: {what}", settings.seed))?;
    run.tally.waits = run.waits.count;
    Ok(run.tally)
}

impl Subject for Run<'_> {
    type Batch = Batch;
    type Answers = Vec<Reply>;

    fn asked(&self) -> usize {
        self.tally.commands
    }

    fn draw(&mut self) -> Batch {
        let items = self.draw_items();
        let lane = self.random.below(2);
        let cuts = cuts(&mut self.cutter);
        self.tally.batches += 1;
        for item in &items {
            for key in &item.keys {
                self.history.note(key, format!("{:?} {}", item.expect, item.shown()));
            }
        }
        Batch { lane, items, cuts }
    }

    fn ask(&mut self, side: usize, batch: &Batch) -> Result<Vec<Reply>, String> {
        let Batch { lane, items, cuts } = batch;
        let asked: Vec<&Item> = items.iter().filter(|item| item.is_asked(side)).collect();
        let mut bytes = Vec::new();
        asked.iter().for_each(|item| push_command(&item.bytes(), &mut bytes));
        let count = asked.iter().filter(|item| !item.silent).count();
        let conn = &mut self.sides[side][*lane];
        let mut lanes = [Lane::new(conn, bytes, cuts, parse, move |all| all.len() >= count)];
        let answered = exchange(&mut lanes);
        let [Lane { replies, .. }] = lanes;
        if !answered || replies.len() != count {
            let (who, len) = (["the server", "quickack"][side], replies.len());
            let last = items.len() - 1;
            return Err(format!("{who}: {len} of {count} answers\n{}", dialogue(items, last)));
        }
        if items.last().is_some_and(|item| item.is("QUIT") && !item.spoilt) {
            let address = [self.settings.direct, self.settings.quickack][side];
            self.sides[side][*lane] = connect(address, *lane);
        }
        Ok(replies)
    }

    fn note(&mut self, batch: &Batch, direct: &Vec<Reply>) {
        let mut direct = direct.iter();
        for item in &batch.items {
            self.tally.note(item, if item.has_answer(0) { direct.next() } else { None });
        }
    }

    fn compare(
        &mut self,
        _: usize,
        batch: &Batch,
        direct: &Vec<Reply>,
        ours: &Vec<Reply>,
    ) -> Result<(), String> {
        let (mut direct, mut ours) = (direct.iter(), ours.iter());
        for (at, item) in batch.items.iter().enumerate().filter(|(_, item)| !item.silent) {
            let direct = if item.has_answer(0) { direct.next() } else { None };
            let ours = ours.next().expect("they were counted");
            if !item.accepts(direct, ours) || !self.names_right(item, ours) {
                return Err(self.difference(batch, at, direct, ours));
            }
            if let Some(direct) = direct.filter(|direct| item.is_said_otherwise(direct, ours)) {
                self.tally.note_otherwise(direct, ours);
            }
        }
        Ok(())
    }

    /// Plays a wait, and compares all data, now and then.
    fn settle(&mut self, _: &Batch) -> Result<(), String> {
        self.wait_sometimes()?;
        if self.tally.commands < self.next {
            return Ok(());
        }
        self.next += (self.settings.commands / 10).max(1_000);
        self.compare_states()?;
        self.scan_all()
    }
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
            sides: [settings.direct, settings.quickack]
                .map(|address| [0, 1].map(|lane| connect(address, lane))),
            cutter: Random::new(settings.seed + 1),
            scratch,
            waits: Waits::new([settings.direct, settings.quickack], settings.seed + 2),
            tally: Tally::new(&rows),
            transactions: 0,
            deck: Vec::new(),
            history: History::default(),
            next: (settings.commands / 10).max(1_000),
            rows,
        }
    }

    /// Loads the scripts that are run by their sums on both sides.
    fn load_scripts(&mut self) -> Result<(), String> {
        for address in [self.settings.direct, self.settings.quickack] {
            let mut side = Speaker::connect(address);
            for script in scripts::LOADED {
                let reply = side.ask(&["SCRIPT", "LOAD", script]);
                reply.bytes().ok_or_else(|| format!("SCRIPT LOAD: {reply:?}"))?;
            }
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
        let is_named = |key: &&Vec<u8>| !key.is_empty() && difference.contains(&shown(key));
        let past = self.history.of(self.history.lines.keys().filter(is_named));
        Err(format!("after {} commands {difference}\n{past}", self.tally.commands))
    }

    /// Checks that a whole SCAN of data at rest returns each key once.
    fn scan_all(&mut self) -> Result<(), String> {
        let count = 1 + self.random.below(30);
        let direct = scan(&mut Speaker::connect(self.settings.direct), count)?;
        let ours = scan(&mut Speaker::connect(self.settings.quickack), count)?;
        self.tally.scans.0 += 1;
        self.tally.scans.1 += ours.len();
        let mut once = direct.clone();
        once.dedup();
        match once == ours {
            true => Ok(()),
            false => Err(format!("SCAN COUNT {count} told of {ours:?}, not of {once:?}")),
        }
    }

    fn difference(&self, batch: &Batch, at: usize, direct: Option<&Reply>, ours: &Reply) -> String {
        let item = &batch.items[at];
        let what = format!(
            "command {} (RESP{}), {:?} {:?}, keys on {} servers{}",
            self.tally.commands,
            batch.lane + 2,
            item.expect,
            item.likeness,
            item.spread,
            if item.spoilt { ", spoilt on purpose" } else { "" },
        );
        let direct = direct.map_or("was not asked".to_string(), |reply| format!("{reply:?}"));
        let (past, answers) = (self.history.of(&item.keys), [direct, format!("{ours:?}")]);
        report(&what, &item.shown(), answers, &past, &dialogue(&batch.items, at))
    }
}

/// Renders the earlier commands of the same batch on the same connection.
fn dialogue(batch: &[Item], at: usize) -> String {
    let before = batch[..=at].iter().rev().take(12).rev();
    let lines = before.map(|item| format!("    {:?} {}\n", item.expect, item.shown()));
    format!("  and in its batch:\n{}", lines.collect::<String>())
}

/// Reads the first whole reply. Input that is none becomes an error, which no server sends.
fn parse(input: &[u8]) -> Option<(Reply, usize)> {
    match resp::reply(input) {
        Ok(read) => Some(read),
        Err(Unread::Incomplete) => None,
        Err(Unread::Hopeless) => {
            Some((Reply::Error(format!("no reply: {}", shown(input)).into()), input.len()))
        }
    }
}

fn connect(address: SocketAddr, lane: usize) -> Conn {
    let mut speaker = Speaker::connect(address);
    if lane == 1 {
        speaker.say("HELLO 3");
    }
    Conn::of(speaker.stream)
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
