//! A firewall in front of a server.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net;

use super::{DEADLINE, wait_until};

/// The queue of the listener while nothing is dropped.
const QUEUE: i32 = 128;
/// A connect that takes longer has been dropped: on loopback, the kernel answers at once.
const DROPPED_AFTER: Duration = Duration::from_millis(100);

/// A relay to a server that can drop new connections without a word, while those that stand go on,
/// and that can end one of those.
///
/// The kernel drops the SYN of a connection that finds the listener's queue full.
pub struct Firewall {
    pub address: SocketAddr,
    listener: TcpListener,
    gate: Arc<Gate>,
    /// The connections that were relayed, in their order.
    relayed: Arc<Mutex<Vec<TcpStream>>>,
    fill: Vec<TcpStream>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Open,
    /// The next connection is the last that is accepted.
    Closing,
    Closed,
}

impl Firewall {
    pub fn start(server: SocketAddr) -> Firewall {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port on loopback");
        let address = listener.local_addr().expect("a bound listener has an address");
        let gate = Arc::new(Gate::default());
        let accepts = Arc::clone(&gate);
        let relayed = Arc::<Mutex<Vec<TcpStream>>>::default();
        let all = Arc::clone(&relayed);
        let accepting = listener.try_clone().expect("a socket can be had twice");
        thread::spawn(move || {
            for near in accepting.incoming().map_while(Result::ok) {
                accepts.pass();
                let another = near.try_clone().expect("a socket can be had twice");
                if relay(near, server) {
                    all.lock().unwrap_or_else(PoisonError::into_inner).push(another);
                }
            }
        });
        Firewall { address, listener, gate, relayed, fill: Vec::new() }
    }

    /// Ends the connection that was made first.
    pub fn cut_first(&self) {
        self.relayed()[0].shutdown(Shutdown::Both).expect("it stands");
    }

    /// Ends the connection that was made last, when there have been more than so many; returns how
    /// many there were.
    pub fn cut_last(&self, before: usize) -> usize {
        wait_until("the connection is relayed", || self.relayed().len() > before);
        let relayed = self.relayed();
        relayed[relayed.len() - 1].shutdown(Shutdown::Both).expect("it stands");
        relayed.len()
    }

    fn relayed(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.relayed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a connect to the server never ends.
    pub fn drop_new(&mut self) {
        net::listen(&self.listener, 0).expect("it listens already");
        self.gate.set(State::Closing);
        // It is accepted, unless another was.
        self.fill.extend(TcpStream::connect_timeout(&self.address, DEADLINE));
        self.gate.wait_for_closed();
        while let Ok(one) = TcpStream::connect_timeout(&self.address, DROPPED_AFTER) {
            self.fill.push(one);
        }
    }

    /// Connections are made again.
    pub fn let_pass(&mut self) {
        self.fill.clear();
        net::listen(&self.listener, QUEUE).expect("it listens already");
        self.gate.set(State::Open);
    }
}

impl Gate {
    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    fn wait_for_closed(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |state: &mut State| *state != State::Closed;
        let waited = self.changed.wait_timeout_while(state, DEADLINE, is_open);
        let waited = waited.unwrap_or_else(PoisonError::into_inner).1;
        assert!(!waited.timed_out(), "the relay accepts nothing");
    }

    /// Lets a connection pass. The one that finds the gate closing closes it, and waits until it is
    /// open again.
    fn pass(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Closing {
            *state = State::Closed;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| *state != State::Open));
        }
    }
}

/// Carries bytes and ends in both directions; returns whether the server is there.
fn relay(near: TcpStream, server: SocketAddr) -> bool {
    // Without deadlines, unlike a test's own.
    let Ok(far) = TcpStream::connect(server) else { return false };
    let (near, far) = (Arc::new(near), Arc::new(far));
    for (from, to) in [(&near, &far), (&far, &near)] {
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        thread::spawn(move || {
            let _ = io::copy(&mut &*from, &mut &*to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    true
}
