//! A question that the master asks all workers, and the rows that they answer with.
//!
//! ```text
//!   master ── Query 7 ──▶ worker 0 ── Rows 7 … Rows 7 (last) ──▶ ┐
//!          ── Query 7 ──▶ worker 1 ── Rows 7 (last) ───────────▶ ┼─▶ gathered, or named as missing
//! ```
//!
//! A question and each message of rows fit the channel. A worker answers a few clients a turn, and
//! no more than [`ANSWER_LEN_MAX`] in all; it says how many rows that has left out.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use proto::Told;
use serde::{Deserialize, Serialize};

/// What all workers are asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Query {
    /// The clients that match, or the first of them in an order.
    List { filter: Filter, best: Option<Best> },
    /// Those that did most in the last seconds, and the addresses of those that send in pieces.
    Busiest { limit: usize },
    /// The addresses of clients that send requests in pieces.
    InPieces {},
    /// Close the clients that match, and say who they were.
    Kill { filter: Filter },
    /// End the waits of the clients that match and wait at a server, and say who they were.
    Unblock { filter: Filter, with_error: bool },
}

/// The clients that are meant: those to which all of it applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// One of these, if there are any.
    pub ids: Vec<u64>,
    pub pool: Option<String>,
    pub user: Option<String>,
    pub tenant: Option<String>,
    pub address: Option<Address>,
    /// What a client asks has more to it.
    pub asked: Option<Asked>,
}

/// The part of a filter that only clients give. A client that has no tenant means only those that
/// have none either.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its number. It is not closed with the others before it has its answer.
    pub asker: u64,
    /// It does not mean itself.
    pub not_own: bool,
    /// The two ends of the connection, as the system has them.
    pub from: Option<String>,
    pub to: Option<String>,
    pub age_min_us: u64,
}

/// Where clients come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    Host(IpAddr),
    Port(SocketAddr),
    /// A unix socket, which says no more.
    Unix,
}

/// The first rows in each of some orders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Best {
    pub by: Vec<Order>,
    pub limit: usize,
}

/// An order of clients; the largest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Requests,
    Bytes,
    Idle,
    Age,
    Held,
    /// The same of the last seconds.
    RecentRequests,
    RecentBytes,
}

/// A client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRow {
    /// Its number, which no other client of this proxy has or had.
    pub id: u64,
    pub worker: usize,
    pub pool: String,
    pub address: String,
    /// The address that it has connected to.
    pub listener: String,
    pub user: Option<String>,
    pub tenant: Option<String>,
    /// What it calls itself, and its library.
    pub name: String,
    pub library: String,
    pub library_version: String,
    pub protocol: String,
    pub protocol_version: u8,
    pub database: u32,
    pub state: String,
    /// The class of the links that its requests take.
    pub class: String,
    pub age_us: u64,
    pub idle_us: u64,
    pub requests: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Requests that wait for an answer, and bytes of answers that wait for it.
    pub owed: u64,
    pub held_bytes: u64,
    /// Bytes that came of it and are not read.
    pub input_bytes: u64,
    /// Requests of its transaction, if it is in one.
    pub queued: Option<u32>,
    /// Channels, patterns and shard channels that it listens to.
    pub topics: [u32; 3],
    /// Its flags in its protocol's way, and the descriptor of its connection.
    pub flags: String,
    pub descriptor: i32,
    /// The length of the last seconds, and what it did in them; 0 unless that was asked for.
    pub recent_us: u64,
    pub recent_requests: u64,
    pub recent_bytes: u64,
}

/// An address from which requests come in pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InPiecesRow {
    pub address: IpAddr,
    /// How often the rest of a request came after an ACK that was sent at once. It may be too high
    /// by `over`, which others had whose place the address took.
    pub count: u64,
    pub over: u64,
    /// How often it came later than 5 ms: the client, or its network, took long in any case.
    pub late: u64,
    /// How late the rest came: the sum and the longest.
    pub late_us: u64,
    pub latest_us: u64,
    /// How long ago it was the last time.
    pub ago_us: u64,
}

impl Query {
    /// The orders in which it wants the first rows only.
    pub fn best(&self) -> Option<Best> {
        match self {
            Query::List { best, .. } => best.clone(),
            Query::Busiest { limit } => {
                let by = vec![Order::RecentRequests, Order::RecentBytes];
                Some(Best { by, limit: *limit })
            }
            Query::InPieces {} | Query::Kill { .. } | Query::Unblock { .. } => None,
        }
    }

    /// The clients that are meant, where not all are.
    pub fn filter(&self) -> Option<&Filter> {
        match self {
            Query::List { filter, .. } | Query::Kill { filter } | Query::Unblock { filter, .. } => {
                Some(filter)
            }
            Query::Busiest { .. } | Query::InPieces {} => None,
        }
    }

    pub fn is_kill(&self) -> bool {
        matches!(self, Query::Kill { .. })
    }

    /// Whether it asks for what was done in the last seconds.
    pub fn is_recent(&self) -> bool {
        let recent = [Order::RecentRequests, Order::RecentBytes];
        self.best().is_some_and(|best| best.by.iter().any(|order| recent.contains(order)))
    }
}

impl Filter {
    /// Whether it means every client.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }
}

impl Address {
    /// Whether a client from there is meant. Behind a balancer no port is known.
    pub fn is(self, ip: Option<IpAddr>, port: Option<u16>) -> bool {
        match self {
            Address::Unix => ip.is_none(),
            Address::Host(host) => ip == Some(host),
            Address::Port(address) => (ip, port) == (Some(address.ip()), Some(address.port())),
        }
    }
}

impl Order {
    fn of(self, row: &ClientRow) -> u64 {
        match self {
            Order::Requests => row.requests,
            Order::Bytes => row.received_bytes + row.sent_bytes,
            Order::Idle => row.idle_us,
            Order::Age => row.age_us,
            Order::Held => row.held_bytes,
            Order::RecentRequests => row.recent_requests,
            Order::RecentBytes => row.recent_bytes,
        }
    }
}

impl Best {
    /// Keeps those rows that are among the first in one of the orders, in the first order.
    pub fn keep(&self, rows: &mut Vec<ClientRow>) {
        let mut kept = BTreeMap::new();
        for order in self.by.iter().rev() {
            rows.sort_by_key(|row| (std::cmp::Reverse(order.of(row)), row.id));
            kept.extend(rows.iter().take(self.limit).map(|row| (row.id, ())));
        }
        rows.retain(|row| kept.contains_key(&row.id));
    }
}

impl ClientRow {
    /// About how many bytes of memory and of a message it takes.
    pub fn size(&self) -> usize {
        let texts = [&self.pool, &self.address, &self.listener, &self.name, &self.library];
        let version = self.library_version.len();
        let texts = texts.map(String::len).iter().sum::<usize>();
        let names = [&self.user, &self.tenant].map(|name| name.as_ref().map_or(0, String::len));
        ROW_LEN + texts + version + names.iter().sum::<usize>()
    }
}

/// Reads what all workers have told together: its lines are in a sealed memfd.
pub fn told(
    lines: Option<OwnedFd>,
    (count, is_own): (u64, bool),
    why: Option<String>,
) -> Result<Told, String> {
    let lines = lines.map_or(Ok(Vec::new()), sys::memory::read_sealed);
    let lines = lines.map_err(|error| error.to_string())?;
    why.map_or(Ok(Told { lines, count, is_own }), Err)
}

/// Bytes of a row beside its texts.
const ROW_LEN: usize = 430;
/// Bytes of rows in a message: even if each character of the texts had to be escaped, it would fit.
pub const ROWS_LEN_MAX: usize = 8 * 1024;
/// Bytes of rows that a worker answers with: some forty thousand clients.
pub const ANSWER_LEN_MAX: usize = 16 << 20;
/// The most that `Best` may ask for.
pub const LIMIT_MAX: usize = 1_000;
/// Addresses in a message.
pub const ADDRESSES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u64, requests: u64, idle_us: u64) -> ClientRow {
        ClientRow { id, requests, idle_us, ..ClientRow::default() }
    }

    fn kept(by: &[Order], limit: usize) -> Vec<u64> {
        let mut rows = vec![row(1, 5, 9), row(2, 7, 1), row(3, 5, 2), row(4, 0, 8)];
        Best { by: by.to_vec(), limit }.keep(&mut rows);
        rows.iter().map(|row| row.id).collect()
    }

    #[test]
    fn the_first_in_each_order_are_kept_in_the_first_order() {
        assert_eq!(kept(&[Order::Requests], 2), [2, 1]);
        assert_eq!(kept(&[Order::Requests, Order::Idle], 2), [2, 1, 4]);
        assert_eq!(kept(&[Order::Idle], 9), [1, 4, 3, 2]);
        assert_eq!(kept(&[Order::Idle], 0), [0; 0]);
    }

    #[test]
    fn an_address_means_a_host_a_port_or_a_unix_socket() {
        let host: IpAddr = "192.0.2.1".parse().unwrap();
        let port = Address::Port("192.0.2.1:5".parse().unwrap());
        for (address, ip, number, expected) in [
            (Address::Host(host), Some(host), Some(5), true),
            (Address::Host(host), Some(host), None, true),
            (Address::Host(host), None, None, false),
            (port, Some(host), Some(5), true),
            (port, Some(host), Some(6), false),
            (port, Some(host), None, false),
            (Address::Unix, None, None, true),
            (Address::Unix, Some(host), Some(5), false),
        ] {
            assert_eq!(address.is(ip, number), expected, "{address:?} {ip:?} {number:?}");
        }
    }
}
