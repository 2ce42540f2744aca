//! Local commands: a client introduces itself, asks for the server's identity, and lists what is
//! there.
//!
//! `connection.rs` is about the connection, `client.rs` about its client, `inquiry.rs` about other
//! clients, `catalog.rs` and `docs.rs` about the commands, `slow.rs` about slow requests. Shapes
//! and texts are those of Redis 7.0 and Valkey 9.1, in both protocol versions.

mod catalog;
mod client;
mod connection;
mod docs;
mod glob;
mod inquiry;
mod show;
mod slow;

use super::commands::{self, id};
use super::{arguments, words};
use crate::{Adapted, AfterLocal, Ask, Capabilities, Facts, Inquiry, ProxyFacts, Request, Session};

pub(super) use connection::login;
pub(super) use glob::matches_exactly;
pub(super) use inquiry::{describe, flags as client_flags};
pub(super) use show::show;

/// Returns the form of a request for a server; for a local command, whether the servers must be
/// known first.
pub(super) fn adapt(request: &Request, capabilities: Option<Capabilities>) -> Adapted {
    match request.command {
        id::HELLO | id::READONLY | id::READWRITE if capabilities.is_none() => Adapted::Unknown,
        command => Adapted::Ask(Ask { command }),
    }
}

/// Returns what all workers are to be asked before a request about clients is answered.
pub(super) fn inquiry(request: &Request, head: &[u8]) -> Option<Inquiry> {
    let arguments = arguments::all(head);
    let under = arguments.get(2..).unwrap_or_default().iter();
    let under: Vec<&[u8]> = under.map(|argument| &argument[..]).collect();
    inquiry::read(request.command, &under).ok().flatten()
}

/// Whether the answer is one of the texts about all commands, which depend on the protocol version
/// alone.
pub(super) fn is_constant(request: &Request, head: &[u8]) -> bool {
    match request.command {
        id::COMMAND => true,
        id::COMMAND_INFO | id::COMMAND_DOCS | id::COMMAND_LIST => {
            arguments::first(head, 3).len() == 2
        }
        _ => false,
    }
}

/// Returns how many of the arguments of a local command are looked at, its name among them: some
/// take any number, and ignore them or say that there are too many.
fn arguments_most(command: u16) -> usize {
    match command {
        id::QUIT | id::RESET => 1,
        id::AUTH | id::PING | id::SLOWLOG_GET => 4,
        _ => usize::MAX,
    }
}

/// Returns how many bytes a local command's answer takes at most, with its list of arguments.
pub(super) fn bytes_most(request: &Request) -> usize {
    let len = request.head as usize;
    match request.command {
        id::COMMAND_INFO | id::COMMAND_DOCS => {
            ANSWER_LEN_MAX.min(ANSWER_GROWTH * len).max(LIST_GROWTH * len)
        }
        command if usize::from(command) >= commands::COUNT => len,
        command => {
            let has_any_number = commands::row(command).arity < 0;
            let lists = has_any_number && arguments_most(command) == usize::MAX;
            if lists { LIST_GROWTH * len } else { len }
        }
    }
}

/// The answer about a command is at most so many times as long as its name with its length.
const ANSWER_GROWTH: usize = 1500;
/// Bytes of an answer about commands: others wait while it is written.
const ANSWER_LEN_MAX: usize = 8 * 1024 * 1024;
const LONG_ANSWER: &[u8] = b"ERR the answer is longer than 8 MiB";
/// The most commands that are looked up for one answer: others wait meanwhile.
const NAMES_MAX: usize = 150_000;
const MANY_NAMES: &[u8] = b"ERR at most 150000 commands are told of at once";
/// The list of arguments is at most so many times as long as the request: one takes 6 bytes in it.
const LIST_GROWTH: usize = 8;

/// The answer being written, and its sources.
struct LocalAnswer<'a> {
    session: &'a mut Session,
    facts: Facts<'a>,
    proxy: &'a dyn ProxyFacts,
    out: &'a mut Vec<u8>,
}

pub(super) fn local(
    request: &Request,
    head: &[u8],
    session: &mut Session,
    proxy: &dyn ProxyFacts,
    out: &mut Vec<u8>,
) -> AfterLocal {
    let arguments = arguments::first(head, arguments_most(request.command));
    let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &argument[..]).collect();
    let mut answer = LocalAnswer { session, facts: proxy.facts(), proxy, out };
    answer.answer(request.command, &arguments)
}

impl LocalAnswer<'_> {
    fn answer(&mut self, command: u16, arguments: &[&[u8]]) -> AfterLocal {
        // The arguments behind the name, and those behind the name of a subcommand.
        let rest = arguments.get(1..).unwrap_or_default();
        let under = arguments.get(2..).unwrap_or_default();
        match command {
            id::RESET | id::QUIT => return self.quit_or_reset(command),
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
            id::CLIENT_LIST
            | id::CLIENT_KILL
            | id::CLIENT_PAUSE
            | id::CLIENT_UNBLOCK
            | id::CLIENT_UNPAUSE => {
                return self.about_clients(command, under);
            }
            id::MONITOR => {
                self.ok();
                return AfterLocal::Monitor;
            }
            id::COMMAND => self.command_info(&[]),
            id::COMMAND_INFO => self.command_info(under),
            id::COMMAND_COUNT => self.command_count(),
            id::COMMAND_DOCS => self.command_docs(under),
            id::COMMAND_LIST => self.command_list(under),
            id::COMMAND_GETKEYS => self.command_keys(under, false),
            id::COMMAND_GETKEYSANDFLAGS => self.command_keys(under, true),
            id::ROLE => self.role(),
            id::ACL_WHOAMI => self.who(),
            id::READONLY | id::READWRITE => self.cluster_only(command),
            id::SLOWLOG_GET => self.slowlog_get(under),
            id::SLOWLOG_LEN => self.slowlog_len(),
            id::SLOWLOG_RESET => return self.slowlog_reset(),
            id::LATENCY_HISTORY => self.latency_history(under),
            id::LATENCY_LATEST => self.latency_latest(),
            id::LATENCY_RESET => return self.latency_reset(under),
            id::SLOWLOG_HELP | id::LATENCY_HELP => self.slow_help(command),
            _ => unreachable!("row {command} is no command of our own"),
        }
        AfterLocal::Continue
    }

    /// Returns the protocol version of the client.
    fn proto_version(&self) -> u8 {
        self.session.conn_key.proto_version
    }

    fn ok(&mut self) {
        words::simple("OK", self.out);
    }

    fn error(&mut self, parts: &[&[u8]]) {
        words::error(parts, self.out);
    }
}
