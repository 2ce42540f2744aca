//! What operators ask of clients: a list of them, a few at a time, and to close one at once.

use metrics::PoolCounter;
use proto::ClientFlags;

use super::Clients;
use super::session::{Client, State};
use super::tally::Recent;
use crate::Tally;
use crate::base::Base;
use crate::base::connection::Departed;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;

/// A client, as operators see it.
pub struct ClientView<'a> {
    pub conn: ConnId,
    pub tally: Tally,
    /// What it has done in the last seconds, if that was asked for.
    pub recent: Recent,
    pub pool: &'a str,
    pub tenant: Option<&'a str>,
    pub user: Option<&'a str>,
    pub protocol: &'static str,
    /// The version of that, where it has several that clients choose; otherwise 0.
    pub proto_version: u8,
    pub database: u32,
    /// Its name and that of its library, as it gave them: bytes of any kind.
    pub name: &'a [u8],
    pub library: &'a [u8],
    pub library_version: &'a [u8],
    /// Its flags in its protocol's way.
    pub flags: String,
    /// Requests of its transaction, if it is in one.
    pub queued: Option<u32>,
    /// Channels, patterns and shard channels that it listens to.
    pub topics: [u32; 3],
    /// Bytes that came of it and are not read.
    pub input: usize,
    pub state: &'static str,
    /// The class of the links that its requests take.
    pub class: &'static str,
    /// Requests that wait for an answer, and bytes of answers that wait for it.
    pub owed: usize,
    pub held: usize,
}

/// How clients are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// As they are.
    Plain,
    /// The last seconds begin now.
    BeginRecent,
    /// With what they have done in the last seconds.
    Recent,
}

impl Clients {
    /// Looks at the clients in the places from `from` on, at most so many. Returns the next place;
    /// none: there are no more. A client keeps its place for as long as it is here.
    pub(crate) fn walk(
        &mut self,
        base: &Base,
        (from, most): (usize, usize),
        how: Look,
        look: &mut dyn FnMut(ClientView<'_>),
    ) -> Option<usize> {
        let end = from.saturating_add(most).min(self.table.places());
        for place in from..end {
            let Some((id, client)) = self.table.at_mut(place) else { continue };
            let recent = match how {
                Look::Plain => Recent::default(),
                Look::BeginRecent => {
                    client.record.begin_pace(base.now);
                    continue;
                }
                Look::Recent => client.record.recent(base.now),
            };
            look(client.view(base, id, recent));
        }
        (end < self.table.places()).then_some(end)
    }

    /// Closes a client at once, as if it had gone: what is outstanding of it is cancelled.
    pub(crate) fn kill(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find(id) else { return };
        base.pools[client.pool as usize].counters.add(PoolCounter::ClientsKilled, 1);
        self.cancel(id);
        self.close_client(base, id, Departed::Killed);
    }
}

impl Client {
    fn view<'a>(&'a self, base: &'a Base, conn: ConnId, recent: Recent) -> ClientView<'a> {
        let profile = self.session.profile.as_deref();
        ClientView {
            conn,
            tally: self.tally(),
            recent,
            pool: &base.pools[self.pool as usize].plan.name,
            tenant: base.tenants.find(self.tenant).map(|tenant| &*tenant.plan.name),
            user: self.user().map(|user| &**user),
            protocol: self.protocol.name(),
            proto_version: self.session.conn_key.proto_version,
            database: self.session.conn_key.database,
            name: profile.map_or(&[], |profile| &profile.name),
            library: profile.map_or(&[], |profile| &profile.library),
            library_version: profile.map_or(&[], |profile| &profile.library_version),
            flags: self.protocol.client_flags(ClientFlags {
                no_evict: profile.is_some_and(|profile| profile.no_evict),
                no_touch: profile.is_some_and(|profile| profile.no_touch),
                in_transaction: self.transaction.is_some(),
                listens: self.listens(),
                waits: self.awaits_elements(),
            }),
            queued: self.transaction.as_ref().map(|one| one.len()),
            topics: self.topics(),
            input: self.partial.len() + self.kept_ahead(),
            state: match self.state {
                State::Open if self.is_paused() => "paused",
                State::Open => "open",
                State::Finishing | State::Ending | State::Leaving => "leaving",
            },
            class: match self.class {
                LinkClass::Slow => "slow",
                LinkClass::Control => "control",
                LinkClass::Large => "large",
                LinkClass::Spare => "spare",
                LinkClass::Shared | LinkClass::Moved => "shared",
                LinkClass::Private => "private",
                LinkClass::Subscribed => "subscribed",
            },
            owed: self.outstanding(),
            held: self.held(),
        }
    }
}
