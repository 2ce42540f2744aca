//! COMMAND DOCS: the purpose of each command, and its arguments.
//!
//! The table never changes. So the whole answer is written once for each version of RESP, when a
//! client first asks. Clients that ask again and again cost no more than copies.

use std::ops::Range;
use std::sync::OnceLock;

use super::super::commands::{self, Arguments, Row};
use super::super::words;
use super::catalog::{is_taken, place, subs, tops};
use super::{ANSWER_LEN_MAX, LONG_ANSWER, LocalAnswer, MANY_NAMES, NAMES_MAX};

/// The whole answer in one version of RESP.
struct Docs {
    /// The commands one after the other, each with its subcommands.
    pub text: Vec<u8>,
    /// The range in it of each command of the table.
    pub places: Vec<Range<usize>>,
    proto_version: u8,
}

impl Docs {
    pub fn of(proto_version: u8) -> &'static Docs {
        static RESP2: OnceLock<Docs> = OnceLock::new();
        static RESP3: OnceLock<Docs> = OnceLock::new();
        let docs = if proto_version > 2 { &RESP3 } else { &RESP2 };
        docs.get_or_init(|| Docs::write(proto_version))
    }

    fn write(proto_version: u8) -> Docs {
        let places = vec![0..0; commands::rows().len()];
        let mut docs = Docs { text: Vec::new(), places, proto_version };
        tops().iter().for_each(|row| docs.document(row));
        docs.text.shrink_to_fit();
        docs
    }

    /// Writes the purpose of a command and its arguments.
    fn document(&mut self, row: &'static Row) {
        let start = self.text.len();
        let texts = commands::texts(row.id);
        let arguments = texts.arguments;
        let subs: Vec<&'static Row> = subs(row).collect();
        let fields = ["summary", "since", "group", "complexity"];
        let fields = fields.map(|name| (name, texts.field(name)));
        let fields = fields.iter().filter(|(_, text)| !text.is_empty());
        words::bulk(row.name.as_bytes(), &mut self.text);
        let has_arguments = { arguments }.next().is_some();
        let count =
            fields.clone().count() + usize::from(has_arguments) + usize::from(!subs.is_empty());
        words::open_map(count, self.proto_version, &mut self.text);
        for (name, text) in fields {
            words::bulk(name.as_bytes(), &mut self.text);
            words::bulk(text.as_bytes(), &mut self.text);
        }
        if has_arguments {
            self.told_arguments(arguments);
        }
        if !subs.is_empty() {
            words::bulk(b"subcommands", &mut self.text);
            words::open_map(subs.len(), self.proto_version, &mut self.text);
            subs.iter().for_each(|sub| self.document(sub));
        }
        self.places[usize::from(row.id)] = start..self.text.len();
    }

    /// Writes `arguments` in the format of servers.
    fn told_arguments(&mut self, arguments: Arguments) {
        words::bulk(b"arguments", &mut self.text);
        words::open_array(arguments.count(), &mut self.text);
        for argument in arguments {
            let is_made_of_others = { argument.below }.next().is_some();
            let count = 2 + argument.more().count() + usize::from(is_made_of_others);
            words::open_map(count, self.proto_version, &mut self.text);
            let named = [("name", argument.name), ("type", argument.kind)];
            for (name, value) in named.into_iter().chain(argument.more()) {
                words::bulk(name.as_bytes(), &mut self.text);
                match (name, value.parse()) {
                    ("flags", _) => {
                        words::simple_set(value.split(','), self.proto_version, &mut self.text);
                    }
                    ("key_spec_index", Ok(index)) => words::number(index, &mut self.text),
                    _ => words::bulk(value.as_bytes(), &mut self.text),
                }
            }
            if is_made_of_others {
                self.told_arguments(argument.below);
            }
        }
    }
}

impl LocalAnswer<'_> {
    pub(super) fn command_docs(&mut self, names: &[&[u8]]) {
        if names.len() > NAMES_MAX {
            return self.error(&[MANY_NAMES]);
        }
        let docs = Docs::of(self.proto_version());
        if names.is_empty() {
            words::open_map(tops().len(), self.proto_version(), self.out);
            return self.out.extend_from_slice(&docs.text);
        }
        let is_rendered = |place: &u16| is_taken(&commands::rows()[usize::from(*place)]);
        let places: Vec<u16> =
            names.iter().filter_map(|name| place(name)).filter(is_rendered).collect();
        let texts = places.iter().map(|place| &docs.text[docs.places[usize::from(*place)].clone()]);
        if texts.clone().map(<[u8]>::len).sum::<usize>() > ANSWER_LEN_MAX {
            return self.error(&[LONG_ANSWER]);
        }
        words::open_map(places.len(), self.proto_version(), self.out);
        texts.for_each(|text| self.out.extend_from_slice(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    /// 2000 calls in a pipeline once held up a worker for seconds.
    #[test]
    fn what_commands_take_is_written_once_for_each_version_of_resp() {
        assert!(ptr::eq(Docs::of(2), Docs::of(2)) && ptr::eq(Docs::of(3), Docs::of(3)));
        assert!(Docs::of(2).text.starts_with(b"$3\r\nacl\r\n*"));
        assert!(Docs::of(3).text.starts_with(b"$3\r\nacl\r\n%"));
        for docs in [Docs::of(2), Docs::of(3)] {
            for (row, place) in commands::rows().iter().zip(&docs.places) {
                let head = format!("${}\r\n{}\r\n", row.name.len(), row.name);
                let text = &docs.text[place.clone()];
                assert!(text.is_empty() || text.starts_with(head.as_bytes()), "{}", row.name);
            }
        }
    }
}
