//! Whether a configuration may take the place of another, what that would change, and what the
//! master itself takes over from it.

use std::collections::BTreeMap;

use super::stats_port::StatsPort;
use super::{Master, say};
use crate::config::{self, Affinity, Config};
use crate::error::Error;
use crate::log::{Level, Log};

impl Master {
    /// Returns what would change, in lines for people, or why it must not.
    pub(super) fn judge(
        &mut self,
        config: &Config,
        addresses: &BTreeMap<String, String>,
        allow_remap: bool,
    ) -> Result<Vec<String>, Error> {
        let difference = config::difference(&self.running.config, config);
        if !difference.impossible.is_empty() {
            return Err(Error::Config(difference.impossible.join("\n")));
        }
        if let (false, Some(moved)) = (allow_remap, difference.remap()) {
            return Err(Error::Config(moved));
        }
        let mut told = difference.lines;
        for (name, address) in addresses {
            match self.running.addresses.get(name) {
                Some(old) if old != address => {
                    told.push(format!("{name} has moved from {old} to {address}"));
                }
                None if self.running.resolved.contains_key(name) => {
                    told.push(format!("{name} is at {address}; it had no address before"));
                }
                _ => {}
            }
        }
        for path in self.listeners.gone().chain(self.http.gone()) {
            told.push(format!("{} was removed and is created again", path.display()));
        }
        affinity(config)?;
        self.try_opening(config, addresses)?;
        Ok(told)
    }

    /// Whether what only the master opens could be opened.
    fn try_opening(
        &self,
        config: &Config,
        addresses: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        let (old, new) = (&self.running.config.process, &config.process);
        if new.log != old.log {
            Log::open(&new.log, new.log_format, new.log_level)
                .map_err(|error| error.within("cannot open the new log"))?;
        }
        match &new.stats {
            Some(address) if new.stats != old.stats => StatsPort::try_listen(address, addresses),
            _ => Ok(()),
        }
    }

    /// Applies the parts of a configuration that concern the master itself.
    pub(super) fn follow_process(&mut self) {
        let process = &self.running.config.process;
        if let Err(error) = self.log.change(&process.log, process.log_format, process.log_level) {
            let text = format!("cannot open the new log: {error}; still writing to the old one");
            say(&mut self.log, Level::Error, "log_target", &text);
        }
        self.scoreboard.registry().set_debug(self.log.is_debug());
        let (written, addresses) = (process.stats.as_ref(), &self.running.addresses);
        if let Err(error) = self.stats_port.listen(written, addresses, &self.events) {
            say(&mut self.log, Level::Error, "stats_port", &error.to_string());
        }
    }
}

/// Whether the processors are there that workers are to be kept on.
pub fn affinity(config: &Config) -> Result<(), Error> {
    let Affinity::List(list) = &config.process.affinity else { return Ok(()) };
    let ours = sys::process::affinity();
    match list.iter().find(|processor| !ours.contains(processor)) {
        None => Ok(()),
        Some(missing) => Err(Error::Config(format!(
            "worker_cpu_affinity: processor {missing} is not among those that this process may \
             use: {ours:?}"
        ))),
    }
}
