//! Signals as readable descriptors: signalfd(2).

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Signals that are blocked for this process and are read from a descriptor instead.
pub struct Signals {
    fd: OwnedFd,
}

pub const TERM: i32 = libc::SIGTERM;
pub const INT: i32 = libc::SIGINT;
pub const QUIT: i32 = libc::SIGQUIT;
pub const HUP: i32 = libc::SIGHUP;
pub const USR1: i32 = libc::SIGUSR1;
pub const WINCH: i32 = libc::SIGWINCH;
pub const USR2: i32 = libc::SIGUSR2;
pub const ALRM: i32 = libc::SIGALRM;
pub const TTIN: i32 = libc::SIGTTIN;
pub const TTOU: i32 = libc::SIGTTOU;
pub const CHLD: i32 = libc::SIGCHLD;

/// The signals that a child handles, so that no signal sent to all processes of our name ends it by
/// accident.
pub const ALL_OF_A_CHILD: &[i32] = &[TERM, INT, QUIT, HUP, USR1, USR2, ALRM, WINCH, TTIN, TTOU];

impl Signals {
    /// Blocks `signals` and opens a non-blocking descriptor for them. Call it before any thread
    /// exists.
    pub fn new(signals: &[i32]) -> std::io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` makes `set` whole before it is read; the other calls take it by
        // pointer only; the new descriptor belongs to nobody else.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
            if fd < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(Signals { fd: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// Returns the next signal that has arrived.
    pub fn take(&mut self) -> Option<i32> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes, which is what `info` has room for; it is
        // read only when the kernel says that it wrote all of them.
        unsafe {
            let read = libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size);
            (read == size as isize).then(|| info.assume_init().ssi_signo as i32)
        }
    }

    /// Returns the descriptor to wait on.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

/// Unblocks all signals: for a child between fork and exec.
pub fn unblock_all() -> std::io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` makes `set` whole before it is read; both calls are async-signal-safe.
    let outcome = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    };
    if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
