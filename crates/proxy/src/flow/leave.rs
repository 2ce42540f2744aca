//! Clients that go to another worker. A client with nothing outstanding, no partial request and no
//! unsent output is only a connection with its session, and any worker can serve it.

use crate::client::{Client, State};
use crate::id::ConnId;
use crate::{Passed, Proxy};

impl Proxy {
    /// Forgets up to `max` clients that have nothing outstanding, and returns them. No `Close` is
    /// ordered for them: the caller passes their connections to another worker.
    pub fn hand_over(&mut self, max: usize) -> Vec<(ConnId, Passed)> {
        let clients = self.pipelines.clients.iter().filter(|(_, client)| {
            let is_reading = client.state == State::Open && !client.paused && !client.until_idle;
            is_reading && client.is_settled() && !client.is_mid_request()
        });
        let requests = &self.pipelines.pools;
        let passed = |client: &Client| client.passed(requests[client.pool as usize].plan.id);
        let leaving: Vec<(ConnId, Passed)> =
            clients.take(max).map(|(id, client)| (id, passed(client))).collect();
        leaving.iter().for_each(|(id, _)| self.pipelines.drop_client(*id));
        leaving
    }
}
