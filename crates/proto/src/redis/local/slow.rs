//! SLOWLOG and LATENCY: the slow requests that went through the proxy, in the shapes of a server.
//!
//! The events of LATENCY are the causes of slow requests. As a server does, the answer has the
//! longest time of each second, for the last 160 seconds that had one.

use std::collections::BTreeMap;

use super::super::commands::id;
use super::super::words;
use super::LocalAnswer;
use crate::scan::decimal;
use crate::{AfterLocal, SlowRequest, SlowSample};

const BAD_COUNT: &[u8] = b"ERR count should be greater than or equal to -1";
const MANY: &[u8] =
    b"ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.";
/// Entries that a client gets if it does not say how many it wants.
const COUNT: usize = 10;
/// The most entries that a client gets, or is told that there are.
const COUNT_MAX: usize = 1024;
/// The most seconds of one event.
const SECONDS_MAX: usize = 160;

/// One event: its seconds, and the longest time of each in microseconds.
struct Event {
    cause: u8,
    name: &'static str,
    seconds: BTreeMap<u64, u64>,
}

impl LocalAnswer<'_> {
    pub(super) fn slowlog_get(&mut self, under: &[&[u8]]) {
        let count = match under {
            [] => COUNT,
            [b"-1"] => COUNT_MAX,
            [text] => match decimal(text, i64::MAX as u64) {
                Some(count) => (count as usize).min(COUNT_MAX),
                None => return self.error(&[BAD_COUNT]),
            },
            _ => return self.error(&[MANY]),
        };
        let requests = self.proxy.slow_requests(count);
        words::open_array(requests.len(), self.out);
        requests.iter().for_each(|request| self.slow_request(request));
    }

    fn slow_request(&mut self, request: &SlowRequest) {
        words::open_array(6, self.out);
        words::number(request.id, self.out);
        words::number(request.time_s, self.out);
        words::number(request.us, self.out);
        let name = request.command.split('|');
        words::open_array(name.clone().count() + usize::from(!request.key.is_empty()), self.out);
        name.for_each(|word| words::bulk(word.as_bytes(), self.out));
        if !request.key.is_empty() {
            let more = match request.key_cut {
                0 => String::new(),
                cut => format!("... ({cut} more bytes)"),
            };
            words::bulk(&[&request.key, more.as_bytes()].concat(), self.out);
        }
        words::bulk(request.client.as_bytes(), self.out);
        words::bulk(request.name.as_bytes(), self.out);
    }

    pub(super) fn slowlog_len(&mut self) {
        words::number(self.proxy.slow_count().min(COUNT_MAX) as u64, self.out);
    }

    pub(super) fn slowlog_reset(&mut self) -> AfterLocal {
        self.ok();
        AfterLocal::HideSlow
    }

    /// Writes time and milliseconds of each second in which an event was.
    pub(super) fn latency_history(&mut self, under: &[&[u8]]) {
        let name = under.first().copied().unwrap_or_default();
        let found = events(&self.proxy.slow_samples()).into_iter().find(|event| event.is(name));
        let seconds = found.map(|event| event.seconds).unwrap_or_default();
        words::open_array(seconds.len(), self.out);
        for (second, us) in seconds {
            words::open_array(2, self.out);
            words::number(second, self.out);
            words::number(milliseconds(us), self.out);
        }
    }

    /// Writes for each event its name, its last second, the time in it, and the longest time.
    pub(super) fn latency_latest(&mut self) {
        let events = events(&self.proxy.slow_samples());
        words::open_array(events.len(), self.out);
        for event in events {
            let (second, last) = event.seconds.last_key_value().unwrap_or((&0, &0));
            let longest = event.seconds.values().max().unwrap_or(&0);
            words::open_array(4, self.out);
            words::bulk(event.name.as_bytes(), self.out);
            words::number(*second, self.out);
            words::number(milliseconds(*last), self.out);
            words::number(milliseconds(*longest), self.out);
        }
    }

    /// Writes how many events it resets: those that are named, or all.
    pub(super) fn latency_reset(&mut self, names: &[&[u8]]) -> AfterLocal {
        let is_named = |event: &Event| names.is_empty() || names.iter().any(|name| event.is(name));
        let events = events(&self.proxy.slow_samples());
        let reset = events.iter().filter(|event| is_named(event));
        let (count, bits) =
            reset.fold((0, 0), |(count, bits), event| (count + 1, bits | 1 << event.cause));
        words::number(count, self.out);
        AfterLocal::HideCauses(bits)
    }

    pub(super) fn slow_help(&mut self, command: u16) {
        let lines = if command == id::SLOWLOG_HELP { SLOWLOG } else { LATENCY };
        words::open_array(lines.len(), self.out);
        lines.iter().for_each(|line| words::simple(line, self.out));
    }
}

impl Event {
    fn is(&self, name: &[u8]) -> bool {
        self.name.as_bytes().eq_ignore_ascii_case(name)
    }
}

/// Returns the events that have samples, by their places.
fn events(samples: &[SlowSample]) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for sample in samples {
        let at = match events.binary_search_by_key(&sample.cause, |event| event.cause) {
            Ok(at) => at,
            Err(at) => {
                let SlowSample { cause, name, .. } = *sample;
                events.insert(at, Event { cause, name, seconds: BTreeMap::new() });
                at
            }
        };
        let seconds = &mut events[at].seconds;
        let longest = seconds.entry(sample.time_s).or_default();
        *longest = sample.us.max(*longest);
        if seconds.len() > SECONDS_MAX {
            seconds.pop_first();
        }
    }
    events
}

/// A slow request took more than no time.
fn milliseconds(us: u64) -> u64 {
    us.div_ceil(1000)
}

const SLOWLOG: &[&str] = &[
    "SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET [<count>]",
    "    Return the last <count> requests that took long through the proxy (default: 10, -1: all).",
    "    Entries are made of:",
    "    id, timestamp, time in microseconds, command and key, client IP and port, client name",
    "LEN",
    "    Return the number of entries.",
    "RESET",
    "    Hide the entries so far from the clients of this pool, or of your tenant.",
    "HELP",
    "    Print this help.",
];
const LATENCY: &[&str] = &[
    "LATENCY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "HISTORY <event>",
    "    Return time and milliseconds of slow requests through the proxy with the cause <event>.",
    "LATEST",
    "    Return the last and the longest time of each cause.",
    "RESET [<event> ...]",
    "    Hide the samples so far of these causes, or of all, from the clients of this pool, or of",
    "    your tenant.",
    "HELP",
    "    Print this help.",
];

#[cfg(test)]
mod tests {
    use super::super::local;
    use super::*;
    use crate::tests::FACTS;
    use crate::{Facts, Parsed, Protocol, ProxyFacts, Resume, Session, Totals};

    /// A proxy with some slow requests.
    struct Slow(Vec<SlowRequest>, Vec<SlowSample>);

    impl ProxyFacts for Slow {
        fn facts(&self) -> Facts<'_> {
            FACTS
        }

        fn totals(&self) -> Totals {
            Totals::default()
        }

        fn slow_requests(&self, most: usize) -> Vec<SlowRequest> {
            self.0.iter().take(most).cloned().collect()
        }

        fn slow_count(&self) -> usize {
            self.0.len()
        }

        fn slow_samples(&self) -> Vec<SlowSample> {
            self.1.clone()
        }
    }

    #[track_caller]
    fn check(proxy: &Slow, line: &str, expected: &str) -> AfterLocal {
        let head = format!("{line}\r\n").into_bytes();
        let redis = crate::redis::Redis;
        let parsed = redis.parse_request(&head, &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
        let mut out = Vec::new();
        let after = local(&request, &head, &mut Session::default(), proxy, &mut out);
        let text = String::from_utf8(out).expect("text").replace("\r\n", " ");
        assert_eq!(text.trim_end(), expected, "{line}");
        after
    }

    fn request(id: u64) -> SlowRequest {
        SlowRequest {
            id,
            time_s: 1000 + id,
            us: 50_000,
            command: "get".to_string(),
            key: b"k".to_vec(),
            key_cut: 0,
            client: "1.2.3.4:5".to_string(),
            name: String::new(),
        }
    }

    #[test]
    fn entries_have_the_shape_of_a_servers() {
        let all = SlowRequest {
            command: "config|set".to_string(),
            key: b"ab".to_vec(),
            key_cut: 7,
            name: "me".to_string(),
            ..request(3)
        };
        let keyless = SlowRequest { key: Vec::new(), ..request(2) };
        let proxy = Slow(vec![all, keyless, request(1)], Vec::new());
        let three = "*6 :3 :1003 :50000 *3 $6 config $3 set $20 ab... (7 more bytes) \
            $9 1.2.3.4:5 $2 me";
        let two = "*6 :2 :1002 :50000 *1 $3 get $9 1.2.3.4:5 $0";
        check(&proxy, "slowlog get 1", &format!("*1 {three}"));
        check(&proxy, "slowlog get 2", &format!("*2 {three} {two}"));
        check(&proxy, "slowlog get 0", "*0");
        check(&proxy, "slowlog len", ":3");
        assert_eq!(check(&proxy, "slowlog reset", "+OK"), AfterLocal::HideSlow);
        for wrong in ["-2", "-99999", "x", "1.5", "--1", "\"\""] {
            let error = "-ERR count should be greater than or equal to -1";
            check(&proxy, &format!("slowlog get {wrong}"), error);
        }
    }

    #[test]
    fn a_client_gets_ten_unless_it_asks_for_more_and_never_all_of_very_many() {
        let proxy = Slow((0..5000).map(request).collect(), Vec::new());
        let count = |line: &str| {
            let head = format!("{line}\r\n").into_bytes();
            let redis = crate::redis::Redis;
            let parsed = redis.parse_request(&head, &mut Resume::default(), &mut Vec::new());
            let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
            let mut out = Vec::new();
            local(&request, &head, &mut Session::default(), &proxy, &mut out);
            out.windows(4).filter(|four| four == b"*6\r\n").count()
        };
        let lines = ["slowlog get", "slowlog get 20", "slowlog get -1", "slowlog get 4999"];
        assert_eq!(lines.map(count), [10, 20, 1024, 1024]);
        check(&proxy, "slowlog len", ":1024");
    }

    #[test]
    fn an_event_has_the_longest_time_of_each_second() {
        let sample = |cause, time_s, us| {
            let name = ["request-in-pieces", "queue", "server"][usize::from(cause)];
            SlowSample { cause, name, time_s, us }
        };
        let samples = vec![
            sample(2, 100, 3_000),
            sample(2, 100, 9_001),
            sample(1, 101, 1),
            sample(2, 102, 4_000),
        ];
        let proxy = Slow(Vec::new(), samples);
        check(&proxy, "latency history server", "*2 *2 :100 :10 *2 :102 :4");
        check(&proxy, "latency history QUEUE", "*1 *2 :101 :1");
        check(&proxy, "latency history command", "*0");
        check(&proxy, "latency latest", "*2 *4 $5 queue :101 :1 :1 *4 $6 server :102 :4 :10");
        assert_eq!(check(&proxy, "latency reset", ":2"), AfterLocal::HideCauses(0b110));
        let after = check(&proxy, "latency reset server held", ":1");
        assert_eq!(after, AfterLocal::HideCauses(0b100));
        assert_eq!(check(&proxy, "latency reset held", ":0"), AfterLocal::HideCauses(0));
        let many = (0..1000).map(|second| sample(0, second, 5)).collect();
        let last: String = (840..1000).map(|second| format!(" *2 :{second} :1")).collect();
        let history = format!("*160{last}");
        check(&Slow(Vec::new(), many), "latency history request-in-pieces", &history);
    }

    #[test]
    fn without_slow_requests_the_lists_are_empty() {
        let none = Slow(Vec::new(), Vec::new());
        for line in ["slowlog get", "slowlog get -1", "latency history server", "latency latest"] {
            check(&none, line, "*0");
        }
        check(&none, "slowlog len", ":0");
        check(&none, "latency reset", ":0");
    }
}
