//! Modula: the hash modulo the sum of weights, counted along the nodes in the order of names.

use crate::Member;

pub(crate) struct Modula {
    /// Each node with the count at which the next one begins. twemproxy instead writes each node
    /// `weight` times into an array. The result is the same, and here weights cost no memory.
    spans: Vec<Span>,
    /// The sum of weights; 0 if no node is alive.
    total_weight: u32,
}

struct Span {
    end: u32,
    node: u32,
}

impl Modula {
    pub(crate) fn build(members: &[Member]) -> Modula {
        let mut total_weight = 0u32;
        let mut spans = Vec::with_capacity(members.len());
        for member in members {
            total_weight = total_weight.saturating_add(member.weight);
            spans.push(Span { end: total_weight, node: member.index });
        }
        Modula { spans, total_weight }
    }

    #[inline]
    pub(crate) fn locate(&self, hash: u32) -> Option<usize> {
        let count = hash.checked_rem(self.total_weight)?;
        let span = self.spans.partition_point(|span| span.end <= count);
        Some(self.spans[span].node as usize)
    }
}
