//! Requests that are refused because of their data. If such a request would have replaced a value,
//! the old value is removed.

use proto::{Answer, Class, Parsed, Resume};

use super::Proxy;
use crate::base::part::{Data, Incoming};
use crate::client::{self, Frame};
use crate::route::Route;

/// How a refused request affects its key.
enum Removal {
    /// The key stays as it is.
    Nothing,
    /// The key is being removed. The request is answered when that is done.
    Asked,
    /// The form of the removal depends on the capabilities of this server, which are unknown.
    Waits(usize),
}

impl Proxy {
    /// Refuses a request. If the reason is its data, the old value of its key may have to go.
    #[cold]
    pub(super) fn refuse_or_remove(
        &mut self,
        frame: &Frame,
        head: &[u8],
        answer: &Answer<'_>,
    ) -> usize {
        match self.remove(frame, head) {
            Removal::Nothing => {
                self.clients.refuse_read(&mut self.base, &frame.incoming(head), answer);
                head.len()
            }
            Removal::Asked => head.len(),
            Removal::Waits(server) => {
                self.clients.await_server(&mut self.base, frame.asks.id, server);
                self.clients.read_again(&mut self.base, frame);
                0
            }
        }
    }

    /// Refuses a request whose data is not accepted, if that removes its key. No client is to go on
    /// reading a value that was to be replaced.
    ///
    /// ```text
    ///   set k 0 0 9000000 ──▶ too large ──▶ delete k ──▶ DELETED ──▶ answer "too large"
    ///   <its data>        ──▶ skipped          │
    ///                                          └─ not sent ──▶ answer "too large, old value kept"
    /// ```
    ///
    /// The removal is a change of that client like any other. It goes to its key's server in the
    /// client's order and never twice, and the client gets the answer when the outcome is known.
    #[cold]
    fn remove(&mut self, frame: &Frame, head: &[u8]) -> Removal {
        let Frame { asks, request, .. } = frame;
        let Class::Single { writes: true } = request.class else { return Removal::Nothing };
        let Some(no_room) = client::no_room(&self.base, asks, request) else {
            return Removal::Nothing;
        };
        let mut words = self.base.spares.take();
        if !asks.protocol.removal(request, head, &mut words) || bug!(ForgetRemoval) {
            self.base.spares.give(words);
            return Removal::Nothing;
        }
        let keys = &mut self.base.keys;
        let parsed = asks.protocol.parse_request(&words, &mut Resume::default(), keys);
        let Parsed::Complete(removal) = parsed else { unreachable!("the protocol has written it") };
        let removed = &Incoming { asks, request: &removal, head: &words };
        let route = self.route(removed);
        let route = route.expect("a request about one key has a route");
        if let Route::Wait(server) = route {
            self.base.spares.give(words);
            return Removal::Waits(server);
        }
        self.clients.skip_body(&mut self.base, asks.id, request);
        let incoming = &frame.incoming(head);
        let id = self.clients.begin_removal(&mut self.base, incoming, no_room);
        match incoming.is_dropped() {
            true => self.drop_begun(id, removed),
            false => self.send_along(id, removed, Data::none(), route),
        }
        self.base.spares.give(words);
        self.clients.pause_if_full(&mut self.base, asks.id);
        Removal::Asked
    }
}
