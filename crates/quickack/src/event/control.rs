//! The control channel, as the loop sees it: commands come in before anything else is done, reports
//! go out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use proto::Told;
use proxy::access::AccessLine;
use proxy::connection::Connection;
use proxy::plan::Plan;
use proxy::{Event, Report, Tally, Time};

use super::{Listener, Service, Target};
use crate::ipc::client_state::ClientState;
use crate::ipc::query::{ClientRow, InPiecesRow, Query};
use crate::scoreboard::Ejection;

/// The controller of the loop. The cache process, which nothing controls, has [`NoControl`].
pub trait Control {
    /// The descriptor that wakes the loop for a command.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the loop is to say when `fd` can be written to, too.
    fn has_unsent(&self) -> bool;

    /// Whether the other end is gone.
    fn is_gone(&self) -> bool {
        false
    }

    /// A signal told the loop to end, not a command.
    fn leaving(&mut self) {}

    /// Changes that hold for all workers from now on. Asked before each pass over what is ready, so
    /// that nothing is read by rules that do not hold any more; costs nothing when nothing changed.
    fn poll_changes(&mut self, out: &mut Vec<Command>);

    /// `fd` is ready: the commands that have come.
    fn receive(&mut self, out: &mut Vec<Command>);

    /// An installation has been carried out.
    fn installed(&mut self, service: &dyn Service);

    /// A turn is over.
    fn after_turn(&mut self, service: &dyn Service);

    fn report(&mut self, report: Report);

    /// Writes a line of the access log. `client`: where its client is.
    fn access(&mut self, _line: &AccessLine, _client: &str) {}

    /// Whether something waits that can be written soon, though nothing will say when.
    fn has_backlog(&self) -> bool {
        false
    }

    /// `from`: the address of the client that the event names.
    fn log(&mut self, event: Event, from: Option<IpAddr>);

    /// Logs what became of a connection. `ends`: its other end, and ours; empty if not known.
    fn log_connection(&mut self, _what: &Connection, _ends: [&str; 2]) {}

    /// Logs something that the loop itself has noticed.
    fn log_loop_event(&mut self, note: LoopEvent);

    /// Clients with nothing outstanding, for other workers. Those that cannot be passed are given
    /// back.
    fn hand_over(&mut self, client: ClientState, ones: Vec<Leaver>) -> Result<(), Vec<Leaver>>;

    /// Whether a part of an answer would be taken at once.
    fn has_room(&self) -> bool {
        !self.has_unsent()
    }

    /// A part of the answer to a question.
    fn answer(&mut self, _rows: Rows) {}

    /// A question of a client about clients, for all workers. `Err`: it cannot be asked.
    fn ask(&mut self, _number: u64, _query: Query) -> Result<(), String> {
        Err("there is nobody to ask".to_string())
    }
}

/// One of the clients that are handed over: what it has done, and its connection.
#[derive(Debug)]
pub struct Leaver {
    pub tally: Tally,
    pub fd: OwnedFd,
}

/// A part of the answer to the question with this number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub number: u64,
    pub clients: Vec<ClientRow>,
    pub in_pieces: Vec<InPiecesRow>,
    /// Rows for which there was no room, so far.
    pub left_out: u64,
    pub is_last: bool,
}

/// A note of the loop itself to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopEvent {
    /// A client from a network of balancers sent something else than a whole PROXY header.
    HeaderBroken { from: Option<IpAddr>, why: &'static str },
    /// The time for the end is over: so many clients are closed that have asked for something, of
    /// which so many were in the middle of a request.
    CutOff { clients: usize, half_asked: usize },
}

impl LoopEvent {
    /// Returns a word for it, a key that repeats of it share, and the line for the log.
    pub fn line(&self) -> (&'static str, String, String) {
        match self {
            LoopEvent::HeaderBroken { from, why } => {
                let from = from.map_or("a client".to_string(), |address| address.to_string());
                let text = format!("{from} sent no valid PROXY header ({why}) and was closed");
                ("header_broken", format!("header {from}"), text)
            }
            LoopEvent::CutOff { clients, half_asked } => {
                let text = format!(
                    "`shutdown_timeout` is over: {clients} clients with something outstanding are \
                     closed, {half_asked} of them in the middle of a request"
                );
                ("clients_cut_off", String::new(), text)
            }
        }
    }
}

/// A command to the loop.
pub enum Command {
    /// Another configuration.
    Install(Box<Install>),
    /// A server left its ring, or came back.
    Eject(Ejection),
    /// Another worker gets no answer from this server.
    AskServer(u32),
    /// Why this server left its ring.
    NoteWhyEjected { server: u32, why: String },
    /// Clients from another worker that are all alike.
    Adopt { client: ClientState, fds: Vec<OwnedFd> },
    /// Other listeners. Those that are not among them are accepted empty and closed.
    Listen(Vec<Listener>),
    /// No more clients; those with nothing outstanding go to other workers. Ends with the last.
    Retire,
    /// There are workers with fewer clients: clients with nothing outstanding go to them, until
    /// so many are left or the time for it is over.
    Share { keep: u32 },
    /// No more clients; each is closed when it has been answered. Ends with the last, or then.
    Drain { within: Duration },
    /// The answer to a question of a client, or why there is none.
    Told { number: u64, told: Result<Told, String> },
    /// A question about the clients, which the master wants answered by then.
    Query { number: u64, until: Time, query: Query },
}

/// A configuration as the loop needs it.
pub struct Install {
    pub plan: Plan,
    pub listeners: Vec<Listener>,
    /// By server id; of the servers that are new here.
    pub targets: BTreeMap<u32, Target>,
    pub connects_per_second: u64,
    pub epoll_timeout: Duration,
}

/// No control: the process serves what it was started with until a signal ends it.
pub struct NoControl;

impl Control for NoControl {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_unsent(&self) -> bool {
        false
    }

    fn poll_changes(&mut self, _out: &mut Vec<Command>) {}

    fn receive(&mut self, _out: &mut Vec<Command>) {}

    fn installed(&mut self, _service: &dyn Service) {}

    fn after_turn(&mut self, _service: &dyn Service) {}

    fn report(&mut self, _report: Report) {}

    fn log(&mut self, _event: Event, _from: Option<IpAddr>) {}

    fn log_loop_event(&mut self, _note: LoopEvent) {}

    fn hand_over(&mut self, _client: ClientState, ones: Vec<Leaver>) -> Result<(), Vec<Leaver>> {
        Err(ones)
    }
}
