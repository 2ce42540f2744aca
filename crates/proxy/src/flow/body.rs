//! The body of a request that does not arrive in one read with its head. It is collected, and the
//! request is admitted with the last byte.

use proto::{Parsed, Request, Resume};

use super::receive::Data;
use super::route::Route;
use crate::buffer::{Outbox, Source};
use crate::client::{Body, End, Intake};
use crate::id::ConnId;
use crate::{Proxy, Time};

impl Proxy {
    /// Begins the body of a request whose head has come; `left` bytes are to follow.
    pub(super) fn begin_body(&mut self, id: ConnId, request: Request, head: &[u8], left: u64) {
        let mut kept = self.pipelines.spares.take();
        kept.extend_from_slice(head);
        let body = Body { request, head: kept, data: Outbox::default(), left, end: End::default() };
        if let Some(client) = self.pipelines.clients.find_mut(id) {
            client.intake = Intake::Body(Box::new(body));
            // Accounted at once: the next body that begins must find this one's memory taken.
            let bytes = client.measure();
            self.pipelines.memory.change(&mut client.counted, bytes);
        }
    }

    /// Takes more of a body. The request is admitted with the last byte.
    pub(super) fn consume_body(&mut self, id: ConnId, rest: Source<'_>, now: Time) -> usize {
        let client = self.pipelines.clients.find_mut(id).expect("the caller found it");
        let Intake::Body(body) = &mut client.intake else { unreachable!("the caller looked") };
        let used = rest.bytes.len().min(usize::try_from(body.left).unwrap_or(usize::MAX));
        let part = rest.part(0, used);
        body.end.feed(part.bytes);
        body.data.open(&mut self.pipelines.spares);
        body.data.keep(part);
        body.left -= used as u64;
        if body.left > 0 {
            return used;
        }
        let Intake::Body(body) = std::mem::replace(&mut client.intake, Intake::Head) else {
            unreachable!("it was a body a moment ago")
        };
        // The head was parsed before its body came, so its keys have to be found again.
        let again =
            client.protocol.parse_request(&body.head, &mut Resume::default(), &mut self.keys);
        let Parsed::Complete(again) = again else { unreachable!("it was a request before") };
        let again = Request { quiet: body.request.quiet, ..again };
        assert_eq!(again, body.request, "the same bytes are the same request");
        if body.end.is(body.request.trailer) {
            let route = self.route(id, &body.request, &body.head, now);
            if let Some(Route::Wait(server)) = route {
                self.put_back(id, *body, server);
                return used;
            }
            self.admit(id, &body.request, &body.head, Data::Assembled(body.data), route, now);
        } else {
            self.refuse_data(id, &body.request, &body.head);
        }
        self.pipelines.spares.give(body.head);
        used
    }

    /// Puts a request with its data back into the input. Its key now belongs to a server whose
    /// capabilities are unknown, and the request is read again when they are known.
    fn put_back(&mut self, id: ConnId, mut body: Body, server: usize) {
        let mut whole = std::mem::take(&mut body.head);
        body.data.drain_into(&mut whole);
        body.data.close(&mut self.pipelines.spares);
        let client = self.pipelines.clients.find_mut(id).expect("the caller found it");
        client.partial = whole;
        self.await_capabilities(id, server);
    }
}
