//! The part of a protocol that is about one connection at a server: blocks of requests, watched
//! keys, waits and values that are passed over.

use crate::{Ask, BlockReply, Parsed, Trial};

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

    /// Writes requests whose replies show whether a server executes blocks of ours. If it does not,
    /// the link may be in a block afterwards.
    fn write_trial(&self, _out: &mut Vec<u8>) {}

    /// Writes the request that ends the block in which a trial has left a link.
    fn write_trial_end(&self, _out: &mut Vec<u8>) {}

    /// Reads the reply to the request of the trial with this number, at the start of `input`; the
    /// number of the one that ends its block follows.
    fn read_trial(&self, _nth: usize, _input: &[u8]) -> Parsed<Trial> {
        Parsed::Malformed("no trial")
    }
}
