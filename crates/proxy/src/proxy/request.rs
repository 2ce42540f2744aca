//! From a client's bytes to the queues of links.

use std::rc::Rc;

use metrics::{PoolCounter, ServerCounter};
use proto::{Answer, Ask, Class, Place, Quiet, Reach, Work};

use super::{Proxy, class};
use crate::base::block::Block;
use crate::base::buffer::{Source, has_trailer};
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::limits;
use crate::base::part::{Data, Effort, Incoming, LinkClass, Part, RequestId, Requester};
use crate::base::tenants::NOBODY;
use crate::client::{self, Frame, Input, Next, SplitRequest};
use crate::route::{self, Route};
use crate::server::SendOptions;

impl Proxy {
    pub(super) fn receive_client(&mut self, id: ConnId, source: Source<'_>) {
        self.base.note_special();
        match self.clients.take_input(&mut self.base, id, source.bytes) {
            Input::Ignored => return,
            Input::AsTheyCame => {
                let used = self.read(id, source, None);
                self.clients.keep_rest(&mut self.base, id, &source.bytes[used..]);
            }
            Input::Kept => self.read_kept(id),
            Input::Later => {}
        }
        self.clients.acknowledge(&mut self.base, id);
    }

    /// Reads requests from the bytes that are kept of a client's input.
    pub(super) fn read_kept(&mut self, id: ConnId) {
        for _ in 0..limits::KEPT_BLOCKS_MAX {
            let Some(kept) = self.clients.take_kept(id) else { return };
            if !self.read_all_kept(id, kept) {
                return;
            }
        }
        // Bodies are no work, and others wait for this turn.
        self.clients.await_turn(&mut self.base, id);
    }

    /// As `read_kept`, for these bytes. Returns whether there are more, to be read now.
    fn read_all_kept(&mut self, id: ConnId, kept: Vec<u8>) -> bool {
        if kept.len() <= limits::BLOCK {
            let used = self.read(id, Source::plain(&kept), None);
            return self.clients.return_kept(&mut self.base, id, kept, used);
        }
        let block = Rc::new(Block::from(kept));
        let weak = Rc::downgrade(&block);
        let used = self.read(id, Source::plain(&block), Some(&block));
        match Rc::try_unwrap(block) {
            Ok(block) => self.clients.return_kept(&mut self.base, id, block.into_bytes(), used),
            // Links have a request now, by reference.
            Err(block) => {
                self.base.memory.keep_block(&block, weak);
                self.clients.return_kept(&mut self.base, id, block[used..].to_vec(), 0)
            }
        }
    }

    /// Reads as many requests as there are; returns how many bytes they took. `block` holds the
    /// same bytes, if a large request among them may be kept by reference.
    fn read(&mut self, id: ConnId, source: Source<'_>, block: Option<&Rc<Block>>) -> usize {
        let len = source.bytes.len();
        let mut frame = None;
        let mut at = 0;
        while at < len {
            let rest = source.part(at, len);
            let next = self.clients.next_frame(&mut self.base, id, rest, &mut frame);
            let used = match (next, &mut frame) {
                (Next::Used(used), _) => used,
                (next @ (Next::Frame | Next::Queued), Some(frame)) => {
                    let is_queued = matches!(next, Next::Queued);
                    let block = block.map(|block| (block, at));
                    let used = match is_queued {
                        _ if self.base.is_special => {
                            Some(self.serve_specially(frame, rest, is_queued, block))
                        }
                        true => self.serve_queued(frame, rest),
                        false => None,
                    };
                    match used {
                        Some(used) => used,
                        None => self.serve(frame, rest, block),
                    }
                }
                (Next::Frame | Next::Queued, None) => 0,
                (Next::Whole(used, asks, body), _) => {
                    self.serve_whole(asks, *body);
                    used
                }
                (Next::NoRoom(used, asks, body), _) => {
                    self.refuse_begun(asks, *body);
                    used
                }
            };
            // A request that could not be sent is answered before the next one is read.
            self.handle_link_events();
            if used == 0 {
                break;
            }
            at += used;
        }
        at
    }

    /// Handles the request at the start of `rest`, whose head has been read; returns its length.
    #[inline(always)]
    pub(super) fn serve(
        &mut self,
        frame: &mut Frame,
        rest: Source<'_>,
        block: Option<(&Rc<Block>, usize)>,
    ) -> usize {
        if frame.asks.tenant != NOBODY
            && let Some(used) = self.clients.judge(&mut self.base, frame, rest.bytes)
        {
            return used;
        }
        let head = &rest.bytes[..frame.request.head as usize];
        let len = frame.request.len();
        let is_usual = class::is_usual(&frame.asks, &frame.request, len, &self.base.limits);
        if !is_usual && !self.take_class(frame, head) {
            return 0;
        }
        let large = match block {
            None => None,
            Some(block) => Data::large_head(&frame.incoming(head), block),
        };
        let is_kept = large.is_some();
        let refusal = client::refusal(&self.base, &frame.asks, &frame.request, is_kept);
        if let Some(answer) = refusal {
            return self.refuse_or_remove(frame, head, &answer);
        }
        let frame = &*frame;
        let Frame { asks, request, .. } = frame;
        let incoming = &frame.incoming(head);
        // The keys of a read have a route each.
        let mut route = match request.class {
            Class::Fetch { .. } => None,
            _ => self.route(incoming),
        };
        if let Some(other) = &mut route
            && !matches!(other, Route::Go { .. } | Route::Spread)
        {
            *other = self.in_time(asks, *other);
            // One whose body is still to come waits when that is there.
            let is_whole = || usize::try_from(len).is_ok_and(|len| len <= rest.bytes.len());
            if (!matches!(other, Route::Wait(_)) || is_whole())
                && let Some(used) = self.put_off(frame, head, *other)
            {
                return used;
            }
        }
        match usize::try_from(len) {
            Ok(whole) if whole <= rest.bytes.len() => {
                let data = match large {
                    None => Data::OnePiece(rest.part(head.len(), whole)),
                    Some(large) => large,
                };
                self.admit(incoming, data, route);
                whole
            }
            _ => {
                self.clients.begin_body(&mut self.base, asks.id, *request, head);
                head.len()
            }
        }
    }

    /// Handles a request whose body has come whole, in several reads.
    fn serve_whole(&mut self, mut asks: Requester, mut body: client::Body) {
        if self.clients.is_in_transaction(asks.id) {
            return self.queue_whole(asks, body);
        }
        let data = std::mem::take(&mut body.data);
        if body.request.work != Work::Quick {
            asks.effort = self.effort_of(&asks, &body.request, &body.head);
        }
        let asks = &asks;
        let incoming = &Incoming { asks, request: &body.request, head: &body.head };
        if !body.has_trailer() {
            self.clients.refuse_data(&mut self.base, incoming);
            return self.base.spares.give(body.head);
        }
        let route = self.route(incoming).map(|route| self.in_time(asks, route));
        if let Some(Route::Wait(server)) = route {
            body.data = data;
            return self.clients.put_back(&mut self.base, asks.id, body, server);
        }
        self.admit(incoming, Data::Assembled(data), route);
        self.base.spares.give(body.head);
    }

    /// Handles a whole request according to its class.
    fn admit(&mut self, incoming: &Incoming<'_>, data: Data<'_>, route: Option<Route>) {
        let Incoming { asks, request, .. } = *incoming;
        if let Data::OnePiece(source) = &data
            && !has_trailer(source.bytes, request.trailer)
            && !bug!(SkipTrailer)
        {
            return self.clients.refuse_data(&mut self.base, incoming);
        }
        self.count(incoming);
        match (request.class, route) {
            (Class::Single { .. }, _) if incoming.is_dropped() => self.drop_unasked(incoming),
            (Class::Fetch { ask, merge, idempotent }, _) => {
                let merge = merge && self.base.pools[asks.pool()].plan.merge_gets;
                let options =
                    SendOptions { ask, merge, idempotent, single_reply: false, has_room: false };
                self.ask_keys(incoming, &options, None, None);
            }
            (Class::Single { .. }, Some(route)) if asks.effort == Effort::Watches => {
                self.watch(incoming, data, route);
            }
            (Class::Single { writes }, Some(route)) => {
                let id = self.clients.begin(&mut self.base, incoming, writes);
                self.send_along(id, incoming, data, route);
            }
            (Class::Split { .. }, Some(route)) => self.ask_split(incoming, &data, route),
            (Class::Broadcast { .. }, _) => self.ask_broadcast(incoming, &data, route),
            (Class::Local(local), _) => self.answer_local(incoming, local),
            (Class::Single { .. } | Class::Split { .. } | Class::Refuse(_), _) => {
                unreachable!("it has a route, or was refused before its body was waited for")
            }
        }
        self.clients.pause_if_full(&mut self.base, asks.id);
    }

    pub(super) fn count(&self, incoming: &Incoming<'_>) {
        let counters = self.base.pools[incoming.asks.pool()].counters;
        // A joined read counts as many requests.
        let asked = if incoming.request.keep { self.base.keys.len().max(1) } else { 1 };
        counters.add(PoolCounter::Requests, asked as u64);
        if incoming.request.stores && !incoming.is_dropped() {
            counters.add(PoolCounter::Stores, 1);
        }
    }

    /// Sends each key of a request to its server, in messages with others.
    fn ask_keys(
        &mut self,
        incoming: &Incoming<'_>,
        options: &SendOptions,
        split: Option<SplitRequest>,
        block: Option<Source<'_>>,
    ) {
        let id = self.clients.begin_keys(&mut self.base, incoming, options.ask, split);
        self.servers.send_keys(&mut self.base, id, incoming, options, block);
        self.clients.settle_part(&mut self.base, id);
    }

    /// Sends a request whose keys may belong to several servers. Each server gets its own keys, and
    /// the replies are gathered into one answer. A request whose keys belong to one server goes
    /// there unchanged.
    fn ask_split(&mut self, incoming: &Incoming<'_>, data: &Data<'_>, route: Route) {
        let Class::Split { ask, element_per_key, writes, idempotent } = incoming.request.class
        else {
            unreachable!("judged by its class")
        };
        if incoming.is_dropped() && matches!(route, Route::Go { .. } | Route::Refused(_)) {
            return self.drop_unasked(incoming);
        }
        if let Route::Spread = route {
            let options = SendOptions::split(ask, writes, idempotent);
            let split = SplitRequest { element_per_key, writes };
            let block = match data {
                Data::Head(head) => Some(*head),
                Data::OnePiece(_) | Data::Assembled(_) => None,
            };
            return self.ask_keys(incoming, &options, Some(split), block);
        }
        let id = self.clients.begin(&mut self.base, incoming, writes);
        if element_per_key {
            self.clients.expect_elements(id, self.base.keys.len());
        }
        self.send_along(id, incoming, data.again(), route);
    }

    /// Sends a request to every server of the pool, or to its keys' server; some requests only
    /// where the operator allows it. If one server cannot be asked now, a change goes to none of
    /// them, since nothing would undo it on the others.
    fn ask_broadcast(&mut self, incoming: &Incoming<'_>, data: &Data<'_>, route: Option<Route>) {
        let Class::Broadcast { ask, writes, reach, .. } = incoming.request.class else {
            unreachable!("judged by its class")
        };
        let Proxy { base, clients, .. } = self;
        let pool = &base.pools[incoming.asks.pool()];
        if let Some(why) = route::why_not_of_all(pool, &incoming.request.class) {
            return clients.refuse_whole(base, incoming, &Answer::Refused(why));
        }
        if reach == Reach::Keys {
            let route = match route::common_server(base, incoming) {
                Ok(None) => Route::Fault(None, Fault::NoServer),
                Ok(_) if incoming.is_dropped() => return self.drop_unasked(incoming),
                Ok(server) => Route::Go { ask, server },
                Err(apart) => Route::Apart(apart),
            };
            let id = clients.begin(base, incoming, writes);
            return self.send_along(id, incoming, data.again(), route);
        }
        if let Reach::Channel(kind) = reach {
            return self.publish_message(incoming, data, (ask, kind));
        }
        if writes && incoming.is_dropped() {
            return self.drop_unasked(incoming);
        }
        if let Some(Route::Fault(server, fault)) = route {
            return clients.refuse_unasked(base, incoming, (server, fault));
        }
        let is_asked = |at: &usize| pool.servers[*at].is_one_of_all();
        let asked: Vec<usize> = (0..pool.servers.len()).filter(is_asked).collect();
        let id = clients.begin_broadcast(base, incoming, (ask, writes), asked.len());
        for (nth, server) in asked.into_iter().enumerate() {
            if bug!(FlushOneServer) && nth > 0 {
                self.clients.settle_part(&mut self.base, id);
                continue;
            }
            let part = Part { request: id, slot: nth as u32 };
            self.send(part, incoming, (server, ask), data.again());
        }
        self.clients.settle_part(&mut self.base, id);
    }

    /// Sends a request along its route, for the first time or once more.
    pub(super) fn send_along(
        &mut self,
        id: RequestId,
        incoming: &Incoming<'_>,
        data: Data<'_>,
        route: Route,
    ) {
        let part = Part::whole(id);
        let Proxy { base, clients, .. } = self;
        let (ask, server) = match route {
            Route::Go { ask, server: Some(server) } => (ask, Some(server)),
            Route::Go { ask, server: None } => (ask, route::server_for(base, incoming)),
            Route::Fault(server, fault) => return clients.fail(base, part, server, fault, false),
            // This happens only on a resend: a first attempt is read again, or put back.
            Route::Wait(server) => {
                return clients.fail(base, part, Some(server as u32), Fault::Down, false);
            }
            Route::Refused(refusal) => return clients.refuse(base, id, refusal),
            Route::Apart(apart) => {
                let (keys, servers) = (apart.keys(incoming), apart.servers());
                return clients.refuse_apart(base, id, keys, servers);
            }
            Route::NeedsEndpoints
            | Route::NeedsWorkers
            | Route::Spread
            | Route::AfterAll
            | Route::UnlessBusy
            | Route::Busy => unreachable!("it is asked of one server"),
        };
        let Some(server) = server else {
            return clients.fail(base, part, None, Fault::NoServer, false);
        };
        let step = match incoming.request.place {
            Place::Nth(_) | Place::From(_) => {
                let next = base.pools[incoming.asks.pool()].place_from(server as u32 + 1);
                Some((server as u32, next))
            }
            _ => None,
        };
        clients.set_asked(id, ask, step);
        if bug!(ForgetNoreply) && incoming.request.quiet == Quiet::Silent {
            return clients.settle_part(base, id);
        }
        self.send(part, incoming, (server, ask), data);
    }

    fn send(
        &mut self,
        part: Part,
        incoming: &Incoming<'_>,
        (server, ask): (usize, Ask),
        data: Data<'_>,
    ) {
        #[cfg(seeded_bugs)]
        self.remember(part.request, incoming, ask);
        self.servers.send(&mut self.base, part, incoming, (server, ask), data);
    }

    /// Sends a request again when its pause is over.
    pub(super) fn ask_anew(&mut self, id: RequestId) {
        let Some(mut again) = self.clients.take_up(&mut self.base, id) else { return };
        if again.request.work != Work::Quick {
            again.asks.effort = self.effort_of(&again.asks, &again.request, &again.head);
        }
        let incoming = &Incoming { asks: &again.asks, request: &again.request, head: &again.head };
        if again.is_given_up {
            return self.drop_begun(id, incoming);
        }
        // It would overtake what its client is owed on the link that it took before.
        if again.asks.class == LinkClass::Moved && self.servers.owes(again.asks.id) {
            if !self.clients.pause_again(&mut self.base, id) {
                let server = route::server_for(&mut self.base, incoming).map(|at| at as u32);
                let (base, part) = (&mut self.base, Part::whole(id));
                self.clients.fail(base, part, server, Fault::QueueTimeout, false);
            }
            return;
        }
        match (self.route(incoming), again.request.class) {
            // Its keys belonged to one server when it was first sent, and do not any more.
            (Some(Route::Spread), Class::Split { ask, element_per_key, writes, idempotent }) => {
                let options = SendOptions::split(ask, writes, idempotent);
                let split = SplitRequest { element_per_key, writes };
                let base = &mut self.base;
                self.clients.open_keys(base, id, incoming, ask, Some(split));
                self.servers.send_keys(base, id, incoming, &options, None);
                self.clients.settle_part(base, id);
            }
            // It has other servers by now, and the link to one of them is not up.
            (Some(Route::Wait(_)), _) if self.clients.rest_again(&mut self.base, id) => {}
            (Some(route), _) => self.send_along(id, incoming, Data::none(), route),
            (None, _) => {
                self.clients.fail(&mut self.base, Part::whole(id), None, Fault::NoServer, false);
            }
        }
    }

    /// Drops a request whose client has left while it waited for a server's handshake.
    fn drop_unasked(&mut self, incoming: &Incoming<'_>) {
        let Proxy { base, clients, .. } = self;
        let server = match base.keys.is_empty() {
            // The request may go to any server, or to all: this is the server that its client
            // waited for.
            true => clients.awaited(incoming.asks.id),
            false => route::server_for(base, incoming),
        };
        let id = clients.begin(base, incoming, false);
        if let Some(server) = server {
            let counters = base.pools[incoming.asks.pool()].servers[server].counters;
            counters.add(ServerCounter::Held, 1);
            counters.add(ServerCounter::Dropped, 1);
        }
        let fault = if server.is_some() { Fault::Dropped } else { Fault::NoServer };
        let server = server.map(|at| at as u32);
        clients.fail(base, Part::whole(id), server, fault, false);
    }

    /// Drops a request that has begun, whose client asks for it again on another connection.
    pub(super) fn drop_begun(&mut self, id: RequestId, incoming: &Incoming<'_>) {
        let Proxy { base, clients, .. } = self;
        let asks = incoming.asks;
        let server = route::server_for(base, incoming);
        let server = server.or_else(|| base.pools[asks.pool()].any_place(asks.id.index()));
        let server = server.map(|at| at as u32);
        clients.fail(base, Part::whole(id), server, Fault::Dropped, false);
    }
}
