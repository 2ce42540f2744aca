//! What a package has beside the program, from the table of the command line: the completions of
//! shells, and the man pages.

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Arguments, ask, examples, print};

const NAME: &str = env!("CARGO_PKG_NAME");

/// Prints the completions for a shell. Verbs that no person uses are not offered.
pub fn completions(shell: Shell) -> ExitCode {
    let mut text = Vec::new();
    let all = Arguments::command();
    let verbs = all.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
    let mut command = Command::new(NAME).args(all.get_arguments().cloned()).subcommands(verbs);
    clap_complete::generate(shell, &mut command, NAME, &mut text);
    print(&String::from_utf8_lossy(&text));
    ExitCode::SUCCESS
}

/// Writes a page for the program and one for each verb.
pub fn man(folder: &Path) -> ExitCode {
    // The commit of this build is no part of a manual.
    let command = Arguments::command().version(env!("CARGO_PKG_VERSION"));
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    match verbs.chain([&command]).try_for_each(|verb| man_page(verb, folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ask::fail(&error.into()),
    }
}

fn man_page(verb: &Command, folder: &Path) -> io::Result<()> {
    let page = Man::new(verb.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    // `clap_mangen` would print the examples as one paragraph.
    text.extend_from_slice(b".SH EXAMPLES\n.nf\n");
    for example in examples::of(verb.get_name()) {
        text.extend_from_slice(example.replace('-', "\\-").as_bytes());
        text.push(b'\n');
    }
    text.extend_from_slice(b".fi\n");
    fs::write(folder.join(page.get_filename()), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_and_word_says_what_it_is_for() {
        let command = Arguments::command();
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            for argument in verb.get_arguments() {
                let name = format!("{} {}", verb.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{name} has no help");
            }
        }
    }
}
