//! One client: what it has said and not yet been answered, what it is answered and has not read.

use proto::Resume;
use proxy::ConnId;

/// A client's state.
#[derive(Default)]
pub struct Session {
    /// What has arrived and waits: for the rest of a frame, or for the client to read.
    pub intake: Vec<u8>,
    /// How far the unfinished line at the start of `intake` was searched.
    pub resume: Resume,
    /// Length of the frame at the start of `intake`, once its head is known; until then 0.
    pub frame_len: usize,
    /// Keys of the read at the start of `intake` that are answered already.
    pub answered: usize,
    /// A data block that nobody keeps.
    pub swallow: Option<Swallow>,
    /// Answers; the first `sent` bytes have gone.
    pub out: Vec<u8>,
    pub sent: usize,
    /// Stands in the list of those who have something to be written.
    pub is_dirty: bool,
    /// The loop was asked not to read it.
    pub is_paused: bool,
    /// Nothing more is read from it; it is closed when it has its answers.
    pub is_leaving: bool,
    /// Bytes of `intake` that the executor has on its account.
    pub accounted: usize,
}

/// The rest of a data block on its way to nowhere.
pub struct Swallow {
    pub left: u64,
    /// What is said when it has passed.
    pub answer: Vec<u8>,
}

impl Session {
    pub fn unsent(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// The first `n` unsent bytes have gone.
    pub fn advance(&mut self, n: usize) {
        self.sent += n;
        assert!(self.sent <= self.out.len(), "more went than was there");
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// So much is unread that nothing more is executed.
    pub fn is_full(&self) -> bool {
        self.out.len() - self.sent > OUT_MAX
    }

    /// A request has begun to arrive and cannot be answered yet.
    pub fn is_mid_request(&self) -> bool {
        !self.intake.is_empty() || self.swallow.is_some()
    }

    /// It was paused with requests unexecuted.
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
        // The loop keeps half of all generations for itself.
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

/// The name of the client in that place.
fn id_of(generation: u32, index: usize) -> ConnId {
    ConnId::from_u64(u64::from(generation) << 32 | index as u64)
}

/// Unread answers above which a client's requests wait. One answer more may stand on top.
const OUT_MAX: usize = 1024 * 1024;
