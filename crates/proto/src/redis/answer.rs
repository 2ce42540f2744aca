//! What the proxy says on its own account, in RESP: always exactly one value, whatever is in it.

use super::commands::id;
use super::{refusal, words};
use crate::{Answer, Asked};

const NO_LOGIN: &[u8] = b"NOAUTH Authentication required.";
const NO_LOGIN_FOR_HELLO: &[u8] = b"NOAUTH HELLO must be called with the client already \
    authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to \
    authenticate the client and select the RESP protocol version at the same time";
const WRONG_LOGIN: &[u8] = b"WRONGPASS invalid username-password pair or user is disabled.";
const TOGETHER: &[u8] = b"; a hash tag in both brings them together, as in {user:1}:name";

pub(super) fn write(asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
    match answer {
        Answer::Open(count) => words::open(*count, out),
        // The number that came first has said where it ends.
        Answer::End => {}
        Answer::Miss => words::null(2, out),
        Answer::Ok | Answer::Barrier | Answer::Bye | Answer::LoggedIn => words::simple("OK", out),
        Answer::Version(ours) => words::bulk(ours.as_bytes(), out),
        Answer::Stat(name, value) => words::bulk(format!("{name}:{value}").as_bytes(), out),
        Answer::Refused(why) => refusal::write(asked, *why, out),
        Answer::Failed(why) | Answer::Uncertain(why) => fault(why, out),
        Answer::Error(line) => pass(line, out),
        Answer::Apart { keys, servers } => apart(*keys, *servers, out),
        Answer::Mechanisms => words::error(&[NO_LOGIN], out),
        Answer::LoginFailed => words::error(&[WRONG_LOGIN], out),
        Answer::LoginFirst if asked.command == id::HELLO => {
            words::error(&[NO_LOGIN_FOR_HELLO], out);
        }
        Answer::LoginFirst => words::error(&[NO_LOGIN], out),
    }
}

fn fault(why: &str, out: &mut Vec<u8>) {
    words::error(&[b"ERR ", why.as_bytes()], out);
}

/// A server's error as it came. What does not end where it says would take the answers after it
/// along.
fn pass(line: &[u8], out: &mut Vec<u8>) {
    let text = line.strip_suffix(b"\r\n").unwrap_or(line);
    match text.strip_prefix(b"-") {
        Some(text) => words::error(&[text], out),
        // A long one, which has been read to its end.
        None if text.first() == Some(&b'!') => out.extend_from_slice(line),
        None => words::error(&[b"ERR ", text], out),
    }
}

fn apart(keys: [&[u8]; 2], servers: [&str; 2], out: &mut Vec<u8>) {
    let [one, other] = keys.map(words::echo);
    let [here, there] = servers.map(str::as_bytes);
    let why: &[u8] = b"CROSSSLOT Keys in request don't hash to the same server: '";
    words::error(&[why, &one, b"' is on ", here, b", '", &other, b"' on ", there, TOGETHER], out);
}
