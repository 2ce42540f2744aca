//! The request table: one row for each request that is not answered yet. A row belongs to a
//! client's pipeline (unless it is quiet) and to as many places in links' queues as it has parts
//! outstanding.
//!
//! ```text
//!   alloc ──▶ Waiting(parts left) ──last part settled──▶ Done ──head of its pipeline──▶ emit, free
//! ```

mod gather;

use proto::{Answer, Ask, Asked, Class, Item, Protocol, Quiet, Request, Shown, Span};

use crate::Time;
use crate::buffer::{Outbox, Spares};
use crate::id::ConnId;
use crate::limits;
use crate::plan::Partial;
use crate::room::NoRoom;

pub(crate) use gather::{Kind, Origin};

/// Index of a row. Rows are freed only when no queue names them any more.
pub(crate) type RowId = u32;

/// The time of a request whose latency is nobody's but ours.
pub(crate) const UNTIMED: Time = Time(u64::MAX);

/// No row.
pub(crate) const NONE: RowId = u32::MAX;

/// One request.
pub(crate) struct Row {
    pub(crate) state: State,
    /// Who asked; may have left.
    pub(crate) client: ConnId,
    /// The next row of the same client's pipeline.
    pub(crate) next: RowId,
    pub(crate) pool: u32,
    /// When it was understood; `UNTIMED` if no server is asked.
    pub(crate) since: Time,
    pub(crate) question: Question,
    /// An update or broadcast, which changes something.
    pub(crate) writes: bool,
    /// Whoever waited for its answer has left, without saying goodbye: it may be asked again.
    pub(crate) abandoned: bool,
    /// A part of it was asked once more; that happens once.
    pub(crate) asked_again: bool,
    /// Keys or servers that have not answered.
    pub(crate) left: u32,
    /// The error line that the client gets (in place of the end of a read).
    pub(crate) error: Vec<u8>,
    /// The answer, where it could not go to the client at once.
    pub(crate) reply: Outbox,
    /// What each key of a read of several keys got.
    pub(crate) slots: Vec<Slot>,
    /// Small values of such a read, as they came.
    values: Vec<u8>,
    /// Its large values.
    large: Vec<Outbox>,
    /// Bytes held, as told to the memory account.
    pub(crate) held: usize,
}

/// What was asked: as much of it as its answer needs.
pub(crate) struct Question {
    /// The client's.
    pub(crate) protocol: &'static dyn Protocol,
    pub(crate) command: u16,
    pub(crate) quiet: Quiet,
    /// What the server was asked.
    pub(crate) ask: Ask,
    /// What a server says is translated, for which the head is kept.
    pub(crate) keep: bool,
    /// Its slots hold whole replies as they came, of which one answer is made.
    pub(crate) gathers: bool,
    /// Of the elements of these replies, which are one for each key.
    pub(crate) each: bool,
    /// It went to one server as it came, and is answered by a list of so many elements.
    pub(crate) elements: Option<u32>,
    /// It may be asked again when its server excuses itself; it has been so many times.
    pub(crate) repeats: Option<u8>,
    /// Its data is not taken; what is under way removes what is stored under its key.
    pub(crate) no_room: Option<NoRoom>,
    /// It waits to be asked again, and stands in no queue.
    pub(crate) rests: bool,
    /// Its server has been told what it did not know: once, since one that forgets it at once is
    /// not told again.
    pub(crate) remedied: bool,
    /// The place of the server that was asked, and where the walk goes on that it is a step of.
    pub(crate) at: u32,
    pub(crate) next: Option<u32>,
    pub(crate) head: Vec<u8>,
    /// Where the parts of the head end that belong to one key each, if it was joined from several.
    ends: Vec<u32>,
}

impl Question {
    pub(crate) fn asked(&self) -> Asked<'_> {
        let Question { command, quiet, ask, at, next, .. } = *self;
        Asked { command, quiet, ask, head: &self.head, at, next }
    }

    /// What a server that was asked so says is translated: its client speaks otherwise, or it tells
    /// more than this one asked for.
    pub(crate) fn is_told(&self, asked: Ask) -> bool {
        (self.keep || self.ask != asked) && !self.gathers
    }

    /// As asked for this key of a read: of requests that were joined only one is answered.
    fn asked_for(&self, slot: u32) -> Asked<'_> {
        let slot = slot as usize;
        let Some(end) = self.ends.get(slot) else { return self.asked() };
        let start = if slot == 0 { 0 } else { self.ends[slot - 1] };
        Asked { head: &self.head[start as usize..*end as usize], ..self.asked() }
    }

    /// It was joined from requests for these keys, each of which has an answer of its own.
    pub(crate) fn join(&mut self, keys: &[Span]) {
        self.ends.extend(keys.iter().map(|key| key.end));
    }

    /// Each of its keys is answered by itself, bad news too.
    fn is_joined(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Writes an answer of ours.
    pub(crate) fn answer(&self, answer: &Answer<'_>, out: &mut Vec<u8>) {
        self.protocol.answer(&self.asked(), answer, out);
    }

    /// Whether this item, which begins with `head`, can be its one answer. Where the head of the
    /// request was not kept, nothing of it is repeated.
    pub(crate) fn is_answer(&self, item: &Item, head: &[u8]) -> bool {
        !self.keep || self.protocol.is_answer(&self.asked(), item, head)
    }

    /// Whether it is a read that this one item answers, and found something.
    pub(crate) fn found(&self, item: &Item, head: &[u8]) -> Option<bool> {
        if !self.keep || self.no_room.is_some() {
            return None;
        }
        self.protocol.found(&self.asked(), item, head)
    }

    /// Tells a server's item; `slot`: which key of a read it is about.
    pub(crate) fn translate(
        &self,
        slot: u32,
        item: &Item,
        head: &[u8],
        out: &mut Vec<u8>,
    ) -> Shown {
        if let Some(no_room) = self.no_room {
            self.answer(&no_room.answer(), out);
            return Shown::Head;
        }
        self.protocol.translate(&self.asked_for(slot), item, head, out)
    }

    fn set(
        &mut self,
        protocol: &'static dyn Protocol,
        (request, head): (&Request, &[u8]),
        spares: &mut Spares,
    ) {
        self.protocol = protocol;
        self.command = request.command;
        self.quiet = request.quiet;
        self.keep = request.keep;
        (self.gathers, self.each, self.elements) = (false, false, None);
        self.next = None;
        self.no_room = None;
        self.remedied = false;
        self.repeats = None;
        // Of a broadcast it is needed to make one answer; and, whatever its length, to learn from.
        let is_asked_of_all = matches!(request.class, Class::Broadcast { .. });
        if !request.keep && !request.repeat && !is_asked_of_all {
            return;
        }
        let is_short = head.len() <= limits::REPEAT_MAX;
        if request.repeat && request.body == 0 && is_short {
            self.repeats = Some(0);
        }
        let is_needed = is_asked_of_all && (is_short || request.repeat);
        if request.keep || self.repeats.is_some() || is_needed {
            if head.len() > ROW_KEEP_MAX {
                self.head = spares.take();
            }
            self.head.extend_from_slice(head);
        }
    }

    fn clear(&mut self, spares: &mut Spares) {
        self.head.clear();
        self.ends.clear();
        if self.head.capacity() > ROW_KEEP_MAX {
            spares.give(std::mem::take(&mut self.head));
        }
    }
}

/// The life of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In the free list.
    Free,
    /// Parts are outstanding.
    Waiting,
    /// Every part is settled; waits for its turn in the pipeline.
    Done,
}

/// What a key of a read got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing (so far).
    Empty,
    /// `values[start..end]`.
    Small { start: u32, end: u32 },
    /// The same, of bad news where replies are gathered.
    Failed { start: u32, end: u32 },
    /// The next element of what the slot of that number has.
    With { first: u32 },
    /// `large[index]`.
    Large { index: u32 },
}

impl Row {
    /// Bytes that this row holds; what `held` must say.
    pub(crate) fn measure(&self) -> usize {
        let large: usize = self.large.iter().map(Outbox::len).sum();
        let slots = self.slots.len() * size_of::<Slot>();
        let ends = self.question.ends.len() * size_of::<u32>();
        self.reply.len() + self.question.head.len() + ends + self.values.len() + slots + large
    }

    /// Whether a value of this length is copied among the small ones.
    pub(crate) fn is_small(&self, len: usize) -> bool {
        len < limits::KEEP_REFERENCE_MIN && self.has_room(len)
    }

    /// Keeps what answers a key; returns the bytes of it.
    pub(crate) fn keep_small(&mut self, slot: u32, value: &[u8]) -> usize {
        let start = self.values.len();
        self.values.extend_from_slice(value);
        self.fill(slot, start)
    }

    /// What was added to `values` from `start` on is the answer to a key.
    fn fill(&mut self, slot: u32, start: usize) -> usize {
        let end = self.values.len();
        self.slots[slot as usize] = Slot::Small { start: start as u32, end: end as u32 };
        end - start
    }

    /// As `keep_small`, in its client's words.
    pub(crate) fn keep_translated(&mut self, slot: u32, item: &Item, value: &[u8]) -> usize {
        let (head, body) = (item.head as usize, item.body as usize);
        let start = self.values.len();
        let shown = self.question.translate(slot, item, &value[..head], &mut self.values);
        if let Shown::Body { trailer } = shown {
            self.values.extend_from_slice(&value[head..head + body]);
            self.values.extend_from_slice(trailer);
        }
        self.fill(slot, start)
    }

    /// Bad news takes the place of the whole answer, or of a key's where each has its own.
    pub(crate) fn fail(&mut self, slot: u32, answer: &Answer<'_>) {
        let mut text = String::new();
        let told = self.question.no_room.map(|no_room| no_room.answer_failed(answer, &mut text));
        let answer = told.as_ref().unwrap_or(answer);
        if self.question.is_joined() {
            let start = self.values.len();
            let asked = self.question.asked_for(slot);
            self.question.protocol.answer(&asked, answer, &mut self.values);
            self.fill(slot, start);
        } else if self.error.is_empty() {
            self.question.answer(answer, &mut self.error);
        }
    }

    pub(crate) fn keep_large(&mut self, slot: u32, value: Outbox) -> usize {
        let len = value.len();
        self.slots[slot as usize] = Slot::Large { index: self.large.len() as u32 };
        self.large.push(value);
        len
    }

    /// Whether so much more can stand among the small values.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        u32::try_from(self.values.len() + len).is_ok()
    }

    /// Makes it a read of several keys.
    pub(crate) fn open_slots(&mut self, keys: usize, spares: &mut Spares) {
        self.slots.resize(keys, Slot::Empty);
        self.values = spares.take();
    }

    /// Writes the whole answer of a row that is done.
    pub(crate) fn emit(&mut self, partial: Partial, out: &mut Outbox) {
        assert_eq!(self.state, State::Done, "only a settled request has an answer");
        if self.slots.is_empty() {
            out.append(&mut self.reply);
            out.copy(&self.error);
            return;
        }
        for slot in &self.slots {
            match *slot {
                Slot::Empty | Slot::With { .. } => {}
                Slot::Small { start, end } | Slot::Failed { start, end } => {
                    out.copy(&self.values[start as usize..end as usize]);
                }
                Slot::Large { index } => out.append(&mut self.large[index as usize]),
            }
        }
        if self.error.is_empty() || partial == Partial::Miss || bug!(SilentMiss) {
            self.question.answer(&Answer::End, out.copied());
        } else {
            out.copy(&self.error);
        }
    }
}

/// The table.
#[derive(Default)]
pub(crate) struct Rows {
    rows: Vec<Row>,
    free: Vec<RowId>,
}

impl Rows {
    /// A row in the state `Waiting`, in no queue yet.
    pub(crate) fn alloc(
        &mut self,
        (client, protocol): (ConnId, &'static dyn Protocol),
        pool: u32,
        (request, head): (&Request, &[u8]),
        now: Time,
        spares: &mut Spares,
    ) -> RowId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row::blank(client, protocol));
            (self.rows.len() - 1) as RowId
        });
        let row = &mut self.rows[id as usize];
        assert_eq!(row.state, State::Free, "a free row is in nobody's queue");
        row.state = State::Waiting;
        row.client = client;
        row.pool = pool;
        row.since = now;
        row.next = NONE;
        row.question.set(protocol, (request, head), spares);
        row.writes = false;
        row.abandoned = false;
        row.asked_again = false;
        row.left = 0;
        id
    }

    /// The last part of the row is settled.
    pub(crate) fn set_done(&mut self, id: RowId) {
        let row = &mut self.rows[id as usize];
        assert_eq!(row.state, State::Waiting, "a request is settled once");
        assert_eq!(row.left, 0, "a settled request has no part outstanding");
        row.state = State::Done;
    }

    pub(crate) fn free(&mut self, id: RowId, spares: &mut Spares) {
        let row = &mut self.rows[id as usize];
        assert_eq!(row.state, State::Done, "a request is freed once, after it was settled");
        row.state = State::Free;
        row.error.clear();
        row.question.clear(spares);
        row.reply.clear();
        row.held = 0;
        if !row.slots.is_empty() {
            row.slots.clear();
            row.large.clear();
            spares.give(std::mem::take(&mut row.values));
        }
        if row.reply.copied().capacity() > ROW_KEEP_MAX
            || row.slots.capacity() * size_of::<Slot>() > SLOTS_KEEP_MAX
        {
            *row = Row::blank(row.client, row.question.protocol);
        }
        self.free.push(id);
    }

    /// After a rush, when no request is left: the table gives its memory back.
    pub(crate) fn rest(&mut self) {
        if self.len() == 0 && self.rows.len() > limits::ROWS_REST_MAX {
            *self = Rows::default();
        }
    }

    /// Rows in use.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.state != State::Free)
    }
}

impl std::ops::Index<RowId> for Rows {
    type Output = Row;
    fn index(&self, id: RowId) -> &Row {
        &self.rows[id as usize]
    }
}

impl std::ops::IndexMut<RowId> for Rows {
    fn index_mut(&mut self, id: RowId) -> &mut Row {
        &mut self.rows[id as usize]
    }
}

impl Row {
    fn blank(client: ConnId, protocol: &'static dyn Protocol) -> Row {
        let question = Question {
            protocol,
            command: Asked::NOBODY,
            quiet: Quiet::Loud,
            ask: Ask::default(),
            keep: false,
            gathers: false,
            each: false,
            elements: None,
            repeats: None,
            no_room: None,
            rests: false,
            remedied: false,
            at: 0,
            next: None,
            head: Vec::new(),
            ends: Vec::new(),
        };
        Row {
            state: State::Free,
            client,
            next: NONE,
            pool: 0,
            since: UNTIMED,
            question,
            writes: false,
            abandoned: false,
            asked_again: false,
            left: 0,
            error: Vec::new(),
            reply: Outbox::default(),
            slots: Vec::new(),
            values: Vec::new(),
            large: Vec::new(),
            held: 0,
        }
    }
}

/// A freed row keeps buffers up to this size for its next life.
const ROW_KEEP_MAX: usize = 1024;
/// And slots for so many bytes.
const SLOTS_KEEP_MAX: usize = limits::JOINED_MAX * size_of::<Slot>();
