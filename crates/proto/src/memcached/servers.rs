//! The protocol of servers: lines of text, whatever the client's protocol is.

use super::{commands, reply};
use crate::scan;
use crate::{
    Ask, Capabilities, ConnKey, Credentials, HandshakeReply, Item, ItemKind, Parsed, Progress,
    Resume, Upstream,
};

/// The longest line of a `gat` or `gats` that we send.
const OTHER_LINE_MAX: usize = 1000;
/// The first version whose meta commands can be relied on. 1.6.10 has them in their present form
/// (`HD`, the length in `ms`, `b`). But up to 1.6.12, `md` with a cas number never deletes, and
/// `ms` returns a wrong one (memcached's issues 842 and 844).
const META_SINCE: [u32; 3] = [1, 6, 13];
/// The meta commands.
pub const META: Capabilities = Capabilities::one(0);
const FULL: &[u8] = b"ERROR Too many open connections";
const NO_VERSION: &str = "an error in answer to `version`";

/// A server's reply to every command before a login, here without its `\r\n`.
const LOGIN_FIRST: &[u8] = b"CLIENT_ERROR unauthenticated";

/// The errors after which a server passes over a value, maybe with more words behind.
const PASSED_OVER: [&[u8]; 2] =
    [b"SERVER_ERROR object too large for cache", b"SERVER_ERROR out of memory storing object"];

/// memcached servers, and others that use its protocol.
pub struct Servers;

impl crate::Bound for Servers {
    fn passes_over(&self, line: &[u8]) -> bool {
        PASSED_OVER.iter().any(|words| line.starts_with(words) || words.starts_with(line))
    }
}

impl crate::Errors for Servers {}

impl Upstream for Servers {
    fn parse_reply(&self, ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
        reply::parse(ask, progress, input)
    }

    fn families(&self) -> &'static [&'static str] {
        commands::FAMILIES
    }

    fn needs(&self, ask: Ask) -> Capabilities {
        match (commands::MG..=commands::ME).contains(&ask.command) {
            true => META,
            false => Capabilities::default(),
        }
    }

    fn lacks(&self, capabilities: Capabilities) -> Option<&'static str> {
        (!capabilities.include(META)).then_some(
            "has no meta commands that can be relied on (memcached has them since 1.6.13): \
             requests that need them are refused",
        )
    }

    fn fetch_max(&self, ask: Ask) -> usize {
        // memcached closes on a line that has no end after 1024 bytes (1.4) or 2048 (1.6), unless
        // the line begins with `get ` or `gets `.
        if ask.command <= commands::GETS { usize::MAX } else { OTHER_LINE_MAX }
    }

    fn widen(&self, ask: Ask, other: Ask) -> Option<Ask> {
        let wide = ask.command.max(other.command);
        // Only `get` and `gets` can be merged; the others have arguments.
        (ask == other || wide <= commands::GETS).then_some(Ask { command: wide })
    }

    fn push_fetch(&self, key: &[u8], out: &mut Vec<u8>) -> usize {
        out.push(b' ');
        let at = out.len();
        out.extend_from_slice(key);
        at
    }

    fn seal_fetch(&self, _ask: Ask, _keys: usize, text: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    }

    fn write_handshake(
        &self,
        credentials: Option<&Credentials>,
        _conn_key: ConnKey,
        out: &mut Vec<u8>,
    ) {
        if let Some(Credentials { name, password }) = credentials {
            let len = name.len() + 1 + password.len();
            // A server without logins takes this for an item, which must never be found. So the
            // item has expired already, and no client uses its key.
            out.extend_from_slice(format!("set quickack:login 0 -1 {len}\r\n").as_bytes());
            out.extend_from_slice(format!("{name} {password}\r\n").as_bytes());
        }
        out.extend_from_slice(b"version\r\n");
    }

    fn read_handshake(
        &self,
        credentials: bool,
        _conn_key: ConnKey,
        input: &[u8],
    ) -> Parsed<HandshakeReply> {
        // It says so before it is asked, and closes.
        if input.starts_with(FULL) && input.contains(&b'\n') {
            return Parsed::Complete(HandshakeReply::Refused);
        }
        let (mut at, mut progress) = (0, Progress::default());
        if credentials {
            match reply::parse(Ask { command: commands::SET }, &mut progress, input) {
                Parsed::Complete(Item { kind: ItemKind::Status, head, .. }) => at = head as usize,
                Parsed::Complete(_) => return Parsed::Complete(HandshakeReply::LoginRefused),
                Parsed::Incomplete => return Parsed::Incomplete,
                Parsed::Malformed(why) => return Parsed::Malformed(why),
            }
        }
        match reply::parse(Ask { command: commands::VERSION }, &mut progress, &input[at..]) {
            Parsed::Complete(item) => {
                let end = at + item.head as usize;
                welcome(item.kind, &input[at..end], end)
            }
            Parsed::Incomplete => Parsed::Incomplete,
            Parsed::Malformed(why) => Parsed::Malformed(why),
        }
    }
}

/// Reads the server's capabilities from the answer to `version`. `len` is the length of the whole
/// answer to the handshake.
fn welcome(kind: ItemKind, line: &[u8], len: usize) -> Parsed<HandshakeReply> {
    let capabilities = match kind {
        ItemKind::Status if has_meta(line) => META,
        ItemKind::Status => Capabilities::default(),
        // A server that does not know this command knows no other new one.
        _ if line == b"ERROR\r\n" => Capabilities::default(),
        _ if line.starts_with(LOGIN_FIRST) => {
            return Parsed::Complete(HandshakeReply::LoginRefused);
        }
        // The server has a problem, or we have. This says nothing of its capabilities.
        _ => return Parsed::Malformed(NO_VERSION),
    };
    Parsed::Complete(HandshakeReply::Welcome { len, capabilities })
}

/// Whether a server with this `VERSION` line has the meta commands.
fn has_meta(line: &[u8]) -> bool {
    let Some(version) = line.strip_prefix(b"VERSION ") else { return false };
    let end = scan::line_len(version, &mut Resume::default()).unwrap_or(version.len());
    let mut parts = version[..end].split(|byte| !byte.is_ascii_digit());
    let mut part = || {
        let text = parts.next().unwrap_or(b"");
        scan::decimal(text, u64::from(u32::MAX)).unwrap_or(0) as u32
    };
    [part(), part(), part()] >= META_SINCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_says_whether_there_are_meta_commands() {
        for (line, has) in [
            ("VERSION 1.6.18\r\n", true),
            ("VERSION 1.6.13 quickack-0.1.0\r\n", true),
            ("VERSION 1.6.45_beta1\r\n", true),
            ("VERSION 2.0\r\n", true),
            ("VERSION 1.6.12\r\n", false),
            ("VERSION 1.6.9\r\n", false),
            ("VERSION 1.5.22\r\n", false),
            ("VERSION 0.5.0\r\n", false),
            ("VERSION unknown\r\n", false),
            ("ERROR\r\n", false),
        ] {
            let heard = Servers.read_handshake(false, ConnKey::default(), line.as_bytes());
            let capabilities = if has { META } else { Capabilities::default() };
            let welcome = HandshakeReply::Welcome { len: line.len(), capabilities };
            assert_eq!(heard, Parsed::Complete(welcome), "{line}");
        }
    }

    #[test]
    fn an_error_in_answer_to_version_teaches_nothing() {
        for line in ["SERVER_ERROR out of memory\r\n", "CLIENT_ERROR line too long\r\n"] {
            let heard = Servers.read_handshake(false, ConnKey::default(), line.as_bytes());
            assert_eq!(heard, Parsed::Malformed(NO_VERSION), "{line}");
            let after_login = format!("STORED\r\n{line}");
            assert_eq!(
                Servers.read_handshake(true, ConnKey::default(), after_login.as_bytes()),
                heard,
                "{line}"
            );
        }
    }

    #[test]
    fn a_full_server_refuses_before_it_is_asked_anything() {
        let whole = b"ERROR Too many open connections\r\n";
        for (credentials, len) in [(true, whole.len()), (false, whole.len()), (false, 20)] {
            let expected = match len == whole.len() {
                true => Parsed::Complete(HandshakeReply::Refused),
                false => Parsed::Incomplete,
            };
            let heard = Servers.read_handshake(credentials, ConnKey::default(), &whole[..len]);
            assert_eq!(heard, expected, "{credentials} {len}");
        }
    }

    #[test]
    fn a_login_comes_before_everything_and_is_taken_or_refused() {
        let (name, password) = ("anna".to_string(), "se cret".to_string());
        let mut said = Vec::new();
        Servers.write_handshake(
            Some(&Credentials { name, password }),
            ConnKey::default(),
            &mut said,
        );
        let hello = "set quickack:login 0 -1 12\r\nanna se cret\r\nversion\r\n";
        assert_eq!(String::from_utf8_lossy(&said), hello);
        let whole = "STORED\r\nVERSION 1.6.18\r\n";
        for len in 0..whole.len() {
            assert_eq!(
                Servers.read_handshake(true, ConnKey::default(), &whole.as_bytes()[..len]),
                Parsed::Incomplete,
                "{len}"
            );
        }
        let welcome = HandshakeReply::Welcome { len: whole.len(), capabilities: META };
        assert_eq!(
            Servers.read_handshake(true, ConnKey::default(), whole.as_bytes()),
            Parsed::Complete(welcome)
        );
        // A server that answers each line, and memcached 1.6.18, which loses all answers but the
        // last.
        let each = "CLIENT_ERROR authentication failure\r\nCLIENT_ERROR unauthenticated\r\n";
        let last = "CLIENT_ERROR unauthenticated\r\n";
        for (tried, words) in [(true, each), (true, last), (false, last)] {
            let heard = Servers.read_handshake(tried, ConnKey::default(), words.as_bytes());
            assert_eq!(heard, Parsed::Complete(HandshakeReply::LoginRefused), "{tried} {words}");
        }
    }
}
