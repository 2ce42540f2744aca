//! The examples of each verb, for `--help` and the man pages. A test executes them in the order of
//! the man pages, in front of the pool of docs/guide/first-pool.md.

use clap::{Command, CommandFactory};

use super::Arguments;

/// The examples of a verb; those of the program itself have no verb.
pub fn of(verb: &str) -> &'static [&'static str] {
    EXAMPLES.iter().find(|(name, _)| *name == verb).map_or(&[], |(_, examples)| examples)
}

/// Returns the command line with its examples.
pub fn command() -> Command {
    let with = |command: Command, verb: &str| match of(verb) {
        [] => command,
        examples => command.after_long_help(format!("Examples:\n  {}", examples.join("\n  "))),
    };
    let command = with(Arguments::command(), "quickack");
    command.mut_subcommands(|verb| {
        let name = verb.get_name().to_string();
        with(verb, &name)
    })
}

const EXAMPLES: &[(&str, &[&str])] = &[
    ("quickack", &["quickack check quickack.yml", "quickack run -c quickack.yml"]),
    ("run", &["quickack run -c quickack.yml"]),
    ("check", &["quickack check --strict quickack.yml", "quickack check --diff quickack.yml"]),
    (
        "route",
        &["quickack route user:17", "quickack route -c quickack.yml --pool sessions user:17"],
    ),
    ("migrate-config", &["quickack migrate-config quickack.yml > new.yml"]),
    ("ring-diff", &["quickack ring-diff quickack.yml quickack.yml"]),
    ("reload", &["quickack reload", "quickack reload -c quickack.yml --allow-remap"]),
    (
        "set",
        &[
            "quickack set sessions.timeout_reply=200ms memory_max=2g",
            "quickack set sessions.timeout_reply= memory_max=",
        ],
    ),
    ("config", &["quickack config", "quickack config --diff"]),
    ("stats", &["quickack stats", "quickack stats --json"]),
    ("info", &["quickack info"]),
    ("pools", &["quickack pools", "quickack pools --json"]),
    ("servers", &["quickack servers"]),
    ("server", &["quickack server sessions/one drain", "quickack server sessions/one ready"]),
    (
        "wait",
        &[
            "quickack wait ready",
            "quickack wait --timeout 5s epoch 1",
            "quickack wait server sessions/one up",
            "quickack server sessions/two maint && quickack wait server sessions/two idle",
        ],
    ),
    ("top", &["quickack top --once", "quickack top --once --over 5m"]),
    ("slowlog", &["quickack slowlog --limit 10", "quickack slowlog --reset"]),
    (
        "clients",
        &[
            "quickack clients --sort bytes --limit 10",
            "quickack clients --busiest",
            "quickack clients kill --address 127.0.0.1",
        ],
    ),
    ("workers", &["quickack workers"]),
    ("log-level", &["quickack log-level debug", "quickack log-level notice"]),
    ("drain", &["quickack drain"]),
    ("quit", &["quickack quit"]),
];
