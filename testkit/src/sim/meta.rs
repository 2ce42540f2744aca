//! The model server's meta commands, on the same values as the classic commands.

use std::rc::Rc;

use super::conn::Conn;
use super::frame::{Frame, data_number, number};
use super::history::Value;
use super::journal::{Outcome, UpdateKind};
use super::server::{NON_NUMERIC, Place, Server, say, stored};

/// The flags of a meta command.
struct Flags<'a> {
    words: &'a [&'a str],
}

impl<'a> Flags<'a> {
    fn of_frame(frame: &'a Frame<'_>) -> Flags<'a> {
        Flags { words: &frame.words[if frame.words[0] == "ms" { 3 } else { 2 }..] }
    }

    fn of(&self, letter: char) -> Option<&'a str> {
        self.words.iter().find_map(|word| word.strip_prefix(letter))
    }

    fn has(&self, letter: char) -> bool {
        self.of(letter).is_some()
    }

    fn number(&self, letter: char) -> Option<u64> {
        self.of(letter).map(number)
    }

    /// Returns the flags to send back, in their order; `value` is the item.
    fn back(&self, key: &str, value: Option<&Value>) -> String {
        let mut out = String::new();
        for word in self.words {
            match (word.as_bytes()[0], value) {
                (b'O', _) => out.push_str(&format!(" {word}")),
                (b'k', _) => out.push_str(&format!(" k{key}")),
                (b'f', Some(value)) => out.push_str(&format!(" f{}", value.flags)),
                (b'c', Some(value)) => out.push_str(&format!(" c{}", value.cas)),
                _ => {}
            }
        }
        out
    }
}

impl Server {
    /// Executes a meta command.
    pub fn execute_meta(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        assert!(self.has_meta, "the proxy sends {:?} to a server without meta", frame.words);
        assert!(!Flags::of_frame(frame).has('q'), "a quiet request is sent on: {:?}", frame.words);
        match frame.words[0] {
            "mg" => self.meta_get(frame, conn, place),
            "ms" => self.meta_store(frame, conn, place),
            "md" => self.meta_delete(frame, conn, place),
            "ma" => self.meta_count(frame, conn, place),
            other => panic!("the proxy sends {other:?}"),
        }
    }

    fn meta_get(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        let flags = Flags::of_frame(frame);
        let text = frame.words[1];
        let key = place.key(&frame.key());
        let found = self.store.value(key).cloned();
        let event = match flags.number('N') {
            Some(id) => self.journal_update(id, UpdateKind::Vivify, key, conn, place),
            None => match flags.number('T') {
                Some(id) if found.is_some() => {
                    self.journal_update(id, UpdateKind::GetAndTouch, key, conn, place)
                }
                _ => place.journal.event(),
            },
        };
        let mut marks = String::new();
        let value = match found {
            None if !flags.has('N') => {
                return say(conn, &format!("EN{}", flags.back(text, None)));
            }
            None => {
                marks.push_str(" W");
                Value { won: true, ..Value::plain(Rc::from(&b""[..]), 0, event) }
            }
            Some(old) => {
                if old.won {
                    marks.push_str(" Z");
                }
                if old.stale {
                    marks.push_str(" X");
                }
                if old.stale && !old.won {
                    marks.push_str(" W");
                }
                Value { won: old.won || old.stale, ..old }
            }
        };
        if marks.contains('W') {
            let opaque = flags.of('O').expect("who asks for meta has an opaque");
            let is_new = place.journal.wins.insert((place.pool, opaque.to_string()));
            assert!(is_new, "a request wins twice");
            self.store.put(key, event, Some(value.clone()), None);
        }
        let back = flags.back(text, Some(&value));
        if !flags.has('v') {
            return say(conn, &format!("HD{back}{marks}"));
        }
        say(conn, &format!("VA {}{back}{marks}", value.bytes.len()));
        conn.output.extend_from_slice(&value.bytes);
        conn.output.extend_from_slice(b"\r\n");
    }

    fn meta_store(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        let flags = Flags::of_frame(frame);
        let text = frame.words[1];
        let key = place.key(&frame.key());
        let word = match flags.of('M') {
            Some("E") => "add",
            Some("R") => "replace",
            Some("A") => "append",
            Some("P") => "prepend",
            None => "set",
            other => panic!("mode {other:?}"),
        };
        let joins = matches!(word, "append" | "prepend");
        let id = if joins { data_number(frame.data) } else { flags.number('F').unwrap_or(0) };
        let old = self.store.value(key).cloned();
        let (outcome, bytes) = stored(word, old.as_ref(), None, frame.data);
        let event = self.journal_store(key, id, outcome, conn, place);
        let mut cas = 0;
        if let Some(bytes) = bytes {
            let client = old.filter(|_| joins).map_or(id as u32, |old| old.flags);
            cas = event;
            self.store.put(key, event, Some(Value::plain(bytes, client, event)), Some(id as u32));
        }
        let code = match outcome {
            "STORED" => "HD",
            "NOT_STORED" => "NS",
            other => panic!("{other}"),
        };
        let value = Value::plain(Rc::from(&b""[..]), 0, cas);
        say(conn, &format!("{code}{}", flags.back(text, Some(&value))));
    }

    fn meta_delete(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        let flags = Flags::of_frame(frame);
        let text = frame.words[1];
        let key = place.key(&frame.key());
        let old = self.store.value(key).cloned();
        let back = flags.back(text, None);
        let code = if old.is_some() { "HD" } else { "NF" };
        if !flags.has('I') {
            let event = place.journal.execute_delete(place.pool, key, old.is_some());
            self.store.put(key, event, None, None);
            return say(conn, &format!("{code}{back}"));
        }
        let id = flags.number('T').expect("an invalidation has its number");
        let event = self.journal_update(id, UpdateKind::Invalidate, key, conn, place);
        let outcome = if old.is_some() { "STORED" } else { "NOT_FOUND" };
        place.journal.updates[id as usize].outcome = Outcome::Words(outcome);
        if let Some(old) = old {
            let value = Value { stale: true, won: false, cas: event, ..old };
            self.store.put(key, event, Some(value), None);
        }
        say(conn, &format!("{code}{back}"));
    }

    fn meta_count(&mut self, frame: &Frame<'_>, conn: &mut Conn, place: &mut Place<'_>) {
        let flags = Flags::of_frame(frame);
        let text = frame.words[1];
        let key = place.key(&frame.key());
        let id = flags.number('D').expect("a delta");
        let word = if flags.of('M') == Some("D") { "decr" } else { "incr" };
        let outcome = self.journal_count(word, key, id, conn, place);
        let back = flags.back(text, self.store.value(key));
        match outcome {
            Outcome::Number(value) if flags.has('v') => {
                let digits = value.to_string();
                say(conn, &format!("VA {}{back}", digits.len()));
                say(conn, &digits);
            }
            Outcome::Number(_) => say(conn, &format!("HD{back}")),
            Outcome::Words(NON_NUMERIC) => say(conn, NON_NUMERIC),
            Outcome::Words(_) => say(conn, &format!("NF{}", flags.back(text, None))),
        }
    }
}
