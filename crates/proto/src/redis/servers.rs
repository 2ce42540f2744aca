//! The handshake on a link, the server's answer to it, and the error lines after which nothing was
//! done.
//!
//! ```text
//!   AUTH [user] password     where we have credentials
//!   SELECT n                 where the connection key has another database than 0
//!   HELLO 2 or 3             always: its answer identifies the server
//! ```
//!
//! Redis answers HELLO and AUTH while it loads its data, and as a replica without a master. So a
//! link comes up all the same, and each request is answered with `-LOADING` until the data is
//! loaded.

use super::answer;
use super::commands;
use super::pubsub;
use super::reply::{self, Walk};
use super::split;
use super::transaction;
use super::words::{bulk, open_array};
use super::work;
use crate::{
    Ask, BlockReply, Bound, Capabilities, ConnKey, Credentials, Errors, HandshakeReply, Item,
    ItemKind, Make, Parsed, Progress, Push, Retryable, TopicKind, Trial, TrialReply, Upstream,
};

const NO_DATA: &str = "it is a Sentinel: it has no data";
const NO_WELCOME: &str = "a reply that cannot answer HELLO";

/// RESP3, which Redis has since version 6.
pub const RESP3: Capabilities = Capabilities::one(0);

/// The errors after which a server has done nothing.
static RETRYABLE: [Retryable; 5] = [
    passes(0, "again_loading_total", "Requests retried because the server was loading its data."),
    passes(
        1,
        "again_master_down_total",
        "Requests retried because the server had lost its master.",
    ),
    passes(
        2,
        "again_cluster_down_total",
        "Requests retried because the server's cluster was down.",
    ),
    passes(3, "again_try_again_total", "Requests retried because the server answered `-TRYAGAIN`."),
    Retryable {
        place: 4,
        counter: "again_no_script_total",
        help: "Requests retried after their script had been loaded.",
        needs_recovery: true,
    },
];
/// It is loading its data.
const LOADING: &Retryable = &RETRYABLE[0];
/// It is a replica that has lost its master.
const MASTER_DOWN: &Retryable = &RETRYABLE[1];
const CLUSTER_DOWN: &Retryable = &RETRYABLE[2];
const TRY_AGAIN: &Retryable = &RETRYABLE[3];
/// It does not know the named script.
pub(super) const NO_SCRIPT: &Retryable = &RETRYABLE[4];

const fn passes(place: usize, counter: &'static str, help: &'static str) -> Retryable {
    Retryable { place, counter, help, needs_recovery: false }
}

pub(super) const VALKEY: &str = "valkey";
/// The version of Redis that every Valkey claims compatibility with, in INFO.
const VALKEY_LIKE: [u16; 3] = [7, 2, 4];

/// Redis servers, and others that use their protocol.
pub struct Servers;

impl Bound for Servers {
    fn open_block(&self, out: &mut Vec<u8>) {
        transaction::open_block(out);
    }

    fn close_block(&self, out: &mut Vec<u8>) -> Ask {
        transaction::close_block(out)
    }

    fn connection_id(&self, welcome: &[u8]) -> u64 {
        transaction::connection_id(welcome)
    }

    fn write_unblock(&self, connection: u64, with_error: bool, out: &mut Vec<u8>) -> Ask {
        transaction::write_unblock(connection, with_error, out)
    }

    fn write_unwatch(&self, out: &mut Vec<u8>) -> Ask {
        transaction::write_unwatch(out)
    }

    fn write_ping(&self, out: &mut Vec<u8>) -> Ask {
        transaction::write_ping(out)
    }

    fn has_executed(&self, head: &[u8]) -> bool {
        transaction::has_executed(head)
    }

    fn is_block_reply(&self, reply: BlockReply, head: &[u8]) -> bool {
        transaction::is_block_reply(reply, head)
    }

    fn tell_aborted(&self, first: &[u8], last: &[u8]) -> Option<Vec<u8>> {
        answer::tell_aborted(first, last)
    }

    fn write_trial(&self, trial: Trial, out: &mut Vec<u8>) -> Ask {
        transaction::write_trial(trial, out)
    }

    fn read_trial(&self, trial: Trial, is_last: bool, reply: &[u8]) -> Option<TrialReply> {
        transaction::read_trial(trial, is_last, reply)
    }
}

impl Errors for Servers {
    fn retryable_errors(&self) -> &'static [Retryable] {
        &RETRYABLE
    }

    fn retryable(&self, line: &[u8]) -> Option<&'static Retryable> {
        retryable(line)
    }

    fn busy_line(&self, error: &[u8]) -> Option<Vec<u8>> {
        work::busy_line(error)
    }

    fn runs_script(&self, ask: Ask) -> bool {
        work::runs_script(ask)
    }
}

impl Upstream for Servers {
    fn families(&self) -> &'static [&'static str] {
        commands::FAMILIES
    }

    fn parse_reply(&self, ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
        reply::parse(ask, progress, input)
    }

    fn needs(&self, _ask: Ask) -> Capabilities {
        Capabilities::default()
    }

    fn has_needs(&self) -> bool {
        false
    }

    fn fetch_max(&self, _ask: Ask) -> usize {
        usize::MAX
    }

    fn widen(&self, _ask: Ask, _other: Ask) -> Option<Ask> {
        None
    }

    fn push_fetch(&self, key: &[u8], out: &mut Vec<u8>) -> usize {
        split::push_key(key, out);
        out.len() - key.len() - b"\r\n".len()
    }

    fn seal_fetch(&self, ask: Ask, keys: usize, text: &[u8], out: &mut Vec<u8>) {
        split::seal(ask, keys, text, out);
    }

    fn write_handshake(
        &self,
        credentials: Option<&Credentials>,
        conn_key: ConnKey,
        out: &mut Vec<u8>,
    ) {
        write_handshake(credentials, conn_key, out);
    }

    fn read_handshake(
        &self,
        credentials: bool,
        conn_key: ConnKey,
        input: &[u8],
    ) -> Parsed<HandshakeReply> {
        read_handshake(credentials, conn_key, input)
    }

    fn elements(&self, reply: &[u8]) -> Option<(usize, u64)> {
        reply::elements(reply)
    }

    fn element_len(&self, elements: &[u8]) -> Option<usize> {
        reply::element_len(elements)
    }

    fn write_topic_request(&self, kind: TopicKind, joins: bool, topic: &[u8], out: &mut Vec<u8>) {
        pubsub::write_request(kind, joins, topic, out);
    }

    fn write_topic_ping(&self, out: &mut Vec<u8>) {
        pubsub::write_ping(out);
    }

    fn read_push(&self, input: &[u8]) -> Parsed<Push> {
        pubsub::read(input)
    }

    fn topic_matches(&self, pattern: &[u8], channel: &[u8]) -> bool {
        pubsub::matches(pattern, channel)
    }

    fn is_null(&self, reply: &[u8]) -> bool {
        matches!(reply, b"$-1\r\n" | b"_\r\n" | b"*-1\r\n")
    }
}

fn write_handshake(credentials: Option<&Credentials>, conn_key: ConnKey, out: &mut Vec<u8>) {
    if let Some(Credentials { name, password }) = credentials {
        // Servers before Redis 6 have no user names.
        if name.is_empty() {
            open_array(2, out);
            bulk(b"AUTH", out);
        } else {
            open_array(3, out);
            bulk(b"AUTH", out);
            bulk(name.as_bytes(), out);
        }
        bulk(password.as_bytes(), out);
    }
    if conn_key.database != 0 {
        open_array(2, out);
        bulk(b"SELECT", out);
        bulk(conn_key.database.to_string().as_bytes(), out);
    }
    open_array(2, out);
    bulk(b"HELLO", out);
    bulk(proto_version(conn_key).to_string().as_bytes(), out);
}

/// Returns the protocol version of a connection key; the default is that of a new connection.
fn proto_version(conn_key: ConnKey) -> u8 {
    conn_key.proto_version.max(2)
}

fn read_handshake(credentials: bool, conn_key: ConnKey, input: &[u8]) -> Parsed<HandshakeReply> {
    let mut rest = input;
    // Its other answers follow: they are waited for, since the handshake may be repeated.
    let mut is_busy = false;
    let steps =
        [(Step::Auth, credentials), (Step::Select, conn_key.database != 0), (Step::Hello, true)];
    for (step, _) in steps.into_iter().filter(|(_, is_asked)| *is_asked) {
        let reply = match whole_reply(rest) {
            Ok(reply) => reply,
            Err(why) => return why,
        };
        rest = &rest[reply.len()..];
        let len = input.len() - rest.len();
        match judge(step, conn_key, reply) {
            Verdict::GoOn => {}
            Verdict::Busy if step != Step::Hello => is_busy = true,
            Verdict::Knows(_) if is_busy => return Parsed::Complete(HandshakeReply::Busy),
            Verdict::Knows(capabilities) => {
                return Parsed::Complete(HandshakeReply::Welcome { len, capabilities });
            }
            Verdict::NoLogin => return Parsed::Complete(HandshakeReply::LoginRefused),
            Verdict::Refused => return Parsed::Complete(HandshakeReply::Refused),
            Verdict::SetupRefused => return Parsed::Complete(HandshakeReply::SetupRefused),
            Verdict::Busy => return Parsed::Complete(HandshakeReply::Busy),
            Verdict::Useless(why) => return Parsed::Malformed(why),
        }
    }
    unreachable!("the answer to HELLO is the last, and always ends it")
}

/// A command of the handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Auth,
    Select,
    Hello,
}

/// The meaning of one reply.
enum Verdict {
    GoOn,
    Knows(Capabilities),
    NoLogin,
    Refused,
    SetupRefused,
    Busy,
    Useless(&'static str),
}

/// Returns the reply that `input` begins with, or the result if there is none.
fn whole_reply(input: &[u8]) -> Result<&[u8], Parsed<HandshakeReply>> {
    let mut at = 0;
    let mut progress = Progress::default();
    loop {
        match reply::parse(Ask::default(), &mut progress, &input[at..]) {
            Parsed::Complete(item) => {
                at += item.len() as usize;
                if at > input.len() {
                    return Err(Parsed::Incomplete);
                }
                if item.kind.ends_reply() {
                    let is_error = item.kind == ItemKind::Error && input.first() != Some(&b'-');
                    let reply = &input[..at];
                    return if is_error { Err(Parsed::Malformed(NO_WELCOME)) } else { Ok(reply) };
                }
            }
            Parsed::Incomplete => return Err(Parsed::Incomplete),
            Parsed::Malformed(why) => return Err(Parsed::Malformed(why)),
        }
    }
}

fn judge(step: Step, conn_key: ConnKey, reply: &[u8]) -> Verdict {
    let Some(error) = reply.strip_prefix(b"-") else {
        return match step {
            Step::Hello => welcome(conn_key, reply),
            _ if reply == b"+OK\r\n" => Verdict::GoOn,
            _ => Verdict::Useless(NO_WELCOME),
        };
    };
    // In protected mode it wants a password, or to listen elsewhere.
    // While it loads its data, or has no master, it will take us later.
    let is_full = error.starts_with(b"ERR max number of clients");
    if is_full || error.starts_with(b"DENIED ") || retryable(reply).is_some() {
        return Verdict::Refused;
    }
    // No script of a client's writes here, so the word is enough.
    if error.starts_with(b"BUSY ") {
        return Verdict::Busy;
    }
    match step {
        // A server without a password accepts everybody, with credentials too, as it does with
        // nutcracker.
        Step::Auth if wants_no_password(error) => Verdict::GoOn,
        Step::Auth => Verdict::NoLogin,
        _ if error.starts_with(b"NOAUTH") => Verdict::NoLogin,
        Step::Select => Verdict::SetupRefused,
        Step::Hello if proto_version(conn_key) > 2 => Verdict::SetupRefused,
        // A server that does not know HELLO has RESP2 and no other version.
        Step::Hello => Verdict::Knows(Capabilities::default()),
    }
}

fn wants_no_password(error: &[u8]) -> bool {
    error.starts_with(b"ERR AUTH <password> called without any password configured")
        || error.starts_with(b"ERR Client sent AUTH, but no password is set")
}

/// Reads the map that answers HELLO: an array of pairs in RESP2.
fn welcome(conn_key: ConnKey, reply: &[u8]) -> Verdict {
    let mut make = Make { name: "redis", ..Make::default() };
    let mut proto = None;
    let mut walk = Walk::new(reply);
    let is_map = reply.first() == Some(&b'%');
    let Some(count) = walk.open() else { return Verdict::Useless(NO_WELCOME) };
    if is_map != (proto_version(conn_key) == 3) {
        return Verdict::Useless(NO_WELCOME);
    }
    for _ in 0..count / 2 {
        let (Some(name), Some(value)) = (walk.text(), walk.value()) else {
            return Verdict::Useless(NO_WELCOME);
        };
        let mut value = Walk::new(value);
        match name {
            b"server" if value.text() == Some(VALKEY.as_bytes()) => make.name = VALKEY,
            b"version" => make.version = version(value.text().unwrap_or_default()),
            b"mode" if value.text() == Some(b"sentinel") => return Verdict::Useless(NO_DATA),
            b"proto" => proto = value.number(),
            _ => {}
        }
    }
    if proto != Some(u64::from(proto_version(conn_key))) {
        return Verdict::Useless(NO_WELCOME);
    }
    make.like = if make.name == VALKEY { VALKEY_LIKE } else { make.version };
    Verdict::Knows(RESP3.made_by(make))
}

/// Reads a version as `7.0.15`; a part that is no number counts as 0.
fn version(text: &[u8]) -> [u16; 3] {
    let mut parts = text.split(|byte| !byte.is_ascii_digit());
    let mut part = || {
        let text = parts.next().unwrap_or_default();
        crate::scan::decimal(text, u64::from(u16::MAX)).unwrap_or(0) as u16
    };
    [part(), part(), part()]
}

/// Returns the retryable error of this error line, if it says that the server did nothing. These
/// are the servers' whole sentences. An error that a script raises after it has changed something
/// may begin with the same word, but it ends differently.
fn retryable(line: &[u8]) -> Option<&'static Retryable> {
    let text = line.strip_prefix(b"-")?.strip_suffix(b"\r\n")?;
    let end = text.iter().position(|&byte| byte == b' ')?;
    let (word, why) = (&text[..end], &text[end + 1..]);
    let (retryable, is_whole) = match word {
        b"LOADING" => (LOADING, why.ends_with(b" is loading the dataset in memory")),
        b"MASTERDOWN" => (
            MASTER_DOWN,
            why.starts_with(b"Link with MASTER is down")
                && (why.ends_with(b"-serve-stale-data is set to 'no'.")
                    || why.ends_with(b"'allow-stale' flag is not set on the script.")),
        ),
        b"CLUSTERDOWN" => (
            CLUSTER_DOWN,
            matches!(
                why,
                b"The cluster is down"
                    | b"The cluster is down and only accepts read commands"
                    | b"Hash slot not served"
            ),
        ),
        b"TRYAGAIN" => (TRY_AGAIN, why == b"Multiple keys request during rehashing of slot"),
        b"NOSCRIPT" => (
            NO_SCRIPT,
            matches!(why, b"No matching script. Please use EVAL." | b"No matching script."),
        ),
        _ => return None,
    };
    is_whole.then_some(retryable)
}

#[cfg(test)]
mod tests;
