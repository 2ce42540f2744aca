//! The tests stand in binaries that `.config/nextest.toml` names.
