//! The values that the directives of a block set, before the rules over several of them.

use ipnet::IpNet;
use proto::{Extra, Protocol};
use proxy::limits;
use proxy::plan::{OnFailure, PoolPlan, QuickAck};
use proxy::tenants::plan::RemovedUsers;

use super::address::{Address, ServerAddress, ServerLine};
use super::list::{self, List, ListSource, Lists};
use super::process::Process;
use super::report::Spot;
use super::tenants::TenantDraft;
use super::value::{self, Fault};

/// One pool while it is read. `None` means "not written", where that differs from the default.
pub struct PoolDraft {
    /// Directives without dependencies go straight into the plan.
    pub plan: PoolPlan,
    pub listen: Option<Address>,
    pub servers: Vec<ServerDraft>,
    /// Where the servers come from, if not from the file.
    pub list: Option<(ListSource, Spot)>,
    /// A list that moves keys is applied by itself.
    pub applies_lists: bool,
    /// The limit on clients; 0 means none.
    pub client_connections: usize,
    pub backlog: i32,
    pub tcpkeepalive: bool,
    pub tcp_nodelay: bool,
    pub reuseport: bool,
    pub timeout: Option<u64>,
    pub timeout_connect: Option<u64>,
    pub timeout_queue: Option<u64>,
    pub timeout_reply: Option<u64>,
    pub timeout_slow: Option<u64>,
    pub auto_eject: Option<bool>,
    pub on_failure: Option<OnFailure>,
    pub quickack: Option<QuickAck>,
    pub server_quickack: Option<QuickAck>,
    pub memory: Option<usize>,
    pub max_ejected: CountOrPercent,
    pub server_connections_max: Option<usize>,
    pub proxy_protocol: Vec<IpNet>,
    pub required: bool,
    /// Path of the file, as written.
    pub users: Option<String>,
    /// Path of the file, as written.
    pub server_login: Option<String>,
    pub protocol: Option<&'static dyn Protocol>,
    /// twemproxy's name for the choice of protocol.
    pub redis: Option<bool>,
    pub redis_auth: Option<String>,
    pub redis_db: u32,
    pub databases: Option<u32>,
    pub commands: Vec<CommandDraft>,
    pub allow: Vec<AllowDraft>,
    pub item_size_max: Option<usize>,
}

/// A line under `servers:` and where it was written.
pub struct ServerDraft {
    pub line: ServerLine,
    pub spot: Spot,
}

/// What stands under `servers:`.
pub enum ServersDraft {
    Written(Vec<ServerDraft>),
    From(ListSource, Spot),
}

impl ServersDraft {
    /// Returns the value in its plainest form.
    pub fn shown(&self) -> String {
        match self {
            ServersDraft::Written(servers) => {
                let lines: Vec<&str> = servers.iter().map(|one| &*one.line.text).collect();
                format!("[{}]", lines.join(", "))
            }
            ServersDraft::From(source, _) => source.to_string(),
        }
    }
}

/// A row of `commands:` and where its name was written.
pub struct CommandDraft {
    pub extra: Extra,
    pub spot: Spot,
}

/// A name under `allow:` and where it was written.
pub struct AllowDraft {
    pub name: String,
    pub spot: Spot,
}

/// A share of a pool's servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOrPercent {
    Number(usize),
    Percent(usize),
}

/// The `global:` block while it is read.
pub struct GlobalDraft {
    pub process: Process,
    pub memory_max: usize,
    pub clients_max: Option<usize>,
    pub private_max: u64,
    pub tenants: Vec<TenantDraft>,
    pub removed_users: RemovedUsers,
}

/// A directive that was written or set. Values are in their plainest form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    /// The file's value.
    pub file: Option<String>,
    /// The value set at run time, which wins.
    pub set: Option<String>,
}

impl PoolDraft {
    pub fn new(name: &str) -> PoolDraft {
        PoolDraft {
            plan: PoolPlan::new(name, proto::PROTOCOLS[0], Vec::new()),
            listen: None,
            servers: Vec::new(),
            list: None,
            applies_lists: false,
            client_connections: 0,
            backlog: 512,
            tcpkeepalive: false,
            tcp_nodelay: true,
            reuseport: false,
            timeout: None,
            timeout_connect: None,
            timeout_queue: None,
            timeout_reply: None,
            timeout_slow: None,
            auto_eject: None,
            on_failure: None,
            quickack: None,
            server_quickack: None,
            memory: None,
            max_ejected: CountOrPercent::Percent(50),
            server_connections_max: None,
            proxy_protocol: Vec::new(),
            required: true,
            users: None,
            server_login: None,
            protocol: None,
            redis: None,
            redis_auth: None,
            redis_db: 0,
            databases: None,
            commands: Vec::new(),
            allow: Vec::new(),
            item_size_max: None,
        }
    }
}

impl PoolDraft {
    /// What was set at run time takes the place of what is in the file.
    pub fn set_servers(&mut self, draft: ServersDraft) {
        (self.servers, self.list) = match draft {
            ServersDraft::Written(servers) => (servers, None),
            ServersDraft::From(source, spot) => (Vec::new(), Some((source, spot))),
        };
    }

    /// Takes the servers of the pool's list, if it is among these, which have been checked. Returns
    /// the list.
    pub fn take_list(&mut self, lists: Option<&Lists>) -> Option<List> {
        let (source, spot) = self.list.as_ref()?;
        let text = lists?.get(&self.plan.name, source)?;
        let draft = |line: ServerLine| ServerDraft { line, spot: spot.clone() };
        let list = List { source: source.clone(), text: text.to_string() };
        self.servers = list::servers(text).map(draft).collect();
        Some(list)
    }

    /// Returns the largest value if a worker may have `memory` bytes in all. A memcached knows its
    /// own (`-I`), refuses what is larger and reads on behind it. A Redis would close the
    /// connection, so its default is a bound of ours; an embedded cache gets its bound from here.
    pub fn item_size_max(&self, memory: usize) -> usize {
        let is_embedded =
            |server: &ServerDraft| matches!(server.line.address, ServerAddress::Embedded { .. });
        let default = match self.speaks_redis() {
            true => limits::REDIS_ITEM_SIZE_DEFAULT.min(memory),
            false if self.servers.iter().any(is_embedded) => limits::ITEM_SIZE_DEFAULT,
            // As much as an unchanged memcached keeps must fit.
            false => limits::ITEM_SIZE_MAX.min(memory).max(limits::ITEM_SIZE_DEFAULT),
        };
        self.item_size_max.unwrap_or(default)
    }

    /// Returns the number of databases.
    pub fn databases(&self) -> u32 {
        self.databases.unwrap_or(DATABASES_DEFAULT.max(self.redis_db.saturating_add(1)))
    }
}

/// The default of the servers' own configuration.
const DATABASES_DEFAULT: u32 = 16;

impl CountOrPercent {
    pub fn parse(word: &str) -> Result<CountOrPercent, Fault> {
        match word.strip_suffix('%') {
            Some(percent) => {
                Ok(CountOrPercent::Percent(value::number(percent, &(0..=100))? as usize))
            }
            None => {
                Ok(CountOrPercent::Number(value::number(word, &(0..=i32::MAX as u64))? as usize))
            }
        }
    }

    /// Returns the share of `all`; a percentage above 0 gives at least one.
    pub fn of(self, all: usize) -> usize {
        match self {
            CountOrPercent::Number(number) => number.min(all),
            CountOrPercent::Percent(0) => 0,
            CountOrPercent::Percent(percent) => (all * percent / 100).max(1).min(all),
        }
    }
}

impl GlobalDraft {
    pub fn new(processors: usize) -> GlobalDraft {
        GlobalDraft {
            process: Process::new(processors),
            memory_max: limits::MEMORY_DEFAULT,
            clients_max: None,
            private_max: limits::PRIVATE_LINKS_MAX,
            tenants: Vec::new(),
            removed_users: RemovedUsers::default(),
        }
    }
}

impl Setting {
    /// Returns the current value.
    pub fn word(&self) -> Option<&str> {
        self.set.as_deref().or(self.file.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_number_or_a_part_of_all_and_never_more_than_all() {
        for (word, all, share) in [
            ("0", 10, 0),
            ("3", 10, 3),
            ("11", 10, 10),
            ("0%", 10, 0),
            ("1%", 10, 1),
            ("50%", 10, 5),
            ("50%", 3, 1),
            ("99%", 200, 198),
            ("100%", 10, 10),
            ("100%", 0, 0),
            ("1%", 0, 0),
        ] {
            assert_eq!(
                CountOrPercent::parse(word).map(|it| it.of(all)),
                Ok(share),
                "{word} of {all}"
            );
        }
        assert!(CountOrPercent::parse("101%").is_err() && CountOrPercent::parse("%").is_err());
    }
}
