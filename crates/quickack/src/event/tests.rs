//! The loop with real sockets, a real data plane, and a test that controls it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use metrics::Registry;
use proxy::{Event, Proxy, Report};
use testkit::process::{DEADLINE, accept, connect, wait_until};

use super::*;
use crate::ipc::client_state::ClientState;

/// Makes a command, in the loop's thread.
type Make = Box<dyn FnOnce() -> Command + Send>;

/// The messages that the loop's controller received.
#[derive(Debug)]
enum Told {
    Installed,
    LoopEvent(LoopEvent),
    Handed(ClientState, Vec<OwnedFd>),
    /// A login failed, of a client from there.
    LoginFailed(Option<IpAddr>),
}

/// A test that controls a loop in another thread.
struct Controller {
    wake: OwnedFd,
    commands: Sender<Make>,
    told: Receiver<Told>,
    registry: Registry,
    thread: Option<JoinHandle<()>>,
}

/// The loop's side of it.
struct Script {
    wake: OwnedFd,
    commands: Receiver<Make>,
    told: Sender<Told>,
}

impl Control for Script {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn has_unsent(&self) -> bool {
        false
    }

    fn poll_changes(&mut self, _out: &mut Vec<Command>) {}

    fn receive(&mut self, out: &mut Vec<Command>) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        out.extend(self.commands.try_iter().map(|make| make()));
    }

    fn installed(&mut self, _service: &dyn Service) {
        let _ = self.told.send(Told::Installed);
    }

    fn after_turn(&mut self, _service: &dyn Service) {}

    fn report(&mut self, _report: Report) {}

    fn log(&mut self, event: Event, from: Option<IpAddr>) {
        if matches!(event, Event::LoginFailed { .. }) {
            let _ = self.told.send(Told::LoginFailed(from));
        }
    }

    fn log_loop_event(&mut self, note: LoopEvent) {
        let _ = self.told.send(Told::LoopEvent(note));
    }

    fn hand_over(&mut self, client: ClientState, ones: Vec<Leaver>) -> Result<(), Vec<Leaver>> {
        let fds = ones.into_iter().map(|one| one.fd).collect();
        let _ = self.told.send(Told::Handed(client, fds));
        Ok(())
    }
}

impl Controller {
    /// Starts a loop with the pools of `text`, each listening at one of `listeners`.
    fn start(text: &str, listeners: Vec<Listener>, per_second: u64) -> Controller {
        let memory = sys::memory::shared("test", Scoreboard::words(1, 64)).unwrap();
        let scoreboard = Scoreboard::create(sys::memory::map(&memory).unwrap(), 1, 64);
        let registry = *scoreboard.registry();
        let (commands, take_commands) = channel();
        let (tell, told) = channel();
        let wake = sys::wakeup::new().unwrap();
        let script =
            Script { wake: wake.try_clone().unwrap(), commands: take_commands, told: tell };
        let text = text.to_string();
        let thread =
            std::thread::spawn(move || run(scoreboard, script, &text, listeners, per_second));
        let controller = Controller { wake, commands, told, registry, thread: Some(thread) };
        assert!(matches!(controller.hear(), Told::Installed));
        controller
    }

    fn command(&self, make: impl FnOnce() -> Command + Send + 'static) {
        self.commands.send(Box::new(make)).unwrap();
        sys::wakeup::wake(&self.wake);
    }

    fn hear(&self) -> Told {
        self.told.recv_timeout(DEADLINE).unwrap()
    }

    fn counted(&self, counter: WorkerCounter) -> u64 {
        self.registry.total(0, counter)
    }

    /// Ends the loop; what it told and nobody heard.
    fn end(mut self) -> Vec<Told> {
        self.command(|| Command::Drain { within: Duration::from_secs(10) });
        self.wait_for_end();
        self.told.try_iter().collect()
    }

    /// Waits until the loop has ended.
    fn wait_for_end(&mut self) {
        let thread = self.thread.take().unwrap();
        wait_until("the loop ends", || thread.is_finished());
        thread.join().unwrap();
    }
}

fn run(
    scoreboard: Scoreboard,
    mut script: Script,
    text: &str,
    listeners: Vec<Listener>,
    per_second: u64,
) {
    let install = install(text, listeners, per_second);
    let shared = Shared {
        scoreboard: scoreboard.clone(),
        slot: 0,
        mode: AcceptMode::Gate,
        wakeups: Rc::new(RefCell::new(vec![sys::wakeup::new().unwrap()])),
        lock: None,
    };
    let signals = Signals::new(&[]).unwrap();
    let mut service =
        Proxy::new(install.plan.clone(), 1, Time(monotonic_us()), scoreboard.metrics(0));
    let before = monotonic_us();
    let mut looping =
        Loop::controlled(&mut service, &mut script, shared, install, signals).unwrap();
    // One worker's moment is another's: they tell each other since when a server is busy.
    let times = [before, looping.now.0, looping.woken.0, looping.time().0, monotonic_us()];
    assert!(times.is_sorted(), "{times:?}");
    looping.run().unwrap();
}

/// Servers stand in the file as `127.0.0.1:port:1` or as the path of a socket.
fn install(text: &str, listeners: Vec<Listener>, connects_per_second: u64) -> Install {
    let config = crate::config::compile("test", text, &[]).config.expect("a good file");
    let mut targets = std::collections::BTreeMap::new();
    for (pool, upstream) in config.plan.pools.iter().zip(&config.upstreams) {
        for (plan, address) in pool.servers.iter().zip(&upstream.servers) {
            let address = TargetAddress::Tcp(address.to_string().parse().unwrap());
            targets.insert(plan.id, Target { address, nodelay: true, keepalive: false });
        }
    }
    let epoll_timeout = Duration::from_millis(50);
    Install { plan: config.plan, listeners, targets, connects_per_second, epoll_timeout }
}

fn text(server: u16, more: &str) -> String {
    format!(
        "alpha:\n  listen: 127.0.0.1:1\n  distribution: modula\n{more}  \
         servers:\n   - 127.0.0.1:{server}:1\n"
    )
}

/// A listener, and where it is.
fn tcp_listener(id: u32, believes: &[&str]) -> (Listener, std::net::SocketAddr) {
    let fd = sys::listen::tcp("127.0.0.1:0".parse().unwrap(), 64, false).unwrap();
    let address = sys::listen::local_address(&fd).unwrap();
    (listener(id, fd, true, believes), address)
}

fn listener(id: u32, fd: OwnedFd, tcp: bool, believes: &[&str]) -> Listener {
    let proxy_protocol = believes.iter().map(|net| net.parse().unwrap()).collect();
    let (pool, nodelay, keepalive, shared) = (1, true, false, true);
    let (fd, no_room) = (Some(fd), b"SERVER_ERROR no room\r\n".to_vec());
    Listener { id, fd, pool, tcp, nodelay, keepalive, shared, proxy_protocol, no_room }
}

/// A server that answers each `set` with STORED, as soon as it may; it says how many it has had.
fn server(may_answer: Receiver<()>) -> (u16, Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (say, heard) = channel();
    std::thread::spawn(move || {
        let stream = accept(&listener);
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "version\r\n");
        (&stream).write_all(b"VERSION 1.6.18\r\n").unwrap();
        let _ = may_answer.recv_timeout(DEADLINE);
        let mut count = 0;
        line.clear();
        while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
            if line.starts_with("set ") {
                count += 1;
                let _ = say.send(count);
                if (&stream).write_all(b"STORED\r\n").is_err() {
                    return;
                }
            }
            line.clear();
        }
    });
    (port, heard)
}

fn ask_version(stream: impl Read + Write) {
    ask_version_with(stream, "version\r\n");
}

fn ask_version_with(mut stream: impl Read + Write, request: &str) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("VERSION "), "{line}");
}

/// The other side has closed, and said nothing.
fn assert_closed(mut stream: TcpStream) {
    match stream.read(&mut [0; 64]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

const NOWHERE: u16 = 9;

#[test]
fn a_client_behind_a_balancer_is_heard_from_the_end_of_its_header_on() {
    let (listener, address) = tcp_listener(1, &["127.0.0.0/8"]);
    let controller = Controller::start(&text(NOWHERE, ""), vec![listener], 0);
    let header = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 11211\r\n";
    let whole = [&header[..], b"version\r\n"].concat();
    for size in [1, 7, header.len() - 1, header.len(), header.len() + 3, whole.len()] {
        let mut stream = connect(address);
        stream.set_nodelay(true).unwrap();
        whole.chunks(size).for_each(|piece| stream.write_all(piece).unwrap());
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert!(line.starts_with("VERSION "), "pieces of {size}: {line}");
    }
    assert!(controller.end().is_empty());
}

#[test]
fn a_balancer_that_connects_and_closes_costs_no_line() {
    let (listener, address) = tcp_listener(1, &["127.0.0.1/32"]);
    let controller = Controller::start(&text(NOWHERE, ""), vec![listener], 0);
    drop(connect(address));
    // LOCAL, and nothing else.
    let mut stream = connect(address);
    stream.write_all(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_closed(stream);
    let mut cut_short = connect(address);
    cut_short.write_all(b"PROXY TCP4 192.").unwrap();
    drop(cut_short);
    assert!(controller.end().is_empty());
}

#[test]
fn what_is_no_header_is_closed_and_told() {
    let (listener, address) = tcp_listener(1, &["127.0.0.1/32", "::1/128"]);
    let controller = Controller::start(&text(NOWHERE, ""), vec![listener], 0);
    let mut stream = connect(address);
    stream.write_all(b"get foo\r\n").unwrap();
    assert_closed(stream);
    let why = "no PROXY header";
    let from = Some("127.0.0.1".parse().unwrap());
    assert!(matches!(
        controller.hear(),
        Told::LoopEvent(note)
            if note == LoopEvent::HeaderBroken { from, why }
    ));
    assert_eq!(controller.counted(WorkerCounter::HeadersBroken), 1);
    assert!(controller.end().is_empty());
}

#[test]
fn a_client_from_elsewhere_needs_no_header() {
    let (listener, address) = tcp_listener(1, &["192.0.2.0/24"]);
    let controller = Controller::start(&text(NOWHERE, ""), vec![listener], 0);
    ask_version(connect(address));
    controller.end();
}

/// One header is whole before the drain, one behind it with a request, one never comes, and one has
/// not begun.
#[test]
fn a_header_that_has_begun_is_read_to_its_end_by_a_worker_that_drains() {
    const HEADER: &str = "PROXY TCP4 192.0.2.1 198.51.100.2 56324 11211\r\n";
    let (listener, address) = tcp_listener(1, &["127.0.0.0/8"]);
    let mut controller = Controller::start(&text(NOWHERE, ""), vec![listener], 0);
    let says = |said: &str| {
        let mut stream = connect(address);
        stream.write_all(said.as_bytes()).unwrap();
        stream
    };
    let (silent, mut begun, mut half) = (says(""), says(&HEADER[..9]), says(&HEADER[..9]));
    // Behind them, so that they are known.
    ask_version(says(HEADER));
    controller.command(|| Command::Drain { within: Duration::from_secs(60) });
    assert_closed(silent);
    begun.write_all(format!("{}vers", &HEADER[9..]).as_bytes()).unwrap();
    half.write_all(b"broken\r\n").unwrap();
    assert_closed(half);
    ask_version_with(begun.try_clone().unwrap(), "ion\r\n");
    assert_closed(begun);
    controller.wait_for_end();
}

#[test]
fn listeners_come_and_go_and_clients_stay() {
    let (first, old) = tcp_listener(1, &[]);
    let controller = Controller::start(&text(NOWHERE, ""), vec![first], 0);
    let client = connect(old);
    ask_version(&client);
    let (second, new) = tcp_listener(2, &[]);
    controller
        .command(move || Command::Install(Box::new(install(&text(NOWHERE, ""), vec![second], 0))));
    assert!(matches!(controller.hear(), Told::Installed));
    ask_version(connect(new));
    assert!(TcpStream::connect(old).is_err(), "nobody else had it open");
    ask_version(&client);
    controller.end();
}

#[test]
fn a_worker_that_retires_hands_its_quiet_clients_over_and_they_notice_nothing() {
    let (listener, address) = tcp_listener(1, &[]);
    let controller = Controller::start(&text(NOWHERE, ""), vec![listener], 0);
    let clients: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
    clients.iter().for_each(ask_version);
    let (other_listener, _) = tcp_listener(1, &[]);
    let other = Controller::start(&text(NOWHERE, ""), vec![other_listener], 0);
    controller.command(|| Command::Retire);
    let mut handed = 0;
    while handed < 20 {
        let Told::Handed(client, fds) = controller.hear() else { panic!("something else") };
        handed += fds.len();
        other.command(move || Command::Adopt { client, fds });
    }
    clients.iter().for_each(ask_version);
    let mut controller = controller;
    controller.wait_for_end();
    drop(clients);
    other.end();
}

#[test]
fn a_worker_that_retires_stays_until_its_last_client_has_its_answer() {
    let (go, may_answer) = channel();
    let (port, stored) = server(may_answer);
    let (listener, address) = tcp_listener(1, &[]);
    let controller = Controller::start(&text(port, ""), vec![listener], 0);
    go.send(()).unwrap();
    let mut client = connect(address);
    client.write_all(b"version\r\nset k 0 0 1\r\n").unwrap();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut line = String::new();
    // It was read with the half of a request behind it.
    reader.read_line(&mut line).unwrap();
    let (say, is_told) = channel();
    controller.command(|| Command::Retire);
    controller.command(move || {
        say.send(()).unwrap();
        Command::Share { keep: 1 }
    });
    is_told.recv_timeout(DEADLINE).unwrap();
    client.write_all(b"v\r\n").unwrap();
    line.clear();
    reader.read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), stored.recv_timeout(DEADLINE).unwrap()), ("STORED\r\n", 1));
    assert!(matches!(controller.hear(), Told::Handed(_, fds) if fds.len() == 1));
    let mut controller = controller;
    controller.wait_for_end();
}

#[test]
fn a_failed_login_is_told_with_the_address_of_a_header_also_by_the_next_worker() {
    let more = "  redis: true\n  redis_auth: sesame\n";
    let (listener, address) = tcp_listener(1, &["127.0.0.0/8"]);
    let (other_listener, _) = tcp_listener(1, &[]);
    let controller = Controller::start(&text(NOWHERE, more), vec![listener], 0);
    let other = Controller::start(&text(NOWHERE, more), vec![other_listener], 0);
    let fails = |mut stream: &TcpStream, header: &str, controller: &Controller, from: &str| {
        stream.write_all(format!("{header}AUTH wrong\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert!(line.starts_with("-WRONGPASS"), "{line}");
        let Told::LoginFailed(told) = controller.hear() else { panic!("something else") };
        assert_eq!(told, Some(from.parse().unwrap()));
    };
    let client = connect(address);
    fails(&client, "PROXY TCP4 192.0.2.1 198.51.100.2 56324 11211\r\n", &controller, "192.0.2.1");
    controller.command(|| Command::Retire);
    let Told::Handed(handover, fds) = controller.hear() else { panic!("something else") };
    other.command(move || Command::Adopt { client: handover, fds });
    fails(&client, "", &other, "192.0.2.1");
    let mut controller = controller;
    controller.wait_for_end();
    drop(client);
    other.end();
}

#[test]
fn what_a_client_sent_before_it_hung_up_is_done_even_if_it_was_not_read_at_once() {
    const SETS: usize = 10_000;
    let (go, may_answer) = channel();
    let (port, stored) = server(may_answer);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let fd = sys::listen::unix(&path, None, 8).unwrap();
    // A request that waits for a server that is held is dropped when its client leaves.
    let more = "  timeout: 60000\n  hold_after: off\n";
    let controller = Controller::start(&text(port, more), vec![listener(1, fd, false, &[])], 0);
    let mut stream = UnixStream::connect(&path).unwrap();
    // More than may be outstanding for one client: it is paused, and then it is gone.
    stream.write_all("set k 0 0 1\r\nv\r\n".repeat(SETS).as_bytes()).unwrap();
    drop(stream);
    go.send(()).unwrap();
    while stored.recv_timeout(DEADLINE).unwrap() < SETS {}
    controller.end();
}

/// Both are found by the same wait, in whatever order.
#[test]
fn a_client_that_comes_as_another_leaves_has_its_place() {
    let (listener, address) = tcp_listener(1, &[]);
    let more = "  client_connections: 1\n";
    let controller = Controller::start(&text(NOWHERE, more), vec![listener], 0);
    let leaves = connect(address);
    ask_version(&leaves);
    let (say, is_busy) = channel();
    let (go, may_go) = channel();
    controller.command(move || {
        say.send(()).unwrap();
        may_go.recv_timeout(DEADLINE).unwrap();
        Command::Share { keep: 1 }
    });
    is_busy.recv_timeout(DEADLINE).unwrap();
    drop(leaves);
    let comes = connect(address);
    go.send(()).unwrap();
    ask_version(comes);
    controller.end();
}

#[test]
fn a_header_is_waited_for_as_long_as_its_pool_is_there() {
    let (listener, address) = tcp_listener(1, &["127.0.0.0/8"]);
    let controller = Controller::start(&text(NOWHERE, ""), vec![listener], 0);
    let install = |id: u32| {
        move || {
            let mut install = install(&text(NOWHERE, ""), Vec::new(), 0);
            install.plan.pools[0].id = id;
            Command::Install(Box::new(install))
        }
    };
    let half = || {
        let mut half = connect(address);
        half.write_all(b"PROXY TCP4 192.0.2.1 ").unwrap();
        // A later client is taken later.
        let mut whole = connect(address);
        whole.write_all(b"PROXY UNKNOWN\r\n").unwrap();
        ask_version(whole);
        half
    };
    let (mut stays, closed) = (half(), half());
    controller.command(install(1));
    assert!(matches!(controller.hear(), Told::Installed));
    stays.write_all(b"198.51.100.2 56324 11211\r\n").unwrap();
    ask_version(stays);
    controller.command(install(5));
    assert!(matches!(controller.hear(), Told::Installed));
    assert_closed(closed);
    assert_eq!(controller.counted(WorkerCounter::HeadersBroken), 0);
    assert!(controller.end().is_empty(), "it is not said to be broken");
}

#[test]
fn many_connects_keep_the_common_pace_and_all_are_made() {
    const LINKS: usize = 30;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let more =
        format!("  server_connections: {LINKS}\n  preconnect: true\n  timeout_connect: 100ms\n");
    // Ten at once, then one each ten milliseconds.
    let began = Instant::now();
    let controller = Controller::start(&text(port, &more), Vec::new(), 100);
    let links: Vec<TcpStream> = (0..LINKS).map(|_| accept(&listener)).collect();
    assert!(began.elapsed() > Duration::from_millis(100), "{:?}", began.elapsed());
    assert_eq!(links.len(), LINKS);
    let waited = controller.counted(WorkerCounter::ConnectsWaited);
    assert!((15..LINKS as u64).contains(&waited), "{waited}");
    // The last waited for twice as long as a connect may take, and no server is to blame.
    assert_eq!(controller.registry.total(2, metrics::ServerCounter::ConnectFailed), 0);
    controller.end();
}
