//! Clients that go, and what is told of them. Some go to another worker: a client with nothing
//! outstanding, no partial request and no unsent output is only a connection with its session, and
//! any worker can serve it.

use proto::Protocol;

use super::Clients;
use super::session::{Client, Login, State};
use crate::Passed;
use crate::base::connection::{ClientLeft, Connection, Departed};
use crate::base::id::ConnId;
use crate::base::pool::Stage;
use crate::base::{Base, limits};

/// How a client has gone, or is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// It is here.
    Here,
    /// It has sent a `quit` or an equivalent command.
    Quits,
    /// It has closed its half right behind its last request: there are no more, and it listens.
    Ends,
    /// Its connection has ended without a `quit`.
    Left,
}

impl Clients {
    /// Returns why a client is closed that has all its answers.
    pub(super) fn departed(&self, base: &Base, client: &Client) -> Departed {
        let ends = self.draining || base.pools[client.pool as usize].stage != Stage::Planned;
        match client.departure {
            Departure::Quits => Departed::Quit,
            Departure::Ends | Departure::Left => Departed::Ended,
            Departure::Here if ends => Departed::Drained,
            Departure::Here => Departed::Closed,
        }
    }

    /// Reports a client that is gone.
    pub(super) fn tell_left(&self, base: &mut Base, id: ConnId, why: Departed) {
        let Some(client) = self.table.find(id) else { return };
        let tally = client.tally();
        base.log_connection(|base| {
            Connection::Left(ClientLeft {
                client: id,
                pool: base.pools[client.pool as usize].plan.id,
                tenant: base.tenants.find(client.tenant).map_or(0, |tenant| tenant.plan.id),
                user: client.user().map(|user| user.to_string()),
                why,
                requests: tally.requests,
                received: tally.received,
                sent: tally.sent,
                lasted_us: base.now.since(tally.came),
            })
        });
    }

    /// Forgets up to `max` clients that have nothing outstanding, and returns them. No `Close` is
    /// ordered for them: the caller passes their connections to another worker.
    pub(crate) fn hand_over(&mut self, base: &mut Base, max: usize) -> Vec<(ConnId, Passed)> {
        // A guesser always has a login waiting, and would keep this worker from leaving. It is told
        // that it is late, and closed if it goes on.
        let is_guesser = |client: &Client| client.waits.login && client.login.failures > 0;
        let guessers = self.table.iter().filter(|(_, client)| is_guesser(client));
        let guessers: Vec<ConnId> = guessers.map(|(id, _)| id).collect();
        for id in guessers {
            let guesser = self.table.find(id);
            let goes_on = guesser.is_some_and(|one| one.login.failures >= limits::MISTAKES_MAX);
            self.refuse_login(base, id);
            if goes_on {
                self.leave(base, id);
            }
        }
        let clients = self.table.iter().filter(|(_, client)| {
            let is_reading =
                client.state == State::Open && !client.is_paused() && !client.waits.idle;
            // What a client has queued is here, and so it stays until its transaction ends; so does
            // one that watches keys on a link of this worker, one that looks at others from here,
            // and one that is sent messages here.
            let is_bound = client.transaction.is_some() || client.has_watched(base.now);
            let stays = is_bound || client.monitors || client.listens();
            is_reading && client.is_settled() && !client.is_mid_request() && !stays
        });
        let pools = &base.pools;
        let passed = |client: &Client| client.passed(pools[client.pool as usize].plan.id);
        let leaving: Vec<(ConnId, Passed)> =
            clients.take(max).map(|(id, client)| (id, passed(client))).collect();
        leaving.iter().for_each(|(id, _)| self.drop_client(base, *id, Departed::HandedOver));
        leaving
    }
}

impl Client {
    /// Returns the state that another worker needs to take the client over.
    pub(super) fn passed(&self, pool_id: u32) -> Passed {
        let is_it = |one: &&dyn Protocol| one.name() == self.protocol.name();
        let place = proto::PROTOCOLS.iter().position(is_it);
        Passed {
            pool: pool_id,
            protocol: place.filter(|_| self.has_sent).map(|place| place as u8),
            logged_in: self.login.done,
            user: self.user().filter(|_| !bug!(LoseTenant)).map(|user| user.to_string()),
            failed_logins: self.login.failures,
            session: self.session.clone(),
            tally: self.tally(),
        }
    }

    /// Takes over the state of a client from another worker.
    pub(super) fn take_over(&mut self, client: Passed) {
        if let Some(place) = client.protocol {
            self.protocol = proto::PROTOCOLS[usize::from(place)];
            self.has_sent = true;
        }
        let (done, failures) = (client.logged_in, client.failed_logins);
        self.login = Login { done, failures, is_overdue: false };
        self.session = client.session;
        self.record.tally = client.tally;
        self.received = client.tally.active;
    }
}
