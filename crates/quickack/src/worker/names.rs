//! What the ids of pools and servers stand for, in lines of the log.

use std::collections::HashMap;

use crate::log::About;

#[derive(Default)]
pub struct Names {
    planned: HashMap<u32, About>,
    /// What is in the plan no more and still in use.
    retired: HashMap<u32, About>,
}

impl Names {
    /// Takes the names of a new plan.
    pub fn install(&mut self, planned: HashMap<u32, About>) {
        let old = std::mem::replace(&mut self.planned, planned);
        self.retired.extend(old.into_iter().filter(|(id, _)| !self.planned.contains_key(id)));
    }

    /// Forgets what has left the plan and is used no more.
    pub fn keep_retired(&mut self, in_use: &[u32]) {
        self.retired.retain(|id, _| in_use.contains(id));
    }

    pub fn find(&self, id: u32) -> Option<&About> {
        self.planned.get(&id).or_else(|| self.retired.get(&id))
    }

    pub fn about(&self, id: u32) -> About {
        self.find(id).cloned().unwrap_or_default()
    }

    pub fn planned(&self) -> &HashMap<u32, About> {
        &self.planned
    }
}
