//! The body of a request that does not arrive in one read with its head. It is collected, and the
//! request goes on with the last byte.
//!
//! It takes memory as it comes. If all that its head announces were taken at once, a client that
//! sends heads and nothing more would leave none for others. So there may be none for what comes:
//! the request is then refused, what has come of it is dropped, and the rest is skipped.

use proto::{Parsed, Request, Resume};

use super::input::Next;
use super::session::Intake;
use super::{Clients, inflight};
use crate::base::Base;
use crate::base::buffer::{End, Outbox, Source};
use crate::base::id::ConnId;
use crate::base::tenants::NOBODY;

/// A request whose body is still arriving.
pub(crate) struct Body {
    pub(crate) request: Request,
    pub(crate) head: Vec<u8>,
    /// Body and trailer as far as they have come.
    pub(crate) data: Outbox,
    /// Bytes of body and trailer still to come.
    pub(super) left: u64,
    /// The last bytes that came. The trailer is checked against them.
    pub(super) end: End,
}

impl Body {
    /// Whether it ends as its head says.
    pub(crate) fn has_trailer(&self) -> bool {
        self.end.is(self.request.trailer)
    }
}

impl Clients {
    /// Begins the body of a request whose head has come.
    pub(crate) fn begin_body(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: Request,
        head: &[u8],
    ) {
        let mut kept = base.spares.take();
        kept.extend_from_slice(head);
        let left = request.len() - u64::from(request.head);
        let body = Body { request, head: kept, data: Outbox::default(), left, end: End::default() };
        if let Some(client) = self.table.find_mut(id) {
            client.intake = Intake::Body(Box::new(body));
            if client.tenant != NOBODY {
                inflight::begin_arriving(&base.tenants, client, request.len());
            }
        }
    }

    /// Takes more of a body.
    pub(super) fn read_body(&mut self, base: &mut Base, id: ConnId, rest: Source<'_>) -> Next {
        let Some(client) = self.table.find_mut(id) else { return Next::Used(0) };
        let Intake::Body(body) = &mut client.intake else { return Next::Used(0) };
        let used = rest.len_within(body.left);
        let part = rest.part(0, used);
        body.left -= used as u64;
        // Bytes that have been kept are counted already.
        let held = body.data.held() + body.head.len() + used;
        let more = held.saturating_sub(client.counted);
        let has_room = match body.left {
            // It goes on its way, and takes no more.
            0 => base.memory.has_room(more),
            _ => base.has_room_to_go_on(client.group, more),
        };
        if has_room {
            body.end.feed(part.bytes);
            body.data.open(&mut base.spares);
            // The blocks of what is kept hold up to an eighth more. Where there is no room for
            // that, it is copied.
            let to_come = body.left.saturating_add(used as u64);
            let most = usize::try_from(to_come.saturating_add(to_come / 8)).unwrap_or(usize::MAX);
            if base.memory.has_room(most) {
                body.data.keep(part);
            } else {
                body.data.copy(part.bytes);
            }
            if body.left > 0 {
                return Next::Used(used);
            }
        }
        let Intake::Body(mut body) = std::mem::replace(&mut client.intake, Intake::Head) else {
            unreachable!("it was a body a moment ago")
        };
        if client.member.is_some() {
            inflight::end_arriving(&base.tenants, client);
        }
        // The head was parsed before its body came, so its keys have to be found again.
        let again =
            client.protocol.parse_request(&body.head, &mut Resume::default(), &mut base.keys);
        let Parsed::Complete(again) = again else { unreachable!("it was a request before") };
        let again = Request { quiet: body.request.quiet, ..again };
        assert_eq!(again, body.request, "the same bytes are the same request");
        if has_room {
            return Next::Whole(used, client.requester(id), body);
        }
        // Accounted at once: the next request must find the memory free.
        client.account(&mut base.memory);
        base.groups.forgive(client.group);
        base.give_back(body.data.take_copied());
        Next::NoRoom(used, client.requester(id), body)
    }

    /// Skips what is still to come of a body that was given up.
    pub(crate) fn skip_rest(&mut self, id: ConnId, body: &Body) {
        if let Some(client) = self.table.find_mut(id) {
            client.intake = match body.left {
                0 => Intake::Head,
                left => Intake::Swallow(left),
            };
        }
    }

    /// Puts a request with its data back into the input, to be read again when more is known of
    /// this server, which its key belongs to.
    pub(crate) fn put_back(&mut self, base: &mut Base, id: ConnId, mut body: Body, server: usize) {
        let mut whole = std::mem::take(&mut body.head);
        body.data.drain_into(&mut whole);
        body.data.close(&mut base.spares);
        self.await_server(base, id, server);
        if let Some(client) = self.table.find_mut(id) {
            client.partial = whole;
            client.record.tally.requests -= 1;
            if let Some(tenant) = base.tenants.find_mut(client.tenant) {
                tenant.refund(1, body.request.len());
            }
        }
    }
}
