//! Publish and subscribe.
//!
//! ```text
//!   client                      proxy                              server
//!   SUBSCRIBE a b            ─▶ SUBSCRIBE a, SUBSCRIBE b        ─▶         in RESP2, whatever the
//!   *3 subscribe a :1 …      ◀─                   *3 subscribe a :7 …      client's version is
//!   *3 or >3 message a text  ◀─ the first byte may be another   ◀─ *3 message a text
//! ```

use std::collections::HashSet;

use super::commands::id;
use super::reply::{Element, Walk, element};
use super::words::{bulk, null, number, open_array};
use super::{arguments, local};
use crate::{
    Asked, Class, Parsed, ProxyFacts, Push, Pushed, Refusal, Request, Span, TopicAnswer, TopicKind,
    TopicRequest, WhileSubscribed,
};

const NO_PUSH: &str = "not a possible message to a subscriber";
const IN_CONTEXT: &str = "Can't execute '%': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / \
    QUIT / RESET are allowed in this context";

/// The commands, by kind of topic: to listen, and to listen no more.
const COMMANDS: [(TopicKind, bool, u16, &str); 6] = [
    (TopicKind::Channel, true, id::SUBSCRIBE, "subscribe"),
    (TopicKind::Channel, false, id::UNSUBSCRIBE, "unsubscribe"),
    (TopicKind::Pattern, true, id::PSUBSCRIBE, "psubscribe"),
    (TopicKind::Pattern, false, id::PUNSUBSCRIBE, "punsubscribe"),
    (TopicKind::Shard, true, id::SSUBSCRIBE, "ssubscribe"),
    (TopicKind::Shard, false, id::SUNSUBSCRIBE, "sunsubscribe"),
];

fn of_command(command: u16) -> Option<(TopicKind, bool)> {
    let found = COMMANDS.iter().find(|(.., one, _)| *one == command);
    found.map(|(kind, joins, ..)| (*kind, *joins))
}

fn name(kind: TopicKind, joins: bool) -> &'static str {
    let found = COMMANDS.iter().find(|(one, which, ..)| (*one, *which) == (kind, joins));
    found.map_or("", |(.., name)| name)
}

/// Whether the arguments of a request are topics that its client will listen to.
pub(super) fn names_topics(command: u16) -> bool {
    of_command(command).is_some_and(|(_, joins)| joins)
}

pub(super) fn topics<'a>(request: &Request, head: &'a [u8]) -> TopicRequest<'a> {
    let (kind, joins) = of_command(request.command).expect("it is about topics, by its class");
    let mut topics = arguments::all(head);
    topics.drain(..topics.len().min(1));
    TopicRequest { kind, joins, topics }
}

/// In RESP2 a push looks like a reply. So a client that listens may do little else.
pub(super) fn while_subscribed(request: &Request, proto_version: u8) -> WhileSubscribed {
    if proto_version > 2 || of_command(request.command).is_some() {
        return WhileSubscribed::AsUsual;
    }
    match (request.command, request.class) {
        (_, Class::Refuse(Refusal::Unknown | Refusal::Bad(_))) => WhileSubscribed::AsUsual,
        (id::PING, Class::Local(_)) => WhileSubscribed::Alive,
        (id::QUIT | id::RESET, _) => WhileSubscribed::AsUsual,
        _ => WhileSubscribed::Refused(Refusal::Bad(IN_CONTEXT)),
    }
}

/// Returns the first byte of a push.
pub(super) fn push_mark(proto_version: u8) -> u8 {
    if proto_version > 2 { b'>' } else { b'*' }
}

pub(super) fn write_answer(proto_version: u8, answer: &TopicAnswer<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&[push_mark(proto_version), b'3', b'\r', b'\n']);
    bulk(name(answer.kind, answer.joins).as_bytes(), out);
    match answer.topic {
        Some(topic) => bulk(topic, out),
        None => null(proto_version, out),
    }
    number(answer.count as u64, out);
}

/// Writes the answer to a PING in the form of a push.
pub(super) fn write_alive(head: &[u8], out: &mut Vec<u8>) {
    open_array(2, out);
    bulk(b"pong", out);
    bulk(arguments::all(head).get(1).map_or(b"", |word| &word[..]), out);
}

pub(super) fn write_request(kind: TopicKind, joins: bool, topic: &[u8], out: &mut Vec<u8>) {
    open_array(2, out);
    bulk(name(kind, joins).to_ascii_uppercase().as_bytes(), out);
    bulk(topic, out);
}

pub(super) fn write_ping(out: &mut Vec<u8>) {
    open_array(1, out);
    bulk(b"PING", out);
}

/// Whether a pattern matches the name of a channel.
pub(super) fn matches(pattern: &[u8], channel: &[u8]) -> bool {
    local::matches_exactly(pattern, channel)
}

/// Reads what a server has sent to a subscriber in RESP2. Of a payload, only the end is looked at.
pub(super) fn read(input: &[u8]) -> Parsed<Push> {
    let count = match (input.first(), element(input, 0)) {
        (None, _) | (_, Element::Unfinished) => return Parsed::Incomplete,
        (Some(b'-'), Element::Whole { end, .. }) => {
            return Parsed::Complete(Push { len: end, what: Pushed::Refused });
        }
        // The answer to PING where nothing is subscribed to.
        (Some(b'+'), Element::Whole { end, .. }) if &input[..end] == b"+PONG\r\n" => {
            return Parsed::Complete(Push { len: end, what: Pushed::Alive });
        }
        (Some(b'*'), Element::Whole { end, more: count @ 2..=4 }) => (end, count),
        (_, Element::Wrong(why)) => return Parsed::Malformed(why),
        _ => return Parsed::Malformed(NO_PUSH),
    };
    let (mut at, count) = count;
    let mut texts = [Span::default(); 4];
    for text in texts.iter_mut().take(count as usize) {
        let start = at;
        let (from, end) = match element(input, at) {
            Element::Unfinished => return Parsed::Incomplete,
            Element::Wrong(why) => return Parsed::Malformed(why),
            Element::LongLine { .. } | Element::Whole { more: 1.., .. } => {
                return Parsed::Malformed(NO_PUSH);
            }
            Element::Body { start, len } => (start, start + len as usize + 2),
            Element::Whole { end, .. } => {
                let head = input[start..end].iter().position(|byte| *byte == b'\n');
                (start + head.map_or(0, |at| at + 1), end)
            }
        };
        if end > input.len() {
            return Parsed::Incomplete;
        }
        if &input[end - 2..end] != b"\r\n" {
            return Parsed::Malformed(NO_PUSH);
        }
        *text = Span::new(from.min(end - 2), end - 2);
        at = end;
    }
    match meaning(texts[0].of(input), count, texts[1]) {
        Some(what) => Parsed::Complete(Push { len: at, what }),
        None => Parsed::Malformed(NO_PUSH),
    }
}

fn meaning(word: &[u8], count: u64, topic: Span) -> Option<Pushed> {
    let message = |kind| Some(Pushed::Message { kind, topic });
    match (word, count) {
        (b"pong", 2) => Some(Pushed::Alive),
        (b"message", 3) => message(TopicKind::Channel),
        (b"pmessage", 4) => message(TopicKind::Pattern),
        (b"smessage", 3) => message(TopicKind::Shard),
        (_, 3) => {
            let found = COMMANDS.iter().find(|(.., name)| name.as_bytes() == word)?;
            Some(Pushed::Done { kind: found.0, joins: found.1, topic })
        }
        _ => None,
    }
}

/// Whether the answer to a command tells of subscribers.
pub(super) fn counts(command: u16) -> bool {
    let is_survey = matches!(
        command,
        id::PUBSUB_CHANNELS
            | id::PUBSUB_NUMPAT
            | id::PUBSUB_NUMSUB
            | id::PUBSUB_SHARDCHANNELS
            | id::PUBSUB_SHARDNUMSUB
    );
    is_survey || matches!(command, id::PUBLISH | id::SPUBLISH)
}

/// Makes one answer of those of servers. A server counts this worker once, however many of its
/// clients listen. The subscriptions of the proxy stand on all servers, so their counts are not
/// added up: the largest is taken.
pub(super) fn gather(
    asked: &Asked<'_>,
    replies: &[&[u8]],
    proxy: &dyn ProxyFacts,
    out: &mut Vec<u8>,
) -> Option<()> {
    match asked.command {
        id::PUBLISH | id::SPUBLISH => {
            let count = Walk::new(replies.first()?).number()?;
            number(count.saturating_add(u64::from(asked.at)), out);
        }
        id::PUBSUB_NUMPAT => {
            let counts = replies.iter().map(|reply| Walk::new(reply).number());
            number(counts.collect::<Option<Vec<u64>>>()?.into_iter().max()?, out);
        }
        id::PUBSUB_NUMSUB => count(TopicKind::Channel, replies, proxy, out)?,
        id::PUBSUB_SHARDNUMSUB => count(TopicKind::Shard, replies, proxy, out)?,
        _ => {
            let (mut names, mut seen) = (Vec::new(), HashSet::new());
            for reply in replies {
                let mut walk = Walk::new(reply);
                for _ in 0..walk.open()? {
                    let name = walk.text()?;
                    if seen.insert(name) {
                        names.push(name);
                    }
                }
            }
            open_array(names.len(), out);
            names.into_iter().for_each(|name| bulk(name, out));
        }
    }
    Some(())
}

/// Combines lists of channels and their numbers of subscribers.
fn count(
    kind: TopicKind,
    replies: &[&[u8]],
    proxy: &dyn ProxyFacts,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut most: Vec<(&[u8], u64)> = Vec::new();
    for (nth, reply) in replies.iter().enumerate() {
        let mut walk = Walk::new(reply);
        for place in 0..walk.open()? as usize / 2 {
            let (name, found) = (walk.text()?, walk.number()?);
            match most.get_mut(place) {
                Some(one) if one.0 == name => one.1 = one.1.max(found),
                None if nth == 0 => most.push((name, found)),
                _ => return None,
            }
        }
    }
    open_array(2 * most.len(), out);
    for (name, found) in most {
        let own = proxy.listeners(kind, name) as u64;
        bulk(name, out);
        number(if own > 0 { found.saturating_sub(1) + own } else { found }, out);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expected: Option<(Pushed, &str)>) {
        let input = input.as_bytes();
        for end in 0..input.len() {
            assert_eq!(
                read(&input[..end]),
                Parsed::Incomplete,
                "{:?}",
                input[..end].escape_ascii()
            );
        }
        let found = match read(input) {
            Parsed::Complete(push) => {
                assert_eq!(push.len, input.len());
                let topic = match push.what {
                    Pushed::Message { topic, .. } | Pushed::Done { topic, .. } => topic.of(input),
                    Pushed::Refused | Pushed::Alive => b"",
                };
                Some((push.what, String::from_utf8_lossy(topic).into_owned()))
            }
            Parsed::Malformed(_) => None,
            Parsed::Incomplete => panic!("{:?}", input.escape_ascii()),
        };
        let blank = |what| match what {
            Pushed::Message { kind, .. } => Pushed::Message { kind, topic: Span::default() },
            Pushed::Done { kind, joins, .. } => {
                Pushed::Done { kind, joins, topic: Span::default() }
            }
            other => other,
        };
        let found = found.as_ref().map(|(what, topic)| (blank(*what), &topic[..]));
        assert_eq!(found, expected);
    }

    #[test]
    fn what_servers_send_to_subscribers_is_read_whole() {
        let topic = Span::default();
        let message = |kind| Pushed::Message { kind, topic };
        let done = |kind, joins| Pushed::Done { kind, joins, topic };
        use TopicKind::*;
        for (text, expected) in [
            ("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n", Some((message(Channel), "c"))),
            ("*3\r\n$7\r\nmessage\r\n$0\r\n\r\n$0\r\n\r\n", Some((message(Channel), ""))),
            (
                "*4\r\n$8\r\npmessage\r\n$2\r\nc*\r\n$2\r\ncd\r\n$1\r\nx\r\n",
                Some((message(Pattern), "c*")),
            ),
            ("*3\r\n$8\r\nsmessage\r\n$1\r\ns\r\n$1\r\nx\r\n", Some((message(Shard), "s"))),
            ("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:12\r\n", Some((done(Channel, true), "c"))),
            ("*3\r\n$12\r\npunsubscribe\r\n$1\r\nc\r\n:0\r\n", Some((done(Pattern, false), "c"))),
            ("-NOPERM no\r\n", Some((Pushed::Refused, ""))),
            ("+PONG\r\n", Some((Pushed::Alive, ""))),
            ("*2\r\n$4\r\npong\r\n$0\r\n\r\n", Some((Pushed::Alive, ""))),
        ] {
            check(text, expected);
        }
        for bad in ["+OK\r\n", "*1\r\n", "$1\r\nx\r\n", "*3\r\n*1\r\n", ":1\r\n"] {
            assert!(matches!(read(bad.as_bytes()), Parsed::Malformed(_)), "{bad:?}");
        }
        let long = format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$9000\r\n{}\r\n", "x".repeat(9000));
        assert!(matches!(read(long.as_bytes()), Parsed::Complete(push) if push.len == long.len()));
        assert_eq!(read(&long.as_bytes()[..5000]), Parsed::Incomplete);
    }

    #[test]
    fn patterns_of_channels_tell_letters_apart() {
        assert!(matches(b"h[a-c]llo*", b"hbllo world") && !matches(b"hello", b"HELLO"));
    }
}
