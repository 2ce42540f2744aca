//! One request, with placeholders for cas numbers: each side has its own numbers.

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    Text,
    Binary,
}

pub struct Request {
    pub wire: Wire,
    /// The command: `get`, `mg`, `binary Append`.
    pub name: &'static str,
    /// Its only key. A cas number in its answer belongs to that key.
    pub key: Option<usize>,
    /// Special properties, for the table of permitted differences.
    pub marks: Vec<Mark>,
    /// The opaque, which assigns the answer to the request.
    pub opaque: Option<u32>,
    /// It gets no answer.
    pub quiet: bool,
    pub parts: Vec<Part>,
}

/// A piece of a request.
pub enum Part {
    Bytes(Vec<u8>),
    /// A number of memcached's, to be replaced by the side's own.
    CasText(u64),
    CasBinary(u64),
}

/// A reason why answers may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A key that only the binary protocol can carry.
    LongBytesKey,
    /// A value of about a megabyte or more, with its length in bytes.
    Huge(usize),
    /// A `ma` that may create its item and wants no answer about it.
    QuietCreation,
    /// Flags that memcached 1.6.18 does not know.
    NewerFlag,
    /// A repeated flag, an invalid token, and the like.
    BadFlags,
    /// A length, key or extra that the protocol does not permit.
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

    /// Makes a line of text, without the line break.
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

    /// Returns whether memcached closes the connection upon it.
    pub fn closes(&self) -> bool {
        self.wire == Wire::Binary && self.has(Mark::BadFrame)
    }

    pub fn is_huge(&self) -> bool {
        self.len().is_some()
    }

    /// Returns the length of a huge value.
    pub fn len(&self) -> Option<usize> {
        self.marks.iter().find_map(|mark| match mark {
            Mark::Huge(len) => Some(*len),
            _ => None,
        })
    }

    /// Writes its bytes for a side; `own` returns the side's cas numbers.
    pub fn render(&self, own: impl Fn(u64) -> u64, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::CasText(cas) => out.extend_from_slice(own(*cas).to_string().as_bytes()),
                Part::CasBinary(cas) => out.extend_from_slice(&own(*cas).to_be_bytes()),
            }
        }
    }

    /// Returns the number of lines in its answer, as far as known; 2 stands for many.
    pub fn answers(&self) -> usize {
        match self.name {
            _ if self.quiet => 0,
            "get" | "gets" | "gat" | "gats" => 2,
            _ => 1,
        }
    }

    /// Renders it for people.
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

/// Shortens a long run of equal letters at the end, as in the longest keys.
pub fn shorten(bytes: &mut Vec<u8>) {
    while let Some(at) = bytes.windows(9).position(|nine| nine == b"xxxxxxxxx") {
        bytes.remove(at);
    }
    if bytes.len() > 160 {
        bytes.splice(90..bytes.len() - 60, *b" ... ");
    }
}
