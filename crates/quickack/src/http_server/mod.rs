//! The HTTP process: it serves metrics, statistics and health to whoever connects to `http:`.
//!
//! ```text
//!   master ──names, state, socket──▶ control.rs ──▶ view.rs ◀── shared memory, mapped to be read
//!                                                     │
//!   clients ◀──▶ mod.rs ◀── pages.rs ◀── metrics.rs, health.rs
//! ```
//!
//! It is apart from the master so that no client of it can delay or end anything else: it changes
//! nothing, owns nothing, and is started again when it dies. It uses the workers' event loop.

mod control;
mod health;
mod metrics;
mod pages;
#[cfg(test)]
mod tests;
mod view;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use http::{Connection, Method, Response, Stage, Status};
use proxy::{Action, Block, Closed, ConnId, Side, Slices, Time};
use sys::signal::{self, Signals};

use crate::error::Error;
use crate::event::{Loop, Service, Sessions};
use crate::log::{self, Level};
use control::Master;
use pages::{Outcome, Page, Pages};
use view::View;

pub use metrics::reference;

/// Serves until the master says otherwise, or is gone.
pub fn run() -> ExitCode {
    match sys::process::take_passed().map_err(Error::from).and_then(Master::greet).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(
                Level::Error,
                &format!("http: {error}; this process is started by `quickack run`"),
            );
            ExitCode::FAILURE
        }
    }
}

fn serve(mut master: Master) -> Result<(), Error> {
    sys::process::keep_title();
    let signals = Signals::new(signal::ALL_OF_A_CHILD)?;
    let mut server = HttpServer::new(master.view());
    let looping =
        Loop::uncontrolled(&mut server, &mut master, Vec::new(), signals, SHUTDOWN_TIMEOUT);
    Ok(looping?.run()?)
}

/// The connections, and what they ask for.
struct HttpServer {
    view: Rc<RefCell<View>>,
    pages: Pages,
    clients: Sessions<Client>,
    actions: VecDeque<Action>,
    /// Clients with unsent output, each once.
    dirty: Vec<ConnId>,
    draining: bool,
}

struct Client {
    connection: Connection,
    /// The page that it waits for.
    waits_for: Option<Page>,
    /// The loop was asked not to read from it.
    is_paused: bool,
    /// It is in the list of those with unsent output.
    is_dirty: bool,
}

impl HttpServer {
    fn new(view: Rc<RefCell<View>>) -> HttpServer {
        HttpServer {
            view,
            pages: Pages::default(),
            clients: Sessions::default(),
            actions: VecDeque::new(),
            dirty: Vec::new(),
            draining: false,
        }
    }

    /// Serves the requests that have come, one by one, and tells the loop what it has to do.
    fn advance(&mut self, id: ConnId, now: Time) {
        let Some(client) = self.clients.find_mut(id) else { return };
        if let Some(request) = client.connection.next_request(now.0) {
            let view = &mut self.view.borrow_mut();
            match self.pages.find(&request, view, now.0) {
                Outcome::Answer(response) => client.connection.answer(&response, now.0),
                Outcome::Wait(page) => client.waits_for = Some(page),
            }
        }
        self.settle(id);
    }

    /// Has a client's output written, its input read or not, or its connection closed.
    fn settle(&mut self, id: ConnId) {
        let Some(client) = self.clients.find_mut(id) else { return };
        let stage = client.connection.stage();
        if stage == Stage::Over || (self.draining && stage == Stage::Idle) {
            return self.close(id);
        }
        if stage == Stage::Answering && !client.is_dirty {
            client.is_dirty = true;
            self.dirty.push(id);
        }
        if stage == Stage::Reading {
            // The client may wait for the ACK of these bytes before it sends the rest.
            self.actions.push_back(Action::FlushAck(id));
        }
        let pause = !client.connection.wants_input();
        if pause != client.is_paused {
            client.is_paused = pause;
            self.actions.push_back(if pause { Action::Pause(id) } else { Action::Resume(id) });
        }
    }

    fn close(&mut self, id: ConnId) {
        if self.clients.remove(id).is_some() {
            self.actions.push_back(Action::Close(id));
        }
    }

    /// Makes room for one more client: the one that has kept its place longest without using it is
    /// closed. One that has just come has a moment to ask.
    fn make_room(&mut self, now: Time) -> bool {
        let mut oldest: Option<(u64, ConnId)> = None;
        for id in self.clients.ids() {
            let Some(client) = self.clients.find(id) else { continue };
            let since = client.connection.since();
            let patience = match client.connection.stage() {
                Stage::Idle | Stage::Lingering | Stage::Over => IDLE_US,
                Stage::Reading | Stage::Answering => SLOW_US,
                Stage::Waiting => continue,
            };
            if now.0.saturating_sub(since) >= patience {
                oldest = oldest.into_iter().chain([(since, id)]).min();
            }
        }
        if let Some((_, id)) = oldest {
            self.close(id);
        }
        oldest.is_some()
    }

    /// Pages that slow clients have not read are kept for them. If those are too many bytes, the
    /// slowest clients are closed.
    fn bound_bytes(&mut self) {
        loop {
            let mut bodies: Vec<(*const u8, usize)> = Vec::new();
            let mut slowest: Option<(u64, ConnId)> = None;
            for id in self.clients.ids() {
                let Some(client) = self.clients.find(id) else { continue };
                let body = client.connection.body();
                if body.is_empty() {
                    continue;
                }
                bodies.push((body.as_ptr(), body.len()));
                let since = client.connection.since();
                slowest = slowest.into_iter().chain([(since, id)]).min();
            }
            bodies.sort_unstable();
            bodies.dedup();
            match slowest {
                Some((_, id))
                    if bodies.iter().map(|(_, len)| len).sum::<usize>() > BYTES_MAX
                        && bodies.len() > 1 =>
                {
                    self.close(id);
                }
                _ => return,
            }
        }
    }

    /// Gives the master's answers to those who wait for it.
    fn take_answers(&mut self, now: Time) {
        let (answers, version) = {
            let mut view = self.view.borrow_mut();
            (std::mem::take(&mut view.answers), view.version)
        };
        for (question, text) in answers {
            let response = self.pages.take_answer(question, text, version, now.0);
            for id in self.clients.ids() {
                if let Some(client) = self.clients.find_mut(id)
                    && client.waits_for.take_if(|page| *page == Page::Asked(question)).is_some()
                {
                    client.connection.answer(&response, now.0);
                    self.settle(id);
                }
            }
        }
    }
}

impl Service for HttpServer {
    fn handle_accept(&mut self, _pool: u32, now: Time) -> Result<ConnId, Vec<u8>> {
        if self.clients.len() >= CLIENTS_MAX && !self.make_room(now) {
            return Err(Response::refusal(Status::ServiceUnavailable).last_bytes(Method::Get));
        }
        let connection = Connection::new(now.0);
        let client = Client { connection, waits_for: None, is_paused: false, is_dirty: false };
        Ok(self.clients.insert(client))
    }

    fn handle_received(&mut self, conn: ConnId, block: &Rc<Block>, len: usize, now: Time) {
        if let Some(client) = self.clients.find_mut(conn) {
            client.connection.receive(&block[..len], now.0);
        }
        self.advance(conn, now);
    }

    fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time) {
        let Some(client) = self.clients.find_mut(conn) else { return };
        client.connection.advance(n, now.0);
        if client.connection.stage() != Stage::Answering {
            self.advance(conn, now);
        }
    }

    fn handle_connected(&mut self, _link: ConnId, _now: Time) {}

    fn handle_closed(&mut self, conn: ConnId, how: Closed, now: Time) {
        match how {
            Closed::Reset | Closed::Unmade(_) | Closed::Own => drop(self.clients.remove(conn)),
            Closed::Eof => {
                if let Some(client) = self.clients.find_mut(conn) {
                    client.connection.end(now.0);
                }
                self.settle(conn);
            }
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        for id in self.clients.ids() {
            let Some(client) = self.clients.find_mut(id) else { continue };
            if client.connection.deadline() <= now.0 {
                client.waits_for = None;
                client.connection.time_out(now.0);
                self.settle(id);
            }
        }
    }

    fn end_turn(&mut self, now: Time) {
        self.take_answers(now);
        self.bound_bytes();
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        let all = self.clients.ids().into_iter();
        all.filter_map(|id| Some(Time(self.clients.find(id)?.connection.deadline()))).min()
    }

    fn poll_transmit(&mut self, side: Side) -> Option<ConnId> {
        if side == Side::Link {
            return None;
        }
        let id = self.dirty.pop()?;
        if let Some(client) = self.clients.find_mut(id) {
            client.is_dirty = false;
        }
        Some(id)
    }

    fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>) {
        if let Some(client) = self.clients.find(conn) {
            let unsent = client.connection.unsent();
            unsent.into_iter().filter(|piece| !piece.is_empty()).for_each(|piece| out.push(piece));
        }
    }

    fn drain(&mut self, _now: Time) {
        self.draining = true;
        for id in self.clients.ids() {
            self.settle(id);
        }
    }

    fn is_drained(&self) -> bool {
        self.draining && self.clients.len() == 0
    }
}

/// Connections at a time.
const CLIENTS_MAX: usize = 64;
/// Clients give way to new ones when there is no room: those that have asked nothing for so long, …
const IDLE_US: u64 = 100_000;
/// … and those that have taken so long to ask or to read.
const SLOW_US: u64 = 1_000_000;
/// Bytes of different pages that clients have not read yet.
const BYTES_MAX: usize = 64 << 20;
/// How long clients may take to read their last answers when this process ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
