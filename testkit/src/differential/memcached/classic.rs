//! Random requests of memcached's classic text.

use super::keys::Named;
use super::maker::Maker;
use super::request::{Mark, Part, Request, Wire};

type Make = fn(&mut Maker<'_>) -> Request;

const KINDS: &[(usize, Make)] = &[
    (220, |maker| get(maker, "get")),
    (100, |maker| get(maker, "gets")),
    (30, |maker| get(maker, "gat")),
    (30, |maker| get(maker, "gats")),
    (150, |maker| store(maker, "set")),
    (40, |maker| store(maker, "add")),
    (40, |maker| store(maker, "replace")),
    (40, |maker| store(maker, "append")),
    (40, |maker| store(maker, "prepend")),
    (90, |maker| store(maker, "cas")),
    (50, |maker| count(maker, "incr")),
    (50, |maker| count(maker, "decr")),
    (40, touch),
    (60, delete),
    (3, flush),
    (12, wrong),
];

pub fn request(maker: &mut Maker<'_>) -> Request {
    let make = maker.random.weighted(KINDS);
    let mut request = make(maker);
    request.push("\r\n");
    request
}

fn get(maker: &mut Maker<'_>, name: &'static str) -> Request {
    let first = maker.key(|key| key.named == Named::Plainly);
    let mut request = Request::line(name, Some(first), name);
    if name.starts_with("gat") {
        request.push(format!(" {}", maker.exptime_text()));
    }
    push_key(maker, first, &mut request);
    if maker.random.below(3) == 0 {
        request.mark(Mark::ManyKeys);
        request.key = None;
        for _ in 0..1 + maker.random.below(9) {
            let key = maker.key(|key| key.named == Named::Plainly);
            push_key(maker, key, &mut request);
        }
    }
    request
}

fn store(maker: &mut Maker<'_>, name: &'static str) -> Request {
    let key = maker.key(|key| key.named == Named::Plainly);
    let mut request = Request::line(name, Some(key), name);
    push_key(maker, key, &mut request);
    let value = maker.value(key, name.ends_with("pend"), &mut request);
    request.push(format!(" {} {} {}", maker.flags(), maker.exptime_text(), value.len()));
    if name == "cas" {
        request.push(" ");
        let cas = maker.cas(key);
        request.parts.push(Part::CasText(cas));
    }
    push_noreply(maker, &mut request);
    request.push("\r\n");
    request.push(value);
    request
}

/// Stores an odd number just before, and deletes it afterwards if the count may make it shorter.
fn count(maker: &mut Maker<'_>, name: &'static str) -> Request {
    let key = maker.key(|key| key.named == Named::Plainly && key.counted);
    let mut request = Request::new(Wire::Text, name, Some(key));
    let odd = maker.random.below(3) == 0;
    if odd {
        let value = maker.odd_number();
        request.push("set");
        push_key(maker, key, &mut request);
        request.push(format!(" 0 0 {} noreply\r\n", value.len()));
        request.push(value);
        request.push("\r\n");
    }
    request.push(name);
    push_key(maker, key, &mut request);
    request.push(format!(" {}", maker.delta()));
    push_noreply(maker, &mut request);
    if odd || name == "decr" {
        request.push("\r\ndelete");
        push_key(maker, key, &mut request);
        request.push(" noreply");
    }
    request
}

fn touch(maker: &mut Maker<'_>) -> Request {
    let key = maker.key(|key| key.named == Named::Plainly);
    let mut request = Request::line("touch", Some(key), "touch");
    push_key(maker, key, &mut request);
    request.push(format!(" {}", maker.exptime_text()));
    push_noreply(maker, &mut request);
    request
}

fn delete(maker: &mut Maker<'_>) -> Request {
    let key = maker.key(|key| key.named == Named::Plainly);
    let mut request = Request::line("delete", Some(key), "delete");
    push_key(maker, key, &mut request);
    request.push(*maker.random.pick(&["", "", "", "", " 0", " 5"]));
    push_noreply(maker, &mut request);
    request
}

fn flush(maker: &mut Maker<'_>) -> Request {
    let flushes = ["flush_all", "flush_all 0", "flush_all -1", "flush_all -1 x"];
    let line = if maker.lane.is_some() { "verbosity 1" } else { *maker.random.pick(&flushes) };
    Request::line(if maker.lane.is_some() { "verbosity" } else { "flush_all" }, None, line)
}

/// Makes a request that every server refuses.
fn wrong(maker: &mut Maker<'_>) -> Request {
    let lines: &[&str] = &[
        "nonsense",
        "get",
        "gets",
        "incr k1 abc",
        "incr k1",
        "decr k1 -1",
        "touch k1",
        "touch k1 abc",
        "touch k1 abc noreplY",
        "delete",
        "delete k1 noreplY",
        "verbosity",
        "gat 10",
        "gats -1",
        "gat",
        "gat abc",
        "ms k1",
        "ms",
        "flush_all abc",
        "flush_all noreplY",
        "GET k1",
        "quit_now",
    ];
    let mut request = Request::line("wrong", None, maker.random.pick(lines));
    request.mark(Mark::BadFrame);
    request
}

fn push_key(maker: &Maker<'_>, key: usize, request: &mut Request) {
    request.push(" ");
    request.push(&maker.keys[key].raw);
}

fn push_noreply(maker: &mut Maker<'_>, request: &mut Request) {
    match maker.random.below(20) {
        0..4 => {
            request.push(" noreply");
            request.quiet = true;
        }
        // Only `delete` parses another word.
        4 if request.name != "delete" => request.push(maker.random.pick(&[" noreplY", " 0", " x"])),
        _ => {}
    }
}
