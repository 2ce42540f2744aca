//! INFO, CONFIG GET and ROLE: the server that the proxy seems to be. Clients look here for a
//! version, for `loading:0` and `role:master`, and benchmarks for a few settings.

use std::fmt::Write;

use super::super::words;
use super::{Talk, glob};

/// What is told as a version as long as no server has told its own.
const VERSION: [u16; 3] = [7, 0, 15];

/// The sections, in the order of a server's.
const SECTIONS: &[&str] = &[
    "Server",
    "Clients",
    "Memory",
    "Persistence",
    "Stats",
    "Replication",
    "CPU",
    "Cluster",
    "Keyspace",
];

impl Talk<'_> {
    /// The version that clients go by: that of the oldest server.
    pub(super) fn version(&self) -> String {
        let version = self.facts.skills.map(|skills| skills.make.like);
        let [major, minor, patch] =
            version.filter(|version| *version != [0, 0, 0]).unwrap_or(VERSION);
        format!("{major}.{minor}.{patch}")
    }

    pub(super) fn info(&mut self, rest: &[&[u8]]) {
        let all = rest.is_empty()
            || rest.iter().any(|word| {
                [&b"default"[..], b"all", b"everything"]
                    .iter()
                    .any(|name| word.eq_ignore_ascii_case(name))
            });
        let mut text = String::new();
        for section in SECTIONS {
            let is_named = rest.iter().any(|word| word.eq_ignore_ascii_case(section.as_bytes()));
            if !all && !is_named {
                continue;
            }
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {section}\r\n");
            self.section(section, &mut text);
        }
        words::verbatim(text.as_bytes(), self.dialect(), self.out);
    }

    fn section(&self, section: &str, text: &mut String) {
        let facts = self.facts;
        let _ = match section {
            "Server" => write!(
                text,
                "redis_version:{}\r\nredis_mode:standalone\r\nquickack_version:{}\r\n\
                 quickack_pool:{}\r\nquickack_servers:{}\r\narch_bits:{}\r\n\
                 uptime_in_seconds:{}\r\nuptime_in_days:{}\r\n",
                self.version(),
                plain(facts.version.trim_start_matches("quickack-")),
                plain(facts.pool),
                facts.servers,
                usize::BITS,
                facts.uptime_s,
                facts.uptime_s / DAY_S,
            ),
            "Clients" => {
                write!(text, "connected_clients:{}\r\nblocked_clients:0\r\n", facts.clients)
            }
            "Memory" => write!(text, "maxmemory:0\r\nmaxmemory_policy:noeviction\r\n"),
            "Persistence" => write!(
                text,
                "loading:0\r\nasync_loading:0\r\nrdb_bgsave_in_progress:0\r\naof_enabled:0\r\n\
                 aof_rewrite_in_progress:0\r\n"
            ),
            "Replication" => write!(
                text,
                "role:master\r\nconnected_slaves:0\r\nmaster_failover_state:no-failover\r\n"
            ),
            "Cluster" => write!(text, "cluster_enabled:0\r\n"),
            _ => Ok(()),
        };
    }

    pub(super) fn role(&mut self) {
        words::open_array(3, self.out);
        words::bulk(b"master", self.out);
        words::number(0, self.out);
        words::open_array(0, self.out);
    }

    pub(super) fn config(&mut self, patterns: &[&[u8]]) {
        let databases = self.facts.spaces.to_string();
        let settings = [
            ("appendonly", "no"),
            ("databases", &databases[..]),
            ("maxmemory", "0"),
            ("maxmemory-policy", "noeviction"),
            ("proto-max-bulk-len", "536870912"),
            ("save", ""),
            ("timeout", "0"),
        ];
        let mut found: Vec<(Vec<u8>, &str)> = Vec::new();
        for (name, value) in settings {
            // A setting that is named is called as the client calls it.
            let asked = patterns.iter().find(|text| text.eq_ignore_ascii_case(name.as_bytes()));
            let name = match asked {
                Some(asked) => asked.to_vec(),
                None => name.as_bytes().to_vec(),
            };
            if asked.is_some() || patterns.iter().any(|pattern| glob::matches(pattern, &name)) {
                found.push((name, value));
            }
        }
        words::open_map(found.len(), self.dialect(), self.out);
        for (name, value) in found {
            words::bulk(&name, self.out);
            words::bulk(value.as_bytes(), self.out);
        }
    }
}

const DAY_S: u64 = 24 * 60 * 60;

/// A name of the configuration's, in one line.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
