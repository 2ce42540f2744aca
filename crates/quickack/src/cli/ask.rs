//! The verbs that a running proxy answers: which proxy is meant, and its answer.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::print;
use crate::{admin, config};

/// Which running proxy.
#[derive(Args)]
pub struct Proxy {
    /// The configuration it was started with; needed if several run.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Its admin socket.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    admin: Option<PathBuf>,
}

impl Proxy {
    /// Asks, and shows the answer. Exit status 1 if it is an error.
    pub fn ask(&self, verb: &str, words: &[String]) -> ExitCode {
        let line = std::iter::once(verb).chain(words.iter().map(String::as_str));
        let line: Vec<&str> = line.filter(|word| !word.is_empty()).collect();
        match self.socket().and_then(|socket| admin::ask(&socket, &line.join(" "))) {
            Ok(text) => {
                print(&text);
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("quickack: {why}");
                ExitCode::FAILURE
            }
        }
    }

    fn socket(&self) -> Result<PathBuf, String> {
        if let Some(path) = &self.admin {
            return Ok(path.clone());
        }
        let Some(file) = &self.config else { return admin::only() };
        // The file may be wrong by now: that is for the proxy to say.
        let outcome = config::read(file);
        let path = admin::path(&outcome.admin, Some(file)).ok_or("its file says `admin: off`")?;
        // Never another proxy than the one that was named: it might be told to end.
        match path.exists() {
            true => Ok(path),
            false => Err(format!(
                "no proxy runs with {} (there is no {}); if one does, say --admin PATH",
                file.display(),
                path.display()
            )),
        }
    }
}
