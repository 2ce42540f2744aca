//! Transactions: requests are checked and queued as they come. Their end is in `execute.rs`.
//!
//! ```text
//!   serve_queued ── refused ────────────▶ the transaction is aborted
//!        ├── the proxy's own ───────────▶ its answer is kept
//!        └── one server's ──────────────▶ kept, if that is the server of those before
//! ```

use proto::{Answer, Class, InTransaction, Local, Place, Reach, Refusal, Work};
use shard::Distribution;

use super::Proxy;
use crate::base::buffer::{Source, has_trailer};
use crate::base::part::{Effort, Incoming, Requester};
use crate::base::plan::PubSub;
use crate::base::tenants::NOBODY;
use crate::client::{self, Frame, QueuedBody, QueuedRequest};
use crate::route::{self, Route};

/// Why a request cannot be queued.
pub(super) enum NotQueued {
    Refused(Refusal),
    /// No server has its keys now.
    NoServer,
    /// Its keys, and those before it, are on different servers: two of them, with their servers.
    Apart {
        keys: [Vec<u8>; 2],
        servers: [usize; 2],
    },
}

const TO_ALL: &str = "inside MULTI: it goes to every server of the pool";

impl Proxy {
    /// Handles a request of a client that is in a transaction, or listens to topics; returns how
    /// many bytes it used. None: it is served as any other, and has ended the transaction.
    #[cold]
    pub(super) fn serve_queued(&mut self, frame: &mut Frame, rest: Source<'_>) -> Option<usize> {
        let id = frame.asks.id;
        let head = &rest.bytes[..frame.request.head as usize];
        if let Some(used) = self.clients.serve_subscriber(&mut self.base, frame, head) {
            return Some(used);
        }
        if !self.clients.is_in_transaction(id) {
            return None;
        }
        let Frame { asks, request, .. } = frame;
        let row = asks.protocol.commands().get(usize::from(request.command));
        let is_end = row.is_some_and(|row| row.class == Class::Local(Local::Execute));
        if is_end {
            return Some(self.execute(frame, head));
        }
        if request.class == Class::Local(Local::Discard) {
            if let Some(used) = self.judge_queued(frame, rest) {
                if used > 0 {
                    self.end_bound(id);
                }
                return Some(used);
            }
            self.end_bound(id);
            self.count(&frame.incoming(head));
            self.clients.answer(&mut self.base, id, &frame.request, head, &Answer::Ok);
            self.clients.pause_if_full(&mut self.base, id);
            return Some(head.len());
        }
        Some(match asks.protocol.in_transaction(request, rest.bytes) {
            InTransaction::Nothing => head.len(),
            InTransaction::AtOnce => {
                self.clients.end_transaction(&mut self.base, id);
                return None;
            }
            what => {
                if let Some(used) = self.judge_queued(frame, rest) {
                    if used > 0 {
                        self.clients.abort_transaction(&mut self.base, id);
                    }
                    return Some(used);
                }
                match what {
                    InTransaction::Harmless(refusal) => {
                        let answer = Answer::Refused(refusal);
                        self.clients.refuse_read(&mut self.base, &frame.incoming(head), &answer);
                        head.len()
                    }
                    InTransaction::Refused(refusal) => {
                        self.refuse_queued(frame, head, &Answer::Refused(refusal))
                    }
                    InTransaction::Answered => self.queue_own(frame, head),
                    InTransaction::Selects(database) => self.queue_select(frame, head, database),
                    _ => self.queue_read(frame, rest),
                }
            }
        })
    }

    /// Has a client's tenant judge a request that is to be queued.
    pub(super) fn judge_queued(&mut self, frame: &Frame, rest: Source<'_>) -> Option<usize> {
        if frame.asks.tenant == NOBODY {
            return None;
        }
        self.clients.judge(&mut self.base, frame, rest.bytes)
    }

    /// Refuses a request, and with it the transaction that it belongs to.
    fn refuse_queued(&mut self, frame: &Frame, head: &[u8], answer: &Answer<'_>) -> usize {
        self.clients.refuse_read(&mut self.base, &frame.incoming(head), answer);
        self.clients.abort_transaction(&mut self.base, frame.asks.id);
        head.len()
    }

    /// Returns why there is no room for so many bytes more of a transaction, if there is none.
    fn no_room_to_queue(&self, asks: &Requester, more: u64) -> Option<String> {
        let bound = self.clients.no_room_to_queue(asks.id, more);
        let has_room = self.base.has_room_for(asks, more as usize);
        bound.or_else(|| (!has_room).then(|| "out of memory to queue it".to_string()))
    }

    /// Queues a request that the proxy answers.
    fn queue_own(&mut self, frame: &Frame, head: &[u8]) -> usize {
        let Frame { asks, request, .. } = frame;
        let Class::Local(local) = request.class else { unreachable!("the proxy answers it") };
        let route = self.route(&frame.incoming(head)).map(|route| self.in_time(asks, route));
        if let Some(route @ (Route::Wait(_) | Route::NeedsEndpoints)) = route {
            return self.put_off(frame, head, route).unwrap_or(0);
        }
        let incoming = &frame.incoming(head);
        if let Some(answer) = client::refusal(&self.base, asks, request, false) {
            return self.refuse_queued(frame, head, &answer);
        }
        if let Some(why) = self.no_room_to_queue(asks, request.len()) {
            return self.refuse_queued(frame, head, &Answer::Failed(&why));
        }
        let words = self.clients.local_words(&mut self.base, asks.id, (request, head), local);
        if let Some(why) = self.no_room_to_queue(asks, words.len() as u64) {
            return self.refuse_queued(frame, head, &Answer::Failed(&why));
        }
        self.count(incoming);
        self.clients.queue_answer(&mut self.base, asks.id, &words);
        self.clients.answer(&mut self.base, asks.id, request, head, &Answer::Queued);
        self.clients.pause_if_full(&mut self.base, asks.id);
        head.len()
    }

    /// Queues a request for another database, which its server executes among the others on a link
    /// of the client's own.
    fn queue_select(&mut self, frame: &Frame, head: &[u8], database: u32) -> usize {
        let Frame { asks, request, .. } = frame;
        if database >= self.base.pools[asks.pool()].plan.databases {
            return self.queue_own(frame, head);
        }
        if let Some(why) = self.no_room_to_queue(asks, request.len()) {
            return self.refuse_queued(frame, head, &Answer::Failed(&why));
        }
        let incoming = &frame.incoming(head);
        self.count(incoming);
        let Proxy { base, clients, .. } = self;
        base.keys.clear();
        let body = QueuedBody::OnePiece(Source::plain(&[]));
        let queued = QueuedRequest { server: None, key: None, effort: Effort::Quick, body };
        clients.queue(base, incoming, queued);
        clients.queue_select(asks.id, database);
        clients.answer(base, asks.id, request, head, &Answer::Queued);
        clients.pause_if_full(base, asks.id);
        head.len()
    }

    /// Queues a request for a server, or begins to read its body.
    fn queue_read(&mut self, frame: &Frame, rest: Source<'_>) -> usize {
        let Frame { asks, request, .. } = frame;
        let head = &rest.bytes[..request.head as usize];
        let incoming = &frame.incoming(head);
        if let Some(answer) = client::refusal(&self.base, asks, request, false) {
            return self.refuse_queued(frame, head, &answer);
        }
        if let Some(why) = self.no_room_to_queue(asks, request.len()) {
            return self.refuse_queued(frame, head, &Answer::Failed(&why));
        }
        match usize::try_from(request.len()) {
            Ok(whole) if whole <= rest.bytes.len() => {
                let body = rest.part(head.len(), whole);
                let is_whole = has_trailer(body.bytes, request.trailer);
                self.queue(incoming, is_whole, QueuedBody::OnePiece(body));
                whole
            }
            _ => {
                self.clients.begin_body(&mut self.base, asks.id, *request, head);
                head.len()
            }
        }
    }

    /// Queues a request whose body has come in several reads.
    pub(super) fn queue_whole(&mut self, asks: Requester, mut body: client::Body) {
        let data = std::mem::take(&mut body.data);
        let incoming = &Incoming { asks: &asks, request: &body.request, head: &body.head };
        self.queue(incoming, body.has_trailer(), QueuedBody::Assembled(data));
        self.base.spares.give(body.head);
    }

    /// Queues a whole request, if it ends as its head says and its keys are with those before it.
    fn queue(&mut self, incoming: &Incoming<'_>, is_whole: bool, body: QueuedBody<'_>) {
        let Incoming { asks, request, head } = *incoming;
        if !is_whole {
            self.clients.refuse_data(&mut self.base, incoming);
            return self.clients.abort_transaction(&mut self.base, asks.id);
        }
        let server = match self.block_route(incoming) {
            Ok(server) => server,
            Err(why) => return self.refuse_not_queued(incoming, &why),
        };
        let effort = match request.work {
            Work::Quick => Effort::Quick,
            _ => self.effort_of(asks, request, head),
        };
        self.count(incoming);
        let Proxy { base, clients, .. } = self;
        let mut scratch = Vec::new();
        let key = base.keys.first().copied();
        let key = key.map(|key| asks.protocol.key(request, head, key, &mut scratch));
        clients.queue(base, incoming, QueuedRequest { server, key, effort, body });
        clients.answer(base, asks.id, request, head, &Answer::Queued);
        clients.pause_if_full(base, asks.id);
    }

    /// Refuses a request that has no place in its client's transaction.
    fn refuse_not_queued(&mut self, incoming: &Incoming<'_>, why: &NotQueued) {
        let Incoming { asks, .. } = *incoming;
        let Proxy { base, clients, .. } = self;
        let pool = &base.pools[asks.pool()];
        let (text, labels);
        let answer = match why {
            NotQueued::Refused(refusal) => Answer::Refused(*refusal),
            NotQueued::NoServer => {
                text = format!("{}: {}", pool.plan.name, pool.no_server());
                Answer::Failed(&text)
            }
            NotQueued::Apart { keys: [one, other], servers } => {
                labels = servers.map(|at| pool.servers[at].plan.label.clone());
                let servers = [&labels[0][..], &labels[1][..]];
                Answer::Apart { keys: [one, other], servers, tag: pool.plan.hash_tag }
            }
        };
        clients.refuse_whole(base, incoming, &answer);
        clients.abort_transaction(base, asks.id);
        clients.pause_if_full(base, asks.id);
    }

    /// Returns the server of a request, if it is not any: that of the requests before it.
    fn block_route(&mut self, incoming: &Incoming<'_>) -> Result<Option<usize>, NotQueued> {
        let asks = incoming.asks;
        let Some(server) = self.own_route(incoming)? else { return Ok(None) };
        let watched = self.standing_watch(asks).map(|one| (one.server, &one.key[..]));
        let before = self.clients.queued_key(asks.id).or(watched);
        let is_random = self.base.pools[asks.pool()].plan.distribution == Distribution::Random;
        match before {
            Some((one, _)) if is_random => Ok(Some(one)),
            Some((one, key)) if one != server && !bug!(QueueApart) => {
                let other = self.first_key(incoming);
                Err(NotQueued::Apart { keys: [key.to_vec(), other], servers: [one, server] })
            }
            _ => Ok(Some(server)),
        }
    }

    fn first_key(&self, incoming: &Incoming<'_>) -> Vec<u8> {
        let Incoming { asks, request, head } = *incoming;
        let Some(key) = self.base.keys.first() else { return Vec::new() };
        asks.protocol.key(request, head, *key, &mut Vec::new()).to_vec()
    }

    /// As `block_route`, for a request by itself.
    pub(super) fn own_route(
        &mut self,
        incoming: &Incoming<'_>,
    ) -> Result<Option<usize>, NotQueued> {
        let Incoming { asks, request, .. } = *incoming;
        let refused = |why| Err(NotQueued::Refused(Refusal::ByName(why)));
        let base = &mut self.base;
        let pool = &base.pools[asks.pool()];
        if request.database > 0 && request.database >= pool.plan.databases {
            return Err(NotQueued::Refused(Refusal::NoDatabase));
        }
        if let Some(why) = route::why_not_of_all(pool, &request.class) {
            return Err(NotQueued::Refused(why));
        }
        let is_of_keys = match request.class {
            // Where subscriptions stand on all servers, any server will do.
            Class::Broadcast { reach: Reach::Channel(_), .. }
                if pool.plan.pubsub == PubSub::All =>
            {
                return Ok(None);
            }
            Class::Broadcast { reach: Reach::Channel(_), .. } => true,
            Class::Broadcast { reach, .. } => reach == Reach::Keys,
            _ => request.place == Place::Keys,
        };
        if is_of_keys {
            return match route::common_server(base, incoming) {
                Ok(Some(server)) => Ok(Some(server)),
                Ok(None) => Err(NotQueued::NoServer),
                Err(apart) => {
                    let (keys, servers) = (apart.keys(incoming), apart.servers());
                    Err(NotQueued::Apart { keys, servers })
                }
            };
        }
        let is_everywhere = matches!(request.class, Class::Broadcast { .. });
        match request.place {
            _ if is_everywhere && pool.planned() != 1 => refused(TO_ALL),
            Place::Sole if pool.planned() != 1 => refused(route::NOT_SOLE),
            Place::Own if !pool.plan.private => refused(route::NOT_OWN),
            Place::Own if pool.planned() != 1 => refused(route::NOT_ALONE),
            Place::Any if !is_everywhere => Ok(None),
            _ => pool.place_from(0).map(|at| Some(at as usize)).ok_or(NotQueued::NoServer),
        }
    }
}
