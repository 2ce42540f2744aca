//! `quickack clients`: what is asked, how the answer is shown, and the log's line about clients
//! that an operator has closed.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use serde_json::json;

use super::admin_server::ConnectionId;
use super::inquiries::Inquirer;
use super::query::Gathered;
use super::{Master, say};
use crate::config::grouped;
use crate::ipc::Question;
use crate::ipc::query::{Address, Best, ClientRow, Filter, InPiecesRow, LIMIT_MAX, Order, Query};
use crate::log::Level;
use crate::stats::{duration, time};

/// Who has asked, and in which form the answer is wanted.
pub enum Asker {
    Admin {
        id: ConnectionId,
        as_json: bool,
    },
    Http,
    /// A client of the proxy.
    Client(Inquirer),
}

/// A request of the admin socket.
#[derive(Debug)]
struct ClientsRequest {
    query: Query,
    as_json: bool,
}

impl Master {
    /// `quickack clients`.
    pub(super) fn ask_for_clients(&mut self, id: ConnectionId, words: &[String], now: Instant) {
        let request = ClientsRequest::parse(words);
        let request =
            request.and_then(|request| self.check_names(&request.query).map(|()| request));
        match request {
            Ok(ClientsRequest { query, as_json }) => {
                self.begin_query(Asker::Admin { id, as_json }, query, now);
            }
            Err(why) => self.admin.refuse(id, &why),
        }
    }

    /// A wrong name would look like one that has no clients.
    fn check_names(&self, query: &Query) -> Result<(), String> {
        let (Query::List { filter, .. } | Query::Kill { filter }) = query else { return Ok(()) };
        let plan = &self.running.config.plan;
        let is_pool = |name: &String| plan.pools.iter().any(|pool| pool.name == *name);
        let is_tenant = |name: &String| plan.tenants.iter().any(|one| *one.name == **name);
        match (&filter.pool, &filter.tenant) {
            (Some(name), _) if !is_pool(name) => Err(format!("there is no pool '{name}'")),
            (_, Some(name)) if !is_tenant(name) => Err(format!("there is no tenant '{name}'")),
            _ => Ok(()),
        }
    }

    pub(super) fn refuse_query(&mut self, asker: &Asker, why: &str) {
        match asker {
            Asker::Admin { id, .. } => self.admin.refuse(*id, why),
            // It asks again.
            Asker::Http => {}
            Asker::Client(to) => self.refuse_inquiry(*to, why),
        }
    }

    /// Gives the answer to who has asked.
    pub(super) fn answer_query(&mut self, asker: Asker, query: &Query, gathered: Gathered) {
        if let Asker::Client(to) = asker {
            self.answer_inquiry(to, query, &gathered);
            if !query.is_kill() {
                return;
            }
        }
        let shown = Shown::new(query, gathered);
        if let Query::Kill { .. } = query {
            self.log_killed(query, &shown);
        }
        match asker {
            Asker::Client(_) => {}
            Asker::Http => self.answer_http(Question::Clients, &shown.json(query)),
            Asker::Admin { id, as_json } => {
                let is_none = query.is_kill() && shown.clients.is_empty();
                match (as_json, is_none && shown.missing.is_empty()) {
                    (_, true) => self.admin.refuse(id, "no client is like that"),
                    (true, _) => self.admin.answer(id, shown.json(query)),
                    (false, _) => self.admin.answer(id, shown.text(query)),
                }
                self.want_to_write(id);
            }
        }
    }

    fn log_killed(&mut self, query: &Query, shown: &Shown) {
        let count = shown.clients.len();
        if count == 0 {
            return;
        }
        let named: Vec<String> = shown.clients.iter().take(NAMED_MAX).map(who).collect();
        let others = match count - named.len() {
            0 => String::new(),
            others => format!(" and {others} others"),
        };
        let clients = if count == 1 { "client" } else { "clients" };
        let asked = query.filter().and_then(|filter| filter.asked.as_ref());
        let by = asked.map_or("`clients kill`".to_string(), |asked| {
            format!("CLIENT KILL of client {}", asked.asker)
        });
        let text = format!("{by} has closed {count} {clients}: {}{others}", named.join(", "));
        say(&mut self.log, Level::Notice, "clients_killed", &text);
    }
}

impl ClientsRequest {
    fn parse(words: &[String]) -> Result<ClientsRequest, String> {
        let mut rest = words.iter().map(String::as_str).peekable();
        let is_kill = rest.next_if_eq(&"kill").is_some();
        let mut filter = Filter::default();
        let (mut order, mut limit, mut form) = (None, None, None);
        let mut as_json = false;
        while let Some(word) = rest.next() {
            if let Some(id) = word.parse().ok().filter(|_| is_kill) {
                filter.ids.push(id);
                continue;
            }
            if matches!(word, "--json" | "--busiest" | "--in-pieces") {
                match word {
                    "--json" => as_json = true,
                    word => form = Some(word),
                }
                continue;
            }
            if !matches!(
                word,
                "--pool" | "--user" | "--tenant" | "--address" | "--sort" | "--limit"
            ) {
                return Err(format!("`clients` does not take `{word}`"));
            }
            let value = rest.next().ok_or_else(|| format!("`{word}` needs a value"))?;
            if value.len() > WORD_LEN_MAX {
                return Err(format!("the value of `{word}` is longer than {WORD_LEN_MAX} bytes"));
            }
            match word {
                "--pool" => filter.pool = Some(value.to_string()),
                "--user" => filter.user = Some(value.to_string()),
                "--tenant" => filter.tenant = Some(value.to_string()),
                "--address" => filter.address = Some(address(value)?),
                "--sort" => order = Some(self::order(value)?),
                _ => limit = Some(self::limit(value)?),
            }
        }
        if filter.ids.len() > IDS_MAX {
            return Err(format!("`clients kill` takes at most {IDS_MAX} numbers at once"));
        }
        let query = query(is_kill, filter, (order, limit, form))?;
        Ok(ClientsRequest { query, as_json })
    }
}

/// Puts together what was said.
fn query(
    is_kill: bool,
    filter: Filter,
    (order, limit, form): (Option<Order>, Option<usize>, Option<&str>),
) -> Result<Query, String> {
    let is_list = order.is_none() && limit.is_none() && form.is_none();
    match (is_kill, form) {
        (true, _) if filter.is_empty() => {
            Err("`clients kill` needs a number of `clients`, or --address, --pool, --user or \
                 --tenant"
                .to_string())
        }
        (true, _) if !is_list => Err("`clients kill` takes no order, limit or list".to_string()),
        (true, _) => Ok(Query::Kill { filter }),
        (false, Some(word)) if !filter.is_empty() || order.is_some() => {
            Err(format!("`{word}` takes only --limit and --json"))
        }
        (false, Some("--busiest")) => Ok(Query::Busiest { limit: limit.unwrap_or(BUSIEST) }),
        (false, Some(_)) => Ok(Query::InPieces {}),
        (false, None) => {
            let by = order.or(limit.map(|_| Order::Age));
            let limit = limit.unwrap_or(LIMIT_MAX);
            Ok(Query::List { filter, best: by.map(|by| Best { by: vec![by], limit }) })
        }
    }
}

fn address(word: &str) -> Result<Address, String> {
    if word == "unix" {
        return Ok(Address::Unix);
    }
    let host = word.parse::<IpAddr>().map(|ip| Address::Host(ip.to_canonical()));
    let port = || word.parse::<SocketAddr>().map(Address::Port);
    host.or_else(|_| port()).map_err(|_| {
        format!("`{word}` is no address: 192.0.2.1, 192.0.2.1:4711, 2001:db8::1, or `unix`")
    })
}

fn order(word: &str) -> Result<Order, String> {
    match word {
        "requests" => Ok(Order::Requests),
        "bytes" => Ok(Order::Bytes),
        "idle" => Ok(Order::Idle),
        "age" => Ok(Order::Age),
        "held" => Ok(Order::Held),
        _ => Err(format!("`--sort` takes requests, bytes, idle, age or held, not `{word}`")),
    }
}

fn limit(word: &str) -> Result<usize, String> {
    let number = word.parse().ok().filter(|number| (1..=LIMIT_MAX).contains(number));
    number.ok_or_else(|| format!("`--limit` takes a number from 1 to {LIMIT_MAX}, not `{word}`"))
}

/// An answer in the order in which it is shown.
struct Shown {
    clients: Vec<ClientRow>,
    in_pieces: Vec<InPiecesRow>,
    left_out: u64,
    missing: Vec<super::query::Missing>,
}

impl Shown {
    fn new(query: &Query, gathered: Gathered) -> Shown {
        let Gathered { clients, mut in_pieces, left_out, missing } = gathered;
        let mut clients: Vec<ClientRow> = clients.into_values().collect();
        match query.best() {
            Some(best) => best.keep(&mut clients),
            None => clients.sort_by(|one, other| {
                let key = |row: &ClientRow| (Reverse(row.age_us), row.id);
                one.pool.cmp(&other.pool).then_with(|| key(one).cmp(&key(other)))
            }),
        }
        if let Query::Busiest { limit } = query {
            in_pieces.truncate(*limit);
        }
        Shown { clients, in_pieces, left_out, missing }
    }

    fn json(&self, query: &Query) -> String {
        let mut all = json!({ "missing": self.missing, "left_out": self.left_out });
        if !matches!(query, Query::InPieces {}) {
            let name = if query.is_kill() { "killed" } else { "clients" };
            all[name] = json!(self.clients);
        }
        if matches!(query, Query::InPieces {} | Query::Busiest { .. }) {
            all["in_pieces"] = json!(self.in_pieces);
        }
        all.to_string()
    }

    fn text(&self, query: &Query) -> String {
        let mut text = match query {
            Query::Kill { .. } => {
                let lines = self.clients.iter().map(|row| format!("closed {}\n", who(row)));
                lines.collect()
            }
            Query::InPieces {} => in_pieces_text(&self.in_pieces),
            Query::Busiest { .. } => {
                let clients = table(&clients_table(&self.clients, true));
                clients + "\n" + &in_pieces_text(&self.in_pieces)
            }
            // Only clients ask for this, and have a number in answer.
            Query::Unblock { .. } => String::new(),
            Query::List { .. } if self.clients.is_empty() => "no clients\n".to_string(),
            Query::List { .. } => table(&clients_table(&self.clients, false)),
        };
        if self.left_out > 0 {
            let left_out = grouped(self.left_out);
            text += &format!("{left_out} clients are not shown: use --limit, or a filter\n");
        }
        for missing in &self.missing {
            text += &format!("worker {} is missing: {}\n", missing.worker, missing.why);
        }
        text
    }
}

fn who(row: &ClientRow) -> String {
    let user = row.user.as_ref().map_or(String::new(), |user| format!(", user {user}"));
    format!("{} ({}, pool {}{user})", row.id, row.address, row.pool)
}

/// Returns the heads, and a row of cells for each client.
fn clients_table(clients: &[ClientRow], is_recent: bool) -> Vec<Vec<String>> {
    let heads = [
        "ID", "POOL", "ADDRESS", "WORKER", "REQ/S", "BYTES/S", "AGE", "IDLE", "REQUESTS", "IN",
        "OUT", "OWED", "KEPT", "CLASS", "STATE", "PROTOCOL", "USER", "TENANT", "NAME", "LISTENER",
    ];
    let row = |one: &ClientRow| {
        let rate = |count: u64| grouped((count * 1_000_000).div_ceil(one.recent_us.max(1)));
        let word = |text: &str| if text.is_empty() { "-".to_string() } else { text.to_string() };
        let name = |name: &Option<String>| word(name.as_deref().unwrap_or(""));
        let protocol = match one.protocol_version {
            0 => one.protocol.clone(),
            version => format!("{}/{version}", one.protocol),
        };
        vec![
            one.id.to_string(),
            one.pool.clone(),
            one.address.clone(),
            one.worker.to_string(),
            rate(one.recent_requests),
            rate(one.recent_bytes),
            duration(one.age_us / 1_000_000).replace(' ', ""),
            duration(one.idle_us / 1_000_000).replace(' ', ""),
            grouped(one.requests),
            grouped(one.received_bytes),
            grouped(one.sent_bytes),
            grouped(one.owed),
            grouped(one.held_bytes),
            one.class.clone(),
            one.state.clone(),
            protocol,
            name(&one.user),
            name(&one.tenant),
            word(&one.name),
            word(&one.listener),
        ]
    };
    let heads = heads.map(str::to_string).to_vec();
    let rows = std::iter::once(heads).chain(clients.iter().map(row));
    rows.map(|mut cells| {
        if !is_recent {
            cells.drain(4..6);
        }
        cells
    })
    .collect()
}

fn in_pieces_text(rows: &[InPiecesRow]) -> String {
    if rows.is_empty() {
        return "no client sends requests in pieces\n".to_string();
    }
    let heads =
        ["ADDRESS", "REQUESTS IN PIECES", "LATER THAN 5 ms", "REST CAME AFTER", "AT MOST", "LAST"];
    let row = |one: &InPiecesRow| {
        let count = match one.over {
            0 => grouped(one.count),
            over => format!("{} to {}", grouped(one.count - over), grouped(one.count)),
        };
        // The times are only of those that were counted here.
        let mean = one.late_us / (one.count - one.over).max(1);
        let ago = format!("{} ago", duration(one.ago_us / 1_000_000));
        let late = grouped(one.late);
        vec![one.address.to_string(), count, late, time(mean), time(one.latest_us), ago]
    };
    let heads = heads.map(str::to_string).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows.iter().map(row)).collect();
    table(&rows)
}

/// Aligns cells to the left.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<String>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Clients that are named in the log's line.
const NAMED_MAX: usize = 5;
/// Numbers that one request may name, and bytes of each of its other values: all of it fits a
/// message.
const IDS_MAX: usize = 100;
const WORD_LEN_MAX: usize = 256;
/// The busiest clients that are shown, by requests and by bytes.
pub const BUSIEST: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Query, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        ClientsRequest::parse(&words).map(|request| request.query)
    }

    #[test]
    fn what_is_asked_follows_from_the_words() {
        let list = |filter, best| Ok(Query::List { filter, best });
        let everybody = Filter::default;
        assert_eq!(parse(""), list(everybody(), None));
        let best = |by, limit| Some(Best { by: vec![by], limit });
        assert_eq!(parse("--sort idle"), list(everybody(), best(Order::Idle, LIMIT_MAX)));
        assert_eq!(parse("--limit 3"), list(everybody(), best(Order::Age, 3)));
        let alpha = Filter { pool: Some("alpha".into()), ..everybody() };
        assert_eq!(parse("--pool alpha --json"), list(alpha, None));
        let unix = Filter { address: Some(Address::Unix), ids: vec![5, 7], ..everybody() };
        assert_eq!(parse("kill 5 7 --address unix"), Ok(Query::Kill { filter: unix }));
        assert_eq!(parse("--busiest --limit 4"), Ok(Query::Busiest { limit: 4 }));
        assert_eq!(parse("--in-pieces"), Ok(Query::InPieces {}));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        let ids = (0..101).map(|id| format!(" {id}")).collect::<String>();
        for (line, why) in [
            ("kill", "needs a number"),
            ("kill --json", "needs a number"),
            ("kill 5 --limit 3", "no order"),
            ("5", "does not take `5`"),
            ("kill five", "does not take `five`"),
            ("--pool", "needs a value"),
            ("--address nowhere", "is no address"),
            ("--sort colour", "requests, bytes, idle, age or held"),
            ("--limit 0", "from 1 to 1000"),
            ("--limit 1001", "from 1 to 1000"),
            ("--busiest --pool alpha", "takes only --limit"),
            (&format!("kill{ids}"), "at most 100"),
            (&format!("--user {}", "x".repeat(257)), "longer than 256"),
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.contains(why), "{line}: {refused}");
        }
    }

    #[test]
    fn cells_stand_below_each_other() {
        let rows =
            [["A", "LONG", "C"], ["longer", "b", ""]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "A       LONG  C\nlonger  b\n");
    }
}
