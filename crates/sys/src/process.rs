//! This process and its children: inherited descriptors, the child's end with its parent, the limit
//! on open files.

use std::ffi::{CStr, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, getrlimit};

use crate::signal;

/// Returns the number of descriptors that this process may have open.
pub fn descriptors_max() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

/// Returns the limit of this process's address space in bytes, if there is one.
pub fn address_space_max() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Returns the processor time that this process has used, in microseconds: user time and system
/// time.
pub fn times_us() -> (u64, u64) {
    // SAFETY: all zeros is a value of this type, which is plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage, to a place of that type that outlives the call.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0;
    assert!(!failed, "every process may ask about itself, and the place is ours");
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (us(usage.ru_utime), us(usage.ru_stime))
}

/// Raises the limit on open descriptors to the hard limit.
pub fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the call is refused, the old limit stays.
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
}

/// Sets the text that `ps` and `top` show for this process, limited to the length of its original
/// command line. Its short name becomes `quickack`, even if it was started through a link.
pub fn set_title(title: &str) {
    write_title(SHORT_NAME, titled(title).as_bytes());
}

/// Shows a command line again in place of the title, under this short name: other programs look for
/// this process by them.
pub fn show_command_line(name: &CStr, words: &[OsString]) {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    write_title(name, &words.join(&0));
}

/// Adds a name to the titles of this process and of the children that it starts later.
pub fn name_titles(name: &str) {
    // Only the first name counts: a process has one configuration.
    let _ = NAME.set(name.chars().take(NAME_LEN_MAX).collect());
}

fn titled(title: &str) -> String {
    match NAME.get() {
        Some(name) => format!("{title} ({name})"),
        None => title.to_string(),
    }
}

/// The name of processes in lists that do not show titles.
const SHORT_NAME: &CStr = c"quickack";
static NAME: OnceLock<String> = OnceLock::new();
/// A title should stay short beside others.
const NAME_LEN_MAX: usize = 40;

fn write_title(name: &CStr, title: &[u8]) {
    let _ = rustix::thread::set_name(name);
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    // The name may contain anything, but ends at the last bracket. After it, the 46th and 47th
    // words are the addresses at which the arguments begin and end (proc(5)).
    let words = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let mut places = words.skip(45).take(2).filter_map(|word| word.parse::<usize>().ok());
    let (Some(start), Some(end)) = (places.next(), places.next()) else { return };
    if start == 0 || end <= start {
        return;
    }
    let room = end - start;
    let text = &title[..title.len().min(room - 1)];
    // SAFETY: the kernel says where it put this process's arguments; that memory is ours to write
    // and stays mapped. Nobody holds a reference into it: the standard library copies arguments
    // when it is asked for them, and finds strings that end in a zero after this as well.
    unsafe {
        let place = std::ptr::with_exposed_provenance_mut::<u8>(start);
        std::ptr::write_bytes(place, 0, room);
        std::ptr::copy_nonoverlapping(text.as_ptr(), place, text.len());
    }
}

/// Shows the name that the parent has given to this child (see `prepare_child`) and nothing else of
/// the command line.
pub fn keep_title() {
    let name = std::env::args_os().next().unwrap_or_default();
    write_title(SHORT_NAME, name.as_bytes());
}

/// Restricts this process to some processors.
pub fn set_affinity(processors: &[usize]) -> rustix::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for &processor in processors.iter().filter(|one| **one < rustix::thread::CpuSet::MAX_CPU) {
        set.set(processor);
    }
    rustix::thread::sched_setaffinity(None, &set)
}

/// Returns the processors that this process may use.
pub fn affinity() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|one| set.is_set(*one)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Prepares a child of `command`. It gets `passed`, if given, as descriptor 3, receives a signal to
/// end when its parent dies, has no signals blocked, and has room for `title` in its command line.
/// It has its own process group, so that a key typed at a terminal reaches only its parent.
pub fn prepare_child(command: &mut Command, title: &str, passed: Option<OwnedFd>) {
    command.arg0(titled(title)).process_group(0);
    // SAFETY: the closure runs between fork and exec and makes async-signal-safe calls only; the
    // descriptor is open as long as the command is, since the closure owns it.
    unsafe {
        command.pre_exec(move || {
            signal::unblock_all()?;
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            passed.as_ref().map_or(Ok(()), |fd| pass(fd.as_raw_fd()))
        });
    }
}

/// Gives the child a lower priority than ordinary processes have.
pub fn give_way(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and makes one system call.
    unsafe {
        command.pre_exec(|| {
            // A child without the lower priority still works.
            let _ = rustix::process::nice(NICE);
            Ok(())
        });
    }
}

/// About a tenth of the weight of an ordinary process.
const NICE: i32 = 10;

/// Duplicates a descriptor to number 3, without close-on-exec.
fn pass(fd: RawFd) -> std::io::Result<()> {
    // SAFETY: plain system calls on numbers; a duplicate of a descriptor onto itself would keep
    // close-on-exec, so that case clears the flag instead.
    let outcome = unsafe {
        if fd == PASSED { libc::fcntl(fd, libc::F_SETFD, 0) } else { libc::dup2(fd, PASSED) }
    };
    if outcome < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the descriptor that `prepare_child` passed. Only the first call succeeds, since it has
/// one owner.
pub fn take_passed() -> std::io::Result<OwnedFd> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(std::io::Error::other("the passed descriptor has been taken"));
    }
    // SAFETY: the number is either open and ours, as the parent left it, or the check says that it
    // is not.
    unsafe {
        if libc::fcntl(PASSED, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(PASSED))
    }
}

const PASSED: RawFd = 3;
static TAKEN: AtomicBool = AtomicBool::new(false);
