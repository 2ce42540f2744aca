//! Definitions: texts that a pool's clients have given its servers to refer to by name, like
//! scripts. A server that has forgotten one can then be given it again. The protocol finds them in
//! answers (`learn`) and writes the command (`recovery`).

use std::collections::{HashMap, VecDeque};

use super::limits;

/// The definitions of a pool. Their bytes are bounded; the oldest go first.
#[derive(Default)]
pub(crate) struct Definitions {
    texts: HashMap<Vec<u8>, Vec<u8>>,
    /// In the order in which they were learned.
    names: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Definitions {
    pub(crate) fn learn(&mut self, name: &[u8], text: &[u8]) {
        let size = 2 * name.len() + text.len();
        if self.texts.contains_key(name) || size > limits::DEFINITIONS_MAX {
            return;
        }
        while self.bytes + size > limits::DEFINITIONS_MAX {
            let Some(oldest) = self.names.pop_front() else { break };
            let text = self.texts.remove(&oldest).map_or(0, |text| text.len());
            self.bytes -= 2 * oldest.len() + text;
        }
        self.bytes += size;
        self.texts.insert(name.to_vec(), text.to_vec());
        self.names.push_back(name.to_vec());
    }

    pub(crate) fn forget(&mut self) {
        *self = Definitions::default();
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.texts.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_counts_with_its_name_which_is_kept_twice() {
        let mut definitions = Definitions::default();
        for (nth, bytes) in [(1, 2 * 40 + 100), (2, 2 * (2 * 40 + 100))] {
            definitions.learn(format!("{nth:040}").as_bytes(), &[b't'; 100]);
            assert_eq!(definitions.bytes, bytes);
        }
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_the_bound_holds() {
        let mut definitions = Definitions::default();
        let text = vec![b't'; limits::DEFINITIONS_MAX / 4];
        for name in [b"a", b"b", b"c", b"a", b"d", b"e"] {
            definitions.learn(name, &text);
            assert!(definitions.bytes <= limits::DEFINITIONS_MAX);
        }
        let known = [b"a", b"b", b"c", b"d", b"e"].map(|name| definitions.find(name).is_some());
        assert_eq!(known, [false, false, true, true, true]);
        definitions.learn(b"f", &vec![b't'; limits::DEFINITIONS_MAX]);
        assert!(
            definitions.find(b"f").is_none() && definitions.find(b"e").is_some(),
            "too long to be kept"
        );
    }
}
