//! One trial: the quiet client alone, beside the attackers, and after they have left.
//!
//! ```text
//!   warm up | alone | lead | attack … | attackers reset | slow commands have ended | 50 ms | after
//!   quiet client: a request every 5 ms all the time
//! ```

use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::load::now_ns;
use crate::machine::Witness;
use crate::options::Options;
use crate::peers::{Contestant, Endpoint, Limits, Peer, Place};
use crate::process::{self, Cpus};
use crate::servers::Servers;

use super::attacks::Attack;
use super::crowd::Play;
use super::quiet::{Outcome, Quiet, Sample};

/// The results of one trial.
pub struct Trial {
    pub alone: Seen,
    pub attacked: Seen,
    pub after: Seen,
    /// Requests of the quiet client that failed or were never answered, in all phases.
    pub errors: usize,
    pub first_error: Option<String>,
    /// Bytes a second that the attackers read.
    pub crowd_bytes_per_s: f64,
    /// Bytes that the servers wrote after the attackers had left.
    pub late_bytes: u64,
    /// Peak of the proxy's resident memory above what it had without clients.
    pub grown_kb: u64,
    /// The larger share of the two CPUs that other processes used.
    pub elsewhere: f64,
}

/// Requests of the quiet client in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    pub asked: usize,
    /// Served before the phase ended.
    pub served: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

const WARM_UP: Duration = Duration::from_millis(300);
const ALONE: Duration = Duration::from_millis(1500);
pub const ATTACK: Duration = Duration::from_secs(4);
/// After the attackers have left, and after the end of what they had slow servers do.
const GRACE: Duration = Duration::from_millis(50);
pub const AFTER: Duration = Duration::from_secs(2);

/// The proxies' settings: deadlines of 5 s, and room for each attack's largest value.
pub const LIMITS: Limits =
    Limits { timeout_ms: Some(5000), item_size_max: "128m", memory_max: "512m" };
pub const MEMORY_MAX_MB: f64 = 512.0;

/// Starts the peer and plays the attack once.
pub fn run(
    attack: &Attack,
    peer: Peer,
    servers: &Servers,
    options: &Options,
    folder: &Path,
) -> Result<Trial, String> {
    let quickack = &options.quickack();
    let place = Place {
        folder,
        quickack,
        servers: &servers.ports,
        backend: attack.backend,
        merge_gets: true,
        cpus: Cpus::Split,
        wrapper: &[],
        limits: LIMITS,
        added: &options.added,
    };
    let count = if peer == Peer::Quickack { attack.workers } else { 1 };
    // It answers once what an earlier trial left to do is done.
    servers.bytes_written()?;
    let endpoint = Endpoint::start(Contestant::of(peer, count), &place)?;
    let resting_kb = process::memory(&endpoint.ids()).resident_kb;
    let witness = Witness::start(&endpoint.ids(), &servers.ids(), Cpus::Split);

    let quiet = Quiet::start(endpoint.addresses[0], attack.backend.wire(), attack.quiet);
    std::thread::sleep(WARM_UP);
    let begin = now_ns();
    std::thread::sleep(ALONE);
    let led = now_ns();
    let attacked = led + attack.lead.as_nanos() as u64;
    let crowd_bytes = play(attack, endpoint.addresses[0])?;
    let left = now_ns();
    let written = servers.bytes_written()?;
    let free = if attack.slow { now_ns() } else { left };
    let calm = free + GRACE.as_nanos() as u64;
    let end = calm + AFTER.as_nanos() as u64;
    std::thread::sleep(Duration::from_nanos(end.saturating_sub(now_ns())));
    let late_bytes = servers.bytes_written()? - written;
    let samples = quiet.stop()?;

    let elsewhere = witness.elsewhere();
    let peak_kb: u64 = endpoint.ids().into_iter().map(process::peak_kb).sum();
    let failed = |sample: &&Sample| !sample.is_served();
    Ok(Trial {
        alone: seen(&samples, begin, led),
        attacked: seen(&samples, attacked, left),
        after: seen(&samples, calm, end),
        errors: samples.iter().filter(failed).count(),
        first_error: samples.iter().find(failed).map(|sample| match &sample.outcome {
            Outcome::Failed(text) => text.clone(),
            _ => "no answer".into(),
        }),
        crowd_bytes_per_s: crowd_bytes as f64 / ((left - attacked) as f64 / 1e9),
        late_bytes,
        grown_kb: peak_kb.saturating_sub(resting_kb),
        elsewhere: elsewhere[0].max(elsewhere[1]),
    })
}

/// Attacks for the set time; returns the bytes that the attackers read.
fn play(attack: &Attack, to: SocketAddrV4) -> Result<u64, String> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attackers = scope
            .spawn(|| Play { crowds: &attack.crowds, to, lead: attack.lead, stop: &stop }.run());
        std::thread::sleep(attack.lead + ATTACK);
        stop.store(true, Ordering::Relaxed);
        attackers.join().unwrap_or_else(|_| Err("the attackers panicked".into()))
    })
}

/// Returns the figures of the requests that were due in a phase.
pub(super) fn seen(samples: &[Sample], begin_ns: u64, end_ns: u64) -> Seen {
    let in_phase = |sample: &&Sample| (begin_ns..end_ns).contains(&sample.due_ns);
    let phase: Vec<&Sample> = samples.iter().filter(in_phase).collect();
    let in_time = |sample: &&&Sample| sample.outcome == Outcome::Served && sample.end_ns <= end_ns;
    let mut delays: Vec<u64> = phase.iter().map(|sample| sample.end_ns - sample.due_ns).collect();
    delays.sort_unstable();
    let at = |share: f64| {
        let rank = (share * delays.len() as f64).ceil() as usize;
        delays.get(rank.saturating_sub(1)).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
    };
    Seen {
        asked: phase.len(),
        served: phase.iter().filter(in_time).count(),
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        max_ms: at(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_has_the_requests_that_were_due_in_it() {
        let sample = |due_ms: u64, took_ms: u64| Sample {
            due_ns: due_ms * 1_000_000,
            end_ns: (due_ms + took_ms) * 1_000_000,
            outcome: Outcome::Served,
        };
        let samples = [sample(0, 90), sample(10, 1), sample(20, 2), sample(30, 70), sample(40, 1)];
        let seen = seen(&samples, 10_000_000, 40_000_000);
        let expected = Seen { asked: 3, served: 2, p50_ms: 2.0, p99_ms: 70.0, max_ms: 70.0 };
        assert_eq!(seen, expected);
    }
}
