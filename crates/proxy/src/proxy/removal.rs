//! Requests that are refused because of their data. If such a request would have replaced a value,
//! the old value is removed.

use proto::{Answer, Class, Parsed, Resume};

use super::Proxy;
use crate::base::part::{Data, Incoming, Requester};
use crate::base::room::NoRoom;
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
        let incoming = &frame.incoming(head);
        let no_room = client::no_room(&self.base, incoming.asks, incoming.request);
        match no_room.map_or(Removal::Nothing, |no_room| self.remove(incoming, no_room)) {
            Removal::Nothing => {
                self.clients.refuse_read(&mut self.base, incoming, answer);
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

    /// Refuses a request for whose body there is no memory any more, although some of it has come.
    #[cold]
    pub(super) fn refuse_begun(&mut self, asks: Requester, body: client::Body) {
        let incoming = &Incoming { asks: &asks, request: &body.request, head: &body.head };
        if self.clients.is_in_transaction(asks.id) {
            let answer = &Answer::Failed("out of memory to queue it");
            self.clients.refuse_read(&mut self.base, incoming, answer);
            self.clients.abort_transaction(&mut self.base, asks.id);
        } else {
            let mut text = String::new();
            let answer = match self.remove(incoming, NoRoom::NoMemory) {
                Removal::Asked => None,
                Removal::Nothing => Some(NoRoom::NoMemory.answer()),
                // It cannot be read again, since a part of it is dropped.
                Removal::Waits(_) => {
                    Some(NoRoom::NoMemory.answer_failed(&NoRoom::NoMemory.answer(), &mut text))
                }
            };
            if let Some(answer) = answer {
                self.clients.refuse_read(&mut self.base, incoming, &answer);
            }
        }
        self.clients.skip_rest(asks.id, &body);
        self.base.spares.give(body.head);
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
    fn remove(&mut self, incoming: &Incoming<'_>, no_room: NoRoom) -> Removal {
        let Incoming { asks, request, head } = *incoming;
        let Class::Single { writes: true } = request.class else { return Removal::Nothing };
        let mut words = self.base.spares.take();
        if !asks.protocol.removal(request, head, &mut words) || bug!(ForgetRemoval) {
            self.base.spares.give(words);
            return Removal::Nothing;
        }
        let keys = &mut self.base.keys;
        let parsed = asks.protocol.parse_request(&words, &mut Resume::default(), keys);
        let Parsed::Complete(removal) = parsed else { unreachable!("the protocol has written it") };
        let removed = &Incoming { asks, request: &removal, head: &words };
        let route = self.route(removed).expect("a request about one key has a route");
        let route = self.in_time(asks, route);
        // The request is told of by its own key, and the removal is sent with its.
        self.read_keys(asks, head);
        if let Route::Wait(server) = route {
            self.base.spares.give(words);
            return Removal::Waits(server);
        }
        self.clients.skip_body(&mut self.base, asks.id, request);
        let id = self.clients.begin_removal(&mut self.base, incoming, no_room);
        self.read_keys(asks, &words);
        match incoming.is_dropped() {
            true => self.drop_begun(id, removed),
            false => self.send_along(id, removed, Data::none(), route),
        }
        self.base.spares.give(words);
        self.clients.pause_if_full(&mut self.base, asks.id);
        Removal::Asked
    }

    /// Finds the keys of a request again.
    fn read_keys(&mut self, asks: &Requester, head: &[u8]) {
        let _ = asks.protocol.parse_request(head, &mut Resume::default(), &mut self.base.keys);
    }
}
