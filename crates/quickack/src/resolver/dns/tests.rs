//! Answers that are right, and those that are not.

use simple_dns::rdata::{A, CNAME, SRV};

use super::*;

const NAME: &str = "_memcached._tcp.example.com";

/// An answer to a question for `NAME`, or for another name, with these records.
fn reply(name: &str, kind: TYPE, records: Vec<(&str, u32, RData<'static>)>) -> Vec<u8> {
    let mut packet = Packet::new_reply(7);
    let question = Question::new(parse_name(name).unwrap(), kind.into(), CLASS::IN.into(), false);
    packet.questions.push(question);
    for (owner, ttl, data) in records {
        let owner = parse_name(owner).unwrap().into_owned();
        packet.answers.push(ResourceRecord::new(owner, CLASS::IN, ttl, data));
    }
    packet.build_bytes_vec_compressed().unwrap()
}

fn srv(priority: u16, weight: u16, port: u16, target: &'static str) -> RData<'static> {
    RData::SRV(SRV { priority, weight, port, target: Name::new(target).unwrap() })
}

fn alias(target: &'static str) -> RData<'static> {
    RData::CNAME(CNAME(Name::new(target).unwrap()))
}

fn address(ip: [u8; 4]) -> RData<'static> {
    RData::A(A { address: u32::from_be_bytes(ip) })
}

#[test]
fn the_lowest_priority_counts_and_no_weight_and_names_are_in_small_letters() {
    let records = vec![
        (NAME, 60, srv(2, 9, 1, "spare.example.com")),
        (NAME, 30, srv(1, 9, 11212, "B.example.com")),
        (NAME, 90, srv(1, 0, 11211, "a.EXAMPLE.com")),
        ("other.example.com", 1, srv(0, 1, 1, "lie.example.com")),
    ];
    let expected = "a.example.com:11211:1\nb.example.com:11212:1\n".to_string();
    let expected = Ok((expected, Duration::from_secs(30)));
    assert_eq!(read_servers(&reply(NAME, TYPE::SRV, records.clone()), NAME), expected);
    let shuffled = records.into_iter().rev().collect();
    assert_eq!(read_servers(&reply(NAME, TYPE::SRV, shuffled), NAME), expected);
}

#[test]
fn no_records_are_no_list() {
    let told = |records| read_servers(&reply(NAME, TYPE::SRV, records), NAME).unwrap_err();
    assert_eq!(told(Vec::new()), "it has no SRV records");
    assert!(told(vec![(NAME, 1, srv(0, 0, 0, ""))]).contains("no such service"));
    assert_eq!(told(vec![("x", 1, srv(0, 0, 1, "a"))]), "it has no SRV records");
}

#[test]
fn aliases_are_followed_and_a_circle_of_them_ends() {
    let records = vec![
        ("b.test", 20, alias("c.test")),
        ("a.test", 40, alias("b.test")),
        ("c.test", 30, address([10, 0, 0, 1])),
        ("c.test", 30, address([10, 0, 0, 2])),
        ("d.test", 1, address([10, 0, 0, 3])),
    ];
    let found = read_addresses(&reply("a.test", TYPE::A, records), "a.test").unwrap();
    let ips = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    assert_eq!(found, (BTreeSet::from(ips), Duration::from_secs(20)));
    let circle = vec![("a.test", 1, alias("b.test")), ("b.test", 1, alias("a.test"))];
    assert_eq!(read_addresses(&reply("a.test", TYPE::A, circle), "a.test"), None);
}

#[test]
fn an_answer_has_the_number_and_the_question_that_were_sent() {
    let asked = question(NAME, TYPE::SRV, 7).unwrap();
    let right = reply(NAME, TYPE::SRV, vec![(NAME, 1, srv(0, 0, 1, "a.test"))]);
    assert!(is_answer(&right, &asked));
    assert!(is_answer(&right.to_ascii_uppercase(), &asked), "letters may be of either case");
    for at in [0, 1, 2, 5, 13, asked.len() - 3] {
        let mut wrong = right.clone();
        wrong[at] ^= 0x81;
        assert!(!is_answer(&wrong, &asked), "byte {at}");
    }
    assert!(!is_answer(&asked, &asked), "a question is no answer");
    for len in 0..asked.len() {
        assert!(!is_answer(&right[..len], &asked));
    }
    assert!(matches!(judge(&right), Verdict::Answer));
    let mut cut = right.clone();
    cut[2] |= 0x02;
    assert!(matches!(judge(&cut), Verdict::Failure(_)));
    let mut none = right.clone();
    none[3] |= 3;
    assert!(matches!(judge(&none), Verdict::None(_)));
}

/// Bytes from outside never panic, and what is not whole is no list.
#[test]
fn bytes_that_are_changed_or_cut_never_panic() {
    let records = || {
        let mut all = vec![(NAME, 30, alias("x.test"))];
        all.extend((0..20).map(|port| ("x.test", 30, srv(1, 1, port, "a.b.c.example.com"))));
        all
    };
    let right = reply(NAME, TYPE::SRV, records());
    assert!(read_servers(&right, NAME).unwrap().0.lines().count() == 20);
    for len in 0..right.len() {
        assert!(read_servers(&right[..len], NAME).is_err(), "{len}");
        let _ = read_addresses(&right[..len], NAME);
    }
    // A generator of numbers, so that each run is the same.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for _ in 0..20_000 {
        let mut odd = right.clone();
        for _ in 0..1 + next() % 4 {
            let at = next() % odd.len();
            odd[at] = next() as u8;
        }
        odd.truncate(odd.len() - next() % 3);
        let _ = read_servers(&odd, NAME);
        let _ = read_addresses(&odd, NAME);
        let _ = judge(&odd);
    }
}

#[test]
fn name_servers_are_those_of_the_system() {
    let text = "# nameserver 1.1.1.1\nnameserver 127.0.0.53\nsearch test\nnameserver  ::1\n\
                nameserver x\noptions timeout:1\nnameserver 9.9.9.9\nnameserver 8.8.8.8\n";
    let all: Vec<String> = name_servers(text).iter().map(ToString::to_string).collect();
    assert_eq!(all, ["127.0.0.53:53", "[::1]:53", "9.9.9.9:53"]);
    assert_eq!(name_servers(""), []);
}
