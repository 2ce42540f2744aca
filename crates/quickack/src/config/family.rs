//! Directives that only pools of one protocol have. A directive in the wrong kind of pool is
//! reported, since it would have no effect there.

use proto::Protocol;
use proxy::plan::{OnSubscriptionLost, PubSub};

use super::address::ServerAddress;
use super::draft::PoolDraft;
use super::findings::Findings;
use super::rules::Rules;

/// The name of Redis's and Valkey's protocol.
pub const REDIS: &str = "redis";

/// Directives of Redis pools.
const OF_REDIS: &[&str] = &["redis_auth", "multi_key", "databases", "commands"];

/// Directives of other pools only, each with its reason.
const NOT_OF_REDIS: &[(&str, &str)] = &[
    ("merge_gets", "requests go to their servers as they are"),
    ("partial", "an MGET is answered whole or with an error"),
    ("memory", "there is no embedded cache"),
];

impl PoolDraft {
    /// Returns the protocol of the pool's clients and servers.
    pub fn protocol(&self) -> &'static dyn Protocol {
        let of_redis = || proto::protocol(REDIS).filter(|_| self.redis == Some(true));
        self.protocol.or_else(of_redis).unwrap_or(proto::PROTOCOLS[0])
    }

    pub fn speaks_redis(&self) -> bool {
        self.protocol().name() == REDIS
    }
}

impl Rules<'_> {
    pub fn check_family(&self, findings: &mut Findings) {
        self.check_said_twice(findings);
        match self.draft.speaks_redis() {
            true => self.check_redis(findings),
            false => self.check_others(findings),
        }
        self.check_allowed(findings);
    }

    /// `redis:` is twemproxy's name for the choice that `protocol:` makes.
    fn check_said_twice(&self, findings: &mut Findings) {
        let (Some(redis), Some(protocol)) = (self.draft.redis, self.draft.protocol) else { return };
        if redis != (protocol.name() == REDIS) {
            let message = "redis: it contradicts `protocol`; keep one of them";
            findings.error(self.spot_of("redis"), message);
        }
    }

    fn check_redis(&self, findings: &mut Findings) {
        for (name, why) in NOT_OF_REDIS.iter().filter(|(name, _)| self.is_written(name)) {
            let message = format!("{name}: this pool speaks Redis, where {why}; remove it");
            findings.error(self.spot_of(name), message);
        }
        let embedded = |address: &ServerAddress| matches!(address, ServerAddress::Embedded { .. });
        for server in self.draft.servers.iter().filter(|it| embedded(&it.line.address)) {
            let message = "servers: the embedded cache speaks memcached; a pool that speaks Redis \
                           needs a server of its own";
            findings.error(server.spot.clone(), message);
        }
        self.check_logins(findings);
        self.check_databases(findings);
        self.check_commands(findings);
    }

    fn check_logins(&self, findings: &mut Findings) {
        let draft = self.draft;
        let twice = draft.users.is_some() && draft.server_login.is_some();
        if draft.redis_auth.is_some() && twice {
            let message = "redis_auth: without effect, because `users` replaces it for clients \
                           and `server_login` for servers";
            findings.warning(self.spot_of("redis_auth"), message);
        }
    }

    fn check_databases(&self, findings: &mut Findings) {
        let Some(databases) = self.draft.databases.filter(|all| self.draft.redis_db >= *all) else {
            return;
        };
        let message = format!(
            "redis_db: {} is not one of `databases`, which are 0 to {}",
            self.draft.redis_db,
            databases - 1
        );
        findings.error(self.spot_of("redis_db"), message);
    }

    fn check_commands(&self, findings: &mut Findings) {
        let known = self.draft.protocol().commands();
        for command in &self.draft.commands {
            let name = &command.extra.name;
            if known.iter().any(|row| row.name == name) {
                let message = format!(
                    "commands: quickack knows `{name}`, and its handling cannot be changed; remove \
                     it"
                );
                findings.error(command.spot.clone(), message);
            }
        }
    }

    fn check_others(&self, findings: &mut Findings) {
        if self.draft.redis == Some(true) && self.draft.protocol.is_none() {
            findings.error(self.spot_of("redis"), "redis: this build does not speak Redis");
            return;
        }
        let plan = &self.draft.plan;
        let links = plan.private.then_some(&"links");
        let pubsub = (plan.pubsub != PubSub::All).then_some(&"pubsub");
        let lost = plan.on_subscription_lost != OnSubscriptionLost::Close;
        let lost = lost.then_some(&"on_subscription_lost");
        let chosen = links.into_iter().chain(pubsub).chain(lost);
        for name in OF_REDIS.iter().filter(|name| self.is_written(name)).chain(chosen) {
            let message = format!(
                "{name}: this pool speaks memcached; write `redis: true` if its servers speak \
                 Redis, or remove `{name}`"
            );
            findings.error(self.spot_of(name), message);
        }
        if self.draft.redis_db > 0 {
            let message = "redis_db: without effect, because this pool speaks memcached";
            findings.warning(self.spot_of("redis_db"), message);
        }
    }
}
