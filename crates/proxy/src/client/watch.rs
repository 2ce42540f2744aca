//! What a client watches: keys of one server, on a link of its own, up to its next transaction.

use proto::Request;

use super::Clients;
use crate::base::buffer::Source;
use crate::base::id::ConnId;
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

impl Watch {
    /// Returns the beginning of a key that is kept for errors.
    pub(crate) fn beginning(key: &[u8]) -> Vec<u8> {
        key[..key.len().min(limits::TRANSACTION_KEY_MAX)].to_vec()
    }
}

impl Clients {
    /// Notes what a client watches.
    #[cold]
    pub(crate) fn watch(&mut self, id: ConnId, watch: Watch) {
        if let Some(client) = self.table.find_mut(id) {
            client.watch = Some(Box::new(watch));
        }
    }

    /// Returns what a client watches.
    pub(crate) fn watched(&self, id: ConnId) -> Option<&Watch> {
        self.table.find(id)?.watch.as_deref()
    }

    /// Notes that a client watches nothing any more; returns what it has watched.
    #[cold]
    pub(crate) fn end_watch(&mut self, id: ConnId) -> Option<Box<Watch>> {
        self.table.find_mut(id)?.watch.take()
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
