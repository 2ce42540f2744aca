//! Answers of the proxy, in memcached's text protocol.

use super::commands::MG;
use super::{meta, version};
use crate::answer::not_allowed;
use crate::{Answer, Asked, Refusal};

pub(super) fn write(asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
    match answer {
        Answer::End if asked.command == MG => {}
        Answer::Miss if asked.command == MG => meta::answer::miss(asked, out),
        Answer::End | Answer::Miss => out.extend_from_slice(b"END\r\n"),
        Answer::Bye | Answer::Open(_) => {}
        Answer::Ok | Answer::Queued | Answer::Alive => out.extend_from_slice(b"OK\r\n"),
        Answer::Version(proxy) => line(&["VERSION ", &version(proxy)], out),
        Answer::Stat(name, value) => line(&["STAT ", name, " ", value], out),
        Answer::Refused(Refusal::Unknown) => out.extend_from_slice(b"ERROR\r\n"),
        Answer::Refused(Refusal::ByName(why) | Refusal::Bad(why)) => {
            line(&["CLIENT_ERROR ", why], out)
        }
        Answer::Refused(Refusal::NotAllowed(name)) => {
            line(&["CLIENT_ERROR ", &not_allowed(name)], out);
        }
        Answer::Refused(Refusal::TooLong) => line(&["CLIENT_ERROR line too long"], out),
        Answer::Refused(Refusal::BadBody) => line(&["CLIENT_ERROR bad data chunk"], out),
        // No command of this protocol names a server or a database, or is about transactions.
        Answer::Refused(Refusal::NoPlace | Refusal::NoDatabase | Refusal::OutOfPlace)
        | Answer::Aborted(_) => line(&["ERROR"], out),
        Answer::Refused(Refusal::TooLarge) => {
            out.extend_from_slice(b"SERVER_ERROR object too large for cache\r\n");
        }
        Answer::Refused(Refusal::TooLargeKept) => {
            out.extend_from_slice(b"SERVER_ERROR object too large for cache, old value kept\r\n");
        }
        Answer::Denied(why) => line(&["CLIENT_ERROR ", why], out),
        Answer::Failed(why) | Answer::Full(why) | Answer::Uncertain(why) => {
            line(&["SERVER_ERROR ", why], out)
        }
        Answer::Apart { servers: [one, other], .. } => {
            line(&["CLIENT_ERROR keys of two servers: ", one, ", ", other], out);
        }
        Answer::Error(line) => out.extend_from_slice(line),
        Answer::Barrier => out.extend_from_slice(b"MN\r\n"),
        Answer::LoggedIn => out.extend_from_slice(b"STORED\r\n"),
        Answer::LoginFailed => line(&["CLIENT_ERROR authentication failure"], out),
        Answer::LoginFirst => line(&["CLIENT_ERROR unauthenticated"], out),
    }
}

fn line(parts: &[&str], out: &mut Vec<u8>) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}
