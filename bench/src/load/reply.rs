//! Parses replies: a whole single-key hit in one comparison, everything else piece by piece.
//! (`packets.rs` parses binary packets, `resp.rs` parses RESP.)
//!
//! A wrong reply is counted as an error. Bytes after which the position in the stream is unknown
//! end the window.

use std::collections::VecDeque;
use std::ops::Range;

use super::corpus::{Corpus, KEY_LEN};
use super::tally::Tally;
use super::wire::{self, Wire};

/// One request whose reply is awaited.
#[derive(Clone, Debug)]
pub struct Asked {
    pub kind: Kind,
    /// Its first opaque, if its protocol has opaques.
    pub opaque: u32,
    /// The time at which it was due.
    pub due_ns: u64,
    /// The time at which it was sent.
    pub sent_ns: u64,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Get(Range<u32>),
    Set,
    Ping,
}

/// The parser's position in one connection's stream of replies.
#[derive(Default)]
pub struct Reader {
    pub(super) state: State,
    /// The start of a line, or of a packet's head, that is not whole yet.
    pub(super) line: Vec<u8>,
    /// Values of the current get so far.
    pub(super) hits: u32,
    /// RESP: values and misses of the current get so far, and whether their number has been read.
    pub(super) elements: u32,
    pub(super) is_open: bool,
    /// The expected line.
    expected: Vec<u8>,
}

#[derive(Default)]
pub(super) enum State {
    /// At the start of a line or packet.
    #[default]
    Line,
    /// Inside a value or the bytes that end it.
    Body { index: u32, left: usize },
}

/// A line longer than this is not a memcached reply.
const LINE_LEN_MAX: usize = 512;
const SHORT_HIT_END: &[u8] = b"\r\nEND\r\n";

impl Reader {
    /// Parses received bytes; returns the number of requests they have answered.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        asked: &mut VecDeque<Asked>,
        context: &mut Context,
    ) -> Result<usize, String> {
        let turn = &mut Turn { asked, context };
        let before = turn.asked.len();
        while !bytes.is_empty() {
            let taken = match (&self.state, turn.context.wire) {
                (State::Line, Wire::Binary) => self.receive_packet(bytes, turn)?,
                (State::Line, Wire::Text) if self.line.is_empty() => match turn.whole_hit(bytes) {
                    Some(len) => len,
                    None => self.receive_line(bytes, turn)?,
                },
                (State::Line, Wire::Resp) if self.line.is_empty() => {
                    match turn.whole_resp_value(bytes) {
                        Some(len) => len,
                        None => self.receive_line(bytes, turn)?,
                    }
                }
                (State::Line, _) => self.receive_line(bytes, turn)?,
                (State::Body { index, left }, _) => {
                    let (index, left) = (*index, *left);
                    self.receive_body(bytes, index, left, turn)?
                }
            };
            bytes = &bytes[taken..];
        }
        Ok(before - turn.asked.len())
    }

    fn receive_line(&mut self, bytes: &[u8], turn: &mut Turn<'_, '_>) -> Result<usize, String> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            self.line.extend_from_slice(bytes);
            if self.line.len() > LINE_LEN_MAX {
                return Err(format!("a line without end: {}", self.line[..60].escape_ascii()));
            }
            return Ok(bytes.len());
        };
        if self.line.is_empty() {
            self.handle_line(&bytes[..=end], turn)?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(&bytes[..=end]);
            self.handle_line(&line, turn)?;
            line.clear();
            self.line = line;
        }
        Ok(end + 1)
    }

    fn handle_line(&mut self, line: &[u8], turn: &mut Turn<'_, '_>) -> Result<(), String> {
        let Some(request) = turn.asked.front() else {
            return Err(format!("an answer nobody asked for: {}", line.escape_ascii()));
        };
        match turn.context.wire {
            Wire::Meta => return self.handle_meta(line, turn),
            Wire::Resp => return self.handle_resp(line, turn),
            Wire::Text | Wire::Binary => {}
        }
        match &request.kind {
            Kind::Get(run) if line.starts_with(b"VALUE ") => {
                let index =
                    turn.context.corpus.header_index(line).filter(|index| run.contains(index));
                let Some(index) = index else {
                    return Err(format!("wrong value {} for {run:?}", line.escape_ascii()));
                };
                self.hits += 1;
                self.begin_body(index, turn.context);
                return Ok(());
            }
            Kind::Get(run) if line == b"END\r\n" && self.hits as usize <= run.len() => {
                self.end(turn);
            }
            Kind::Set if line == b"STORED\r\n" => self.end(turn),
            _ => self.fail(line, turn),
        }
        Ok(())
    }

    /// Handles a line of the meta protocol, whose opaque identifies the request.
    fn handle_meta(&mut self, line: &[u8], turn: &mut Turn<'_, '_>) -> Result<(), String> {
        let request = turn.asked.front().expect("the caller has seen the front");
        self.expected.clear();
        match &request.kind {
            // A miss has no opaque.
            Kind::Get(_) if line == b"EN\r\n" => self.end(turn),
            Kind::Get(run) if line.starts_with(b"VA ") => {
                let index = run.start;
                wire::meta_value(turn.context.corpus, index, request.opaque, &mut self.expected);
                if line != self.expected {
                    return Err(format!("wrong value {} for {run:?}", line.escape_ascii()));
                }
                self.hits += 1;
                self.begin_body(index, turn.context);
            }
            Kind::Set if line.starts_with(b"HD ") => {
                wire::meta_stored(request.opaque, &mut self.expected);
                if line != self.expected {
                    return Err(format!("an answer to another set: {}", line.escape_ascii()));
                }
                self.end(turn);
            }
            _ => self.fail(line, turn),
        }
        Ok(())
    }

    pub(super) fn begin_body(&mut self, index: u32, context: &Context) {
        let left = context.corpus.value_len() + context.wire.value_end().len();
        self.state = State::Body { index, left };
    }

    /// Completes the first request: it has its whole answer, and the answer is correct.
    pub(super) fn end(&mut self, turn: &mut Turn<'_, '_>) {
        match &turn.asked.front().expect("the caller has seen the front").kind {
            Kind::Get(run) => {
                turn.context.tally.gets += 1;
                turn.context.tally.get_keys += run.len() as u64;
                turn.context.tally.misses += run.len() as u64 - u64::from(self.hits);
            }
            Kind::Set => turn.context.tally.sets += 1,
            Kind::Ping => turn.context.tally.pings += 1,
        }
        self.next(turn);
    }

    /// Completes the first request with an error: the answer does not match it.
    pub(super) fn fail(&mut self, said: &[u8], turn: &mut Turn<'_, '_>) {
        turn.context.tally.error(said);
        self.next(turn);
    }

    fn next(&mut self, turn: &mut Turn<'_, '_>) {
        (self.hits, self.elements, self.is_open) = (0, 0, false);
        turn.answer();
    }

    fn receive_body(
        &mut self,
        bytes: &[u8],
        index: u32,
        left: usize,
        turn: &mut Turn<'_, '_>,
    ) -> Result<usize, String> {
        let taken = left.min(bytes.len());
        let (value_len, value_end) =
            (turn.context.corpus.value_len(), turn.context.wire.value_end());
        let offset = value_len + value_end.len() - left;
        let (value, end) = bytes[..taken].split_at(value_len.saturating_sub(offset).min(taken));
        // A value begins with its key, and this part is always checked.
        let looked = match turn.context.verify {
            true => value.len(),
            false => KEY_LEN.saturating_sub(offset).min(value.len()),
        };
        if looked > 0 && !turn.context.corpus.is_value(&value[..looked], offset, index) {
            return Err(format!("a wrong byte in the value of key {index}"));
        }
        let end_offset = value_end.len() - (left - value.len()).min(value_end.len());
        if end != &value_end[end_offset..end_offset + end.len()] {
            return Err(format!("key {index}: no CRLF after its value"));
        }
        if taken < left {
            self.state = State::Body { index, left: left - taken };
            return Ok(taken);
        }
        self.state = State::Line;
        let keys = match &turn.asked.front().expect("its value has begun").kind {
            Kind::Get(run) => run.len(),
            Kind::Set | Kind::Ping => unreachable!("only gets have values"),
        };
        match turn.context.wire {
            Wire::Meta | Wire::Binary if keys == 1 => self.end(turn),
            Wire::Text | Wire::Meta | Wire::Binary => {}
            Wire::Resp => self.end_resp_value(keys, turn),
        }
        Ok(taken)
    }
}

/// The requests of one connection, and the state shared by all.
pub(super) struct Turn<'a, 'c> {
    pub(super) asked: &'a mut VecDeque<Asked>,
    pub(super) context: &'a mut Context<'c>,
}

/// State shared by the parsers of all connections.
pub struct Context<'a> {
    pub corpus: &'a Corpus,
    pub tally: &'a mut Tally,
    pub wire: Wire,
    pub verify: bool,
    pub now_ns: u64,
}

impl Turn<'_, '_> {
    /// Returns the length of a whole single-key hit at the start of `bytes`, if one is expected.
    #[inline]
    fn whole_hit(&mut self, bytes: &[u8]) -> Option<usize> {
        let Some(Asked { kind: Kind::Get(run), .. }) = self.asked.front() else { return None };
        let (header_len, value_len) =
            (self.context.corpus.header_len(), self.context.corpus.value_len());
        let len = header_len + value_len + SHORT_HIT_END.len();
        if run.len() != 1 || bytes.len() < len || !bytes[..len].ends_with(SHORT_HIT_END) {
            return None;
        }
        let index = run.start;
        if !self.context.corpus.is_header(&bytes[..header_len], index) {
            return None;
        }
        let value = &bytes[header_len..header_len + value_len];
        if self.context.verify && !self.context.corpus.is_value(value, 0, index) {
            // The slow path finds the same fault and describes it.
            return None;
        }
        self.context.tally.gets += 1;
        self.context.tally.get_keys += 1;
        self.answer();
        Some(len)
    }

    #[inline]
    pub(super) fn answer(&mut self) {
        let request = self.asked.pop_front().expect("the caller has seen the front");
        self.context.tally.record(request.due_ns, request.sent_ns, self.context.now_ns);
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
