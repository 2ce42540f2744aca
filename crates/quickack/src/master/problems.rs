//! What is wrong with the proxy now, in sentences: for `quickack info`, `stats` and `top`, and for
//! the page. The counters tell how often something went wrong; here is the cause, as far as the
//! master knows it.

use std::time::{Duration, Instant};

use metrics::WorkerCounter;
use proxy::plan::AdminState;

use super::Master;
use super::workers::State;
use crate::config::grouped;
use crate::log::Clocks;
use crate::stats::{self, Health, duration};

impl Master {
    /// Returns a sentence for each problem, the most pressing first.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut said = self.worker_problems();
        said.extend(self.refused_reload());
        said.extend(self.server_problems());
        said.extend(self.full_buffers());
        said.extend(self.lost_lines());
        said
    }

    /// Workers that are not there, or died lately.
    pub(super) fn worker_problems(&self) -> Vec<String> {
        if self.ending.is_some() || self.workers_sent_away {
            return Vec::new();
        }
        let (now, wanted) = (Instant::now(), self.running.config.process.worker_count());
        let of_slot = |slot: &super::Slot| {
            let number = slot.number;
            let Some((at, how)) = &slot.last_death else {
                let is_hung = slot.worker.as_ref().is_some_and(|it| it.state == State::Hung);
                return is_hung.then(|| format!("worker {number} hangs, and is replaced"));
            };
            let ago = now.saturating_duration_since(*at);
            let times = match slot.deaths {
                1 => "once".to_string(),
                deaths => format!("{} times", grouped(deaths)),
            };
            let since = format!("{times} since the start, the last time {} ago", seconds(ago));
            match &slot.worker {
                None => {
                    let pause = slot.not_before.saturating_duration_since(now);
                    let next = format!("it is started again in {} ms", pause.as_millis());
                    Some(format!("worker {number} is missing: it died {since} ({how}); {next}"))
                }
                Some(_) if ago < LATELY => {
                    Some(format!("worker {number} died {since} ({how}), and was started again"))
                }
                Some(_) => None,
            }
        };
        self.slots.iter().take(wanted).filter_map(of_slot).collect()
    }

    /// The file is not what is in effect.
    fn refused_reload(&self) -> Option<String> {
        let last = self.reloads.last.back().filter(|last| !last.applied)?;
        let ago = duration((Clocks::read().unix_us / 1_000_000).saturating_sub(last.unix_s));
        Some(format!("the last reload, {ago} ago, was refused: {}", last.text))
    }

    /// Servers that are down, unless an operator wants that, or take no further connection.
    fn server_problems(&self) -> Vec<String> {
        let (plan, now_s) = (self.running.plan(), Clocks::read().unix_us / 1_000_000);
        let unresolved = self.running.unresolved();
        let mut said = Vec::new();
        for pool in &plan.pools {
            for server in pool.servers.iter().filter(|one| one.admin != AdminState::Maint) {
                let health = stats::health(&self.scoreboard, server.id);
                let failure = self.health.failure(server.id).filter(|_| health != Health::Up);
                let nowhere = unresolved.get(&server.id);
                if health == Health::Up && nowhere.is_none() {
                    let refusal = self.health.refusal(server.id);
                    let of = |why| format!("server {} of pool {}: {why}", server.label, pool.name);
                    said.extend(refusal.map(of));
                    continue;
                }
                let ejected = matches!(health, Health::Ejected { .. });
                let state = if ejected { "out of its ring" } else { "down" };
                let since = failure.map(|one| now_s.saturating_sub(one.since));
                let since = since.map_or(String::new(), |s| format!(" for {}", duration(s)));
                let why = nowhere.or(failure.map(|one| &one.why));
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                let of = &pool.name;
                said.push(format!("server {} of pool {of} is {state}{since}{why}", server.label));
            }
        }
        if said.len() > SERVERS_MAX {
            let more = said.len() - (SERVERS_MAX - 1);
            said.truncate(SERVERS_MAX - 1);
            said.push(format!("{more} more servers are in trouble; `quickack servers` shows them"));
        }
        said
    }

    /// Workers whose buffers have nearly all that they may have.
    fn full_buffers(&self) -> impl Iterator<Item = String> {
        let (config, registry) = (&self.running.config, self.scoreboard.registry());
        let part = config.plan.memory_max as u64 / config.process.worker_count().max(1) as u64;
        self.slots.iter().filter_map(move |slot| {
            let has = registry.value(1 + slot.number, 0, WorkerCounter::BufferBytesNow);
            (has >= part / 5 * 4).then(|| {
                format!(
                    "the buffers of worker {} have {} of the {} bytes that they may have \
                     (memory_max); `quickack clients --sort held` shows whose they are",
                    slot.number,
                    grouped(has),
                    grouped(part)
                )
            })
        })
    }

    /// Lines that could not be written lately: the log itself may not be able to tell of them.
    fn lost_lines(&self) -> Vec<String> {
        let now_us = Clocks::read().unix_us;
        let lately = |us: u64| {
            let ago = Duration::from_micros(now_us.saturating_sub(us));
            (ago < LATELY).then(|| seconds(ago))
        };
        let (losses, why) = self.log.losses();
        let of_log = lately(losses.last_us).filter(|_| losses.lines > 0).map(|ago| {
            let (lines, path) = (grouped(losses.lines), &self.running.config.process.log);
            format!("{lines} lines of the log ({path}) were lost, the last {ago} ago: {why}")
        });
        let access = self.access_log.last_loss.as_ref();
        let of_access = access.and_then(|(at, why)| Some((lately(*at)?, why))).map(|(ago, why)| {
            format!("lines of the access log were lost, the last {ago} ago: {why}")
        });
        of_log.into_iter().chain(of_access).collect()
    }
}

fn seconds(time: Duration) -> String {
    duration(time.as_secs())
}

/// What is older is over.
const LATELY: Duration = Duration::from_secs(600);
/// Servers that are told of one by one.
const SERVERS_MAX: usize = 8;
