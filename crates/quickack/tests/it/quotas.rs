//! Limits of tenants, held by the proxy as a whole: live changes, deaths of workers, reloads, and
//! other numbers of workers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::process::{DEADLINE, Memcached, Quickack, send, wait_until};

use super::harness::{replace_worker, stats, wait_for_workers};

fn text(workers: usize, memcached: SocketAddr, tenants: &str) -> String {
    format!(
        "global:\n  workers: {workers}\n  tenants: {tenants}\n\
         alpha:\n  listen: 127.0.0.1:0\n  servers: ['{memcached}:1']\n\
         beta:\n  listen: 127.0.0.1:0\n  servers: ['{memcached}:1']\n"
    )
}

/// Starts quickack with these tenants, in front of one memcached with a value of 10,000 bytes.
fn start(workers: usize, tenants: &str) -> (Memcached, Quickack) {
    let memcached = Memcached::start();
    let mut client = memcached.client();
    client.ask(&format!("set big 0 0 10000\r\n{}\r\n", "x".repeat(10_000)), "STORED\r\n");
    let quickack = Quickack::start(super::QUICKACK, &text(workers, memcached.address, tenants));
    wait_for_workers(&quickack, workers);
    (memcached, quickack)
}

/// Connections that ask as fast as they are answered, and come again when they are closed.
struct Crowd {
    stop: Arc<AtomicBool>,
    /// Bytes received.
    bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(count: usize, to: SocketAddr, request: &'static str) -> Crowd {
        let (stop, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let one = |_| {
            let (stop, bytes) = (Arc::clone(&stop), Arc::clone(&bytes));
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    let _ = ask(to, request, &stop, &bytes);
                }
            })
        };
        let threads = (0..count).map(one).collect();
        Crowd { stop, bytes, threads }
    }

    fn stop(self) {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().for_each(|one| one.join().expect("a client does not panic"));
    }

    /// Waits until so many more bytes have come.
    #[track_caller]
    fn wait_for(&self, more: u64) {
        let goal = self.bytes.load(Relaxed) + more;
        wait_until("the crowd is served", || self.bytes.load(Relaxed) >= goal);
    }

    /// Follows the rate for two seconds at least. There is never more than the limit allows since
    /// the beginning, and in one of the half seconds there is nearly all of it. In others a busy
    /// machine may keep the crowd from taking it, and what is not taken is lost.
    #[track_caller]
    fn expect_rate(&self, limit: Limit, when: &str) {
        let (start, first) = (Instant::now(), self.bytes.load(Relaxed));
        let amount = |bytes: u64| bytes as f64 / limit.answer as f64 * limit.cost;
        // An answer that is read only now may have been sent before.
        let on_the_way = (self.threads.len() * AT_ONCE) as f64 * limit.cost;
        let (mut shares, mut best) = (Vec::new(), 0.0_f64);
        while start.elapsed() < Duration::from_secs(2) || best < 0.95 {
            assert!(start.elapsed() < DEADLINE, "{when}: shares of {limit:?}: {shares:.2?}");
            let (since, before) = (Instant::now(), self.bytes.load(Relaxed));
            std::thread::sleep(Duration::from_millis(500));
            let now = self.bytes.load(Relaxed);
            let share = amount(now - before) / since.elapsed().as_secs_f64() / limit.per_second;
            // Two hundredths of a second are given in advance, and a piece of a worker's.
            let most = limit.per_second * (start.elapsed().as_secs_f64() + 0.03) + on_the_way;
            let all = amount(now - first);
            assert!(all <= most, "{when}: {all:.0} of {most:.0}, {limit:?}");
            shares.push(share);
            best = best.max(share);
        }
        println!("{when}: shares of {limit:?}: {shares:.2?}");
    }
}

/// What a crowd may have.
#[derive(Clone, Copy, Debug)]
struct Limit {
    per_second: f64,
    /// The length of an answer, and what a request costs.
    answer: usize,
    cost: f64,
}

fn ask(to: SocketAddr, request: &str, stop: &AtomicBool, bytes: &AtomicU64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut block = vec![0; 64 * 1024];
    stream.write_all(request.repeat(AT_ONCE).as_bytes())?;
    let mut owed = 0;
    while !stop.load(Relaxed) {
        match stream.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(len) => {
                bytes.fetch_add(len as u64, Relaxed);
                owed += block[..len].windows(5).filter(|five| *five == b"END\r\n").count();
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        stream.write_all(request.repeat(std::mem::take(&mut owed)).as_bytes())?;
    }
    Ok(())
}

fn tenant(quickack: &Quickack, at: usize, figure: &str) -> u64 {
    stats(quickack)["tenants"][at][figure].as_u64().expect("each tenant has it")
}

/// Requests of a connection at a time, so that it is never idle.
const AT_ONCE: usize = 4;
const MISS: &str = "get nobody-has-this\r\n";
const END: usize = "END\r\n".len();
/// The length of the answer to `get big`.
const BIG: usize = "VALUE big 0 10000\r\n\r\nEND\r\n".len() + 10_000;

/// A busy machine can give these rates, too.
#[test]
fn a_rate_of_requests_is_held_whatever_happens_to_the_workers() {
    let (memcached, quickack) = start(4, "{shop: {pools: [alpha], requests_per_s: 1000}}");
    let crowd = Crowd::start(16, quickack.address(), MISS);
    let requests = |per_second: f64| Limit { per_second, answer: END, cost: 1.0 };
    crowd.expect_rate(requests(1_000.0), "four workers");
    quickack.admin_ok(&["set", "tenants.shop.requests_per_s=2000"]);
    crowd.expect_rate(requests(2_000.0), "set to 2000");
    let worker = *quickack.workers().values().next().expect("there are four");
    replace_worker(&quickack, worker, 4);
    crowd.expect_rate(requests(2_000.0), "after a death");
    quickack.admin_ok(&["set", "tenants.shop.requests_per_s="]);
    for workers in [1, 8] {
        quickack.rewrite(&text(
            workers,
            memcached.address,
            "{shop: {pools: [alpha], requests_per_s: 1500}}",
        ));
        quickack.admin_ok(&["reload"]);
        wait_for_workers(&quickack, workers);
        crowd.expect_rate(requests(1_500.0), &format!("{workers} workers"));
    }
    assert!(tenant(&quickack, 0, "requests_delayed_total") > 0);
    crowd.stop();
}

/// A busy machine can give these rates, too.
#[test]
fn bytes_in_both_directions_are_held() {
    let (_memcached, quickack) = start(2, "{shop: {pools: [alpha], sent_per_s: 4m}}");
    let crowd = Crowd::start(4, quickack.address(), "get big\r\n");
    let sent = |mib: u32| Limit { per_second: f64::from(mib << 20), answer: BIG, cost: BIG as f64 };
    crowd.expect_rate(sent(4), "4 MiB sent");
    quickack.admin_ok(&["set", "tenants.shop.sent_per_s=8m"]);
    crowd.expect_rate(sent(8), "8 MiB sent");
    crowd.stop();
    quickack.admin_ok(&["set", "tenants.shop.sent_per_s="]);
    quickack.admin_ok(&["set", "tenants.shop.received_per_s=32k"]);
    let crowd = Crowd::start(8, quickack.address(), MISS);
    let received = Limit { per_second: f64::from(32 << 10), answer: END, cost: MISS.len() as f64 };
    crowd.expect_rate(received, "32 KiB received");
    crowd.stop();
}

#[test]
fn one_at_its_limit_takes_nothing_from_another() {
    let tenants = "{greedy: {pools: [alpha], requests_per_s: 100}, modest: {pools: [beta]}}";
    // One worker, so that both are clients of the same.
    let (_memcached, quickack) = start(1, tenants);
    let crowd = Crowd::start(8, quickack.address(), MISS);
    wait_until("the crowd is held", || tenant(&quickack, 0, "requests_delayed_total") > 0);
    let mut client = testkit::process::Client::connect(quickack.address_of("beta"));
    let one = |_| {
        let since = Instant::now();
        client.ask(MISS, "END\r\n");
        since.elapsed()
    };
    let mut times: Vec<Duration> = (0..500).map(one).collect();
    times.sort();
    crowd.stop();
    // Each request of the crowd waits for all before it: 320 ms. A busy machine takes a few.
    let median = times[250];
    assert!(median < Duration::from_millis(80), "{median:?}");
    assert_eq!(tenant(&quickack, 1, "requests_delayed_total"), 0);
}

#[test]
fn clients_are_counted_over_all_workers_and_given_back_by_the_dead() {
    let (memcached, quickack) = start(4, "{shop: {pools: [alpha], clients_max: 10}}");
    let served = |quickack: &Quickack| {
        let mut client = quickack.client();
        client.send(MISS);
        (client.line() == "END").then_some(client)
    };
    let clients: Vec<_> = (0..10).map(|_| served(&quickack).expect("there is room")).collect();
    let mut refused = quickack.client();
    assert_eq!(refused.rest(), "SERVER_ERROR tenant 'shop' has its limit of 10 clients\r\n");
    quickack.ask("set tenants.shop.clients_max=11");
    let eleventh = served(&quickack).expect("there is room for one more");
    assert!(served(&quickack).is_none());
    assert_eq!(tenant(&quickack, 0, "clients"), 11);
    // The clients of a worker that is killed are gone.
    let worker = *quickack.workers().values().next().expect("there are four");
    send(worker, Signal::KILL);
    let before = 11;
    wait_until("its clients are given back", || tenant(&quickack, 0, "clients") < before);
    wait_for_workers(&quickack, 4);
    let now = tenant(&quickack, 0, "clients");
    let more: Vec<_> =
        (now..11).map(|_| served(&quickack).expect("what the dead held is free")).collect();
    assert!(served(&quickack).is_none());
    // Other workers take them over.
    for workers in [1, 8] {
        let tenants = "{shop: {pools: [alpha], clients_max: 11}}";
        quickack.rewrite(&text(workers, memcached.address, tenants));
        quickack.ask("reload");
        wait_for_workers(&quickack, workers);
        // A client on its way between two workers counts for none of them.
        wait_until("all clients are with the workers", || {
            tenant(&quickack, 0, "clients") == 11 && served(&quickack).is_none()
        });
    }
    drop((clients, eleventh, more));
    wait_until("all have left", || tenant(&quickack, 0, "clients") == 0);
    assert!(served(&quickack).is_some());
}

#[test]
fn so_much_is_in_flight_and_it_is_given_back() {
    let tenants = "{shop: {pools: [alpha], inflight_max: 32k}}";
    let (memcached, quickack) = start(4, tenants);
    let crowd = Crowd::start(16, quickack.address(), "get big\r\n");
    // Now it is known how large the answers are.
    crowd.wait_for(100 * BIG as u64);
    // One request may be in flight whatever its size, and workers that read one at the same moment
    // do not see each other's.
    let most = 4 * (32 << 10);
    let held = || tenant(&quickack, 0, "inflight_bytes");
    memcached.process.freeze();
    wait_until("much is in flight", || held() > 32 << 9);
    for _ in 0..20 {
        assert!(held() <= most, "{}", held());
    }
    // The crowd would have more.
    quickack.admin_ok(&["set", "tenants.shop.inflight_max=10m"]);
    wait_until("more is in flight where more may be", || held() > most);
    quickack.admin_ok(&["set", "tenants.shop.inflight_max=32k"]);
    memcached.process.thaw();
    wait_until("it is held again", || held() <= most);
    let worker = *quickack.workers().values().next().expect("there are four");
    replace_worker(&quickack, worker, 4);
    // What the dead worker held does not count.
    crowd.wait_for(100 * BIG as u64);
    crowd.stop();
    wait_until("all is given back", || held() == 0);
}
