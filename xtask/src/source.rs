//! Rust text, read just far enough to ask it simple questions: its tokens, paths, functions,
//! structs and impls.
//!
//! This is no parser. It relies on what rustfmt and the compiler have made of the text.

/// One word or sign. Comments, strings, bytes and characters are no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'t> {
    pub text: &'t str,
    pub line: usize,
}

impl Token<'_> {
    pub fn is_word(&self) -> bool {
        self.text.starts_with(is_word_char)
    }
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut rest, mut line, mut found) = (text, 1, Vec::new());
    while let Some(first) = rest.chars().next() {
        let skipped = comment_len(rest).or_else(|| literal_len(rest));
        let len = skipped.unwrap_or_else(|| match first {
            _ if rest.starts_with("::") => 2,
            _ if is_word_char(first) => rest.find(|c| !is_word_char(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        });
        let (text, after) = rest.split_at(len);
        if skipped.is_none() && !first.is_whitespace() {
            found.push(Token { text, line });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    found
}

fn comment_len(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    text.strip_prefix("/*")?;
    let mut depth = 0;
    for at in 0..text.len() {
        match text.as_bytes().get(at..at + 2) {
            Some(b"/*") => depth += 1,
            Some(b"*/") if depth == 1 => return Some(at + 2),
            Some(b"*/") => depth -= 1,
            _ => {}
        }
    }
    Some(text.len())
}

/// Returns the length of the string, byte or character at the start; None for a lifetime.
fn literal_len(text: &str) -> Option<usize> {
    let body = text.trim_start_matches(['b', 'c', 'r']);
    let letters = &text[..text.len() - body.len()];
    let len = if letters.ends_with('r') {
        let marks = body.len() - body.trim_start_matches('#').len();
        let end = format!("\"{}", &body[..marks]);
        let inside = body[marks..].strip_prefix('"')?;
        marks + 1 + inside.find(&end)? + end.len()
    } else if let Some(inside) = body.strip_prefix('"') {
        let mut escaped = false;
        let is_end = |c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        };
        1 + inside.find(is_end)? + 1
    } else {
        let inside = body.strip_prefix('\'')?;
        let first = inside.chars().next()?;
        let len = if first == '\\' { 2 + inside[2..].find('\'')? } else { first.len_utf8() };
        inside[len..].starts_with('\'').then_some(1 + len + 1)?
    };
    Some(letters.len() + len)
}

/// A path of two or more segments, as in `use a::{b, c}` (two paths) or `a::b(c)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path<'t> {
    pub line: usize,
    pub segments: Vec<&'t str>,
    /// The name that a `use` gives it here, and whether other files may use that name.
    pub import: Option<(&'t str, bool)>,
}

pub fn paths<'t>(tokens: &[Token<'t>]) -> Vec<Path<'t>> {
    let (mut at, mut found) = (0, Vec::new());
    while at < tokens.len() {
        let Token { text, line } = tokens[at];
        if text == "use" && text_at(tokens, at + 1) != "<" {
            let exported = at > 0 && ["pub", ")"].contains(&tokens[at - 1].text);
            let from = found.len();
            at = use_tree(tokens, at + 1, &[], &mut found);
            for path in &mut found[from..] {
                path.import = path.import.map(|(name, _)| (name, exported));
            }
        } else if tokens[at].is_word() && text_at(tokens, at + 1) == "::" {
            let mut segments = vec![text];
            while text_at(tokens, at + 1) == "::" && tokens.get(at + 2).is_some_and(Token::is_word)
            {
                segments.push(tokens[at + 2].text);
                at += 2;
            }
            found.push(Path { line, segments, import: None });
            at += 1;
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one tree of a `use` and returns where it ends.
fn use_tree<'t>(
    tokens: &[Token<'t>],
    mut at: usize,
    prefix: &[&'t str],
    found: &mut Vec<Path<'t>>,
) -> usize {
    let (mut segments, mut name) = (prefix.to_vec(), None);
    let begin = at;
    loop {
        match text_at(tokens, at) {
            "{" => {
                while !["}", ";"].contains(&text_at(tokens, at)) {
                    at = use_tree(tokens, at + 1, &segments, found);
                }
                return at + 1;
            }
            "," | "}" | ";" => break,
            "self" if !segments.is_empty() => {}
            "as" => name = tokens.get(at + 1).map(|token| token.text),
            "::" => {}
            _ if name.is_some() => {}
            text => segments.push(text),
        }
        at += 1;
    }
    // The last comma of a tree has nothing behind it.
    if let Some(last) = segments.last().filter(|_| at > begin) {
        let line = tokens[begin].line;
        found.push(Path { line, import: Some((name.unwrap_or(last), false)), segments });
    }
    at
}

fn text_at<'t>(tokens: &[Token<'t>], at: usize) -> &'t str {
    tokens.get(at).map_or(";", |token| token.text)
}

/// Returns the type of each inherent `impl`, with its line.
pub fn inherent_impls<'t>(tokens: &[Token<'t>]) -> Vec<(&'t str, usize)> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map_or(";", |at| tokens[at].text);
        if token.text != "impl" || !["}", "{", ";", "]", "unsafe"].contains(&before) {
            continue;
        }
        let (mut depth, mut name) = (0, None);
        for (at, token) in tokens.iter().enumerate().skip(at + 1) {
            match token.text {
                "<" => depth += 1,
                ">" if tokens[at - 1].text != "-" => depth -= 1,
                "for" if depth == 0 => {
                    name = None;
                    break;
                }
                "{" | "where" if depth == 0 => break,
                text if depth == 0 && token.is_word() => name = Some(text),
                _ => {}
            }
        }
        found.extend(name.map(|name| (name, token.line)));
    }
    found
}

/// Something with a name, from its keyword to the brace or semicolon that ends it.
pub struct Item<'t, 's> {
    pub name: &'t str,
    pub lines: usize,
    /// The tokens of the body, with its braces; none if it has none.
    pub body: &'s [Token<'t>],
}

/// Returns each item that begins with this keyword (`fn`, `struct`), nested ones too.
pub fn items<'t, 's>(tokens: &'s [Token<'t>], keyword: &str) -> Vec<Item<'t, 's>> {
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        if pair[0].text != keyword || !pair[1].is_word() {
            continue;
        }
        let (mut depth, mut begin, mut end) = (0, None, at + 1);
        for (at, token) in tokens.iter().enumerate().skip(at + 2) {
            end = at;
            if token.text == "{" && depth == 0 {
                begin = Some(at);
            }
            depth += step(token.text);
            if depth == 0 && ["}", ";"].contains(&token.text) {
                break;
            }
        }
        let body = begin.map_or(&[][..], |begin| &tokens[begin..=end]);
        let lines = tokens[end].line - pair[0].line + 1;
        found.push(Item { name: pair[1].text, lines, body });
    }
    found
}

/// The change of depth at a bracket. Angles are no brackets here: they also compare.
pub fn step(text: &str) -> i32 {
    match text {
        "{" | "(" | "[" => 1,
        "}" | ")" | "]" => -1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        tokens(text).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_no_tokens() {
        let text = r####"a /* b /* c */ d */ e // f
            "g\\" h "\"i" 'j' '\'' '\u{1f}' b'"' br#"k " l"# r"m\" 'n 'é' o"####;
        assert_eq!(texts(text), ["a", "e", "h", "'", "n", "o"]);
        assert_eq!(tokens(text)[2].line, 2);
        assert_eq!(texts("a::b(c.d)"), ["a", "::", "b", "(", "c", ".", "d", ")"]);
    }

    #[test]
    fn a_tree_of_a_use_is_many_paths() {
        let text = "pub(crate) use a::{\n b::{self, C as D},\n e,\n};\nuse f;\nlet g = h::i::j(k);";
        let found = paths(&tokens(text));
        let seen: Vec<_> =
            found.iter().map(|path| (path.line, path.segments.join("::"), path.import)).collect();
        let expected = [
            (2, "a::b".to_string(), Some(("b", true))),
            (2, "a::b::C".to_string(), Some(("D", true))),
            (3, "a::e".to_string(), Some(("e", true))),
            (5, "f".to_string(), Some(("f", false))),
            (6, "h::i::j".to_string(), None),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn an_impl_of_a_trait_is_not_inherent() {
        let text = "impl A {}\n#[b] unsafe impl<F: Fn() -> C> d::E<F> where F: G {}\n\
            impl H for I {}\nfn j() -> impl K { impl_l() }\nimpl<'a> M<'a> {}";
        assert_eq!(inherent_impls(&tokens(text)), [("A", 1), ("E", 2), ("M", 5)]);
    }

    #[test]
    fn a_function_ends_with_its_brace() {
        let text = "fn a(b: [u8; 4]) {\n fn c() {}\n if d { e }\n}\ntrait T { fn f(); }\n\
            const G: fn(u8) = h;";
        let tokens = tokens(text);
        let found = items(&tokens, "fn");
        let seen: Vec<_> = found.iter().map(|item| (item.name, item.lines)).collect();
        assert_eq!(seen, [("a", 4), ("c", 1), ("f", 1)]);
        assert!(found[2].body.is_empty());
    }
}
