//! Transactions: what becomes of each command between MULTI and EXEC, and the block in which a
//! server gets all of them at once.
//!
//! ```text
//!   client   MULTI   SET k 1   PING      GET k     EXEC
//!   proxy    +OK     +QUEUED   +QUEUED   +QUEUED   ─▶ MULTI SET k 1 GET k EXEC
//!                                                 ◀─ +OK +QUEUED +QUEUED *2 +OK $1 1
//!   client   *3 +OK +PONG $1 1
//! ```

use super::arguments;
use super::commands::{self, Effort, id};
use super::reply::{self, Walk};
use super::words::{bulk, open_array};
use crate::{
    Ask, BlockReply, Class, InTransaction, Local, Place, Reach, Refusal, Request, Trial,
    TrialReply, block,
};

const SETS: &str = "inside MULTI: it would change the connection";
const RESETS: &str = "inside MULTI: the proxy would do it before EXEC";
const STEPS: &str = "inside MULTI: it goes from server to server";
const SURVEYS: &str = "inside MULTI: its answer is made of those of all servers";
const WATCH: &str = "WATCH inside MULTI is not allowed";

pub(super) fn in_transaction(request: &Request, input: &[u8]) -> InTransaction {
    let head = &input[..request.head as usize];
    match (request.class, request.command) {
        (Class::Local(_), id::RESET | id::QUIT) => InTransaction::AtOnce,
        (Class::Local(Local::Begin), _) => InTransaction::Harmless(Refusal::OutOfPlace),
        (Class::Single { .. }, id::WATCH) => InTransaction::Harmless(Refusal::Bad(WATCH)),
        (Class::Local(Local::Nothing), _) if arguments::first(head, 1).is_empty() => {
            InTransaction::Nothing
        }
        (Class::Local(_), id::SELECT) => {
            match arguments::first(head, 2).get(1).and_then(|word| database(word)) {
                Some(database) => InTransaction::Selects(database),
                None => InTransaction::Answered,
            }
        }
        (Class::Local(_), command) => match why_not_kept(command) {
            Some(why) => InTransaction::Refused(Refusal::ByName(why)),
            None => InTransaction::Answered,
        },
        (Class::Refuse(refusal), _) => InTransaction::Refused(refusal),
        _ if matches!(request.place, Place::Nth(_) | Place::From(_) | Place::Nowhere) => {
            InTransaction::Refused(Refusal::ByName(STEPS))
        }
        (Class::Broadcast { gated: false, reach: Reach::Survey, .. }, _)
        | (Class::Broadcast { writes: true, reach: Reach::Control, .. }, _) => {
            InTransaction::Refused(Refusal::ByName(SURVEYS))
        }
        _ => InTransaction::Queued,
    }
}

/// Returns the database that this word names, as servers read it.
fn database(word: &[u8]) -> Option<u32> {
    let is_plain = word.len() == 1 || !word.starts_with(b"0");
    let number = crate::scan::decimal(word, i32::MAX as u64).filter(|_| is_plain)?;
    Some(number as u32)
}

/// Returns why a local command cannot be answered in advance, if it changes anything.
fn why_not_kept(command: u16) -> Option<&'static str> {
    match command {
        id::SUBSCRIBE
        | id::UNSUBSCRIBE
        | id::PSUBSCRIBE
        | id::PUNSUBSCRIBE
        | id::SSUBSCRIBE
        | id::SUNSUBSCRIBE
        | id::HELLO
        | id::AUTH
        | id::CLIENT_SETNAME
        | id::CLIENT_SETINFO
        | id::CLIENT_NO_EVICT
        | id::CLIENT_NO_TOUCH
        | id::CLIENT_REPLY
        | id::MONITOR => Some(SETS),
        id::SLOWLOG_RESET | id::LATENCY_RESET => Some(RESETS),
        id::CLIENT_LIST
        | id::CLIENT_KILL
        | id::CLIENT_PAUSE
        | id::CLIENT_UNBLOCK
        | id::CLIENT_UNPAUSE => Some(RESETS),
        _ => None,
    }
}

pub(super) fn open_block(out: &mut Vec<u8>) {
    push("MULTI", out);
}

/// Writes the request that the connection with this number waits no more.
pub(super) fn write_unblock(connection: u64, with_error: bool, out: &mut Vec<u8>) -> Ask {
    let reason = if with_error { "ERROR" } else { "TIMEOUT" };
    open_array(4, out);
    for word in ["CLIENT", "UNBLOCK", &connection.to_string(), reason] {
        bulk(word.as_bytes(), out);
    }
    Ask { command: id::CLIENT_UNBLOCK }
}

/// Returns the number that a server has given the connection, in its answer to HELLO; 0: none.
pub(super) fn connection_id(welcome: &[u8]) -> u64 {
    const FIELD: &[u8] = b"$2\r\nid\r\n:";
    let at = welcome.windows(FIELD.len()).position(|part| part == FIELD);
    let digits = at.map_or(&b""[..], |at| &welcome[at + FIELD.len()..]);
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    crate::scan::decimal(&digits[..len], u64::MAX).unwrap_or(0)
}

/// Writes the request to watch no keys any more.
pub(super) fn write_unwatch(out: &mut Vec<u8>) -> Ask {
    push("UNWATCH", out);
    Ask { command: id::UNWATCH }
}

/// Writes the request that a server answers unless it is busy.
pub(super) fn write_ping(out: &mut Vec<u8>) -> Ask {
    push("PING", out);
    Ask { command: id::PING }
}

pub(super) fn close_block(out: &mut Vec<u8>) -> Ask {
    push("EXEC", out);
    Ask { command: id::EXEC }
}

fn push(name: &str, out: &mut Vec<u8>) {
    open_array(1, out);
    bulk(name.as_bytes(), out);
}

/// Whether this is the reply to an EXEC that was executed: it is none after a change of what was
/// watched.
pub(super) fn has_executed(head: &[u8]) -> bool {
    head.first() == Some(&b'*') && head != b"*-1\r\n"
}

/// Whether this can be a reply to MULTI, to a command after it, or to EXEC. An EXEC that is refused
/// for any reason of the server's own is answered with EXECABORT, which ends the transaction. Any
/// other error means that EXEC is not known by this name.
pub(super) fn is_block_reply(reply: BlockReply, head: &[u8]) -> bool {
    match reply {
        BlockReply::Begun => head == b"+OK\r\n",
        BlockReply::Queued => head == b"+QUEUED\r\n" || head.starts_with(b"-"),
        BlockReply::Ended => {
            matches!(head.first(), Some(b'*' | b'_')) || head.starts_with(b"-EXECABORT ")
        }
    }
}

/// Whether a reply says that its request was queued, although it is in no block: the link is in a
/// transaction that does not end. A script may write the same line.
pub(super) fn is_stray(ask: Ask, reply: &[u8]) -> bool {
    reply.starts_with(b"+QUEUED\r\n")
        && ask.command != id::EXEC
        && commands::row(ask.index()).effort != Effort::Script
}

/// EXEC comes last where it can be refused, since a busy server takes DISCARD.
pub(super) fn write_trial(trial: Trial, out: &mut Vec<u8>) -> Ask {
    let names = match trial {
        Trial::Ends => ["DISCARD", "EXEC"],
        Trial::Empty => ["MULTI", "DISCARD"],
    };
    names.into_iter().for_each(|name| push(name, out));
    Ask { command: id::EXEC }
}

pub(super) fn read_trial(trial: Trial, is_last: bool, reply: &[u8]) -> Option<TrialReply> {
    let is_accepted = match (trial, is_last) {
        (Trial::Ends, false) => reply.starts_with(b"-ERR DISCARD without MULTI"),
        (Trial::Ends, true) => reply.starts_with(b"-ERR EXEC without MULTI"),
        (Trial::Empty, _) => reply == b"+OK\r\n",
    };
    // A busy server refuses EXEC so, also where there is no transaction.
    const BUSY: [&[u8]; 2] = [b"-BUSY ", b"-EXECABORT Transaction discarded because of: BUSY "];
    match reply {
        _ if is_accepted => Some(TrialReply::Accepted),
        _ if BUSY.iter().any(|busy| reply.starts_with(busy)) => Some(TrialReply::Busy),
        _ if reply.starts_with(b"-") => Some(TrialReply::Refused),
        _ => None,
    }
}

/// Puts the proxy's own answers in their places among the elements of a server's reply. A
/// transaction that was not executed has no elements.
pub(super) fn splice(answers: &[u8], reply: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let Some((start, count)) = reply::elements(reply) else {
        out.extend_from_slice(reply);
        return Some(());
    };
    let total = count as usize + block::iter(answers).count();
    open_array(total, out);
    let mut walk = Walk::new(&reply[start..]);
    let mut answers = block::iter(answers).peekable();
    for place in 0..total as u32 {
        match answers.next_if(|answer| answer.0 == place) {
            Some((_, answer)) => out.extend_from_slice(answer),
            None => out.extend_from_slice(walk.value()?),
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::Redis;
    use crate::{Parsed, Resume};
    use crate::{Protocol, Refusal};

    fn what(line: &str) -> (InTransaction, Request, Vec<String>) {
        let input = format!("{line}\r\n").into_bytes();
        let mut keys = Vec::new();
        let parsed = Redis.parse_request(&input, &mut Resume::default(), &mut keys);
        let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
        let what = in_transaction(&request, &input);
        let keys = keys.iter().map(|key| String::from_utf8_lossy(key.of(&input)).into_owned());
        (what, request, keys.collect())
    }

    #[test]
    fn what_servers_execute_is_queued_and_what_the_proxy_answers_is_kept() {
        for line in ["get k", "set k v", "mget a b", "dbsize", "flushall", "time", "eval x 1 k"] {
            assert_eq!(what(line).0, InTransaction::Queued, "{line}");
        }
        for line in ["ping", "ping x", "echo x", "client id", "command count", "unwatch", "role"] {
            assert_eq!(what(line).0, InTransaction::Answered, "{line}");
        }
        assert_eq!(what("select 1").0, InTransaction::Selects(1));
        for line in ["select x", "select -1", "select 01"] {
            assert_eq!(what(line).0, InTransaction::Answered, "{line}");
        }
        for line in ["reset", "quit"] {
            assert_eq!(what(line).0, InTransaction::AtOnce, "{line}");
        }
        for line in ["multi", "watch k"] {
            assert!(matches!(what(line).0, InTransaction::Harmless(_)), "{line}");
        }
        assert_eq!(what("").0, InTransaction::Nothing);
        for line in [
            "hello 3",
            "client reply off",
            "client setname x",
            "slowlog reset",
            "latency reset",
            "subscribe c",
            "info",
            "config get x",
            "scan 0",
            "script kill",
            "get",
            "nope",
        ] {
            assert!(matches!(what(line).0, InTransaction::Refused(_)), "{line}");
        }
    }

    #[test]
    fn what_waits_elsewhere_does_not_wait_and_its_keys_are_known() {
        for (line, expected) in [
            ("blpop a b 0", vec!["a", "b"]),
            ("brpop a 1.5", vec!["a"]),
            ("blmove a b left right 0", vec!["a", "b"]),
            ("brpoplpush a b 0", vec!["a", "b"]),
            ("blmpop 0 2 a b left count 3", vec!["a", "b"]),
            ("bzpopmin a b 0", vec!["a", "b"]),
            ("bzpopmax a 0", vec!["a"]),
            ("bzmpop 0 1 a min", vec!["a"]),
            ("xread block 0 streams a b 0 0", vec!["a", "b"]),
            ("xreadgroup group g c block 5 count 2 streams a >", vec!["a"]),
        ] {
            let (what, request, keys) = what(line);
            assert_eq!(what, InTransaction::Queued, "{line}");
            let writes = !line.starts_with("xread ");
            assert_eq!(request.class, Class::Single { writes }, "{line}");
            assert_eq!(keys, expected, "{line}");
            assert_eq!(request.place, Place::Keys, "{line}");
        }
        assert_eq!(
            what("blmpop 0 3 a b left").0,
            InTransaction::Refused(Refusal::Bad("syntax error"))
        );
        assert!(matches!(what("xread block 0 streams a").0, InTransaction::Refused(_)));
    }

    #[test]
    fn only_the_replies_of_a_transaction_end_it() {
        use BlockReply::*;
        let fits = |reply, text: &str| is_block_reply(reply, text.as_bytes());
        assert!(
            fits(Begun, "+OK\r\n") && !fits(Begun, "+QUEUED\r\n") && !fits(Begun, "-ERR x\r\n")
        );
        assert!(fits(Queued, "+QUEUED\r\n") && fits(Queued, "-OOM x\r\n"));
        assert!(!fits(Queued, "+OK\r\n") && !fits(Queued, ":1\r\n"));
        for text in ["*0\r\n", "*2\r\n", "*-1\r\n", "_\r\n", "-EXECABORT Transaction discarded\r\n"]
        {
            assert!(fits(Ended, text), "{text}");
        }
        for text in ["+QUEUED\r\n", "+OK\r\n", "-ERR unknown command 'EXEC'\r\n", "$1\r\nx\r\n"] {
            assert!(!fits(Ended, text), "{text}");
        }
        assert!(is_stray(Ask { command: id::GET }, b"+QUEUED\r\n+OK\r\n"));
        assert!(!is_stray(Ask { command: id::EVAL }, b"+QUEUED\r\n"));
        assert!(!is_stray(Ask { command: id::GET }, b"+QUEUED x\r\n"));
    }

    #[test]
    fn a_trial_shows_that_each_command_around_a_block_is_known() {
        use TrialReply::{Accepted, Busy, Refused};
        let replies = [
            "-ERR DISCARD without MULTI",
            "-ERR EXEC without MULTI",
            "+OK",
            "-ERR unknown command 'EXEC', with args beginning with: ",
            "-NOPERM this user has no permissions to run the 'discard' command",
            "-BUSY Redis is busy running a script.",
            "-EXECABORT Transaction discarded because of: BUSY Redis is busy running a script.",
        ];
        for (request, accepted) in [
            ((Trial::Ends, false), replies[0]),
            ((Trial::Ends, true), replies[1]),
            ((Trial::Empty, false), replies[2]),
            ((Trial::Empty, true), replies[2]),
        ] {
            for reply in replies {
                let (trial, is_last) = request;
                let read = read_trial(trial, is_last, format!("{reply}\r\n").as_bytes());
                let expected = match reply {
                    _ if reply == accepted => Some(Accepted),
                    "+OK" => None,
                    _ if reply.contains("BUSY ") => Some(Busy),
                    _ => Some(Refused),
                };
                assert_eq!(read, expected, "{request:?}: {reply}");
            }
            for wrong in ["+QUEUED", "+OK ", ":1", "*0", "$-1"] {
                let (trial, is_last) = request;
                assert_eq!(read_trial(trial, is_last, format!("{wrong}\r\n").as_bytes()), None);
            }
        }
    }

    #[test]
    fn own_answers_stand_in_their_places() {
        let mut answers = Vec::new();
        block::push(0, b"+PONG\r\n", &mut answers);
        block::push(3, b":7\r\n", &mut answers);
        let mut out = Vec::new();
        splice(&answers, b"*2\r\n*1\r\n+a\r\n$1\r\nb\r\n", &mut out).expect("it fits");
        assert_eq!(out, b"*4\r\n+PONG\r\n*1\r\n+a\r\n$1\r\nb\r\n:7\r\n");
        for none in ["*-1\r\n", "_\r\n"] {
            out.clear();
            splice(&answers, none.as_bytes(), &mut out).expect("it passes");
            assert_eq!(out, none.as_bytes());
        }
    }
}
