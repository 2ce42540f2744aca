//! One request, with holes where a cas number stands: each side has numbers of its own.

/// What a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    Text,
    Binary,
}

pub struct Request {
    pub wire: Wire,
    /// The command: `get`, `mg`, `binary Append`.
    pub name: &'static str,
    /// Its only key. A cas number in its answer is that key's.
    pub key: Option<usize>,
    /// What makes it special, for the table of excuses.
    pub marks: Vec<Mark>,
    /// What its answer repeats, so that the two find each other.
    pub opaque: Option<u32>,
    /// Whether nothing is answered.
    pub quiet: bool,
    pub parts: Vec<Part>,
}

/// A piece of a request.
pub enum Part {
    Bytes(Vec<u8>),
    /// memcached's number, to be put into the words of a side's own.
    CasText(u64),
    CasBinary(u64),
}

/// Why an answer may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A key that only the binary protocol can say.
    LongBytesKey,
    /// A value of about a megabyte or more, of so many bytes.
    Huge(usize),
    /// A `ma` that may create its item and wants to hear nothing of it.
    QuietCreation,
    /// Flags that memcached 1.6.18 does not know.
    NewerFlag,
    /// A flag twice, a token that is none, and the like.
    BadFlags,
    /// A length, key or extra that the protocol does not allow.
    BadFrame,
    /// Several keys, some of which may be missing.
    ManyKeys,
}

impl Request {
    pub fn new(wire: Wire, name: &'static str, key: Option<usize>) -> Request {
        Request {
            wire,
            name,
            key,
            marks: Vec::new(),
            opaque: None,
            quiet: false,
            parts: Vec::new(),
        }
    }

    /// A line of text, without the end.
    pub fn line(name: &'static str, key: Option<usize>, line: impl AsRef<[u8]>) -> Request {
        let mut request = Request::new(Wire::Text, name, key);
        request.push(line);
        request
    }

    pub fn push(&mut self, bytes: impl AsRef<[u8]>) {
        match self.parts.last_mut() {
            Some(Part::Bytes(held)) => held.extend_from_slice(bytes.as_ref()),
            _ => self.parts.push(Part::Bytes(bytes.as_ref().to_vec())),
        }
    }

    pub fn mark(&mut self, mark: Mark) {
        self.marks.push(mark);
    }

    pub fn has(&self, mark: Mark) -> bool {
        self.marks.contains(&mark)
    }

    /// Whether memcached closes upon it.
    pub fn closes(&self) -> bool {
        self.wire == Wire::Binary && self.has(Mark::BadFrame)
    }

    pub fn is_huge(&self) -> bool {
        self.len().is_some()
    }

    /// Of a huge value.
    pub fn len(&self) -> Option<usize> {
        self.marks.iter().find_map(|mark| match mark {
            Mark::Huge(len) => Some(*len),
            _ => None,
        })
    }

    /// Its bytes for a side, whose numbers `own` knows.
    pub fn render(&self, own: impl Fn(u64) -> u64, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::CasText(cas) => out.extend_from_slice(own(*cas).to_string().as_bytes()),
                Part::CasBinary(cas) => out.extend_from_slice(&own(*cas).to_be_bytes()),
            }
        }
    }

    /// How many lines answer it, as far as that is known: 2 stands for many.
    pub fn answers(&self) -> usize {
        match self.name {
            _ if self.quiet => 0,
            "get" | "gets" | "gat" | "gats" => 2,
            _ => 1,
        }
    }

    /// For people.
    pub fn shown(&self) -> String {
        let mut bytes = Vec::new();
        self.render(|cas| cas, &mut bytes);
        let len = bytes.len();
        shorten(&mut bytes);
        let marks =
            if self.marks.is_empty() { String::new() } else { format!(" {:?}", self.marks) };
        format!("{}{marks}, {len} bytes: {}", self.name, bytes.escape_ascii())
    }
}

/// The longest keys end in many equal letters.
pub fn shorten(bytes: &mut Vec<u8>) {
    while let Some(at) = bytes.windows(9).position(|nine| nine == b"xxxxxxxxx") {
        bytes.remove(at);
    }
    if bytes.len() > 160 {
        bytes.splice(90..bytes.len() - 60, *b" ... ");
    }
}
