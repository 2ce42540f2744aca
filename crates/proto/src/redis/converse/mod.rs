//! What the proxy says by itself: to a client that introduces itself, asks what it is talking to,
//! and looks at what there is.
//!
//! `connection.rs` is about the connection, `client.rs` about who its client is, `catalog.rs` about
//! the commands, `facts.rs` about the server that the proxy seems to be. Shapes and words are those
//! of Redis 7.0 and Valkey 9.1, in both versions of the protocol.

mod catalog;
mod client;
mod connection;
mod facts;
mod glob;

use super::commands::{self, id};
use super::{request, words};
use crate::{Ask, Carry, Facts, Request, Session, Skills, Turn};

pub(super) use connection::login;

/// How a request goes to a server; of our own, whether the servers must be known first.
pub(super) fn carry(request: &Request, head: &[u8], skills: Option<Skills>) -> Carry {
    match request.class {
        _ if request.command == id::HELLO && skills.is_none() && connection::wants_3(head) => {
            Carry::Unknown
        }
        _ => Carry::Ask(Ask { command: request.command }),
    }
}

/// Where an answer is written, and of what.
struct Talk<'a> {
    session: &'a mut Session,
    facts: &'a Facts<'a>,
    out: &'a mut Vec<u8>,
}

pub(super) fn converse(
    request: &Request,
    head: &[u8],
    session: &mut Session,
    facts: &Facts<'_>,
    out: &mut Vec<u8>,
) -> Turn {
    let arguments = request::arguments(head);
    let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &argument[..]).collect();
    let mut talk = Talk { session, facts, out };
    talk.answer(request.command, &arguments)
}

/// After a refused MULTI all else is refused, but for what ends it.
const ENDS_IT: &[u16] = &[id::MULTI, id::EXEC, id::DISCARD, id::RESET, id::QUIT];
const VOID: &[u8] = b"' is not supported: it belongs to a transaction that was refused, of which \
    nothing is carried out";
const NO_MULTI: &[u8] = b"ERR 'multi' is not supported: it would bind a server connection to one \
    client, and server connections are shared";

impl Talk<'_> {
    fn answer(&mut self, command: u16, arguments: &[&[u8]]) -> Turn {
        // What stands behind the name, and behind that of a subcommand.
        let rest = arguments.get(1..).unwrap_or_default();
        let under = arguments.get(2..).unwrap_or_default();
        if self.session.void && !ENDS_IT.contains(&command) {
            let name = commands::rows()[usize::from(command)].name.replace('|', " ");
            self.error(&[b"ERR '", name.as_bytes(), VOID]);
            return Turn::Stay;
        }
        match command {
            id::MULTI | id::EXEC | id::DISCARD => self.transaction(command),
            id::RESET | id::QUIT => return self.turn(command),
            id::PING => self.ping(rest),
            id::ECHO => words::bulk(rest.first().copied().unwrap_or_default(), self.out),
            id::HELLO => self.hello(rest),
            id::AUTH => self.auth(rest),
            id::SELECT => self.select(rest),
            id::CLIENT_ID => words::number(self.session.id, self.out),
            id::CLIENT_GETNAME => self.client_name(),
            id::CLIENT_SETNAME => self.client_set_name(under),
            id::CLIENT_SETINFO => self.client_set_info(under),
            id::CLIENT_INFO => self.client_info(),
            id::CLIENT_NO_EVICT | id::CLIENT_NO_TOUCH => self.client_flag(command, under),
            id::CLIENT_REPLY => self.client_reply(under),
            id::COMMAND => self.command_info(&[]),
            id::COMMAND_INFO => self.command_info(under),
            id::COMMAND_COUNT => self.command_count(),
            id::COMMAND_DOCS => self.command_docs(under),
            id::COMMAND_LIST => self.command_list(under),
            id::COMMAND_GETKEYS => self.command_keys(under, false),
            id::COMMAND_GETKEYSANDFLAGS => self.command_keys(under, true),
            id::INFO => self.info(rest),
            id::CONFIG_GET => self.config(under),
            id::ROLE => self.role(),
            id::ACL_WHOAMI => self.who(),
            id::READONLY | id::READWRITE => words::simple("OK", self.out),
            _ => unreachable!("row {command} is no command of our own"),
        }
        Turn::Stay
    }

    /// Nothing between a refused MULTI and its end is carried out: it was meant to be all or
    /// nothing, and a client may send all of it before it reads an answer.
    fn transaction(&mut self, command: u16) {
        let was_void = std::mem::replace(&mut self.session.void, command == id::MULTI);
        match (command, was_void) {
            (id::MULTI, _) => self.error(&[NO_MULTI]),
            (id::EXEC, true) => {
                self.error(&[b"EXECABORT Transaction discarded because of previous errors."]);
            }
            (id::EXEC, false) => self.error(&[b"ERR EXEC without MULTI"]),
            (_, true) => self.ok(),
            (_, false) => self.error(&[b"ERR DISCARD without MULTI"]),
        }
    }

    /// Which version of the protocol the client speaks.
    fn dialect(&self) -> u8 {
        self.session.lane.dialect
    }

    fn ok(&mut self) {
        words::simple("OK", self.out);
    }

    fn error(&mut self, parts: &[&[u8]]) {
        words::error(parts, self.out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lane, Parsed, Protocol, Resume};

    const FACTS: Facts<'static> = Facts {
        pool: "cache",
        version: "quickack-0.1.0",
        skills: None,
        spaces: 16,
        lane: Lane { dialect: 2, space: 0 },
        servers: 1,
        clients: 1,
        uptime_s: 1,
        has_users: false,
    };

    fn said(session: &mut Session, line: &str) -> String {
        let head = format!("{line}\r\n").into_bytes();
        let redis = crate::redis::Redis;
        let parsed = redis.parse_request(&head, &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
        let mut out = Vec::new();
        converse(&request, &head, session, &FACTS, &mut out);
        String::from_utf8(out).expect("text")
    }

    /// Redis 7.0 would queue the SELECT and forget it: it must not outlive what it belongs to.
    #[test]
    fn nothing_of_a_refused_transaction_is_carried_out() {
        for (end, words) in [("exec", "-EXECABORT Trans"), ("discard", "+OK"), ("reset", "+RESET")]
        {
            let mut session = Session { lane: FACTS.lane, ..Session::default() };
            assert!(said(&mut session, "multi").starts_with("-ERR 'multi' is not supported"));
            assert!(session.void);
            assert!(said(&mut session, "select 5").starts_with("-ERR 'select' is not supported"));
            assert!(said(&mut session, "client setname x").starts_with("-ERR 'client setname'"));
            assert_eq!((session.lane, &session.profile), (FACTS.lane, &None));
            assert!(said(&mut session, end).starts_with(words), "{end}");
            assert!(!session.void, "{end}");
            assert_eq!(said(&mut session, "select 5"), "+OK\r\n");
        }
        let mut session = Session::default();
        assert_eq!(said(&mut session, "exec"), "-ERR EXEC without MULTI\r\n");
        assert_eq!(said(&mut session, "discard"), "-ERR DISCARD without MULTI\r\n");
        assert!(!session.void);
    }
}
