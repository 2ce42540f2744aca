//! Parses RESP replies. They contain no key: a value belongs to the request at its position, and
//! begins with its key.

use std::collections::VecDeque;

use super::reply::{Asked, Context, Kind, Reader};

/// A missing value. A get of many keys is answered by a line with their number, then by a value or
/// this for each.
const MISS: &[u8] = b"$-1\r\n";

impl Reader {
    /// Parses a line, and applies it to the first request.
    pub(super) fn handle_resp(
        &mut self,
        line: &[u8],
        asked: &mut VecDeque<Asked>,
        context: &mut Context,
    ) -> Result<(), String> {
        let request = asked.front().expect("the caller has seen the front");
        match &request.kind {
            Kind::Get(run) if run.len() > 1 && !self.is_open => {
                if is_count(line, run.len()) {
                    self.is_open = true;
                    return Ok(());
                }
                self.fail(line, asked, context);
            }
            Kind::Get(run) if line == MISS => {
                let is_last = self.elements + 1 == run.len() as u32;
                self.element(is_last, asked, context);
            }
            Kind::Get(run) if line == context.corpus.resp_head() => {
                self.hits += 1;
                let index = run.start + self.elements;
                self.begin_body(index, context);
            }
            Kind::Get(_) if self.is_open => {
                return Err(format!("among values: {}", line.escape_ascii()));
            }
            Kind::Set if line == b"+OK\r\n" => self.end(asked, context),
            Kind::Ping if line == b"+PONG\r\n" => self.end(asked, context),
            _ => self.fail(line, asked, context),
        }
        Ok(())
    }

    /// Handles the end of a value.
    pub(super) fn end_resp_value(
        &mut self,
        keys: usize,
        asked: &mut VecDeque<Asked>,
        context: &mut Context,
    ) {
        self.element(self.elements + 1 == keys as u32, asked, context);
    }

    fn element(&mut self, is_last: bool, asked: &mut VecDeque<Asked>, context: &mut Context) {
        self.elements += 1;
        if is_last {
            self.end(asked, context);
        }
    }
}

impl Context<'_> {
    /// Returns the length of a whole value at the start of `bytes`, if the value of one key is
    /// expected.
    #[inline]
    pub(super) fn whole_resp_value(
        &mut self,
        bytes: &[u8],
        asked: &mut VecDeque<Asked>,
    ) -> Option<usize> {
        let Some(Asked { kind: Kind::Get(run), .. }) = asked.front() else { return None };
        let head = self.corpus.resp_head();
        let value_len = self.corpus.value_len();
        let len = head.len() + value_len + b"\r\n".len();
        if run.len() != 1 || bytes.len() < len || !bytes.starts_with(head) {
            return None;
        }
        let value = &bytes[head.len()..head.len() + value_len];
        // The slow path finds the fault and describes it.
        let looked = if self.verify { value_len } else { super::corpus::KEY_LEN };
        let is_right = self.corpus.is_value(&value[..looked], 0, run.start);
        if !is_right || !bytes[..len].ends_with(b"\r\n") {
            return None;
        }
        self.tally.gets += 1;
        self.tally.get_keys += 1;
        self.answer(asked);
        Some(len)
    }
}

/// `*100\r\n`.
fn is_count(line: &[u8], count: usize) -> bool {
    let digits = line.strip_prefix(b"*").and_then(|rest| rest.strip_suffix(b"\r\n"));
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
    number == Some(count)
}
