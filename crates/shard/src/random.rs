//! Random: any living node. As in twemproxy, weights are ignored.

use crate::Member;

pub(crate) struct Random {
    nodes: Vec<u32>,
}

impl Random {
    pub(crate) fn build(members: &[Member]) -> Random {
        Random { nodes: members.iter().map(|member| member.index).collect() }
    }

    #[inline]
    pub(crate) fn locate(&self, random: u32) -> Option<usize> {
        let index = random.checked_rem(self.nodes.len() as u32)?;
        Some(self.nodes[index as usize] as usize)
    }
}
