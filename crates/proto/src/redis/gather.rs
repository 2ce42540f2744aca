//! One answer of many replies (a stub until the reply side is here).

use crate::Asked;

pub(super) fn gather(
    _asked: &Asked<'_>,
    _parts: &mut dyn Iterator<Item = Result<&[u8], &[u8]>>,
    _out: &mut Vec<u8>,
) {
}
