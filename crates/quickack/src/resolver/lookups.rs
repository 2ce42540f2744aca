//! Look-ups under way, and the threads that wait for them: an answer may take minutes, in a process
//! that no client waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::dns;
use super::lists::{self, FoundList};
use super::system::{self, Found};
use crate::config::ListSource;

/// What is looked up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    Host(String),
    List(ListSource),
}

/// What has come of it.
pub enum Outcome {
    Host(String, Found),
    List(ListSource, FoundList),
    /// Nothing more will come. `holds`: how long the answer holds, as far as is known.
    End(Question, Option<Duration>),
}

/// Looks up all hosts at once, and waits for the answers until the time is over.
pub fn look_up(hosts: BTreeSet<String>, patience: Duration) -> BTreeMap<String, Found> {
    let questions = hosts.into_iter().map(Question::Host).collect();
    let found = wait_for(questions, Path::new(""), patience).into_iter();
    let hosts = found.filter_map(|(question, answer)| match (question, answer) {
        (Question::Host(host), Answer::Host(found)) => Some((host, found)),
        _ => None,
    });
    hosts.collect()
}

/// The same for lists. `folder`: where relative paths begin.
pub fn take_lists(
    sources: BTreeSet<ListSource>,
    folder: &Path,
    patience: Duration,
) -> BTreeMap<ListSource, Result<String, String>> {
    let questions = sources.into_iter().map(Question::List).collect();
    let found = wait_for(questions, folder, patience).into_iter();
    let lists = found.filter_map(|(question, answer)| match (question, answer) {
        (Question::List(source), Answer::List(found)) => Some((source, found.text)),
        _ => None,
    });
    lists.collect()
}

enum Answer {
    Host(Found),
    List(FoundList),
}

fn wait_for(
    questions: BTreeSet<Question>,
    folder: &Path,
    patience: Duration,
) -> BTreeMap<Question, Answer> {
    let until = Instant::now() + patience;
    let late = || format!("no answer within {} s", patience.as_secs());
    let mut all: BTreeMap<Question, Answer> = questions
        .iter()
        .map(|question| {
            let answer = match question {
                Question::Host(_) => Answer::Host(Err(late())),
                Question::List(_) => Answer::List(FoundList::none(late())),
            };
            (question.clone(), answer)
        })
        .collect();
    let mut missing = questions.len();
    let mut lookups = Lookups::new(|| ());
    lookups.folder = folder.to_path_buf();
    questions.into_iter().for_each(|question| lookups.begin(question, false));
    while missing > 0 {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(outcome) = lookups.outcomes.recv_timeout(left) else { break };
        let (question, answer) = match outcome {
            Outcome::Host(host, found) => (Question::Host(host), Answer::Host(found)),
            Outcome::List(source, found) => (Question::List(source), Answer::List(found)),
            Outcome::End(..) => continue,
        };
        missing -= 1;
        all.insert(question, answer);
    }
    all
}

/// Look-ups under way, and the threads that wait for them. A thread whose answer never comes ends
/// with the process.
pub struct Lookups {
    /// Where the relative paths of files begin.
    pub folder: PathBuf,
    queue: Arc<Queue>,
    teller: Sender<Outcome>,
    outcomes: Receiver<Outcome>,
    threads: usize,
    /// Look-ups that have not ended.
    outstanding: usize,
    /// Called by a thread when there is an outcome.
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// What a thread is to do.
struct Task {
    question: Question,
    folder: PathBuf,
    /// Whether it is of use how long the answer holds.
    times: bool,
}

/// Tasks that no thread has taken yet.
#[derive(Default)]
struct Queue {
    tasks: Mutex<VecDeque<Task>>,
    is_longer: Condvar,
}

impl Lookups {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Lookups {
        let (teller, outcomes) = mpsc::channel();
        let (queue, wake) = (Arc::default(), Arc::new(wake));
        let folder = PathBuf::new();
        Lookups { folder, queue, teller, outcomes, threads: 0, outstanding: 0, wake }
    }

    /// Begins to look something up. Answers come in any order. `times`: whether it is of use how
    /// long the answer holds.
    pub fn begin(&mut self, question: Question, times: bool) {
        self.queue.tasks().push_back(Task { question, folder: self.folder.clone(), times });
        self.queue.is_longer.notify_one();
        self.outstanding += 1;
        if self.threads < self.outstanding.min(THREADS_MAX) {
            let (queue, teller) = (Arc::clone(&self.queue), self.teller.clone());
            let wake = Arc::clone(&self.wake);
            let thread = thread::Builder::new().stack_size(STACK);
            // Without it, those that there are do all the work.
            let started = thread.spawn(move || work(&queue, &teller, &*wake));
            self.threads += usize::from(started.is_ok());
        }
    }

    /// Returns an outcome that has come.
    pub fn next(&mut self) -> Option<Outcome> {
        let outcome = self.outcomes.try_recv().ok()?;
        self.outstanding -= usize::from(matches!(outcome, Outcome::End(..)));
        Some(outcome)
    }
}

impl Queue {
    fn tasks(&self) -> MutexGuard<'_, VecDeque<Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Task {
        let mut tasks = self.tasks();
        loop {
            if let Some(task) = tasks.pop_front() {
                return task;
            }
            tasks = self.is_longer.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn work(queue: &Queue, teller: &Sender<Outcome>, wake: &dyn Fn()) {
    let tell = |outcome: Outcome| {
        let is_told = teller.send(outcome).is_ok();
        wake();
        is_told
    };
    loop {
        let Task { question, folder, times } = queue.take();
        let holds = match &question {
            Question::Host(host) => {
                let found = system::ask(host);
                // Told before the name servers are asked how long it holds: they may not answer.
                if !tell(Outcome::Host(host.clone(), found.clone())) {
                    return;
                }
                found.ok().filter(|_| times).and_then(|found| dns::holds(host, &found))
            }
            Question::List(source) => {
                let found = lists::take(source, &folder);
                let holds = found.holds;
                if !tell(Outcome::List(source.clone(), found)) {
                    return;
                }
                holds
            }
        };
        if !tell(Outcome::End(question, holds)) {
            return;
        }
    }
}

/// Look-ups at the same time: a name server that answers one name late delays no other.
const THREADS_MAX: usize = 16;
/// A resolver's modules keep answers of 64 KiB on the stack.
const STACK: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_looked_up_together() {
        let hosts = ["127.0.0.1", "::1", "no.such.host.invalid"].map(str::to_string);
        let all = look_up(BTreeSet::from(hosts), Duration::from_secs(60));
        assert_eq!(all["127.0.0.1"], Ok(vec!["127.0.0.1:0".parse().unwrap()]));
        assert_eq!(all["::1"], Ok(vec!["[::1]:0".parse().unwrap()]));
        let why = all["no.such.host.invalid"].clone().unwrap_err();
        assert!(!why.is_empty() && !why.contains("lookup"), "{why}");
    }

    #[test]
    fn what_has_no_answer_in_time_says_so() {
        let all = look_up(BTreeSet::from(["no.such.host.invalid".to_string()]), Duration::ZERO);
        assert_eq!(all["no.such.host.invalid"], Err("no answer within 0 s".to_string()));
    }
}
