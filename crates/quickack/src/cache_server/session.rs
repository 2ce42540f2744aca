//! One client: its input that is not executed yet, and its output that is not sent yet.

use proto::Resume;

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

/// Limit on unread replies at which a client's requests wait. One more reply may exceed it.
const OUT_MAX: usize = 1024 * 1024;
