//! The directives about subscriptions.

use proxy::plan::{OnSubscriptionLost, PubSub};

use super::directives::{Directive, Kind, Origin, Unwritten, row};
use super::draft::PoolDraft;

pub const PUBSUB: Directive<PoolDraft> = row(
    "pubsub",
    Origin::Native,
    Unwritten::Value("all"),
    Kind::Word(
        || vec!["all", "hashed"],
        |pool, word| {
            pool.plan.pubsub = match word {
                "all" => PubSub::All,
                "hashed" => PubSub::Hashed,
                _ => return None,
            };
            Some(())
        },
    ),
    "The servers at which the proxy subscribes for its clients. `all`: every server, so that a \
     message is heard wherever it is published. `hashed`: only the server that the channel \
     hashes to. Then patterns are refused unless it is the only server, and messages are lost \
     that scripts, keyspace notifications or direct publishers publish on another server. Both \
     modes send a PUBLISH to one server, by the hash of its channel.",
);

pub const ON_SUBSCRIPTION_LOST: Directive<PoolDraft> = row(
    "on_subscription_lost",
    Origin::Native,
    Unwritten::Value("close"),
    Kind::Word(
        || vec!["close", "keep"],
        |pool, word| {
            pool.plan.on_subscription_lost = match word {
                "close" => OnSubscriptionLost::Close,
                "keep" => OnSubscriptionLost::Keep,
                _ => return None,
            };
            Some(())
        },
    ),
    "What becomes of subscribers when the link of a subscription is lost, so that they may have \
     missed messages. `close`: their connections are closed, as a server that restarts would do. \
     `keep`: they stay, and the subscription is made again; it is logged and counted.",
);
