//! The scoreboard: the memory that the master and its workers share, apart from the channel.
//!
//! ```text
//!   line 0      header           master   magic, version, slots, ids, protocols' counters
//!   line 1      epochs           master   configuration, health, heartbeat
//!   line 2      connect tokens   anybody  one word of several writers; not in a request's path
//!   then        one line a slot  master   whether its worker serves
//!   then        one line a slot  worker   heartbeat, clients, whether it watches the listeners, …
//!   then        health bits      master   one bit an id: ejected
//!   then        metrics::Book    worker   pages of counters and histograms, a set for each slot,
//!                                         and one for the master
//! ```
//!
//! A line is 64 bytes, a processor's cache line; every line but one has a single writer, so nobody
//! waits for anybody. A worker looks at the epochs at the start of each turn: one store of the
//! master's is the moment at which all workers change.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Registry, WorkerMetrics};

use crate::error::Error;

/// The shared memory, as master and workers see it.
#[derive(Clone)]
pub struct Scoreboard {
    memory: &'static [AtomicU64],
    slots: usize,
    ids: usize,
    registry: Registry,
}

/// The configuration and the state of the servers' health that are in force somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    pub config: u64,
    pub health: u64,
}

/// A change of a server's place in its ring.
#[derive(Clone, Copy, Debug)]
pub struct Ejection {
    pub server: u32,
    pub ejected: bool,
}

/// Returns the servers that are back, and those that are taken out of their rings, between two
/// lists of those that are out.
pub fn changes(before: &[u32], now: &[u32]) -> impl Iterator<Item = Ejection> {
    let back = before.iter().filter(|id| !now.contains(id));
    let back = back.map(|id| Ejection { server: *id, ejected: false });
    let gone = now.iter().filter(|id| !before.contains(id));
    back.chain(gone.map(|id| Ejection { server: *id, ejected: true }))
}

impl Scoreboard {
    /// Words of memory that a scoreboard needs for `slots` workers and `ids` pools and servers.
    pub fn words(slots: usize, ids: usize) -> usize {
        registry_start(slots, ids) + Registry::words(slots + 1, ids)
    }

    /// Makes a scoreboard of memory that is all zero.
    pub fn create(memory: &'static [AtomicU64], slots: usize, ids: usize) -> Scoreboard {
        assert_eq!(memory.len(), Scoreboard::words(slots, ids), "the memory was made for it");
        let registry = Registry::create(&memory[registry_start(slots, ids)..], slots + 1, ids);
        let header = [MAGIC, VERSION, slots as u64, ids as u64, own_counters()];
        for (word, value) in header.into_iter().enumerate() {
            memory[word].store(value, Ordering::Relaxed);
        }
        Scoreboard { memory, slots, ids, registry }
    }

    /// A scoreboard that the master has made.
    pub fn open(memory: &'static [AtomicU64]) -> Result<Scoreboard, Error> {
        let word = |at: usize| memory.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
        if word(0) != MAGIC || word(1) != VERSION {
            let text = format!("the shared memory is not a scoreboard of version {VERSION}");
            return Err(Error::Bug(text));
        }
        if word(4) != own_counters() {
            let text = "the shared memory has the counters of other protocols";
            return Err(Error::Bug(text.into()));
        }
        let (slots, ids) = (word(2) as usize, word(3) as usize);
        if memory.len() != Scoreboard::words(slots, ids) {
            let text = "the shared memory is not as long as its header says";
            return Err(Error::Bug(text.into()));
        }
        let registry = Registry::open(&memory[registry_start(slots, ids)..]);
        let registry = registry.map_err(|why| Error::Bug(why.to_string()))?;
        Ok(Scoreboard { memory, slots, ids, registry })
    }

    /// Workers that there may be.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Pools and servers that there may be, id 0 among them.
    pub fn ids_max(&self) -> usize {
        self.ids
    }

    /// The counters: the master's own, then those of the workers' slots.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The counters of the master's decisions.
    pub fn master_metrics(&self) -> WorkerMetrics {
        self.registry.metrics(0)
    }

    /// The counters of the worker in a slot.
    pub fn metrics(&self, slot: usize) -> WorkerMetrics {
        self.registry.metrics(1 + slot)
    }

    /// So many slots have ever had a worker, and so many ids a pool or server.
    pub fn set_used(&self, slots: usize, ids: usize) {
        self.registry.set_used(1 + slots, ids);
    }

    // State that the master sets.

    /// The configuration that holds.
    pub fn config_epoch(&self) -> u64 {
        self.memory[EPOCHS].load(Ordering::Acquire)
    }

    /// From now on, for all workers at once, the configuration of `epoch` holds.
    pub fn commit_config(&self, epoch: u64) {
        assert!(epoch > self.config_epoch(), "epochs grow");
        self.memory[EPOCHS].store(epoch, Ordering::Release);
    }

    /// Grows with each change of the health bits.
    pub fn health_epoch(&self) -> u64 {
        self.memory[EPOCHS + 1].load(Ordering::Acquire)
    }

    /// Whether the master has taken a server out of its ring.
    pub fn is_ejected(&self, id: u32) -> bool {
        let (word, bit) = self.health_place(id);
        self.memory[word].load(Ordering::Acquire) & bit != 0
    }

    /// Changes the health of servers; all workers see all of them by one new epoch.
    pub fn set_ejected(&self, changes: &[Ejection]) {
        for &Ejection { server, ejected } in changes {
            let (word, bit) = self.health_place(server);
            let old = self.memory[word].load(Ordering::Relaxed);
            let new = if ejected { old | bit } else { old & !bit };
            self.memory[word].store(new, Ordering::Release);
        }
        let next = self.health_epoch() + 1;
        self.memory[EPOCHS + 1].store(next, Ordering::Release);
    }

    /// A turn of the master's begins, at `now_us` of the clock that all processes share.
    pub fn beat_of_master(&self, now_us: u64) {
        self.memory[EPOCHS + 2].store(now_us, Ordering::Relaxed);
    }

    /// When the master last began a turn.
    pub fn master_beat(&self) -> u64 {
        self.memory[EPOCHS + 2].load(Ordering::Relaxed)
    }

    /// Whether a slot's worker takes clients.
    pub fn is_serving(&self, slot: usize) -> bool {
        self.memory[self.master_line(slot)].load(Ordering::Acquire) != 0
    }

    /// A worker takes clients from now on, or does not. One that has died has no clients.
    pub fn set_serving(&self, slot: usize, serving: bool) {
        self.memory[self.master_line(slot)].store(u64::from(serving), Ordering::Release);
    }

    /// A slot's worker is dead: what it said of itself holds no more.
    pub fn clear_worker(&self, slot: usize) {
        let line = self.worker_line(slot);
        for word in [CLIENTS, WATCHING] {
            self.memory[line + word].store(0, Ordering::Release);
        }
        self.registry.clear_gauges(1 + slot);
    }

    // State that a worker sets.

    /// A turn of the worker's loop begins, at `now_us` of the clock that all processes share.
    pub fn beat(&self, slot: usize, now_us: u64) {
        let line = &self.memory[self.worker_line(slot)..][..LINE];
        let beats = line[BEATS].load(Ordering::Relaxed);
        line[BEATS].store(beats.wrapping_add(1), Ordering::Relaxed);
        line[BEAT_AT].store(now_us, Ordering::Relaxed);
    }

    /// When a worker last began a turn.
    pub fn beat_at(&self, slot: usize) -> u64 {
        self.memory[self.worker_line(slot) + BEAT_AT].load(Ordering::Relaxed)
    }

    /// Turns that a worker has begun; a number that stands still for long is a hung worker.
    pub fn beats(&self, slot: usize) -> u64 {
        self.memory[self.worker_line(slot) + BEATS].load(Ordering::Relaxed)
    }

    /// Clients that a worker has now.
    pub fn connections(&self, slot: usize) -> u32 {
        self.memory[self.worker_line(slot) + CLIENTS].load(Ordering::Acquire) as u32
    }

    pub fn set_connections(&self, slot: usize, count: u32) {
        self.memory[self.worker_line(slot) + CLIENTS].store(u64::from(count), Ordering::Release);
    }

    /// Whether a worker is woken when a client waits at a listener.
    pub fn watching(&self, slot: usize) -> bool {
        self.memory[self.worker_line(slot) + WATCHING].load(Ordering::SeqCst) != 0
    }

    pub fn set_watching(&self, slot: usize, watching: bool) {
        self.memory[self.worker_line(slot) + WATCHING].store(u64::from(watching), Ordering::SeqCst);
    }

    /// The configuration and the health that a worker has installed.
    pub fn installed(&self, slot: usize) -> Epochs {
        let line = self.worker_line(slot);
        let word = |at: usize| self.memory[line + at].load(Ordering::Acquire);
        Epochs { config: word(CONFIG_SEEN), health: word(HEALTH_SEEN) }
    }

    pub fn set_installed(&self, slot: usize, epochs: Epochs) {
        let line = self.worker_line(slot);
        self.memory[line + CONFIG_SEEN].store(epochs.config, Ordering::Release);
        self.memory[line + HEALTH_SEEN].store(epochs.health, Ordering::Release);
    }

    // State that all share.

    /// Leave to connect to a server, of which there are `per_second` for the whole proxy; a burst
    /// may use what a tenth of a second allows. The error is how long to wait, microseconds.
    ///
    /// `now_us` is of a clock that all processes share. The word is the time at which the bucket
    /// is full again: the generic cell rate algorithm (ITU-T I.371).
    pub fn take_connect_token(&self, now_us: u64, per_second: u64) -> Result<(), u64> {
        if per_second == 0 {
            return Ok(());
        }
        let each = (1_000_000 / per_second).max(1);
        let burst = each.max(CONNECT_BURST_US);
        let word = &self.memory[TOKENS];
        let mut full = word.load(Ordering::Relaxed);
        loop {
            let next = full.max(now_us) + each;
            if next > now_us + burst {
                return Err(next - now_us - burst);
            }
            match word.compare_exchange_weak(full, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(changed) => full = changed,
            }
        }
    }

    fn health_place(&self, id: u32) -> (usize, u64) {
        assert!((id as usize) < self.ids, "ids are given out within the scoreboard's bound");
        (health_start(self.slots) + id as usize / 64, 1 << (id % 64))
    }

    fn master_line(&self, slot: usize) -> usize {
        assert!(slot < self.slots, "slots are given out within the scoreboard's bound");
        FIRST_SLOT + slot * LINE
    }

    fn worker_line(&self, slot: usize) -> usize {
        self.master_line(slot) + self.slots * LINE
    }
}

fn health_start(slots: usize) -> usize {
    FIRST_SLOT + 2 * slots * LINE
}

/// Where the registry begins: at a page, so that no writer's page is another's.
fn registry_start(slots: usize, ids: usize) -> usize {
    (health_start(slots) + ids.div_ceil(64)).next_multiple_of(PAGE)
}

/// Returns a number for the meaning of the counters that protocols define. The registry has only
/// their places.
fn own_counters() -> u64 {
    let lists = proto::NAMED.iter().map(|protocol| protocol.upstream().retryable_errors());
    let names = lists.flat_map(|errors| errors.iter().map(|error| error.counter).chain(["/"]));
    names.fold(metrics::NO_NAMES, |digest, name| metrics::digest(digest, name.as_bytes()))
}

/// "quickack", read as a number.
const MAGIC: u64 = u64::from_be_bytes(*b"quickack");
/// The version of the layout; a process that finds another one reads nothing.
const VERSION: u64 = 2;
/// Words of a cache line.
const LINE: usize = 8;
/// Words of a page.
const PAGE: usize = 512;
const EPOCHS: usize = LINE;
const TOKENS: usize = 2 * LINE;
const FIRST_SLOT: usize = 3 * LINE;
// Words of a worker's line.
const BEATS: usize = 0;
const CLIENTS: usize = 1;
const WATCHING: usize = 2;
const CONFIG_SEEN: usize = 3;
const HEALTH_SEEN: usize = 4;
const BEAT_AT: usize = 5;
/// The time to come that a burst of connects may use at once.
const CONNECT_BURST_US: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn scoreboard(slots: usize, ids: usize) -> Scoreboard {
        let fd = sys::memory::shared("test", Scoreboard::words(slots, ids)).unwrap();
        Scoreboard::create(sys::memory::map(fd).unwrap(), slots, ids)
    }

    /// Every word that anybody but the tokens' users writes, with its writer.
    fn written(scoreboard: &Scoreboard) -> Vec<(usize, String)> {
        let mut words = Vec::new();
        let mut note = |writer: &str, act: &dyn Fn()| {
            let before: Vec<u64> =
                scoreboard.memory.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            act();
            for (at, word) in scoreboard.memory.iter().enumerate() {
                if word.load(Ordering::Relaxed) != before[at] {
                    words.push((at, writer.to_string()));
                }
            }
        };
        note("master", &|| scoreboard.commit_config(1));
        note("master", &|| scoreboard.beat_of_master(1));
        note("anybody", &|| scoreboard.take_connect_token(1, 1).unwrap());
        for slot in 0..scoreboard.slots {
            note("master", &|| scoreboard.set_serving(slot, true));
            let worker = format!("worker {slot}");
            note(&worker, &|| scoreboard.beat(slot, 1));
            note(&worker, &|| scoreboard.set_connections(slot, 1));
            note(&worker, &|| scoreboard.set_watching(slot, true));
            note(&worker, &|| scoreboard.set_installed(slot, Epochs { config: 1, health: 1 }));
        }
        for server in 0..scoreboard.ids as u32 {
            let change = Ejection { server, ejected: true };
            note("master", &|| scoreboard.set_ejected(&[change]));
        }
        words
    }

    #[test]
    fn no_two_writers_share_a_cache_line() {
        let scoreboard = scoreboard(5, 130);
        let words = written(&scoreboard);
        assert!(words.len() > 5 * 6 + 130);
        for (at, writer) in &words {
            for (other_at, other) in &words {
                let apart = at / LINE != other_at / LINE;
                assert!(writer == other || apart, "{writer} and {other} at {at} and {other_at}");
            }
            assert!(*at < registry_start(5, 130), "the book begins behind the last of them");
        }
        assert_eq!(registry_start(5, 130) % PAGE, 0);
    }

    #[test]
    fn what_the_master_made_can_be_opened_and_nothing_else() {
        let scoreboard = scoreboard(3, 10);
        assert_eq!(Scoreboard::open(scoreboard.memory).map(|scoreboard| scoreboard.slots()), Ok(3));
        assert!(Scoreboard::open(&scoreboard.memory[..scoreboard.memory.len() - 1]).is_err());
        for word in [1, 4] {
            let value = scoreboard.memory[word].fetch_add(1, Ordering::Relaxed);
            assert!(Scoreboard::open(scoreboard.memory).is_err());
            scoreboard.memory[word].store(value, Ordering::Relaxed);
        }
    }

    #[test]
    fn connects_keep_to_their_rate_whoever_asks() {
        let scoreboard = scoreboard(1, 1);
        let mut now = 1_000_000;
        let granted =
            |scoreboard: &Scoreboard, now| scoreboard.take_connect_token(now, 100).is_ok();
        let burst = (0..100).filter(|_| granted(&scoreboard, now)).count();
        assert_eq!(burst, 10, "a tenth of a second's worth");
        let wait = scoreboard.take_connect_token(now, 100).unwrap_err();
        assert!(wait > 0 && wait <= 10_000);
        now += wait;
        assert!(granted(&scoreboard, now) && !granted(&scoreboard, now));
        let steady = (0..1_000).filter(|step| granted(&scoreboard, now + step * 1_000)).count();
        assert!((99..=101).contains(&steady), "{steady}");
        assert!((0..1_000).all(|_| scoreboard.take_connect_token(now, 0).is_ok()));
    }
}
