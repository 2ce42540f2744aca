//! Runs cargo, and its subcommands, as a child process.

use std::process::{Command, Stdio};

use crate::{Outcome, root};

/// Returns a command of the cargo that runs this program, in the workspace's folder.
pub fn command(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs a command to its end; its output goes to ours.
pub fn run(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| cannot(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", line(command))) }
}

fn cannot(command: &Command, error: &std::io::Error) -> String {
    format!("cannot run {}: {error}", line(command))
}

fn line(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    format!("{} {}", command.get_program().to_string_lossy(), words.join(" "))
}
