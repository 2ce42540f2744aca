//! MULTI, EXEC, DISCARD: transactions are refused, together with every command in them.
//!
//! Clients send MULTI, their commands and EXEC in one write. If only MULTI and EXEC were refused,
//! the commands between them would be executed although the client reads that they were not. A
//! client that waits for the answer to MULTI never sends EXEC, so the data plane closes it with
//! that answer.

use super::super::commands::{self, id};
use super::LocalAnswer;

/// Commands that are answered even in a refused transaction.
const ANSWERED: &[u16] =
    &[id::MULTI, id::EXEC, id::DISCARD, id::RESET, id::QUIT, id::HELLO, id::AUTH];
const IN_ABORTED: &[u8] =
    b"' is not supported: it belongs to a refused transaction, of which nothing is \
    executed";
const NO_MULTI: &[u8] = b"ERR 'multi' is not supported: it would bind a server connection to one \
    client, and server connections are shared";
const ABORTED: &[u8] = b"EXECABORT Transaction discarded because of previous errors.";

impl LocalAnswer<'_> {
    pub(super) fn transaction(&mut self, command: u16) {
        let was_aborted = std::mem::replace(&mut self.session.aborted, command == id::MULTI);
        match (command, was_aborted) {
            (id::MULTI, _) => self.error(&[NO_MULTI]),
            (id::EXEC, true) => self.error(&[ABORTED]),
            (id::EXEC, false) => self.error(&[b"ERR EXEC without MULTI"]),
            (_, true) => self.ok(),
            (_, false) => self.error(&[b"ERR DISCARD without MULTI"]),
        }
    }

    /// Whether a command is refused because it belongs to a refused transaction. A server would
    /// have queued and discarded it.
    pub(super) fn is_aborted(&mut self, command: u16) -> bool {
        let is_aborted = self.session.aborted && !ANSWERED.contains(&command);
        if is_aborted {
            let name = commands::rows()[usize::from(command)].name.replace('|', " ");
            self.error(&[b"ERR '", name.as_bytes(), IN_ABORTED]);
        }
        is_aborted
    }
}

#[cfg(test)]
mod tests {
    use super::super::local;
    use crate::tests::FACTS;
    use crate::{Parsed, Protocol, Resume, Session};

    fn said(session: &mut Session, line: &str) -> String {
        let head = format!("{line}\r\n").into_bytes();
        let redis = crate::redis::Redis;
        let parsed = redis.parse_request(&head, &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
        let mut out = Vec::new();
        local(&request, &head, session, &FACTS, &mut out);
        String::from_utf8(out).expect("text")
    }

    /// Redis 7.0 would queue the SELECT and discard it: it must not outlive its transaction.
    #[test]
    fn nothing_of_a_refused_transaction_is_carried_out() {
        for (end, words) in [("exec", "-EXECABORT Trans"), ("discard", "+OK"), ("reset", "+RESET")]
        {
            let mut session = Session { conn_key: FACTS.conn_key, ..Session::default() };
            assert!(said(&mut session, "multi").starts_with("-ERR 'multi' is not supported"));
            assert!(session.aborted);
            assert!(said(&mut session, "select 5").starts_with("-ERR 'select' is not supported"));
            assert!(said(&mut session, "client setname x").starts_with("-ERR 'client setname'"));
            assert_eq!((session.conn_key, &session.profile), (FACTS.conn_key, &None));
            assert!(said(&mut session, end).starts_with(words), "{end}");
            assert!(!session.aborted, "{end}");
            assert_eq!(said(&mut session, "select 5"), "+OK\r\n");
        }
        let mut session = Session::default();
        assert_eq!(said(&mut session, "exec"), "-ERR EXEC without MULTI\r\n");
        assert_eq!(said(&mut session, "discard"), "-ERR DISCARD without MULTI\r\n");
        assert!(!session.aborted);
    }
}
