//! A page of Markdown, as the commands that a reader copies from it.
//!
//! * A block `sh` has commands; their status must be 0.
//! * A block `console` has commands after `$ `, and below each its output. `…` stands for any text,
//!   alone in a line for any lines; `(status N)` at the end is a status that is not 0.
//! * A block `yaml` below a line that ends with ``write `NAME`:`` is that file.
//! * Other blocks `yaml`, and blocks `text`, have nothing to copy into a shell.
//! * `<!-- not run: REASON -->` above a block: none of its commands is executed here.
//! * ``<!-- not run, `WORDS`: REASON -->`` above a block: those of its commands that begin with
//!   these words are not executed here.
//!
//! Anything else is an error, so that no command is left out unseen.

/// One thing that a reader does.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Where it is in the page, counted from 1.
    pub line: usize,
    pub act: Act,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Act {
    Write { name: String, text: String },
    Run { command: String, shown: Option<Shown> },
}

/// What a page shows of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub lines: Vec<String>,
    pub status: i32,
}

/// A comment that says why commands are not executed.
struct Mark {
    /// What they begin with; empty for all of the block.
    words: String,
    met: bool,
}

/// Returns what a page has its reader do.
pub fn read(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let (mut marks, mut prose) = (Vec::new(), "");
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let place = |what: &str| format!("line {}: {what}", at + 1);
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let block = lines.by_ref().map(|(_, line)| line);
            let block: Vec<&str> = block.take_while(|line| line.trim() != "```").collect();
            let mut found = match language {
                "sh" => commands(&block, at + 2),
                "console" => session(&block, at + 2).map_err(|why| place(&why))?,
                "yaml" => file(prose, &block, at + 2).into_iter().collect(),
                "text" => Vec::new(),
                _ => return Err(place("a block is `sh`, `console`, `yaml` or `text`")),
            };
            found.retain(|step| !is_marked(step, &mut marks));
            if let Some(mark) = marks.iter().find(|mark: &&Mark| !mark.met) {
                return Err(place(&format!("no command of the block is marked: `{}`", mark.words)));
            }
            steps.append(&mut found);
            marks.clear();
        } else if line.trim_start().starts_with("<!-- not run") {
            marks.push(mark(line).ok_or_else(|| place("the mark has no reason"))?);
        } else if !line.trim().is_empty() {
            if !marks.is_empty() {
                return Err(place("a mark stands above its block"));
            }
            prose = line;
        }
    }
    Ok(steps)
}

fn mark(line: &str) -> Option<Mark> {
    let inner = line.trim().strip_prefix("<!-- not run")?.strip_suffix("-->")?;
    let (words, reason) = match inner.strip_prefix(", `") {
        Some(rest) => rest.split_once("`: ")?,
        None => ("", inner.strip_prefix(": ")?),
    };
    (reason.split_whitespace().count() >= 3).then(|| Mark { words: words.to_string(), met: false })
}

fn is_marked(step: &Step, marks: &mut [Mark]) -> bool {
    let Act::Run { command, .. } = &step.act else { return false };
    let mark = marks.iter_mut().find(|mark| command.starts_with(&mark.words));
    mark.is_some_and(|mark| {
        mark.met = true;
        true
    })
}

fn file(prose: &str, block: &[&str], line: usize) -> Option<Step> {
    let (_, name) = prose.trim_end().strip_suffix("`:")?.rsplit_once("write `")?;
    let text = block.iter().map(|line| format!("{line}\n")).collect();
    Some(Step { line, act: Act::Write { name: name.to_string(), text } })
}

/// The commands of a block without output: a line each, with what continues it.
fn commands(block: &[&str], first: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = block.iter().enumerate();
    while let Some((at, line)) = lines.next() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let mut command = (*line).to_string();
        let end = line.split_once("<<").map(|(_, word)| word.trim_matches(['\'', '"', ' ']));
        let mut open = end.is_some() || line.ends_with('\\');
        while let Some((_, more)) = lines.by_ref().next_if(open) {
            command = format!("{command}\n{more}");
            open = end.map_or(more.ends_with('\\'), |end| *more != end);
        }
        steps.push(Step { line: first + at, act: Act::Run { command, shown: None } });
    }
    steps
}

/// An iterator that is asked only under a condition.
trait NextIf: Iterator {
    fn next_if(&mut self, condition: bool) -> Option<Self::Item> {
        if condition { self.next() } else { None }
    }
}

impl<I: Iterator> NextIf for I {}

/// The commands of a block with output.
fn session(block: &[&str], first: usize) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for (at, line) in block.iter().enumerate() {
        if let Some(command) = line.strip_prefix("$ ") {
            let shown = Some(Shown { lines: Vec::new(), status: 0 });
            let act = Act::Run { command: command.to_string(), shown };
            steps.push(Step { line: first + at, act });
            continue;
        }
        let Some(Step { act: Act::Run { shown: Some(shown), .. }, .. }) = steps.last_mut() else {
            return Err("a block `console` begins with `$ `".to_string());
        };
        let status = line.strip_prefix("(status ").and_then(|rest| rest.strip_suffix(')'));
        match status.map(str::parse) {
            Some(status) => shown.status = status.map_err(|_| "no number in `(status N)`")?,
            None => shown.lines.push((*line).to_string()),
        }
    }
    Ok(steps)
}

impl Shown {
    /// Returns whether a command has said this. Spaces count as one, since columns are as wide as
    /// what is in them.
    pub fn fits(&self, said: &str) -> bool {
        let said: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let shown = self.lines.iter().map(String::as_str).filter(|line| !line.trim().is_empty());
        fits(&shown.collect::<Vec<_>>(), &said)
    }
}

fn fits(shown: &[&str], said: &[&str]) -> bool {
    match shown {
        [] => said.is_empty(),
        [any, rest @ ..] if any.trim() == "…" => {
            (0..=said.len()).any(|skipped| fits(rest, &said[skipped..]))
        }
        [line, rest @ ..] => {
            said.first().is_some_and(|first| line_fits(line, first)) && fits(rest, &said[1..])
        }
    }
}

fn line_fits(shown: &str, said: &str) -> bool {
    let single = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, said) = (single(shown), single(said));
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|head| said.strip_prefix(head)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(tail) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: usize, command: &str) -> Step {
        Step { line, act: Act::Run { command: command.to_string(), shown: None } }
    }

    #[test]
    fn commands_are_read_with_what_continues_them() {
        let page =
            "```sh\n# a comment\na 1 # as well\n\nb \\\n  2\ncat > f <<'END'\nx\nEND\nc\n```\n";
        let steps = [run(3, "a 1 # as well"), run(5, "b \\\n  2")];
        let more = [run(7, "cat > f <<'END'\nx\nEND"), run(10, "c")];
        assert_eq!(read(page).unwrap(), steps.into_iter().chain(more).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_executed_says_why_above_its_block() {
        let page = "<!-- not run, `a`: it needs a screen -->\n```sh\na 1\nb\n```\n";
        assert_eq!(read(page).unwrap(), [run(4, "b")]);
        let page = "<!-- not run: there is no systemd -->\n\n```console\n$ a\n$ b\n```\n";
        assert_eq!(read(page).unwrap(), []);
        for (page, why) in [
            ("<!-- not run: -->\n```sh\na\n```\n", "the mark has no reason"),
            ("<!-- not run, `c`: it is not here -->\n```sh\na\n```\n", "no command of the block"),
            ("<!-- not run: it is too far -->\nText.\n", "a mark stands above its block"),
            ("```bash\na\n```\n", "a block is"),
            ("```\na\n```\n", "a block is"),
            ("```console\na\n```\n", "begins with `$ `"),
        ] {
            let said = read(page).unwrap_err();
            assert!(said.contains(why), "{page}: {said}");
        }
    }

    #[test]
    fn a_file_is_written_where_the_page_says_so() {
        let page = "Now write `a.yml`:\n\n```yaml\na: 1\n```\n\nOr:\n```yaml\nb: 2\n```\n";
        let act = Act::Write { name: "a.yml".to_string(), text: "a: 1\n".to_string() };
        assert_eq!(read(page).unwrap(), [Step { line: 4, act }]);
    }

    #[test]
    fn an_ellipsis_stands_for_what_varies() {
        let check = |shown: &str, said: &str, expected: bool| {
            let lines = shown.lines().map(str::to_string).collect();
            assert_eq!(Shown { lines, status: 0 }.fits(said), expected, "{shown}, {said}");
        };
        check("a  b\n", "a b\n", true);
        check("a … b … c", "a 1 b 2 c", true);
        check("a … b … c", "a 1 c 2 b", false);
        check("a …", "a ", false);
        check("a\n…\nd", "a\nb\nc\nd\n", true);
        check("a\n…\nd", "a\nb\nd\nc\n", false);
        check("a", "a\nb\n", false);
        check("a", "", false);
    }
}
