//! Limits of tenants, held by the proxy as a whole: live changes, deaths of workers, reloads, and
//! other numbers of workers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::process::{Memcached, Quickack, send, wait_until};

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

    /// Returns how many answers of this length came in a second, over so many seconds.
    fn rate(&self, seconds: u64, answer: usize) -> f64 {
        let (since, before) = (Instant::now(), self.bytes.load(Relaxed));
        std::thread::sleep(Duration::from_secs(seconds));
        let bytes = self.bytes.load(Relaxed) - before;
        bytes as f64 / answer as f64 / since.elapsed().as_secs_f64()
    }
}

fn ask(to: SocketAddr, request: &str, stop: &AtomicBool, bytes: &AtomicU64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut block = vec![0; 64 * 1024];
    // Four at a time, so that a connection is never idle.
    stream.write_all(request.repeat(4).as_bytes())?;
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

#[track_caller]
fn expect_rate(found: f64, limit: f64, when: &str) {
    println!("{when}: {found:.0} of {limit}");
    assert!((limit * 0.95..=limit * 1.05).contains(&found), "{when}: {found:.0} of {limit}");
}

fn tenant(quickack: &Quickack, at: usize, figure: &str) -> u64 {
    stats(quickack)["tenants"][at][figure].as_u64().expect("each tenant has it")
}

const MISS: &str = "get nobody-has-this\r\n";
const END: usize = "END\r\n".len();

#[test]
fn a_rate_of_requests_is_held_whatever_happens_to_the_workers() {
    let (memcached, quickack) = start(4, "{shop: {pools: [alpha], requests_per_s: 2000}}");
    let crowd = Crowd::start(16, quickack.address(), MISS);
    crowd.rate(1, END);
    expect_rate(crowd.rate(2, END), 2_000.0, "four workers");
    quickack.ask("set tenants.shop.requests_per_s=4000");
    expect_rate(crowd.rate(2, END), 4_000.0, "set to 4000");
    let worker = *quickack.workers().values().next().expect("there are four");
    replace_worker(&quickack, worker, 4);
    crowd.rate(1, END);
    expect_rate(crowd.rate(2, END), 4_000.0, "after a death");
    for workers in [1, 8] {
        quickack.rewrite(&text(
            workers,
            memcached.address,
            "{shop: {pools: [alpha], requests_per_s: 3000}}",
        ));
        quickack.ask("set tenants.shop.requests_per_s=");
        quickack.ask("reload");
        wait_for_workers(&quickack, workers);
        crowd.rate(1, END);
        expect_rate(crowd.rate(2, END), 3_000.0, &format!("{workers} workers"));
    }
    assert!(tenant(&quickack, 0, "requests_delayed_total") > 0);
    crowd.stop();
}

#[test]
fn bytes_in_both_directions_are_held() {
    let (_memcached, quickack) = start(2, "{shop: {pools: [alpha], sent_per_s: 20m}}");
    let crowd = Crowd::start(8, quickack.address(), "get big\r\n");
    crowd.rate(1, 1);
    expect_rate(crowd.rate(2, 1), f64::from(20 << 20), "20 MiB sent");
    quickack.ask("set tenants.shop.sent_per_s=40m");
    crowd.rate(1, 1);
    expect_rate(crowd.rate(2, 1), f64::from(40 << 20), "40 MiB sent");
    crowd.stop();
    quickack.ask("set tenants.shop.sent_per_s=");
    quickack.ask("set tenants.shop.received_per_s=64k");
    let crowd = Crowd::start(8, quickack.address(), MISS);
    crowd.rate(1, END);
    let rate = crowd.rate(2, END) * MISS.len() as f64;
    expect_rate(rate, f64::from(64 << 10), "64 KiB received");
    crowd.stop();
}

#[test]
fn one_at_its_limit_takes_nothing_from_another() {
    let tenants = "{greedy: {pools: [alpha], requests_per_s: 1000}, modest: {pools: [beta]}}";
    let (_memcached, quickack) = start(2, tenants);
    let to = quickack.address_of("beta");
    let p99 = || {
        let mut client = testkit::process::Client::connect(to);
        let one = |_| {
            let since = Instant::now();
            client.ask(MISS, "END\r\n");
            since.elapsed()
        };
        let mut times: Vec<Duration> = (0..2_000).map(one).collect();
        times.sort();
        times[1_980]
    };
    let alone = p99();
    let crowd = Crowd::start(8, quickack.address(), MISS);
    crowd.rate(1, END);
    let beside = p99();
    println!("p99 alone {alone:?}, beside one at its limit {beside:?}");
    // The machine is shared: a wide margin, where 1.5 is the aim.
    assert!(beside < 4 * alone + Duration::from_millis(2), "{beside:?} beside, {alone:?} alone");
    assert_eq!(tenant(&quickack, 1, "requests_delayed_total"), 0);
    crowd.stop();
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
    let (_memcached, quickack) = start(4, tenants);
    let crowd = Crowd::start(16, quickack.address(), "get big\r\n");
    for _ in 0..20 {
        let rate = crowd.rate(0, 1).max(0.0);
        let _ = rate;
        let held = tenant(&quickack, 0, "inflight_bytes");
        // One request may be in flight whatever its size, and workers that read one at the same
        // moment do not see each other's.
        assert!(held <= 4 * (32 << 10), "{held}");
    }
    let worker = *quickack.workers().values().next().expect("there are four");
    send(worker, Signal::KILL);
    wait_for_workers(&quickack, 4);
    assert!(crowd.rate(1, 1) > 0.0, "what the dead worker held does not count");
    crowd.stop();
    wait_until("all is given back", || tenant(&quickack, 0, "inflight_bytes") == 0);
}
