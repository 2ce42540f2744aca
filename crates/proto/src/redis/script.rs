//! Scripts that a server has forgotten. The proxy remembers scripts that it has seen loaded, and
//! loads one again when a server does not know it.

use std::borrow::Cow;

use super::commands::id;
use super::reply::Walk;
use super::servers::NO_SCRIPT;
use super::{arguments, words};
use crate::{Ask, Asked, Retryable};

/// Returns the digest that answered a SCRIPT LOAD, and the script.
pub(super) fn learn<'a>(asked: &Asked<'a>, reply: &'a [u8]) -> Option<(&'a [u8], Cow<'a, [u8]>)> {
    if asked.command != id::SCRIPT_LOAD {
        return None;
    }
    let digest = Walk::new(reply).text().filter(|digest| is_digest(digest))?;
    Some((digest, arguments::all(asked.head).into_iter().nth(2)?))
}

/// Writes the command that loads an unknown script.
pub(super) fn recovery(
    asked: &Asked<'_>,
    retryable: &Retryable,
    known: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
    out: &mut Vec<u8>,
) -> Option<Ask> {
    let by_digest = matches!(asked.command, id::EVALSHA | id::EVALSHA_RO);
    if retryable != NO_SCRIPT || !by_digest {
        return None;
    }
    let digest = arguments::all(asked.head).get(1)?.to_ascii_lowercase();
    let script = known(&digest).filter(|_| is_digest(&digest))?;
    words::open_array(3, out);
    words::bulk(b"SCRIPT", out);
    words::bulk(b"LOAD", out);
    words::bulk(&script, out);
    Some(Ask { command: id::SCRIPT_LOAD })
}

/// Whether this is a digest as servers write it: forty hexadecimal digits.
fn is_digest(text: &[u8]) -> bool {
    text.len() == 40 && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    const OTHER: Retryable = Retryable { place: 0, needs_recovery: false, ..*NO_SCRIPT };
    const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

    fn asked(command: u16, head: &str) -> Asked<'_> {
        let ask = Ask { command };
        Asked { command, quiet: Quiet::Loud, ask, head: head.as_bytes(), at: 0, next: None }
    }

    #[test]
    fn a_script_that_is_loaded_is_remembered() {
        let head = "*3\r\n$6\r\nSCRIPT\r\n$4\r\nload\r\n$8\r\nreturn 1\r\n";
        let reply = format!("$40\r\n{DIGEST}\r\n");
        let learnt = learn(&asked(id::SCRIPT_LOAD, head), reply.as_bytes());
        assert_eq!(learnt, Some((DIGEST.as_bytes(), b"return 1"[..].into())));
        let error = "-ERR Error compiling script\r\n";
        assert_eq!(learn(&asked(id::SCRIPT_LOAD, head), error.as_bytes()), None);
        assert_eq!(learn(&asked(id::SCRIPT_LOAD, head), b"$-1\r\n"), None);
        assert_eq!(learn(&asked(id::FUNCTION_LOAD, head), reply.as_bytes()), None);
    }

    /// The script is remembered as the server has understood it.
    #[test]
    fn a_script_that_somebody_types_in_a_line_is_remembered_too() {
        let reply = format!("$40\r\n{DIGEST}\r\n");
        for (head, script) in [
            ("script load \"return 1\"\r\n", "return 1"),
            ("SCRIPT 'LOAD' 'return \\'a\\''\r\n", "return 'a'"),
            ("SCRIPT LOAD \"return\\n\\x31\"\n", "return\n1"),
            ("script load return\r\n", "return"),
        ] {
            let learnt = learn(&asked(id::SCRIPT_LOAD, head), reply.as_bytes());
            assert_eq!(learnt, Some((DIGEST.as_bytes(), script.as_bytes().into())), "{head}");
        }
    }

    #[test]
    fn a_script_that_is_forgotten_is_loaded_again() {
        let upper = DIGEST.to_uppercase();
        let head = format!("*3\r\n$7\r\nEVALSHA\r\n$40\r\n{upper}\r\n$1\r\n0\r\n");
        let known = |digest: &[u8]| (digest == DIGEST.as_bytes()).then(|| b"return 1".to_vec());
        let mut out = Vec::new();
        let ask = recovery(&asked(id::EVALSHA, &head), NO_SCRIPT, &known, &mut out);
        assert_eq!(ask, Some(Ask { command: id::SCRIPT_LOAD }));
        let load = b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$8\r\nreturn 1\r\n";
        assert_eq!(out.escape_ascii().to_string(), load.escape_ascii().to_string());
        out.clear();
        let unknown = |_: &[u8]| None;
        let ask = recovery(&asked(id::EVALSHA, &head), NO_SCRIPT, &unknown, &mut out);
        assert_eq!(ask, None);
        let ask = recovery(&asked(id::EVALSHA_RO, &head), &OTHER, &known, &mut out);
        assert_eq!(ask, None);
        assert_eq!(recovery(&asked(id::EVAL, &head), NO_SCRIPT, &known, &mut out), None);
        assert!(out.is_empty());
    }
}
