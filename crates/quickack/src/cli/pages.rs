//! What a package has beside the program, from the table of the command line: the completions of
//! shells, and the man pages.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Arguments, ask, print};

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> ExitCode {
    let mut text = Vec::new();
    let mut command = Arguments::command();
    let name = command.get_name().to_string();
    clap_complete::generate(shell, &mut command, name, &mut text);
    print(&String::from_utf8_lossy(&text));
    ExitCode::SUCCESS
}

/// Writes a page for the program and one for each verb.
pub fn man(folder: &Path) -> ExitCode {
    // The commit of this build is no part of a manual.
    let command = Arguments::command().version(env!("CARGO_PKG_VERSION"));
    match clap_mangen::generate_to(command, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ask::fail(&error.into()),
    }
}
