//! One answer from the replies of several servers, by command.
//!
//! ```text
//!   :2  :0  :1         ->  :3             a sum
//!   +OK  +OK           ->  +OK            all the same
//!   *1 a  *2 b c       ->  *3 a b c       one list
//!   $1 a  $-1          ->  $1 a           any that is not null
//! ```
//!
//! Where all servers must succeed, one of their errors is the answer: the first by which its server
//! may have executed the request, or else the first. If other servers have executed an update, the
//! answer says so, since nothing undoes it.

use std::borrow::Cow;
use std::collections::HashSet;

use super::commands::{self, id};
use super::reply::Walk;
use super::{answer, config, info, pubsub, transaction, words};
use crate::part::{self, Outcome, Part, ProxyFacts};
use crate::{Answer, Asked, Class, Reach};

/// How the replies are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathering {
    /// Numbers, added up.
    Sum,
    /// All replies are the same.
    Same,
    /// The elements of all arrays, one after the other.
    Concat,
    /// Any one that is not null.
    Pick,
    /// 1 where all replies have 1, element by element.
    And,
    /// The smallest number.
    Least,
    /// The elements that all arrays contain.
    Shared,
    /// The reply of FUNCTION STATS: a script that runs on any server, and the engines that all
    /// have.
    Functions,
    /// See `info.rs`.
    Info,
    /// See `config.rs`.
    Config,
    /// All replies are the same, errors included; otherwise each server is named.
    Agreed,
    /// An entry for each server: its name and its reply.
    Entries,
    /// The reply to a transaction, and the proxy's own answers among its elements.
    Spliced,
    /// One success is success. Otherwise an error that matters, if there is one.
    One,
    /// See `pubsub.rs`.
    Subscribers,
}

fn gathering(command: u16) -> Gathering {
    match command {
        id::DEL | id::UNLINK | id::EXISTS | id::TOUCH | id::DBSIZE => Gathering::Sum,
        id::KEYS => Gathering::Concat,
        id::RANDOMKEY | id::ACL_GENPASS => Gathering::Pick,
        id::SCRIPT_EXISTS => Gathering::And,
        id::LASTSAVE => Gathering::Least,
        id::MODULE_LIST => Gathering::Shared,
        id::FUNCTION_STATS => Gathering::Functions,
        id::INFO => Gathering::Info,
        id::CONFIG_GET => Gathering::Config,
        id::EXEC => Gathering::Spliced,
        command if pubsub::counts(command) => Gathering::Subscribers,
        _ => match class(command) {
            Some(Class::Broadcast { gated: true, reach: Reach::Survey, .. }) => Gathering::Entries,
            Some(Class::Broadcast { gated: true, .. }) => Gathering::Agreed,
            Some(Class::Broadcast { reach: Reach::Control, .. }) => Gathering::One,
            _ => Gathering::Same,
        },
    }
}

fn class(command: u16) -> Option<Class> {
    commands::rows().get(usize::from(command)).map(|row| row.class)
}

/// Whether the command changes something.
fn is_update(command: u16) -> bool {
    matches!(
        class(command),
        Some(Class::Split { writes: true, .. } | Class::Broadcast { writes: true, .. })
    )
}

pub(super) fn gather(
    asked: &Asked<'_>,
    parts: &mut dyn Iterator<Item = Part<'_>>,
    proxy: &dyn ProxyFacts,
    out: &mut Vec<u8>,
) {
    let parts: Vec<Part<'_>> = parts.collect();
    let replies: Vec<&[u8]> = parts.iter().filter_map(Part::reply).collect();
    let is_whole = replies.len() == parts.len();
    let how = gathering(asked.command);
    match how {
        Gathering::Agreed | Gathering::Entries => return administer(asked, how, &parts, out),
        Gathering::One => return one(asked, &parts, out),
        _ => {}
    }
    let is_enough = match how {
        Gathering::Pick => is_whole || replies.iter().any(|reply| !is_null(reply)),
        Gathering::Info | Gathering::Config | Gathering::Subscribers => !replies.is_empty(),
        _ => is_whole,
    };
    if !is_enough {
        let is_partly_done = !replies.is_empty() && is_update(asked.command);
        return fail(asked, &parts, is_partly_done, out);
    }
    let start = out.len();
    let gathered = match how {
        Gathering::Sum => sum(&replies, out),
        Gathering::Same => same(&replies, out),
        Gathering::Concat => concat(&replies, out),
        Gathering::Pick => pick(&replies, out),
        Gathering::And => and(&replies, out),
        Gathering::Least => least(&replies, out),
        Gathering::Shared => shared(&replies, out),
        Gathering::Functions => functions(&replies, out),
        Gathering::Info => info::gather(asked, &parts, proxy, out),
        Gathering::Spliced => transaction::splice(asked.head, replies[0], out),
        Gathering::Config => config::gather(&parts, proxy, out),
        Gathering::Subscribers => pubsub::gather(asked, &replies, proxy, out),
        Gathering::Agreed | Gathering::Entries | Gathering::One => {
            unreachable!("answered above")
        }
    };
    if gathered.is_none() {
        out.truncate(start);
        write_disagreement(&parts, out);
    }
}

/// Answers an administrative command that went to all servers.
fn administer(asked: &Asked<'_>, how: Gathering, parts: &[Part<'_>], out: &mut Vec<u8>) {
    let alone = parts.len() == 1;
    if let (Some(reply), true) = (part::agreed(parts), alone || how == Gathering::Agreed) {
        return out.extend_from_slice(reply);
    }
    if let Some(line) = part::agreed_error(parts) {
        return answer::write(asked, &Answer::Error(line), out);
    }
    if how == Gathering::Agreed || parts.iter().all(|part| part.reply().is_none()) {
        return write_disagreement(parts, out);
    }
    words::open_array(parts.len(), out);
    for part in parts {
        words::open_array(2, out);
        words::bulk(part.server.as_bytes(), out);
        match part.outcome {
            Outcome::Reply(reply) => out.extend_from_slice(reply),
            Outcome::Error(line) => answer::write(asked, &Answer::Error(line), out),
            Outcome::Fault { words, .. } => answer::write(asked, &Answer::Failed(words), out),
        }
    }
}

/// Answers a command that one of the servers has to carry out. If none has, one that could not says
/// why, or one has not answered and might have; otherwise none had anything to do.
fn one(asked: &Asked<'_>, parts: &[Part<'_>], out: &mut Vec<u8>) {
    if let Some(reply) = parts.iter().find_map(Part::reply) {
        return out.extend_from_slice(reply);
    }
    let is_idle = |part: &&Part<'_>| match part.outcome {
        Outcome::Error(line) => line.starts_with(b"-NOTBUSY "),
        _ => false,
    };
    let has_failed = |part: &&Part<'_>| matches!(part.outcome, Outcome::Fault { .. });
    let says_why = parts.iter().find(|part| !is_idle(part) && !has_failed(part));
    let why = says_why.or_else(|| parts.iter().find(has_failed));
    match why {
        Some(part) => fail(asked, &[*part], false, out),
        None => fail(asked, parts, false, out),
    }
}

/// Writes the error that claims least about the outcome, and whether other servers have executed
/// the request.
fn fail(asked: &Asked<'_>, parts: &[Part<'_>], is_partly_done: bool, out: &mut Vec<u8>) {
    let errors = parts.iter().filter_map(|part| error(asked, part));
    let Some(error) = errors.min_by_key(|error| claim(error)) else {
        return words::error(&[b"ERR no server has answered"], out);
    };
    match error.strip_prefix(b"-").and_then(|line| line.strip_suffix(b"\r\n")) {
        Some(line) if is_partly_done => words::error(&[line, PARTLY_DONE], out),
        _ => out.extend_from_slice(&error),
    }
}

/// Returns the error that the client would get for this part alone.
fn error<'a>(asked: &Asked<'_>, part: &Part<'a>) -> Option<Cow<'a, [u8]>> {
    if let Outcome::Error(line) = part.outcome {
        return Some(Cow::Borrowed(line));
    }
    let mut line = Vec::new();
    answer::write(asked, &Answer::Failed(&part.fault()?), &mut line);
    Some(Cow::Owned(line))
}

/// Returns how much an error claims: 0 if it admits that something may have been done, otherwise 1.
fn claim(error: &[u8]) -> u8 {
    let says = |words: &[u8]| memchr::memmem::find(error, words).is_some();
    u8::from(!says(b"outcome unknown") && !says(b"done, but"))
}

const PARTLY_DONE: &[u8] = b" (on other servers it was carried out)";

/// Names each server with its reply: the servers disagree, or one sent a reply that cannot be
/// combined.
fn write_disagreement(parts: &[Part<'_>], out: &mut Vec<u8>) {
    let text = part::disagreement(parts, &show);
    words::error(&[b"ERR ", text.as_bytes()], out);
}

/// Returns a text unchanged; for an aggregate, the texts in it with spaces between, as far as there
/// is room.
fn show(reply: &[u8]) -> String {
    let mut walk = Walk::new(reply);
    let mut texts: Vec<&[u8]> = Vec::new();
    let mut len = 0;
    while len < words::ECHO_MAX && walk.at() < reply.len() {
        let at = walk.at();
        let text = match walk.text() {
            Some(text) => words::beginning(text),
            None if is_null(&reply[at..walk.at()]) => b"nil",
            // The head of an aggregate.
            None if walk.at() > at => continue,
            None => break,
        };
        len += text.len() + 1;
        texts.push(text);
    }
    let shown = match (reply.first(), texts.is_empty()) {
        (Some(b'*' | b'~' | b'%'), true) => b"(empty)".to_vec(),
        (_, true) => reply.to_vec(),
        (_, false) => texts.join(&b' '),
    };
    String::from_utf8_lossy(words::beginning(&shown)).into_owned()
}

fn is_null(reply: &[u8]) -> bool {
    matches!(reply, b"$-1\r\n" | b"_\r\n" | b"*-1\r\n")
}

fn sum(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let mut total: u64 = 0;
    for reply in replies {
        if reply.first() != Some(&b':') {
            return None;
        }
        total = total.checked_add(Walk::new(reply).number()?)?;
    }
    words::number(total, out);
    Some(())
}

fn same(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let first = replies.first()?;
    replies.iter().all(|reply| reply == first).then(|| out.extend_from_slice(first))
}

fn concat(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let mut count: u64 = 0;
    for reply in replies {
        count = count.checked_add(array(reply)?.open()?)?;
    }
    words::open_array(usize::try_from(count).ok()?, out);
    for reply in replies {
        let mut walk = array(reply)?;
        walk.open()?;
        out.extend_from_slice(&reply[walk.at()..]);
    }
    Some(())
}

fn array(reply: &[u8]) -> Option<Walk<'_>> {
    (reply.first() == Some(&b'*')).then(|| Walk::new(reply))
}

/// Picks one reply. Each server picks at random, and a hash of their picks decides between them, as
/// there is no randomness here.
fn pick(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let picked: Vec<_> = replies.iter().filter(|reply| !is_null(reply)).collect();
    let hash = picked
        .iter()
        .flat_map(|reply| reply.iter())
        .fold(FNV_START, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_FACTOR));
    // The low bits of such a hash are its weakest.
    let nth = (hash >> 32) as usize % picked.len().max(1);
    let chosen: &[u8] = picked.get(nth).copied().or(replies.first())?;
    out.extend_from_slice(chosen);
    Some(())
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_FACTOR: u64 = 0x0100_0000_01b3;

fn and(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let mut all: Vec<bool> = Vec::new();
    for (nth, reply) in replies.iter().enumerate() {
        let mut walk = array(reply)?;
        let count = usize::try_from(walk.open()?).ok()?;
        if nth > 0 && count != all.len() {
            return None;
        }
        for at in 0..count {
            let has = walk.number()? != 0;
            match all.get_mut(at) {
                Some(known) => *known &= has,
                None => all.push(has),
            }
        }
    }
    words::open_array(all.len(), out);
    all.iter().for_each(|has| words::number(u64::from(*has), out));
    Some(())
}

fn least(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let numbers: Option<Vec<u64>> = replies.iter().map(|reply| Walk::new(reply).number()).collect();
    words::number(numbers?.into_iter().min()?, out);
    Some(())
}

fn shared(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let mut all: Option<Vec<&[u8]>> = None;
    for reply in replies {
        let mut walk = array(reply)?;
        let values = (0..walk.open()?).map(|_| walk.value()).collect::<Option<Vec<_>>>()?;
        match &mut all {
            None => all = Some(values),
            Some(all) => {
                let values: HashSet<&[u8]> = values.into_iter().collect();
                all.retain(|one| values.contains(one));
            }
        }
    }
    let all = all?;
    words::open_array(all.len(), out);
    all.into_iter().for_each(|one| out.extend_from_slice(one));
    Some(())
}

/// Writes two names with their values: the script that runs on one of the servers, and the engines.
fn functions(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let mut stats: Vec<[&[u8]; 4]> = Vec::new();
    for reply in replies {
        let mut walk = Walk::new(reply);
        if walk.open()? != 4 {
            return None;
        }
        stats.push([walk.value()?, walk.value()?, walk.value()?, walk.value()?]);
    }
    let [script_name, script, engines_name, engines] = *stats.first()?;
    let rest = (script_name, engines_name, engines);
    let agree = stats.iter().all(|one| (one[0], one[2], one[3]) == rest);
    let running = stats.iter().map(|one| one[1]).find(|running| !is_null(running));
    let pieces_len = script_name.len() + script.len() + engines_name.len() + engines.len();
    let head = replies[0].len() - pieces_len;
    out.extend_from_slice(&replies[0][..head]);
    for piece in [script_name, running.unwrap_or(script), engines_name, engines] {
        out.extend_from_slice(piece);
    }
    agree.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::tests::{Nothing, fault, parts};
    use crate::{Ask, Quiet};

    /// Checks a merged answer. Replies that begin with `-` come as errors, as from the data plane,
    /// and those that begin with `fault` as faults of the proxy.
    fn check<'a>(command: u16, replies: &[&'a str], expected: &str) {
        let ask = Ask { command };
        let asked = Asked { command, quiet: Quiet::Loud, ask, head: b"", at: 0, next: None };
        let mut out = b"before".to_vec();
        let outcome = |reply: &&'a str| match reply.strip_prefix("fault ") {
            Some(words) => fault(words, false),
            None if reply.starts_with(['-', '!']) => Outcome::Error(reply.as_bytes()),
            None => Outcome::Reply(reply.as_bytes()),
        };
        let outcomes: Vec<Outcome<'a>> = replies.iter().map(outcome).collect();
        gather(&asked, &mut parts(&outcomes), &Nothing, &mut out);
        let answer = String::from_utf8_lossy(&out);
        assert_eq!(answer, format!("before{expected}"), "{replies:?}");
    }

    #[test]
    fn numbers_are_added_up() {
        check(id::DEL, &[":2\r\n"], ":2\r\n");
        check(id::EXISTS, &[":2\r\n", ":0\r\n", ":40\r\n"], ":42\r\n");
        check(id::DBSIZE, &[":18446744073709551615\r\n"], ":18446744073709551615\r\n");
        let differ = "-ERR the servers do not agree: s0 says '1'; s1 says 'OK'\r\n";
        check(id::TOUCH, &[":1\r\n", "+OK\r\n"], differ);
    }

    #[test]
    fn all_must_do_it() {
        check(id::MSET, &["+OK\r\n", "+OK\r\n"], "+OK\r\n");
        check(id::MSET, &["-OOM no\r\n", "-ERR x\r\n"], "-OOM no\r\n");
        let partly = "-OOM no (on other servers it was carried out)\r\n";
        check(id::MSET, &["+OK\r\n", "-OOM no\r\n", "-ERR x\r\n"], partly);
        check(id::DEL, &["-OOM no\r\n", ":0\r\n"], partly);
        // An EXISTS changes nothing.
        check(id::EXISTS, &[":1\r\n", "-OOM no\r\n"], "-OOM no\r\n");
        check(id::MSET, &["+OK\r\n", "!3\r\nERR\r\n"], "!3\r\nERR\r\n");
        check(id::MSET, &[], "-ERR no server was asked\r\n");
    }

    /// One part was not sent and the other's outcome is unknown: the answer must not say that
    /// nothing was done.
    #[test]
    fn the_error_that_claims_least_is_told() {
        let down = "fault down, waiting for it to come back";
        let lost = "fault connection lost, outcome unknown";
        check(id::MSET, &[down, down], "-ERR s0: down, waiting for it to come back\r\n");
        check(id::MSET, &[down, lost], "-ERR s1: connection lost, outcome unknown\r\n");
        check(id::MSET, &[lost, down], "-ERR s0: connection lost, outcome unknown\r\n");
        let partly =
            "-ERR s2: connection lost, outcome unknown (on other servers it was carried out)\r\n";
        check(id::MSET, &[down, "+OK\r\n", lost], partly);
    }

    #[test]
    fn lists_are_joined() {
        check(id::KEYS, &["*0\r\n", "*0\r\n"], "*0\r\n");
        let lists = ["*1\r\n$1\r\na\r\n", "*0\r\n", "*2\r\n$1\r\nb\r\n$2\r\n\r\n\r\n"];
        check(id::KEYS, &lists, "*3\r\n$1\r\na\r\n$1\r\nb\r\n$2\r\n\r\n\r\n");
        check(id::KEYS, &["*1\r\n$1\r\na\r\n", "-ERR x\r\n"], "-ERR x\r\n");
    }

    #[test]
    fn any_key_will_do_that_there_is() {
        check(id::RANDOMKEY, &["$-1\r\n", "$1\r\na\r\n", "$-1\r\n"], "$1\r\na\r\n");
        check(id::RANDOMKEY, &["$-1\r\n", "$-1\r\n"], "$-1\r\n");
        check(id::RANDOMKEY, &["_\r\n"], "_\r\n");
        check(id::RANDOMKEY, &["_\r\n", "$1\r\na\r\n", "_\r\n"], "$1\r\na\r\n");
        check(id::RANDOMKEY, &["_\r\n", "_\r\n"], "_\r\n");
        check(id::RANDOMKEY, &["-ERR x\r\n", "$1\r\na\r\n"], "$1\r\na\r\n");
        // The server that did not answer may have keys.
        check(id::RANDOMKEY, &["-ERR x\r\n", "$-1\r\n"], "-ERR x\r\n");
        check(id::RANDOMKEY, &["_\r\n", "-ERR x\r\n"], "-ERR x\r\n");
    }

    #[test]
    fn every_server_has_its_turn() {
        let mut turns = [0; 4];
        for nth in 0..400_u32 {
            let keys: Vec<String> = (0..4)
                .map(|server| format!("$7\r\n{server}:{:05}\r\n", nth * 7 + server))
                .collect();
            let replies: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
            let mut out = Vec::new();
            pick(&replies, &mut out).expect("one is picked");
            turns[usize::from(out[4] - b'0')] += 1;
        }
        assert!(turns.iter().all(|times| *times > 60), "{turns:?}");
    }

    #[test]
    fn a_script_exists_where_all_have_it() {
        let replies = ["*3\r\n:1\r\n:1\r\n:0\r\n", "*3\r\n:1\r\n:0\r\n:0\r\n"];
        check(id::SCRIPT_EXISTS, &replies, "*3\r\n:1\r\n:0\r\n:0\r\n");
        let differ = "-ERR the servers do not agree: s0 says '1'; s1 says '(empty)'\r\n";
        check(id::SCRIPT_EXISTS, &["*1\r\n:1\r\n", "*0\r\n"], differ);
    }

    #[test]
    fn the_oldest_save_and_the_modules_that_all_have_are_told() {
        check(id::LASTSAVE, &[":1795351520\r\n", ":1795351420\r\n"], ":1795351420\r\n");
        check(id::LASTSAVE, &[":5\r\n", "-ERR x\r\n"], "-ERR x\r\n");
        let module =
            |name: &str, version| format!("%2\r\n+name\r\n+{name}\r\n+ver\r\n:{version}\r\n");
        let two = format!("*2\r\n{}{}", module("lua", 1), module("json", 2));
        let one = format!("*1\r\n{}", module("json", 2));
        let newer = format!("*1\r\n{}", module("json", 3));
        check(id::MODULE_LIST, &[&two, &two], &two);
        check(id::MODULE_LIST, &[&two, &one], &one);
        check(id::MODULE_LIST, &[&two, &one, &newer], "*0\r\n");
    }

    #[test]
    fn a_script_that_runs_on_one_server_is_told() {
        let stats = |running: &str, count| {
            format!("*4\r\n$14\r\nrunning_script\r\n{running}$7\r\nengines\r\n*1\r\n:{count}\r\n")
        };
        let (idle, busy) = (stats("*-1\r\n", 1), stats("*1\r\n+f\r\n", 1));
        check(id::FUNCTION_STATS, &[&idle, &idle], &idle);
        check(id::FUNCTION_STATS, &[&idle, &busy, &idle], &busy);
        let mut out = Vec::new();
        assert_eq!(functions(&[idle.as_bytes(), stats("*-1\r\n", 2).as_bytes()], &mut out), None);
        assert_eq!(functions(&[b"*0\r\n"], &mut out), None);
    }

    #[test]
    fn a_kill_that_succeeds_anywhere_has_succeeded() {
        let idle = "-NOTBUSY No scripts in execution right now.\r\n";
        let deaf = "-UNKILLABLE Sorry the script already executed write commands against the \
            dataset. You can either wait the script termination or kill the server in a hard way \
            using the SHUTDOWN NOSAVE command.\r\n";
        let lost = "-ERR s1: connection lost, outcome unknown\r\n";
        for command in [id::SCRIPT_KILL, id::FUNCTION_KILL] {
            check(command, &[idle, "+OK\r\n", idle], "+OK\r\n");
            check(command, &["fault down", "+OK\r\n", deaf], "+OK\r\n");
            check(command, &[idle, idle], idle);
            check(command, &[idle], idle);
            check(command, &[idle, deaf, "fault down"], deaf);
            // The server that did not answer may be the one that runs a script.
            check(command, &[idle, "fault connection lost, outcome unknown"], lost);
            check(command, &["-ERR no\r\n", idle], "-ERR no\r\n");
            check(command, &[], "-ERR no server has answered\r\n");
        }
    }

    #[test]
    fn servers_that_agree_give_one_answer_and_others_are_named() {
        check(id::CONFIG_SET, &["+OK\r\n", "+OK\r\n"], "+OK\r\n");
        let unknown = "-ERR Unknown option\r\n";
        check(id::CONFIG_SET, &[unknown, unknown], unknown);
        check(id::CONFIG_SET, &[unknown], unknown);
        check(id::BGSAVE, &["fault down"], "-ERR s0: down\r\n");
        check(
            id::CONFIG_SET,
            &["+OK\r\n", "-ERR no\r\n", "fault down"],
            "-ERR the servers do not agree: s0 says 'OK'; s1 says 'ERR no'; s2: down\r\n",
        );
        let none = "-ERR s0: down; s1: connection lost, outcome unknown\r\n";
        check(id::SAVE, &["fault down", "fault connection lost, outcome unknown"], none);
        let partly = "-ERR the servers do not agree: s0 says 'OK'; s1: down\r\n";
        check(id::FLUSHALL, &["+OK\r\n", "fault down"], partly);
    }

    #[test]
    fn a_read_of_all_servers_has_an_entry_for_each() {
        let users = ["*1\r\n$1\r\na\r\n", "*0\r\n"];
        let entries = "*2\r\n*2\r\n$2\r\ns0\r\n*1\r\n$1\r\na\r\n*2\r\n$2\r\ns1\r\n*0\r\n";
        check(id::ACL_USERS, &users, entries);
        check(id::ACL_USERS, &users[..1], users[0]);
        check(
            id::COMMANDLOG_LEN,
            &[":1\r\n", "fault down", "-ERR no\r\n"],
            "*3\r\n*2\r\n$2\r\ns0\r\n:1\r\n*2\r\n$2\r\ns1\r\n-ERR down\r\n\
             *2\r\n$2\r\ns2\r\n-ERR no\r\n",
        );
        check(id::COMMANDLOG_LEN, &["fault down", "fault lost"], "-ERR s0: down; s1: lost\r\n");
        let unknown = "-ERR unknown command\r\n";
        check(id::COMMANDLOG_LEN, &[unknown, unknown], unknown);
        check(id::ACL_GENPASS, &["$2\r\nab\r\n", "$2\r\nab\r\n"], "$2\r\nab\r\n");
    }

    #[test]
    fn a_disagreement_shows_what_lists_hold_and_not_how_they_are_written() {
        let text = "*4\r\n$14\r\nrunning_script\r\n*-1\r\n$7\r\nengines\r\n*1\r\n:2\r\n";
        let differ = "-ERR the servers do not agree: s0 says 'running_script nil engines 2'; \
            s1 says '(empty)'; s2 says ''\r\n";
        check(id::CONFIG_SET, &[text, "%0\r\n", "$0\r\n\r\n"], differ);
        let long = format!("*{}\r\n{}", 1000, "+ab\r\n".repeat(1000));
        assert_eq!(show(long.as_bytes()).len(), words::ECHO_MAX);
        // Any text is shown.
        assert_eq!(show(b"no RESP"), "no RESP");
        assert_eq!(show(b""), "");
    }

    /// A large reply costs time of the one worker.
    #[test]
    fn as_many_modules_as_a_server_likes_are_compared_at_once() {
        let list = |start: u32| {
            let names: String = (start..start + 50_000).map(|n| format!(":{n}\r\n")).collect();
            format!("*50000\r\n{names}")
        };
        let start = std::time::Instant::now();
        check(id::MODULE_LIST, &[&list(0), &list(100_000)], "*0\r\n");
        check(id::MODULE_LIST, &[&list(0), &list(0)], &list(0));
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }

    #[test]
    fn a_script_has_one_digest() {
        check(id::SCRIPT_LOAD, &["$2\r\nab\r\n", "$2\r\nab\r\n"], "$2\r\nab\r\n");
        let differ = "-ERR the servers do not agree: s0 says 'ab'; s1 says 'ab'; s2 says 'cd'\r\n";
        check(id::FUNCTION_LOAD, &["$2\r\nab\r\n", "$2\r\nab\r\n", "$2\r\ncd\r\n"], differ);
    }
}
