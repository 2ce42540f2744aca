//! Clients that go to another worker. Whoever has nothing outstanding, neither asked nor half
//! asked nor unsent, is nothing but a connection of a pool, known there or not, and can be served
//! anywhere.

use crate::client::{Client, State};
use crate::id::ConnId;
use crate::{Passed, Proxy};

impl Proxy {
    /// Forgets up to `max` clients that have nothing outstanding. Nobody is told to close them:
    /// their connections are the caller's, for another worker.
    pub fn hand_over(&mut self, max: usize) -> Vec<(ConnId, Passed)> {
        let clients = self.desk.clients.iter().filter(|(_, client)| {
            let is_reading = client.state == State::Open && !client.paused && !client.held_back;
            is_reading && client.is_settled() && !client.is_mid_request()
        });
        let rows = &self.desk.pools;
        let passed = |client: &Client| client.passed(rows[client.pool as usize].plan.row);
        let leaving: Vec<(ConnId, Passed)> =
            clients.take(max).map(|(id, client)| (id, passed(client))).collect();
        leaving.iter().for_each(|(id, _)| self.desk.drop_client(*id));
        leaving
    }
}
