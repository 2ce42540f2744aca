//! What the proxy says on its own account (a stub until the reply side is here).

use super::refusal;
use crate::{Answer, Asked};

pub(super) fn write(asked: &Asked<'_>, answer: &Answer<'_>, out: &mut Vec<u8>) {
    if let Answer::Refused(why) = answer {
        refusal::write(asked, *why, out);
    }
}
