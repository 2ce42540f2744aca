//! The process that looks up the names of servers and takes the lists of them that come from
//! elsewhere, again and again. It may wait for a name server, which neither the master nor a worker
//! may.
//!
//! ```text
//!   master ──names, lists──▶ this process ──a thread each──▶ the system's resolver: /etc/hosts, …
//!     ▲                           │                          name servers: how long an answer
//!     │                           │                          holds, SRV records
//!     └──answers that differ──────┘                          files, configuration endpoints
//! ```
//!
//! It holds nothing but its channel to the master, and ends with it. It tells what has changed, and
//! each failure. The master decides what comes of it.

mod cluster;
mod dns;
mod lists;
mod lookups;
mod system;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sys::signal::{self, Signals};

use crate::config::ListSource;
use crate::error::{Error, Peer};
use crate::ipc::{Channel, FromResolver, ToResolver};
use crate::log::{self, Level};

use lists::FoundList;
use lookups::{Lookups, Outcome, Question};
pub use lookups::{look_up, take_lists};
pub use system::{Found, ask, is_name};

/// What the master wants looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subjects {
    /// Names of hosts.
    pub hosts: BTreeSet<String>,
    pub lists: BTreeSet<ListSource>,
    /// Where the relative paths of files begin.
    pub folder: PathBuf,
}

/// Looks up names until the master has ended.
pub fn run() -> ExitCode {
    match sys::process::take_passed().map_err(Error::from).and_then(serve) {
        Ok(()) | Err(Error::Peer(Peer::Closed)) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("resolver: {error}; this process is started by `quickack run`");
            log::line(Level::Error, &text);
            ExitCode::FAILURE
        }
    }
}

fn serve(channel: OwnedFd) -> Result<(), Error> {
    sys::process::keep_title();
    // It gets one with all processes of our name; it ends with its channel.
    let _ignored = Signals::new(signal::ALL_OF_A_CHILD)?;
    let wakeup = Arc::new(sys::wakeup::new()?);
    let mut resolver = Resolver::new(Channel::new(channel), Arc::clone(&wakeup));
    loop {
        resolver.wait(&wakeup)?;
        resolver.hear()?;
        let now = Instant::now();
        resolver.note_answers(now);
        resolver.note_late(now);
        if resolver.is_stuck(now) {
            // The threads cannot be ended; another process has new ones.
            let why = format!("no look-up has ended for {} s", STUCK.as_secs());
            return Err(Error::Os(why));
        }
        resolver.begin_what_is_due(now);
        resolver.tell()?;
    }
}

struct Resolver {
    channel: Channel<FromResolver, ToResolver>,
    lookups: Lookups,
    subjects: BTreeMap<Question, Subject>,
    /// The longest pause between two look-ups.
    every: Duration,
    /// What there is something to tell of.
    news: BTreeSet<Question>,
    /// When a look-up last ended, or the first of those under way began.
    alive: Instant,
}

/// One name, or one list.
struct Subject {
    stage: Stage,
    /// When it was last looked up.
    asked: Instant,
    /// The pause after the next failure.
    pause: Duration,
    /// The last answer.
    found: Option<Known>,
    /// What the master was told last.
    told: Option<Known>,
    /// Of a list: what was found last, and does not count before it is found again.
    doubtful: Option<Doubt>,
    /// Of a cluster's list: its version.
    version: u64,
}

/// What is known of a subject, or why nothing is.
type Known = Result<Fact, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fact {
    Addresses(Vec<SocketAddr>),
    List(String),
}

/// A list that may be one of the past, or half of one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Doubt {
    text: Result<String, String>,
    times: u32,
}

/// What is being done about a subject.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is looked up then.
    Due(Instant),
    /// It is being looked up.
    Asked,
    /// The same, and the master has been told that it takes too long.
    Late,
}

impl Subjects {
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.lists.is_empty()
    }
}

impl Resolver {
    fn new(channel: Channel<FromResolver, ToResolver>, wakeup: Arc<OwnedFd>) -> Resolver {
        Resolver {
            channel,
            lookups: Lookups::new(move || sys::wakeup::wake(&*wakeup)),
            subjects: BTreeMap::new(),
            every: Duration::MAX,
            news: BTreeSet::new(),
            alive: Instant::now(),
        }
    }

    /// Waits until there is something to do.
    fn wait(&self, wakeup: &OwnedFd) -> Result<(), Error> {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.channel.has_unsent());
        let mut fds = [PollFd::new(&self.channel, flags), PollFd::new(wakeup, PollFlags::IN)];
        let due = self.subjects.values().map(|subject| match subject.stage {
            Stage::Due(at) => at,
            Stage::Asked => subject.asked + LATE,
            Stage::Late => subject.asked + STUCK,
        });
        let left = due.min().map(|due| due.saturating_duration_since(Instant::now()));
        // Rounded up: woken a little early, it would find nothing due.
        let left = left.map(|left| left + Duration::from_millis(1));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: i64::from(left.subsec_nanos()) as _,
        });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let _ = rustix::io::read(wakeup, &mut [0; 8]);
        Ok(())
    }

    fn hear(&mut self) -> Result<(), Error> {
        while let Some(received) = self.channel.receive()? {
            match received.message {
                ToResolver::Subjects { every_us } => {
                    let wanted = received.fds.into_iter().next().map(sys::memory::read_sealed);
                    let bytes = wanted.transpose()?.unwrap_or_default();
                    let wanted = serde_json::from_slice(&bytes)
                        .map_err(|error| Peer::Broken(error.to_string()))?;
                    self.follow(wanted, Duration::from_micros(every_us).max(EVERY_MIN));
                }
                ToResolver::Ping {} => {}
            }
        }
        let _ = self.channel.acknowledge();
        Ok(())
    }

    /// All this is to be looked up, and at once.
    fn follow(&mut self, wanted: Subjects, every: Duration) {
        self.every = every;
        self.lookups.folder = wanted.folder;
        let hosts = wanted.hosts.into_iter().map(Question::Host);
        let lists = wanted.lists.into_iter().map(Question::List);
        let all: BTreeSet<Question> = hosts.chain(lists).collect();
        self.subjects.retain(|question, _| all.contains(question));
        self.news.retain(|question| all.contains(question));
        let (now, pause) = (Instant::now(), PAUSE_FIRST.min(every));
        for question in all {
            let subject = self.subjects.entry(question);
            let subject = subject.or_insert_with(|| Subject::new(now, pause));
            // What is in doubt is given its time.
            if matches!(subject.stage, Stage::Due(_)) && subject.doubtful.is_none() {
                (subject.stage, subject.pause) = (Stage::Due(now), pause);
            }
        }
    }

    fn begin_what_is_due(&mut self, now: Instant) {
        let is_idle = self.subjects.values().all(|it| matches!(it.stage, Stage::Due(_)));
        if is_idle {
            self.alive = now;
        }
        // Where nothing is asked more often for it, nobody need know how long an answer holds.
        let times = self.every > HOLDS_MIN;
        for (question, subject) in &mut self.subjects {
            if matches!(subject.stage, Stage::Due(at) if at <= now) {
                (subject.stage, subject.asked) = (Stage::Asked, now);
                self.lookups.begin(question.clone(), times);
            }
        }
    }

    fn note_answers(&mut self, now: Instant) {
        while let Some(outcome) = self.lookups.next() {
            self.alive = now;
            match outcome {
                Outcome::Host(host, found) => {
                    self.note_answer(Question::Host(host), found.map(Fact::Addresses), None, now);
                }
                Outcome::List(source, found) => self.note_list(source, found, now),
                Outcome::End(question, Some(holds)) => self.note_holds(&question, holds),
                Outcome::End(_, None) => {}
            }
        }
    }

    /// `again`: when it is to be looked up again, if that is known.
    fn note_answer(
        &mut self,
        question: Question,
        found: Known,
        again: Option<Duration>,
        now: Instant,
    ) {
        // It may be of no interest any more.
        let Some(subject) = self.subjects.get_mut(&question) else { return };
        if matches!(subject.stage, Stage::Due(_)) {
            return;
        }
        let pause = match &found {
            // Names that were asked for together stay together, so that what changes at once is
            // told at once.
            Ok(_) => {
                subject.pause = PAUSE_FIRST.min(self.every);
                again.unwrap_or_else(|| self.every.saturating_sub(now - subject.asked))
            }
            Err(_) => {
                let pause = subject.pause;
                subject.pause = (pause * 2).min(self.every);
                again.unwrap_or(pause)
            }
        };
        subject.stage = Stage::Due(now + pause);
        note(subject, found, &question, &mut self.news);
    }

    /// A file is looked at all the time. What is found of a list counts only when it is found
    /// again, if something else was known: a file may be half written, and the servers of a cluster
    /// do not all learn of a change at once.
    fn note_list(&mut self, source: ListSource, found: FoundList, now: Instant) {
        let again = matches!(source, ListSource::File(_)).then(|| LOOK_EVERY.min(self.every));
        let question = Question::List(source);
        let Some(subject) = self.subjects.get_mut(&question) else { return };
        if matches!(subject.stage, Stage::Due(_)) {
            return;
        }
        let needed = match (&question, found.version) {
            (Question::List(ListSource::File(_)), _) => LOOKS,
            (_, Some(version)) if version < subject.version => LOOKS_AT_THE_PAST,
            _ => 1,
        };
        let is_known = subject.found.as_ref().is_none_or(|known| match (known, &found.text) {
            (Ok(Fact::List(known)), Ok(text)) => known == text,
            // A failure is another failure, whatever its reason.
            (known, text) => known.is_err() && text.is_err(),
        });
        if !is_known && needed > 1 {
            let times = match subject.doubtful.take() {
                Some(doubt) if doubt.text == found.text => doubt.times + 1,
                _ => 1,
            };
            if times < needed {
                subject.doubtful = Some(Doubt { text: found.text, times });
                subject.stage = Stage::Due(now + LOOK_AGAIN.min(self.every));
                return;
            }
        }
        subject.doubtful = None;
        subject.version = found.version.unwrap_or(subject.version);
        self.note_answer(question, found.text.map(Fact::List), again, now);
    }

    /// An answer of DNS says for how long it holds.
    fn note_holds(&mut self, question: &Question, holds: Duration) {
        let Some(subject) = self.subjects.get_mut(question) else { return };
        if let (Stage::Due(at), Some(Ok(_))) = (subject.stage, &subject.found) {
            subject.stage = Stage::Due(at.min(subject.asked + holds.max(HOLDS_MIN)));
        }
    }

    /// The master is told of what takes too long: servers may be waiting for it.
    fn note_late(&mut self, now: Instant) {
        for (question, subject) in &mut self.subjects {
            if subject.stage == Stage::Asked && now - subject.asked >= LATE {
                subject.stage = Stage::Late;
                let why = format!("no answer within {} s", LATE.as_secs());
                note(subject, Err(why), question, &mut self.news);
            }
        }
    }

    /// Whether something has been looked up for very long, and nothing else was answered meanwhile.
    fn is_stuck(&self, now: Instant) -> bool {
        let is_late = |subject: &Subject| subject.stage == Stage::Late;
        now - self.alive >= STUCK && self.subjects.values().any(is_late)
    }

    /// Tells the master what is new, as far as the channel has room.
    fn tell(&mut self) -> Result<(), Error> {
        while self.channel.has_room()
            && let Some(question) = self.news.pop_first()
        {
            let Some(subject) = self.subjects.get_mut(&question) else { continue };
            let Some(found) = subject.found.clone() else { continue };
            subject.told = Some(found.clone());
            match question {
                Question::Host(host) => {
                    let found = found.map(|fact| match fact {
                        Fact::Addresses(all) => all,
                        Fact::List(_) => Vec::new(),
                    });
                    self.channel.send(FromResolver::Answer { host, found }, &[])?;
                }
                Question::List(source) => {
                    let text = match &found {
                        Ok(Fact::List(text)) => text.as_str(),
                        _ => "",
                    };
                    let sealed = Rc::new(sys::memory::sealed("quickack-list", text.as_bytes())?);
                    let found = found.map(drop);
                    self.channel.send(FromResolver::List { source, found }, &[sealed])?;
                }
            }
        }
        self.channel.flush()
    }
}

impl Subject {
    fn new(now: Instant, pause: Duration) -> Subject {
        Subject {
            stage: Stage::Due(now),
            asked: now,
            pause,
            found: None,
            told: None,
            doubtful: None,
            version: 0,
        }
    }
}

/// Notes an answer. Each failure is news, since the master counts them.
fn note(subject: &mut Subject, found: Known, question: &Question, news: &mut BTreeSet<Question>) {
    let is_told = match (&subject.told, &found) {
        // Name servers shuffle their answers.
        (Some(Ok(Fact::Addresses(told))), Ok(Fact::Addresses(found))) => {
            told.iter().collect::<BTreeSet<_>>() == found.iter().collect::<BTreeSet<_>>()
        }
        (Some(Ok(told)), Ok(found)) => told == found,
        _ => false,
    };
    if is_told {
        // What has not been told yet is out of date.
        news.remove(question);
    } else {
        news.insert(question.clone());
    }
    subject.found = Some(found);
}

/// What others say of a failure, as one short line.
fn plain_words(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().map(plain).take(WHY_LEN_MAX).collect()
}

const WHY_LEN_MAX: usize = 200;
/// A look-up that takes longer is told as a failure, though its answer may still come.
const LATE: Duration = Duration::from_secs(10);
/// If no look-up ends for so long, the process gives up.
const STUCK: Duration = Duration::from_secs(120);
/// The pause after a first failure; it doubles with each.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Nobody is asked more often.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// An answer that says it holds for less is asked for again after this.
const HOLDS_MIN: Duration = Duration::from_secs(1);
/// How often a file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// When a list that may be half a list, or one of the past, is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often a file must be found the same, if it was another before.
const LOOKS: u32 = 2;
/// The same of a cluster's list with a lower version, which is one of the past, or that of a
/// cluster that was made anew.
const LOOKS_AT_THE_PAST: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of a list after these findings, each a text and a version.
    fn check(source: ListSource, findings: &[(&str, Option<u64>)]) -> Vec<String> {
        let (ours, _theirs) = sys::channel::pair().unwrap();
        let wakeup = Arc::new(sys::wakeup::new().unwrap());
        let mut resolver = Resolver::new(Channel::new(ours), wakeup);
        let lists = BTreeSet::from([source.clone()]);
        resolver.follow(Subjects { lists, ..Subjects::default() }, Duration::from_secs(30));
        let question = Question::List(source.clone());
        let mut known = Vec::new();
        for (text, version) in findings {
            resolver.subjects.get_mut(&question).unwrap().stage = Stage::Asked;
            let text = match *text {
                "" => Err("none".to_string()),
                text => Ok(text.to_string()),
            };
            let found = FoundList { text, version: *version, holds: None };
            resolver.note_list(source.clone(), found, Instant::now());
            known.push(match &resolver.subjects[&question].found {
                Some(Ok(Fact::List(text))) => text.clone(),
                _ => String::new(),
            });
        }
        known
    }

    #[test]
    fn another_file_counts_when_it_is_found_the_same_twice() {
        let file = || ListSource::File("x".to_string());
        let texts = ["ab", "abc", "a", "abc", "abc", "", "abc", "", "", "a", "abc", "abc"];
        let findings = texts.map(|text| (text, None));
        let expected = ["ab", "ab", "ab", "ab", "abc", "abc", "abc", "abc", "", "", "", "abc"];
        assert_eq!(check(file(), &findings), expected);
        assert_eq!(check(file(), &[("", None), ("a", None), ("a", None)]), ["", "", "a"]);
    }

    #[test]
    fn a_list_of_the_past_counts_when_it_has_come_three_times() {
        let cluster = ListSource::Elasticache { host: "a".to_string(), port: 1 };
        let findings = [
            ("five", Some(5)),
            ("six", Some(6)),
            ("five", Some(5)),
            ("six", Some(6)),
            ("one", Some(1)),
            ("one", Some(1)),
            ("one", Some(1)),
            ("two", Some(2)),
        ];
        let expected = ["five", "six", "six", "six", "six", "six", "one", "two"];
        assert_eq!(check(cluster, &findings), expected);
    }
}
