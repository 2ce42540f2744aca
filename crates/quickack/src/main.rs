//! quickack.
fn main() {}
