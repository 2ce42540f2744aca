//! The answers to questions of the master about clients: a few clients a turn, so that a question
//! about twenty thousand makes no turn long.
//!
//! ```text
//!   Query ─▶ queue ─▶ walk: 64 places a turn ─▶ rows ─▶ channel, if it has taken the rows before
//!                      └─ what was done in the last seconds: marked, a second's pause, walked
//! ```

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

use proxy::{ClientView, ConnId, Look, Time};

use super::Loop;
use super::conn::Conns;
use super::control::Rows;
use crate::ipc::query::{
    ADDRESSES_MAX, ANSWER_LEN_MAX, Asked, Best, ClientRow, Filter, InPiecesRow, Query, ROWS_LEN_MAX,
};

/// The questions that are being answered; the first of them in this turn.
#[derive(Default)]
pub(super) struct Queries {
    running: VecDeque<Running>,
    /// When the last seconds of all clients were looked at last.
    paced: Option<Time>,
}

struct Running {
    number: u64,
    query: Query,
    /// The master waits no longer.
    until: Time,
    stage: Stage,
    /// Bytes of rows that have been sent, and rows that were left out because of that.
    sent: usize,
    left_out: u64,
    /// Rows that are to be sent, or of which the first are.
    rows: Vec<ClientRow>,
}

/// How far an answer is.
#[derive(Clone, Copy)]
enum Stage {
    /// The last seconds begin for the clients from here on.
    Mark(usize),
    /// They are being waited for.
    Pause(Time),
    /// The clients from here on are looked at.
    Walk(usize),
}

impl Queries {
    pub(super) fn add(&mut self, number: u64, until: Time, query: Query, now: Time) {
        let is_paced = self.paced.is_some_and(|at| now.since(at) < PACED_US);
        let stage = match query.is_recent() && !is_paced {
            true => Stage::Mark(0),
            false => Stage::Walk(0),
        };
        let running =
            Running { number, query, until, stage, sent: 0, left_out: 0, rows: Vec::new() };
        self.running.push_back(running);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// When the next step is due; `Time(0)`: at once.
    pub(super) fn due(&self) -> Option<Time> {
        match self.running.front()?.stage {
            Stage::Pause(until) => Some(until),
            Stage::Mark(_) | Stage::Walk(_) => Some(Time(0)),
        }
    }
}

impl Loop<'_> {
    /// Goes on with the first question.
    #[cold]
    pub(super) fn answer_queries(&mut self) {
        let Some(mut running) = self.queries.running.pop_front() else { return };
        let is_over = running.until <= self.now || {
            match running.stage {
                Stage::Mark(from) => {
                    running.stage = self.begin_recent(from);
                    false
                }
                Stage::Pause(until) if until <= self.now => {
                    running.stage = Stage::Walk(0);
                    false
                }
                // Another question goes on meanwhile.
                Stage::Pause(_) => {
                    self.queries.running.push_back(running);
                    return;
                }
                Stage::Walk(from) => self.walk(&mut running, from),
            }
        };
        match is_over {
            true => self.tell_last(running),
            false => self.queries.running.push_front(running),
        }
    }

    /// Begins the last seconds of some clients.
    fn begin_recent(&mut self, from: usize) -> Stage {
        let at = (from, CLIENTS_A_TURN);
        match self.service.walk_clients(at, Look::BeginRecent, self.now, &mut |_| ()) {
            Some(next) => Stage::Mark(next),
            None => {
                self.queries.paced = Some(self.now);
                Stage::Pause(self.now.after(RECENT_US))
            }
        }
    }

    /// Looks at some clients. True: there are no more.
    fn walk(&mut self, running: &mut Running, from: usize) -> bool {
        let how = if running.query.is_recent() { Look::Recent } else { Look::Plain };
        let everybody = Filter::default();
        let filter = match &running.query {
            Query::List { filter, .. } | Query::Kill { filter } | Query::Unblock { filter, .. } => {
                filter
            }
            Query::Busiest { .. } => &everybody,
            Query::InPieces {} => return true,
        };
        let mut found = Vec::new();
        let (conns, now) = (&mut self.conns, self.now);
        let enough = running.query.best().map_or(0, |best| best.limit);
        let known = running.rows.len();
        let mut look = |view: ClientView<'_>| {
            // Who did nothing is not among the busiest, unless there are too few.
            if how == Look::Recent && view.recent.bytes == 0 && known + found.len() >= enough {
                return;
            }
            found.extend(row_of(&view, filter, conns, now).map(|row| (view.conn, row)));
        };
        let next = self.service.walk_clients((from, CLIENTS_A_TURN), how, now, &mut look);
        if let Query::Kill { filter } = &running.query {
            // The client that asks is to have its answer first.
            let asker = filter.asked.as_ref().map_or(0, |asked| asked.asker);
            let killed = found.iter().filter(|(_, row)| row.id != asker).map(|(id, _)| *id);
            self.kill(killed);
        }
        if let Query::Unblock { with_error, .. } = running.query {
            found.retain(|(id, _)| self.service.unblock(*id, with_error, now));
            self.run_actions(None);
        }
        running.rows.extend(found.into_iter().map(|(_, row)| row));
        match running.query.best() {
            Some(best) if running.rows.len() > 2 * best.limit + CLIENTS_A_TURN => {
                best.keep(&mut running.rows);
            }
            Some(_) => {}
            None => self.tell(running),
        }
        if let Some(next) = next {
            running.stage = Stage::Walk(next);
        } else if how == Look::Recent {
            self.queries.paced = Some(now);
        }
        next.is_none()
    }

    fn kill(&mut self, clients: impl Iterator<Item = ConnId>) {
        for id in clients {
            self.service.kill(id, self.now);
            self.run_actions(None);
        }
    }

    /// Sends the rows that there are, as far as the answer may be that long.
    fn tell(&mut self, running: &mut Running) {
        let mut rows = Rows { number: running.number, ..Rows::default() };
        let mut len = 0;
        for row in std::mem::take(&mut running.rows) {
            if running.sent + row.size() > ANSWER_LEN_MAX {
                running.left_out += 1;
                continue;
            }
            running.sent += row.size();
            len += row.size();
            rows.clients.push(row);
            if len >= ROWS_LEN_MAX {
                let next = Rows { number: running.number, ..Rows::default() };
                self.control.answer(std::mem::replace(&mut rows, next));
                len = 0;
            }
        }
        if !rows.clients.is_empty() {
            self.control.answer(rows);
        }
    }

    /// Sends what is left, and that this is all.
    fn tell_last(&mut self, mut running: Running) {
        if let Some(best) = running.query.best() {
            Best::keep(&best, &mut running.rows);
        }
        self.tell(&mut running);
        let in_pieces = match running.query {
            Query::InPieces {} => self.in_pieces.rows(usize::MAX, self.now),
            Query::Busiest { limit } => self.in_pieces.rows(limit, self.now),
            Query::List { .. } | Query::Kill { .. } | Query::Unblock { .. } => Vec::new(),
        };
        for some in in_pieces.chunks(ADDRESSES_MAX) {
            let in_pieces: Vec<InPiecesRow> = some.to_vec();
            self.control.answer(Rows { number: running.number, in_pieces, ..Rows::default() });
        }
        let Running { number, left_out, .. } = running;
        self.control.answer(Rows { number, left_out, is_last: true, ..Rows::default() });
    }
}

/// Returns the row of a client, if it is meant.
fn row_of(
    view: &ClientView<'_>,
    filter: &Filter,
    conns: &mut Conns,
    now: Time,
) -> Option<ClientRow> {
    let is = |wanted: &Option<String>, found: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
    };
    let is_meant = (filter.ids.is_empty() || filter.ids.contains(&view.tally.id))
        && is(&filter.pool, Some(view.pool))
        && (is(&filter.user, view.user) || is_default(filter, view.user))
        && is(&filter.tenant, view.tenant);
    if !is_meant {
        return None;
    }
    if let Some(asked) = &filter.asked {
        return row_for_client(view, (filter, asked), conns, now);
    }
    let conn = conns.find(view.conn)?;
    let (ip, port) = conn.address();
    if filter.address.is_some_and(|address| !address.is(ip, port)) {
        return None;
    }
    Some(ClientRow {
        address: address_text(ip, port),
        listener: sys::listen::local_name(&conn.fd),
        user: view.user.map(shown),
        name: printable(view.name),
        library: printable(view.library),
        library_version: printable(view.library_version),
        ..row(view, conn.fd.as_raw_fd(), now)
    })
}

/// Returns the row of a client, without its addresses and what it says of itself.
fn row(view: &ClientView<'_>, descriptor: RawFd, now: Time) -> ClientRow {
    ClientRow {
        id: view.tally.id,
        pool: view.pool.to_string(),
        tenant: view.tenant.map(str::to_string),
        protocol: view.protocol.to_string(),
        protocol_version: view.proto_version,
        database: view.database,
        state: view.state.to_string(),
        class: view.class.to_string(),
        age_us: now.since(view.tally.came),
        idle_us: now.since(view.tally.active),
        requests: view.tally.requests,
        received_bytes: view.tally.received,
        sent_bytes: view.tally.sent,
        owed: view.owed as u64,
        held_bytes: view.held as u64,
        input_bytes: view.input as u64,
        queued: view.queued,
        topics: view.topics,
        flags: view.flags.clone(),
        descriptor,
        recent_us: view.recent.us,
        recent_requests: view.recent.requests,
        recent_bytes: view.recent.bytes,
        ..ClientRow::default()
    }
}

/// Whether a client asks for those that have not logged in, by their name among clients.
fn is_default(filter: &Filter, user: Option<&str>) -> bool {
    filter.asked.is_some() && user.is_none() && filter.user.as_deref() == Some("default")
}

/// Returns the row of a client for another that asks, if it is meant.
fn row_for_client(
    view: &ClientView<'_>,
    (filter, asked): (&Filter, &Asked),
    conns: &mut Conns,
    now: Time,
) -> Option<ClientRow> {
    let is_own = view.tally.id == asked.asker;
    let is_scoped = filter.tenant.is_some() || view.tenant.is_none();
    let is_old = now.since(view.tally.came) >= asked.age_min_us;
    if !is_scoped || !is_old || is_own && asked.not_own {
        return None;
    }
    let conn = conns.find(view.conn)?;
    let (from, to) = (sys::listen::peer_name(&conn.fd), sys::listen::local_name(&conn.fd));
    let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|it| it == found);
    if !is(&asked.from, &from) || !is(&asked.to, &to) {
        return None;
    }
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    Some(ClientRow {
        address: from,
        listener: to,
        user: view.user.map(str::to_string),
        name: text(view.name),
        library: text(view.library),
        library_version: text(view.library_version),
        ..row(view, conn.fd.as_raw_fd(), now)
    })
}

fn address_text(ip: Option<IpAddr>, port: Option<u16>) -> String {
    match (ip, port) {
        (None, _) => "unix".to_string(),
        (Some(ip), None) => ip.to_string(),
        (Some(ip), Some(port)) => std::net::SocketAddr::new(ip, port).to_string(),
    }
}

/// What clients say of themselves may be anything, and long.
fn printable(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(TEXT_LEN_MAX)].escape_ascii().to_string()
}

fn shown(name: &str) -> String {
    name.chars().take(TEXT_LEN_MAX).collect()
}

/// Places of clients that are looked at in a turn: with their addresses, some 0.1 ms.
const CLIENTS_A_TURN: usize = 64;
/// How long the last seconds are, if nobody has asked for them lately.
const RECENT_US: u64 = 1_000_000;
/// How long ago somebody may have asked, so that they need not begin anew.
const PACED_US: u64 = 10_000_000;
/// Bytes of a text that are shown.
const TEXT_LEN_MAX: usize = 64;
