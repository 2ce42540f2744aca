//! Whether a server is down. A reply on any link, of any worker, is proof of life and outweighs
//! every failure that began before it.
//!
//! ```text
//!   an attempt to make a link fails ──▶ has it answered anybody since the attempt began?
//!     yes ──▶ only that place of a link cannot be filled (`rest.rs`)
//!     no  ──▶ are other links up?  yes ──▶ as above; those that are idle are asked, and the server
//!                                          is down if they are all lost before it answers
//!                                  at other workers, or in other pools ──▶ as above; an attempt
//!                                          that is begun when they had time to answer decides
//!                                  no  ──▶ it is down
//!   a link that was up is lost, or silent for too long ──▶ another is begun, and judges
//! ```

use metrics::ServerCounter;

use super::Servers;
use super::link::Link;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;
use crate::base::pool::Health;
use crate::base::{Base, ServerAt};
use crate::{Action, Report, Time};

/// An attempt to make a link that failed, when no link had brought a reply since it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedAttempt {
    begun: Time,
    fault: Fault,
    /// Until then the links that were up must have answered.
    until: Time,
}

/// The longest line of a server's that clients are told.
const SAID_MAX: usize = 160;

impl Servers {
    /// Notes that a server has answered the handshake of a link.
    pub(super) fn note_life(&mut self, base: &Base, at: ServerAt) {
        // Workers that have asked for it look for a later time.
        self.state(at).silence.told = Time(0);
        self.note_bytes(base, at);
    }

    /// Notes that bytes have come on a link that is up. Whether they are an answer is not known.
    #[inline]
    pub(super) fn note_bytes(&mut self, base: &Base, at: ServerAt) {
        let silence = &mut self.state(at).silence;
        silence.life = base.now;
        if base.now.since(silence.told) >= TOLD_PAUSE_US {
            silence.told = base.now;
            base.metrics.set_heard(base.server(at).plan.id, base.now.0);
        }
    }

    /// Notes that bytes have come on a link that has answered a request with them, or before.
    #[inline]
    pub(super) fn note_answer(&mut self, base: &Base, at: ServerAt) {
        let silence = &mut self.state(at).silence;
        if base.now.since(silence.told_answer) >= TOLD_PAUSE_US {
            silence.told_answer = base.now;
            base.metrics.set_answered(base.server(at).plan.id, base.now.0);
        }
    }

    /// Whether a server is there although an attempt to make a link has failed: it has refused the
    /// attempt in words, or has answered a worker since the attempt began.
    pub(super) fn is_proven_since(&self, base: &Base, link: &Link, fault: Fault) -> bool {
        fault == Fault::Refused || self.has_answered_since(base, link.at, link.begun, fault)
    }

    /// Whether a server that is out is back although a probe has failed: it has refused the probe
    /// in words, or has answered a worker, in whichever pool, since the probe began or a moment
    /// before, when it was out already.
    pub(super) fn is_back(&self, base: &Base, link: &Link, fault: Fault) -> bool {
        let reply = base.pool(link.at).plan.timeouts.reply;
        let lately = Time(base.now.0.saturating_sub(reply));
        let state = &self.states[link.at.pool as usize][link.at.server as usize];
        let since = state.out_since.max(lately);
        self.is_proven_since(base, link, fault)
            || self.has_answered_since(base, link.at, since, fault)
    }

    /// Whether a server has answered any worker since then, which outweighs this fault.
    fn has_answered_since(&self, base: &Base, at: ServerAt, begun: Time, fault: Fault) -> bool {
        if bug!(IgnoreLife) {
            return false;
        }
        let mut ids = ids_that_outweigh(base, at, fault);
        let own = self.states[at.pool as usize][at.server as usize].silence.life;
        own > begun || ids.any(|id| base.metrics.heard(id) > begun.0)
    }

    /// Judges a server by an attempt to make a link, which has failed. Returns the link that stands
    /// in for it, if there is one.
    pub(super) fn judge(
        &mut self,
        base: &mut Base,
        (link, nth, judges): (&Link, Option<usize>, bool),
        fault: Fault,
    ) -> Option<ConnId> {
        let at = link.at;
        // If those that have logged in work, of other workers too, a refused login shows nothing.
        let is_login = fault == Fault::LoginRefused;
        let answers = self.is_proven_since(base, link, fault)
            || is_login && self.has_links_elsewhere(base, at, [base.server(at).plan.id]);
        let works = answers || self.has_links_up(at);
        // Links on which clients wait show nothing, so another attempt decides.
        if !works && !judges && self.has_links_that_wait(at) && self.begin_judge_now(base, at) {
            return self.rest_place(base, link, nth?, fault);
        }
        let is_down = !works && self.may_judge(base, at, link.begun, fault);
        if is_down || bug!(FurtherLinkFails) {
            self.server_failed(base, at, fault);
            return None;
        }
        if !answers {
            let until = base.now.after(2 * base.pool(at).plan.timeouts.reply);
            let (begun, state) = (link.begun, self.state(at));
            state.failed_attempt = Some(FailedAttempt { begun, fault, until });
            self.ask_idle_links(base, at);
        }
        self.rest_place(base, link, nth?, fault)
    }

    /// Whether an attempt that failed, and was begun then, shows that a server is down. As long as
    /// there are links at other workers or in other pools, those are asked first, and have as long
    /// to answer as for any request.
    fn may_judge(&mut self, base: &mut Base, at: ServerAt, begun: Time, fault: Fault) -> bool {
        let plan = &base.server(at).plan;
        let id = plan.id;
        if !self.has_links_elsewhere(base, at, plan.same_ids()) {
            return true;
        }
        let in_time = |since: Time| since.after(base.pool(at).plan.timeouts.reply);
        let asked = self.state(at).asked_elsewhere;
        // The question may have been lost.
        let lasts = |since: &Time| begun < in_time(*since).after(ASKED_LASTS_US);
        match asked.filter(lasts) {
            Some(since) if !self.has_answered_since(base, at, since, fault) => {
                return begun >= in_time(since);
            }
            Some(since) if base.now < in_time(since) => return false,
            _ => self.state(at).asked_elsewhere = Some(base.now),
        }
        base.actions.push_back(Action::Report(Report::Doubted { server: id }));
        self.ask_everywhere(base, at);
        false
    }

    /// Has this worker's idle links to a server asked, in whichever pool it is.
    pub(crate) fn ask_server(&mut self, base: &mut Base, id: u32) {
        if let Some(at) = base.find_server(id) {
            self.ask_everywhere(base, at);
        }
    }

    /// As `ask_server`, for the server at this place.
    pub(super) fn ask_everywhere(&mut self, base: &mut Base, at: ServerAt) {
        for one in base.same_servers(at) {
            self.ask_idle_links(base, one);
        }
    }

    /// Counts a link that is gone. A server may answer other workers, and end the link at what
    /// this one's only client asks. A handshake shows nothing here: each worker whose links bring
    /// nothing else would excuse the others for ever.
    pub(super) fn count_fruitless(
        &mut self,
        base: &Base,
        (link, nth): (&Link, Option<usize>),
        fault: Fault,
    ) {
        let has_answered = link.has_answered();
        if !has_answered && link.has_wrong_reply(fault) {
            // That is a reply, perhaps to another request.
            return;
        }
        let state = self.state(link.at);
        let begun = if state.fruitless == 0 { link.begun } else { state.fruitless_since };
        if has_answered {
            state.fruitless = 0;
            let conn_key = base.pool(link.at).conn_keys.of(link.conn_key);
            state.rests.lost_soon.forget(conn_key, nth);
        } else if has_answered_request(base, link, begun, fault) {
            (state.fruitless, state.fruitless_since) = (1, link.begun);
        } else {
            (state.fruitless, state.fruitless_since) = (state.fruitless.saturating_add(1), begun);
        }
    }

    /// Notes that a link came up and brought nothing: its server answers handshakes, and may do
    /// nothing else. One such link shows nothing of a server that was well; another one is begun.
    pub(super) fn note_fruitless(
        &mut self,
        base: &mut Base,
        (link, nth): (&Link, Option<usize>),
        fault: Fault,
    ) -> Option<ConnId> {
        let works =
            self.has_links_up(link.at) || has_answered_request(base, link, link.begun, fault);
        if works {
            return self.rest_place(base, link, nth?, fault);
        }
        match self.state(link.at).may_be_well() {
            true => drop(self.begin_judge(base, link.at)),
            false => self.server_failed(base, link.at, fault),
        }
        None
    }

    /// Judges a server again when a link to it that was up is gone: perhaps nothing works any more.
    pub(super) fn judge_again(&mut self, base: &mut Base, at: ServerAt) {
        let Some(attempt) = self.state(at).failed_attempt else { return };
        let FailedAttempt { begun, fault, until } = attempt;
        if base.now > until || self.has_answered_since(base, at, begun, fault) {
            self.state(at).failed_attempt = None;
        } else if !self.has_links_up(at)
            && base.server(at).health == Health::Ready
            && self.may_judge(base, at, begun, fault)
        {
            self.server_failed(base, at, fault);
        }
    }

    /// Begins the link that judges a server which has fallen silent; returns whether one is on its
    /// way.
    pub(super) fn begin_judge(&mut self, base: &mut Base, at: ServerAt) -> bool {
        let patience = base.pool(at).plan.timeouts.reply;
        let state = self.state(at);
        let is_soon = base.now.since(state.judged) < patience && state.judged != Time(0);
        if is_soon && !state.is_being_judged() {
            return false;
        }
        self.begin_judge_now(base, at)
    }

    /// As `begin_judge`, though another was begun a moment ago.
    fn begin_judge_now(&mut self, base: &mut Base, at: ServerAt) -> bool {
        let state = self.state(at);
        let is_known = state.is_being_judged();
        let is_able = state.unable_until <= base.now;
        if is_known || !is_able || !base.server(at).can_be_asked() {
            return is_known;
        }
        let home = base.pool(at).conn_keys.home;
        let id = self.begin_connect(base, at, home, LinkClass::Shared);
        let state = self.state(at);
        (state.judge, state.judged) = (Some(id), base.now);
        self.ask_idle_links(base, at);
        true
    }

    /// Ends the trial of a server by a link that came up, and was asked then. A link that was asked
    /// earlier and has brought nothing is dead, although its server is well: what waits there goes
    /// to another.
    pub(super) fn end_judge(&mut self, base: &mut Base, id: ConnId, asked: Time) {
        let Some(at) = self.links.find(id).map(|link| link.at) else { return };
        if self.state(at).judge != Some(id) {
            return;
        }
        self.state(at).judge = None;
        self.use_or_close(base, id);
        for one in self.links_of(at) {
            let is_dead = |link: &Link| link.is_unanswered_since(asked) && !link.is_waiting();
            if self.links.find(one).is_some_and(is_dead)
                && self.renew(base, one, Fault::ReplyTimeout)
            {
                self.close_link(base, one, Fault::LinkLost);
            }
        }
    }

    /// Whether a link to a server is up, of this worker, on which it has to answer before long if
    /// it is asked. Nobody asks where a client waits for something, and it may wait for ever.
    pub(super) fn has_links_up(&self, at: ServerAt) -> bool {
        self.links_that_were_up(at).any(|link| !link.waits())
    }

    fn has_links_that_wait(&self, at: ServerAt) -> bool {
        self.links_that_were_up(at).any(Link::waits)
    }

    fn links_that_were_up(&self, at: ServerAt) -> impl Iterator<Item = &Link> {
        self.links.iter().map(|(_, link)| link).filter(move |link| link.at == at && link.was_up())
    }

    /// Whether another worker has a link to a server under one of these ids, or this one has in
    /// another pool.
    fn has_links_elsewhere(
        &self,
        base: &Base,
        at: ServerAt,
        ids: impl IntoIterator<Item = u32>,
    ) -> bool {
        let links = |id| base.metrics.total(id, ServerCounter::LinksNow);
        let all: u64 = ids.into_iter().map(links).sum();
        let state = &self.states[at.pool as usize][at.server as usize];
        all > state.counters.value(ServerCounter::LinksNow)
    }

    /// Has the links on which a server owes nothing repeat the handshake. Where messages may come
    /// at any time, it gets a PING instead.
    pub(super) fn ask_idle_links(&mut self, base: &mut Base, at: ServerAt) {
        for id in self.links_of(at) {
            let Some(link) = self.links.find_mut(id) else { continue };
            let is_idle = link.is_up() && !link.is_waiting() && !link.retiring;
            if is_idle && link.class == LinkClass::Subscribed {
                self.ping_topics(base, at);
            } else if is_idle {
                link.must_prove = true;
                self.mark_dirty(id);
            }
        }
    }

    /// Closes a link whose server has said that it takes no further one, so it is there.
    #[cold]
    pub(super) fn end_turned_away(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find(id) else { return };
        let at = link.at;
        if !bug!(IgnoreFull) {
            self.note_life(base, at);
        }
        self.note_said(base, id, Fault::Refused);
        self.close_link(base, id, Fault::Refused);
    }

    /// Notes the line with which a server has refused a link.
    pub(super) fn note_said(&mut self, base: &mut Base, id: ConnId, fault: Fault) {
        let Some(link) = self.links.find(id) else { return };
        let at = link.at;
        let text = String::from_utf8_lossy(&link.partial);
        let is_error = |line: &&str| line.starts_with('-') || line.contains("ERROR");
        let line = text.lines().find(is_error).unwrap_or_default().trim_start_matches('-');
        let clean = |letter: char| if letter.is_control() { '?' } else { letter };
        let said: String = line.trim().chars().map(clean).take(SAID_MAX).collect();
        base.server_mut(at).said = (!said.is_empty()).then(|| (fault, said.into_boxed_str()));
    }
}

/// Whether the server of a link has answered a request of any worker since then, which outweighs
/// this fault.
fn has_answered_request(base: &Base, link: &Link, since: Time, fault: Fault) -> bool {
    ids_that_outweigh(base, link.at, fault).any(|id| base.metrics.answered(id) > since.0)
}

/// Returns the ids of a server whose answers outweigh this fault. Another pool of it may have
/// another login: what that may says nothing of a login that is refused.
fn ids_that_outweigh(base: &Base, at: ServerAt, fault: Fault) -> impl Iterator<Item = u32> {
    let plan = &base.server(at).plan;
    plan.same_ids().filter(move |id| *id == plan.id || fault != Fault::LoginRefused)
}

/// The other workers learn no sooner than this that a server answers.
const TOLD_PAUSE_US: u64 = 1_000;

/// Others are asked again when nobody has needed an answer for so long.
const ASKED_LASTS_US: u64 = 10_000_000;
