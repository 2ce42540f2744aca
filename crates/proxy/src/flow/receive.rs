//! Receive: a client's bytes become requests.

use metrics::PoolCounter;
use proto::{Answer, Class, Local, MarkUse, Parsed, Quiet, Refusal, ReplyMode, Request, Resume};

use super::remove::Removal;
use super::route::Route;
use crate::buffer::{Outbox, Source, has_trailer};
use crate::client::{Client, Intake, State};
use crate::fault::Fault;
use crate::id::ConnId;
use crate::plan::QuickAck;
use crate::{Action, Proxy, Time, limits};

/// The body of a request that has arrived whole, including its trailer.
pub(super) enum Data<'a> {
    /// In one piece, where it was read.
    OnePiece(Source<'a>),
    /// From several reads, or empty.
    Assembled(Outbox),
}

/// Bytes that a key of a read takes until it is answered: its place in the request, in the request
/// table and in a link's queue.
const KEY_HELD: usize = 48;

/// The client's reply mode and transaction state before one of its requests was read.
#[derive(Clone, Copy)]
struct Before {
    reply_mode: ReplyMode,
    is_aborted: bool,
}

const IN_ABORTED: &str = "it belongs to a refused transaction, of which nothing is executed";
/// Silences a request of a client that has turned replies off.
fn mute(client: &mut Client, request: &mut Request) {
    if client.session.reply_mode == ReplyMode::SkipNext && !bug!(SkipForEver) {
        client.session.reply_mode = ReplyMode::On;
    }
    if !bug!(IgnoreMute) {
        request.quiet = Quiet::Silent;
    }
}

impl Proxy {
    pub(crate) fn receive_client(&mut self, id: ConnId, source: Source<'_>, now: Time) {
        let Some(client) = self.pipelines.clients.find_mut(id) else { return };
        if client.state != State::Open {
            return;
        }
        let counters = self.pipelines.pools[client.pool as usize].counters;
        counters.add(PoolCounter::ReceivedBytes, source.bytes.len() as u64);
        if client.partial.is_empty() {
            let used = self.consume(id, source, now);
            self.keep_rest(id, &source.bytes[used..]);
        } else {
            client.partial.extend_from_slice(source.bytes);
            match client.paused {
                true => self.stop_reading(id, limits::BUFFER_KEEP_MAX),
                false => self.consume_partial(id, now),
            }
        }
        self.acknowledge(id);
    }

    /// Reads clients that were paused and may go on: first their buffered input, then their
    /// sockets.
    pub(crate) fn resume_clients(&mut self, now: Time) {
        while let Some(id) = self.pipelines.next_resumable() {
            self.consume_partial(id, now);
            let client = self.pipelines.clients.find_mut(id);
            let Some(client) = client.filter(|client| !client.paused) else { continue };
            client.is_late = false;
            match client.state {
                State::Ending => self.pipelines.leave(id),
                State::Open if client.reading_stopped => {
                    client.reading_stopped = false;
                    self.pipelines.actions.push_back(Action::Resume(id));
                }
                State::Open | State::Leaving => {}
            }
        }
    }

    /// Stops reading a paused client once more than `most` bytes of its input wait.
    fn stop_reading(&mut self, id: ConnId, most: usize) {
        let Some(client) = self.pipelines.clients.find_mut(id) else { return };
        if client.partial.len() > most && !client.reading_stopped {
            client.reading_stopped = true;
            self.pipelines.actions.push_back(Action::Pause(id));
        }
        self.pipelines.update_client(id);
    }

    /// Reads requests from the buffered bytes.
    fn consume_partial(&mut self, id: ConnId, now: Time) {
        let Some(client) = self.pipelines.clients.find_mut(id) else { return };
        let mut joined = std::mem::take(&mut client.partial);
        let used = self.consume(id, Source::plain(&joined), now);
        let Some(client) = self.pipelines.clients.find_mut(id) else { return };
        if client.state == State::Leaving || used == joined.len() {
            self.pipelines.spares.give(joined);
        } else if client.partial.is_empty() {
            joined.drain(..used);
            client.partial = joined;
        } else {
            // A request was put back into the buffer.
            client.partial.extend_from_slice(&joined[used..]);
        }
        self.limit_partial(id);
    }

    /// Keeps the bytes of an unfinished request.
    fn keep_rest(&mut self, id: ConnId, rest: &[u8]) {
        let Some(client) = self.pipelines.clients.find_mut(id) else { return };
        if !rest.is_empty() && client.state == State::Open {
            if client.partial.is_empty() {
                client.partial = self.pipelines.spares.take();
            }
            client.partial.extend_from_slice(rest);
        }
        self.limit_partial(id);
    }

    /// Closes a client whose head grows past its bound or past the memory limit.
    fn limit_partial(&mut self, id: ConnId) {
        let Some(client) = self.pipelines.clients.find(id) else { return };
        let len = client.partial.len();
        if len == 0 {
            return self.pipelines.update_client(id);
        }
        let (most, answer) = match self.must_log_in(id) {
            true => (limits::LOGIN_LEN_MAX, Answer::LoginFirst),
            false => {
                let answer = Answer::Refused(Refusal::Bad("line too long"));
                (self.pipelines.limits.request_head, answer)
            }
        };
        let small = len <= limits::BUFFER_KEEP_MAX.min(most);
        if client.paused || small || (len <= most && self.pipelines.memory.has_room(len)) {
            return self.pipelines.update_client(id);
        }
        if self
            .pipelines
            .clients
            .find(id)
            .is_some_and(|client| client.session.reply_mode == ReplyMode::On)
        {
            self.pipelines.send_unrequested(id, &answer);
        }
        self.pipelines.leave(id);
    }

    /// Reads as many requests as there are; returns how many bytes they took.
    fn consume(&mut self, id: ConnId, source: Source<'_>, now: Time) -> usize {
        let len = source.bytes.len();
        let mut at = 0;
        while at < len {
            let Some(client) = self.pipelines.clients.find_mut(id) else { return len };
            if client.state == State::Leaving {
                return len;
            }
            if client.paused {
                break;
            }
            let rest = source.part(at, len);
            let used = match &mut client.intake {
                Intake::Swallow(left) => {
                    let part = rest.bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= part as u64;
                    if *left == 0 {
                        client.intake = Intake::Head;
                    }
                    part
                }
                Intake::Body(_) => self.consume_body(id, rest, now),
                Intake::Head => self.consume_head(id, rest, now),
            };
            if used == 0 {
                break;
            }
            at += used;
        }
        at
    }

    /// Reads one request, or as much of it as is there. Returns 0 when its head is incomplete.
    fn consume_head(&mut self, id: ConnId, rest: Source<'_>, now: Time) -> usize {
        let client = self.pipelines.clients.find_mut(id).expect("the caller found it");
        let pool = client.pool as usize;
        if !client.has_sent {
            client.has_sent = true;
            client.protocol = client.protocol.spoken(rest.bytes[0]);
        }
        let reply_mode = client.session.reply_mode;
        let parsed = client.protocol.parse_request(rest.bytes, &mut client.resume, &mut self.keys);
        let mut request = match parsed {
            Parsed::Incomplete => return 0,
            Parsed::Malformed(why) => return self.close_malformed(id, rest.bytes, why),
            Parsed::Complete(request) => request,
        };
        client.resume = Resume::default();
        if reply_mode != ReplyMode::On {
            mute(client, &mut request);
        }
        let is_aborted = client.session.aborted;
        if matches!(request.class, Class::Refuse(Refusal::Unknown)) {
            self.recognize(id, &mut request, rest.bytes);
        }
        if is_aborted && !matches!(request.class, Class::Local(_)) {
            request.class = Class::Refuse(Refusal::ByName(IN_ABORTED));
        }
        if let Some(used) = self.login(id, &request, rest.bytes) {
            return used;
        }
        if request.marks != MarkUse::None {
            self.apply_marks(pool, &mut request);
        }
        if request.quiet == Quiet::Sparing && rest.bytes.len() > request.head as usize {
            self.join(id, &mut request, rest.bytes);
        }
        self.take_request((id, pool), request, rest, Before { reply_mode, is_aborted }, now)
    }

    /// Handles a request whose head is parsed; returns how many bytes it used.
    #[inline(always)]
    fn take_request(
        &mut self,
        (id, pool): (ConnId, usize),
        request: Request,
        rest: Source<'_>,
        before: Before,
        now: Time,
    ) -> usize {
        let head = request.head as usize;
        let tail = request.len() - u64::from(request.head);
        let text = &rest.bytes[..head];
        if let Some(answer) = self.refusal(pool, &request) {
            return self.refuse_or_remove(id, &request, text, &answer, (before.reply_mode, now));
        }
        let route = self.route(id, &request, text, now);
        if let Some(route) = route
            && !matches!(route, Route::Go { .. } | Route::Spread)
            && let Some(used) = self.put_off(id, &request, text, route, (before.reply_mode, now))
        {
            return used;
        }
        match usize::try_from(request.len()) {
            Ok(whole) if whole <= rest.bytes.len() => {
                let data = Data::OnePiece(rest.part(head, whole));
                self.admit(id, &request, text, data, route, now);
                self.end_aborted(id, !before.is_aborted && whole == rest.bytes.len());
                whole
            }
            _ => {
                self.begin_body(id, request, &rest.bytes[..head], tail);
                head
            }
        }
    }

    /// Delays or refuses a request that cannot take its route now. Returns `None` if the request is
    /// enqueued all the same and fails there.
    #[cold]
    fn put_off(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        route: Route,
        (reply_mode, now): (ReplyMode, Time),
    ) -> Option<usize> {
        let used = match route {
            Route::Wait(server) => self.await_capabilities(id, server),
            Route::NeedsEndpoints => self.await_endpoints(id),
            Route::Refused(refusal) => {
                let answer = Answer::Refused(refusal);
                return Some(self.refuse_or_remove(id, request, head, &answer, (reply_mode, now)));
            }
            Route::Fault(server, fault) if matches!(request.class, Class::Local(Local::Own)) => {
                return Some(self.fail_unasked(id, request, head, (server, fault)));
            }
            _ => return None,
        };
        Some(self.read_later(id, used, reply_mode))
    }

    /// Refuses a request. If the reason is its data, the old value of its key may have to go.
    #[cold]
    fn refuse_or_remove(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        answer: &Answer<'_>,
        (reply_mode, now): (ReplyMode, Time),
    ) -> usize {
        match self.remove(id, request, head, now) {
            Removal::Nothing => self.refuse_read(id, request, head, answer),
            Removal::Asked => head.len(),
            Removal::Waits(server) => {
                let used = self.await_capabilities(id, server);
                self.read_later(id, used, reply_mode)
            }
        }
    }

    /// Has a request read again, from the same state, when the proxy knows what the request depends
    /// on.
    #[cold]
    fn read_later(&mut self, id: ConnId, used: usize, reply_mode: ReplyMode) -> usize {
        let client = self.pipelines.clients.find_mut(id).expect("it waits");
        client.session.reply_mode = reply_mode;
        used
    }

    /// Closes a client that waits for the answer to a request which aborted its transaction. Such a
    /// client never ends the transaction, and the next user of its connection would be refused for
    /// ever.
    fn end_aborted(&mut self, id: ConnId, waits: bool) {
        let Some(client) = self.pipelines.clients.find_mut(id).filter(|_| waits) else { return };
        if client.session.aborted {
            client.quits = true;
            self.pipelines.leave(id);
        }
    }

    /// Refuses a request whose head has been read, and skips its body.
    #[cold]
    fn refuse_read(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        answer: &Answer<'_>,
    ) -> usize {
        self.skip_body(id, request);
        self.pipelines.answer(id, request, head, answer);
        self.pause_if_full(id);
        head.len()
    }

    /// Answers a local command that depends on the servers' capabilities with a fault, since no
    /// server can be asked for them.
    #[cold]
    fn fail_unasked(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        why: (Option<u32>, Fault),
    ) -> usize {
        self.refuse_unasked(id, request, head, why);
        self.pause_if_full(id);
        head.len()
    }

    /// Answers a request with a fault that is known before anything of it was sent.
    pub(super) fn refuse_unasked(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        (server, fault): (Option<u32>, Fault),
    ) {
        let request_id = self.pipelines.enqueue(id, request, head);
        let pending = &mut self.pipelines.requests[request_id];
        pending.left = 1;
        // Its latency counts as that of a change.
        pending.writes = matches!(
            request.class,
            Class::Split { writes: true, .. } | Class::Broadcast { writes: true, .. }
        );
        self.pipelines.fail_part((request_id, 0), server, fault, false);
    }

    /// Joins consecutive quiet reads of one key into one read, with one pending request and one
    /// answer.
    fn join(&mut self, id: ConnId, request: &mut Request, input: &[u8]) {
        let client = self.pipelines.clients.find(id).expect("the caller found it");
        let merges = self.pipelines.pools[client.pool as usize].plan.merge_gets;
        let Class::Fetch { merge: true, .. } = request.class else { return };
        // With less memory, the joined read might have to be refused whole.
        let has_room = self.pipelines.memory.has_room(input.len() + limits::JOINED_MAX * KEY_HELD);
        if merges && has_room {
            client.protocol.join(request, input, &mut self.keys, limits::JOINED_MAX);
        }
    }

    /// Returns the answer to a request that is refused, or whose body there is no memory for.
    fn refusal(&self, pool: usize, request: &Request) -> Option<Answer<'static>> {
        if let Class::Refuse(refusal) = request.class {
            return Some(Answer::Refused(refusal));
        }
        if matches!(request.class, Class::Local(_)) && request.head as usize > limits::OWN_LEN_MAX {
            return Some(Answer::Refused(Refusal::TooLarge));
        }
        if let Some(no_room) = self.no_room(pool, request) {
            return Some(no_room.answer());
        }
        let keys_held = request.head as usize + self.keys.len() * KEY_HELD;
        if self.keys.len() > 1 && !self.pipelines.memory.has_room(keys_held) {
            return Some(Answer::Failed("out of memory for so many keys"));
        }
        None
    }

    /// Handles a whole request according to its class.
    pub(super) fn admit(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        data: Data<'_>,
        route: Option<Route>,
        now: Time,
    ) {
        if let Data::OnePiece(source) = &data
            && !has_trailer(source.bytes, request.trailer)
            && !bug!(SkipTrailer)
        {
            return self.refuse_data(id, request, head);
        }
        let client = self.pipelines.clients.find_mut(id).expect("the caller found it");
        // A joined read counts as many requests.
        let asked = if request.keep { self.keys.len().max(1) } else { 1 };
        self.pipelines.pools[client.pool as usize]
            .counters
            .add(PoolCounter::Requests, asked as u64);
        let is_dropped = client.drops(request.quiet);
        match request.class {
            Class::Single { .. } if is_dropped => {
                self.drop_unasked(id, request, head);
            }
            Class::Fetch { .. } => self.ask_fetch(id, request, head, now),
            Class::Single { writes } => {
                if request.stores {
                    let pool = client.pool as usize;
                    self.pipelines.pools[pool].counters.add(PoolCounter::Stores, 1);
                }
                let route = route.expect("a single request has a route");
                self.ask_single(id, request, head, data, (route, writes), now);
            }
            Class::Split { .. } => {
                let route = route.expect("a request that may be split has a route");
                self.ask_split(id, request, head, route, now);
            }
            Class::Broadcast { .. } => self.ask_broadcast(id, request, head, route, now),
            Class::Local(local) => self.answer_local(id, request, head, local),
            Class::Refuse(_) => unreachable!("refused before its body was waited for"),
        }
        self.pause_if_full(id);
    }

    /// Refuses a request whose data block does not end where its head says.
    pub(super) fn refuse_data(&mut self, id: ConnId, request: &Request, head: &[u8]) {
        let answer = Answer::Refused(Refusal::Bad("bad data chunk"));
        self.pipelines.answer(id, request, head, &answer);
        self.pause_if_full(id);
    }

    pub(super) fn pause_if_full(&mut self, id: ConnId) {
        let limits = self.pipelines.memory.narrow(self.pipelines.limits);
        let Some(client) = self.pipelines.clients.find_mut(id) else { return };
        if client.state != State::Leaving && !client.paused && client.must_pause(&limits) {
            client.paused = true;
            client.reading_stopped = true;
            self.pipelines.pools[client.pool as usize].counters.add(PoolCounter::Paused, 1);
            self.pipelines.actions.push_back(Action::Pause(id));
        }
    }

    /// Applies the QUICKACK rule: when the received bytes cannot be answered yet, the sender may be
    /// waiting for our ACK before it sends the rest, and our kernel would delay that ACK for 40 ms.
    fn acknowledge(&mut self, id: ConnId) {
        let Some(client) = self.pipelines.clients.find(id) else { return };
        let pool = &mut self.pipelines.pools[client.pool as usize];
        let flush = match pool.plan.quickack {
            QuickAck::Partial => {
                let forgotten = bug!(ForgetAck);
                let is_mid = client.is_mid_request() && !forgotten;
                is_mid || bug!(WasteAck) || (client.loud_count == 0 && client.out.is_empty())
            }
            QuickAck::Always => true,
            QuickAck::Off => false,
        };
        if flush {
            pool.counters.add(PoolCounter::AcksFlushed, 1);
            self.pipelines.actions.push_back(Action::FlushAck(id));
        }
    }
}
