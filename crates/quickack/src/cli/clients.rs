//! `quickack clients`: its options, in the words of the admin socket.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::ask::Proxy;
use super::flag;

#[derive(Args)]
pub struct ClientsArguments {
    #[command(flatten)]
    proxy: Proxy,
    /// `kill`: close the clients with these numbers, or those that match.
    #[arg(value_name = "kill [ID]")]
    words: Vec<String>,
    /// Only clients of this pool.
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Only clients from there: `192.0.2.1`, `192.0.2.1:4711`, or `unix`.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Only clients that have logged in as this user.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only clients of this tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// The largest first.
    #[arg(long, value_enum)]
    sort: Option<Sort>,
    /// At most so many; without an order, the oldest.
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Those with most requests and bytes in the last seconds.
    #[arg(long)]
    busiest: bool,
    /// The addresses of those that send requests in pieces.
    #[arg(long, conflicts_with = "busiest")]
    in_pieces: bool,
    /// Print one object, for programs.
    #[arg(long)]
    json: bool,
}

/// What clients are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Requests,
    Bytes,
    Idle,
    Age,
    /// Bytes of answers that wait for the client to read them.
    Held,
}

impl ClientsArguments {
    pub fn ask(&self) -> ExitCode {
        let sort =
            self.sort.and_then(|sort| Some(sort.to_possible_value()?.get_name().to_string()));
        let mut words = self.words.clone();
        for (name, value) in [
            ("--pool", self.pool.clone()),
            ("--address", self.address.clone()),
            ("--user", self.user.clone()),
            ("--tenant", self.tenant.clone()),
            ("--sort", sort),
            ("--limit", self.limit.map(|limit| limit.to_string())),
        ] {
            words.extend(value.into_iter().flat_map(|value| [name.to_string(), value]));
        }
        words.push(flag(self.busiest, "--busiest"));
        words.push(flag(self.in_pieces, "--in-pieces"));
        words.push(flag(self.json, "--json"));
        self.proxy.ask("clients", &words)
    }
}
