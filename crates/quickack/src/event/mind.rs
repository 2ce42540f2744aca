//! What the loop drives: a value that takes bytes and the time, and gives bytes and actions.

use std::rc::Rc;

use proxy::{Action, Closed, ConnId, Proxy, Side, Slices, Time};

/// The contract of `proxy::Proxy`, for whoever wants to be driven the same way.
pub trait Mind {
    fn handle_accept(&mut self, listener: usize, now: Time) -> Result<ConnId, Vec<u8>>;
    fn handle_received(&mut self, conn: ConnId, block: &Rc<Vec<u8>>, len: usize, now: Time);
    fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time);
    fn handle_connected(&mut self, link: ConnId, now: Time);
    fn handle_closed(&mut self, conn: ConnId, how: Closed, now: Time);
    fn handle_timeout(&mut self, now: Time);
    fn end_turn(&mut self, now: Time);
    fn poll_action(&mut self) -> Option<Action>;
    fn poll_timeout(&self) -> Option<Time>;
    fn poll_transmit(&mut self, side: Side) -> Option<ConnId>;
    fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>);
    fn drain(&mut self, now: Time);
    fn is_drained(&self) -> bool;
}

impl Mind for Proxy {
    fn handle_accept(&mut self, listener: usize, now: Time) -> Result<ConnId, Vec<u8>> {
        Proxy::handle_accept(self, listener as u32, now)
    }

    fn handle_received(&mut self, conn: ConnId, block: &Rc<Vec<u8>>, len: usize, now: Time) {
        Proxy::handle_received(self, conn, block, len, now);
    }

    fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time) {
        Proxy::handle_transmitted(self, conn, n, now);
    }

    fn handle_connected(&mut self, link: ConnId, now: Time) {
        Proxy::handle_connected(self, link, now);
    }

    fn handle_closed(&mut self, conn: ConnId, how: Closed, now: Time) {
        Proxy::handle_closed(self, conn, how, now);
    }

    fn handle_timeout(&mut self, now: Time) {
        Proxy::handle_timeout(self, now);
    }

    fn end_turn(&mut self, now: Time) {
        Proxy::end_turn(self, now);
    }

    fn poll_action(&mut self) -> Option<Action> {
        Proxy::poll_action(self)
    }

    fn poll_timeout(&self) -> Option<Time> {
        Proxy::poll_timeout(self)
    }

    fn poll_transmit(&mut self, side: Side) -> Option<ConnId> {
        Proxy::poll_transmit(self, side)
    }

    fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>) {
        Proxy::transmit(self, conn, out);
    }

    fn drain(&mut self, now: Time) {
        Proxy::drain(self, now);
    }

    fn is_drained(&self) -> bool {
        Proxy::is_drained(self)
    }
}
