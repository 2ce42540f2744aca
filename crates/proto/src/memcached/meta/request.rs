//! Classification of meta requests.

use super::super::commands;
use super::super::number;
use super::super::request::{BAD_LINE, Line};
use super::adapt::is_hidden;
use super::{Flags, Verb, base64};
use crate::{Ask, Class, MarkUse, Parsed, Quiet, Refusal, Request, Span};

/// The flags of a read that `get` and `gets` can answer, if a value is wanted at all.
const MERGEABLE: &[u8] = b"vfcksOqPL";
/// The flags of a read that `gat` and `gats` can answer.
const TOUCHING: &[u8] = b"vfcksOqPLT";

impl Line<'_> {
    pub(in super::super) fn read_meta(&mut self, verb: Verb) -> Option<Parsed<Request>> {
        if verb == Verb::Noop {
            // The server ignores any further text.
            return None;
        }
        let Some(key) = self.tokens.next() else {
            let debug = verb == Verb::Debug;
            return self.refuse(if debug { Refusal::Bad(BAD_LINE) } else { Refusal::Unknown });
        };
        if verb == Verb::Set {
            let Some(length) = self.tokens.next() else {
                return self.refuse(Refusal::Bad(BAD_LINE));
            };
            let Some(body) = number::length(self.tokens.text(length)) else {
                // Without its length, the data block cannot be distinguished from commands.
                return Some(Parsed::Malformed(BAD_LINE));
            };
            self.request.body = body;
            self.request.trailer = b"\r\n";
            self.request.stores = true;
        }
        let text = self.tokens.text(key);
        if !self.is_key(key) {
            return self.refuse(Refusal::Bad(BAD_LINE));
        }
        // A key may have control characters, flags may not.
        self.tokens.begin_clean();
        if verb == Verb::Debug {
            return self.read_debug(key);
        }
        match Flags::read(&mut self.tokens, verb, text) {
            Err(why) => self.refuse(Refusal::Bad(why)),
            Ok(_) if !self.tokens.are_clean() => self.refuse(Refusal::Bad(BAD_LINE)),
            Ok(flags) => {
                self.keys.push(key);
                self.classify(verb, &flags, text);
                None
            }
        }
    }

    /// Reads `me key [b]`. The server ignores any further text, and does not get it.
    fn read_debug(&mut self, key: Span) -> Option<Parsed<Request>> {
        let option = self.tokens.next().unwrap_or_default();
        self.tokens.by_ref().for_each(drop);
        if self.tokens.text(option) == b"b" {
            self.request.arguments = option;
        }
        let coded = !self.request.arguments.is_empty();
        if !self.tokens.are_clean() || coded && !base64::is_valid(self.tokens.text(key)) {
            return self.refuse(Refusal::Bad(BAD_LINE));
        }
        self.request.keep = true;
        self.keys.push(key);
        None
    }

    fn classify(&mut self, verb: Verb, flags: &Flags, key: &[u8]) {
        let request = &mut self.request;
        request.keep = true;
        if flags.has(b'q') {
            request.quiet = Quiet::Sparing;
        }
        match verb {
            Verb::Get if flags.has(b'v') && flags.within(TOUCHING) => self.merge_read(flags),
            Verb::Get => {
                let writes = flags.has_any(b"NRTE");
                request.class = Class::Single { writes };
                request.marks = marks(flags.has_any(b"NR"));
            }
            // A plain key that was stored in base64 is returned so, which has the effect of a mark.
            Verb::Set => {
                request.marks = marks(flags.has(b'I') || flags.has(b'b') && !is_hidden(key));
            }
            Verb::Delete => request.marks = marks(flags.has_any(b"Ix")),
            Verb::Arithmetic | Verb::Noop | Verb::Debug => {}
        }
        if flags.has(b'b') {
            self.request.arguments = self.option(b'b');
        }
    }

    /// Classifies a read that classic text can answer.
    fn merge_read(&mut self, flags: &Flags) {
        let merge = flags.within(MERGEABLE);
        let command = match (merge, flags.has(b'c')) {
            (true, false) => commands::GET,
            (true, true) => commands::GETS,
            (false, false) => commands::GAT,
            (false, true) => commands::GATS,
        };
        self.request.class = Class::Fetch { ask: Ask { command }, merge, idempotent: merge };
        self.request.marks = MarkUse::Shows;
        if !merge {
            let ttl = self.option(b'T');
            self.request.arguments = Span { start: ttl.start + 1, ..ttl };
        }
    }

    /// Returns the position of this flag in the line.
    fn option(&self, letter: u8) -> Span {
        let mut tokens = self.tokens.again();
        let line = self.tokens.again();
        tokens.by_ref().take(2).for_each(drop);
        tokens.find(|token| line.text(*token).first() == Some(&letter)).unwrap_or_default()
    }
}

fn marks(makes: bool) -> MarkUse {
    if makes { MarkUse::Sets } else { MarkUse::None }
}
