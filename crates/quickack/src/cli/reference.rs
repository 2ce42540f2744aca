//! The reference pages that are generated from tables. `quickack docs PAGE` prints one; a test
//! fails while `docs/reference/PAGE.md` differs.

use proto::{Class, Reach, Work};
use proxy::fault::FAULTS;

use crate::admin::VERBS;
use crate::config;
use crate::http_server;
use crate::ipc::message::{
    Descriptors, FROM_HTTP, FROM_LOG_WRITER, FROM_RESOLVER, TO_HTTP, TO_LOG_WRITER, TO_MASTER,
    TO_RESOLVER, TO_WORKER, VERSION,
};

struct Page {
    name: &'static str,
    text: fn() -> String,
}

const PAGES: &[Page] = &[
    Page { name: "admin", text: admin },
    Page { name: "channel", text: channel },
    Page { name: "commands", text: commands },
    Page { name: "directives", text: config::directives_page },
    Page { name: "errors", text: errors },
    Page { name: "metrics", text: metrics },
    Page { name: "prometheus", text: prometheus },
];

pub fn names() -> Vec<&'static str> {
    PAGES.iter().map(|page| page.name).collect()
}

/// Returns the text of a page that `names` lists.
pub fn page(name: &str) -> String {
    let page =
        PAGES.iter().find(|page| page.name == name).expect("only listed pages are asked for");
    (page.text)()
}

/// Lists every command of every protocol, from the protocols' own tables.
fn commands() -> String {
    let mut page = heading("Commands", "How each command is handled, from the protocols' tables.");
    for protocol in proto::PROTOCOLS {
        page += &format!("\n## {}\n\n", protocol.name());
        if !protocol.about().is_empty() {
            page += &format!("{}\n", protocol.about());
        }
        page += "| command | what is done | work | note |\n|---|---|---|---|\n";
        for command in protocol.commands() {
            let (class, work) = (class(command.class), work(command.work));
            let name = command.name.replace('|', "\\|");
            page += &format!("| `{name}` | {class} | {work} | {} |\n", command.note);
        }
        let capable = protocol.commands().iter().filter(|command| command.capable);
        let capable: Vec<String> = capable.map(|it| format!("`{}`", it.name)).collect();
        if !capable.is_empty() {
            page += &format!(
                "\nThe log names a server without the meta commands when the proxy connects to \
                 it. For such\na server, some forms of these commands are refused: {}.\n",
                capable.join(", ")
            );
        }
    }
    page
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Fetch { merge: true, .. } => {
            "read; split by server, gathered, merged with other clients' reads"
        }
        Class::Fetch { idempotent: true, .. } => "read; split by server, gathered",
        Class::Fetch { .. } => "read that changes something; split, gathered, never sent twice",
        Class::Single { writes: true } => "one server; never sent twice",
        Class::Single { writes: false } => "one server",
        Class::Split { writes: true, .. } => "split by server, gathered; never sent twice",
        Class::Split { .. } => "read; split by server, gathered",
        Class::Broadcast { reach: Reach::Keys, .. } => {
            "the server of its keys, if the pool allows it"
        }
        Class::Broadcast { reach: Reach::Sole, .. } => "one server; only in a pool of one server",
        Class::Broadcast { reach: Reach::Control, .. } => {
            "every server of the pool at once, gathered"
        }
        Class::Broadcast { gated: true, .. } => "every server of the pool, if the pool allows it",
        Class::Broadcast { reach: Reach::Survey, .. } => "every server that is up, gathered",
        Class::Broadcast { .. } => "every server of the pool, gathered",
        Class::Local(_) => "answered by the proxy",
        Class::Refuse(_) => "refused with an error that names it",
    }
}

fn work(work: Work) -> &'static str {
    match work {
        Work::Quick => "",
        Work::Slow => "slow",
        Work::Varies => "varies",
    }
}

/// Lists every verb of the admin socket, from its table.
fn admin() -> String {
    let mut page = heading(
        "Admin socket",
        "A running proxy answers these verbs, sent by `quickack VERB` or as one line to its unix\n\
         socket. Only its owner and root may open the socket. An answer that begins with\n\
         `error: ` is an error. `--json` prints an object.",
    );
    page += ADMIN_PLACES;
    page += "\n| verb | words | effect |\n|---|---|---|\n";
    for verb in VERBS {
        let words = if verb.words.is_empty() { String::new() } else { format!("`{}`", verb.words) };
        page += &format!("| `{}` | {} | {} |\n", verb.name, words.replace('|', "\\|"), verb.text);
    }
    page
}

/// The places of the sockets.
const ADMIN_PLACES: &str = "
## Where a proxy is found

Without `admin:` in the file, the socket is in `RUNTIME_DIRECTORY` (systemd's `RuntimeDirectory=`),
else in `/run/quickack` for root, else in `$XDG_RUNTIME_DIR/quickack` or `/tmp/quickack-UID`. Its
name is derived from the configuration's path, so that `quickack reload -c FILE` finds it. With
`admin: /path`, a symbolic link of that name points to the socket. Beside each name is a `.lock`
file, which the proxy holds while it runs. So a new proxy can take the name again after a `kill -9`,
and only the proxy that owns a name removes it.

Without `-c` and `--admin`, `quickack VERB` asks the only proxy that answers. It looks in the folder
of its own user. For root it looks in `/run/quickack` and the folders in it too, no matter who owns
them, and so finds services of other users. A socket counts only if a process of its folder's owner
listens on it. With `-c FILE`, a folder of another user counts only if the file belongs to that
user, if the folder is `/run/quickack` itself, or if it is `/run/quickack/NAME` for `NAME.yml`. In
all other cases use `--admin`.

## Verbs
";

/// Lists every message between the master and its children, from their tables.
fn channel() -> String {
    let mut page = heading(
        "Channel messages",
        "The master exchanges these messages with each worker and with the HTTP process, over a\n\
         `SOCK_SEQPACKET` socket pair. Each message is a JSON envelope: the version, its number,\n\
         the number of the last message that was received, and the body, which is one message;\n\
         without a body, it only acknowledges. A message whose number does not follow the last\n\
         one, that is not in the table, or that comes with another number of descriptors is an\n\
         error that closes the channel.",
    );
    page += &format!("\nVersion {VERSION}.\n");
    let directions = [
        ("From the master to a worker", TO_WORKER),
        ("From a worker", TO_MASTER),
        ("From the master to the HTTP process", TO_HTTP),
        ("From the HTTP process", FROM_HTTP),
        ("From the master to the process that writes the access log", TO_LOG_WRITER),
        ("From the process that writes the access log", FROM_LOG_WRITER),
        ("From the master to the process that looks up names", TO_RESOLVER),
        ("From the process that looks up names", FROM_RESOLVER),
    ];
    for (title, table) in directions {
        page += &format!("\n## {title}\n\n| message | fields | descriptors | meaning |\n");
        page += "|---|---|---|---|\n";
        for kind in table {
            let fields: Vec<String> =
                kind.fields.iter().map(|(name, of)| format!("`{name}: {of}`")).collect();
            let (name, fields, text) = (kind.name, fields.join(", "), kind.text);
            let descriptors = match kind.descriptors {
                Descriptors::None => "",
                Descriptors::One => "one",
                Descriptors::Several => "one or more",
            };
            page += &format!("| `{name}` | {fields} | {descriptors} | {text} |\n");
        }
    }
    page
}

/// Lists every fault, from the table in `proxy::fault`.
fn errors() -> String {
    let mut page = heading(
        "Errors",
        "A client gets these errors when a request fails for a reason other than the client's\n\
         own mistake. A memcached client gets the line `SERVER_ERROR <server>: <words>`, a Redis\n\
         client gets `-ERR <server>: <words>`. The server is named as in the configuration; if no\n\
         server is left, the pool is named instead. The column *words if unsent* has the text for\n\
         a request of which no byte was sent, and *words after sending* that for an update that\n\
         was sent. The server may have executed it, so it is never sent again.\n\n\
         The cause decides what the proxy does next. *Server*: the server failed, and the\n\
         failure counts towards its ejection. *Overload*: the request cannot be taken now; it is\n\
         refused and no server is ejected. *Own*: the proxy itself lacks a resource.\n\n\
         QueueFull never depends on other clients. Each client has a share of what may wait for a\n\
         link: 64 messages or keys, or 256 KiB. While its share is full, the client is not read,\n\
         and what it pipelines stays in its socket. Only a single request is refused: one of\n\
         which 64 MiB wait for a server (its keys, and some 30 bytes for each), or a change to\n\
         several servers that may need more than 65,536 messages to one of them.\n\n\
         An update that goes to several servers (`MSET`, `DEL`, `FLUSHALL`, `SCRIPT LOAD`,\n\
         `flush_all` …) is sent to none of them if the table's fault Down, Unable, SetupRefused\n\
         or QueueFull applies to one of them at that moment. The error names that server.\n\n\
         `-CROSSSLOT` names two keys of a request that must go to one server, and the servers\n\
         that have these keys. It says how to bring them together: with a hash tag in both or, if\n\
         the pool has no `hash_tag`, with that directive first.\n\n\
         `too many wrong logins` answers a login whose address, or whose name, was used for so\n\
         many wrong ones that its turn did not come within ten seconds. Its password was not\n\
         looked at. `logins_refused_total` counts it.",
    );
    page += "\n| fault | cause | words | words if unsent | words after sending | counter | \
             action |\n|---|---|---|---|---|---|---|\n";
    for row in FAULTS {
        let or_same = |words| if words == row.words { "the same" } else { words };
        let (unsent, sent) = (or_same(row.words_unsent), or_same(row.words_sent));
        let counter = row.counter.map_or("-", |counter| ::metrics::SERVER[counter as usize].name);
        page += &format!(
            "| {:?} | {:?} | {} | {unsent} | {sent} | `{counter}` | {} |\n",
            row.fault, row.blame, row.words, row.action
        );
    }
    page
}

/// Lists every counter, from the tables in `metrics`.
fn metrics() -> String {
    let mut page = heading(
        "Metrics",
        "`quickack stats` shows these figures; `--json` has each of them by its name. Clients get\n\
         them with the command `stats proxy`, as `<pool>.<name>` and `<pool>.<server>.<name>`.\n\
         A name that ends in `_total` is a counter; all others are values of the present moment.",
    );
    let tables = [
        ("Metrics of each worker", ::metrics::WORKER),
        ("Metrics of each pool", ::metrics::POOL),
        ("Metrics of each server", ::metrics::SERVER),
        ("Metrics of each tenant", ::metrics::TENANT),
    ];
    for (title, table) in tables {
        page += &format!("\n## {title}\n\n| name | meaning |\n|---|---|\n");
        for row in table {
            page += &format!("| `{}` | {} |\n", row.name, row.help);
        }
    }
    for protocol in proto::NAMED {
        let errors = protocol.upstream().retryable_errors();
        if !errors.is_empty() {
            let name = protocol.name();
            page += &format!("\n## Metrics of each server of a pool with `protocol: {name}`\n\n");
            page += "| name | meaning |\n|---|---|\n";
        }
        for error in errors {
            page += &format!("| `{}` | {} |\n", error.counter, error.help);
        }
    }
    page += LATENCIES;
    for row in ::metrics::LATENCIES {
        page += &format!("| `{}` | {} |\n", row.name, row.help);
    }
    page += "| `replies` | Messages to a server: from entering the queue to the reply; `reads` and \
             `updates` of a server are its parts. |\n";
    page += PHASES;
    for phase in ::metrics::Phase::ALL {
        page += &format!("| `{}` | {} |\n", phase.name(), phase.help());
    }
    page += FAMILIES;
    for protocol in proto::NAMED {
        let families = protocol.upstream().families().join("`, `");
        page += &format!("| `{}` | `{families}` |\n", protocol.name());
    }
    for row in ::metrics::TENANT_LATENCIES {
        page += &format!("| `{}` of a tenant | {} |\n", row.name, row.help);
    }
    page
}

/// Lists every family of `/metrics`.
fn prometheus() -> String {
    let page = heading(
        "Metrics for Prometheus",
        "`/metrics` of the `http:` address serves these families;\n\
         [monitoring.md](../monitoring.md) says how to use them. The figures are those of\n\
         [metrics.md](metrics.md), in seconds and bytes. Counters go on over reloads and deaths\n\
         of workers. A pool or server that a reload removes takes its figures with it.",
    );
    format!("{page}\n{}", http_server::reference())
}

const LATENCIES: &str = "
## Latencies

Histograms over all workers, in microseconds: count, mean, p50, p90, p95, p98, p99, p99.9 and the
maximum. They are within one per cent, and the maximum since the start is exact. Under `windows`
stand the figures of the last 10 seconds (`10s`), minute (`1m`) and five minutes (`5m`). A window
ends at a whole second. `window_seconds` says how many seconds each covers, which is less at first;
the longest begins at a multiple of five seconds, so it may lack up to five.

| name | meaning |
|---|---|
";

const PHASES: &str = "
## Phases

`phase_us` of a pool has the phases of its requests. A request of several parts follows the part
that was answered last. All requests of a worker are measured while it serves less than 500 a
second; of more, so many that 250 a second or more are measured, and at least one in 64. Each
counts for as many as it was chosen from.

| name | meaning |
|---|---|
";

const FAMILIES: &str = "
## Families of commands

`family_latency_us` of a pool has the latencies of each family of commands. A command belongs to one
family, in whatever protocol a client sends it; commands that `commands:` declares are in `other`.

| protocol | families |
|---|---|
";

fn heading(title: &str, story: &str) -> String {
    format!(
        "# {title}\n\n\
         <!-- Generated: UPDATE_GOLDEN=1 cargo test -p quickack reference -->\n\n\
         {story}\n"
    )
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
