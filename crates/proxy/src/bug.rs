//! Seeded bugs that can be switched on, one at a time, to prove that the simulator finds each of
//! them. They exist only in a build with `--cfg seeded_bugs`; in any other, each hook is the
//! constant `false`.
//!
//! Each bug is one hook in the path: `bug!(Name)`, at the place where the right code differs.

/// Whether this bug is switched on.
#[cfg(seeded_bugs)]
macro_rules! bug {
    ($name:ident) => {
        $crate::bug::is_on($crate::bug::Bug::$name)
    };
}
#[cfg(not(seeded_bugs))]
macro_rules! bug {
    ($name:ident) => {
        false
    };
}

#[cfg(seeded_bugs)]
mod switch;
#[cfg(seeded_bugs)]
pub use switch::*;
