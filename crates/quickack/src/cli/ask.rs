//! The verbs that a running proxy answers: finds the proxy and prints its answer.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::print;
use crate::admin::{self, Found};
use crate::config::{self, Admin, Config, Lists, Override};
use crate::error::Error;

/// Options that select a running proxy.
#[derive(Args, Clone)]
pub struct Proxy {
    /// The configuration it was started with; needed if several run.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Its admin socket.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub admin: Option<PathBuf>,
}

/// What a running proxy serves with.
pub struct Running {
    /// None if it is the built-in configuration.
    pub file: Option<PathBuf>,
    pub overrides: Vec<Override>,
    pub lists: RunningLists,
}

/// The servers that its pools have.
pub struct RunningLists(Value);

impl RunningLists {
    /// The lists of the pools that take them from elsewhere.
    pub fn of(&self, config: &Config) -> Lists {
        let mut lists = Lists::default();
        for (name, list) in config.lists() {
            let mut pools = self.0["pools"].as_array().into_iter().flatten();
            let Some(pool) = pools.find(|pool| pool["name"] == name) else { continue };
            let servers = pool["servers"].as_array().into_iter().flatten();
            let line = |server: &Value| {
                let word = |name: &str| server[name].as_str().unwrap_or_default().to_string();
                let (address, label) = (word("address"), word("label"));
                let name = if address == label { String::new() } else { format!(" {label}") };
                format!("{address}:{}{name}\n", server["weight"])
            };
            lists.set(name, &list.source, &servers.map(line).collect::<String>());
        }
        lists
    }
}

impl Proxy {
    /// Sends the verb and prints the answer. The exit status is 1 if the answer is an error.
    pub fn ask(&self, verb: &str, words: &[String]) -> ExitCode {
        let line = std::iter::once(verb).chain(words.iter().map(String::as_str));
        let line: Vec<&str> = line.filter(|word| !word.is_empty()).collect();
        match self.answer(&line.join(" ")) {
            Ok(text) => {
                print(&text);
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error),
        }
    }

    /// Sends a line and returns the answer.
    pub fn answer(&self, line: &str) -> Result<String, Error> {
        self.find().and_then(|proxy| admin::ask(proxy, line))
    }

    /// Returns what the proxy serves with.
    pub fn running(&self) -> Result<Running, Error> {
        let ask = |line: &str| -> Result<Value, Error> {
            let text = self.answer(line)?;
            serde_json::from_str(&text).map_err(|error| Error::Bug(error.to_string()))
        };
        let (info, pools) = (ask("info --json")?, ask("pools --json")?);
        let set = info["set"].as_array().into_iter().flatten().filter_map(|word| word.as_str());
        let overrides: Result<Vec<Override>, Error> = set.map(Override::parse).collect();
        let file = info["file"].as_str().map(PathBuf::from);
        Ok(Running { file, overrides: overrides?, lists: RunningLists(pools) })
    }

    /// Finds the proxy, if it runs.
    pub fn find(&self) -> Result<Found, Error> {
        if let Some(path) = &self.admin {
            return admin::at(path);
        }
        let Some(file) = &self.config else { return admin::only(None) };
        // The file may be invalid by now; the proxy reports that itself. Never choose another proxy
        // than the named one: the verb might end it.
        match config::read(file).admin {
            Admin::At(path) => admin::at(&path),
            Admin::Default => admin::only(Some(file)),
            Admin::Off => Err(Error::Config("its file says `admin: off`".into())),
        }
    }
}

/// Says why a verb has failed.
pub fn fail(error: &Error) -> ExitCode {
    eprintln!("quickack: {error}");
    ExitCode::FAILURE
}
