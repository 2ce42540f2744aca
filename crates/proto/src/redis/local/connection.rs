//! HELLO, AUTH, SELECT, RESET, QUIT: commands about the connection itself.

use std::borrow::Cow;

use super::super::commands::{self, id};
use super::super::keys::ARITY;
use super::super::servers::{RESP3, VALKEY};
use super::super::{arguments, words};
use super::LocalAnswer;
use super::client::{DEFAULT_USER, checked_name};
use crate::scan::decimal;
use crate::{AfterLocal, Class, Local, Login, Quiet, Refusal, ReplyMode, Request};

const NO_NUMBER: &[u8] = b"ERR Protocol version is not an integer or out of range";
const NO_PROTOCOL: &[u8] = b"NOPROTO unsupported protocol version";
const WRONG_LOGIN: &[u8] = b"WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &[u8] = b"ERR AUTH <password> called without any password configured for the \
    default user. Are you sure your configuration is correct?";
const SYNTAX: &[u8] = b"ERR syntax error";
const NO_INTEGER: &[u8] = b"ERR value is not an integer or out of range";
const NO_INT: &[u8] = b"ERR value is out of range, value must between -2147483648 and 2147483647";
const NO_DATABASE: &[u8] = b"ERR DB index is out of range";

/// Classifies a whole request of a client that has to log in first. After a right login, `local`
/// answers the request and knows the user.
pub(in crate::redis) fn login<'a>(request: &Request, head: &'a [u8]) -> Login<'a> {
    match (request.command, request.class) {
        (id::QUIT | id::RESET, Class::Local(_)) => return Login::Free,
        (id::AUTH | id::HELLO, Class::Local(_)) => {}
        // An empty line.
        (_, Class::Local(Local::Nothing)) if request.quiet == Quiet::Silent => return Login::Free,
        // Servers look at the name and the number of arguments before they ask for a login.
        (_, Class::Refuse(Refusal::Unknown)) => return Login::Free,
        (command, Class::Refuse(Refusal::Bad(ARITY))) => {
            // There are numbers that only we refuse here.
            let row = commands::row(command);
            let count = arguments::first(head, usize::from(row.arity.unsigned_abs()) + 1).len();
            return if row.takes(count) { Login::Other } else { Login::Free };
        }
        _ => return Login::Other,
    }
    let arguments = arguments::all(head);
    let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &argument[..]).collect();
    let (name, password) = match (request.command, arguments.get(1..).unwrap_or_default()) {
        (id::AUTH, [password]) => (DEFAULT_USER, *password),
        (id::AUTH, [name, password]) => (*name, *password),
        (id::AUTH, _) => return Login::Free,
        (_, rest) => match Hello::read(rest) {
            Ok(Hello { login: Some(login), .. }) => login,
            Ok(_) => return Login::Other,
            // It is answered with its error.
            Err(_) => return Login::Free,
        },
    };
    // In a line they may be in quotes, so the unquoted text may be nowhere in the input.
    let [name, password] = [name, password].map(|text| Cow::Owned(text.to_vec()));
    Login::Attempt { name, password, goes_on: true }
}

/// The arguments of a HELLO.
struct Hello<'a> {
    /// 2 or 3; `None` only asks for the server's identity.
    version: Option<u8>,
    login: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

impl<'a> Hello<'a> {
    /// Reads the arguments; the error is the servers' text.
    fn read(arguments: &[&'a [u8]]) -> Result<Hello<'a>, Vec<u8>> {
        let mut hello = Hello { version: None, login: None, name: None };
        let Some((version, mut rest)) = arguments.split_first() else { return Ok(hello) };
        hello.version = Some(Hello::version(version)?);
        while let Some((option, after)) = rest.split_first() {
            rest = match after {
                [name, password, after @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    hello.login = Some((name, password));
                    after
                }
                [name, after @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    hello.name = Some(checked_name(name)?);
                    after
                }
                _ => {
                    let option = words::shown(option);
                    return Err([b"ERR Syntax error in HELLO option '", option, b"'"].concat());
                }
            };
        }
        Ok(hello)
    }

    fn version(text: &[u8]) -> Result<u8, Vec<u8>> {
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        match decimal(digits, i64::MAX as u64) {
            Some(_) if digits.len() > 1 && digits[0] == b'0' => Err(NO_NUMBER.to_vec()),
            Some(version @ 2..=3) if digits.len() == text.len() => Ok(version as u8),
            Some(_) => Err(NO_PROTOCOL.to_vec()),
            None => Err(NO_NUMBER.to_vec()),
        }
    }
}

impl LocalAnswer<'_> {
    pub(super) fn quit_or_reset(&mut self, command: u16) -> AfterLocal {
        if command == id::QUIT {
            self.ok();
            return AfterLocal::Close;
        }
        self.reset();
        words::simple("RESET", self.out);
        AfterLocal::LogOut
    }

    /// Resets everything except the name and version of the client's library.
    fn reset(&mut self) {
        let profile = self.session.profile.take();
        self.session.conn_key = self.facts.conn_key;
        self.session.reply_mode = ReplyMode::On;
        if let Some(old) = profile {
            let library = (old.library, old.library_version);
            if library != (Vec::new(), Vec::new()) {
                let profile = self.profile();
                (profile.library, profile.library_version) = library;
            }
        }
    }

    pub(super) fn hello(&mut self, rest: &[&[u8]]) {
        let hello = match Hello::read(rest) {
            Ok(hello) => hello,
            Err(why) => return self.error(&[&why]),
        };
        let knows_3 =
            self.facts.capabilities.is_none_or(|capabilities| capabilities.include(RESP3));
        if hello.version == Some(3) && !knows_3 {
            return self.error(&[NO_PROTOCOL, b": a server of this pool has no RESP3"]);
        }
        if let Some((name, _)) = hello.login {
            if !self.is_let_in(name) {
                return self.error(&[WRONG_LOGIN]);
            }
            self.set_user(name);
        }
        if let Some(name) = hello.name {
            self.set_name(name);
        }
        if let Some(version) = hello.version {
            self.session.conn_key.proto_version = version;
        }
        self.introduce();
    }

    /// Whether this user may log in. With users, every client that comes this far has been accepted
    /// as one. Otherwise there is only the user without a password.
    fn is_let_in(&self, name: &[u8]) -> bool {
        self.facts.has_users || name == DEFAULT_USER
    }

    /// Returns the servers' program and version; if they differ, the version that they are
    /// compatible with. A server that does not know HELLO is older than Redis 6.
    fn make(&self) -> (&'static str, String) {
        let make = self.facts.capabilities.unwrap_or_default().make;
        let (name, version) = match make.name {
            VALKEY => (VALKEY, make.version),
            _ => ("redis", make.like),
        };
        let [major, minor, patch] = if version == [0, 0, 0] { [5, 0, 0] } else { version };
        (name, format!("{major}.{minor}.{patch}"))
    }

    /// Answers as the pool's servers do outside a cluster: Valkey accepts both commands, Redis 6
    /// the second, Redis 7 none.
    pub(super) fn cluster_only(&mut self, command: u16) {
        let make = self.facts.capabilities.unwrap_or_default().make;
        let is_old = make.name == "redis" && make.version < [7, 0, 0];
        if make.name == VALKEY || is_old && command == id::READWRITE {
            return self.ok();
        }
        self.error(&[b"ERR This instance has cluster support disabled"]);
    }

    /// Writes the proxy's identity in the shape of HELLO.
    fn introduce(&mut self) {
        words::open_map(7, self.proto_version(), self.out);
        let (server, version) = self.make();
        for (name, value) in [("server", server), ("version", &version[..])] {
            words::bulk(name.as_bytes(), self.out);
            words::bulk(value.as_bytes(), self.out);
        }
        words::bulk(b"proto", self.out);
        words::number(u64::from(self.proto_version()), self.out);
        words::bulk(b"id", self.out);
        words::number(self.session.id, self.out);
        for (name, value) in [("mode", "standalone"), ("role", "master")] {
            words::bulk(name.as_bytes(), self.out);
            words::bulk(value.as_bytes(), self.out);
        }
        words::bulk(b"modules", self.out);
        words::open_array(0, self.out);
    }

    /// Answers as a master without replicas.
    pub(super) fn role(&mut self) {
        words::open_array(3, self.out);
        words::bulk(b"master", self.out);
        words::number(0, self.out);
        words::open_array(0, self.out);
    }

    pub(super) fn auth(&mut self, rest: &[&[u8]]) {
        let name = match rest {
            [_] if !self.facts.has_users => return self.error(&[NO_PASSWORD]),
            [_] => DEFAULT_USER,
            [name, _] => name,
            _ => return self.error(&[SYNTAX]),
        };
        if !self.is_let_in(name) {
            return self.error(&[WRONG_LOGIN]);
        }
        self.set_user(name);
        self.ok();
    }

    pub(super) fn select(&mut self, rest: &[&[u8]]) {
        let text = rest.first().copied().unwrap_or_default();
        let digits = text.strip_prefix(b"-").unwrap_or(text);
        let is_plain = !(digits.len() > 1 && digits.starts_with(b"0"));
        let Some(value) = decimal(digits, i64::MAX as u64).filter(|_| is_plain) else {
            return self.error(&[NO_INTEGER]);
        };
        if value > i32::MAX as u64 {
            return self.error(&[NO_INT]);
        }
        if digits.len() < text.len() || value >= u64::from(self.facts.databases) {
            return self.error(&[NO_DATABASE]);
        }
        self.session.conn_key.database = value as u32;
        self.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Parsed, Protocol, Resume};

    fn check(line: &str, expected: Login<'_>) {
        let head = format!("{line}\r\n").into_bytes();
        let redis = crate::redis::Redis;
        let parsed = redis.parse_request(&head, &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
        assert_eq!(login(&request, &head), expected, "{line}");
    }

    #[test]
    fn a_login_is_told_from_other_requests() {
        let attempt = |name: &'static str, password: &'static str| Login::Attempt {
            name: name.as_bytes().into(),
            password: password.as_bytes().into(),
            goes_on: true,
        };
        check("auth pw", attempt("default", "pw"));
        check("AUTH anna pw", attempt("anna", "pw"));
        check("hello 3 auth anna pw", attempt("anna", "pw"));
        check("hello 2 setname x auth anna pw", attempt("anna", "pw"));
        check("hello 2 auth anna pw auth bert qw", attempt("bert", "qw"));
        check("auth \"anna b\" 'p w'", attempt("anna b", "p w"));
        check("auth 'p\\'w'", attempt("default", "p'w"));
        check("auth \"p\\x61ss\"", attempt("default", "pass"));
        check("auth \"a\\x\" \"\\n\\r\\t\\b\\a\\\\\\\"\\q\"", attempt("ax", "\n\r\t\x08\x07\\\"q"));
        check("auth 'a\\n' '\\x61'", attempt("a\\n", "\\x61"));
        check("hello 3 auth \"an\\x6ea\" 'p\\'w'", attempt("anna", "p'w"));
        check("hello 3 \"auth\" anna \"\"", attempt("anna", ""));
        for (line, login) in [
            ("", Login::Free),
            ("quit", Login::Free),
            ("reset", Login::Free),
            ("auth a b c", Login::Free),
            ("hello 4 auth anna pw", Login::Free),
            ("hello x", Login::Free),
            ("hello 3 auth anna", Login::Free),
            ("hello 3", Login::Other),
            ("hello", Login::Other),
            ("auth", Login::Free),
            ("get", Login::Free),
            ("get k l", Login::Free),
            ("nope", Login::Free),
            ("client nope", Login::Free),
            ("ping", Login::Other),
            ("ping a b", Login::Other),
            ("get k", Login::Other),
            ("eval x 2 k", Login::Other),
        ] {
            check(line, login);
        }
    }
}
