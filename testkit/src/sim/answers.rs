//! Judges the replies of meta and binary: which request each one answers, which outcomes are hidden
//! between them, and whether each one reports what happened.

use super::client::{Asked, Expect};
use super::forms::{Adds, Form, What};
use super::history::{Value, Version};
use super::journal::{Outcome as Done, Update};
use super::judge::{Judge, is_value};
use super::reply::Hit;
use super::told::{Marks, Outcome, Told};

impl Judge<'_> {
    /// Handles an answer that has arrived. Quiet requests before the one that it answers are
    /// settled: their missing answers stand for hidden outcomes.
    pub fn hear(&mut self, told: &Told, input: &[u8]) {
        let Some(owner) = self.owner(told) else {
            self.client.loose_errors += 1;
            self.summary.errors += 1;
            return;
        };
        for _ in 0..owner {
            let hidden = self.client.drop_expect();
            if let Asked::Form(form) = hidden.asked {
                assert!(form.is_sparing, "request {} was passed over", hidden.index);
                assert_ne!(hidden.arrived, 0, "an answer before its request was whole");
                self.hidden(&hidden, &form);
            } else {
                assert!(hidden.is_quiet, "request {} was passed over", hidden.index);
            }
        }
        let expect = self.client.drop_expect();
        let Asked::Form(form) = expect.asked else { unreachable!("its owner is one") };
        let by_head = told.line.ends_with(NO_META)
            || self.tight_memory && told.line.starts_with("SERVER_ERROR ");
        assert!(expect.arrived != 0 || by_head, "an answer before its request was whole");
        self.summary.replies += 1;
        self.told(&expect, &form, told, input);
        if form.what == What::Barrier {
            self.client.loose_errors = 0;
            self.settled(&expect);
        }
    }

    /// Returns the index of the request that is answered; None for an error that does not identify
    /// it.
    fn owner(&self, told: &Told) -> Option<usize> {
        let forms =
            self.client.expects.iter().enumerate().filter_map(|(at, one)| match one.asked {
                Asked::Form(form) => Some((at, form)),
                _ => None,
            });
        let mut forms = forms.peekable();
        let first = *forms.peek().expect("the caller looked");
        let found = match (told.opaque, told.outcome) {
            (Some(opaque), _) => forms.find(|(_, form)| form.opaque == opaque),
            (None, Outcome::Barrier) => forms.find(|(_, form)| form.what == What::Barrier),
            (None, Outcome::Error) if first.1.is_sparing => return None,
            (None, Outcome::Error) => Some(first),
            (None, _) => panic!("{:?} without its opaque", told.outcome),
        };
        let found = found.unwrap_or_else(|| panic!("opaque {:?} is nobody's", told.opaque));
        Some(found.0)
    }

    /// Checks a quiet request that was not answered: it must have had the hidden outcome.
    fn hidden(&mut self, expect: &Expect, form: &Form) {
        if self.client.loose_errors > 0 {
            return;
        }
        match form.what {
            What::Get { key } | What::GetAndTouch { key, .. } => {
                self.miss(expect, &[key as u8], 0, false, false);
            }
            What::Vivify { .. } => panic!("a read that makes what it misses is hidden"),
            What::Delete { key } => self.delete(expect, key, "DELETED"),
            What::Update { number, .. } => {
                let update = &self.journal.updates[number as usize];
                assert_ne!(update.executed, 0, "update {number} is hidden, and was not executed");
                let line = line_of(update.outcome);
                assert!(is_good(&line), "update {number}: {line} is hidden");
                self.update(expect, number, &line);
            }
            What::Barrier => unreachable!("it is never quiet"),
        }
    }

    fn told(&mut self, expect: &Expect, form: &Form, told: &Told, input: &[u8]) {
        if told.outcome == Outcome::Error && told.line.ends_with(NO_META) {
            return self.refused(form);
        }
        if form.tells_key && told.outcome == Outcome::Good {
            let key = told.key.clone().map(|place| &input[place]);
            let text = self.text_of(form);
            assert_eq!(key, Some(text.as_bytes()), "an answer with another key");
        }
        match form.what {
            What::Barrier => {
                let is_it = matches!(told.outcome, Outcome::Barrier | Outcome::Good);
                assert!(is_it, "a barrier is answered {:?}", told.line);
            }
            What::Get { key } | What::GetAndTouch { key, .. } | What::Vivify { key, .. } => {
                self.read_one(expect, form, key, told, input);
            }
            What::Delete { key } => {
                let line = match told.outcome {
                    Outcome::Good => "DELETED",
                    Outcome::NotFound => "NOT_FOUND",
                    _ => &told.line,
                };
                self.delete(expect, key, line);
            }
            What::Update { number, adds } => {
                assert!(!form.is_sparing || told.outcome != Outcome::Good, "good news are shown");
                let update = &self.journal.updates[number as usize];
                let line = classic_line(update, form, adds, told);
                let cas = update.at;
                self.update(expect, number, &line);
                let tells_cas = form.opcode.is_some() && told.outcome == Outcome::Good;
                assert!(!tells_cas || told.cas == cas, "cas {}, not {cas}", told.cas);
            }
        }
    }

    fn read_one(&mut self, expect: &Expect, form: &Form, key: usize, told: &Told, input: &[u8]) {
        match told.outcome {
            Outcome::Good => {
                let hit = told.hit.as_ref().expect("a value");
                self.hit_one(expect, form, key, (hit, told.marks), input);
            }
            Outcome::Miss | Outcome::NotFound => {
                assert!(!form.is_sparing, "a miss is shown to a quiet read");
                let makes = matches!(form.what, What::Vivify { .. });
                assert!(!makes, "a read that makes what it misses has missed");
                self.miss(expect, &[key as u8], 0, false, false);
            }
            _ => drop(self.explain(expect, &[key as u8], &told.line)),
        }
    }

    fn hit_one(
        &mut self,
        expect: &Expect,
        form: &Form,
        key: usize,
        (hit, marks): (&Hit, Marks),
        input: &[u8],
    ) {
        self.summary.hits += 1;
        let bytes = &input[hit.bytes.clone()];
        if form.opcode.is_none() {
            let opaque = format!("{}x{}", self.client.number, form.opaque);
            let won = self.journal.wins.remove(&(self.pool_at, opaque));
            assert_eq!(marks.wins, won, "who was told to fill key {key} is not who was chosen");
        }
        // Before any client has asked for marks, a read may have been sent in a form without them.
        let marked = self.journal.marked.get(&self.pool_at).copied().unwrap_or(u64::MAX);
        let lacked = |at: usize| self.pool.servers[at].ever_lacked;
        let may_hide = form.opcode.is_some()
            || expect.arrived < marked && !form.is_marked
            || self.owners(expect, key).any(lacked);
        let fits = |value: &Value| {
            let shown = (marks.won || marks.wins, marks.stale);
            let is_hidden = may_hide && marks == Marks::default();
            is_hidden || shown == (value.won, value.stale)
        };
        let is_it = |version: &&Version| {
            let value = version.value.as_ref();
            value.is_some_and(|value| is_value(value, hit, bytes) && fits(value))
        };
        let Some(version) = self.version(expect, key, is_it) else {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
            panic!("key {key}: {shown:?} {marks:?} was not there")
        };
        self.seen(expect, key, version);
        if let Some(cas) = hit.cas {
            self.client.cas[key] = cas;
        }
    }

    /// Checks a refusal: its server had no meta commands, and no classic command is equivalent.
    fn refused(&mut self, form: &Form) {
        // Its head may have arrived while another server owned its key.
        let lacked = self.pool.servers.iter().any(|server| server.ever_lacked);
        assert!(lacked, "refused by a server that has meta");
        assert_ne!(form.what, What::Barrier, "a barrier needs no server");
        self.summary.refused_forms += 1;
        if let Some(number) = form.update() {
            let update = &mut self.journal.updates[number as usize];
            assert_eq!(update.executed, 0, "update {number} is executed, and refused");
            update.forbidden = true;
        } else if let What::Delete { key } = form.what {
            self.journal.forbid_delete(self.pool_at, key);
        }
    }

    /// Checks a barrier that is answered: the client's earlier requests without an answer are done
    /// or have failed.
    fn settled(&self, barrier: &Expect) {
        for (index, number) in &self.client.quiet_updates {
            let update = &self.journal.updates[*number as usize];
            let is_before = *index < barrier.index;
            if !is_before || update.executed != 0 || update.retries || self.may_lose(update) {
                continue;
            }
            panic!("update {number} is not settled, and the barrier behind it is answered");
        }
    }

    fn may_lose(&self, update: &Update) -> bool {
        let failed =
            |at: usize| self.pool.servers[at].was_in_trouble(update.arrived, update.arrived_at);
        let failed = match update.key {
            Some(key) => self.pool.owners(key, update.arrived).any(failed),
            None => (0..self.pool.servers.len()).any(failed),
        };
        let is_tight = self.tight_memory || self.tight_queues;
        failed || is_tight || self.has_late || self.pool.rings.was_empty(update.arrived)
    }

    fn text_of(&self, form: &Form) -> &str {
        let key = match form.what {
            What::Update { number, .. } => self.journal.updates[number as usize].key,
            What::Get { key }
            | What::GetAndTouch { key, .. }
            | What::Vivify { key, .. }
            | What::Delete { key } => Some(key),
            What::Barrier => None,
        };
        &self.pool.keys[key.expect("it has a key")].text
    }
}

/// Returns the reply of the classic protocol to the same outcome.
fn classic_line(update: &Update, form: &Form, adds: Adds, told: &Told) -> String {
    let is_binary = form.opcode.is_some();
    let line = match (told.outcome, adds) {
        (Outcome::Good, _) => match update.outcome {
            Done::Number(_) => &told.line,
            Done::Words(_) => "STORED",
        },
        (Outcome::Exists, Adds::Add) | (Outcome::NotFound, Adds::Replace) if is_binary => {
            "NOT_STORED"
        }
        _ => &told.line,
    };
    line.to_string()
}

fn line_of(outcome: Done) -> String {
    match outcome {
        Done::Words(words) => words.to_string(),
        Done::Number(number) => number.to_string(),
    }
}

fn is_good(line: &str) -> bool {
    line == "STORED" || line.parse::<u64>().is_ok()
}

const NO_META: &str = "this needs the meta commands, which the server lacks";
