//! Scripts that servers have forgotten (a stub until the reply side is here).

use crate::{Ask, Asked, Excuse};

pub(super) fn learn<'a>(_asked: &Asked<'a>, _reply: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    None
}

pub(super) fn remedy(
    _asked: &Asked<'_>,
    _excuse: Excuse,
    _known: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
    _out: &mut Vec<u8>,
) -> Option<Ask> {
    None
}
