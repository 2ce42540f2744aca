//! Who asks for a change, the changes that are overrides, and those that wait until the one under
//! way is over.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use proxy::plan::AdminState;

use super::Master;
use super::admin_server::ConnectionId;
use super::reader::Reading;
use crate::config::{self, Override};
use crate::log::Clocks;

/// The origin of a change, and what it may do.
#[derive(Clone, Copy)]
pub struct Asked {
    /// The connection that asked; a signal expects no answer.
    pub asker: Option<ConnectionId>,
    pub allow_remap: bool,
    pub what: Wanted,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The file is read again.
    Reload,
    /// Directives are set over it.
    Set,
    /// Servers get the addresses that their names have by now.
    Moves,
    /// Pools get the servers that their lists have by now.
    Lists,
    /// A file is read, to say what would change; nothing is changed, and nothing logged.
    Difference,
}

impl Asked {
    pub fn reload(asker: Option<ConnectionId>, allow_remap: bool) -> Asked {
        Asked { asker, allow_remap, what: Wanted::Reload }
    }

    pub fn set(asker: ConnectionId, allow_remap: bool) -> Asked {
        Asked { asker: Some(asker), allow_remap, what: Wanted::Set }
    }

    pub fn difference(asker: ConnectionId) -> Asked {
        Asked { asker: Some(asker), allow_remap: true, what: Wanted::Difference }
    }
}

/// A change that waits for its turn.
pub enum ChangeRequest {
    Reload(Asked),
    Set {
        asked: Asked,
        words: Vec<String>,
    },
    /// A server gets a state by hand.
    Server {
        asked: Asked,
        name: String,
        state: AdminState,
    },
    Difference {
        asked: Asked,
        file: PathBuf,
    },
}

impl Master {
    /// `set [--allow-remap] KEY=VALUE...`.
    pub(super) fn ask_set(&mut self, id: ConnectionId, words: &[String], now: Instant) {
        let (options, words): (Vec<String>, Vec<String>) =
            words.iter().cloned().partition(|word| word == "--allow-remap");
        match words.is_empty() {
            true => self.admin.refuse(id, "set needs KEY=VALUE"),
            false => self.begin_set(Asked::set(id, !options.is_empty()), &words, now),
        }
    }

    /// `log-level LEVEL`.
    pub(super) fn ask_log_level(&mut self, id: ConnectionId, words: &[String], now: Instant) {
        match words {
            [level] => self.begin_set(Asked::set(id, false), &[format!("log_level={level}")], now),
            _ => self.admin.refuse(id, "log-level takes one word"),
        }
    }

    /// `difference /PATH`. The path may have spaces.
    pub(super) fn ask_difference(&mut self, id: ConnectionId, question: &str, now: Instant) {
        let path = question.trim().split_once(' ').map_or("", |(_, path)| path);
        match Path::new(path).is_absolute() {
            true => self.begin_difference(Asked::difference(id), Path::new(path), now),
            false => self.admin.refuse(id, "difference needs a path that begins with `/`"),
        }
    }

    /// `KEY=VALUE` words over the file's.
    pub(super) fn begin_set(&mut self, asked: Asked, words: &[String], now: Instant) {
        if self.ending.is_some() {
            return self.refuse(asked, "the proxy is shutting down");
        }
        if self.change.is_some() {
            return self.queue_change(ChangeRequest::Set { asked, words: words.to_vec() });
        }
        let config = &self.running.config;
        let set = words.iter().try_fold(config.overrides.clone(), |overrides, word| {
            config::set(config, &overrides, word)
        });
        match set {
            Ok(overrides) => self.override_with(asked, &overrides, now),
            Err(error) => self.refuse(asked, error),
        }
    }

    /// A server gets a state by hand.
    pub(super) fn begin_server(
        &mut self,
        asked: Asked,
        name: &str,
        state: AdminState,
        now: Instant,
    ) {
        if self.ending.is_some() {
            return self.refuse(asked, "the proxy is shutting down");
        }
        if self.change.is_some() {
            let name = name.to_string();
            return self.queue_change(ChangeRequest::Server { asked, name, state });
        }
        let config = &self.running.config;
        match config::set_server(config, &config.overrides, name, state) {
            Ok(overrides) => self.override_with(asked, &overrides, now),
            Err(error) => self.refuse(asked, error),
        }
    }

    /// The same file with other directives set over it.
    fn override_with(&mut self, asked: Asked, overrides: &[Override], now: Instant) {
        let reading = Reading {
            text: self.running.config.text.clone(),
            attachments: self.running.config.attachments.clone(),
            addresses: self.running.resolved.clone(),
            ..Reading::default()
        };
        self.prepare(asked, reading, overrides, now);
    }

    /// One change at a time; the next begins when this one is over.
    pub(super) fn queue_change(&mut self, asked: ChangeRequest) {
        let is_signal =
            |it: &ChangeRequest| matches!(it, ChangeRequest::Reload(Asked { asker: None, .. }));
        if is_signal(&asked) && self.change_requests.iter().any(is_signal) {
            // The file is read once for both.
            return;
        }
        if self.change_requests.len() >= CHANGE_REQUESTS_MAX {
            let (ChangeRequest::Reload(asked)
            | ChangeRequest::Set { asked, .. }
            | ChangeRequest::Server { asked, .. }
            | ChangeRequest::Difference { asked, .. }) = asked;
            return self.refuse(asked, "too many changes are waiting; try again in a moment");
        }
        self.change_requests.push_back(asked);
    }

    pub(super) fn begin_next_change(&mut self, now: Instant) {
        while self.change.is_none()
            && let Some(asked) = self.change_requests.pop_front()
        {
            match asked {
                ChangeRequest::Reload(asked) => self.begin_reload(asked, now),
                ChangeRequest::Difference { asked, file } => {
                    self.begin_difference(asked, &file, now);
                }
                ChangeRequest::Set { asked, words } => self.begin_set(asked, &words, now),
                ChangeRequest::Server { asked, name, state } => {
                    self.begin_server(asked, &name, state, now);
                }
            }
        }
    }

    pub(super) fn note_reload(&mut self, asked: Asked, applied: bool, text: &str) {
        if asked.what == Wanted::Reload {
            self.reloads.note(applied, Clocks::read().unix_us / 1_000_000, text);
        }
    }

    pub(super) fn answer(&mut self, asker: Option<ConnectionId>, text: String) {
        if let Some(id) = asker {
            self.admin.answer(id, text);
            self.want_to_write(id);
        }
    }
}

/// The workers that a change waits for, in words.
pub fn name_workers(numbers: &BTreeSet<usize>) -> String {
    let names: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    match names.len() {
        1 => format!("worker {}", names[0]),
        _ => format!("workers {}", names.join(", ")),
    }
}

/// Changes that may wait for their turn.
const CHANGE_REQUESTS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_named_by_their_numbers() {
        assert_eq!(name_workers(&BTreeSet::from([3])), "worker 3");
        assert_eq!(name_workers(&BTreeSet::from([3, 0, 12])), "workers 0, 3, 12");
    }
}
