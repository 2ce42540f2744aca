//! Logins: in a pool with users, a client gets no answers before it has logged in.
//!
//! ```text
//!                     ┌─ about the login ────▶ answered
//!   whole request ────┼─ right login ────────▶ logged in, for as long as it is connected
//!   (a short one)     ├─ wrong login ────────▶ error; later logins come behind those of others
//!                     └─ anything else ──────▶ error
//! ```
//!
//! A login is evaluated when its address and its name have their turn: see `attempts.rs`. Until
//! then its client is paused, whether or not its password is right.

use std::rc::Rc;

use metrics::{LoginPlaces, LoginToken, PoolCounter, TenantCounter};
use proto::{Answer, Class, Local, Login, Quiet, Request};

use super::Clients;
use super::attempts::Attempts;
use super::session::{Client, State};
use crate::base::buffer::Source;
use crate::base::id::ConnId;
use crate::base::timers::Due;
use crate::base::{Base, limits};
use crate::{Action, Event, Time};

/// How often failed logins are reported, in microseconds.
const FAILED_TELL_US: u64 = 1_000_000;

impl Clients {
    /// Handles a request that is a login, or comes before one. Returns how many of `bytes`, which
    /// begin with it, are used. None: it is a request like any other.
    pub(super) fn login(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        bytes: &[u8],
    ) -> Option<usize> {
        let client = self.table.find_mut(id)?;
        let users = base.pools[client.pool as usize].plan.users.as_ref()?;
        let is_known = client.login.done;
        let may_try = matches!(request.class, Class::Refuse(_) | Class::Local(Local::Own));
        if is_known && !may_try {
            return None;
        }
        let users = Rc::clone(users);
        if request.len() > limits::LOGIN_LEN_MAX as u64 {
            return self.long_login(base, id, request, bytes);
        }
        let (head, len) = (request.head as usize, request.len() as usize);
        let Some(whole) = bytes.get(..len) else { return Some(0) };
        let body = &whole[head..][..request.body as usize];
        let (mut keeps, mut shown) = (false, Given::default());
        let full;
        let answer = match client.protocol.login(request, &whole[..head], body) {
            Login::Other if is_known => return None,
            Login::Free => return None,
            Login::Other if request.class == Class::Local(Local::Quit) => {
                self.leave(base, id);
                return Some(len);
            }
            Login::Other => Answer::LoginFirst,
            Login::Answered(answer) => {
                let request = Request { quiet: Quiet::Loud, ..*request };
                self.answer_encoded(base, id, &request, Source::plain(&answer));
                self.pause_if_full(base, id);
                return Some(len);
            }
            Login::Attempt { name, password, goes_on } => {
                keeps = goes_on;
                if std::mem::take(&mut client.login.is_overdue) {
                    Answer::Failed(OVERDUE)
                } else {
                    let Some((places, token)) = self.await_login(base, id, &name) else {
                        return match self.gives_up(base, id) {
                            true => self.login(base, id, request, bytes),
                            false => Some(0),
                        };
                    };
                    let is_right =
                        whole.ends_with(request.trailer) && users.admit(&name, &password);
                    self.end_login(base, places, is_right.then_some(token));
                    let user = users.find(&name).filter(|_| is_right);
                    full = user.and_then(|user| self.set_user(base, id, Some(user)).err());
                    if is_right && goes_on && full.is_none() {
                        self.note_login(base, id);
                        return None;
                    }
                    if !password.is_empty() {
                        let is_known = users.find(&name).is_some();
                        shown = Given { name: printable(&name), is_known };
                    }
                    match &full {
                        Some(why) => Answer::Full(why),
                        None if is_right => Answer::LoggedIn,
                        None => Answer::LoginFailed,
                    }
                }
            }
        };
        self.answer_login(base, id, (request, &whole[..head]), &answer, (keeps, Some(shown)));
        Some(len)
    }

    /// Handles a request too long for a login. A client that is logged in may send any other
    /// request of that length.
    fn long_login(
        &mut self,
        base: &mut Base,
        id: ConnId,
        request: &Request,
        bytes: &[u8],
    ) -> Option<usize> {
        let client = self.table.find(id)?;
        if !client.login.done {
            return Some(self.turn_away(base, id, request, bytes));
        }
        let head = &bytes[..request.head as usize];
        let attempt = client.protocol.login(request, head, b"");
        let Login::Attempt { goes_on, .. } = attempt else { return None };
        if request.body > 0 {
            return None;
        }
        // No password was looked at.
        let more = (goes_on, None);
        self.answer_login(base, id, (request, head), &Answer::LoginFailed, more);
        Some(head.len())
    }

    /// Refuses the request and closes the client without waiting for the rest of the request.
    fn turn_away(&mut self, base: &mut Base, id: ConnId, request: &Request, bytes: &[u8]) -> usize {
        let head = &bytes[..request.head as usize];
        let more = (false, None);
        self.answer_login(base, id, (request, head), &Answer::LoginFirst, more);
        self.leave(base, id);
        bytes.len()
    }

    /// Answers a login. `keeps` says that a failed login leaves an earlier one in force; `given` is
    /// for the log, if a password was looked at.
    fn answer_login(
        &mut self,
        base: &mut Base,
        id: ConnId,
        (request, head): (&Request, &[u8]),
        answer: &Answer<'_>,
        (keeps, given): (bool, Option<Given>),
    ) {
        let Some(client) = self.table.find_mut(id) else { return };
        let pool = client.pool as usize;
        let counters = base.pools[pool].counters;
        let failed = match answer {
            Answer::LoggedIn => {
                client.login.done = true;
                client.endpoints = None;
                counters.add(PoolCounter::Logins, 1);
                false
            }
            Answer::LoginFailed if given.is_some() => {
                client.login.done &= keeps;
                counters.add(PoolCounter::LoginsFailed, 1);
                true
            }
            Answer::LoginFirst => {
                base.pools[pool].count_refused();
                false
            }
            // The login is right: it is no mistake.
            Answer::Full(_) => {
                client.login.done &= keeps;
                counters.add(PoolCounter::LoginsRefused, 1);
                false
            }
            Answer::LoginFailed | Answer::Failed(_) => {
                client.login.done &= keeps;
                counters.add(PoolCounter::LoginsRefused, 1);
                true
            }
            _ => unreachable!("a login has no other answer"),
        };
        let failures = client.login.failures + u8::from(failed);
        client.login.failures = failures.min(limits::MISTAKES_MAX);
        if *answer == Answer::LoggedIn {
            self.count_login(base, id);
        } else if !self.table.find(id).is_some_and(|client| client.login.done) {
            let _ = self.set_user(base, id, None);
        }
        if *answer == Answer::LoginFailed
            && let Some(given) = given
        {
            self.count_failed_login(base, pool, (id, given));
        }
        // A client that waits to be admitted needs the answer, even to a quiet request.
        let request = Request { quiet: Quiet::Loud, ..*request };
        self.answer(base, id, &request, head, answer);
        self.pause_if_full(base, id);
    }

    fn note_login(&mut self, base: &mut Base, id: ConnId) {
        let client = self.table.find_mut(id).expect("the caller found it");
        (client.login.done, client.endpoints) = (true, None);
        base.pools[client.pool as usize].counters.add(PoolCounter::Logins, 1);
        self.count_login(base, id);
    }

    /// Counts a right login for its user's tenant.
    fn count_login(&mut self, base: &mut Base, id: ConnId) {
        let client = self.table.find(id);
        if let Some(tenant) = client.and_then(|client| base.tenants.find(client.tenant)) {
            tenant.counters.add(TenantCounter::Logins, 1);
        }
    }

    fn count_failed_login(&mut self, base: &mut Base, at: usize, (client, given): (ConnId, Given)) {
        let Given { name, is_known } = given;
        let pool = &mut base.pools[at];
        pool.logins_failed += 1;
        let failed = Event::LoginFailed { pool: pool.plan.id, client, name, is_known };
        let is_first = pool.logins_due.is_none();
        base.actions.push_back(Action::Log(failed));
        if is_first {
            self.tell_logins(base, at);
        }
    }

    /// Takes the right to look at a login's password. None: the client waits for its turn, or for
    /// the addresses of its connection.
    fn await_login(
        &mut self,
        base: &mut Base,
        id: ConnId,
        name: &[u8],
    ) -> Option<(LoginPlaces, LoginToken)> {
        let client = self.table.find_mut(id)?;
        let Some(address) = client.endpoints.as_ref().map(|ends| ends.address) else {
            self.await_endpoints(base, id);
            return None;
        };
        let (places, mistakes) = (Attempts::places(base, address, name), client.login.failures);
        let pool = client.pool as usize;
        let token = self.attempts.enter(base, (id, pool), places, mistakes);
        if token.is_none() {
            client.waits.login = true;
            // Its socket is still read, so that we notice when it leaves.
            client.pause();
        }
        token.map(|token| (places, token))
    }

    /// Notes that a login was evaluated: it has its token back if it was right.
    fn end_login(&mut self, base: &mut Base, places: LoginPlaces, right: Option<LoginToken>) {
        let next = self.attempts.leave(base, places, right);
        self.call_to_login(base, next);
    }

    /// Has the login of a client read again, whose turn it is.
    fn call_to_login(&mut self, base: &mut Base, id: Option<ConnId>) {
        if let Some(id) = id
            && let Some(client) = self.table.find_mut(id)
        {
            client.waits.login = false;
            self.update_client(base, id);
        }
    }

    /// Takes the login of a client out of its line, if it waits in one.
    pub(super) fn forget_login(&mut self, base: &mut Base, id: ConnId) {
        if let Some(client) = self.table.find_mut(id) {
            client.waits.login = false;
        }
        let next = self.attempts.forget(base, id);
        self.call_to_login(base, next);
    }

    /// Whether a login waits whose client has said that it sends nothing more. Nearly always it has
    /// gone, and would keep others at its address waiting: its login is refused when it is read
    /// again.
    fn gives_up(&mut self, base: &mut Base, id: ConnId) -> bool {
        let is_it = |one: &&mut Client| one.waits.login && one.state == State::Ending;
        let Some(client) = self.table.find_mut(id).filter(is_it) else { return false };
        client.login.is_overdue = true;
        client.let_go_on(base.now);
        self.forget_login(base, id);
        true
    }

    /// Has the login of a client refused, if it waits for its turn.
    pub(super) fn refuse_login(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id).filter(|one| one.waits.login) else { return };
        client.login.is_overdue = true;
        self.forget_login(base, id);
        self.update_client(base, id);
    }

    pub(crate) fn login_line_timer(&mut self, base: &mut Base, at: u32, set: Time) {
        for id in self.attempts.overdue(at, base.now) {
            self.refuse_login(base, id);
        }
        let next = self.attempts.line_timer(base, at, set);
        self.call_to_login(base, next);
    }

    /// Reports the number of failed logins, and checks again in a second. A second without any ends
    /// that.
    fn tell_logins(&mut self, base: &mut Base, at: usize) {
        let (now, pool) = (base.now, &mut base.pools[at]);
        let (id, count) = (pool.plan.id, std::mem::take(&mut pool.logins_failed));
        pool.logins_due = (count > 0).then(|| now.after(FAILED_TELL_US));
        if let Some(due) = pool.logins_due {
            base.actions.push_back(Action::Log(Event::LoginsFailed { pool: id, count }));
            base.timers.set(due, Due::Logins { id });
        }
    }

    pub(crate) fn logins_timer(&mut self, base: &mut Base, id: u32, set: Time) {
        if let Some(at) = base.pool_index_of(id)
            && base.pools[at].logins_due == Some(set)
        {
            self.tell_logins(base, at);
        }
    }

    /// Reports the failed logins that still wait for their second, since no more logins will come.
    pub(crate) fn tell_all_logins(&mut self, base: &mut Base) {
        for at in 0..base.pools.len() {
            if base.pools[at].logins_failed > 0 {
                self.tell_logins(base, at);
            }
        }
    }
}

/// The name of a failed login for the log, and whether it is a user's. Its client learns neither.
#[derive(Default)]
struct Given {
    name: String,
    is_known: bool,
}

/// Returns a name as it is logged.
fn printable(name: &[u8]) -> String {
    name[..name.len().min(limits::NAME_LOGGED_MAX)].escape_ascii().to_string()
}

const OVERDUE: &str = "too many wrong logins from this address or for this name: try again later";
