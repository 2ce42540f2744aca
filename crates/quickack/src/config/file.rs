//! Parses text to a tree in which every word knows its place.
//!
//! It accepts only the YAML that `nutcracker.yml` uses, and flow lists (`[a, b]`): mappings, lists
//! and words. Nothing is typed here: `01`, `yes` and `"yes"` are words, as in twemproxy, and the
//! directive interprets them. Anchors, tags and further documents are refused, because their effect
//! on a configuration is hard to see.

use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::findings::Findings;
use super::report::{Diagnostic, Place, Severity};
use super::value::Fault;

/// A configuration file as written: names and the entries under them.
#[derive(Debug)]
pub struct ConfigFile {
    /// Every top-level key, in order, duplicates included.
    pub entries: Vec<Entry>,
}

/// `key: value`.
#[derive(Debug)]
pub struct Entry {
    pub key: String,
    pub key_place: Place,
    pub value: Node,
}

#[derive(Debug)]
pub struct Node {
    /// For a list or mapping, only its start.
    pub place: Place,
    pub shape: Shape,
}

#[derive(Debug)]
pub enum Shape {
    Word(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// A key without a value.
    Nothing,
}

impl ConfigFile {
    /// Parses `text`, or returns the first thing in it that is not YAML in the accepted form. After
    /// such an error the meaning of the rest is unknown, so it is not parsed.
    pub fn parse(text: &str) -> Result<ConfigFile, Diagnostic> {
        let mut builder = Builder { parser: Parser::new_from_str(text), text };
        let entries = builder.document()?;
        Ok(ConfigFile { entries })
    }
}

impl Entry {
    /// Returns the single word, or reports an error.
    pub fn word(&self, findings: &mut Findings) -> Option<&str> {
        match &self.value.shape {
            Shape::Nothing => {
                findings.error(self.key_place, format!("`{}` has no value", self.key));
                None
            }
            _ => self.value.word(&self.key, findings),
        }
    }
}

impl Node {
    /// Returns the word, or reports an error about the directive of that name.
    pub fn word(&self, name: &str, findings: &mut Findings) -> Option<&str> {
        let found = match &self.shape {
            Shape::Word(word) => return Some(word),
            Shape::Nothing => "nothing",
            Shape::List(_) => "a list",
            Shape::Map(_) => "a mapping",
        };
        let message = format!("{name}: a word was expected, not {found}; quote special characters");
        findings.error(self.place, message);
        None
    }

    /// Returns the place of a fault: the faulty part, if the text contains the word as it is.
    pub fn place_of(&self, fault: &Fault) -> Place {
        const QUOTES_LEN: usize = 2;
        let (Some(part), Shape::Word(word)) = (&fault.part, &self.shape) else { return self.place };
        let start = match self.place.end - self.place.start {
            len if len == word.len() => self.place.start,
            len if len == word.len() + QUOTES_LEN => self.place.start + 1,
            _ => return self.place, // Escaped or folded: its bytes are not the text's.
        };
        Place { start: start + part.start, end: start + part.end }
    }
}

/// Lists in mappings in mappings need three. More levels allow better messages than a depth error.
const DEPTH_MAX: usize = 8;

struct Builder<'t> {
    parser: Parser<'t, granit_parser::StrInput<'t>>,
    text: &'t str,
}

impl<'t> Builder<'t> {
    fn document(&mut self) -> Result<Vec<Entry>, Diagnostic> {
        self.next()?; // The start of the stream.
        let (event, _) = self.next()?;
        if event == Event::StreamEnd {
            return Ok(Vec::new());
        }
        let (event, place) = self.next()?;
        let root = self.node(event, place, 0)?;
        self.next()?; // The end of the document.
        let (event, place) = self.next()?;
        if event != Event::StreamEnd {
            return Err(error(place, "a second document: a configuration is one document"));
        }
        match root.shape {
            Shape::Map(entries) => Ok(entries),
            Shape::Nothing => Ok(Vec::new()),
            Shape::Word(_) | Shape::List(_) => {
                Err(error(root.place, "a configuration is a mapping of pool names to pools"))
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Place), Diagnostic> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, self.place(span))),
            Some(Err(fault)) => {
                let at = fault.marker().byte_offset().unwrap_or(0);
                Err(error(self.fit(at, at), &format!("not YAML: {}", fault.info())))
            }
            None => Ok((Event::StreamEnd, self.fit(self.text.len(), self.text.len()))),
        }
    }

    fn place(&self, span: Span) -> Place {
        let range = span.byte_range().unwrap_or_default();
        self.fit(range.start, range.end)
    }

    /// Returns a place that is valid in the text, whatever offsets the parser reported.
    fn fit(&self, start: usize, end: usize) -> Place {
        let start = self.boundary(start);
        Place { start, end: self.boundary(end).max(start) }
    }

    fn boundary(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }

    fn node(&mut self, event: Event, place: Place, depth: usize) -> Result<Node, Diagnostic> {
        if depth > DEPTH_MAX {
            return Err(error(place, "nested too deep for a configuration"));
        }
        let shape = match event {
            Event::Scalar(_, _, 1.., _)
            | Event::SequenceStart(_, 1.., _)
            | Event::MappingStart(_, 1.., _)
            | Event::Alias(_) => {
                return Err(error(
                    place,
                    "anchors and aliases are not allowed; write the value out",
                ));
            }
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, _, Some(_))
            | Event::MappingStart(_, _, Some(_)) => {
                return Err(error(place, "tags (`!word`) are not allowed; remove it"));
            }
            Event::Scalar(word, style, ..) => match style {
                ScalarStyle::Plain if place.start == place.end => Shape::Nothing,
                _ => Shape::Word(word.into_owned()),
            },
            Event::SequenceStart(..) => Shape::List(self.list(depth)?),
            Event::MappingStart(..) => Shape::Map(self.map(depth)?),
            _ => return Err(error(place, "a value was expected here")),
        };
        Ok(Node { place, shape })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Diagnostic> {
        let mut nodes = Vec::new();
        loop {
            let (event, place) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(nodes);
            }
            nodes.push(self.node(event, place, depth + 1)?);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Diagnostic> {
        let mut entries = Vec::new();
        loop {
            let (event, key_place) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(entries);
            }
            let Shape::Word(key) = self.node(event, key_place, depth + 1)?.shape else {
                return Err(error(key_place, "a name was expected before the colon"));
            };
            let (event, place) = self.next()?;
            let value = self.node(event, place, depth + 1)?;
            entries.push(Entry { key, key_place, value });
        }
    }
}

fn error(place: Place, message: &str) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        spot: place.into(),
        message: message.to_string(),
        suggestion: None,
        help: None,
        first: None,
    }
}
