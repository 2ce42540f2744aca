//! Stories of a server that is down and returns: how often it is probed, and how failures count.

use metrics::ServerCounter;
use proxy::plan::OnFailure;
use proxy::{Closed, ConnId, Event, Report, Time, limits};

use crate::stage::{S0, SECOND, Stage};

/// A stage with one server that is down, and its clock.
struct Outage {
    stage: Stage,
    now: u64,
    client: ConnId,
    /// When it failed first.
    since: u64,
}

impl Outage {
    /// Begins an outage: the first connect is refused.
    fn begin(on_failure: OnFailure) -> Outage {
        let mut stage = Stage::new(&["s0"], |pool| pool.on_failure = on_failure);
        let client = stage.client();
        let mut outage = Outage { stage, now: SECOND, client, since: SECOND };
        outage.fail();
        outage
    }

    /// Sends a request, whose connect is refused.
    fn fail(&mut self) {
        let client = self.client;
        self.stage.says(client, "get x\r\n");
        self.refuse();
        assert_eq!(self.stage.received(client), "SERVER_ERROR s0: connect failed\r\n");
    }

    /// Refuses the outstanding connect.
    fn refuse(&mut self) {
        let (link, _) = self.stage.connects.pop().expect("a connect was asked for");
        self.stage.closes(link, Closed::Reset);
        assert_eq!(self.stage.connects, [], "no two at once");
    }

    fn passes(&mut self, time: u64) {
        self.now += time;
        self.stage.passes(time);
    }

    /// Moves the clock to the next probe; returns the pause before it.
    fn until_probe(&mut self) -> u64 {
        let start = self.now;
        while self.stage.connects.is_empty() {
            let Some(Time(at)) = self.stage.next_timeout() else { panic!("no probe will come") };
            self.passes(at.saturating_sub(self.now).max(1));
        }
        self.now - start
    }

    /// Answers the probe; returns the link that serves from now on.
    fn answer_probe(&mut self) -> ConnId {
        let link = self.stage.connect(0);
        assert_eq!(self.stage.events.last(), Some(&Event::ServerBack { server: S0 }));
        link
    }

    fn ask(&mut self, link: ConnId) {
        let client = self.client;
        self.stage.says(client, "get x\r\n");
        assert_eq!(self.stage.turn(link), "get x\r\n");
        self.stage.says(link, "END\r\n");
        assert_eq!(self.stage.received(client), "END\r\n");
    }

    /// Ends the link and refuses the next connect.
    fn fail_again(&mut self, link: ConnId) {
        self.stage.closes(link, Closed::Eof);
        self.fail();
        self.since = self.now;
    }

    /// Checks that the pause has its full length, less a quarter at most. Returns whether it is
    /// less an eighth at least.
    #[track_caller]
    fn check_pause(&mut self) -> bool {
        let part = (self.now - self.since) / limits::PROBE_FRACTION;
        let whole = part.clamp(limits::PROBE_FIRST_US, limits::BACKOFF_LAST_US);
        let pause = self.until_probe();
        assert!(pause <= whole && pause >= whole - whole / 4, "{pause} us, not {whole} us");
        pause <= whole - whole / 8
    }
}

#[test]
fn a_return_is_noticed_a_sixteenth_late_at_most() {
    let mut outage = Outage::begin(OnFailure::FailFast);
    let (mut probes, mut in_a_second, mut short) = (0, 0, 0);
    while outage.now < outage.since + 100 * SECOND {
        short += usize::from(outage.check_pause());
        outage.refuse();
        probes += 1;
        in_a_second += usize::from(outage.now <= outage.since + SECOND);
    }
    // The cost: one connect each time.
    assert!((40..=60).contains(&in_a_second), "{in_a_second} in the first second");
    assert!((160..=240).contains(&probes), "{probes} in 100 seconds");
    assert!(
        (probes / 3..=probes * 2 / 3).contains(&short),
        "workers do not probe in step: {short}"
    );
}

/// A stopped process accepts connections and answers when it goes on. No probe is given up as slow
/// before the reply deadline.
#[test]
fn a_probe_that_is_accepted_and_not_answered_waits_for_its_answer() {
    let mut outage = Outage::begin(OnFailure::FailFast);
    outage.until_probe();
    let (probe, _) = outage.stage.connects.pop().expect("a probe");
    outage.stage.establishes(probe);
    outage.passes(SECOND - 1);
    assert_eq!((&outage.stage.connects, &outage.stage.closed), (&vec![], &vec![]));
    outage.stage.says(probe, "VERSION 1.6.18\r\n");
    outage.ask(probe);
}

#[test]
fn the_pause_between_probes_is_short_again_after_a_recovery() {
    let mut outage = Outage::begin(OnFailure::FailFast);
    while outage.now < outage.since + 60 * SECOND {
        outage.until_probe();
        outage.refuse();
    }
    outage.until_probe();
    let link = outage.answer_probe();
    outage.ask(link);
    outage.fail_again(link);
    assert!(outage.until_probe() <= limits::PROBE_FIRST_US);
}

/// The figure that operators see follows both ways, also without a request.
#[test]
fn a_server_is_counted_as_down_until_its_probe_is_answered() {
    for on_failure in [OnFailure::FailFast, OnFailure::Eject] {
        let mut outage = Outage::begin(on_failure);
        let count =
            |outage: &Outage| outage.stage.registry.total(S0, ServerCounter::DownWorkersNow);
        assert_eq!(count(&outage), 1);
        outage.until_probe();
        outage.refuse();
        assert_eq!(count(&outage), 1);
        // Out of the ring for all, it is down for none.
        outage.stage.set_ejected(S0, true);
        assert_eq!(count(&outage), 0);
        outage.stage.set_ejected(S0, false);
        assert_eq!(count(&outage), 0, "back, until it fails once more");
        outage.fail();
        assert_eq!(count(&outage), 1);
        outage.until_probe();
        outage.answer_probe();
        assert_eq!(count(&outage), 0);
    }
}

/// The server got no request, but stayed up all the same.
#[test]
fn the_pause_between_probes_is_short_again_after_a_recovery_that_nobody_used() {
    let mut outage = Outage::begin(OnFailure::FailFast);
    while outage.now < outage.since + 60 * SECOND {
        outage.until_probe();
        outage.refuse();
    }
    outage.until_probe();
    let link = outage.answer_probe();
    outage.passes(limits::LINK_STOOD_US);
    outage.fail_again(link);
    assert!(outage.until_probe() <= limits::PROBE_FIRST_US);
}

/// Many a sick server answers a probe and nothing else.
#[test]
fn a_server_that_answers_only_probes_is_asked_ever_more_seldom() {
    let mut outage = Outage::begin(OnFailure::FailFast);
    let client = outage.client;
    while outage.now < outage.since + 20 * SECOND {
        outage.check_pause();
        let link = outage.answer_probe();
        outage.stage.says(client, "get x\r\n");
        outage.stage.turn(link);
        outage.stage.says(link, "what?\r\n");
        let lost = "SERVER_ERROR s0: unexpected reply, connection closed\r\n";
        assert_eq!(outage.stage.received(client), lost);
    }
    assert!(outage.until_probe() >= limits::BACKOFF_LAST_US * 3 / 4);
}

/// Probes come more often than failures are counted: a restart must not lead to an ejection.
#[test]
fn failed_probes_count_no_faster_than_before() {
    let mut outage = Outage::begin(OnFailure::Eject);
    let why = "connect failed";
    assert_eq!(outage.stage.reports, [Report::Failed { server: S0, failures: 1, why: why.into() }]);
    let mut due = 0;
    for (failures, pause) in [(2, 50_000), (3, 100_000), (4, 200_000), (5, 400_000)] {
        outage.stage.reports.clear();
        due += pause;
        while outage.stage.reports.is_empty() {
            outage.until_probe();
            outage.refuse();
        }
        assert_eq!(
            outage.stage.reports,
            [Report::Failed { server: S0, failures, why: why.into() }]
        );
        let late = outage.now - outage.since - due;
        assert!(late <= pause / 4 + limits::PROBE_FIRST_US, "{failures}: {late} us late");
        due += late;
    }
}

/// Without a socket of our own there is no reason to try a hundred times a second.
#[test]
fn a_probe_for_which_there_is_no_socket_waits_as_requests_do() {
    let mut outage = Outage::begin(OnFailure::FailFast);
    for pause in [50_000, 100_000, 200_000] {
        outage.until_probe();
        let (probe, _) = outage.stage.connects.pop().expect("a probe");
        outage.stage.closes(probe, Closed::Own);
        outage.passes(pause - 1);
        assert_eq!(outage.stage.connects, []);
        outage.passes(1);
        assert_eq!(outage.stage.connects.len(), 1);
    }
}
