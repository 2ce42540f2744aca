//! The rules of one pool that involve more than one of its directives.

use std::collections::HashSet;

use proxy::limits;
use proxy::plan::{OnFailure, PubSub};
use shard::{Distribution, Hash};

use super::address::{Address, ServerAddress};
use super::draft::{PoolDraft, ServerDraft, Setting};
use super::file::{Entry, Shape};
use super::findings::Findings;
use super::foreign;
use super::list::ListSource;
use super::report::Spot;
use super::value::Fault;

/// A pool as read, with or without errors.
pub struct Rules<'r> {
    pub block: &'r Entry,
    pub entries: &'r [Entry],
    pub draft: &'r PoolDraft,
    /// The settings of the file and those set at run time over them.
    pub settings: &'r [Setting],
}

impl Rules<'_> {
    pub fn check(&self, findings: &mut Findings) {
        self.check_required(findings);
        self.check_family(findings);
        self.check_servers(findings);
        self.check_list(findings);
        self.check_item_size(findings);
        self.check_names(findings);
        self.check_failure(findings);
        self.check_pubsub(findings);
        self.check_proxy_protocol(findings);
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

    fn check_servers(&self, findings: &mut Findings) {
        let mut names = HashSet::new();
        for (at, server) in self.draft.servers.iter().enumerate() {
            let name = server.line.ring_name();
            if !names.insert(name) {
                let message = format!(
                    "another server of this pool is called `{name}`; keys are \
                                       placed by name, so give each its own name"
                );
                findings.error(server.spot.clone(), message);
                continue;
            }
            let address = &server.line.address;
            let before = &self.draft.servers[..at];
            let is_same = |other: &&ServerDraft| address.is_same(&other.line.address);
            let may_be = |other: &&ServerDraft| address.may_be_same(&other.line.address);
            let (other, end) = match before.iter().find(is_same) {
                Some(other) => (
                    Some(other),
                    "are one server by its address; requests for all servers are sent to it once",
                ),
                None => (
                    before.iter().find(may_be),
                    "may be one server, for their addresses may lead to the same one. If so, give \
                     it one spelling: requests for all servers are sent once to each address",
                ),
            };
            if let Some(other) = other {
                let message = format!("servers: `{}` and `{name}` {end}", other.line.ring_name());
                findings.warning(server.spot.clone(), message);
            }
        }
    }

    fn check_item_size(&self, findings: &mut Findings) {
        let most = limits::REDIS_ITEM_SIZE_MAX;
        let is_more = self.draft.item_size_max.is_some_and(|bytes| bytes > most);
        if self.draft.speaks_redis() && is_more {
            let message = "item_size_max: the servers of a Redis pool take arguments of up to 512m";
            findings.error(self.spot_of("item_size_max"), message);
        }
    }

    fn check_list(&self, findings: &mut Findings) {
        match &self.draft.list {
            Some((ListSource::Elasticache { .. }, spot)) if self.draft.speaks_redis() => {
                let message = "servers: only clusters of memcached have a configuration endpoint; \
                               this pool is of Redis";
                findings.error(spot.clone(), message);
            }
            None if self.draft.applies_lists => {
                let message = "discovery: without effect, because the servers of this pool are \
                               in the configuration";
                findings.warning(self.spot_of("discovery"), message);
            }
            _ => {}
        }
    }

    /// Some forks have a password behind the name. Here it would place the keys.
    fn check_names(&self, findings: &mut Findings) {
        for server in self.draft.servers.iter().filter(|_| self.draft.speaks_redis()) {
            let Some((_, end)) = server.line.name.as_deref().and_then(|it| it.rsplit_once(':'))
            else {
                continue;
            };
            if end.parse::<u16>().is_err() {
                let fault = Fault::new("servers: this name has a colon, as if for a password");
                let fault = fault.help(Some(foreign::NAMED_PASSWORD));
                findings.doubt(server.spot.clone(), fault);
            }
        }
    }

    fn check_failure(&self, findings: &mut Findings) {
        let wanted = self.draft.auto_eject.map(eject);
        if let (Some(wanted), Some(written)) = (wanted, self.draft.on_failure)
            && wanted != written
        {
            let message = "on_failure: it contradicts `auto_eject_hosts`; keep one of them";
            findings.error(self.spot_of("on_failure"), message);
        }
    }

    /// Where a channel has no server of its own, subscribers and publishers would not meet.
    fn check_pubsub(&self, findings: &mut Findings) {
        let plan = &self.draft.plan;
        if plan.pubsub == PubSub::Hashed && plan.distribution == Distribution::Random {
            let message = "pubsub: with `distribution: random` no channel has a server of its own; \
                           write `pubsub: all`";
            findings.error(self.spot_of("pubsub"), message);
        }
    }

    fn check_proxy_protocol(&self, findings: &mut Findings) {
        let path = matches!(self.draft.listen, Some(Address::Unix { .. }));
        if path && !self.draft.proxy_protocol.is_empty() {
            let message = "proxy_protocol: clients of a unix socket have no address that \
                           could be checked";
            findings.error(self.spot_of("proxy_protocol"), message);
        }
    }

    fn check_without_effect(&self, findings: &mut Findings) {
        let draft = self.draft;
        let lines = || draft.servers.iter().map(|server| &server.line);
        let embedded = lines().any(|line| matches!(line.address, ServerAddress::Embedded { .. }));
        if draft.memory.is_some() && !embedded && !draft.speaks_redis() {
            let message = "memory: without effect, because no server of this pool is `embedded`";
            findings.warning(self.spot_of("memory"), message);
        }
        if draft.timeout == Some(0) {
            let message = "timeout: 0 means no deadline in twemproxy; here the defaults of \
                           timeout_connect, timeout_queue and timeout_reply apply";
            findings.warning(self.spot_of("timeout"), message);
        }
        if draft.plan.hash == Hash::Crc32 && draft.plan.distribution == Distribution::Ketama {
            let message = "hash: crc32 gives only numbers below 32768, so one server of a \
                           ketama ring gets all keys (as in twemproxy); crc32a spreads them";
            findings.warning(self.spot_of("hash"), message);
        }
        if draft.plan.distribution == Distribution::Random && lines().any(|line| line.weight != 1) {
            let message = "distribution: random does not look at weights";
            findings.warning(self.spot_of("distribution"), message);
        }
    }

    /// Returns whether the directive is in the file or was set at run time.
    pub fn is_written(&self, name: &str) -> bool {
        self.settings.iter().any(|setting| setting.name == name)
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == name)
    }

    /// Returns the source of a directive's value: set at run time, or its place in the file.
    /// Returns the place of the pool's name if there is neither.
    pub fn spot_of(&self, name: &str) -> Spot {
        let set = self.settings.iter().find(|setting| setting.name == name);
        match set.and_then(|setting| setting.set.as_ref()) {
            Some(word) => Spot::Set(format!("{}.{name}={word}", self.block.key)),
            None => self.entry(name).map_or(self.block.key_place, |entry| entry.value.place).into(),
        }
    }
}

/// Translates `auto_eject_hosts` to the directive of our own.
pub fn eject(auto_eject: bool) -> OnFailure {
    if auto_eject { OnFailure::Eject } else { OnFailure::FailFast }
}
