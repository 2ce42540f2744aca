//! The attacks, as data.
//!
//! An attack is a list of crowds: connections that all send the same bytes in the same way. To add
//! an attack, add an entry to one of the lists; a new behaviour is a new variant of `Again` or
//! `Pace`, or of the quiet client's `Habit`.

mod memcached;
mod redis;

use std::time::Duration;

use crate::peers::Peer;
use crate::servers::Backend;

use super::crowd::{Again, Crowd, Pace};
use super::quiet::Habit;

/// A few hostile or greedy clients.
pub struct Attack {
    pub name: &'static str,
    pub what: &'static str,
    pub backend: Backend,
    pub servers: usize,
    /// Number of quickack's workers.
    pub workers: usize,
    pub stock: Stock,
    /// Its commands keep a server busy. The quiet client's last phase begins when the servers
    /// answer again.
    pub slow: bool,
    /// For so long its crowds behave well before they attack.
    pub lead: Duration,
    pub quiet: Habit,
    /// The quiet client's median has a bar too: a few clients must not slow each request.
    pub median_barred: bool,
    /// Peers that refuse its commands.
    pub refused_by: &'static [Peer],
    pub crowds: Vec<Crowd>,
}

/// The keys on each server, besides those of the quiet client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    Nothing,
    /// `big`, and `big:000` to `big:099`, with values of 1 MB.
    Big,
    /// That many keys with short values.
    Keys(usize),
}

pub fn attacks() -> Vec<Attack> {
    [memcached::attacks(), redis::attacks()].into_iter().flatten().collect()
}

impl Attack {
    /// One server, one worker, no keys but the quiet client's.
    fn new(backend: Backend, name: &'static str, what: &'static str, crowd: Crowd) -> Attack {
        Attack {
            name,
            what,
            backend,
            servers: 1,
            workers: 1,
            stock: Stock::Nothing,
            slow: false,
            lead: Duration::ZERO,
            quiet: Habit::Same,
            median_barred: false,
            refused_by: &[],
            crowds: vec![crowd],
        }
    }

    fn with(self, stock: Stock) -> Attack {
        Attack { stock, ..self }
    }

    fn servers(self, servers: usize) -> Attack {
        Attack { servers, ..self }
    }

    fn workers(self, workers: usize) -> Attack {
        Attack { workers, ..self }
    }

    fn slow(self) -> Attack {
        Attack { slow: true, ..self }
    }

    fn lead(self, lead: Duration) -> Attack {
        Attack { lead, ..self }
    }

    fn quiet(self, quiet: Habit) -> Attack {
        Attack { quiet, ..self }
    }

    fn median_barred(self) -> Attack {
        Attack { median_barred: true, ..self }
    }

    fn refused_by(self, refused_by: &'static [Peer]) -> Attack {
        Attack { refused_by, ..self }
    }
}

impl Crowd {
    /// Connections that send at full speed, once, and read all.
    fn of(connections: usize, request: fn() -> Vec<u8>) -> Crowd {
        let (sends, reads) = (Pace::Full, Pace::Full);
        Crowd { connections, request, sends, reads, again: Again::Never, lead: None }
    }

    fn again(self, again: Again) -> Crowd {
        Crowd { again, ..self }
    }

    fn reads(self, reads: Pace) -> Crowd {
        Crowd { reads, ..self }
    }

    fn sends(self, sends: Pace) -> Crowd {
        Crowd { sends, ..self }
    }

    fn lead(self, lead: fn() -> Vec<u8>) -> Crowd {
        Crowd { lead: Some(lead), ..self }
    }
}

/// Returns a command in RESP.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::attacks;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = attacks().into_iter().map(|attack| attack.name).collect();
        names.extend(super::super::shares::shares().into_iter().map(|share| share.name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
