//! Parses RESP replies. They contain no key: a value belongs to the request at its position, and
//! begins with its key.

use super::reply::{Asked, Kind, Reader, Turn};

/// A missing value. A get of many keys is answered by a line with their number, then by a value or
/// this for each.
const MISS: &[u8] = b"$-1\r\n";

impl Reader {
    /// Parses a line, and applies it to the first request.
    pub(super) fn handle_resp(
        &mut self,
        line: &[u8],
        turn: &mut Turn<'_, '_>,
    ) -> Result<(), String> {
        let request = turn.asked.front().expect("the caller has seen the front");
        match &request.kind {
            Kind::Get(run) if run.len() > 1 && !self.is_open => {
                if is_count(line, run.len()) {
                    self.is_open = true;
                    return Ok(());
                }
                self.fail(line, turn);
            }
            Kind::Get(run) if line == MISS => {
                let is_last = self.elements + 1 == run.len() as u32;
                self.element(is_last, turn);
            }
            Kind::Get(run) if line == turn.context.corpus.resp_head() => {
                self.hits += 1;
                let index = run.start + self.elements;
                self.begin_body(index, turn.context);
            }
            Kind::Get(_) if self.is_open => {
                return Err(format!("among values: {}", line.escape_ascii()));
            }
            Kind::Set if line == b"+OK\r\n" => self.end(turn),
            Kind::Ping if line == b"+PONG\r\n" => self.end(turn),
            _ => self.fail(line, turn),
        }
        Ok(())
    }

    /// Handles the end of a value.
    pub(super) fn end_resp_value(&mut self, keys: usize, turn: &mut Turn<'_, '_>) {
        self.element(self.elements + 1 == keys as u32, turn);
    }

    fn element(&mut self, is_last: bool, turn: &mut Turn<'_, '_>) {
        self.elements += 1;
        if is_last {
            self.end(turn);
        }
    }
}

impl Turn<'_, '_> {
    /// Returns the length of a whole value at the start of `bytes`, if the value of one key is
    /// expected.
    #[inline]
    pub(super) fn whole_resp_value(&mut self, bytes: &[u8]) -> Option<usize> {
        let Some(Asked { kind: Kind::Get(run), .. }) = self.asked.front() else { return None };
        let head = self.context.corpus.resp_head();
        let value_len = self.context.corpus.value_len();
        let len = head.len() + value_len + b"\r\n".len();
        if run.len() != 1 || bytes.len() < len || !bytes.starts_with(head) {
            return None;
        }
        let value = &bytes[head.len()..head.len() + value_len];
        // The slow path finds the fault and describes it.
        let looked = if self.context.verify { value_len } else { super::corpus::KEY_LEN };
        let is_right = self.context.corpus.is_value(&value[..looked], 0, run.start);
        if !is_right || !bytes[..len].ends_with(b"\r\n") {
            return None;
        }
        self.context.tally.gets += 1;
        self.context.tally.get_keys += 1;
        self.answer();
        Some(len)
    }
}

/// `*100\r\n`.
fn is_count(line: &[u8], count: usize) -> bool {
    let digits = line.strip_prefix(b"*").and_then(|rest| rest.strip_suffix(b"\r\n"));
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
    number == Some(count)
}
