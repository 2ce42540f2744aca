//! The keys found in requests.

use super::super::request;
use super::*;
use crate::{Class, Parsed, Resume};

/// Returns the keys and the route of a line, or the reason if it is refused.
fn told(line: &str) -> String {
    let (line, mut keys) = (format!("{line}\r\n"), Vec::new());
    let parsed = request::parse(line.as_bytes(), &mut Resume::default(), &mut keys);
    let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
    if let Class::Refuse(why) = request.class {
        assert!(keys.is_empty(), "{line}: what is refused has no keys");
        return match why {
            Refusal::Bad(why) | Refusal::ByName(why) => why.to_string(),
            _ => format!("{why:?}"),
        };
    }
    let keys: Vec<_> = keys.iter().map(|key| key.of(line.as_bytes()).escape_ascii()).collect();
    let keys: Vec<_> = keys.into_iter().map(|key| key.to_string()).collect();
    let place = match request.place {
        Place::Keys => String::new(),
        place => format!(" {place:?}"),
    };
    format!("{}{place}", keys.join(" "))
}

#[track_caller]
fn check(line: &str, expected: &str) {
    assert_eq!(told(line), expected, "{line}");
}

#[test]
fn keys_stand_where_servers_say() {
    check("get a", "a");
    check("mget a b c", "a b c");
    check("mset a 1 b 2", "a b");
    check("msetnx a 1 b 2", "a b");
    check("bitop and d a b c", "d a b c");
    check("copy a b DB 3 REPLACE", "a b");
    check("lcs a b idx", "a b");
    check("pfmerge d", "d");
    check("pfmerge d a b", "d a b");
    check("sdiffstore d a b", "d a b");
    check("geosearchstore d a fromlonlat 1 1 byradius 1 m", "d a");
    check("zrangestore d a 0 -1", "d a");
    check("object freq a", "a");
    check("memory usage a samples 5", "a");
    check("xinfo stream a full", "a");
    check("xgroup create a g $ mkstream", "a");
    check("restore a 0 xyz replace", "a");
    check("rename a b", "a b");
    check("smove a b c", "a b");
}

#[test]
fn a_number_says_how_many_keys_there_are() {
    check("eval x 2 a b c", "a b");
    check("eval x 0", " Any");
    check("eval x 0 a b", " Any");
    check("fcall_ro f 1 a b", "a");
    check("zunion 2 a b weights 1 2", "a b");
    check("zunionstore d 2 a b aggregate max", "d a b");
    check("zdiffstore d 1 a", "d a");
    check("sintercard 2 a b limit 1", "a b");
    check("lmpop 2 a b left count 2", "a b");
    check("zmpop 1 a min", "a");
    check("msetex 2 a 1 b 2 nx ex 10", "a b");
    check("msetex 3 a 1 b 2 nx", SYNTAX);
    check("msetex 0 a 1", BAD_NUMBER);
}

/// A server's earlier error takes precedence over a wrong number of keys.
#[test]
fn a_wrong_number_of_keys_is_refused_unless_the_server_has_a_better_reason() {
    check("eval x -1 a", NEGATIVE);
    check("eval x 2 a", TOO_MANY);
    check("eval x 18446744073709551617 a", NO_INTEGER);
    check("evalsha short x a", " Any");
    check("evalsha 0123456789012345678901234567890123456789 x a", NO_INTEGER);
    check("fcall f x a", " Any");
    check("fcall f 3 a", " Any");
    check("zunion 9223372036854775807 a", SYNTAX);
    check("zunion -9223372036854775808 a", NEEDS_ONE);
}

#[test]
fn streams_have_as_many_ids_as_keys() {
    check("xread streams a b 0 0", "a b");
    check("xread count 1 STREAMS a $", "a");
    check("xreadgroup group g c noack streams a b > >", "a b");
    check("xreadgroup count 1 group streams c streams a >", "a");
    check("xread streams streams block a 0 0", UNBALANCED);
    check("xread streams streams block a 0 0 0", "streams block a");
    check("xread streams streams block 0 0", "streams block");
    check("xread block 0 streams a $", "a");
    check("xreadgroup group g c block 0 streams a b > >", "a b");
    check("xread count block streams a 0", NO_INTEGER);
    for without in ["xread count 1 count 2", "xreadgroup group g c count 1 noack"] {
        check(without, SYNTAX);
    }
}

/// A pattern with a star reads keys that are not in the request.
#[test]
fn a_sort_by_other_keys_wants_all_keys_on_one_server() {
    check("sort a", "a");
    check("sort a limit 0 5 asc alpha", "a");
    check("sort a by nosort get #", "a");
    check("sort a by w_* get #", "a Sole");
    check("sort a get o_*->f", "a Sole");
    check("sort_ro a get x*", "a Sole");
    check("sort a store d", "a d");
    check("sort a by store store b store c", "a c");
    check("sort a get * store d", "a d Sole");
    check("sort a store d limit x 1", NO_INTEGER);
    check("sort_ro a store d", SYNTAX);
}

#[test]
fn a_search_may_be_stored_elsewhere() {
    check("georadius a 1 1 1 m", "a");
    check("georadius a 1 1 1 m store b", "a b");
    check("georadius a 1 1 1 m count 3 STOREDIST b", "a b");
    check("georadius a 1 1 1 m store b storedist c", "a c");
    check("georadius a 1 1 1 m store", "a");
    check("georadiusbymember a store 1 m store b", "a b");
    check("georadius_ro a 1 1 1 m store b", "a");
}

/// A pool may have fewer databases than its servers.
#[test]
fn whoever_reaches_into_another_database_says_which() {
    for (line, expected) in [
        ("move a 3", 3),
        ("move a -1", 0),
        ("move a x", 0),
        ("move a 99999999999", u32::MAX),
        ("copy a b", 0),
        ("copy a b replace db 5", 5),
        ("copy a b DB 1 db 7", 7),
        ("copy db 9", 0),
        ("copy a db 9", 0),
        ("copy a b db", 0),
        ("get 5", 0),
    ] {
        let (line, mut keys) = (format!("{line}\r\n"), Vec::new());
        let parsed = request::parse(line.as_bytes(), &mut Resume::default(), &mut keys);
        let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
        assert_eq!(request.database, expected, "{line}");
    }
}

#[test]
fn quoted_keys_are_told_as_they_stand() {
    check("get \"a b\"", "\\\"a b\\\"");
    check("mset \"\" '' a '\\''", "\\\"\\\" a");
    check("eval \"return 1\" \"1\" \"\\x41\"", "\\\"\\\\x41\\\"");
}

/// This file can read every kind of key position in the table. A test, not a user, finds one that
/// it cannot.
#[test]
fn every_row_that_is_asked_has_keys_that_can_be_found() {
    for (place, row) in commands::rows().iter().enumerate() {
        let shape = SHAPES[place];
        let is_asked = matches!(row.class, Class::Single { .. } | Class::Split { .. });
        if !is_asked || matches!(shape, Shape::Streams | Shape::Sort | Shape::Radius { .. }) {
            continue;
        }
        let arguments = usize::from(row.arity.unsigned_abs());
        for spec in row.keys {
            let Begin::At(begin) = spec.begin else { panic!("{}: {spec:?}", row.name) };
            match spec.find {
                Find::Range { limit, .. } => assert_eq!(limit, 0, "{}", row.name),
                Find::Number { at, .. } => {
                    assert!(usize::from(begin + at) < arguments, "{}", row.name);
                }
                Find::Unknown => panic!("{}: {spec:?}", row.name),
            }
        }
        let mut flags = commands::texts(row.id).key_flags();
        assert!(flags.all(|flags| !flags.contains("not_key")), "{}", row.name);
        assert_eq!(row.keys.is_empty(), row.place != Place::Keys, "{}", row.name);
        assert!(row.keys.is_empty() || arguments > 1, "{}", row.name);
    }
}

#[test]
fn the_operator_says_where_the_keys_of_other_commands_are() {
    let places = |first, last, step, count| {
        let name = "x.y".to_string();
        let extra = Extra { name, first, last, step, writes: false };
        places_of(&extra, count).map(|places| places.collect::<Vec<_>>())
    };
    assert_eq!(places(1, 1, 1, 5), Some(vec![1]));
    assert_eq!(places(1, -1, 2, 5), Some(vec![1, 3]));
    assert_eq!(places(2, -2, 1, 5), Some(vec![2, 3]));
    assert_eq!(places(2, 3, 1, 3), None);
    assert_eq!(places(2, -2, 1, 3), None);
    assert_eq!(places(0, 0, 1, 3), None);
    assert_eq!(places(1, -9, 1, 3), None);
}

#[test]
fn integers_are_read_as_servers_read_them() {
    for (text, expected) in [
        ("0", Some(0)),
        ("-1", Some(-1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("", None),
        ("-", None),
        ("-0", None),
        ("00", None),
        ("+1", None),
        ("1 ", None),
        ("0x1", None),
    ] {
        assert_eq!(integer(text.as_bytes()), expected, "{text:?}");
    }
}
