//! MULTI, EXEC, DISCARD: transactions are refused, and so is all that was meant to be part of one.
//!
//! Clients send MULTI, what is to be done and EXEC in one write. If only MULTI and EXEC were
//! refused, what stands between them would be done though its client is told that it was not.

use super::super::commands::{self, id};
use super::super::refusal;
use super::Talk;
use crate::{Asked, Class};

const ABORTED: &[u8] = b"EXECABORT Transaction discarded because of previous errors.";

impl Talk<'_> {
    pub(super) fn transaction(&mut self, command: u16) {
        let was_void = std::mem::replace(&mut self.session.void, command == id::MULTI);
        match command {
            id::EXEC if was_void => self.error(&[ABORTED]),
            id::DISCARD if was_void => self.ok(),
            _ => self.refuse(command),
        }
    }

    /// As WATCH, which comes with them, is refused.
    fn refuse(&mut self, command: u16) {
        let Class::Refuse(why) = commands::row(id::WATCH).class else {
            unreachable!("WATCH is refused")
        };
        refusal::write(&Asked { command, ..Asked::nobody() }, why, self.out);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Facts, Lane, Parsed, Protocol, Resume, Session};

    #[test]
    fn what_follows_a_refused_multi_is_void_until_its_end() {
        let facts = Facts {
            pool: "pool",
            version: "quickack",
            skills: None,
            spaces: 16,
            lane: Lane { dialect: 2, space: 0 },
            servers: 1,
            clients: 1,
            uptime_s: 1,
            has_users: false,
        };
        let mut session = Session { lane: facts.lane, ..Session::default() };
        let why = "is not supported: it would bind a server connection to one client, and server \
                   connections are shared\r\n";
        for (line, expected, void) in [
            ("exec", format!("-ERR 'exec' {why}"), false),
            ("discard", format!("-ERR 'discard' {why}"), false),
            ("multi", format!("-ERR 'multi' {why}"), true),
            ("client getname", "$-1\r\n".to_string(), true),
            (
                "exec",
                "-EXECABORT Transaction discarded because of previous errors.\r\n".into(),
                false,
            ),
            ("multi", format!("-ERR 'multi' {why}"), true),
            ("multi", format!("-ERR 'multi' {why}"), true),
            ("discard", "+OK\r\n".to_string(), false),
            ("multi", format!("-ERR 'multi' {why}"), true),
            ("reset", "+RESET\r\n".to_string(), false),
        ] {
            let head = format!("{line}\r\n").into_bytes();
            let redis = crate::redis::Redis;
            let parsed = redis.parse_request(&head, &mut Resume::default(), &mut Vec::new());
            let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
            let mut out = Vec::new();
            redis.converse(&request, &head, &mut session, &facts, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{line}");
            assert_eq!(session.void, void, "{line}");
        }
    }
}
