//! The reference pages that are generated from tables: `quickack docs PAGE` prints one, and a
//! test fails while `docs/reference/PAGE.md` says something else.

use crate::config;

struct Page {
    name: &'static str,
    text: fn() -> String,
}

const PAGES: &[Page] = &[Page { name: "directives", text: config::directives_page }];

pub fn names() -> Vec<&'static str> {
    PAGES.iter().map(|page| page.name).collect()
}

/// The text of a page that `names` lists.
pub fn page(name: &str) -> String {
    let page =
        PAGES.iter().find(|page| page.name == name).expect("only listed pages are asked for");
    (page.text)()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_GOLDEN=1 cargo test` writes the pages anew.
    #[test]
    fn the_reference_says_what_the_tables_say() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
        for name in names() {
            let path = format!("{folder}/{name}.md");
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                std::fs::create_dir_all(folder).unwrap();
                std::fs::write(&path, page(name)).unwrap();
            }
            let written = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(written == page(name), "{path} is stale: run with UPDATE_GOLDEN=1");
        }
    }
}
