//! What a client watches: keys of one server, on a link of its own, up to its next transaction.
//!
//! ```text
//!   WATCH k ──▶ watched ─────────────────▶ EXEC is sent on that link
//!      │ the link is lost                  nil: k may have changed
//!      └──▶ failed: nobody watches k       the error, at most 10 s later; nothing is sent
//! ```

use proto::{Answer, Request};

use super::Clients;
use super::session::Client;
use crate::Time;
use crate::base::buffer::Source;
use crate::base::fault::kept_of_error;
use crate::base::id::ConnId;
use crate::base::part::RequestId;
use crate::base::{Base, limits};

/// Keys that a client watches.
pub(crate) struct Watch {
    pub(crate) server: usize,
    /// The link on which the server notes that they change.
    pub(crate) link: ConnId,
    /// The first of them, for errors.
    pub(crate) key: Vec<u8>,
    /// The plan and the routes of keys when the first was watched. By others, the keys may be on
    /// another server.
    pub(crate) epoch: (u64, u64),
    /// Changes may have gone unnoticed, so the next transaction is not executed.
    pub(crate) is_lost: bool,
}

/// The requests of a client to watch keys.
#[derive(Default)]
pub(super) struct WatchCounts {
    /// How often it has ended what it watches.
    ended: u32,
    /// The number of requests since, and of those that have failed.
    asked: u32,
    failed: u32,
}

/// Keys that a client has asked to watch, and that are not watched. A program that does not look at
/// the answer to WATCH, or has not got it yet, takes them for watched.
pub(super) struct Unwatched {
    error: Box<[u8]>,
    at: Time,
}

/// A client that has had the error for so long has read it.
const UNREAD_US: u64 = 10_000_000;

impl Watch {
    /// Returns the beginning of a key that is kept for errors.
    pub(crate) fn beginning(key: &[u8]) -> Vec<u8> {
        key[..key.len().min(limits::TRANSACTION_KEY_MAX)].to_vec()
    }
}

impl Clients {
    /// Notes what a client watches, or that it watches more.
    #[cold]
    pub(crate) fn watch(&mut self, id: ConnId, watch: Watch) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.watch = Some(Box::new(watch));
        // A request of the same read was sent before the error could be read.
        let received = client.received;
        client.unwatched.take_if(|unwatched| received > unwatched.at);
    }

    /// Returns what a client watches.
    pub(crate) fn watched(&self, id: ConnId) -> Option<&Watch> {
        self.table.find(id)?.watch.as_deref()
    }

    /// Notes that a client watches nothing any more; returns what it has watched.
    #[cold]
    pub(crate) fn end_watch(&mut self, id: ConnId) -> Option<Box<Watch>> {
        self.table.find_mut(id)?.end_watch()
    }

    /// Returns the error of a request to watch keys, if a client's next transaction is refused for
    /// it.
    pub(crate) fn unwatched(&self, base: &Base, id: ConnId) -> Option<&[u8]> {
        self.table.find(id)?.unwatched(base.now)
    }

    /// Notes that a request is one to watch keys, so that it is known what its failure ends.
    #[cold]
    pub(super) fn mark_watch(&mut self, id: RequestId) {
        let pending = &mut self.requests[id];
        if let Some(client) = self.table.find_mut(pending.client) {
            client.watch_counts.asked += 1;
            pending.info.watches_ended = client.watch_counts.ended;
        }
    }

    /// Notes that a request has failed. If it was to watch keys, its client's next transaction is
    /// refused, unless what it watches was ended meanwhile.
    #[cold]
    pub(super) fn note_unwatched(&mut self, base: &Base, id: RequestId) {
        let pending = &self.requests[id];
        let Some(client) = self.table.find_mut(pending.client) else { return };
        let is_watch = client.protocol.watches(pending.info.command);
        if !is_watch || pending.info.watches_ended != client.watch_counts.ended {
            return;
        }
        client.set_unwatched(&pending.error, base.now);
        let WatchCounts { asked, failed, .. } = &mut client.watch_counts;
        *failed += 1;
        // Where nothing was watched, nothing can be missed.
        client.watch.take_if(|_| failed == asked);
    }

    /// Answers a transaction that is not executed, since what its client watches has changed, or
    /// may have.
    #[cold]
    pub(crate) fn answer_unexecuted(&mut self, base: &mut Base, id: ConnId, request: &Request) {
        let Some(client) = self.table.find(id) else { return };
        if request.quiet == proto::Quiet::Silent {
            return;
        }
        let mut words = Vec::new();
        client.protocol.write_unexecuted(client.session.conn_key.proto_version, &mut words);
        self.answer_encoded(base, id, request, Source::plain(&words));
    }
}

impl Client {
    /// Notes that it watches nothing any more; returns what it has watched.
    pub(super) fn end_watch(&mut self) -> Option<Box<Watch>> {
        let ended = self.watch_counts.ended.wrapping_add(1);
        self.watch_counts = WatchCounts { ended, asked: 0, failed: 0 };
        self.unwatched = None;
        self.watch.take()
    }

    /// Whether its next transaction depends on what it has asked to watch.
    pub(super) fn has_watched(&self, now: Time) -> bool {
        self.watch.is_some() || self.unwatched(now).is_some()
    }

    fn unwatched(&self, now: Time) -> Option<&[u8]> {
        let unwatched = self.unwatched.as_deref()?;
        (now.since(unwatched.at) < UNREAD_US).then_some(&unwatched.error)
    }

    /// Notes that keys are not watched that it has asked for, with the error that it gets.
    #[cold]
    pub(super) fn set_unwatched(&mut self, line: &[u8], now: Time) {
        let error = line[..kept_of_error(line)].into();
        self.unwatched = Some(Box::new(Unwatched { error, at: now }));
    }
}

/// Whether this error is the proxy's. What a server refuses to watch does not stop a transaction
/// there either.
pub(super) fn is_of_proxy(answer: &Answer<'_>) -> bool {
    matches!(answer, Answer::Failed(_) | Answer::Apart { .. })
}
