//! The choice among the three ways of accepting: what the operator wants, what the kernel can do
//! by its release, and whether the call really works.

use rustix::io;
use sys::kernel::Kernel;

use crate::config::AcceptMode;
use crate::error::Error;

/// The calls that decide, so that a test can let them fail.
pub struct Calls {
    pub exclusive: fn() -> io::Result<()>,
    pub reuseport: fn() -> io::Result<()>,
}

/// The kernel's own.
pub const CALLS: Calls =
    Calls { exclusive: sys::kernel::try_exclusive, reuseport: sys::kernel::try_reuseport };

/// The choice, and a sentence that gives the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub mode: AcceptMode,
    pub why: String,
}

/// Chooses; without a `wanted` mode the best that there is. The error says what the kernel lacks.
pub fn choose(wanted: Option<AcceptMode>, kernel: Kernel, calls: &Calls) -> Result<Choice, Error> {
    if let Some(mode) = wanted {
        return match lack(mode, kernel, calls) {
            None => Ok(Choice { mode, why: format!("accept: {}, as configured", mode.name()) }),
            Some(lack) => Err(Error::Config(format!(
                "accept: {} is impossible here: {lack}; try `accept: auto`",
                mode.name()
            ))),
        };
    }
    let mut lacks: Vec<String> = Vec::new();
    for mode in AcceptMode::ALL {
        let Some(lack) = lack(mode, kernel, calls) else {
            let why = if lacks.is_empty() {
                format!("kernel {kernel} has EPOLLEXCLUSIVE")
            } else {
                lacks.join("; ")
            };
            return Ok(Choice { mode, why: format!("accept: {}: {why}", mode.name()) });
        };
        lacks.push(lack);
    }
    unreachable!("a lock asks for nothing that any kernel lacks")
}

/// Returns the feature that a mode needs and the kernel lacks.
fn lack(mode: AcceptMode, kernel: Kernel, calls: &Calls) -> Option<String> {
    let (what, has, call) = match mode {
        AcceptMode::Gate => ("EPOLLEXCLUSIVE", kernel.has_epollexclusive(), calls.exclusive),
        AcceptMode::Reuseport => ("SO_REUSEPORT", kernel.has_reuseport(), calls.reuseport),
        AcceptMode::Mutex => return None,
    };
    if !has {
        return Some(format!("kernel {kernel} has no {what}"));
    }
    call().err().map(|error| format!("kernel {kernel} has {what}, but it fails here ({error})"))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    const WORK: Calls = Calls { exclusive: || Ok(()), reuseport: || Ok(()) };
    const NO_EXCLUSIVE: Calls = Calls { exclusive: || Err(Errno::INVAL), ..WORK };
    const NEITHER: Calls = Calls { reuseport: || Err(Errno::NOPROTOOPT), ..NO_EXCLUSIVE };

    #[test]
    fn auto_takes_the_best_that_there_is_and_says_why() {
        let check = |release: &str, calls: &Calls, mode: AcceptMode, why: &str| {
            let choice = choose(None, Kernel::of(release), calls).unwrap();
            assert_eq!((choice.mode, choice.why.as_str()), (mode, why), "{release}");
        };
        use AcceptMode::{Gate, Mutex, Reuseport};
        check(
            "2.6.32-754.el6",
            &WORK,
            Mutex,
            "accept: mutex: kernel 2.6 has no EPOLLEXCLUSIVE; kernel 2.6 has no SO_REUSEPORT",
        );
        check(
            "3.10.0-1160",
            &WORK,
            Reuseport,
            "accept: reuseport: kernel 3.10 has no EPOLLEXCLUSIVE",
        );
        check("4.4.0", &WORK, Reuseport, "accept: reuseport: kernel 4.4 has no EPOLLEXCLUSIVE");
        check("4.5.0", &WORK, Gate, "accept: gate: kernel 4.5 has EPOLLEXCLUSIVE");
        check("5.14.0", &WORK, Gate, "accept: gate: kernel 5.14 has EPOLLEXCLUSIVE");
        check("6.1.0-13-amd64", &WORK, Gate, "accept: gate: kernel 6.1 has EPOLLEXCLUSIVE");
    }

    #[test]
    fn a_call_that_really_fails_counts_more_than_the_release() {
        let choice = choose(None, Kernel::of("6.1.0"), &NO_EXCLUSIVE).unwrap();
        assert_eq!(choice.mode, AcceptMode::Reuseport);
        assert!(choice.why.contains("has EPOLLEXCLUSIVE, but it fails here (Invalid argument"));
        let choice = choose(None, Kernel::of("5.14.0"), &NEITHER).unwrap();
        assert_eq!(choice.mode, AcceptMode::Mutex);
        assert_eq!(choose(None, Kernel::of("3.10"), &NEITHER).unwrap().mode, AcceptMode::Mutex);
        // A call that the release lacks is not even tried.
        let untried = Calls { exclusive: || panic!(), reuseport: || panic!() };
        assert_eq!(choose(None, Kernel::of("2.6.32"), &untried).unwrap().mode, AcceptMode::Mutex);
    }

    #[test]
    fn what_the_operator_wants_is_done_or_refused_with_a_reason() {
        for mode in [AcceptMode::Gate, AcceptMode::Reuseport, AcceptMode::Mutex] {
            assert_eq!(choose(Some(mode), Kernel::of("6.1"), &WORK).unwrap().mode, mode);
        }
        let refusal = choose(Some(AcceptMode::Gate), Kernel::of("4.4"), &WORK).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "accept: gate is impossible here: kernel 4.4 has no EPOLLEXCLUSIVE; try `accept: auto`"
        );
        let refusal = choose(Some(AcceptMode::Reuseport), Kernel::of("6.1"), &NEITHER).unwrap_err();
        let refusal = refusal.to_string();
        assert!(refusal.contains("SO_REUSEPORT, but it fails here"), "{refusal}");
        assert!(choose(Some(AcceptMode::Mutex), Kernel::of("2.6.32"), &NEITHER).is_ok());
    }

    #[test]
    fn here_and_now_auto_takes_the_gate() {
        let choice = choose(None, Kernel::running(), &CALLS).unwrap();
        assert_eq!(choice.mode, AcceptMode::Gate, "{}", choice.why);
    }
}
