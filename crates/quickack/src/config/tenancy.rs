//! Who belongs to which tenant, and where limits of tenants, pools and the proxy contradict each
//! other.

use std::collections::HashMap;
use std::rc::Rc;

use proto::{Class, PROTOCOLS};
use proxy::tenants::plan::{TenantPlan, TenantRules};
use proxy::users::Users;

use super::draft::PoolDraft;
use super::findings::Findings;
use super::report::nearest;
use super::tenants::TenantDraft;
use super::value::{Fault, size_word};

/// A pool, as far as tenants are concerned.
pub struct Member<'c> {
    pub draft: &'c PoolDraft,
    pub users: Option<&'c Rc<Users>>,
}

/// Returns the plan of each tenant, in their order.
pub fn plans(tenants: &[TenantDraft]) -> Vec<Rc<TenantPlan>> {
    let plan = |draft: &TenantDraft| {
        let lists = (draft.allow.clone(), draft.deny.clone());
        let (databases, prefix) = (draft.databases.clone(), draft.key_prefix.clone().into_bytes());
        let rules = TenantRules::new(databases, lists, prefix);
        let has_rules = rules != TenantRules::default();
        Rc::new(TenantPlan { rules: has_rules.then_some(rules), ..draft.plan.clone() })
    };
    tenants.iter().map(plan).collect()
}

/// Returns the index of a pool's tenant: that of its listener, or else its own.
pub fn of_pool(tenants: &[TenantDraft], pool: &PoolDraft) -> Option<usize> {
    let listens = |tenant: &TenantDraft| {
        pool.listen.as_ref().is_some_and(|address| tenant.listeners.contains(address))
    };
    let of_listener = tenants.iter().position(listens);
    of_listener.or_else(|| tenants.iter().position(|one| one.pools.contains(&pool.plan.name)))
}

/// The limits of the proxy that those of all tenants are within.
pub struct Most {
    pub clients: Option<usize>,
    pub private_links: u64,
    pub memory: u64,
}

/// Checks all tenants against each other, the pools, and the limits of the proxy.
pub fn check(tenants: &[TenantDraft], pools: &[Member<'_>], most: &Most, findings: &mut Findings) {
    let mut check = Check { pools, claims: HashMap::new(), findings };
    for tenant in tenants {
        check.users(tenant);
        check.listeners(tenant);
        check.names_of_pools(tenant);
        check.commands(tenant);
        check.limits(tenant, tenants, most);
    }
}

struct Check<'c> {
    pools: &'c [Member<'c>],
    /// The tenant of each user, listener and pool so far.
    claims: HashMap<(&'static str, String), String>,
    findings: &'c mut Findings,
}

impl Check<'_> {
    fn users(&mut self, tenant: &TenantDraft) {
        for user in &tenant.plan.users {
            self.claim(tenant, "user", "users", user);
            let knows = |pool: &Member<'_>| {
                pool.users.is_some_and(|users| users.find(user.as_bytes()).is_some())
            };
            if !self.pools.iter().any(knows) {
                let message = format!("users: no pool has a user `{user}`");
                let names = self.pools.iter().filter_map(|pool| pool.users);
                let near = nearest(user, names.flat_map(|users| users.names()));
                let hint = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                self.findings.warning(tenant.spot_of("users"), message + &hint);
            }
        }
    }

    fn listeners(&mut self, tenant: &TenantDraft) {
        for address in &tenant.listeners {
            self.claim(tenant, "listener", "listeners", &address.to_string());
            if !self.pools.iter().any(|pool| pool.draft.listen.as_ref() == Some(address)) {
                let message = format!("listeners: no pool listens on {address}");
                self.findings.error(tenant.spot_of("listeners"), message);
            }
        }
    }

    fn names_of_pools(&mut self, tenant: &TenantDraft) {
        for name in &tenant.pools {
            self.claim(tenant, "pool", "pools", name);
            let names = || self.pools.iter().map(|pool| pool.draft.plan.name.as_str());
            if !names().any(|pool| pool == name) {
                let fault = Fault::new(format!("pools: no pool is called `{name}`"));
                let fault = fault.suggest(nearest(name, names()));
                self.findings.fault(tenant.spot_of("pools"), fault);
            }
        }
    }

    fn claim(&mut self, tenant: &TenantDraft, kind: &'static str, directive: &str, name: &str) {
        let own = tenant.plan.name.clone();
        if let Some(earlier) = self.claims.insert((kind, name.to_string()), own) {
            let message = format!("{directive}: {kind} `{name}` belongs to tenant `{earlier}`");
            self.findings.error(tenant.spot_of(directive), message);
        }
    }

    fn commands(&mut self, tenant: &TenantDraft) {
        for (directive, list) in [("allow", &tenant.allow), ("deny", &tenant.deny)] {
            for word in list {
                if !self.is_command(word) {
                    let fault = Fault::new(format!(
                        "{directive}: `{word}` is neither a command nor a category"
                    ));
                    let names = PROTOCOLS.iter().flat_map(|protocol| protocol.commands());
                    let fault = fault.suggest(nearest(word, names.map(|row| row.name)));
                    self.findings.fault(tenant.spot_of(directive), fault);
                }
            }
        }
        for word in &tenant.allow {
            if tenant.deny.contains(word) {
                let message = format!("allow: without effect for `{word}`, which `deny` names");
                self.findings.warning(tenant.spot_of("allow"), message);
            } else if let Some(denied) = denied_by(tenant, word) {
                let message = format!("allow: without effect for `{word}`: `deny` has `{denied}`");
                self.findings.warning(tenant.spot_of("allow"), message);
            }
            self.check_gated(tenant, word);
        }
        let lists = (tenant.allow.clone(), tenant.deny.clone());
        if TenantRules::new(Vec::new(), lists, Vec::new()).allows_nothing() {
            let message =
                format!("tenant `{}` may run no command but those of a login", tenant.plan.name);
            self.findings.warning(tenant.spot_of("deny"), message);
        }
    }

    /// Warns of a command that no pool of the tenant allows.
    fn check_gated(&mut self, tenant: &TenantDraft, word: &str) {
        let is_gated = |class: Class| matches!(class, Class::Broadcast { gated: true, .. });
        let mut rows = PROTOCOLS.iter().flat_map(|protocol| protocol.commands());
        let Some(row) = rows.find(|row| row.name == word && is_gated(row.class)) else { return };
        let may = |pool: &Member<'_>| pool.draft.allowed().iter().any(|name| name == row.name);
        if !self.pools.iter().any(may) {
            let message = format!("allow: `{word}` is refused all the same: no pool allows it");
            self.findings.warning(tenant.spot_of("allow"), message);
        }
    }

    fn is_command(&self, word: &str) -> bool {
        let mut protocols = PROTOCOLS.iter();
        if word == "@all" {
            return true;
        }
        let is_known = protocols.any(|protocol| {
            let rows = protocol.commands().iter().enumerate();
            let mut rows = rows.map(|(at, row)| (at, row.name.to_ascii_lowercase()));
            rows.any(|(at, name)| {
                let container = name.split_once('|').map(|(container, _)| container);
                let is_named = name == word || container == Some(word);
                is_named || word.starts_with('@') && protocol.categories(at as u16).contains(&word)
            })
        });
        let mut extras = self.pools.iter().flat_map(|pool| &pool.draft.commands);
        is_known || extras.any(|command| command.extra.name == word)
    }

    fn limits(&mut self, tenant: &TenantDraft, all: &[TenantDraft], proxy: &Most) {
        let most = tenant.plan.clients_max;
        if let Some(all) = proxy.clients.filter(|all| most != u64::MAX && most > *all as u64) {
            let message =
                format!("clients_max: {most} are never reached: all tenants have {all} together");
            self.findings.warning(tenant.spot_of("clients_max"), message);
        }
        let at = all.iter().position(|one| one.plan.name == tenant.plan.name);
        let own = self.pools.iter().filter(|pool| of_pool(all, pool.draft) == at);
        let own: Vec<&PoolDraft> = own.map(|pool| pool.draft).collect();
        let has_user = |pool: &Member<'_>| {
            let mut users = tenant.plan.users.iter();
            pool.users.is_some_and(|all| users.any(|user| all.find(user.as_bytes()).is_some()))
        };
        let comes_by = |pool: &&Member<'_>| of_pool(all, pool.draft) == at || has_user(pool);
        let rooms = self.pools.iter().filter(comes_by).map(|pool| pool.draft.client_connections);
        let sum = rooms.clone().fold(0, usize::saturating_add) as u64;
        if most != u64::MAX && most > sum && rooms.clone().all(|room| room > 0) && sum > 0 {
            let message =
                format!("clients_max: {most} are never reached: its pools allow {sum} together");
            self.findings.warning(tenant.spot_of("clients_max"), message);
        }
        let links = tenant.plan.private_links_max;
        if links != u64::MAX && links > proxy.private_links {
            let message = format!(
                "private_links_max: {links} are never reached: `private_connections_max` is {}",
                proxy.private_links
            );
            self.findings.warning(tenant.spot_of("private_links_max"), message);
        }
        let inflight = tenant.plan.inflight_max;
        if inflight != u64::MAX && inflight > proxy.memory {
            let message = format!(
                "inflight_max: {} are never reached: `memory_max` is {}",
                size_word(inflight),
                size_word(proxy.memory)
            );
            self.findings.warning(tenant.spot_of("inflight_max"), message);
        }
        if own.is_empty() && tenant.plan.users.is_empty() {
            let message = format!(
                "tenant `{}` has no clients: it has no users, and no listener or pool",
                tenant.plan.name
            );
            self.findings.warning(tenant.spot_of(""), message);
        }
        self.databases(tenant, &own);
    }

    /// Checks that the databases are those of some pool, and that clients begin in one of them.
    fn databases(&mut self, tenant: &TenantDraft, own: &[&PoolDraft]) {
        let of_redis = || self.pools.iter().map(|pool| pool.draft).filter(|one| one.speaks_redis());
        let most = of_redis().map(PoolDraft::databases).max().unwrap_or(0);
        for (_, last) in &tenant.databases {
            if *last >= most {
                let message = format!(
                    "databases: {last} is in no pool: the most `databases` of a pool are {most}"
                );
                self.findings.error(tenant.spot_of("databases"), message);
            }
        }
        let has = |database: u32| {
            tenant.databases.iter().any(|(first, last)| (*first..=*last).contains(&database))
        };
        for pool in own.iter().filter(|one| one.speaks_redis() && !tenant.databases.is_empty()) {
            if !has(pool.redis_db) {
                let message = format!(
                    "databases: clients of pool `{}` begin in database {}, which the tenant may \
                     not use: they have to send SELECT first",
                    pool.plan.name, pool.redis_db
                );
                self.findings.warning(tenant.spot_of("databases"), message);
            }
        }
    }
}

/// Returns the category, or container, in `deny` that takes away everything which a word of `allow`
/// gives.
fn denied_by<'t>(tenant: &'t TenantDraft, word: &str) -> Option<&'t str> {
    let covers = |denied: &&String| {
        let mut meant = 0;
        let all = PROTOCOLS.iter().all(|protocol| {
            protocol.commands().iter().enumerate().all(|(at, row)| {
                let (name, categories) =
                    (row.name.to_ascii_lowercase(), protocol.categories(at as u16));
                let is_meant = TenantRules::means(word, &name, &categories);
                meant += u32::from(is_meant);
                !is_meant || TenantRules::means(denied, &name, &categories)
            })
        });
        all && meant > 0
    };
    tenant.deny.iter().find(covers).map(String::as_str)
}
