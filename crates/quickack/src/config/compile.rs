//! A file to a plan: each block through its table, then the rules that look at several
//! directives, and last those that look at several pools.

use proxy::plan::{OnFailure, Plan, PoolPlan, QuickAck, ServerPlan, Timeouts};
use shard::{Distribution, Hash};

use super::address::ServerAddress;
use super::apply::{Findings, apply};
use super::directives::{GLOBAL, POOL};
use super::draft::{GlobalDraft, PoolDraft};
use super::file::{ConfigFile, Entry, Shape};
use super::report::{Place, Report};
use super::{Config, Listener, Outcome, Severity, TcpOptions, Upstream};

/// Compiles a file's text; `name` is what the report calls it.
pub fn compile(name: &str, text: &str) -> Outcome {
    let mut compiler = Compiler::default();
    let mut findings = Findings::default();
    match ConfigFile::parse(text) {
        Ok(file) => compiler.file(&file, &mut findings),
        Err(diagnostic) => findings.diagnostics.push(diagnostic),
    }
    let report = Report::new(name, text, findings.diagnostics);
    Outcome {
        config: (report.count(Severity::Error) == 0).then(|| compiler.config(text)),
        report,
        settings: compiler.pools.into_iter().map(|pool| pool.settings).collect(),
        global_settings: compiler.global_settings,
    }
}

struct Compiler {
    pools: Vec<Pool>,
    global: GlobalDraft,
    global_settings: Vec<String>,
}

/// A pool that was read, right or wrong.
struct Pool {
    draft: PoolDraft,
    settings: Vec<String>,
    /// Of `listen:`'s value.
    listen_place: Place,
    /// Of `item_size_max:`'s value.
    item_size_place: Place,
}

impl Default for Compiler {
    fn default() -> Compiler {
        Compiler { pools: Vec::new(), global: GlobalDraft::new(), global_settings: Vec::new() }
    }
}

impl Compiler {
    fn file(&mut self, file: &ConfigFile, findings: &mut Findings) {
        for (index, entry) in file.entries.iter().enumerate() {
            if file.entries[..index].iter().any(|earlier| earlier.key == entry.key) {
                let message = format!("a second block is called `{}`", entry.key);
                findings.error(entry.key_place, message);
            } else if is_global(entry) {
                self.global(entry, findings);
            } else {
                self.pool(entry, findings);
            }
        }
        if !file.entries.iter().any(|entry| !is_global(entry)) {
            findings.file_error("the file has no pool");
        }
        self.check_across_pools(findings);
    }

    fn global(&mut self, block: &Entry, findings: &mut Findings) {
        if let Some(entries) = entries(block, findings) {
            self.global_settings = apply(GLOBAL, entries, &mut self.global, findings);
        }
    }

    fn pool(&mut self, block: &Entry, findings: &mut Findings) {
        if block.key.is_empty() || block.key.contains(char::is_control) {
            findings.error(block.key_place, "a pool's name is of visible characters");
        }
        let Some(entries) = entries(block, findings) else { return };
        let mut draft = PoolDraft::new(&block.key);
        let settings = apply(POOL, entries, &mut draft, findings);
        let rules = Rules { block, entries, draft: &draft };
        rules.check(findings);
        let listen_place = rules.place_of("listen");
        let item_size_place = rules.place_of("item_size_max");
        self.pools.push(Pool { draft, settings, listen_place, item_size_place });
    }

    fn check_across_pools(&self, findings: &mut Findings) {
        for pool in &self.pools {
            if pool.draft.plan.item_size_max > self.global.memory_max {
                let message = "item_size_max: more than `memory_max`, which all buffers share";
                findings.error(pool.item_size_place, message);
            }
        }
        for (index, pool) in self.pools.iter().enumerate() {
            let Some(address) = &pool.draft.listen else { continue };
            let clash = self.pools[..index].iter().find(|earlier| {
                earlier.draft.listen.as_ref().is_some_and(|other| other.clashes(address))
            });
            if let Some(earlier) = clash {
                let name = &earlier.draft.plan.name;
                let message = format!("pool `{name}` listens on {address} already");
                findings.error(pool.listen_place, message);
            }
        }
    }

    /// Only for a file without an error.
    fn config(&self, text: &str) -> Config {
        let pools = self.pools.iter().enumerate();
        Config {
            plan: self.plan(),
            listeners: pools.map(|(index, pool)| listener(index, &pool.draft)).collect(),
            upstreams: self.pools.iter().map(|pool| upstream(&pool.draft)).collect(),
            text: text.to_string(),
        }
    }

    fn plan(&self) -> Plan {
        let mut whole = Plan::new(self.pools.iter().map(|pool| plan(&pool.draft)).collect());
        whole.memory_max = self.global.memory_max;
        whole.clients_max = self.global.clients_max.unwrap_or(usize::MAX);
        whole
    }
}

/// A pool of a `nutcracker.yml` may be called `global`; it listens, and settings do not.
fn is_global(entry: &Entry) -> bool {
    let listens = |entries: &[Entry]| entries.iter().any(|inner| inner.key == "listen");
    entry.key == "global" && !matches!(&entry.value.shape, Shape::Map(inner) if listens(inner))
}

fn entries<'e>(block: &'e Entry, findings: &mut Findings) -> Option<&'e [Entry]> {
    match &block.value.shape {
        Shape::Map(entries) => Some(entries),
        _ => {
            let message = format!("`{}` has no directives under it", block.key);
            findings.error(block.key_place, message);
            None
        }
    }
}

/// The rules of one pool that look at more than one directive.
struct Rules<'r> {
    block: &'r Entry,
    entries: &'r [Entry],
    draft: &'r PoolDraft,
}

impl Rules<'_> {
    fn check(&self, findings: &mut Findings) {
        self.check_required(findings);
        self.check_redis(findings);
        self.check_servers(findings);
        self.check_failure(findings);
        self.check_without_effect(findings);
    }

    fn check_required(&self, findings: &mut Findings) {
        let name = &self.block.key;
        for required in ["listen", "servers"] {
            if self.entry(required).is_none() {
                let message = format!("pool `{name}` has no `{required}`");
                findings.error(self.block.key_place, message);
            }
        }
        let Some(servers) = self.entry("servers") else { return };
        let none = match &servers.value.shape {
            Shape::Nothing => true,
            Shape::List(nodes) => nodes.is_empty(),
            _ => false,
        };
        if none {
            findings.error(servers.key_place, format!("pool `{name}` has no servers"));
        }
    }

    fn check_redis(&self, findings: &mut Findings) {
        if self.draft.redis {
            let message = "redis: this version speaks memcached only; leave the pool to \
                           nutcracker until Redis is spoken here";
            findings.error(self.place_of("redis"), message);
        } else if self.draft.redis_auth {
            let place =
                self.entry("redis_auth").map_or(self.block.key_place, |entry| entry.key_place);
            findings.error(place, "redis_auth: this pool is not `redis: true`");
        }
    }

    fn check_servers(&self, findings: &mut Findings) {
        let servers = &self.draft.servers;
        for (index, server) in servers.iter().enumerate() {
            let name = server.line.ring_name();
            if servers[..index].iter().any(|earlier| earlier.line.ring_name() == name) {
                let message = format!(
                    "a second server of this pool is called `{name}`; keys are \
                                       placed by name, so give each its own"
                );
                findings.error(server.place, message);
            }
        }
    }

    fn check_failure(&self, findings: &mut Findings) {
        let wanted = self.draft.auto_eject.map(eject);
        if let (Some(wanted), Some(written)) = (wanted, self.draft.on_failure)
            && wanted != written
        {
            let message = "on_failure: `auto_eject_hosts` says the contrary; keep one of them";
            findings.error(self.place_of("on_failure"), message);
        }
    }

    fn check_without_effect(&self, findings: &mut Findings) {
        let draft = self.draft;
        let lines = || draft.servers.iter().map(|server| &server.line);
        let embedded = lines().any(|line| matches!(line.address, ServerAddress::Embedded { .. }));
        if draft.memory.is_some() && !embedded {
            let message = "memory: without effect, because no server of this pool is `embedded`";
            findings.warning(self.place_of("memory"), message);
        }
        if draft.timeout == Some(0) {
            let message = "timeout: 0 is no deadline in twemproxy; here the defaults of \
                           timeout_connect, timeout_queue and timeout_reply hold";
            findings.warning(self.place_of("timeout"), message);
        }
        if draft.plan.hash == Hash::Crc32 && draft.plan.distribution == Distribution::Ketama {
            let message = "hash: crc32 gives numbers below 32768 only, which one server of a \
                           ketama ring gets all (as in twemproxy); crc32a spreads them";
            findings.warning(self.place_of("hash"), message);
        }
        if draft.plan.distribution == Distribution::Random && lines().any(|line| line.weight != 1) {
            let message = "distribution: random does not look at weights";
            findings.warning(self.place_of("distribution"), message);
        }
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == name)
    }

    /// Where a directive's value stands; the pool's name if it was not written.
    fn place_of(&self, name: &str) -> Place {
        self.entry(name).map_or(self.block.key_place, |entry| entry.value.place)
    }
}

fn plan(draft: &PoolDraft) -> PoolPlan {
    let plan = draft.plan.clone();
    let quickack = draft.quickack.unwrap_or(QuickAck::Partial);
    PoolPlan {
        servers: draft.servers.iter().map(|server| server.line.plan()).collect(),
        timeouts: timeouts(draft, plan.timeouts),
        on_failure: draft.on_failure.or(draft.auto_eject.map(eject)).unwrap_or(OnFailure::FailFast),
        client_connections: match draft.client_connections {
            0 => usize::MAX,
            count => count,
        },
        quickack,
        server_quickack: draft.server_quickack.unwrap_or(quickack),
        ..plan
    }
}

fn eject(auto_eject: bool) -> OnFailure {
    if auto_eject { OnFailure::Eject } else { OnFailure::FailFast }
}

/// The narrower word wins: `timeout_reply`, then `timeout`, then the default.
fn timeouts(draft: &PoolDraft, defaults: Timeouts) -> Timeouts {
    let all = draft.timeout.filter(|us| *us > 0);
    let pick = |own: Option<u64>, default: u64| own.or(all).unwrap_or(default);
    Timeouts {
        connect: pick(draft.timeout_connect, defaults.connect),
        queue: pick(draft.timeout_queue, defaults.queue),
        reply: pick(draft.timeout_reply, defaults.reply),
    }
}

fn listener(pool: usize, draft: &PoolDraft) -> Listener {
    Listener {
        pool,
        address: draft.listen.clone().expect("a pool without an error has its listen address"),
        backlog: draft.backlog,
        reuseport: draft.reuseport,
        tcp: TcpOptions { nodelay: draft.tcp_nodelay, keepalive: draft.tcpkeepalive },
        quickack: draft.quickack.unwrap_or(QuickAck::Partial),
    }
}

fn upstream(draft: &PoolDraft) -> Upstream {
    let memory = draft.memory.unwrap_or(EMBEDDED_MEMORY_DEFAULT);
    let address = |address: &ServerAddress| match address {
        ServerAddress::Embedded { .. } => ServerAddress::Embedded { memory },
        address => address.clone(),
    };
    Upstream {
        servers: draft.servers.iter().map(|server| address(&server.line.address)).collect(),
        // A black-holed server is found by keepalive too, so links always have it.
        tcp: TcpOptions { nodelay: draft.tcp_nodelay, keepalive: true },
    }
}

/// What memcached takes unless it is told.
const EMBEDDED_MEMORY_DEFAULT: usize = 64 << 20;

impl super::address::ServerLine {
    /// What the ring hashes, and what tells servers apart.
    fn ring_name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.default_name)
    }

    fn plan(&self) -> ServerPlan {
        let label = self.name.clone().unwrap_or_else(|| self.address.to_string());
        ServerPlan::new(self.ring_name(), &label, self.weight)
    }
}
