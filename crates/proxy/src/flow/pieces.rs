//! Replies that arrive in several reads: a value whose body is still arriving, and a reply in any
//! number of pieces. Each is kept until it is whole, or streamed to its client if the client waits
//! for nothing else.
//!
//! ```text
//!   value    head [ body ........ trailer ]
//!   reply    piece, piece [ body .. trailer ], piece, … last piece
//! ```

use proto::{Ask, Item, ItemKind, Shown};

use super::pair::Step;
use crate::batch::Entry;
use crate::buffer::{Outbox, Source};
use crate::client::End;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::{Body, Link, Unit};
use crate::pipelines::{Pipelines, Value};
use crate::{Proxy, Time};

/// Begins a body, or a reply in pieces.
pub(super) fn begin_body(
    link: &mut Link,
    pipelines: &mut Pipelines,
    (item, asked): (Item, Ask),
    rest: Source<'_>,
    (entry, unit): (Entry, Unit),
) {
    let head = rest.part(0, item.head as usize);
    let mut body = Body {
        item,
        entry: Some(entry),
        unit,
        streams: false,
        data: Outbox::default(),
        shown: Shown::Nothing,
        left: item.body + item.trailer.len() as u64,
        end: End::default(),
    };
    let is_there = unit != Unit::Internal
        && pipelines.clients.find(pipelines.requests[entry.pending].client).is_some();
    if is_there && pipelines.memory.has_room(item.len() as usize) {
        (body.shown, body.streams) =
            pipelines.begin_value(entry, (&item, asked), head, &mut body.data);
    } else {
        body.entry = None;
        // A message with one reply is settled at the end of that reply; until then it stays
        // outstanding.
        match (unit, is_there) {
            (Unit::Key, true) => {
                let part = (entry.pending, entry.slot);
                pipelines.fail_key(part, Some(link.server), Fault::OutOfMemory);
            }
            (Unit::Key, false) => pipelines.part_done(entry.pending),
            _ => {}
        }
    }
    link.body = Some(body);
}

impl Proxy {
    /// Takes the next piece of a reply that comes in several.
    pub(super) fn pair_next_part(
        &mut self,
        id: ConnId,
        item: Item,
        rest: Source<'_>,
        now: Time,
    ) -> Result<Step, &'static str> {
        if !matches!(item.kind, ItemKind::Part | ItemKind::Status) {
            return Err("not a possible end of the reply that had begun");
        }
        let link = self.links.find_mut(id).expect("the caller found it");
        let body = link.body.as_mut().expect("the caller looked");
        body.item = item;
        body.left = item.body + item.trailer.len() as u64;
        body.end = End::default();
        body.shown = Shown::Body { trailer: item.trailer };
        if let Some(entry) = body.entry {
            let len = usize::try_from(item.len()).map_err(|_| "a value larger than any memory")?;
            let is_there = self
                .pipelines
                .clients
                .find(self.pipelines.requests[entry.pending].client)
                .is_some();
            if !is_there || !self.pipelines.memory.has_room(len) {
                if body.streams && is_there {
                    self.pipelines.cut_off(entry.pending);
                }
                body.entry = None;
                body.data.clear();
            } else if !body.streams && self.pipelines.may_stream(entry, body.data.len() + len) {
                body.streams = true;
                self.pipelines.begin_stream(entry.pending, &mut body.data);
            }
        }
        self.take_in(id, rest.part(0, item.head as usize));
        self.end_piece(id, now);
        Ok(Step::Used(item.head as usize))
    }

    /// Takes more of a body.
    pub(super) fn pair_body(
        &mut self,
        id: ConnId,
        rest: Source<'_>,
        now: Time,
    ) -> Result<Step, &'static str> {
        let link = self.links.find_mut(id).expect("the caller found it");
        let body = link.body.as_mut().expect("the caller looked");
        let used = rest.bytes.len().min(usize::try_from(body.left).unwrap_or(usize::MAX));
        body.end.feed(&rest.bytes[..used]);
        let before_trailer = body.left.saturating_sub(body.item.trailer.len() as u64);
        let shown = used.min(usize::try_from(before_trailer).unwrap_or(usize::MAX));
        body.left -= used as u64;
        let is_wrong = body.left == 0 && !body.end.is(body.item.trailer);
        if matches!(body.shown, Shown::Body { .. }) && shown > 0 {
            self.take_in(id, rest.part(0, shown));
        }
        if is_wrong {
            return Err("a value that does not have the length that its head gives");
        }
        self.end_piece(id, now);
        Ok(Step::Used(used))
    }

    /// Streams bytes of an unfinished reply to the client, or keeps them.
    fn take_in(&mut self, id: ConnId, part: Source<'_>) {
        let link = self.links.find_mut(id).expect("the caller found it");
        let body = link.body.as_mut().expect("the caller looked");
        match body.entry {
            Some(entry) if body.streams => self.pipelines.stream(entry.pending, part),
            Some(_) => {
                body.data.open(&mut self.pipelines.spares);
                body.data.keep(part);
            }
            None => {}
        }
    }

    /// Ends a piece that has come whole; the last piece settles its request.
    fn end_piece(&mut self, id: ConnId, now: Time) {
        let link = self.links.find_mut(id).expect("the caller found it");
        let body = link.body.as_mut().expect("the caller looked");
        if body.left > 0 {
            return;
        }
        if let Shown::Body { trailer } = body.shown {
            self.take_in(id, Source::plain(trailer));
        }
        let link = self.links.find_mut(id).expect("the caller found it");
        let Some(body) =
            link.body.take_if(|body| body.item.kind != ItemKind::Part || bug!(PieceForWhole))
        else {
            // The account must be right even if the reply never ends.
            let bytes = link.measure();
            return self.pipelines.memory.change(&mut link.counted, bytes);
        };
        let Body { entry, unit, streams, data, .. } = body;
        let value = if streams { Value::Streamed } else { Value::Assembled(Box::new(data)) };
        match (entry, unit) {
            (Some(entry), _) => self.settle(id, (entry, unit), value, true, now),
            (None, Unit::Key) => {}
            (None, Unit::Single | Unit::Batch | Unit::Internal) => self.drop_answer(id, now),
        }
    }
}
