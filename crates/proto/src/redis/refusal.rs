//! A server's words for what its client did wrong (being written).
use crate::{Asked, Refusal};

pub(super) fn write(_asked: &Asked<'_>, _why: Refusal, _out: &mut Vec<u8>) {}
