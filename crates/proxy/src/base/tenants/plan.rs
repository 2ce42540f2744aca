//! What the operator says about a tenant.

use super::rules::Rules;

/// A tenant. Its limits hold for all workers together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantPlan {
    /// The tenant's id in the metrics registry. A tenant with the same id in the next plan is the
    /// same tenant.
    pub id: u32,
    pub name: String,
    /// Its users, by name, in all pools.
    pub users: Vec<String>,
    /// Its part of what is shared, beside those of others.
    pub weight: u32,
    /// The most clients; `u64::MAX` is no limit, here and below.
    pub clients_max: u64,
    /// Requests in a second, bytes of requests, and bytes sent to clients.
    pub rates: [u64; 3],
    /// Bytes of requests, and of the answers that are expected to them, in flight at a time.
    pub inflight_max: u64,
    /// Links that serve one of its clients alone.
    pub private_links_max: u64,
    /// What becomes of a request above a limit.
    pub over: Over,
    /// What its requests may be, if they may not be everything.
    pub rules: Option<Rules>,
}

/// What becomes of a request above a limit of its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// It is read later.
    #[default]
    Delay,
    /// It is refused, with an error that names the tenant and the limit.
    Refuse,
}

/// What becomes of a client whose user another plan does not have any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovedUsers {
    /// It is closed at its next request boundary.
    #[default]
    Close,
    /// It stays until it closes.
    Keep,
}

pub use super::rules::Rules as TenantRules;

impl TenantPlan {
    /// Whether its requests are only counted, and judged by nothing but rates.
    pub(crate) fn counts_only(&self) -> bool {
        self.rules.is_none() && self.inflight_max == u64::MAX
    }

    /// Makes a tenant without limits and rules.
    pub fn new(name: &str) -> TenantPlan {
        TenantPlan {
            id: 0,
            name: name.to_string(),
            users: Vec::new(),
            weight: 1,
            clients_max: u64::MAX,
            rates: [u64::MAX; 3],
            inflight_max: u64::MAX,
            private_links_max: u64::MAX,
            over: Over::Delay,
            rules: None,
        }
    }
}
