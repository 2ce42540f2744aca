//! `cargo xtask dist`: the program of a release, with its man pages and completions, in
//! `target/package`; and what a release promises of it: its size, and the oldest glibc it needs.
//!
//! With `--zig`, cargo-zigbuild links it for glibc 2.17, whatever this machine has.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Outcome, cargo, root};

/// The bytes that the program may have.
const SIZE_MAX: u64 = 6_000_000;
/// The oldest glibc that a release needs: that of RHEL 7.
const GLIBC: (u32, u32) = (2, 17);
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

pub fn run(arguments: &[String]) -> Outcome {
    let zig = match arguments {
        [] => false,
        [one] if one == "--zig" => true,
        _ => return Err("use: cargo xtask dist [--zig]".to_string()),
    };
    let program = root().join(build(zig)?);
    let bytes = fs::read(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    let folder = root().join("target/package");
    pack(&program, &folder)?;
    let (major, minor) = glibc(&bytes);
    let size = bytes.len() as u64;
    println!("{}: {size} bytes, needs glibc {major}.{minor}", folder.join("quickack").display());
    if size >= SIZE_MAX {
        return Err(format!("the program has {size} bytes; {SIZE_MAX} are too many"));
    }
    if zig && (major, minor) > GLIBC {
        return Err(format!(
            "it needs glibc {major}.{minor}; {}.{} was promised",
            GLIBC.0, GLIBC.1
        ));
    }
    Ok(())
}

/// Builds it, and returns its path below the workspace's folder.
fn build(zig: bool) -> Result<String, String> {
    let arch = std::env::consts::ARCH;
    let target = format!("{arch}-unknown-linux-gnu");
    let versioned = format!("{target}.{}.{}", GLIBC.0, GLIBC.1);
    let mut arguments = vec![if zig { "zigbuild" } else { "build" }];
    arguments.extend(["--profile", "dist", "--locked", "--package", "quickack"]);
    if zig {
        arguments.extend(["--target", &versioned]);
    }
    cargo::run(&mut cargo::command(&arguments))?;
    Ok(match zig {
        true => format!("target/{target}/dist/quickack"),
        false => "target/dist/quickack".to_string(),
    })
}

/// Makes the folder anew.
fn pack(program: &Path, folder: &Path) -> Outcome {
    let said = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    let _ = fs::remove_dir_all(folder);
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for one in [&man, &completions] {
        fs::create_dir_all(one).map_err(|error| said(one, error))?;
    }
    let copy = folder.join("quickack");
    fs::copy(program, &copy).map_err(|error| said(&copy, error))?;
    cargo::run(Command::new(&copy).arg("man").arg(&man))?;
    for shell in SHELLS {
        let text = printed_by(Command::new(&copy).args(["completions", shell]))?;
        let file = completions.join(format!("quickack.{shell}"));
        fs::write(&file, text).map_err(|error| said(&file, error))?;
    }
    // The program under this name is nutcracker.
    let link = folder.join("nutcracker");
    std::os::unix::fs::symlink("quickack", &link).map_err(|error| said(&link, error))
}

/// Returns what a command has printed; that it fails, or prints nothing, is an error.
fn printed_by(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    match (output.status.success(), output.stdout.is_empty()) {
        (true, false) => Ok(output.stdout),
        (true, true) => Err(format!("{command:?} has printed nothing")),
        (false, _) => Err(format!("{command:?} ended with {}", output.status)),
    }
}

/// Returns the newest version of glibc whose symbols a program names.
fn glibc(bytes: &[u8]) -> (u32, u32) {
    const MARK: &[u8] = b"GLIBC_2.";
    let places = bytes.windows(MARK.len()).enumerate().filter(|(_, part)| *part == MARK);
    let minor = |(at, _): (usize, &[u8])| {
        let digits = bytes[at + MARK.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number: u32, digit| number * 10 + u32::from(digit - b'0'))
    };
    (2, places.map(minor).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_says_which_glibc_a_program_needs() {
        assert_eq!(glibc(b"..GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_2.4\0"), (2, 17));
        assert_eq!(glibc(b"no such name"), (2, 0));
    }

    #[test]
    fn a_file_is_written_of_what_a_command_has_printed_and_not_of_its_failure() {
        let printed = |script: &str| printed_by(Command::new("sh").args(["-c", script]));
        assert_eq!(printed("echo words"), Ok(b"words\n".to_vec()));
        assert!(printed("echo half; exit 3").unwrap_err().ends_with("ended with exit status: 3"));
        assert!(printed("true").unwrap_err().ends_with("has printed nothing"));
        assert!(printed_by(&mut Command::new("/no/such/program")).is_err());
    }
}
