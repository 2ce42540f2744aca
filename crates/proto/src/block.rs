//! The proxy's own answers among those of a block, which a server executes as one. They are kept as
//! bytes, so that they can stand in the place of a request's head:
//!
//! ```text
//!   [ place 4 | length 4 | answer ] [ place 4 | length 4 | answer ] ...
//! ```
//!
//! A place counts all requests of the transaction, the servers' and the proxy's.

/// Adds the answer to the request with this place. Places come in their order.
pub fn push(place: u32, answer: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(&place.to_le_bytes());
    to.extend_from_slice(&(answer.len() as u32).to_le_bytes());
    to.extend_from_slice(answer);
}

/// Lists the answers, each with its place.
pub fn iter(mut answers: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    std::iter::from_fn(move || {
        let (place, rest) = answers.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (answer, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        answers = rest;
        Some((u32::from_le_bytes(*place), answer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        push(0, b"+PONG\r\n", &mut bytes);
        push(7, b"", &mut bytes);
        push(8, b":1\r\n", &mut bytes);
        let all: Vec<_> = iter(&bytes).collect();
        assert_eq!(all, [(0, &b"+PONG\r\n"[..]), (7, b""), (8, b":1\r\n")]);
        assert_eq!(iter(&bytes[..bytes.len() - 1]).count(), 2, "a cut answer is none");
        assert_eq!(iter(b"").count(), 0);
    }
}
