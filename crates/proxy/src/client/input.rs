//! A client's bytes become requests.
//!
//! ```text
//!   take_input ─▶ next_frame ─▶ Frame  ─▶ proxy.rs routes it, or has it refused or put off
//!                     └───────▶ Whole  ─▶ a request whose body took several reads
//!   keep_rest ◀── what is left
//! ```

use metrics::PoolCounter;
use proto::{Answer, Class, MarkUse, Parsed, Quiet, Refusal, ReplyMode, Request, Resume, Span};

use super::body::Body;
use super::forms::{apply_marks, join, mute};
use super::session::{Intake, Reading, State};
use super::{Clients, large, tenant};
use crate::Action;
use crate::base::buffer::Source;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Effort, Incoming, Part, Requester};
use crate::base::plan::QuickAck;
use crate::base::room::NoRoom;
use crate::base::{Base, limits};

/// A request whose head has been read.
pub(crate) struct Frame {
    pub(crate) asks: Requester,
    pub(crate) request: Request,
    /// The client's reply mode before it was read.
    reply_mode_before: ReplyMode,
}

impl Frame {
    pub(crate) fn incoming<'a>(&'a self, head: &'a [u8]) -> Incoming<'a> {
        Incoming { asks: &self.asks, request: &self.request, head }
    }
}

/// The meaning of the next bytes of a client.
pub(crate) enum Next {
    /// This many bytes have been dealt with. None: more have to come, or the client waits.
    Used(usize),
    /// A request, which is in the frame now.
    Frame,
    /// As `Frame`, of a client that is in a transaction, or listens to topics.
    Queued,
    /// A request whose body ends here, and how many bytes that took.
    Whole(usize, Requester, Box<Body>),
    /// A request for whose body there is no memory any more, and how many bytes of it are skipped
    /// already.
    NoRoom(usize, Requester, Box<Body>),
}

/// Where the bytes that have come are read.
pub(crate) enum Input {
    /// Nowhere: the client is gone, or nothing more is read from it.
    Ignored,
    /// Where they are.
    AsTheyCame,
    /// Behind those that are kept.
    Kept,
    /// Later: the client is paused.
    Later,
}

/// Bytes that a key of a read takes until it is answered: its place in the request, in the request
/// table and in a link's queue.
pub(super) const KEY_HELD: usize = 48;

/// So many bytes behind a key are sure to have a value that is kept by reference: the lengths of
/// the value and of the next key are among them.
const REST_KEPT_MIN: usize = limits::REFERENCE_MIN + 64;

impl Clients {
    /// Takes bytes that have come from a client.
    pub(crate) fn take_input(&mut self, base: &mut Base, id: ConnId, bytes: &[u8]) -> Input {
        let Some(client) = self.table.find_mut(id) else { return Input::Ignored };
        if !client.state.is_read() {
            return Input::Ignored;
        }
        let counters = base.pools[client.pool as usize].counters;
        counters.add(PoolCounter::ReceivedBytes, bytes.len() as u64);
        client.enter_turn(base);
        client.received = base.now;
        client.record.tally.received += bytes.len() as u64;
        if client.partial.is_empty() {
            match client.intake {
                Intake::Head => client.begun = base.now,
                _ => client.note_rest(base, id),
            }
            return Input::AsTheyCame;
        }
        client.keep(bytes, &mut base.spares);
        if !client.is_paused() {
            client.note_rest(base, id);
            return Input::Kept;
        }
        // Its input may wait here up to a bound, and the rest of it in its socket.
        if !client.is_stopped() && client.has_enough_kept(base) {
            client.reading = Reading::Stopped;
            base.actions.push_back(Action::Pause(id));
        }
        self.update_client(base, id);
        Input::Later
    }

    /// Takes the bytes that are kept of a client's input. `return_kept` gives the rest back.
    pub(crate) fn take_kept(&mut self, id: ConnId) -> Option<Vec<u8>> {
        self.table.find_mut(id).map(|client| std::mem::take(&mut client.partial))
    }

    /// Gives kept input back, of which `used` bytes have been read. Returns whether there is more
    /// to read.
    pub(crate) fn return_kept(
        &mut self,
        base: &mut Base,
        id: ConnId,
        mut kept: Vec<u8>,
        used: usize,
    ) -> bool {
        let Some(client) = self.table.find_mut(id) else { return false };
        if client.state == State::Leaving || used == kept.len() {
            base.give_back(kept);
        } else if client.partial.is_empty() {
            kept.drain(..used);
            client.partial = kept;
        } else {
            // A request was put back into the buffer.
            client.partial.extend_from_slice(&kept[used..]);
        }
        let has_more = client.take_block(&mut base.spares);
        self.limit_partial(base, id);
        has_more
    }

    /// Keeps the bytes of an unfinished request.
    pub(crate) fn keep_rest(&mut self, base: &mut Base, id: ConnId, rest: &[u8]) {
        let Some(client) = self.table.find_mut(id) else { return };
        if rest.is_empty() && client.partial.is_empty() {
            return self.update_client(base, id);
        }
        if !rest.is_empty() && client.state.is_read() {
            if client.partial.is_empty() {
                client.partial = base.spares.take();
            }
            client.partial.extend_from_slice(rest);
        }
        self.limit_partial(base, id);
    }

    /// Goes on with a client that was paused, after its kept input has been read: reads its socket
    /// again.
    pub(crate) fn go_on(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        // It may have been paused again, and may go on again.
        if client.is_paused() || client.resumable {
            return;
        }
        client.waits.is_late = false;
        match client.state {
            State::Ending => self.leave(base, id),
            State::Open | State::Finishing if client.is_stopped() => {
                client.reading = Reading::On;
                base.actions.push_back(Action::Resume(id));
            }
            State::Open | State::Finishing | State::Leaving => {}
        }
    }

    /// Closes a client whose head grows past its bound or past the memory limit.
    fn limit_partial(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        let len = client.partial.len();
        // Where parts are counted, `check_parts` has found them within their bounds.
        let more = client.resume.needs.saturating_sub(len);
        if len == 0 || more > 0 {
            return self.update_client(base, id);
        }
        let (most, answer) = match client.must_log_in(base) {
            true => (limits::LOGIN_LEN_MAX, Answer::LoginFirst),
            false => (base.limits.request_head, Answer::Refused(Refusal::TooLong)),
        };
        let small = len <= limits::BUFFER_KEEP_MAX.min(most);
        if client.is_paused() || small || (len <= most && base.has_room(client.group, len)) {
            return self.update_client(base, id);
        }
        if client.session.reply_mode.is_on() {
            self.send_unrequested(base, id, &answer);
        }
        self.leave(base, id);
    }

    /// Reads the next request of a client into `frame`, or as much of it as is there.
    #[inline(always)]
    pub(crate) fn next_frame(
        &mut self,
        base: &mut Base,
        id: ConnId,
        rest: Source<'_>,
        frame: &mut Option<Frame>,
    ) -> Next {
        let all = Next::Used(rest.bytes.len());
        let Some(client) = self.table.find_mut(id) else { return all };
        if client.state == State::Leaving {
            return all;
        }
        if client.is_paused() {
            return Next::Used(0);
        }
        let work = client.work();
        if work >= base.groups.least() && work >= base.groups.work(client.group) {
            self.await_turn(base, id);
            return Next::Used(0);
        }
        match &mut client.intake {
            Intake::Head => self.read_head(base, id, rest, frame),
            Intake::Swallow(left) => {
                let part = rest.len_within(*left);
                *left -= part as u64;
                if *left == 0 {
                    client.intake = Intake::Head;
                }
                Next::Used(part)
            }
            Intake::Body(_) => self.read_body(base, id, rest),
            Intake::Skip(_) => self.skip_head(base, id, rest),
        }
    }

    #[inline(always)]
    fn read_head(
        &mut self,
        base: &mut Base,
        id: ConnId,
        rest: Source<'_>,
        frame: &mut Option<Frame>,
    ) -> Next {
        let Some(client) = self.table.find_mut(id) else { return Next::Used(0) };
        if !client.has_sent {
            client.has_sent = true;
            client.protocol = client.protocol.spoken(rest.bytes[0]);
        }
        let parsed = client.protocol.parse_request(rest.bytes, &mut client.resume, &mut base.keys);
        let request = match parsed {
            Parsed::Incomplete => {
                return Next::Used(self.check_parts(base, id, rest.bytes.len()));
            }
            Parsed::Malformed(why) => {
                return Next::Used(self.close_malformed(base, id, rest.bytes, why));
            }
            Parsed::Complete(request) => request,
        };
        let longest = client.resume.longest;
        client.resume = Resume::default();
        client.charge(limits::REQUEST_WORK + base.keys.len() as u32);
        client.record.tally.requests += 1;
        client.expect(base, &request);
        let (asks, reply_mode_before) = (client.requester(id), client.session.reply_mode);
        let frame = match frame {
            None => frame.insert(Frame { asks, request, reply_mode_before }),
            // Where it lies already, it is copied once.
            Some(frame) => {
                (frame.asks, frame.request) = (asks, request);
                frame.reply_mode_before = reply_mode_before;
                frame
            }
        };
        let is_queued = client.transaction.is_some() || client.subscriber.is_some();
        let Frame { asks, request, .. } = frame;
        if !frame.reply_mode_before.is_on() {
            mute(client, request);
        }
        if matches!(request.class, Class::Refuse(Refusal::Unknown)) {
            recognize(base, asks, request, rest.bytes);
        }
        if longest != 0 && longest as usize > base.pools[asks.pool()].plan.item_size_max {
            request.class = Class::Refuse(Refusal::TooLarge);
        }
        if base.pools[asks.pool()].plan.users.is_some()
            && let Some(used) = self.login(base, id, request, rest.bytes)
        {
            if used == 0 {
                self.unread(frame, 1);
            }
            return Next::Used(used);
        }
        if request.marks != MarkUse::None {
            apply_marks(base, asks.pool(), request);
        }
        if request.quiet == Quiet::Sparing && rest.bytes.len() > request.head as usize {
            join(base, asks, request, rest.bytes);
            self.note_joined(id, tenant::requests_of(request, base.keys.len()));
        }
        if is_queued {
            return Next::Queued;
        }
        Next::Frame
    }

    /// Has a request that was let through read again, from the same state, when its client goes
    /// on. Its tenant is not charged for it twice.
    #[cold]
    pub(crate) fn read_again(&mut self, base: &mut Base, frame: &Frame) {
        let requests = tenant::requests_of(&frame.request, base.keys.len());
        self.unread(frame, requests);
        if let Some(tenant) = base.tenants.find_mut(frame.asks.tenant) {
            tenant.refund(requests, frame.request.len());
        }
    }

    /// Has a request read again that was not let through yet, and that was counted as so many.
    #[cold]
    pub(super) fn unread(&mut self, frame: &Frame, requests: u64) {
        if let Some(client) = self.table.find_mut(frame.asks.id) {
            client.session.reply_mode = frame.reply_mode_before;
            client.record.tally.requests -= requests.min(client.record.tally.requests);
        }
    }

    /// Refuses a request whose head has been read, and skips its body.
    #[cold]
    pub(crate) fn refuse_read(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
        answer: &Answer<'_>,
    ) {
        let Incoming { asks, request, head } = *incoming;
        self.skip_body(base, asks.id, request);
        self.answer(base, asks.id, request, head, answer);
        self.pause_if_full(base, asks.id);
    }

    /// Skips the data of a request that is refused.
    pub(crate) fn skip_body(&mut self, base: &mut Base, id: ConnId, request: &Request) {
        let Some(client) = self.table.find_mut(id) else { return };
        let tail = request.len() - u64::from(request.head);
        if tail > 0 {
            client.intake = Intake::Swallow(tail);
        }
        base.pools[client.pool as usize].count_refused();
    }

    /// Answers a request with a fault that is known before anything of it was sent.
    #[cold]
    pub(crate) fn refuse_unasked(
        &mut self,
        base: &mut Base,
        incoming: &Incoming<'_>,
        (server, fault): (Option<u32>, Fault),
    ) {
        let Incoming { asks, request, head } = *incoming;
        let pending = self.enqueue(base, asks.id, request, head);
        let entry = &mut self.requests[pending];
        entry.parts_left = 1;
        // Its latency counts as that of a change.
        entry.writes = matches!(
            request.class,
            Class::Split { writes: true, .. } | Class::Broadcast { writes: true, .. }
        );
        if asks.effort == Effort::Watches {
            self.mark_watch(pending);
        }
        self.fail(base, Part::whole(pending), server, fault, false);
        self.pause_if_full(base, asks.id);
    }

    /// Refuses a request whose data block does not end where its head says.
    pub(crate) fn refuse_data(&mut self, base: &mut Base, incoming: &Incoming<'_>) {
        let Incoming { asks, request, head } = *incoming;
        base.pools[asks.pool()].count_refused();
        self.answer(base, asks.id, request, head, &Answer::Refused(Refusal::BadBody));
        self.pause_if_full(base, asks.id);
    }

    /// Stops reading a client of which so much is outstanding that it must wait.
    pub(crate) fn pause_if_full(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        if client.has_little(&base.limits) {
            return;
        }
        let limits = base.narrow(client.group);
        if client.state != State::Leaving && !client.is_paused() && client.must_pause(&limits) {
            client.stop(base, id);
        }
    }

    /// Applies the QUICKACK rule: when the received bytes cannot be answered yet, the sender may be
    /// waiting for our ACK before it sends the rest, and our kernel would delay that ACK for 40 ms.
    pub(crate) fn acknowledge(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        let pool = &mut base.pools[client.pool as usize];
        let flush = match pool.plan.quickack {
            QuickAck::Partial => {
                let forgotten = bug!(ForgetAck);
                let is_mid = client.is_mid_request() && !forgotten;
                is_mid
                    || bug!(WasteAck)
                    || (client.pipeline.loud_count == 0 && client.out.is_empty())
            }
            QuickAck::Always => true,
            QuickAck::Off => false,
        };
        if flush {
            pool.counters.add(PoolCounter::AcksFlushed, 1);
            if client.is_mid_request() && !client.is_paused() {
                client.flushed = base.now;
            }
            base.actions.push_back(Action::FlushAck(id));
        }
    }
}

/// Returns the answer to a request that is refused, or whose body there is no memory for.
/// `is_kept` says that its head may be kept by reference.
#[inline(always)]
pub(crate) fn refusal(
    base: &Base,
    asks: &Requester,
    request: &Request,
    is_kept: bool,
) -> Option<Answer<'static>> {
    let is_plain = matches!(request.class, Class::Single { .. } | Class::Fetch { .. });
    if is_plain && base.keys.len() <= 1 {
        return no_room(base, asks, request).map(NoRoom::answer);
    }
    refusal_of_any(base, asks, request, is_kept)
}

/// As `refusal`, for a request of any kind.
#[inline(never)]
fn refusal_of_any(
    base: &Base,
    asks: &Requester,
    request: &Request,
    is_kept: bool,
) -> Option<Answer<'static>> {
    if let Class::Refuse(refusal) = request.class {
        return Some(Answer::Refused(refusal));
    }
    if let Class::Local(local) = request.class
        && let Some(no_room) = large::no_room_for_local(base, asks, request, local)
    {
        return Some(no_room.answer());
    }
    let pool = asks.pool();
    if let Some(no_room) = no_room(base, asks, request) {
        return Some(no_room.answer());
    }
    // The messages of a request that is split are kept beside the bytes that are sent.
    let is_split = matches!(request.class, Class::Split { .. }) && base.pools[pool].planned() > 1;
    let copies = if is_split { 2 } else { 1 };
    let copied = match is_kept && is_split {
        true => copied_of(request, &base.keys),
        false => request.head as usize,
    };
    let keys_held = copies * copied + base.keys.len() * KEY_HELD;
    if base.keys.len() > 1 && !base.has_room_for(asks, keys_held) {
        return Some(Answer::Failed("out of memory for so many keys"));
    }
    None
}

/// Returns how many bytes of a head are copied when it is split and may be kept by reference: all
/// but the long values behind keys.
fn copied_of(request: &Request, keys: &[Span]) -> usize {
    let ends = keys.iter().skip(1).map(|next| next.start).chain([request.head]);
    let rests = keys.iter().zip(ends).map(|(key, end)| (end - key.end) as usize);
    request.head as usize - rests.filter(|rest| *rest >= REST_KEPT_MIN).sum::<usize>()
}

/// Returns why a request's data is not accepted, if it is not.
#[inline]
pub(crate) fn no_room(base: &Base, asks: &Requester, request: &Request) -> Option<NoRoom> {
    if request.body == 0 {
        return None;
    }
    let pool = asks.pool();
    if request.body > base.pools[pool].plan.item_size_max as u64 {
        return Some(NoRoom::TooLarge);
    }
    (!base.has_room_for(asks, request.body as usize)).then_some(NoRoom::NoMemory)
}

/// Looks up an unknown command among those that the operator has named.
pub(crate) fn recognize(base: &mut Base, asks: &Requester, request: &mut Request, input: &[u8]) {
    let extras = &base.pools[asks.pool()].plan.extras;
    if !extras.is_empty() {
        asks.protocol.recognize(request, input, &mut base.keys, extras);
    }
}
