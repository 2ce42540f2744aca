//! Lists of servers that come from elsewhere: what is known of each, and which of them holds.
//!
//! ```text
//!   resolver ──a list──▶ known ──no key moves, or `discovery: apply`──▶ a change (`change.rs`)
//!                          └────keys would move──▶ it waits for `reload --allow-remap`
//! ```
//!
//! The list that holds is part of the configuration, which the workers get whole. A list that is
//! empty or wrong is never known here: the resolver has checked each.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::change_queue::{Asked, Wanted};
use super::names::Names;
use super::reader::{self, FoundLists, Reading};
use super::{Master, Running, say, say_of};
use crate::config::{self, Config, ListSource, Lists, Override, Source};
use crate::error::Error;
use crate::log::{About, Level};
use crate::resolver;

/// What is known of the lists.
#[derive(Default)]
pub struct KnownLists {
    known: BTreeMap<ListSource, Known>,
    /// Lists that would move keys, by their pools.
    waiting: BTreeMap<String, Waiting>,
    /// When pools get the lists that they are to have by now.
    due: Option<Due>,
    /// The pause after the next change that is refused.
    pause: Duration,
}

/// What is known of one list.
struct Known {
    /// The last one that could be taken.
    text: Option<String>,
    /// Why the last try had none.
    fault: Option<String>,
}

/// A list that would move keys.
#[derive(Clone, PartialEq, Eq)]
struct Waiting {
    text: String,
    /// What would move, as a sentence.
    effect: String,
}

/// A change that is to be made.
#[derive(Clone, Copy)]
struct Due {
    /// Other lists, and the addresses of the servers, are waited for from then …
    from: Instant,
    /// … to then at most.
    until: Instant,
}

/// A configuration with lists of servers.
pub struct Chosen {
    pub config: Config,
    /// What moves in it may move.
    pub may_move: bool,
}

impl KnownLists {
    /// Notes what was found. Returns whether it is another list.
    pub fn note(&mut self, source: &ListSource, found: Result<String, String>) -> bool {
        let known = self.known.entry(source.clone());
        let known = known.or_insert(Known { text: None, fault: None });
        match found {
            Ok(text) => {
                known.fault = None;
                let is_new = known.text.as_ref() != Some(&text);
                known.text = Some(text);
                is_new
            }
            Err(why) => {
                known.fault = Some(why);
                false
            }
        }
    }

    /// Whether anything was found, be it a reason why there is none.
    pub fn is_known(&self, source: &ListSource) -> bool {
        self.known.contains_key(source)
    }

    pub fn retain(&mut self, sources: &BTreeSet<ListSource>) {
        self.known.retain(|source, _| sources.contains(source));
    }

    /// The names of hosts in all lists.
    pub fn hosts(&self) -> impl Iterator<Item = String> {
        let texts = self.known.values().filter_map(|known| known.text.as_deref());
        texts.flat_map(config::list::hosts).filter(|host| resolver::is_name(host))
    }

    /// The first configuration, with the lists that are known. `why` there is none of the others.
    pub fn at_start(&mut self, config: Config, why: &str) -> Config {
        for (_, list) in config.lists() {
            if !self.is_known(&list.source) {
                self.note(&list.source, Err(why.to_string()));
            }
        }
        let lists = reader::good_lists(&config, &self.found());
        if lists == Lists::default() {
            return config;
        }
        // A list has been checked, so it makes nothing invalid.
        config.with_lists("lists of servers", lists).config.unwrap_or(config)
    }

    /// The last lists, or why there are none.
    fn found(&self) -> FoundLists {
        let found = self.known.iter().map(|(source, known)| {
            let none = || known.fault.clone().unwrap_or_default();
            (source.clone(), known.text.clone().ok_or_else(none))
        });
        found.collect()
    }

    /// When something is to be done.
    pub fn due(&self, names: &Names) -> Option<Instant> {
        let due = self.due?;
        let hosts = self.hosts().collect();
        Some(if names.knows_all(&hosts) { due.from } else { due.until })
    }

    /// The change could not be made.
    pub fn try_again(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(TRY_AGAIN, TRY_AGAIN_MAX);
        self.due = Some(Due { from: now + self.pause, until: now + self.pause });
    }

    fn begin_soon(&mut self, now: Instant) {
        let due = Due { from: now + GATHER, until: now + reader::NAMES_PATIENCE };
        self.due.get_or_insert(due);
    }

    /// What is shown of the list of one pool.
    pub fn told(&self, pool: &str, list: &config::list::Listed) -> Value {
        let known = self.known.get(&list.source);
        json!({
            "source": list.source.to_string(),
            "discovery": if list.applies { "apply" } else { "warn" },
            "fault": known.and_then(|known| known.fault.as_ref()),
            "waiting": self.waiting.get(pool).map(|waiting| &waiting.effect),
        })
    }

    /// Sentences about lists that are not as they should be.
    pub fn troubles(&self, config: &Config) -> Vec<String> {
        let mut said = Vec::new();
        for (pool, list) in config.lists() {
            let fault = self.known.get(&list.source).and_then(|known| known.fault.as_ref());
            said.extend(
                fault.map(|why| format!("pool {pool}: no list from {}: {why}", list.source)),
            );
            said.extend(self.waiting.get(pool).map(|waiting| waits(pool, &list.source, waiting)));
        }
        said
    }

    /// How many lists would move keys.
    pub fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }
}

fn waits(pool: &str, source: &ListSource, waiting: &Waiting) -> String {
    format!("pool {pool}: a new list from {source} waits: {}", waiting.effect)
}

/// Reads what the resolver sends of a list.
pub fn read(found: Result<(), String>, fds: Vec<OwnedFd>) -> Result<String, String> {
    found?;
    let bytes = fds.into_iter().next().map(sys::memory::read_sealed);
    let bytes = bytes.transpose().map_err(|error| error.to_string())?.unwrap_or_default();
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// The number of pools whose list is another by the newer configuration.
pub fn changes(old: &Config, new: &Config) -> u64 {
    let text = |config: &Config, pool: &str, source: &ListSource| {
        config.attachments.lists.get(pool, source).map(str::to_string)
    };
    let changed = new
        .lists()
        .filter(|(pool, list)| text(old, pool, &list.source) != text(new, pool, &list.source));
    changed.count() as u64
}

impl Master {
    /// Notes what the resolver has found.
    pub(super) fn note_list(&mut self, source: &ListSource, found: Result<String, String>) {
        let fault = found.as_ref().err().cloned();
        let before = self.names.lists.known.get(source).and_then(|known| known.fault.clone());
        self.names.counts.lists_failed += u64::from(fault.is_some());
        let is_new = self.names.lists.note(source, found);
        match (before, fault) {
            (Some(_), None) => {
                let text = format!("there is a list from {source} again");
                say(&mut self.log, Level::Notice, "list_found", &text);
            }
            (before, Some(why)) if before.as_ref() != Some(&why) => {
                let text = format!("no list from {source}: {why}; its pools stay as they are");
                say(&mut self.log, Level::Warning, "list_failed", &text);
            }
            _ => {}
        }
        if is_new {
            self.names.lists.pause = Duration::ZERO;
            // The servers in it are to have addresses when it holds.
            if self.names.follow(&self.running.config) {
                self.ask_for_names();
            }
            self.look_at_lists(Instant::now());
        }
    }

    /// Begins a change soon if a pool has another list than is known by now.
    pub(super) fn look_at_lists(&mut self, now: Instant) {
        let held = &self.running.config.attachments.lists;
        let found = self.names.lists.found();
        let newest = reader::good_lists(&self.running.config, &found);
        let is_other = self.running.config.lists().any(|(pool, list)| {
            let newest = newest.get(pool, &list.source);
            newest.is_some() && newest != held.get(pool, &list.source)
        });
        if is_other {
            self.names.lists.begin_soon(now);
        } else {
            self.names.lists.waiting.clear();
        }
        self.names.counts.lists_waiting = self.names.lists.waiting();
    }

    /// Begins the change if it is due.
    pub(super) fn tend_lists(&mut self, now: Instant) {
        let is_free = self.change.is_none() && self.change_requests.is_empty();
        if is_free && self.names.lists.due(&self.names).is_some_and(|due| due <= now) {
            self.names.lists.due = None;
            let Running { config, resolved, .. } = &self.running;
            let (text, attachments) = (config.text.clone(), config.attachments.clone());
            let (overrides, addresses) = (config.overrides.clone(), resolved.clone());
            let reading = Reading { text, attachments, addresses, ..Reading::default() };
            let asked = Asked { asker: None, allow_remap: false, what: Wanted::Lists };
            self.prepare(asked, reading, &overrides, now);
        }
    }

    /// Compiles a reading with the lists that may hold. A list that moves keys may if that was
    /// allowed, or by `discovery: apply`; a pool that has servers never loses its list.
    pub(super) fn choose_lists(
        &mut self,
        asked: Asked,
        reading: &mut Reading,
        overrides: &[Override],
    ) -> Result<Chosen, Error> {
        let may_move = asked.allow_remap;
        let mut held = self.running.config.attachments.lists.clone();
        let config = self.compile(asked, reading, overrides, &held)?;
        if config.lists().next().is_none() {
            return Ok(Chosen { config, may_move });
        }
        let mut found = self.names.lists.found();
        let taken = reading.lists.iter().filter(|(_, list)| list.is_ok()).cloned();
        found.extend(taken);
        let newest = reader::good_lists(&config, &found);
        // As the lists hold; one of a pool that had none yet, as it is known.
        for (pool, list) in config.lists() {
            if let (None, Some(text)) =
                (held.get(pool, &list.source), newest.get(pool, &list.source))
            {
                held.set(pool, &list.source, text);
            }
        }
        held.retain_of(&config);
        let config = self.compile(asked, reading, overrides, &held)?;
        self.require_servers(&config, &found)?;
        if matches!(asked.what, Wanted::Moves | Wanted::Set) {
            return Ok(Chosen { config, may_move });
        }
        self.take_newest(asked, reading, overrides, (config, held), newest)
    }

    /// Compiles a reading with the newest lists, but for those that must not move keys.
    fn take_newest(
        &mut self,
        asked: Asked,
        reading: &mut Reading,
        overrides: &[Override],
        (config, held): (Config, Lists),
        newest: Lists,
    ) -> Result<Chosen, Error> {
        let mut lists = held.clone();
        for (pool, list) in config.lists() {
            if let Some(text) = newest.get(pool, &list.source) {
                lists.set(pool, &list.source, text);
            }
        }
        let mut waiting = BTreeMap::new();
        let mut may_move = asked.allow_remap;
        let chosen = match lists == held {
            true => config,
            false => {
                let remap = config::difference(&self.running.config, &config).remap();
                if let (false, Some(moved)) = (asked.allow_remap, remap) {
                    return Err(Error::Config(moved));
                }
                may_move = true;
                let newer = self.compile(asked, reading, overrides, &lists)?;
                for moved in config::moved(&config, &newer) {
                    let mut of_pools = newer.lists().filter(|(pool, _)| *pool == moved.pool);
                    let Some((pool, list)) = of_pools.next() else { continue };
                    if asked.allow_remap || list.applies {
                        continue;
                    }
                    let text = lists.get(pool, &list.source).unwrap_or_default().to_string();
                    if let Some(held) = held.get(pool, &list.source) {
                        lists.set(pool, &list.source, held);
                    }
                    let effect = format!("{}; {HOW_TO_APPLY}", moved.share());
                    waiting.insert(pool.to_string(), Waiting { text, effect });
                }
                match waiting.is_empty() {
                    true => newer,
                    false => self.compile(asked, reading, overrides, &lists)?,
                }
            }
        };
        self.note_waiting(asked, reading, &chosen, waiting);
        Ok(Chosen { config: chosen, may_move })
    }

    /// Tells of lists that would move keys, each once in the log.
    fn note_waiting(
        &mut self,
        asked: Asked,
        reading: &mut Reading,
        config: &Config,
        waiting: BTreeMap<String, Waiting>,
    ) {
        let taken: FoundLists = reading.lists.iter().cloned().collect();
        let mut told = reader::list_doubts(config, &taken);
        for (pool, list) in config.lists() {
            let Some(new) = waiting.get(pool) else { continue };
            let text = waits(pool, &list.source, new);
            if asked.what == Wanted::Lists && self.names.lists.waiting.get(pool) != Some(new) {
                let about = About::pool(pool);
                say_of(&mut self.log, Level::Warning, "list_waits", about, &text);
            }
            told.push(text);
        }
        if asked.what != Wanted::Lists {
            reading.report += &told.iter().map(|it| format!("warning: {it}\n")).collect::<String>();
        }
        if asked.what != Wanted::Difference {
            self.names.lists.waiting = waiting;
            self.names.counts.lists_waiting = self.names.lists.waiting();
            for (source, list) in &reading.lists {
                if list.is_ok() {
                    self.names.lists.note(source, list.clone());
                }
            }
        }
    }

    fn compile(
        &self,
        asked: Asked,
        reading: &Reading,
        overrides: &[Override],
        lists: &Lists,
    ) -> Result<Config, Error> {
        let name =
            self.file.as_ref().map_or("(built in)".into(), |file| file.display().to_string());
        let attachments = reading.attachments.with(lists.clone());
        let source = Source::Attached(&attachments);
        let processors = match asked.what {
            // Nothing but servers and their addresses is to be another.
            Wanted::Moves | Wanted::Lists => self.running.config.process.processors,
            Wanted::Reload | Wanted::Set | Wanted::Difference => config::processors(),
        };
        let outcome = config::compile_for(&name, &reading.text, overrides, processors, source);
        let invalid = || Error::Config(outcome.report.render_text().trim_end().to_string());
        outcome.config.ok_or_else(invalid)
    }

    /// A pool that has servers must not lose them because its list is not known.
    fn require_servers(&self, config: &Config, found: &FoundLists) -> Result<(), Error> {
        let pools = config.plan.pools.iter().zip(&config.upstreams);
        for (plan, upstream) in pools.filter(|(plan, _)| plan.servers.is_empty()) {
            let mut before = self.running.config.plan.pools.iter();
            let Some(list) = &upstream.list else { continue };
            if before.any(|it| it.name == plan.name && !it.servers.is_empty()) {
                let why = match found.get(&list.source) {
                    Some(Err(why)) => why,
                    _ => "a list that is set at run time is not taken; change the file and reload",
                };
                let (pool, source) = (&plan.name, &list.source);
                let text = format!("pool {pool} would lose its servers: no list from {source}: ");
                return Err(Error::Config(text + why));
            }
        }
        Ok(())
    }
}

const HOW_TO_APPLY: &str =
    "`quickack reload --allow-remap` applies it; with `discovery: apply` it would be by itself";
/// Lists that come within this time of another are of the same change.
const GATHER: Duration = Duration::from_millis(50);
/// The pause before what failed is tried again; it doubles with each failure.
const TRY_AGAIN: Duration = Duration::from_secs(1);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(60);
