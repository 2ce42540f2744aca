//! The loop with real sockets and a mind that only notes.
