//! Compiles a file to a plan: each block through its table, then the directives set at run time,
//! then the rules over several directives, and last the rules over several pools.

use std::collections::{HashMap, HashSet};

use proxy::plan::{OnFailure, Plan, PoolPlan, QuickAck, ServerPlan, Timeouts};

use super::address::ServerAddress;
use super::apply::apply;
use super::attachments::{Attachments, Source};
use super::directives::{GLOBAL, POOL};
use super::draft::{GlobalDraft, PoolDraft, Setting};
use super::file::{ConfigFile, Entry, Shape};
use super::findings::Findings;
use super::foreign;
use super::list;
use super::logins::{Logins, Reader};
use super::overrides::{Override, Owner, apply_override};
use super::process::{Admin, processors};
use super::report::{Report, Spot};
use super::rules::{Rules, eject};
use super::running::Block;
use super::tenancy::{self, Member, Most};
use super::tenants::TENANT;
use super::value::{Fault, size_word};
use super::{Address, Config, Listener, Outcome, Severity, TcpOptions, Upstream};

/// Compiles a text that names no files, with the directives set at run time over it. `name` stands
/// for the file in the report.
pub fn compile(name: &str, text: &str, overrides: &[Override]) -> Outcome {
    compile_for(name, text, overrides, processors(), Source::Nowhere)
}

/// Compiles a file for a machine with that many processors, the value of `workers: auto`. A worker
/// compiles with its master's number, because it may itself be pinned to one processor.
pub fn compile_for(
    name: &str,
    text: &str,
    overrides: &[Override],
    processors: usize,
    source: Source<'_>,
) -> Outcome {
    let mut compiler = Compiler::new(overrides, processors, source);
    let mut findings = Findings::default();
    match ConfigFile::parse(text) {
        Ok(file) => compiler.file(&file, &mut findings),
        Err(mut diagnostic) => {
            if let Spot::Text(place) = diagnostic.spot {
                let line = text[..place.start].rfind('\n').map_or(0, |end| end + 1);
                let line = text[line..].lines().next().unwrap_or_default();
                diagnostic.help = foreign::of_template(line);
            }
            findings.diagnostics.push(diagnostic);
        }
    }
    let report = Report::new(name, text, findings.diagnostics);
    let valid = report.count(Severity::Error) == 0;
    let admin = compiler.global.process.admin.clone();
    Outcome { config: valid.then(|| compiler.config(text)), report, admin }
}

struct Compiler<'o> {
    overrides: &'o [Override],
    source: Source<'o>,
    attachments: Attachments,
    pools: Vec<Pool>,
    global: GlobalDraft,
    global_settings: Vec<Setting>,
    /// The place that set `memory_max`.
    memory_max_spot: Spot,
    /// The place of the value of `http`.
    http_spot: Spot,
}

/// A pool as read, with or without errors.
struct Pool {
    draft: PoolDraft,
    logins: Logins,
    settings: Vec<Setting>,
    /// Place of the value of `listen:`.
    listen_spot: Spot,
    /// Place of the value of `item_size_max:`, if it is written.
    item_size_spot: Option<Spot>,
    /// Place of the value of `server_connections_max`, and of `access_log`.
    connections_spot: Spot,
    access_log_spot: Spot,
}

impl<'o> Compiler<'o> {
    fn new(overrides: &'o [Override], processors: usize, source: Source<'o>) -> Compiler<'o> {
        Compiler {
            overrides,
            source,
            attachments: Attachments::default(),
            pools: Vec::new(),
            global: GlobalDraft::new(processors),
            global_settings: Vec::new(),
            memory_max_spot: Spot::File,
            http_spot: Spot::File,
        }
    }

    fn file(&mut self, file: &ConfigFile, findings: &mut Findings) {
        let mut seen = HashSet::new();
        for entry in &file.entries {
            if !seen.insert(entry.key.as_str()) {
                let message = format!("a second block is called `{}`", entry.key);
                findings.error(entry.key_place, message);
                let first = file.entries.iter().find(|one| one.key == entry.key);
                findings.first(first.map(|first| first.key_place));
            } else if has_pools(entry) {
                let message = format!("`{}` has pools under it, and is none", entry.key);
                let fault = Fault::new(message).help(Some(foreign::NESTED));
                findings.fault(entry.key_place, fault);
            } else if is_global(entry) {
                self.global(entry, findings);
            } else {
                self.pool(entry, findings);
            }
        }
        if !file.entries.iter().any(|entry| !is_global(entry) || has_pools(entry)) {
            findings.error(Spot::File, "the file has no pool");
        }
        self.global_overrides(findings);
        self.check_overrides(findings);
        self.check_memory(findings);
        self.check_server_connections(findings);
        self.check_addresses(findings);
        self.check_tenants(findings);
        self.check_access_log(findings);
    }

    fn global(&mut self, block: &Entry, findings: &mut Findings) {
        if let Some(entries) = entries(block, findings) {
            self.global_settings = apply(GLOBAL, entries, &mut self.global, findings);
            let spot_of = |name: &str| -> Spot {
                let written = entries.iter().find(|entry| entry.key == name);
                written.map_or(block.key_place, |entry| entry.value.place).into()
            };
            self.memory_max_spot = spot_of(MEMORY_MAX);
            self.http_spot = spot_of("http");
        }
    }

    /// Applies overrides after the whole file, in which the block may be last or missing.
    fn global_overrides(&mut self, findings: &mut Findings) {
        for set in self.overrides.iter().filter(|set| set.owner == Owner::Proxy) {
            apply_override(GLOBAL, set, &mut self.global, &mut self.global_settings, findings);
            if set.name == MEMORY_MAX {
                self.memory_max_spot = Spot::Set(set.to_string());
            }
        }
        for tenant in &mut self.global.tenants {
            let owner = Owner::Tenant(tenant.plan.name.clone());
            let mut settings = std::mem::take(&mut tenant.settings);
            for set in self.overrides.iter().filter(|set| set.owner == owner) {
                apply_override(TENANT, set, tenant, &mut settings, findings);
            }
            tenant.settings = settings;
        }
    }

    fn pool(&mut self, block: &Entry, findings: &mut Findings) {
        if block.key.is_empty() || block.key.contains(char::is_control) {
            findings.error(block.key_place, "a pool's name may have only visible characters");
        }
        let Some(entries) = entries(block, findings) else { return };
        let mut draft = PoolDraft::new(&block.key);
        let mut settings = apply(POOL, entries, &mut draft, findings);
        let owner = Owner::Pool(block.key.clone());
        for set in self.overrides.iter().filter(|set| set.owner == owner) {
            apply_override(POOL, set, &mut draft, &mut settings, findings);
        }
        if let Some(list) = draft.take_list(self.source.lists()) {
            self.attachments.lists.insert(&block.key, list);
        }
        let rules = Rules { block, entries, draft: &draft, settings: &settings };
        rules.check(findings);
        let (source, attachments) = (self.source, &mut self.attachments);
        let logins = Reader { rules: &rules, source, attachments, findings }.logins();
        let listen_spot = rules.spot_of("listen");
        let written = settings.iter().any(|setting| setting.name == "item_size_max");
        let item_size_spot = written.then(|| rules.spot_of("item_size_max"));
        let connections_spot = rules.spot_of("server_connections_max");
        let access_log_spot = rules.spot_of("access_log");
        self.pools.push(Pool {
            draft,
            logins,
            settings,
            listen_spot,
            item_size_spot,
            connections_spot,
            access_log_spot,
        });
    }

    /// Warns of overrides whose pool a reload has removed; they are dropped with it.
    fn check_overrides(&self, findings: &mut Findings) {
        for set in self.overrides.iter().filter(|set| !self.holds(set)) {
            let owner = match &set.owner {
                Owner::Tenant(name) => format!("tenant is called `{name}`"),
                Owner::Pool(name) => format!("pool is called `{name}`"),
                Owner::Server(name) => format!("server is called `{name}`"),
                Owner::Proxy => continue,
            };
            let message = format!("no {owner} any more: its `set` value is dropped");
            findings.warning(Spot::Set(set.to_string()), message);
        }
    }

    /// Returns whether the target of an override exists.
    fn holds(&self, set: &Override) -> bool {
        match &set.owner {
            Owner::Proxy => true,
            Owner::Pool(name) => self.pools.iter().any(|pool| pool.draft.plan.name == *name),
            Owner::Tenant(name) => self.global.tenants.iter().any(|one| one.plan.name == *name),
            Owner::Server(_) => self.pools.iter().any(|pool| {
                let mut servers = pool.draft.servers.iter().map(|server| server.line.plan());
                servers.any(|server| set.state_of(&pool.draft.plan, &server).is_some())
            }),
        }
    }

    /// Checks that the largest value fits into one worker's share of memory.
    fn check_memory(&self, findings: &mut Findings) {
        let (all, workers) = (self.global.memory_max, self.workers());
        for pool in &self.pools {
            let part = all / workers;
            let size = pool.draft.item_size_max(part);
            if size <= part {
                continue;
            }
            let [size, part, all] = [size, part, all].map(|bytes| size_word(bytes as u64));
            let spot = pool.item_size_spot.as_ref().unwrap_or(&self.memory_max_spot);
            let message = match workers {
                1 => format!("item_size_max: {size} is more than `memory_max`, {all}"),
                _ => format!(
                    "item_size_max: {size} is more than the part of `memory_max` that each worker \
                     has: {all} / {workers} = {part}"
                ),
            };
            findings.error(spot.clone(), message);
        }
    }

    fn check_server_connections(&self, findings: &mut Findings) {
        let workers = self.workers();
        for pool in &self.pools {
            if pool.draft.server_connections_max.is_some_and(|most| most < workers) {
                let message = format!(
                    "server_connections_max: each of the {workers} workers needs a link to each \
                     server; allow {workers}, or run fewer workers"
                );
                findings.error(pool.connections_spot.clone(), message);
            }
        }
    }

    /// Checks that there is a file for the lines of pools with an access log.
    fn check_access_log(&self, findings: &mut Findings) {
        for pool in &self.pools {
            let logs = pool.draft.plan.access_one_in > 0;
            if logs && self.global.process.access_log.is_none() {
                let message = "access_log: it needs `access_log_file: /path/of/file` under \
                               `global:`, where the lines go";
                findings.error(pool.access_log_spot.clone(), message);
            }
        }
    }

    /// Checks that no two listeners use the same address.
    fn check_addresses(&self, findings: &mut Findings) {
        let mut claims: HashMap<String, String> = HashMap::new();
        if let Some(claim) = self.global.process.stats.as_ref().and_then(Address::claim) {
            claims.insert(claim, "the `stats` port".to_string());
        }
        if let Admin::At(path) = &self.global.process.admin {
            claims.insert(path.display().to_string(), "the `admin` socket".to_string());
        }
        let http = self.global.process.http.as_ref();
        let http = http.map(|address| (address, &self.http_spot, "the `http` server".to_string()));
        let pools = self.pools.iter().filter_map(|pool| {
            let address = pool.draft.listen.as_ref()?;
            Some((address, &pool.listen_spot, format!("pool `{}`", pool.draft.plan.name)))
        });
        for (address, spot, name) in http.into_iter().chain(pools) {
            let Some(claim) = address.claim() else { continue };
            match claims.get(&claim) {
                Some(earlier) => {
                    let message = format!("{earlier} listens on {address} already");
                    findings.error(spot.clone(), message);
                }
                None => drop(claims.insert(claim, name)),
            }
        }
    }

    fn check_tenants(&self, findings: &mut Findings) {
        let pools = self.pools.iter();
        let members =
            pools.map(|Pool { draft, logins, .. }| Member { draft, users: logins.users.as_ref() });
        let members: Vec<Member<'_>> = members.collect();
        let most = Most {
            clients: self.global.clients_max,
            private_links: self.global.private_max,
            memory: self.global.memory_max as u64,
        };
        tenancy::check(&self.global.tenants, &members, &most, findings);
    }

    fn workers(&self) -> usize {
        self.global.process.worker_count()
    }

    /// Builds the result. Call it only for a file without an error.
    fn config(self, text: &str) -> Config {
        let workers = self.workers();
        let drafts = || self.pools.iter().map(|pool| &pool.draft);
        Config {
            plan: self.plan(workers),
            listeners: drafts().enumerate().map(|(at, draft)| listener(at, draft)).collect(),
            upstreams: drafts().map(upstream).collect(),
            text: text.to_string(),
            overrides: self.overrides.iter().filter(|set| self.holds(set)).cloned().collect(),
            blocks: self.blocks(),
            process: self.global.process,
            attachments: self.attachments,
        }
    }

    fn plan(&self, workers: usize) -> Plan {
        let memory = self.global.memory_max / workers;
        let tenants = &self.global.tenants;
        let of_pool = |pool: &Pool| PoolPlan {
            tenant: tenancy::of_pool(tenants, &pool.draft),
            servers: self.servers(pool),
            ..plan(pool, workers, memory)
        };
        let mut whole = Plan::new(self.pools.iter().map(of_pool).collect());
        whole.tenants = tenancy::plans(tenants);
        whole.removed_users = self.global.removed_users;
        whole.number();
        whole.memory_max = self.global.memory_max;
        whole.private_max = self.global.private_max;
        whole.clients_max = self.global.clients_max.unwrap_or(usize::MAX);
        whole
    }

    /// Returns the servers of a pool, in the states that they have by hand.
    fn servers(&self, pool: &Pool) -> Vec<ServerPlan> {
        let state = |server: &ServerPlan| {
            self.overrides.iter().find_map(|set| set.state_of(&pool.draft.plan, server))
        };
        let plans = pool.draft.servers.iter().map(|server| server.line.plan());
        let with_state = |plan| ServerPlan { admin: state(&plan).unwrap_or_default(), ..plan };
        plans.map(with_state).collect()
    }

    /// Returns the global block, then the pools, then the tenants.
    fn blocks(&self) -> Vec<Block> {
        let global = Block { owner: Owner::Proxy, settings: self.global_settings.clone() };
        let pools = self.pools.iter().map(|pool| Block {
            owner: Owner::Pool(pool.draft.plan.name.clone()),
            settings: pool.settings.clone(),
        });
        let tenants = self.global.tenants.iter().map(|tenant| Block {
            owner: Owner::Tenant(tenant.plan.name.clone()),
            settings: tenant.settings.clone(),
        });
        std::iter::once(global).chain(pools).chain(tenants).collect()
    }
}

const MEMORY_MAX: &str = "memory_max";

/// Returns whether an entry is the block of settings. A pool of a `nutcracker.yml` may also be
/// called `global`, but a pool has `listen:`.
fn is_global(entry: &Entry) -> bool {
    let listens = |entries: &[Entry]| entries.iter().any(|inner| inner.key == "listen");
    entry.key == "global" && !matches!(&entry.value.shape, Shape::Map(inner) if listens(inner))
}

/// Returns whether what is under an entry are pools and not directives, as in some forks.
fn has_pools(entry: &Entry) -> bool {
    let has = |entries: &[Entry], name: &str| entries.iter().any(|inner| inner.key == name);
    let is_pool = |inner: &Entry| match &inner.value.shape {
        Shape::Map(directives) => has(directives, "listen") || has(directives, "servers"),
        _ => false,
    };
    match &entry.value.shape {
        Shape::Map(inner) => !inner.is_empty() && inner.iter().all(is_pool),
        _ => false,
    }
}

fn entries<'e>(block: &'e Entry, findings: &mut Findings) -> Option<&'e [Entry]> {
    match &block.value.shape {
        Shape::Map(entries) => Some(entries),
        _ => {
            let message = format!("`{}` has no directives under it", block.key);
            let fault = Fault::new(message).help(foreign::of_top(&block.key));
            findings.fault(block.key_place, fault);
            None
        }
    }
}

/// `memory`: the bytes of buffers that each worker may hold.
fn plan(pool: &Pool, workers: usize, memory: usize) -> PoolPlan {
    let draft = &pool.draft;
    let plan = draft.plan.clone();
    let quickack = draft.quickack.unwrap_or(QuickAck::Partial);
    PoolPlan {
        protocol: draft.protocol(),
        timeouts: timeouts(draft, plan.timeouts),
        on_failure: draft.on_failure.or(draft.auto_eject.map(eject)).unwrap_or(OnFailure::FailFast),
        // The largest number for each worker that keeps all workers together below the cap.
        server_connections: match draft.server_connections_max {
            Some(most) => plan.server_connections.min(most / workers),
            None => plan.server_connections,
        },
        // What is left of the cap, for the classes of requests that have links of their own.
        class_links: match draft.server_connections_max {
            Some(most) => (most / workers).saturating_sub(plan.server_connections),
            None => plan.class_links,
        }
        .min(plan.class_links),
        untried_max: (plan.untried_max / workers).max(1),
        client_connections: match draft.client_connections {
            0 => usize::MAX,
            count => count,
        },
        max_ejected: Some(draft.max_ejected.of(draft.servers.len())),
        users: pool.logins.users.clone(),
        server_login: pool.logins.server_login.clone(),
        databases: if draft.speaks_redis() { draft.databases() } else { 1 },
        database: if draft.speaks_redis() { draft.redis_db } else { 0 },
        allow: draft.allowed(),
        extras: draft.commands.iter().map(|command| command.extra.clone()).collect(),
        item_size_max: draft.item_size_max(memory),
        quickack,
        server_quickack: draft.server_quickack.unwrap_or(quickack),
        ..plan
    }
}

/// The narrower setting wins: `timeout_reply`, then `timeout`, then the default. `timeout` says
/// nothing about slow requests, but they may take as long as others.
fn timeouts(draft: &PoolDraft, defaults: Timeouts) -> Timeouts {
    let all = draft.timeout.filter(|us| *us > 0);
    let pick = |own: Option<u64>, default: u64| own.or(all).unwrap_or(default);
    let reply = pick(draft.timeout_reply, defaults.reply);
    Timeouts {
        connect: pick(draft.timeout_connect, defaults.connect),
        queue: pick(draft.timeout_queue, defaults.queue),
        reply,
        slow: draft.timeout_slow.unwrap_or_else(|| Timeouts::slow_default(reply)),
        ..defaults
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
        proxy_protocol: draft.proxy_protocol.clone(),
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
        // Keepalive also detects a black-holed server, so links always have it.
        tcp: TcpOptions { nodelay: draft.tcp_nodelay, keepalive: true },
        required: draft.required,
        list: draft.list.as_ref().map(|(source, _)| list::Listed {
            source: source.clone(),
            applies: draft.applies_lists,
        }),
    }
}

/// memcached's own default.
const EMBEDDED_MEMORY_DEFAULT: usize = 64 << 20;
