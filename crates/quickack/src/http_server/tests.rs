//! The service as the loop drives it: calls with a time, and no socket.

use super::*;
use crate::ipc::Question;
use crate::ipc::http_view::{PoolNames, ServerNames};
use crate::scoreboard::Scoreboard;

const SECOND: u64 = 1_000_000;

/// A service with one pool of one server, and a worker that serves.
fn server() -> HttpServer {
    let memory = sys::memory::shared("test", Scoreboard::words(2, 8)).unwrap();
    let scoreboard = Scoreboard::create(sys::memory::map(memory).unwrap(), 2, 8);
    scoreboard.set_used(1, 3);
    scoreboard.set_serving(0, true);
    let now_us = sys::clock::monotonic_us();
    scoreboard.beat(0, now_us);
    scoreboard.beat_of_master(now_us);
    let mut view = View::new("1.2.3".to_string(), 7 * SECOND, scoreboard);
    view.state.deaths = vec![0];
    let (name, admin) = ("one".to_string(), "ready".to_string());
    let servers = vec![ServerNames { id: 2, name, admin, has_address: true }];
    let (name, protocol) = ("alpha".to_string(), "memcached".to_string());
    view.names.pools =
        vec![PoolNames { id: 1, name, protocol, required: true, socket: None, servers }];
    HttpServer::new(Rc::new(RefCell::new(view)))
}

impl HttpServer {
    fn ask(&mut self, id: ConnId, path: &str, now: u64) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        let block: Rc<Block> = Rc::new(request.into_bytes().into());
        self.handle_received(id, &block, block.len(), Time(now));
    }

    /// Reads all that is written to a client.
    fn read(&mut self, id: ConnId, now: u64) -> String {
        let mut slices = Slices::default();
        self.transmit(id, &mut slices);
        let text: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        self.handle_transmitted(id, text.len(), Time(now));
        String::from_utf8(text).unwrap()
    }

    fn closed(&mut self) -> Vec<ConnId> {
        let actions = std::iter::from_fn(|| self.poll_action());
        let close = |action| match action {
            Action::Close(id) => Some(id),
            _ => None,
        };
        actions.filter_map(close).collect()
    }
}

#[test]
fn a_page_is_rendered_anew_when_it_is_a_second_old() {
    let mut server = server();
    let id = server.handle_accept(0, Time(0)).unwrap();
    let mut page = |now: u64, beats: u64| {
        server
            .view
            .borrow()
            .scoreboard
            .metrics(0)
            .counters(1)
            .set(::metrics::PoolCounter::Requests, beats);
        server.ask(id, "/metrics", now);
        let text = server.read(id, now);
        let line = text.lines().find(|line| line.starts_with("quickack_pool_requests_total{"));
        line.expect("a sample").rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let pages = [(0, 5), (1, 6), (SECOND - 1, 7), (SECOND, 8), (2 * SECOND - 1, 9)];
    assert_eq!(pages.map(|(now, requests)| page(now, requests)), [5, 5, 5, 8, 8]);
}

#[test]
fn a_page_of_health_follows_the_master_at_once() {
    let mut server = server();
    let id = server.handle_accept(0, Time(0)).unwrap();
    server.ask(id, "/readyz", 0);
    assert!(server.read(id, 0).starts_with("HTTP/1.1 200 "));
    server.view.borrow_mut().state.draining = true;
    server.ask(id, "/readyz", 1);
    assert!(server.read(id, 1).starts_with("HTTP/1.1 200 "), "it is not a second old");
    server.view.borrow_mut().version += 1;
    server.ask(id, "/readyz", 1);
    let text = server.read(id, 1);
    assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with("\nthe proxy is draining\n"));
}

#[test]
fn the_master_is_asked_once_and_all_who_wait_are_answered() {
    let mut server = server();
    let ids = [(); 3].map(|()| server.handle_accept(0, Time(0)).unwrap());
    for id in ids {
        server.ask(id, "/stats.json", 0);
        assert_eq!(server.read(id, 0), "");
    }
    let asked = || Some(Question::Stats);
    assert_eq!(server.view.borrow_mut().questions.pop(), asked());
    server.ask(ids[0], "/stats.json", 10);
    assert!(server.view.borrow().questions.is_empty(), "it has been asked");
    server.view.borrow_mut().answers.push((Question::Stats, "{}".to_string()));
    server.end_turn(Time(20));
    for id in ids {
        assert!(server.read(id, 20).ends_with("\r\n\r\n{}"));
    }
    // A master that does not answer is an error, and is asked again.
    server.ask(ids[1], "/stats.json", 2 * SECOND);
    assert_eq!(server.view.borrow_mut().questions.pop(), asked());
    let due = server.poll_timeout().expect("somebody waits");
    server.handle_timeout(due);
    assert!(server.read(ids[1], due.0).starts_with("HTTP/1.1 503 "));
    server.ask(ids[2], "/stats.json", due.0);
    assert_eq!(server.view.borrow_mut().questions.pop(), asked());
}

#[test]
fn who_keeps_a_place_without_using_it_gives_way() {
    let mut server = server();
    let ids: Vec<ConnId> =
        (0..CLIENTS_MAX as u64).map(|n| server.handle_accept(0, Time(n)).unwrap()).collect();
    let half: Rc<Block> = Rc::new(b"GET /".to_vec().into());
    for id in &ids {
        server.handle_received(*id, &half, half.len(), Time(100));
    }
    server.closed();
    let refused = server.handle_accept(0, Time(101)).unwrap_err();
    assert!(refused.starts_with(b"HTTP/1.1 503 "), "all have just begun to ask");
    // A second later they are slow. Who has just come is not closed for the next.
    let late = 100 + SLOW_US;
    let newcomers = [(); 3].map(|()| server.handle_accept(0, Time(late)).unwrap());
    assert_eq!(server.closed(), &ids[..3]);
    for id in &ids[3..] {
        let rest: Rc<Block> = Rc::new(b" HTTP/1.1\r\nHost: x\r\n\r\n".to_vec().into());
        server.handle_received(*id, &rest, rest.len(), Time(late));
        assert!(server.read(*id, late).starts_with("HTTP/1.1 200 "));
    }
    server.closed();
    assert!(server.handle_accept(0, Time(late + IDLE_US - 1)).is_err(), "all are at work");
    assert!(server.handle_accept(0, Time(late + IDLE_US)).is_ok());
    assert_eq!(server.closed(), &[newcomers[0]], "idle as long as the others, and the first");
    assert_eq!(server.clients.len(), CLIENTS_MAX);
}

#[test]
fn pages_that_are_not_read_are_bounded() {
    let mut server = server();
    let ids: Vec<ConnId> = (0..6).map(|n| server.handle_accept(0, Time(n)).unwrap()).collect();
    let body: Rc<[u8]> = vec![b'x'; BYTES_MAX / 3].into();
    for (n, id) in ids.iter().enumerate() {
        let client = server.clients.find_mut(*id).unwrap();
        client.connection.receive(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", n as u64);
        client.connection.next_request(n as u64).unwrap();
        // The last three share a page.
        let body = if n < 3 { body.to_vec().into() } else { Rc::clone(&body) };
        let response = Response { status: Status::Ok, content_type: "text/plain", body };
        client.connection.answer(&response, n as u64);
    }
    server.end_turn(Time(9));
    assert_eq!(server.closed(), &ids[..1], "the one that has been slow longest");
    server.end_turn(Time(9));
    assert_eq!(server.closed(), []);
}
