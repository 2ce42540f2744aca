//! One line a fact, to stderr. Never in the path of a request.

use std::io::Write;

/// Writes one line.
pub fn line(text: &str) {
    // Whoever read it may have gone; that is no reason to end.
    let _ = writeln!(std::io::stderr(), "quickack: {text}");
}
