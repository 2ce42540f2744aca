//! The part of a protocol that is about one connection at a server: blocks of requests, watched
//! keys, waits and values that are passed over.

use crate::Ask;

/// The part of a protocol of servers that is about one connection.
pub trait Bound: Sync {
    /// Writes what goes before the requests of a block, which a server executes as one.
    fn open_block(&self, _out: &mut Vec<u8>) {}

    /// Writes what goes behind the last request of a block. The reply to it has this form.
    fn close_block(&self, _out: &mut Vec<u8>) -> Ask {
        unreachable!("these servers know no blocks")
    }

    /// Returns the number that a server has given the connection, in its answer to the handshake;
    /// 0: none.
    fn connection_id(&self, _welcome: &[u8]) -> u64 {
        0
    }

    /// Writes the request, on another connection, that the one with this number waits no more.
    fn write_unblock(&self, _connection: u64, _with_error: bool, _out: &mut Vec<u8>) -> Ask {
        unreachable!("these servers give connections no numbers")
    }

    /// Writes the request to watch no keys any more on this connection.
    fn write_unwatch(&self, _out: &mut Vec<u8>) -> Ask {
        unreachable!("these servers know no blocks")
    }

    /// Writes a request that a server answers unless it is busy.
    fn write_ping(&self, _out: &mut Vec<u8>) -> Ask {
        unreachable!("these servers are never busy")
    }

    /// Whether a server passes over the rest of a value after this line, which it sends when it has
    /// read the head of that; or may do so, since the line is incomplete. After any other error it
    /// may read the rest as requests.
    fn passes_over(&self, _line: &[u8]) -> bool {
        false
    }

    /// Whether this reply says that a block was executed.
    fn has_executed(&self, _head: &[u8]) -> bool {
        false
    }

    /// Whether this can be such a reply within those to a block. After any other, nobody knows
    /// whether the block is still open.
    fn is_block_reply(&self, _reply: BlockReply, _head: &[u8]) -> bool {
        false
    }

    /// Adds the first error within a block to the line that ends it, if that says no more than that
    /// there was one. None: the line is passed on.
    fn tell_aborted(&self, _first: &[u8], _last: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Writes the two requests of a trial.
    fn write_trial(&self, _trial: Trial, _out: &mut Vec<u8>) -> Ask {
        Ask::default()
    }

    /// Reads the reply to the first or the last request of a trial. None: no server answers like
    /// this.
    fn read_trial(&self, _trial: Trial, _is_last: bool, _reply: &[u8]) -> Option<TrialReply> {
        None
    }
}

/// A trial of a server: two requests, sent together, that show whether it executes blocks of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The requests that end a block, outside of one: a server that knows them says that there is
    /// none. On any other server they change nothing.
    Ends,
    /// An empty block. If the server does not know the request that ends it, its link stays in it.
    Empty,
}

/// The meaning of a reply to a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialReply {
    /// It is as it must be.
    Accepted,
    /// The server does not know the request, or forbids it.
    Refused,
    /// The server is busy, and says nothing of blocks now.
    Busy,
}

/// A reply within those to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReply {
    /// The block has begun.
    Begun,
    /// One request of it is queued, or refused.
    Queued,
    /// All of it is executed, or nothing.
    Ended,
}
