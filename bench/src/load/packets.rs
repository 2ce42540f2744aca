//! Parses replies of the binary protocol: packets, each identified by its opaque.

use testkit::wire::binary::{GET, GETKQ, HEAD_LEN, Head, NOOP, NOT_FOUND, REPLY, SET};

use super::reply::{Kind, Reader, Turn};

/// Length of a value's extras: its flags.
const FLAGS_LEN: usize = 4;
/// Limit on the length of an error's text.
const TEXT_LEN_MAX: usize = 256;

impl Reader {
    /// Parses a packet up to its value; returns the number of bytes consumed.
    pub(super) fn receive_packet(
        &mut self,
        bytes: &[u8],
        turn: &mut Turn<'_, '_>,
    ) -> Result<usize, String> {
        if self.line.is_empty() {
            return match head_len(bytes)? {
                Some(len) => self.handle_packet(&bytes[..len], turn).map(|()| len),
                None => {
                    self.line.extend_from_slice(bytes);
                    Ok(bytes.len())
                }
            };
        }
        let kept = self.line.len();
        let mut head = std::mem::take(&mut self.line);
        head.extend_from_slice(&bytes[..bytes.len().min(HEAD_LEN + TEXT_LEN_MAX)]);
        let Some(len) = head_len(&head)? else {
            self.line = head;
            return Ok(bytes.len());
        };
        assert!(len > kept, "what was kept was no whole head");
        self.handle_packet(&head[..len], turn)?;
        head.clear();
        self.line = head;
        Ok(len - kept)
    }

    fn handle_packet(&mut self, head: &[u8], turn: &mut Turn<'_, '_>) -> Result<(), String> {
        let (answer, value_len) = answer_of(head)?;
        let Some(request) = turn.asked.front() else {
            return Err(format!("an answer nobody asked for: {answer:?}"));
        };
        let keys = match &request.kind {
            Kind::Get(run) => run.len() as u32,
            Kind::Set | Kind::Ping => 1,
        };
        let at = answer.opaque.wrapping_sub(request.opaque);
        if at > keys {
            return Err(format!("{answer:?} to {request:?}"));
        }
        let is_quiet = keys > 1;
        match (&request.kind, answer.code, answer.status) {
            (Kind::Get(run), GET | GETKQ, 0) => {
                let index = run.start + at;
                let (flags, key) = head[HEAD_LEN..].split_at(answer.extras_len);
                let named = if is_quiet { turn.context.corpus.key(index) } else { b"" };
                let right = at < keys
                    && at >= self.hits
                    && (answer.code == GETKQ) == is_quiet
                    && (flags, key) == (&[0; FLAGS_LEN][..], named)
                    && value_len == turn.context.corpus.value_len();
                if !right {
                    return Err(format!("wrong value {} for {run:?}", head.escape_ascii()));
                }
                self.hits += 1;
                self.begin_body(index, turn.context);
            }
            (Kind::Get(_), GET, NOT_FOUND) if !is_quiet => self.end(turn),
            (Kind::Get(_), NOOP, 0) if is_quiet && at == keys => self.end(turn),
            (Kind::Set, SET, 0) if at == 0 => self.end(turn),
            _ => self.fail(head, turn),
        }
        Ok(())
    }
}

/// Reads a head, and returns the length of the value as well.
fn answer_of(head: &[u8]) -> Result<(Head, usize), String> {
    let answer = Head::read(head).filter(|head| head.magic == REPLY && head.datatype == 0);
    let answer = answer.and_then(|answer| Some((answer, answer.value_len()?)));
    answer.ok_or_else(|| format!("no answer's packet: {}", head[..HEAD_LEN].escape_ascii()))
}

/// Returns the length of a packet without its value, but with an error's text, if it is whole.
fn head_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    if bytes.len() < HEAD_LEN {
        return Ok(None);
    }
    let (answer, value_len) = answer_of(bytes)?;
    let text = if answer.status == 0 { 0 } else { value_len };
    if text > TEXT_LEN_MAX {
        return Err(format!("an error without end: {answer:?}"));
    }
    let len = HEAD_LEN + answer.extras_len + answer.key_len + text;
    Ok((len <= bytes.len()).then_some(len))
}
