//! One line a fact, to stderr. Never in the path of a request.

/// Writes one line.
pub fn line(text: &str) {
    eprintln!("quickack: {text}");
}
