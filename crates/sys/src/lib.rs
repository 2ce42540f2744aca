//! Linux behind safe functions: each does what its manual page says, with owned descriptors and no
//! policy. One family of calls a file. This is the only crate that may contain `unsafe`.
#![allow(unsafe_code)]

pub mod channel;
pub mod clock;
pub mod connect;
pub mod heap;
pub mod kernel;
pub mod listen;
pub mod lock;
pub mod memory;
pub mod process;
pub mod signal;
pub mod tcp;
pub mod wakeup;
