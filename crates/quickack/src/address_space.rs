//! The limit on address space (`RLIMIT_AS`): what a process needs of it, and what is said to those
//! who have set too little. Memory that is refused while a process runs ends it with ABRT.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::config;
use crate::error::Error;

/// Names the limit and the value to set, if there is one. `needed`: bytes beside the process
/// itself.
pub fn advice(needed: u64) -> Option<String> {
    let limit = sys::process::address_space_max()?;
    let kib = (needed + SPARE).div_ceil(1024);
    Some(format!(
        "the limit on address space (RLIMIT_AS) is {}: lift it (`ulimit -v unlimited`, in a unit \
         `LimitAS=infinity`), or set at least {kib} KiB (`ulimit -v {kib}`, `LimitAS={kib}K`)",
        config::size_word(limit)
    ))
}

/// The same as the end of a sentence about a process that needs so much, if it may have ended for
/// want of memory; else nothing.
pub fn hint(status: ExitStatus, needed: u64) -> String {
    let aborted = status.signal() == Some(rustix::process::Signal::ABORT.as_raw());
    let advice = advice(needed).filter(|_| aborted);
    advice.map_or_else(String::new, |advice| format!("; {advice}"))
}

/// Says by which limit address space was refused. `needed`: bytes, but for the process itself.
pub fn no_room(error: &io::Error, what: &str, needed: u64) -> Error {
    let advice = advice(needed).unwrap_or_else(|| "see vm.overcommit_memory".to_string());
    Error::Os(format!("cannot map {what}: {error}; {advice}"))
}

/// Whether the limit leaves too little for a process that needs so much.
pub fn is_short(needed: u64) -> bool {
    sys::process::address_space_max().is_some_and(|limit| limit < needed + SPARE)
}

/// Bytes that a process maps beside its configured memory: the program, its libraries, stack and
/// heap, with room to spare.
const SPARE: u64 = 512 << 20;
