//! Requests as lines, with quotes where they are needed and where they are not.

use crate::random::Random;

/// Returns whether an argument can be written in a line, in quotes if necessary.
pub fn is_inline(argument: &[u8]) -> bool {
    argument.len() < 200
}

/// Writes a line in place of an array.
pub fn put_inline(out: &mut Vec<u8>, arguments: &[&[u8]], random: &mut Random) {
    for (at, argument) in arguments.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(if random.permille(100) { b"  " } else { b" " });
        }
        let is_clean = argument.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'\\');
        let has_quotes = argument.iter().any(|byte| b"\"'".contains(byte));
        match random.below(6) {
            1 if is_clean && !has_quotes => {
                out.push(b'\'');
                out.extend_from_slice(argument);
                out.push(b'\'');
            }
            2..6 if is_clean && !has_quotes && !argument.is_empty() => {
                out.extend_from_slice(argument);
            }
            _ => put_quoted(out, argument),
        }
    }
    out.extend_from_slice(if random.permille(300) { b"\n" } else { b"\r\n" });
}

fn put_quoted(out: &mut Vec<u8>, argument: &[u8]) {
    out.push(b'"');
    for byte in argument {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'k' => out.extend_from_slice(b"\\x6b"),
            byte if byte.is_ascii_graphic() || *byte == b' ' => out.push(*byte),
            byte => out.extend_from_slice(format!("\\x{byte:02X}").as_bytes()),
        }
    }
    out.push(b'"');
}
