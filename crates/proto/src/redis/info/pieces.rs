//! Merges lists such as `a=1,b=2` from several servers into one.

use std::collections::HashMap;

use super::number::{Number, ONE};

/// The servers' values of one part of `a=1,b=2`.
struct Piece<'a> {
    name: &'a str,
    sum: Number,
    greatest: Number,
    /// The index of the last server that had it: a repetition by one server is ignored.
    last: usize,
}

/// Merges `a=1,b=2` of several servers part by part; none if one does not look like that, or if a
/// sum overflows.
pub(super) fn parts(values: &[(&str, &str)]) -> Option<String> {
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    // The remaining lifetimes of keys, all added up: each server's average covers its keys that
    // expire.
    let mut weighed: i128 = 0;
    for (nth, (_, text)) in values.iter().enumerate() {
        let (mut ttl, mut expires) = (None, None);
        for part in text.split(',') {
            let (name, value) = part.split_once('=')?;
            let value = Number::read(value)?;
            match name {
                "avg_ttl" => _ = ttl.get_or_insert(value.value),
                "expires" => _ = expires.get_or_insert(value.value / ONE),
                _ => {}
            }
            let place = *places.entry(name).or_insert(pieces.len());
            match pieces.get_mut(place) {
                None => pieces.push(Piece { name, sum: value, greatest: value, last: nth }),
                Some(known) if known.last < nth => {
                    known.sum = known.sum.plus(value);
                    known.greatest = known.greatest.max(value);
                    known.last = nth;
                }
                Some(_) => {}
            }
        }
        let weight = ttl.unwrap_or(0).checked_mul(expires.unwrap_or(0))?;
        weighed = weighed.checked_add(weight)?;
    }
    let sum = |name: &str| places.get(name).map_or(0, |place| pieces[*place].sum.value);
    let told = pieces.iter().map(|piece| {
        let value = match piece.name {
            "usec_per_call" => {
                let value = sum("usec").checked_mul(ONE)?.checked_div(sum("calls").max(1))?;
                Number { value, places: 2 }
            }
            "avg_ttl" => {
                let value = weighed.checked_div((sum("expires") / ONE).max(1))?;
                Number { value, places: 0 }
            }
            // A percentile of all is not above the greatest.
            name if name.strip_prefix('p').is_some_and(|it| it.parse::<f64>().is_ok()) => {
                piece.greatest
            }
            _ => piece.sum,
        };
        Some(format!("{}={}", piece.name, value.tell()))
    });
    Some(told.collect::<Option<Vec<_>>>()?.join(","))
}
