//! Linux behind safe functions: each does what its manual page says, with owned descriptors and no
//! policy. One family of calls a file. The only room where `unsafe` may stand.
#![allow(unsafe_code)]

pub mod channel;
pub mod clock;
pub mod connect;
pub mod kernel;
pub mod listen;
pub mod lock;
pub mod memory;
pub mod process;
pub mod signal;
pub mod tcp;
pub mod wakeup;
