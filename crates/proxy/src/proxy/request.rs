//! From a client's bytes to the queues of links.

use metrics::{PoolCounter, ServerCounter};
use proto::{Answer, Class, Local, Parsed, Place, Quiet, Reach, Refusal, Request, Resume};

use super::Proxy;
use crate::base::buffer::{Source, has_trailer};
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Data, Part, RequestId, Requester};
use crate::base::pool::Stage;
use crate::client::{self, Again, Frame, Input, Next, Split};
use crate::route::{self, Route};
use crate::server::{SendOptions, Sending};

/// SendOptions a refused request affects its key.
enum Removal {
    /// The key stays as it is.
    Nothing,
    /// The key is being removed. The request is answered when that is done.
    Asked,
    /// The form of the removal depends on the capabilities of this server, which are unknown.
    Waits(usize),
}

impl Proxy {
    pub(super) fn receive_client(&mut self, id: ConnId, source: Source<'_>) {
        match self.clients.take_input(&mut self.base, id, source.bytes) {
            Input::Ignored => return,
            Input::AsTheyCame => {
                let used = self.read(id, source);
                self.clients.keep_rest(&mut self.base, id, &source.bytes[used..]);
            }
            Input::Kept => self.read_kept(id),
            Input::Later => {}
        }
        self.clients.acknowledge(&mut self.base, id);
    }

    /// Reads requests from the bytes that are kept of a client's input.
    pub(super) fn read_kept(&mut self, id: ConnId) {
        let Some(kept) = self.clients.take_kept(id) else { return };
        let used = self.read(id, Source::plain(&kept));
        self.clients.return_kept(&mut self.base, id, kept, used);
    }

    /// Reads as many requests as there are; returns how many bytes they took.
    fn read(&mut self, id: ConnId, source: Source<'_>) -> usize {
        let len = source.bytes.len();
        let mut at = 0;
        while at < len {
            let rest = source.part(at, len);
            let used = match self.clients.next_frame(&mut self.base, id, rest) {
                Next::Used(used) => used,
                Next::Frame(frame) => self.serve(frame, rest),
                Next::Whole(used, asks, body) => {
                    self.serve_whole(asks, *body);
                    used
                }
            };
            if used == 0 {
                break;
            }
            at += used;
        }
        at
    }

    /// Handles a request whose head has been read; returns how many bytes it used, of which it is
    /// the first.
    #[inline(always)]
    fn serve(&mut self, frame: Frame, rest: Source<'_>) -> usize {
        let Frame { asks, request, .. } = &frame;
        let head = &rest.bytes[..request.head as usize];
        if let Some(answer) = client::refusal(&self.base, asks.pool(), request) {
            return self.refuse_or_remove(&frame, head, &answer);
        }
        let route = self.route(*asks, request, head);
        if let Some(route) = route
            && !matches!(route, Route::Go { .. } | Route::Spread)
            && let Some(used) = self.put_off(&frame, head, route)
        {
            return used;
        }
        match usize::try_from(request.len()) {
            Ok(whole) if whole <= rest.bytes.len() => {
                let data = Data::OnePiece(rest.part(head.len(), whole));
                self.admit(*asks, request, head, data, route);
                self.clients.end_aborted(&mut self.base, &frame, whole == rest.bytes.len());
                whole
            }
            _ => {
                self.clients.begin_body(&mut self.base, asks.id, *request, head);
                head.len()
            }
        }
    }

    /// Handles a request whose body has come whole, in several reads.
    fn serve_whole(&mut self, asks: Requester, mut body: client::Body) {
        if !body.has_trailer() {
            self.clients.refuse_data(&mut self.base, asks, &body.request, &body.head);
            return self.base.spares.give(body.head);
        }
        let route = self.route(asks, &body.request, &body.head);
        if let Some(Route::Wait(server)) = route {
            return self.clients.put_back(&mut self.base, asks.id, body, server);
        }
        let data = Data::Assembled(std::mem::take(&mut body.data));
        self.admit(asks, &body.request, &body.head, data, route);
        self.base.spares.give(body.head);
    }

    /// Returns the route of a request, as far as its servers can be asked now.
    fn route(&mut self, asks: Requester, request: &Request, head: &[u8]) -> Option<Route> {
        let Proxy { base, clients, servers, .. } = self;
        let is_located = || clients.has_endpoints(asks.id);
        match route::route(base, asks, request, head, is_located)? {
            Route::Wait(server) => Some(match servers.reach(base, asks, server) {
                Ok(()) => Route::Wait(server),
                Err(fault) => Route::Fault(Some(server as u32), fault),
            }),
            Route::Spread => {
                let ready = match request.class {
                    Class::Split { writes: true, .. } => {
                        servers.are_ready_for_keys(base, asks, request, head)
                    }
                    Class::Broadcast { .. } => servers.are_ready(base, asks),
                    _ => Ok(None),
                };
                Some(match ready {
                    // A client that has left after waiting for long has given up, and its change
                    // waits no more.
                    Ok(Some(server)) if !asks.drops(request.quiet) => Route::Wait(server),
                    Ok(_) => Route::Spread,
                    Err((server, fault)) => Route::Fault(server, fault),
                })
            }
            route => Some(route),
        }
    }

    /// Delays or refuses a request that cannot take its route now. Returns `None` if the request is
    /// enqueued all the same and fails there.
    #[cold]
    fn put_off(&mut self, frame: &Frame, head: &[u8], route: Route) -> Option<usize> {
        let Frame { asks, request, .. } = frame;
        match route {
            Route::Wait(server) => self.clients.await_server(&mut self.base, asks.id, server),
            Route::NeedsEndpoints => self.clients.await_endpoints(&mut self.base, asks.id),
            Route::Refused(refusal) => {
                return Some(self.refuse_or_remove(frame, head, &Answer::Refused(refusal)));
            }
            Route::Fault(server, fault) if matches!(request.class, Class::Local(Local::Own)) => {
                self.clients.refuse_unasked(&mut self.base, *asks, request, head, (server, fault));
                return Some(head.len());
            }
            _ => return None,
        }
        self.clients.read_again(frame);
        Some(0)
    }

    /// Refuses a request. If the reason is its data, the old value of its key may have to go.
    #[cold]
    fn refuse_or_remove(&mut self, frame: &Frame, head: &[u8], answer: &Answer<'_>) -> usize {
        match self.remove(frame, head) {
            Removal::Nothing => {
                let Frame { asks, request, .. } = frame;
                self.clients.refuse_read(&mut self.base, *asks, request, head, answer);
                head.len()
            }
            Removal::Asked => head.len(),
            Removal::Waits(server) => {
                self.clients.await_server(&mut self.base, frame.asks.id, server);
                self.clients.read_again(frame);
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
        let asks = *asks;
        let Class::Single { writes: true } = request.class else { return Removal::Nothing };
        let Some(no_room) = client::no_room(&self.base, asks.pool(), request) else {
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
        let route = self.route(asks, &removal, &words);
        let route = route.expect("a request about one key has a route");
        if let Route::Wait(server) = route {
            self.base.spares.give(words);
            return Removal::Waits(server);
        }
        self.clients.skip_body(&mut self.base, asks.id, request);
        let id = self.clients.begin_removal(&mut self.base, asks, request, head, no_room);
        let sending = Sending { id, asks, request: &removal, head: &words };
        match asks.drops(request.quiet) {
            true => self.drop_sending(sending),
            false => self.send_along(sending, Data::none(), route),
        }
        self.base.spares.give(words);
        self.clients.pause_if_full(&mut self.base, asks.id);
        Removal::Asked
    }

    /// Handles a whole request according to its class.
    fn admit(
        &mut self,
        asks: Requester,
        request: &Request,
        head: &[u8],
        data: Data<'_>,
        route: Option<Route>,
    ) {
        if let Data::OnePiece(source) = &data
            && !has_trailer(source.bytes, request.trailer)
            && !bug!(SkipTrailer)
        {
            return self.clients.refuse_data(&mut self.base, asks, request, head);
        }
        self.count(asks, request);
        match (request.class, route) {
            (Class::Single { .. }, _) if asks.drops(request.quiet) => {
                self.drop_unasked(asks, request, head);
            }
            (Class::Fetch { ask, merge, idempotent }, _) => {
                let merge = merge && self.base.pools[asks.pool()].plan.merge_gets;
                let options =
                    SendOptions { ask, merge, idempotent, single_reply: false, has_room: false };
                self.ask_keys((asks, request, head), options, None);
            }
            (Class::Single { writes }, Some(route)) => {
                let id = self.clients.begin(&mut self.base, asks, request, head, writes);
                self.send_along(Sending { id, asks, request, head }, data, route);
            }
            (Class::Split { .. }, Some(route)) => self.ask_split(asks, request, head, route),
            (Class::Broadcast { .. }, _) => self.ask_broadcast(asks, request, head, route),
            (Class::Local(local), _) => self.answer_local(asks, (request, local), head),
            (Class::Single { .. } | Class::Split { .. } | Class::Refuse(_), _) => {
                unreachable!("it has a route, or was refused before its body was waited for")
            }
        }
        self.clients.pause_if_full(&mut self.base, asks.id);
    }

    fn count(&self, asks: Requester, request: &Request) {
        let counters = self.base.pools[asks.pool()].counters;
        // A joined read counts as many requests.
        let asked = if request.keep { self.base.keys.len().max(1) } else { 1 };
        counters.add(PoolCounter::Requests, asked as u64);
        if request.stores && !asks.drops(request.quiet) {
            counters.add(PoolCounter::Stores, 1);
        }
    }

    fn answer_local(&mut self, asks: Requester, (request, local): (&Request, Local), head: &[u8]) {
        match local {
            Local::Stats => self.publish(),
            Local::Own => self.make_room_for_conn_key(asks.pool()),
            _ => {}
        }
        self.clients.answer_local(&mut self.base, asks.id, (request, local), head);
        self.handle_link_events();
    }

    /// Sends each key of a request to its server, in messages with others.
    fn ask_keys(
        &mut self,
        (asks, request, head): (Requester, &Request, &[u8]),
        options: SendOptions,
        split: Option<Split>,
    ) {
        let asked = (asks, request, head);
        let id =
            self.clients.begin_keys(&mut self.base, asked, (options.ask, options.merge), split);
        self.servers.send_keys(&mut self.base, Sending { id, asks, request, head }, options);
        self.handle_link_events();
        self.clients.part_done(&mut self.base, id);
    }

    /// Sends a request whose keys may belong to several servers. Each server gets its own keys, and
    /// the replies are gathered into one answer. A request whose keys belong to one server goes
    /// there unchanged.
    fn ask_split(&mut self, asks: Requester, request: &Request, head: &[u8], route: Route) {
        let Class::Split { ask, element_per_key, writes, idempotent } = request.class else {
            unreachable!("judged by its class")
        };
        if asks.drops(request.quiet) && matches!(route, Route::Go { .. } | Route::Refused(_)) {
            return self.drop_unasked(asks, request, head);
        }
        if let Route::Spread = route {
            let options =
                SendOptions { ask, merge: false, idempotent, single_reply: true, has_room: writes };
            return self.ask_keys(
                (asks, request, head),
                options,
                Some(Split { element_per_key, writes }),
            );
        }
        let id = self.clients.begin(&mut self.base, asks, request, head, writes);
        if element_per_key {
            self.clients.expect_elements(id, self.base.keys.len());
        }
        self.send_along(Sending { id, asks, request, head }, Data::none(), route);
    }

    /// Sends a request to every server of the pool, or to its keys' server; some requests only
    /// where the operator allows it. If one server cannot be asked now, a change goes to none of
    /// them, since nothing would undo it on the others.
    fn ask_broadcast(
        &mut self,
        asks: Requester,
        request: &Request,
        head: &[u8],
        route: Option<Route>,
    ) {
        let Class::Broadcast { ask, writes, reach, .. } = request.class else {
            unreachable!("judged by its class")
        };
        let Proxy { base, clients, .. } = self;
        if let Some(why) = route::why_not_of_all(&base.pools[asks.pool()], &request.class) {
            let answer = Answer::Refused(Refusal::ByName(why));
            return clients.refuse_whole(base, asks, request, head, &answer);
        }
        if reach == Reach::Keys {
            let route = match route::common_server(base, asks, request, head) {
                Ok(None) => Route::Fault(None, Fault::NoServer),
                Ok(_) if asks.drops(request.quiet) => {
                    return self.drop_unasked(asks, request, head);
                }
                Ok(server) => Route::Go { ask, server },
                Err(apart) => Route::Apart(apart),
            };
            let id = clients.begin(base, asks, request, head, writes);
            return self.send_along(Sending { id, asks, request, head }, Data::none(), route);
        }
        if writes && asks.drops(request.quiet) {
            return self.drop_unasked(asks, request, head);
        }
        if let Some(Route::Fault(server, fault)) = route {
            return clients.refuse_unasked(base, asks, request, head, (server, fault));
        }
        let servers = &base.pools[asks.pool()].servers;
        let is_asked = |at: &usize| servers[*at].stage == Stage::Planned;
        let asked: Vec<usize> = (0..servers.len()).filter(is_asked).collect();
        let options = (ask, writes);
        let id = clients.begin_broadcast(base, (asks, request, head), options, asked.len());
        for (nth, server) in asked.into_iter().enumerate() {
            if bug!(FlushOneServer) && nth > 0 {
                self.clients.part_done(&mut self.base, id);
                continue;
            }
            self.send(Sending { id, asks, request, head }, (nth, server), ask, Data::none());
        }
        self.clients.part_done(&mut self.base, id);
    }

    /// Sends a request along its route, for the first time or once more.
    fn send_along(&mut self, sending: Sending<'_>, data: Data<'_>, route: Route) {
        let Sending { id, asks, request, head } = sending;
        let base = &mut self.base;
        let (ask, server) = match route {
            Route::Go { ask, server: Some(server) } => (ask, Some(server)),
            Route::Go { ask, server: None } => (ask, route::server_for(base, asks, request, head)),
            Route::Fault(server, fault) => {
                return self.clients.fail(base, Part::whole(id), server, fault, false);
            }
            // This happens only on a resend: a first attempt is read again, or put back.
            Route::Wait(server) => {
                let server = Some(server as u32);
                return self.clients.fail(base, Part::whole(id), server, Fault::Down, false);
            }
            Route::Refused(refusal) => return self.clients.refuse(base, id, refusal),
            Route::Apart(apart) => {
                let keys = apart.keys(asks, request, head);
                return self.clients.refuse_apart(base, id, keys, apart.servers());
            }
            Route::NeedsEndpoints | Route::Spread => unreachable!("it is asked of one server"),
        };
        let Some(server) = server else {
            return self.clients.fail(base, Part::whole(id), None, Fault::NoServer, false);
        };
        let step = match request.place {
            Place::Nth(_) | Place::From(_) => {
                let next = base.pools[asks.pool()].place_from(server as u32 + 1);
                Some((server as u32, next))
            }
            _ => None,
        };
        self.clients.set_asked(id, ask, step);
        if bug!(ForgetNoreply) && request.quiet == Quiet::Silent {
            return self.clients.part_done(&mut self.base, id);
        }
        self.send(sending, (0, server), ask, data);
    }

    fn send(
        &mut self,
        sending: Sending<'_>,
        (nth, server): (usize, usize),
        ask: proto::Ask,
        data: Data<'_>,
    ) {
        #[cfg(seeded_bugs)]
        self.remember(sending, ask);
        self.servers.send(&mut self.base, sending, (nth as u32, server), ask, data);
        self.handle_link_events();
    }

    /// Sends a request again when its pause is over.
    pub(super) fn ask_anew(&mut self, id: RequestId) {
        let Some(again) = self.clients.take_up(&mut self.base, id) else { return };
        let Again { asks, request, head, is_given_up } = again;
        let sending = Sending { id, asks, request: &request, head: &head };
        if is_given_up {
            return self.drop_sending(sending);
        }
        let route = self.route(asks, &request, &head);
        let route = route.expect("only what one server answers is asked again");
        self.send_along(sending, Data::none(), route);
    }

    /// Drops a request of a client that has left while all its input waited for a server's
    /// handshake.
    fn drop_unasked(&mut self, asks: Requester, request: &Request, head: &[u8]) {
        let server = match self.base.keys.is_empty() {
            // The request may go to any server, or to all: this is the server that its client
            // waited for.
            true => self.clients.awaited(asks.id),
            false => route::server_for(&mut self.base, asks, request, head),
        };
        let id = self.clients.begin(&mut self.base, asks, request, head, false);
        if let Some(server) = server {
            let counters = self.base.pools[asks.pool()].servers[server].counters;
            counters.add(ServerCounter::Held, 1);
            counters.add(ServerCounter::Dropped, 1);
        }
        let fault = if server.is_some() { Fault::Dropped } else { Fault::NoServer };
        let server = server.map(|at| at as u32);
        self.clients.fail(&mut self.base, Part::whole(id), server, fault, false);
    }

    /// Drops a request that was read before its client left, and which the client asks again on
    /// another connection.
    fn drop_sending(&mut self, sending: Sending<'_>) {
        let Sending { id, asks, request, head } = sending;
        let server = route::server_for(&mut self.base, asks, request, head);
        let server = server.or_else(|| self.base.pools[asks.pool()].any_place(asks.id.index()));
        let server = server.map(|at| at as u32);
        self.clients.fail(&mut self.base, Part::whole(id), server, Fault::Dropped, false);
    }
}
