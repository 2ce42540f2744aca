//! Tenants: the shares of two that both want all of a server, and one beside another that is at
//! its limit.
//!
//! ```text
//!  shares   weight 1: clients ─┐ one pool ─ relay, 50 MB/s ─ server     cost served, 3 : 1
//!           weight 3: clients ─┘
//!  limits   greedy:   clients ─── 5,000 requests/s held ──┬─ one worker  p99 of modest, beside
//!           modest:   the quiet client, every 5 ms ───────┘              greedy and without it
//! ```

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use testkit::process::free_address;

use crate::admin::Admin;
use crate::load::now_ns;
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::process::{Cpus, Process};
use crate::relay::Relay;
use crate::servers::{Backend, Servers};

use super::quiet::{Habit, Outcome, Quiet};
use super::shares::{Client, keep_asking, served};
use super::{Spread, attacks, shares, trial, wanted};

/// Two tenants of one pool, by their logins, and the number of their clients.
struct Weights {
    name: &'static str,
    backend: Backend,
    clients: [usize; 2],
    /// Requests that each client of a tenant keeps outstanding.
    depths: [u64; 2],
}

impl Weights {
    const fn of(name: &'static str, backend: Backend, clients: [usize; 2], heavy: u64) -> Weights {
        Weights { name, backend, clients, depths: [DEPTH, heavy] }
    }
}

const WEIGHTS: [u32; 2] = [1, 3];
const USERS: [&str; 2] = ["one", "three"];
/// The share of the heavier tenant over that of the lighter may differ by this part from 3.
const SHARE_ERROR_MAX: f64 = 0.10;

const SHARES: [Weights; 4] = [
    Weights::of("weights-get", Backend::Memcached, [20, 20], DEPTH),
    Weights::of("weights-get-few", Backend::Memcached, [36, 4], 100),
    Weights::of("weights-rget", Backend::Redis, [20, 20], DEPTH),
    Weights::of("weights-rget-few", Backend::Redis, [36, 4], 100),
];

/// A tenant that wants more than its limit, and one that does not.
struct Beside {
    name: &'static str,
    greedy: Backend,
    modest: Backend,
    over: &'static str,
}

const LIMIT: f64 = 5_000.0;
const RATE_ERROR_MAX: f64 = 0.05;
const P99_GROWTH_MAX: f64 = 1.5;
const GREEDY_CLIENTS: usize = 16;
const DEPTH: u64 = 16;

const LIMITS: [Beside; 6] = [
    Beside::of("limit-get", Backend::Memcached, Backend::Memcached, "delay"),
    Beside::of("limit-rget", Backend::Redis, Backend::Redis, "delay"),
    Beside::of("limit-rget-get", Backend::Redis, Backend::Memcached, "delay"),
    Beside::of("limit-get-rget", Backend::Memcached, Backend::Redis, "delay"),
    Beside::of("refuse-get", Backend::Memcached, Backend::Memcached, "refuse"),
    Beside::of("refuse-rget", Backend::Redis, Backend::Redis, "refuse"),
];

impl Beside {
    const fn of(
        name: &'static str,
        greedy: Backend,
        modest: Backend,
        over: &'static str,
    ) -> Beside {
        Beside { name, greedy, modest, over }
    }
}

/// Measures shares and limits; returns true if all bars are met.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    crate::process::stay_on(&Cpus::Split.of_load())?;
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = String::from("## Tenants\n\n");
    text.push_str(&page::short_origin(&machine, options));
    let mut met = true;
    let mut add = |line: String| {
        print!("{line}");
        text.push_str(&line);
    };
    add(format!("{SHARES_METHOD}{SHARES_HEADING}"));
    for weights in SHARES.iter().filter(|it| wanted(options, it.name)) {
        let (line, good) = weights.measure(options, folder)?;
        met &= good;
        add(line);
    }
    add(format!("{LIMITS_METHOD}{LIMITS_HEADING}"));
    for beside in LIMITS.iter().filter(|it| wanted(options, it.name)) {
        let (line, good) = beside.measure(options, folder)?;
        met &= good;
        add(line);
    }
    if options.write {
        page::write(Some("--tenants"), &text)?;
    }
    Ok(met)
}

/// Prints the names for `--list`.
pub fn list() {
    let names = SHARES.iter().map(|it| it.name).chain(LIMITS.iter().map(|it| it.name));
    println!("{}", names.collect::<Vec<_>>().join(", "));
}

/// A running proxy with these directives.
struct Proxy {
    _process: Process,
}

impl Proxy {
    fn start(text: &str, ports: &[u16], options: &Options, folder: &Path) -> Result<Proxy, String> {
        let (file, socket) = (folder.join("tenants.conf"), folder.join("tenants.sock"));
        let head = format!("global:\n  workers: 1\n  admin: {}\n{text}", socket.display());
        fs::write(&file, head).map_err(|error| format!("{}: {error}", file.display()))?;
        let quickack = options.quickack();
        let command = [&*quickack.display().to_string(), "run", "-c", &file.display().to_string()]
            .map(str::to_string);
        let cpus = Cpus::Split.of_proxy(crate::peers::Peer::Quickack, 0);
        let mut process = Process::start("quickack", &command, &cpus)?;
        ports.iter().try_for_each(|port| process.wait_for_port(*port))?;
        Admin::new(socket, file).wait_for_workers(1)?;
        Ok(Proxy { _process: process })
    }
}

fn pool(name: &str, backend: Backend, port: u16, server: u16, more: &str) -> String {
    let redis = if backend == Backend::Redis { "  redis: true\n" } else { "" };
    format!(
        "{name}:\n  listen: 127.0.0.1:{port}\n{redis}{more}  servers: ['127.0.0.1:{server}:1']\n"
    )
}

fn local(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

impl Weights {
    fn measure(&self, options: &Options, folder: &Path) -> Result<(String, bool), String> {
        let servers = Servers::start(self.backend, 1, Cpus::Split, &options.quickack())?;
        let share = shares::gets(self.backend);
        share.fill(servers.ports[0])?;
        let relay = Relay::limiting(servers.ports[0], shares::SERVER_BYTES_PER_S)?;
        let users = folder.join("tenants.users");
        let lines = USERS.map(|user| format!("{user}:secret\n")).concat();
        fs::write(&users, lines)
            .and_then(|()| {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                fs::set_permissions(&users, mode)
            })
            .map_err(|error| format!("{}: {error}", users.display()))?;
        let port = free_address().port();
        let [one, three] = WEIGHTS;
        let text = format!(
            "  tenants: {{one: {{users: [one], weight: {one}}}, \
             three: {{users: [three], weight: {three}}}}}\n{}",
            pool("shared", self.backend, port, relay.port, "  users: tenants.users\n")
        );
        let proxy = Proxy::start(&text, &[port], options, folder)?;
        let mut ratios = Vec::new();
        let mut rates = Vec::new();
        for _ in 0..options.runs {
            let (ratio, rate) = self.window(&share, port)?;
            ratios.push(ratio);
            rates.push(rate);
        }
        drop(proxy);
        let wanted = f64::from(three) / f64::from(one);
        let ratio = Spread::of(ratios);
        let error = (ratio.median / wanted - 1.0).abs();
        let met = error <= SHARE_ERROR_MAX;
        let [light, heavy] = [0, 1].map(|at| format!("{} x {}", self.clients[at], self.depths[at]));
        Ok((
            format!(
                "| {} | {light} | {heavy} | {ratio} | {:.0} | 2.70 to 3.30 | {} |\n",
                self.name,
                Spread::of(rates).median,
                judged(met)
            ),
            met,
        ))
    }

    /// Returns what the heavier tenant got over what the lighter got, and the requests a second.
    fn window(&self, share: &shares::Share, port: u16) -> Result<(f64, f64), String> {
        let mut clients = Vec::new();
        for (user, (count, depth)) in
            USERS.into_iter().zip(self.clients.into_iter().zip(self.depths))
        {
            for _ in 0..count {
                let at = clients.len();
                let mut client = share.client(local(port), at, depth)?;
                let (login, answer) = login(self.backend, user);
                client.log_in(&login, answer)?;
                clients.push(client);
            }
        }
        let (before, after) = std::thread::scope(|scope| {
            let load = || {
                super::prefer_this_thread();
                keep_asking(&mut clients, now_ns() + shares::WARM_UP_NS)?;
                let before = served(&clients);
                keep_asking(&mut clients, now_ns() + shares::WINDOW_NS)?;
                Ok::<_, String>((before, served(&clients)))
            };
            let joined = scope.spawn(load).join();
            joined.unwrap_or_else(|_| Err("the clients panicked".into()))
        })?;
        let costs: Vec<f64> =
            after.iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
        let (light, heavy) = costs.split_at(self.clients[0]);
        let [light, heavy] = [light, heavy].map(|costs| costs.iter().sum::<f64>());
        let each = (shares::VALUE_LEN * 10_usize.pow(9)) as f64;
        let rate = (light + heavy) / each * (1e18 / shares::WINDOW_NS as f64);
        Ok((heavy / light, rate))
    }
}

/// Returns a login, and what it is answered.
fn login(backend: Backend, user: &str) -> (Vec<u8>, &'static [u8]) {
    match backend {
        Backend::Redis => (attacks::command(&["AUTH", user, "secret"]), b"+OK\r\n"),
        _ => {
            let value = format!("{user} secret");
            let len = value.len();
            (format!("set login 0 0 {len}\r\n{value}\r\n").into_bytes(), b"STORED\r\n")
        }
    }
}

impl Beside {
    fn measure(&self, options: &Options, folder: &Path) -> Result<(String, bool), String> {
        let quickack = options.quickack();
        let start = |backend| Servers::start(backend, 1, Cpus::Split, &quickack);
        let servers = [start(self.greedy)?, start(self.modest)?];
        let share = shares::gets(self.greedy);
        share.fill(servers[0].ports[0])?;
        let quiet =
            (0..super::quiet::KEYS).map(|at| (super::quiet::key(at), super::quiet::value(at)));
        super::store(self.modest, servers[1].ports[0], quiet).map_err(|error| error.to_string())?;
        let ports = [free_address().port(), free_address().port()];
        let text = format!(
            "  tenants: {{greedy: {{pools: [first], requests_per_s: {LIMIT}, over: {}}}, \
             modest: {{pools: [second]}}}}\n{}{}",
            self.over,
            pool("first", self.greedy, ports[0], servers[0].ports[0], ""),
            pool("second", self.modest, ports[1], servers[1].ports[0], ""),
        );
        let _proxy = Proxy::start(&text, &ports, options, folder)?;
        let mut seen = Seen::default();
        for _ in 0..options.runs {
            self.window(&share, ports, &mut seen)?;
        }
        let (alone, beside) = (Spread::of(seen.alone), Spread::of(seen.beside));
        let growth = Spread::of(seen.growth);
        let rate = Spread::of(seen.rates);
        let held = rate.median / LIMIT;
        let met = [
            growth.median <= P99_GROWTH_MAX,
            seen.errors == 0,
            (held - 1.0).abs() <= RATE_ERROR_MAX,
        ];
        Ok((
            format!(
                "| {} | {} | {alone} | {beside} | {growth} | {} | {:.3} | {} |\n",
                self.name,
                self.over,
                seen.errors,
                held,
                judged(met == [true; 3])
            ),
            met == [true; 3],
        ))
    }

    /// Measures the modest tenant's client alone, then beside the greedy tenant.
    fn window(
        &self,
        share: &shares::Share,
        ports: [u16; 2],
        seen: &mut Seen,
    ) -> Result<(), String> {
        let quiet = Quiet::start(local(ports[1]), self.modest.wire(), Habit::Same);
        std::thread::sleep(WARM_UP);
        let begin = now_ns();
        std::thread::sleep(WINDOW);
        let between = now_ns();
        let refused = self.over == "refuse";
        let open = |at| share.client(local(ports[0]), at, DEPTH);
        let mut clients = (0..GREEDY_CLIENTS).map(open).collect::<Result<Vec<_>, String>>()?;
        clients.iter_mut().for_each(|client| client.expects_refusals = refused);
        keep_asking(&mut clients, now_ns() + WARM_UP.as_nanos() as u64)?;
        let count = |clients: &[Client]| clients.iter().map(|client| client.served).sum::<u64>();
        let (before, since) = (count(&clients), now_ns());
        keep_asking(&mut clients, since + WINDOW.as_nanos() as u64)?;
        let (after, until) = (count(&clients), now_ns());
        drop(clients);
        let samples = quiet.stop()?;
        let phase = |begin, end| trial::seen(&samples, begin, end).p99_ms;
        let (alone, beside) = (phase(begin, between), phase(since, until));
        seen.alone.push(alone);
        seen.beside.push(beside);
        seen.growth.push(beside / alone);
        seen.rates.push((after - before) as f64 / ((until - since) as f64 / 1e9));
        seen.errors += samples.iter().filter(|it| it.outcome != Outcome::Served).count();
        Ok(())
    }
}

/// Figures of the windows of one row.
#[derive(Default)]
struct Seen {
    alone: Vec<f64>,
    beside: Vec<f64>,
    growth: Vec<f64>,
    rates: Vec<f64>,
    errors: usize,
}

const WARM_UP: Duration = Duration::from_millis(1_200);
const WINDOW: Duration = Duration::from_secs(4);

fn judged(met: bool) -> &'static str {
    if met { "met" } else { "**not met**" }
}

const SHARES_METHOD: &str = "\
Two tenants of one pool, with weights 1 and 3; clients x gets of 1,000 bytes that each keeps
outstanding. The server takes and gives 50 MB/s. The share is the cost served to all clients of
the heavier tenant over that of the lighter, in 2 s.

";
const SHARES_HEADING: &str = "\
| row | clients, weight 1 | clients, weight 3 | share | req/s | bar | |
|---|---|---|---|---|---|---|
";
const LIMITS_METHOD: &str = "
One tenant has a limit of 5,000 requests a second, and 16 clients that keep 16 gets of 1,000 bytes
outstanding. The other has one client that sends a get of 100 bytes every 5 ms; its latency counts
from the time the request was due, for 4 s without and then 4 s beside the greedy tenant. `held` is
the rate of the greedy tenant's requests that were executed, over its limit.

";
const LIMITS_HEADING: &str = "\
| row | over | p99 alone, ms | beside, ms | growth (bar 1.5) | errors | held (bar 0.95 to 1.05) | |
|---|---|---|---|---|---|---|---|
";
