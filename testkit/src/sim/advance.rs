//! Errors that state what must be known before anything of a request is sent.

use proxy::fault::Fault;

use super::full::without_said;
use super::judge::Judge;

impl Judge<'_> {
    /// Returns whether an error states a fact that must be known before a request is sent to any
    /// server. What waited on a link that has ended since, or was silent for too long, moves to
    /// another, which may not be made.
    pub fn must_be_known_before(&self, line: &str, arrived: u64) -> bool {
        let line = &*without_said(line);
        let mut servers = self.pool.servers.iter();
        let may_move = servers.any(|server| {
            let trouble = &server.trouble;
            let moved = trouble.lost.max(trouble.silent).max(trouble.hung).max(trouble.poisoned);
            moved > arrived
        });
        is_known_before(line) && !(may_move && is_of_attempt(line))
    }
}

/// Returns whether an error states a fact known before anything is sent to the server.
fn is_known_before(line: &str) -> bool {
    let faults = [Fault::Down, Fault::QueueFull, Fault::NoServer, Fault::PrivateFull, Fault::Maint];
    is_one_of(line, &faults) || is_of_attempt(line)
}

/// Returns whether an error says that a link could not be made.
fn is_of_attempt(line: &str) -> bool {
    let faults = [
        Fault::ConnectFailed,
        Fault::ConnectClosed,
        Fault::ConnectTimeout,
        Fault::Refused,
        Fault::LoginRefused,
        Fault::SetupRefused,
        Fault::Unable,
    ];
    is_one_of(line, &faults)
}

fn is_one_of(line: &str, faults: &[Fault]) -> bool {
    faults.iter().any(|fault| line.ends_with(&format!(": {}", fault.row().words)))
}
