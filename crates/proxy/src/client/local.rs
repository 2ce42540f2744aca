//! Local commands, which a protocol answers by itself: server information, the client's name, its
//! database. The protocol writes the answer and decides how the client goes on.

use std::rc::Rc;

use metrics::{PoolCounter, SlowReset};
use proto::{AfterLocal, Answer, Asked, Endpoints, Local, Quiet, Refusal, Request, Session};

use super::Clients;
use super::facts::{ClientFacts, PoolFacts, VERSION, slow_row};
use super::inquire::row_of;
use super::leave::Departure;
use super::session::Client;
use crate::Action;
use crate::base::block::Block;
use crate::base::buffer::Source;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;
use crate::base::{Base, limits};

/// A local command's answer that never changes, rendered once and sent by reference.
pub(super) struct Text {
    protocol: &'static str,
    command: u16,
    proto_version: u8,
    block: Rc<Block>,
}

impl Clients {
    /// Answers a request from the proxy's own knowledge.
    pub(crate) fn answer_local(
        &mut self,
        base: &mut Base,
        id: ConnId,
        (request, local): (&Request, Local),
        head: &[u8],
    ) {
        let Some(client) = self.table.find_mut(id) else { return };
        base.pools[client.pool as usize].counters.add(PoolCounter::Local, 1);
        match local {
            Local::Version => self.answer(base, id, request, head, &Answer::Version(VERSION)),
            Local::Nothing => self.answer(base, id, request, head, &Answer::Ok),
            Local::Barrier => self.barrier(base, id, request, head),
            Local::Stats => self.answer_stats(base, id, request, head),
            Local::Own | Local::Clients | Local::Monitor => self.local(base, id, request, head),
            Local::Unwatch => {
                client.end_watch();
                self.answer(base, id, request, head, &Answer::Ok);
            }
            Local::Begin => self.begin_transaction(base, id, request, head),
            Local::Subscribe => unreachable!("the servers are told: proxy/topics.rs"),
            Local::Execute | Local::Discard => {
                let answer = Answer::Refused(Refusal::OutOfPlace);
                self.answer(base, id, request, head, &answer);
            }
            Local::Quit => {
                client.departure = Departure::Quits;
                self.answer(base, id, request, head, &Answer::Bye);
                self.leave(base, id);
            }
        }
    }

    /// Answers with the line in which the pool's only server has said that it is busy.
    #[cold]
    pub(crate) fn answer_busy(&mut self, base: &mut Base, id: ConnId, request: &Request) {
        let Some(client) = self.table.find(id) else { return };
        let line = base.pools[client.pool as usize].busy_line().unwrap_or_default().to_vec();
        if request.quiet != Quiet::Silent {
            self.answer_encoded(base, id, request, Source::plain(&line));
        }
    }

    /// Has the protocol answer a local command.
    fn local(&mut self, base: &mut Base, id: ConnId, request: &Request, head: &[u8]) {
        let Some(client) = self.table.find_mut(id) else { return };
        let is_constant = client.protocol.is_constant(request, head);
        if is_constant && request.quiet == Quiet::Silent {
            return;
        }
        if is_constant && let Some(block) = find_text(&self.texts, client, request.command) {
            let words = Source::block(&block, block.len());
            return self.answer_encoded(base, id, request, words);
        }
        charge_long(client, request);
        number(client);
        let mut session = client.session.clone();
        let mut words = std::mem::take(&mut base.scratch);
        words.clear();
        let was_silent = request.quiet == Quiet::Silent;
        session.reply_mode = session.reply_mode.for_local(was_silent);
        let turn = write_local(base, client, (request, head), &mut session, &mut words);
        client.told = None;
        let is_silenced = was_silent && !session.reply_mode.is_on();
        session.reply_mode = session.reply_mode.after_local();
        if turn == AfterLocal::Close {
            client.departure = Departure::Quits;
        }
        let request = Request { quiet: Quiet::Loud, ..*request };
        let (protocol, command) = (client.protocol.name(), request.command);
        let proto_version = session.conn_key.proto_version;
        if !self.take_session(base, id, session) {
            if !is_silenced {
                self.answer(base, id, &request, head, &Answer::Failed(TOO_MANY_CONN_KEYS));
            }
        } else if is_constant {
            let block = Rc::new(Block::from(words.clone()));
            self.answer_encoded(base, id, &request, Source::block(&block, block.len()));
            self.texts.push(Text { protocol, command, proto_version, block });
        } else if !is_silenced {
            self.answer_encoded(base, id, &request, Source::plain(&words));
        }
        if words.capacity() <= limits::BUFFER_KEEP_MAX {
            base.scratch = words;
        }
        let Some(client) = self.table.find_mut(id) else { return };
        match turn {
            AfterLocal::Continue
            | AfterLocal::HideSlow
            | AfterLocal::HideCauses(_)
            | AfterLocal::Unpause => {}
            // The client's own next request may be held.
            AfterLocal::Pause { .. } => base.note_special(),
            AfterLocal::Close => self.leave(base, id),
            AfterLocal::Monitor => self.begin_monitor(base, id),
            AfterLocal::LogOut => {
                (client.login.done, client.monitors) = (false, false);
                client.end_watch();
                self.end_subscriptions(base, id);
                let _ = self.set_user(base, id, None);
            }
        }
    }

    /// Writes the answer to a local command that changes nothing, for the answer to a transaction,
    /// and charges the client for it.
    pub(crate) fn local_words(
        &mut self,
        base: &mut Base,
        id: ConnId,
        (request, head): (&Request, &[u8]),
        local: Local,
    ) -> Vec<u8> {
        let mut words = Vec::new();
        let Some(client) = self.table.find_mut(id) else { return words };
        base.pools[client.pool as usize].counters.add(PoolCounter::Local, 1);
        charge_long(client, request);
        if matches!(local, Local::Own | Local::Clients) {
            number(client);
            let mut session = client.session.clone();
            write_local(base, client, (request, head), &mut session, &mut words);
        } else {
            let asked = Asked { command: request.command, head, ..Asked::no_request() };
            client.protocol.answer(&asked, &Answer::Ok, &mut words);
        }
        client.charge((words.len() / limits::ANSWER_WORK_BYTES) as u32);
        words
    }

    /// Applies a client's new session settings. If its connection key changes, its next request
    /// waits until all earlier ones have been answered. False: there are too many connection keys,
    /// and the session stays as it was.
    fn take_session(&mut self, base: &mut Base, id: ConnId, session: Session) -> bool {
        let Some(client) = self.table.find_mut(id) else { return true };
        let from = client.conn_key;
        let moved = session.conn_key != client.session.conn_key;
        let conn_keys = &mut base.pools[client.pool as usize].conn_keys;
        let to = if moved { conn_keys.find_or_add(session.conn_key) } else { Some(from) };
        let Some(to) = to else { return false };
        client.session = session;
        if moved && !bug!(KeepConnKey) {
            client.conn_key = to;
            // Something may still be owed that was answered with an error.
            if !bug!(OvertakeConnKey) {
                client.class = LinkClass::Moved;
            }
            conn_keys.leave(from);
            conn_keys.enter(to);
        }
        if moved && !bug!(OvertakeConnKey) {
            self.pause_until_idle(base, id);
        }
        true
    }

    /// Takes a client to the database that its transaction has selected. If there are too many in
    /// use, it is closed.
    #[cold]
    pub(crate) fn set_database(&mut self, base: &mut Base, id: ConnId, database: u32) {
        let Some(client) = self.table.find(id) else { return };
        let mut session = client.session.clone();
        session.conn_key.database = database;
        if !self.take_session(base, id, session) {
            self.leave(base, id);
        }
    }

    /// Whether the addresses of a client's connection are known.
    pub(crate) fn has_endpoints(&self, id: ConnId) -> bool {
        self.table.find(id).is_some_and(|client| client.endpoints.is_some())
    }

    /// Pauses a client until the driver has given the addresses of its connection. Few clients ask
    /// for them, so they are looked up only then.
    pub(crate) fn await_endpoints(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        client.pause();
        client.waits.endpoints = true;
        base.actions.push_back(Action::LookUpEndpoints(id));
    }

    /// Takes the addresses of a client's connection.
    pub(crate) fn set_endpoints(&mut self, base: &mut Base, id: ConnId, ends: Endpoints) {
        if let Some(client) = self.table.find_mut(id) {
            (client.endpoints, client.waits.endpoints) = (Some(Box::new(ends)), false);
            self.update_client(base, id);
        }
    }
}

/// Charges a client for a request whose answer is written and may then be refused for its length.
fn charge_long(client: &mut Client, request: &Request) {
    let [_, longest] = client.protocol.local_bounds(request, limits::OWN_LEN_MAX);
    if longest > limits::OWN_LEN_MAX {
        client.charge((longest / limits::ANSWER_WORK_BYTES) as u32);
    }
}

/// Gives a client its number, if it has none.
fn number(client: &mut Client) {
    if client.session.id == 0 {
        client.session.id = client.record.tally.id;
    }
}

/// Has the protocol write the answer to a local command.
fn write_local(
    base: &Base,
    client: &Client,
    (request, head): (&Request, &[u8]),
    session: &mut Session,
    words: &mut Vec<u8>,
) -> AfterLocal {
    let uptime = base.now.since(base.started);
    let pool = &base.pools[client.pool as usize];
    let tenant = base.tenants.find(client.tenant).map_or(0, |tenant| tenant.plan.id);
    let facts = ClientFacts {
        endpoints: client.endpoints.as_deref(),
        age_s: base.now.since(client.record.tally.came) / 1_000_000,
        topics: client.topics(),
        tenant,
    };
    let told = client.told.as_deref();
    let ours = PoolFacts { pool, metrics: base.metrics, uptime, client: facts, told };
    let turn = client.protocol.local(request, head, session, &ours, words);
    hide_slow(base, client.pool, tenant, turn);
    pause(base, client, turn);
    turn
}

/// Hides slow requests from the clients of a pool, or of a tenant.
fn hide_slow(base: &Base, pool: u32, tenant: u32, turn: AfterLocal) {
    let row = slow_row(&base.pools[pool as usize], tenant);
    let hide = |reset| base.metrics.reset_slow_log(row, reset, base.now.0);
    match turn {
        AfterLocal::HideSlow => hide(SlowReset::Clients),
        AfterLocal::HideCauses(bits) => {
            let causes = (0..SlowReset::CAUSES as u8).filter(|cause| bits & 1 << cause != 0);
            causes.for_each(|cause| hide(SlowReset::Cause(cause)));
        }
        _ => {}
    }
}

/// Pauses the clients of a client's tenant or pool, or ends their pause.
fn pause(base: &Base, client: &Client, turn: AfterLocal) {
    let pauses = || base.metrics.registry().pauses(row_of(base, client.pool, client.tenant));
    match turn {
        AfterLocal::Pause { ms, writes_only } => {
            pauses().begin(base.now.after(ms.saturating_mul(1_000)).0, writes_only);
        }
        AfterLocal::Unpause => pauses().end(),
        _ => {}
    }
}

/// Returns the answer to this command, if it is one that never changes and has been rendered.
fn find_text(texts: &[Text], client: &Client, command: u16) -> Option<Rc<Block>> {
    let (protocol, key) = (client.protocol.name(), client.session.conn_key.proto_version);
    let is_it = |text: &&Text| {
        (text.command, text.proto_version, text.protocol) == (command, key, protocol)
    };
    texts.iter().find(is_it).map(|text| Rc::clone(&text.block))
}

const TOO_MANY_CONN_KEYS: &str = "too many databases are in use through this proxy";
