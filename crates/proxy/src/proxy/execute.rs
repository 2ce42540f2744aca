//! The end of a transaction: what is queued is checked once more, sent as one block and answered
//! once.
//!
//! ```text
//!   execute ── all its own ──────────────▶ answered
//!        └── the server accepts blocks ─▶ sent as one request
//!                    └── it selects a database ─▶ its client waits, and is there afterwards
//! ```

use metrics::PoolCounter;
use proto::{Answer, Ask, Class, InTransaction, Parsed, Reach, Refusal, Request, Resume};

use super::Proxy;
use super::transaction::NotQueued;
use crate::base::buffer::Source;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Incoming, LinkClass, Part, Requester};
use crate::client::{self, Frame};
use crate::route::Route;
use crate::server::Block;

/// Why a block that was queued under another plan is not sent.
enum Unfit {
    /// Its keys are on different servers by now.
    Moved,
    NoServer,
    Refused(Refusal),
    /// The client's tenant may not do this any more.
    Denied(String),
}

impl Unfit {
    /// Returns its own answer; None: that of a server that cannot be asked.
    fn answer(&self) -> Option<Answer<'_>> {
        match self {
            Unfit::Moved => Some(Answer::Failed(MOVED)),
            Unfit::NoServer => None,
            Unfit::Refused(refusal) => Some(Answer::Refused(*refusal)),
            Unfit::Denied(words) => Some(Answer::Denied(words)),
        }
    }
}

const MOVED: &str =
    "the keys of the transaction are on different servers by now; nothing was executed";

impl Proxy {
    /// Has a transaction executed by its server, or not at all; returns how many bytes it used.
    pub(super) fn execute(&mut self, frame: &mut Frame, head: &[u8]) -> usize {
        let id = frame.asks.id;
        if let Some(used) = self.judge_queued(frame, Source::plain(head)) {
            if used > 0 {
                self.drop_block(frame);
            }
            return used;
        }
        let Some(queued) = self.clients.queued(id) else { return head.len() };
        let unwatched = self.clients.unwatched(&self.base, id);
        let first = unwatched.unwrap_or(self.clients.aborted_for(id)).to_vec();
        let refusal = match frame.request.class {
            Class::Refuse(refusal) => Some(Answer::Refused(refusal)),
            _ if queued.aborted || unwatched.is_some() => Some(Answer::Aborted(&first)),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.drop_block(frame);
            self.clients.refuse_read(&mut self.base, &frame.incoming(head), &refusal);
            return head.len();
        }
        let watched = self.clients.watched(id).map(|one| one.server);
        if watched.is_some() && self.standing_watch(&frame.asks).is_none() {
            self.end_bound(id);
            self.count(&frame.incoming(head));
            self.clients.answer_unexecuted(&mut self.base, id, &frame.request);
            self.clients.pause_if_full(&mut self.base, id);
            return head.len();
        }
        if queued.requests == 0 && watched.is_none() {
            self.count(&frame.incoming(head));
            self.clients.answer_queued(&mut self.base, id, &frame.request, head);
            self.clients.pause_if_full(&mut self.base, id);
            return head.len();
        }
        let pool = frame.asks.pool();
        let is_checked = queued.epoch == (self.base.plans, self.base.pools[pool].rings);
        let server = match is_checked || bug!(TrustOldPlan) {
            true => Ok(queued.server),
            false => self.check_anew(&frame.asks),
        };
        let server = match watched.map_or(server, |server| Ok(Some(server))) {
            Ok(Some(server)) => Ok(server),
            Ok(None) => self.base.pools[pool].any_place(id.index()).ok_or((None, Fault::NoServer)),
            Err(unfit) => match unfit.answer() {
                None => Err((None, Fault::NoServer)),
                Some(answer) => {
                    self.drop_block(frame);
                    let incoming = &frame.incoming(head);
                    self.clients.refuse_read(&mut self.base, incoming, &answer);
                    return head.len();
                }
            },
        };
        let accepts = server.and_then(|server| {
            let accepts = self.servers.accepts_blocks(&mut self.base, &frame.asks, server);
            accepts.map_err(|fault| (Some(server as u32), fault))
        });
        match (accepts, server) {
            (Ok(true), Ok(server)) => self.send_block(frame, head, server),
            (Ok(_), Ok(server)) => match self.in_time(&frame.asks, Route::Wait(server)) {
                Route::Fault(server, fault) => self.refuse_block(frame, head, (server, fault)),
                wait => self.put_off(frame, head, wait).unwrap_or(head.len()),
            },
            (Err(why), _) | (_, Err(why)) => self.refuse_block(frame, head, why),
        }
    }

    /// Answers the end of a transaction of which nothing is sent, since its server cannot be asked.
    fn refuse_block(&mut self, frame: &Frame, head: &[u8], why: (Option<u32>, Fault)) -> usize {
        self.drop_block(frame);
        self.count(&frame.incoming(head));
        self.clients.refuse_unasked(&mut self.base, &frame.incoming(head), why);
        head.len()
    }

    /// Sends what is queued as one request.
    fn send_block(&mut self, frame: &mut Frame, head: &[u8], server: usize) -> usize {
        let id = frame.asks.id;
        let Some(queued) = self.clients.queued(id) else { return head.len() };
        let expected =
            self.clients.expected_of_block(&self.base, &frame.incoming(head), queued.writes);
        frame.asks.expected = expected.unwrap_or(frame.asks.expected);
        let command = frame.request.command;
        let is_watched = self.clients.watched(id).is_some();
        let class = self.judge_block(frame, &queued, server);
        if !self.enter_class(frame, class) {
            return 0;
        }
        if class == LinkClass::Private && !is_watched && !self.clear_watches(frame) {
            return 0;
        }
        if queued.database.is_some() && self.servers.await_idle(id) {
            self.clients.await_owed(&mut self.base, id);
            self.clients.read_again(&mut self.base, frame);
            return 0;
        }
        let taken = self.clients.take_transaction(&mut self.base, id);
        let Some((mut out, answers)) = taken else { return head.len() };
        self.clients.end_watch(id);
        if queued.requests == 0 {
            // Its server has to tell whether what is watched has changed.
            out.open(&mut self.base.spares);
            self.base.pools[frame.asks.pool()].upstream.open_block(out.copied());
        }
        self.base.keys.clear();
        let (ask, writes) = (Ask { command }, queued.writes);
        // It is charged for all that it sends.
        let request = Request { body: out.len() as u64, ..frame.request };
        let has_answers = !answers.is_empty();
        let class = match has_answers {
            false => Class::Single { writes },
            true => Class::Broadcast { ask, gated: false, writes, reach: Reach::Keys },
        };
        let request = Request { class, repeat: has_answers, ..request };
        let asks = frame.asks;
        self.base.pools[asks.pool()].counters.add(PoolCounter::Transactions, 1);
        // Where its answer is made of several, the proxy's own stand in the place of the head.
        let block_head = if has_answers { &answers[..] } else { head };
        let incoming = &Incoming { asks: &asks, request: &request, head: block_head };
        self.count(incoming);
        let Proxy { base, clients, servers, .. } = self;
        let pending = match has_answers {
            false => clients.begin(base, incoming, writes),
            true => clients.begin_broadcast(base, incoming, (ask, writes), 1),
        };
        clients.set_asked(pending, ask, None);
        if incoming.is_dropped() {
            let part = Part::whole(pending);
            clients.fail(base, part, Some(server as u32), Fault::Dropped, false);
        } else {
            let requests = queued.requests;
            let block = Block { server, out, requests, writes };
            let link = servers.send_block(base, Part::whole(pending), &asks, block);
            if let (Some(link), Some(database)) = (link, queued.database) {
                self.await_select(id, link, database);
            }
        }
        let Proxy { base, clients, .. } = self;
        if has_answers {
            clients.settle_part(base, pending);
        }
        clients.pause_if_full(base, id);
        head.len()
    }

    /// Checks a block again, since the plan or the routes of keys may have changed; returns its
    /// server.
    #[cold]
    fn check_anew(&mut self, asks: &Requester) -> Result<Option<usize>, Unfit> {
        let bytes = self.clients.block_bytes(asks.id);
        let mut keys = std::mem::take(&mut self.base.keys);
        let (mut at, mut server, mut unfit) = (0, None, None);
        while at < bytes.len() {
            let parsed =
                asks.protocol.parse_request(&bytes[at..], &mut Resume::default(), &mut keys);
            let Parsed::Complete(mut request) = parsed else {
                unreachable!("the same bytes are the same request")
            };
            let rest = &bytes[at..];
            at += request.len() as usize;
            if matches!(request.class, Class::Local(_)) {
                // It begins the block, or selects a database.
                unfit = self.why_not_selected(asks, &request, rest).or(unfit);
                continue;
            }
            self.base.keys = std::mem::take(&mut keys);
            if matches!(request.class, Class::Refuse(Refusal::Unknown)) {
                client::recognize(&mut self.base, asks, &mut request, rest);
            }
            let head = &rest[..request.head as usize];
            if let Some(words) = self.clients.denied(&mut self.base, asks, (&request, head)) {
                unfit = Some(Unfit::Denied(words));
            }
            let incoming = &Incoming { asks, request: &request, head };
            match (self.own_route(incoming), server) {
                _ if let Class::Refuse(refusal) = request.class => {
                    unfit = Some(Unfit::Refused(refusal));
                }
                (Err(NotQueued::Refused(refusal)), _) => unfit = Some(Unfit::Refused(refusal)),
                (Err(NotQueued::NoServer), _) => unfit = unfit.or(Some(Unfit::NoServer)),
                (Err(_), _) => unfit = Some(Unfit::Moved),
                (Ok(Some(own)), Some(one)) if own != one => unfit = Some(Unfit::Moved),
                (Ok(own), None) => server = own,
                (Ok(_), Some(_)) => {}
            }
            keys = std::mem::take(&mut self.base.keys);
        }
        self.base.keys = keys;
        let epoch = (self.base.plans, self.base.pools[asks.pool()].rings);
        self.clients.give_back(asks.id, &bytes, (server, epoch));
        unfit.map_or(Ok(server), Err)
    }

    /// Returns why a queued request may not select its database any more, if it selects one.
    fn why_not_selected(
        &mut self,
        asks: &Requester,
        request: &Request,
        bytes: &[u8],
    ) -> Option<Unfit> {
        let InTransaction::Selects(database) = asks.protocol.in_transaction(request, bytes) else {
            return None;
        };
        if database >= self.base.pools[asks.pool()].plan.databases {
            return Some(Unfit::Refused(Refusal::NoDatabase));
        }
        let head = &bytes[..request.head as usize];
        self.clients.denied(&mut self.base, asks, (request, head)).map(Unfit::Denied)
    }

    /// Has a client wait for the end of a transaction that selects a database.
    fn await_select(&mut self, id: ConnId, link: ConnId, database: u32) {
        self.clients.begin_select(id, link, database);
        match self.servers.await_idle(id) {
            true => self.clients.await_owed(&mut self.base, id),
            false => self.end_select(id),
        }
    }

    /// Takes a client that is owed nothing to the database that its transaction has selected, if
    /// that was executed. If the link is gone, the answer says what became of it.
    pub(super) fn end_select(&mut self, id: ConnId) {
        let Proxy { base, clients, servers, .. } = self;
        let Some((link, database)) = clients.selects(id).map(|one| (one.link, one.database)) else {
            return;
        };
        if let Some(is_changed) = servers.end_changed(base, link) {
            clients.end_select(id);
            if is_changed {
                clients.set_database(base, id, database);
            }
        }
    }
}
