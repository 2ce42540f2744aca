//! Random requests of memcached's meta commands.

use super::excuses::Skip;
use super::keys::{Key, Named};
use super::maker::Maker;
use super::request::{Mark, Part, Request};
use crate::wire::base64;

/// A flag, with the cas number or the token that it takes.
struct Flag {
    text: String,
    cas: Option<u64>,
}

type Make = fn(&mut Maker<'_>) -> Request;

const KINDS: &[(usize, Make)] = &[
    (320, mg),
    (200, ms),
    (80, md),
    (120, ma),
    (12, me),
    (30, |_| Request::line("mn", None, "mn\r\n")),
];

pub fn request(maker: &mut Maker<'_>) -> Request {
    let make = maker.random.weighted(KINDS);
    make(maker)
}

fn mg(maker: &mut Maker<'_>) -> Request {
    let mut flags = Vec::new();
    let usual = maker.random.below(4) == 0;
    if usual {
        // Flags of a plain get, which may be merged with others.
        let words = maker.random.pick(&["v", "v f", "v f c", "k v f c", "s v", "k f v", "f c"]);
        words.split(' ').for_each(|word| push(&mut flags, word));
    } else {
        for (share, flag) in [
            (6, "v"),
            (4, "c"),
            (4, "f"),
            (3, "k"),
            (3, "s"),
            (2, "t"),
            (2, "h"),
            (2, "l"),
            (1, "u"),
        ] {
            if maker.random.below(10) < share {
                push(&mut flags, flag);
            }
        }
        for (share, letter, tokens) in [
            (8, 'T', &["0", "2000", "9000", "-1"][..]),
            (8, 'N', &["0", "2000", "9000"]),
            (6, 'R', &["30", "3000", "100000"]),
        ] {
            if maker.random.below(100) < share {
                push(&mut flags, &format!("{letter}{}", maker.random.pick(tokens)));
            }
        }
    }
    let key = key(maker, "mg");
    finish(maker, Request::line("mg", Some(key), "mg"), flags, None)
}

fn ms(maker: &mut Maker<'_>) -> Request {
    let mut flags = Vec::new();
    if maker.random.below(2) == 0 {
        push(&mut flags, &format!("F{}", maker.flags()));
    }
    if maker.random.below(3) == 0 {
        push(&mut flags, &format!("T{}", maker.exptime_text()));
    }
    if maker.random.below(2) == 0 {
        let wrong = maker.random.below(12) == 0;
        let modes = if wrong { ["s", "e", "a", "set", "x"] } else { ["S", "E", "A", "P", "R"] };
        push(&mut flags, &format!("M{}", maker.random.pick(&modes)));
    }
    push_some(maker, &mut flags, &[(4, "c"), (3, "k"), (1, "I")]);
    let key = key(maker, "ms");
    let mut request = Request::line("ms", Some(key), "ms");
    let joined = flags.iter().any(|flag| ["MA", "MP", "Ma", "Mp"].contains(&&flag.text[..]));
    let value = maker.value(key, joined, &mut request);
    finish(maker, request, flags, Some(value))
}

fn md(maker: &mut Maker<'_>) -> Request {
    let mut flags = Vec::new();
    push_some(maker, &mut flags, &[(4, "I"), (3, "k")]);
    if maker.random.below(5) == 0 {
        push(&mut flags, &format!("T{}", maker.random.pick(&["0", "2000", "-1"])));
    }
    let key = key(maker, "md");
    finish(maker, Request::line("md", Some(key), "md"), flags, None)
}

fn ma(maker: &mut Maker<'_>) -> Request {
    let mut flags = Vec::new();
    push_some(maker, &mut flags, &[(7, "v"), (4, "c"), (3, "t"), (3, "k")]);
    if maker.random.below(3) == 0 {
        push(&mut flags, &format!("N{}", maker.random.pick(&["0", "2000", "9000"])));
        if maker.random.below(2) == 0 {
            push(&mut flags, &format!("J{}", maker.initial()));
        }
    }
    if maker.random.below(2) == 0 {
        push(&mut flags, &format!("D{}", maker.delta()));
    }
    if maker.random.below(6) == 0 {
        push(&mut flags, &format!("T{}", maker.random.pick(&["0", "2000"])));
    }
    if maker.random.below(2) == 0 {
        let wrong = maker.random.below(12) == 0;
        let modes = if wrong { ["i", "d", "incr", "x"] } else { ["I", "D", "+", "-"] };
        push(&mut flags, &format!("M{}", maker.random.pick(&modes)));
    }
    let key = key(maker, "ma");
    finish(maker, Request::line("ma", Some(key), "ma"), flags, None)
}

fn me(maker: &mut Maker<'_>) -> Request {
    let key = key(maker, "me");
    finish(maker, Request::line("me", Some(key), "me"), Vec::new(), None)
}

/// Returns a key for such a command.
fn key(maker: &mut Maker<'_>, name: &str) -> usize {
    maker.key(|key| match name {
        "ma" => key.named != Named::Raw && key.counted,
        // The answer always has the key, and whether it was hit.
        "me" => key.plain && matches!(key.named, Named::Plainly | Named::Encoded) && !key.counted,
        _ => key.named != Named::Raw,
    })
}

/// Adds the parts that all of them may have: the key in one form or the other, a cas number, an
/// opaque, quiet, tokens for proxies, and now and then a mistake.
fn finish(
    maker: &mut Maker<'_>,
    mut request: Request,
    mut flags: Vec<Flag>,
    value: Option<Vec<u8>>,
) -> Request {
    let (name, key) = (request.name, request.key.expect("all of them have a key"));
    let Key { named, counted, taken, plain, .. } = &maker.keys[key];
    if *named != Named::Plainly {
        push(&mut flags, "b");
    }
    let (named, counted, taken, plain) = (*named, *counted, *taken, *plain);
    let touches = flags.iter().any(|flag| flag.text.starts_with('T'));
    flags.retain(|flag| match flag.text.as_bytes() {
        b"k" => named == Named::Plainly || plain || maker.skips(Skip::EncodedKeyTold),
        [b'N', ..] => name != "mg" || !counted || maker.skips(Skip::BlankCounter),
        b"h" | [b'R', ..] => !counted || maker.skips(Skip::CounterHit),
        b"t" => name != "ma" || !touches || maker.skips(Skip::CounterExpiry),
        b"I" if counted && name != "ma" => maker.skips(Skip::CounterHit),
        b"I" if name != "ma" => !taken || maker.skips(Skip::StaleAndBinary),
        _ => true,
    });
    let raw = &maker.keys[key].raw;
    if name != "me" {
        more_flags(maker, name, key, &mut request, &mut flags);
    }
    // Of two mistakes, memcached and quickack may report different ones first.
    if request.has(Mark::NewerFlag) || request.has(Mark::BadFlags) {
        flags.retain(|flag| !flag.text.starts_with('M'));
    }
    let has = |letter| flags.iter().any(|flag| flag.text.starts_with(letter));
    if name == "ma" && has('q') && has('N') {
        request.mark(Mark::QuietCreation);
    }
    // The number stays the same if the flags have a mistake or the key is missing. A new item does
    // not get the expiry: it is given to the old item.
    let shrinks =
        has('T') || has('M') && !flags.iter().any(|flag| ["MI", "M+"].contains(&&flag.text[..]));
    shuffle(maker, &mut flags);
    request.push(" ");
    request.push(if named == Named::Plainly { raw.clone() } else { base64::encode(raw) });
    if let Some(value) = &value {
        request.push(format!(" {}", value.len()));
    }
    for flag in flags {
        request.push(format!(" {}", flag.text));
        request.parts.extend(flag.cas.map(Part::CasText));
    }
    request.push("\r\n");
    if let Some(value) = value {
        request.push(value);
        request.push("\r\n");
    }
    if name == "ma" && shrinks {
        let form =
            if named == Named::Plainly { (raw.clone(), "") } else { (base64::encode(raw), " b") };
        request.push("md ");
        request.push(form.0);
        request.push(format!("{} q\r\n", form.1));
    }
    request
}

fn more_flags(
    maker: &mut Maker<'_>,
    name: &'static str,
    key: usize,
    request: &mut Request,
    flags: &mut Vec<Flag>,
) {
    if name != "mg" && maker.random.below(5) == 0 {
        flags.push(Flag { text: "C".into(), cas: Some(maker.cas(key)) });
    }
    if maker.random.below(4) == 0 {
        push(flags, "q");
    }
    if maker.random.below(3) == 0 {
        let opaque = maker.next_opaque();
        request.opaque = Some(opaque);
        push(flags, &format!("O{opaque}"));
    }
    if maker.random.below(20) == 0 {
        push(flags, maker.word(&["P", "Pgive/it", "L", "Lpath/", "Lc5"]));
    }
    match maker.random.below(150) {
        0 => {
            push(flags, maker.word(&["E7", "x", "S5", "z", "!", "Q"]));
            request.mark(Mark::NewerFlag);
        }
        1 => {
            push(flags, maker.word(&["q", "T", "Tabc", "Cabc", "N", "D", "F-"]));
            // memcached would parse the data of an `ms` as commands.
            if name != "ms" && maker.random.below(4) == 0 {
                (0..200).for_each(|_| push(flags, "q"));
            }
            request.mark(Mark::BadFlags);
        }
        _ => {}
    }
}

fn push(flags: &mut Vec<Flag>, text: &str) {
    flags.push(Flag { text: text.to_string(), cas: None });
}

fn push_some(maker: &mut Maker<'_>, flags: &mut Vec<Flag>, some: &[(usize, &str)]) {
    for (share, flag) in some {
        if maker.random.below(10) < *share {
            push(flags, flag);
        }
    }
}

fn shuffle(maker: &mut Maker<'_>, flags: &mut [Flag]) {
    for at in (1..flags.len()).rev() {
        flags.swap(at, maker.random.below(at + 1));
    }
}
