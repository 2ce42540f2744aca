//! Who asks for a change, and the changes that wait until the one under way is over.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::Master;
use super::admin_server::ConnectionId;

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
    Set { asked: Asked, words: Vec<String> },
    Difference { asked: Asked, file: PathBuf },
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

    /// `difference /PATH`. The path may have spaces.
    pub(super) fn ask_difference(&mut self, id: ConnectionId, question: &str, now: Instant) {
        let path = question.trim().split_once(' ').map_or("", |(_, path)| path);
        match Path::new(path).is_absolute() {
            true => self.begin_difference(Asked::difference(id), Path::new(path), now),
            false => self.admin.refuse(id, "difference needs a path that begins with `/`"),
        }
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
            }
        }
    }
}

/// Changes that may wait for their turn.
const CHANGE_REQUESTS_MAX: usize = 32;
