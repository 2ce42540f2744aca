//! `stats`, with memcached's names in memcached's order, for a pool as if it were one memcached.
//!
//! The proxy reports its own figures for connections, bytes, the pool's reads and stores, and the
//! process. A name that only servers know has one value, merged from those that answer: mostly the
//! sum. Servers that do not answer are named, in a line of their own.

use std::collections::BTreeMap;

use super::version;
use crate::part::{Part, Process, ProxyFacts, Totals};
use crate::{Answer, Asked, Protocol, scan};

/// The source of a name's value. Names that no server reports are left out, unless the value is
/// ours.
#[derive(Clone, Copy)]
enum Figure {
    /// The proxy's own value.
    Proxy(fn(&ProxyValues) -> String),
    /// The sum of the servers' values.
    Sum,
    /// The largest (or least) value of any server, for a switch or for a size that grows.
    Most,
    Least,
    /// The value of all servers; left out where they differ.
    Common,
}

use Figure::{Common, Least, Most, Proxy, Sum};

struct ProxyValues {
    version: String,
    process: Process,
    totals: Totals,
}

/// The names, in memcached's order. Any other name that servers report is a `Sum`.
static NAMES: &[(&str, Figure)] = &[
    ("pid", Proxy(|proxy| proxy.process.pid.to_string())),
    ("uptime", Proxy(|proxy| proxy.process.uptime_s.to_string())),
    ("time", Proxy(|proxy| proxy.process.time_s.to_string())),
    ("version", Proxy(|proxy| proxy.version.clone())),
    ("libevent", Common),
    ("pointer_size", Proxy(|_| usize::BITS.to_string())),
    ("rusage_user", Proxy(|proxy| seconds(proxy.process.user_us))),
    ("rusage_system", Proxy(|proxy| seconds(proxy.process.system_us))),
    ("max_connections", Proxy(|proxy| proxy.process.clients_max.to_string())),
    ("curr_connections", Proxy(|proxy| proxy.totals.clients.to_string())),
    ("total_connections", Proxy(|proxy| proxy.totals.clients_ever.to_string())),
    ("rejected_connections", Proxy(|proxy| proxy.totals.clients_refused.to_string())),
    ("connection_structures", Sum),
    ("response_obj_oom", Sum),
    ("response_obj_count", Sum),
    ("response_obj_bytes", Sum),
    ("read_buf_count", Sum),
    ("read_buf_bytes", Sum),
    ("read_buf_bytes_free", Sum),
    ("read_buf_oom", Sum),
    ("reserved_fds", Sum),
    ("cmd_get", Proxy(|proxy| proxy.totals.hits.wrapping_add(proxy.totals.misses).to_string())),
    ("cmd_set", Proxy(|proxy| proxy.totals.stores.to_string())),
    ("cmd_flush", Sum),
    ("cmd_touch", Sum),
    ("cmd_meta", Sum),
    ("get_hits", Proxy(|proxy| proxy.totals.hits.to_string())),
    ("get_misses", Proxy(|proxy| proxy.totals.misses.to_string())),
    ("get_expired", Sum),
    ("get_flushed", Sum),
    ("get_extstore", Sum),
    ("get_aborted_extstore", Sum),
    ("get_oom_extstore", Sum),
    ("recache_from_extstore", Sum),
    ("miss_from_extstore", Sum),
    ("badcrc_from_extstore", Sum),
    ("delete_misses", Sum),
    ("delete_hits", Sum),
    ("incr_misses", Sum),
    ("incr_hits", Sum),
    ("decr_misses", Sum),
    ("decr_hits", Sum),
    ("cas_misses", Sum),
    ("cas_hits", Sum),
    ("cas_badval", Sum),
    ("touch_hits", Sum),
    ("touch_misses", Sum),
    ("store_too_large", Sum),
    ("store_no_memory", Sum),
    ("auth_cmds", Proxy(|proxy| (proxy.totals.logins + proxy.totals.logins_failed).to_string())),
    ("auth_errors", Proxy(|proxy| proxy.totals.logins_failed.to_string())),
    ("idle_kicks", Sum),
    ("bytes_read", Proxy(|proxy| proxy.totals.client_bytes_received.to_string())),
    ("bytes_written", Proxy(|proxy| proxy.totals.client_bytes_sent.to_string())),
    ("limit_maxbytes", Sum),
    ("accepting_conns", Least),
    ("listen_disabled_num", Sum),
    ("time_in_listen_disabled_us", Sum),
    ("threads", Proxy(|proxy| proxy.process.workers.to_string())),
    ("conn_yields", Sum),
    ("hash_power_level", Most),
    ("hash_bytes", Sum),
    ("hash_is_expanding", Most),
    ("slab_reassign_rescues", Sum),
    ("slab_reassign_chunk_rescues", Sum),
    ("slab_reassign_evictions_nomem", Sum),
    ("slab_reassign_inline_reclaim", Sum),
    ("slab_reassign_busy_items", Sum),
    ("slab_reassign_busy_deletes", Sum),
    ("slab_reassign_running", Most),
    ("slabs_moved", Sum),
    ("lru_crawler_running", Most),
    ("lru_crawler_starts", Sum),
    ("lru_maintainer_juggles", Sum),
    ("malloc_fails", Sum),
    ("log_worker_dropped", Sum),
    ("log_worker_written", Sum),
    ("log_watcher_skipped", Sum),
    ("log_watcher_sent", Sum),
    ("log_watchers", Sum),
    ("extstore_compact_lost", Sum),
    ("extstore_compact_rescues", Sum),
    ("extstore_compact_skipped", Sum),
    ("extstore_page_allocs", Sum),
    ("extstore_page_evictions", Sum),
    ("extstore_page_reclaims", Sum),
    ("extstore_pages_free", Sum),
    ("extstore_pages_used", Sum),
    ("extstore_objects_evicted", Sum),
    ("extstore_objects_read", Sum),
    ("extstore_objects_written", Sum),
    ("extstore_objects_used", Sum),
    ("extstore_bytes_evicted", Sum),
    ("extstore_bytes_written", Sum),
    ("extstore_bytes_read", Sum),
    ("extstore_bytes_used", Sum),
    ("extstore_bytes_fragmented", Sum),
    ("extstore_limit_maxbytes", Sum),
    ("extstore_io_queue", Sum),
    ("ssl_new_sessions", Sum),
    ("ssl_handshake_errors", Sum),
    ("time_since_server_cert_refresh", Most),
    ("unexpected_napi_ids", Sum),
    ("round_robin_fallback", Sum),
    ("bytes", Sum),
    ("curr_items", Sum),
    ("total_items", Sum),
    ("slab_global_page_pool", Sum),
    ("expired_unfetched", Sum),
    ("evicted_unfetched", Sum),
    ("evicted_active", Sum),
    ("evictions", Sum),
    ("reclaimed", Sum),
    ("crawler_reclaimed", Sum),
    ("crawler_items_checked", Sum),
    ("lrutail_reflocked", Sum),
    ("moves_to_cold", Sum),
    ("moves_to_warm", Sum),
    ("moves_within_lru", Sum),
    ("direct_reclaims", Sum),
    ("lru_bumps_dropped", Sum),
];

/// The line that names servers that are down or sent no list. Their figures are in no sum.
const MISSING: &str = "quickack_servers_missing";

/// Answers `stats` without an argument.
pub(super) fn gather(
    protocol: &dyn Protocol,
    asked: &Asked<'_>,
    parts: &[Part<'_>],
    proxy: &dyn ProxyFacts,
    out: &mut Vec<u8>,
) {
    let merged = Merged::of(parts.iter().filter_map(list));
    let values_of_proxy = ProxyValues {
        version: version(proxy.facts().version),
        process: proxy.process(),
        totals: proxy.totals(),
    };
    let mut tell = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            protocol.answer(asked, &Answer::Stat(name, &value), out);
        }
    };
    for ((name, figure), values) in NAMES.iter().zip(&merged.known) {
        match figure {
            Proxy(of) => tell(name, Some(of(&values_of_proxy))),
            figure => tell(name, values.merge(*figure)),
        }
    }
    for (name, values) in &merged.others {
        tell(&String::from_utf8_lossy(name), values.merge(Sum));
    }
    end(protocol, asked, parts, out);
}

/// What the servers' lists say, merged in one pass over them.
struct Merged<'a> {
    /// The values of each of `NAMES`.
    known: Vec<Values<'a>>,
    /// Names that are not among them.
    others: BTreeMap<&'a [u8], Values<'a>>,
}

/// The values that servers gave one name.
#[derive(Clone, Default)]
struct Values<'a> {
    first: &'a [u8],
    count: usize,
    all_agree: bool,
    /// The sum, the largest and the least, as long as all are numbers.
    numbers: Option<[u64; 3]>,
}

impl<'a> Merged<'a> {
    fn of(lists: impl Iterator<Item = &'a [u8]>) -> Merged<'a> {
        let known = vec![Values::default(); NAMES.len()];
        let mut merged = Merged { known, others: BTreeMap::new() };
        for list in lists {
            // Servers have the names in the same order, so the next one is near.
            let mut next = 0;
            for (name, value) in lines(list) {
                let is_it = |(known, _): &(&str, Figure)| known.as_bytes() == name;
                let ahead = NAMES[next..].iter().position(is_it).map(|at| next + at);
                let values = match ahead.or_else(|| NAMES[..next].iter().position(is_it)) {
                    Some(at) => {
                        next = at + 1;
                        &mut merged.known[at]
                    }
                    None => merged.others.entry(name).or_default(),
                };
                values.add(value);
            }
        }
        merged
    }
}

impl<'a> Values<'a> {
    fn add(&mut self, value: &'a [u8]) {
        let number = scan::decimal(value, u64::MAX);
        if self.count == 0 {
            let numbers = number.map(|number| [number; 3]);
            *self = Values { first: value, count: 1, all_agree: true, numbers };
            return;
        }
        self.count += 1;
        self.all_agree &= self.first == value;
        let both = self.numbers.zip(number);
        self.numbers = both.map(|([sum, most, least], number)| {
            [sum.saturating_add(number), most.max(number), least.min(number)]
        });
    }

    /// Merges the values into one. The value of a single server stays unchanged.
    fn merge(&self, figure: Figure) -> Option<String> {
        // Values that are no numbers cannot be added.
        let Some([sum, most, least]) = self.numbers.filter(|_| self.count > 1) else {
            let has_one = self.count > 0 && self.all_agree;
            return has_one.then(|| String::from_utf8_lossy(self.first).into_owned());
        };
        let merged = match figure {
            Common => (most == least).then_some(most),
            Most => Some(most),
            Least => Some(least),
            Sum | Proxy(_) => Some(sum),
        };
        merged.map(|number| number.to_string())
    }
}

/// Answers `stats` with an argument from the servers' lists. If there are several servers, each
/// name begins with its server. `None`: no server has answered.
pub(super) fn gather_lists(
    protocol: &dyn Protocol,
    asked: &Asked<'_>,
    parts: &[Part<'_>],
    out: &mut Vec<u8>,
) -> Option<()> {
    parts.iter().find_map(list)?;
    for part in parts {
        let Some(reply) = list(part) else { continue };
        for (name, value) in lines(reply) {
            let name = String::from_utf8_lossy(name);
            let value = String::from_utf8_lossy(value);
            let named = match parts.len() {
                1 => name.into_owned(),
                _ => format!("{}:{name}", word(part.server)),
            };
            protocol.answer(asked, &Answer::Stat(&named, &value), out);
        }
    }
    end(protocol, asked, parts, out);
    Some(())
}

/// Names the servers that sent no list, and ends the answer.
fn end(protocol: &dyn Protocol, asked: &Asked<'_>, parts: &[Part<'_>], out: &mut Vec<u8>) {
    let missing: Vec<&Part<'_>> = parts.iter().filter(|part| list(part).is_none()).collect();
    if !missing.is_empty() {
        let mut names: Vec<String> =
            missing.iter().take(NAMED_MAX).map(|part| word(part.server)).collect();
        if missing.len() > NAMED_MAX {
            names.push(format!("and_{}_more", missing.len() - NAMED_MAX));
        }
        protocol.answer(asked, &Answer::Stat(MISSING, &names.join(",")), out);
    }
    protocol.answer(asked, &Answer::End, out);
}

/// Returns the list that a server sent. An `OK` is none.
fn list<'a>(part: &Part<'a>) -> Option<&'a [u8]> {
    part.reply().filter(|reply| reply.ends_with(b"END\r\n"))
}

/// Splits a list into names and values.
pub(super) fn lines(reply: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    reply.split(|&byte| byte == b'\n').filter_map(|line| {
        let text = line.strip_suffix(b"\r")?.strip_prefix(b"STAT ")?;
        let end = memchr::memchr(b' ', text).unwrap_or(text.len());
        Some((&text[..end], text.get(end + 1..).unwrap_or_default()))
    })
}

/// Returns a server's name as one word, since a space would end it.
fn word(name: &str) -> String {
    name.replace(|letter: char| letter.is_whitespace() || letter == ',', "_")
}

/// Formats processor time as memcached does.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// The most servers that one line names: clients accept lines of 2048 bytes.
const NAMED_MAX: usize = 30;

#[cfg(test)]
mod tests {
    use super::super::commands::STATS;
    use super::super::{Binary, Text};
    use crate::part::tests::{Nothing, fault, parts};
    use crate::part::{Outcome, Part, ProxyFacts, Totals};
    use crate::{Ask, Asked, Class, Facts, Parsed, Protocol, Quiet, Resume};

    const ONE: Outcome<'_> =
        Outcome::Reply(b"STAT pid 7\r\nSTAT curr_items 3\r\nSTAT version 1.6.18\r\nEND\r\n");
    const OTHER: Outcome<'_> =
        Outcome::Reply(b"STAT curr_items 4\r\nSTAT evictions 1\r\nSTAT rusage_user 0.5\r\nEND\r\n");

    const OK: Outcome<'_> = Outcome::Reply(b"OK\r\n");

    /// A proxy that has counted logins.
    struct Counted;

    impl ProxyFacts for Counted {
        fn facts(&self) -> Facts<'_> {
            Nothing.facts()
        }

        fn totals(&self) -> Totals {
            Totals { logins: 5, logins_failed: 2, ..Nothing.totals() }
        }
    }

    fn told(head: &str, outcomes: &[Outcome<'_>]) -> String {
        told_by(&Nothing, head, outcomes)
    }

    fn told_by(proxy: &dyn ProxyFacts, head: &str, outcomes: &[Outcome<'_>]) -> String {
        let ask = Ask { command: STATS };
        let (command, quiet) = (STATS, Quiet::Loud);
        let asked = Asked { command, quiet, ask, head: head.as_bytes(), at: 0, next: None };
        let mut out = Vec::new();
        Text.gather(&asked, &mut parts(outcomes), proxy, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn logins_are_counted_whether_they_succeed_or_not() {
        let all = told_by(&Counted, "stats\r\n", &[ONE, OTHER]);
        assert!(all.contains("STAT auth_cmds 7\r\nSTAT auth_errors 2\r\n"), "{all}");
    }

    #[test]
    fn what_only_servers_know_is_summed_and_the_rest_is_ours() {
        let all = told("stats\r\n", &[ONE, OTHER, fault("down", false)]);
        for line in [
            "STAT pid 0\r\n",
            "STAT version 1.6.18 quickack-0.0.0\r\n",
            "STAT rusage_user 0.000000\r\n",
            "STAT cmd_get 0\r\n",
            "STAT curr_items 7\r\n",
            "STAT evictions 1\r\n",
            "STAT quickack_servers_missing s2\r\nEND\r\n",
        ] {
            assert!(all.contains(line), "{line}: {all}");
        }
        assert!(!all.contains("limit_maxbytes"), "nobody has told it: {all}");
        assert!(!all.contains("STAT rusage_user 0.5"), "{all}");
        let none = told("stats\r\n", &[fault("down", false), fault("down", false)]);
        assert!(none.ends_with("STAT quickack_servers_missing s0,s1\r\nEND\r\n"), "{none}");
        assert!(none.starts_with("STAT pid 0\r\n"), "{none}");
    }

    #[test]
    fn a_server_that_answers_no_list_is_named_and_counts_in_no_sum() {
        let all = told("stats\r\n", &[Outcome::Reply(b"STAT bytes 5\r\nEND\r\n"), OK]);
        assert!(all.contains("STAT bytes 5\r\n"), "{all}");
        assert!(all.ends_with("STAT quickack_servers_missing s1\r\nEND\r\n"), "{all}");
        assert_eq!(told("stats detail on\r\n", &[OK, OK]), "OK\r\n");
        let part = Part { server: "s", place: None, outcome: OK };
        let mut out = Vec::new();
        let ask = Ask { command: STATS };
        let (command, quiet) = (STATS, Quiet::Loud);
        let asked = Asked { command, quiet, ask, head: b"stats\r\n", at: 0, next: None };
        Text.gather(&asked, &mut std::iter::repeat_n(part, 40), &Nothing, &mut out);
        let text = String::from_utf8_lossy(&out);
        assert!(text.contains(",s,and_10_more\r\n"), "{text}");
    }

    #[test]
    fn names_that_the_proxy_has_no_figure_for_pass_and_of_several_servers_have_one_value() {
        let one = "STAT libevent 2.1\r\nSTAT conn_yields 1\r\nSTAT hash_power_level 16\r\n\
                   STAT accepting_conns 1\r\nSTAT new_name 5\r\nSTAT new_word on\r\nEND\r\n";
        let other = "STAT libevent 2.0\r\nSTAT conn_yields 2\r\nSTAT hash_power_level 20\r\n\
                     STAT accepting_conns 0\r\nSTAT new_name 6\r\nSTAT new_word on\r\nEND\r\n";
        let [one, other] = [one, other].map(|text| Outcome::Reply(text.as_bytes()));
        let alone = told("stats\r\n", &[one]);
        for line in ["libevent 2.1", "conn_yields 1", "hash_power_level 16", "new_name 5"] {
            assert!(alone.contains(&format!("STAT {line}\r\n")), "{line}: {alone}");
        }
        let both = told("stats\r\n", &[one, other]);
        for line in [
            "conn_yields 3",
            "hash_power_level 20",
            "accepting_conns 0",
            "new_name 11",
            "new_word on",
        ] {
            assert!(both.contains(&format!("STAT {line}\r\n")), "{line}: {both}");
        }
        assert!(!both.contains("libevent"), "they differ: {both}");
    }

    #[test]
    fn a_list_of_one_server_passes_and_of_several_each_name_has_its_server() {
        let one = Outcome::Reply(b"STAT items:1:number 5\r\nSTAT a b c\r\nEND\r\n");
        assert_eq!(
            told("stats items\r\n", &[one]),
            "STAT items:1:number 5\r\nSTAT a b c\r\nEND\r\n"
        );
        assert_eq!(
            told("stats items\r\n", &[one, fault("down", false), Outcome::Reply(b"END\r\n")]),
            "STAT s0:items:1:number 5\r\nSTAT s0:a b c\r\n\
             STAT quickack_servers_missing s1\r\nEND\r\n"
        );
        let error = Outcome::Error(b"ERROR\r\n");
        assert_eq!(told("stats items\r\n", &[error]), "ERROR\r\n");
        assert_eq!(told("stats items\r\n", &[fault("down", false)]), "SERVER_ERROR s0: down\r\n");
    }

    #[test]
    fn binary_clients_read_packets_up_to_an_empty_one() {
        let mut head = [0; 29];
        (head[0], head[1], head[3], head[11], head[15]) = (0x80, 0x10, 5, 5, 9);
        head[24..].copy_from_slice(b"items");
        let command = Binary.commands().iter().position(|row| row.name == "Stat").unwrap() as u16;
        let ask = Ask { command: STATS };
        let asked = Asked { command, quiet: Quiet::Loud, ask, head: &head, at: 0, next: None };
        let mut out = Vec::new();
        Binary.gather(
            &asked,
            &mut parts(&[Outcome::Reply(b"STAT a 1\r\nEND\r\n")]),
            &Nothing,
            &mut out,
        );
        assert_eq!(out.len(), 24 + 2 + 24);
        assert_eq!((out[1], out[3], out[11], out[15], &out[24..26]), (0x10, 1, 2, 9, &b"a1"[..]));
        assert_eq!((out[27], out[29], out[37]), (0x10, 0, 0));
    }

    /// As in memcached, all of `detail dump` is one value.
    #[test]
    fn binary_clients_read_a_dump_as_one_value_and_a_switch_as_a_list() {
        let check = |key: &str, reply: &str, expected: &[&str]| {
            let (mut keys, len) = (Vec::new(), key.len() as u8);
            let mut packet = vec![0; 24];
            (packet[0], packet[1], packet[3], packet[11]) = (0x80, 0x10, len, len);
            packet.extend_from_slice(key.as_bytes());
            let parsed = Binary.parse_request(&packet, &mut Resume::default(), &mut keys);
            let Parsed::Complete(request) = parsed else { panic!("{key}: {parsed:?}") };
            let Class::Broadcast { ask, .. } = request.class else { panic!("{request:?}") };
            let mut line = Vec::new();
            Binary.write_head(&request, &packet, &keys, ask, &mut line);
            assert_eq!(String::from_utf8_lossy(&line), format!("stats {key}\r\n"));
            let (command, head) = (request.command, &packet[..]);
            let asked = Asked { command, quiet: Quiet::Loud, ask, head, at: 0, next: None };
            let mut out = Vec::new();
            let outcomes = [Outcome::Reply(reply.as_bytes())];
            Binary.gather(&asked, &mut parts(&outcomes), &Nothing, &mut out);
            let mut packets = Vec::new();
            while !out.is_empty() {
                let rest = out.split_off(24 + usize::from(out[11]));
                packets.push(String::from_utf8_lossy(&out[24..]).into_owned());
                out = rest;
            }
            assert_eq!(packets, expected, "{key}");
        };
        let dump = "PREFIX a get 1 hit 0 set 0 del 0\r\nEND\r\n";
        check("detail dump", dump, &[&format!("detailed{dump}"), ""]);
        check("detail on", "OK\r\n", &[""]);
        let enabled = "STAT sizes_status enabled\r\n";
        check("sizes_enable", enabled, &["sizes_statusenabled", ""]);
        check("reset", "RESET\r\n", &[""]);
    }
}
