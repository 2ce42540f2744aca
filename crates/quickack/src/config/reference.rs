//! The reference page of the directives, generated from their tables.

use std::fmt::Write;

use super::directives::{Directive, GLOBAL, Kind, Origin, POOL, Unwritten};
use super::tenants::TENANT;
use super::value;

pub fn directives_page() -> String {
    let mut out = INTRODUCTION.to_string();
    out.push_str("\n## In a pool\n\n");
    table(POOL, &mut out);
    out.push_str("\n## In the `global:` block\n\n");
    table(GLOBAL, &mut out);
    out.push_str("\n## In a tenant of `tenants:`\n\n");
    table(TENANT, &mut out);
    out.push_str(DIFFERENCES);
    out
}

fn table<D>(directives: &[Directive<D>], out: &mut String) {
    out.push_str("| directive | value | default | meaning |\n|---|---|---|---|\n");
    for directive in directives {
        let origin = match directive.origin {
            Origin::Twemproxy => " (t)",
            Origin::Native => "",
        };
        let default = match directive.unwritten {
            Unwritten::Required => "required".to_string(),
            Unwritten::Value(word) => format!("`{word}`"),
            Unwritten::Unset(words) => words.to_string(),
        };
        let live = if directive.runtime { " (r)" } else { "" };
        let (name, text) = (directive.name, directive.text.replace('|', "\\|"));
        let kind = kind(&directive.kind);
        let _ = writeln!(out, "| `{name}`{origin}{live} | {kind} | {default} | {text} |");
    }
}

fn kind<D>(kind: &Kind<D>) -> String {
    let quoted = |words: Vec<&str>| {
        let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
        quoted.join(", ")
    };
    match kind {
        Kind::Switch(_) => "switch".to_string(),
        Kind::Number(range, _) => format!("number, {} to {}", range.start(), range.end()),
        Kind::Duration(_) => "duration".to_string(),
        Kind::DurationOrOff(_) => "duration, or `off`".to_string(),
        Kind::Deadline(_) => "duration above 0".to_string(),
        Kind::Size(range, _) => {
            let [start, end] = [range.start(), range.end()].map(|size| value::size_word(*size));
            format!("size, {start} to {end}")
        }
        Kind::Word(words, _) => quoted(words()),
        Kind::Allow(_) => "list of commands".to_string(),
        Kind::Tag(_) => "two characters".to_string(),
        Kind::Secret(_) => "text".to_string(),
        Kind::Own(words, _) | Kind::Owns(words, _) => (*words).to_string(),
        Kind::Listen(_) => "address".to_string(),
        Kind::Servers(_) => "list of servers".to_string(),
        Kind::Commands(_) => "names, each with `key` and `access`".to_string(),
        Kind::Tenants(_) => "names, each with directives".to_string(),
    }
}

const INTRODUCTION: &str = "\
<!-- Generated from crates/quickack/src/config/directives.rs: UPDATE_GOLDEN=1 writes it anew. -->
# Directives

A configuration is a `nutcracker.yml`: every top-level key is a pool, except `global`, which holds
the settings of the process. `quickack check FILE` says whether a file is valid and prints the
resulting settings. Directives marked (t) are twemproxy's, with its spelling, defaults and meaning.
Directives marked (r) can be changed in a running proxy: `quickack set memory_max=2g`,
`quickack set POOL.timeout=400ms`, `quickack set tenants.NAME.weight=2`.

* A **switch** is `on`, `true` or `yes`, or `off`, `false` or `no`.
* A **duration** is a number with `us`, `ms`, `s`, `m` or `h`; a bare number is milliseconds. The
  longest is 2147483647 ms.
* A **size** is a number with `k`, `m`, `g` or `t`, powers of 1024; a bare number is bytes.
* A **list** is one `- ` line per item, or `[a, b]`.
";

const DIFFERENCES: &str = "
## Differences from twemproxy

* `server_connections` counts for each worker: 4 workers have four times as many links to a server
  as one. `server_connections_max` bounds them all, and `quickack check` prints the product. In a
  Redis pool both apply to each pair of database and RESP version that clients use; a worker uses 64
  pairs at most.
* Without `timeout`, or with 0, twemproxy waits forever. Here connect, queue and reply have a
  deadline of one second each unless the file names another.
* `client_connections` is read and ignored by twemproxy 0.5. Here it is a limit.
* Servers' hosts are looked up by a process of their own, every `resolve_every`. twemproxy looks up
  a server's host at each connect, and does nothing else meanwhile.
* In a Redis pool, clients may use every database of `databases`; clients of twemproxy have one. If
  a server lacks `redis_db`, clients get an error; twemproxy goes on in database 0.
* These are refused here although twemproxy 0.5 accepts them: a number that does not fit in 31 bits
  (twemproxy overflows), a socket mode that is not octal (twemproxy ignores it), a server without a
  host or with an empty name, a host with one colon or with `/ < > { } $`, control characters in
  names.
";
