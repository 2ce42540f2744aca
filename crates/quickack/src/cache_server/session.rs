//! One client: its input that is not executed yet, and its output that is not sent yet.

use proto::Resume;
use proxy::ConnId;

/// A client's state.
#[derive(Default)]
pub struct Session {
    /// Input that waits for the rest of a frame, or for the client to read.
    pub intake: Vec<u8>,
    /// Search position in the unfinished line at the start of `intake`.
    pub resume: Resume,
    /// Length of the frame at the start of `intake`, once its head is known; until then 0.
    pub frame_len: usize,
    /// Number of keys already answered of the read at the start of `intake`.
    pub answered: usize,
    /// A data block to discard.
    pub swallow: Option<Swallow>,
    /// Output; the first `sent` bytes are sent.
    pub out: Vec<u8>,
    pub sent: usize,
    /// Set while the session is in the list of sessions with unsent output.
    pub is_dirty: bool,
    /// The event loop was asked not to read from it.
    pub is_paused: bool,
    /// Nothing more is read from it; it is closed once its output is sent.
    pub is_leaving: bool,
    /// Bytes of `intake` that the executor has accounted for.
    pub accounted: usize,
}

/// The rest of a data block that is discarded as it arrives.
pub struct Swallow {
    pub left: u64,
    /// The reply to send after it.
    pub answer: Vec<u8>,
}

impl Session {
    pub fn unsent(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// Records that the first `n` unsent bytes are sent.
    pub fn advance(&mut self, n: usize) {
        self.sent += n;
        assert!(self.sent <= self.out.len(), "more went than was there");
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// Returns whether so much output is unread that no request is executed.
    pub fn is_full(&self) -> bool {
        self.out.len() - self.sent > OUT_MAX
    }

    /// Returns whether a request has begun to arrive and cannot be answered yet.
    pub fn is_mid_request(&self) -> bool {
        !self.intake.is_empty() || self.swallow.is_some()
    }

    /// Returns whether the session was paused with input that is not executed.
    pub fn has_waiting_input(&self) -> bool {
        self.is_paused
    }
}

/// The clients by id.
#[derive(Default)]
pub struct Sessions {
    places: Vec<(u32, Option<Session>)>,
    free: Vec<usize>,
    len: usize,
}

impl Sessions {
    pub fn insert(&mut self, session: Session) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let (generation, place) = &mut self.places[index];
        *place = Some(session);
        self.len += 1;
        id_of(*generation, index)
    }

    pub fn find(&self, id: ConnId) -> Option<&Session> {
        let (generation, place) = self.places.get(id.index())?;
        place.as_ref().filter(|_| id_of(*generation, id.index()) == id)
    }

    pub fn find_mut(&mut self, id: ConnId) -> Option<&mut Session> {
        let (generation, place) = self.places.get_mut(id.index())?;
        place.as_mut().filter(|_| id_of(*generation, id.index()) == id)
    }

    pub fn remove(&mut self, id: ConnId) -> Option<Session> {
        self.find(id)?;
        let (generation, place) = &mut self.places[id.index()];
        // The event loop keeps half of all generations for itself.
        *generation = (*generation + 1) & (u32::MAX >> 1);
        self.free.push(id.index());
        self.len -= 1;
        place.take()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn ids(&self) -> Vec<ConnId> {
        let living = self.places.iter().enumerate().filter(|(_, (_, place))| place.is_some());
        living.map(|(index, (generation, _))| id_of(*generation, index)).collect()
    }
}

/// Returns the id of the client in that place.
fn id_of(generation: u32, index: usize) -> ConnId {
    ConnId::from_u64(u64::from(generation) << 32 | index as u64)
}

/// Limit on unread replies at which a client's requests wait. One more reply may exceed it.
const OUT_MAX: usize = 1024 * 1024;
