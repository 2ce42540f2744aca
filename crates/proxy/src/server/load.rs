//! What each client has outstanding in the server half: parts that wait for a link, and parts that
//! wait for a reply. A part counts until nothing of it is left on any link, even if its client has
//! been answered with an error meanwhile.

use crate::base::id::ConnId;
use crate::base::part::Sent;

/// What one client has outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) client: ConnId,
    /// Parts that wait for a link.
    pub(super) waiting: u32,
    /// Parts that have left for a link's output, and have no reply.
    pub(super) sent: u32,
    /// The cost of those.
    pub(super) inflight: u64,
    /// The turn in which it last added a key to a shared batch.
    pub(super) batch_turn: u64,
    /// One of its queues is not served until something of it is answered, or it reads.
    pub(super) is_parked: bool,
    /// The client half waits until nothing is outstanding.
    pub(super) is_awaited: bool,
}

impl Load {
    fn new(client: ConnId) -> Load {
        Load {
            client,
            waiting: 0,
            sent: 0,
            inflight: 0,
            batch_turn: 0,
            is_parked: false,
            is_awaited: false,
        }
    }

    pub(super) fn as_sent(&self) -> Sent {
        Sent { parts: self.sent, cost: self.inflight }
    }

    /// Whether nothing is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.sent == 0
    }
}

/// By the index of the client. A client that has gone may have something outstanding until another
/// client has its index; from then on it is not counted.
#[derive(Default)]
pub(super) struct Loads(Vec<Load>);

impl Loads {
    /// Returns the entry of a client that is there.
    #[inline]
    pub(super) fn of(&mut self, client: ConnId) -> &mut Load {
        let at = client.index();
        if at >= self.0.len() {
            self.0.resize(at + 1, Load::new(ConnId::NONE));
        }
        let load = &mut self.0[at];
        if load.client != client {
            *load = Load::new(client);
        }
        load
    }

    /// Returns a client's entry. A client that has gone may have none any more.
    #[inline]
    pub(super) fn find(&mut self, client: ConnId) -> Option<&mut Load> {
        self.0.get_mut(client.index()).filter(|load| load.client == client)
    }

    /// Counts parts that wait no more.
    pub(super) fn take_waiting(&mut self, client: ConnId, parts: usize) {
        if let Some(load) = self.find(client) {
            load.waiting -= parts as u32;
        }
    }

    /// Lists the entries of clients.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Load> {
        self.0.iter().filter(|load| load.client != ConnId::NONE)
    }
}
