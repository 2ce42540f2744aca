//! Reads replies: a whole single-key hit in one comparison, everything else piece by piece.
//!
//! A reply that is not what was asked for is counted as an error; bytes after which nothing can be
//! trusted end the window.

use std::collections::VecDeque;
use std::ops::Range;

use super::corpus::Corpus;
use super::tally::Tally;

/// One request whose reply is awaited.
#[derive(Clone, Debug)]
pub struct Asked {
    pub kind: Kind,
    /// When it should have been sent.
    pub due_ns: u64,
    /// When it was sent.
    pub sent_ns: u64,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Get(Range<u32>),
    Set,
}

/// The reader's place in one connection's stream of replies.
#[derive(Default)]
pub struct Reader {
    state: State,
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    /// Values of the current get so far.
    hits: u32,
}

#[derive(Default)]
enum State {
    /// At the start of a line.
    #[default]
    Line,
    /// Inside a value or its CRLF.
    Body { index: u32, left: usize },
}

/// A line longer than this is not a memcached reply.
const LINE_LEN_MAX: usize = 512;
const SHORT_HIT_END: &[u8] = b"\r\nEND\r\n";

impl Reader {
    /// Takes received bytes; returns how many requests they have answered.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        asked: &mut VecDeque<Asked>,
        context: &mut Context,
    ) -> Result<usize, String> {
        let before = asked.len();
        while !bytes.is_empty() {
            let taken = match self.state {
                State::Line if self.line.is_empty() => match context.whole_hit(bytes, asked) {
                    Some(len) => len,
                    None => self.receive_line(bytes, asked, context)?,
                },
                State::Line => self.receive_line(bytes, asked, context)?,
                State::Body { index, left } => self.receive_body(bytes, index, left, context)?,
            };
            bytes = &bytes[taken..];
        }
        Ok(before - asked.len())
    }

    fn receive_line(
        &mut self,
        bytes: &[u8],
        asked: &mut VecDeque<Asked>,
        context: &mut Context,
    ) -> Result<usize, String> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            self.line.extend_from_slice(bytes);
            if self.line.len() > LINE_LEN_MAX {
                return Err(format!("a line without end: {}", self.line[..60].escape_ascii()));
            }
            return Ok(bytes.len());
        };
        if self.line.is_empty() {
            self.handle_line(&bytes[..=end], asked, context)?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(&bytes[..=end]);
            self.handle_line(&line, asked, context)?;
            line.clear();
            self.line = line;
        }
        Ok(end + 1)
    }

    fn handle_line(
        &mut self,
        line: &[u8],
        asked: &mut VecDeque<Asked>,
        context: &mut Context,
    ) -> Result<(), String> {
        let Some(request) = asked.front() else {
            return Err(format!("an answer nobody asked for: {}", line.escape_ascii()));
        };
        match &request.kind {
            Kind::Get(run) if line.starts_with(b"VALUE ") => {
                let index = context.corpus.header_index(line).filter(|index| run.contains(index));
                let Some(index) = index else {
                    return Err(format!("wrong value {} for {run:?}", line.escape_ascii()));
                };
                self.hits += 1;
                self.state = State::Body { index, left: context.corpus.value_len() + 2 };
                return Ok(());
            }
            Kind::Get(run) if line == b"END\r\n" && self.hits as usize <= run.len() => {
                context.tally.gets += 1;
                context.tally.get_keys += run.len() as u64;
                context.tally.misses += run.len() as u64 - u64::from(self.hits);
            }
            Kind::Set if line == b"STORED\r\n" => context.tally.sets += 1,
            _ => context.tally.error(line),
        }
        self.hits = 0;
        context.answer(asked);
        Ok(())
    }

    fn receive_body(
        &mut self,
        bytes: &[u8],
        index: u32,
        left: usize,
        context: &mut Context,
    ) -> Result<usize, String> {
        let taken = left.min(bytes.len());
        let value_len = context.corpus.value_len();
        let offset = value_len + 2 - left;
        let (value, end) = bytes[..taken].split_at(value_len.saturating_sub(offset).min(taken));
        if context.verify && !value.is_empty() && !context.corpus.is_value(value, offset, index) {
            return Err(format!("a wrong byte in the value of key {index}"));
        }
        let end_offset = 2 - (left - value.len()).min(2);
        if end != &b"\r\n"[end_offset..end_offset + end.len()] {
            return Err(format!("key {index}: no CRLF after its value"));
        }
        self.state =
            if taken == left { State::Line } else { State::Body { index, left: left - taken } };
        Ok(taken)
    }
}

/// What the readers of all connections share.
pub struct Context<'a> {
    pub corpus: &'a Corpus,
    pub tally: &'a mut Tally,
    pub verify: bool,
    pub now_ns: u64,
}

impl Context<'_> {
    /// The length of a whole single-key hit at the start of `bytes`, if that is what is awaited.
    #[inline]
    fn whole_hit(&mut self, bytes: &[u8], asked: &mut VecDeque<Asked>) -> Option<usize> {
        let Some(Asked { kind: Kind::Get(run), .. }) = asked.front() else { return None };
        let (header_len, value_len) = (self.corpus.header_len(), self.corpus.value_len());
        let len = header_len + value_len + SHORT_HIT_END.len();
        if run.len() != 1 || bytes.len() < len || !bytes[..len].ends_with(SHORT_HIT_END) {
            return None;
        }
        let index = run.start;
        if !self.corpus.is_header(&bytes[..header_len], index) {
            return None;
        }
        let value = &bytes[header_len..header_len + value_len];
        if self.verify && !self.corpus.is_value(value, 0, index) {
            // The slow way finds the same fault and names it.
            return None;
        }
        self.tally.gets += 1;
        self.tally.get_keys += 1;
        self.answer(asked);
        Some(len)
    }

    #[inline]
    fn answer(&mut self, asked: &mut VecDeque<Asked>) {
        let request = asked.pop_front().expect("the caller has seen the front");
        self.tally.record(request.due_ns, request.sent_ns, self.now_ns);
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
