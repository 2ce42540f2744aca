//! What was built: release, commit and build, as `--version` and `quickack info` name them.

/// The release, with the commit that it was built from.
pub const SHORT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("QUICKACK_COMMIT"), ")");
/// The commit; `no commit` in a build of which none is known.
pub const COMMIT: &str = env!("QUICKACK_COMMIT");
/// The profile, the target and the compiler.
pub const BUILD: &str = env!("QUICKACK_BUILD");
/// All of it.
pub const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("QUICKACK_COMMIT"),
    ", ",
    env!("QUICKACK_BUILD"),
    ")"
);
