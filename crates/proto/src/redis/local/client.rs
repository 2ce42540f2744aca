//! CLIENT and ACL WHOAMI: the client's description of itself, which it gets back when it asks.

use super::super::commands::id;
use super::super::words;
use super::{LocalAnswer, inquiry};
use crate::{ClientFlags, ClientLine, Endpoints, Profile, ReplyMode};

/// The user of every client that has not logged in.
pub(super) const DEFAULT_USER: &[u8] = b"default";
const BAD_NAME: &[u8] = b"ERR Client names cannot contain spaces, newlines or special characters.";
const SYNTAX: &[u8] = b"ERR syntax error";
/// The longest name. Servers accept any length, but the proxy keeps one for each client.
const NAME_MAX: usize = 1024;
const LONG_NAME: &[u8] = b"ERR a name of more than 1024 bytes is not kept";

/// Whether a client may have this name, by the servers' rule.
fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| matches!(byte, b'!'..=b'~'))
}

/// Returns a name that a client may have, or the error.
pub(super) fn checked_name(name: &[u8]) -> Result<&[u8], Vec<u8>> {
    match name {
        _ if !is_name(name) => Err(BAD_NAME.to_vec()),
        _ if name.len() > NAME_MAX => Err(LONG_NAME.to_vec()),
        _ => Ok(name),
    }
}

impl LocalAnswer<'_> {
    /// Returns the client's description of itself, for changes.
    pub(super) fn profile(&mut self) -> &mut Profile {
        self.session.profile.get_or_insert_default()
    }

    pub(super) fn set_user(&mut self, name: &[u8]) {
        if name != DEFAULT_USER || self.session.profile.is_some() {
            self.profile().user = name.to_vec();
        }
    }

    pub(super) fn set_name(&mut self, name: &[u8]) {
        if !name.is_empty() || self.session.profile.is_some() {
            self.profile().name = name.to_vec();
        }
    }

    pub(super) fn client_name(&mut self) {
        match self.session.profile.as_ref().map(|profile| &profile.name[..]) {
            None | Some(b"") => words::null(self.proto_version(), self.out),
            Some(name) => words::bulk(name, self.out),
        }
    }

    pub(super) fn client_set_name(&mut self, under: &[&[u8]]) {
        match checked_name(under.first().copied().unwrap_or_default()) {
            Ok(name) => {
                self.set_name(name);
                self.ok();
            }
            Err(why) => self.error(&[&why]),
        }
    }

    pub(super) fn client_set_info(&mut self, under: &[&[u8]]) {
        let [option, value] = under else { return self.error(&[SYNTAX]) };
        let is_name_of_it = option.eq_ignore_ascii_case(b"LIB-NAME");
        if !is_name_of_it && !option.eq_ignore_ascii_case(b"LIB-VER") {
            return self.error(&[b"ERR Unrecognized option '", words::shown(option), b"'"]);
        }
        if !is_name(value) {
            let why: &[u8] = b" cannot contain spaces, newlines or special characters.";
            return self.error(&[b"ERR ", option, why]);
        }
        if value.len() > NAME_MAX {
            return self.error(&[LONG_NAME]);
        }
        let profile = self.profile();
        let place = if is_name_of_it { &mut profile.library } else { &mut profile.library_version };
        *place = value.to_vec();
        self.ok();
    }

    pub(super) fn client_flag(&mut self, command: u16, under: &[&[u8]]) {
        let is_on = match under {
            [word] if word.eq_ignore_ascii_case(b"on") => true,
            [word] if word.eq_ignore_ascii_case(b"off") => false,
            _ => return self.error(&[SYNTAX]),
        };
        if is_on || self.session.profile.is_some() {
            let profile = self.profile();
            match command {
                id::CLIENT_NO_EVICT => profile.no_evict = is_on,
                _ => profile.no_touch = is_on,
            }
        }
        self.ok();
    }

    /// Answers only ON.
    pub(super) fn client_reply(&mut self, under: &[&[u8]]) {
        match under {
            [word] if word.eq_ignore_ascii_case(b"on") => {
                self.session.reply_mode = ReplyMode::On;
                self.ok();
            }
            [word] if word.eq_ignore_ascii_case(b"off") => self.session.reply_mode = ReplyMode::Off,
            [word] if word.eq_ignore_ascii_case(b"skip") => {
                if self.session.reply_mode != ReplyMode::Off {
                    self.session.reply_mode = ReplyMode::SkipNext;
                }
            }
            _ => self.error(&[SYNTAX]),
        }
    }

    /// Writes one line, with all fields of Redis 7 and Valkey. Nothing of a client waits in buffers
    /// while it is answered.
    pub(super) fn client_info(&mut self) {
        let (none, nowhere) = (Profile::default(), Endpoints::default());
        let endpoints = self.facts.endpoints.unwrap_or(&nowhere);
        let profile = self.session.profile.as_deref().unwrap_or(&none);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Profile { no_evict, no_touch, .. } = *profile;
        let listens = self.facts.topics != [0; 3];
        let flags = ClientFlags { no_evict, no_touch, listens, ..ClientFlags::default() };
        let (name, library) = (text(&profile.name), text(&profile.library));
        let mut line = Vec::new();
        let about = ClientLine {
            id: self.session.id,
            from: &endpoints.from,
            to: &endpoints.to,
            descriptor: endpoints.descriptor,
            name: &name,
            age_s: self.facts.age_s,
            flags: &inquiry::flags(flags),
            database: self.session.conn_key.database,
            topics: self.facts.topics,
            command: Some("client|info"),
            user: &text(&words::echo(&profile.user)),
            proto_version: self.proto_version(),
            library: &library,
            library_version: &text(&profile.library_version),
            pool: &text(&words::echo(self.facts.pool.as_bytes())),
            ..ClientLine::default()
        };
        inquiry::describe(&about, &mut line);
        words::verbatim(&line, self.proto_version(), self.out);
    }

    pub(super) fn who(&mut self) {
        let user = self.session.profile.as_ref().map(|profile| &profile.user[..]);
        words::bulk(user.filter(|user| !user.is_empty()).unwrap_or(DEFAULT_USER), self.out);
    }
}
