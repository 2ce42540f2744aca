//! The families that are no counters in shared memory: the build, the configuration, the workers'
//! states and restarts, the health of servers.

use http::{Exposition, Kind, seconds};

use ::metrics::WorkerCounter;
use proxy::plan::AdminState;

use super::super::view::View;
use super::{Family, Source, of_server};
use crate::stats::Health;

/// Writes the samples of a family; the time is of the clock that all processes share.
pub type Samples = fn(&View, u64, &mut Exposition);

/// One family.
pub struct Fact {
    name: &'static str,
    kind: Kind,
    /// The labels, for the reference.
    labels: &'static str,
    help: &'static str,
    samples: Samples,
}

impl Fact {
    pub fn family(&self) -> Family {
        let unit = ["seconds", "bytes"].into_iter().find(|unit| self.name.ends_with(unit));
        Family {
            name: self.name.to_string(),
            kind: self.kind,
            unit,
            help: self.help.to_string(),
            source: Source::Fact(self.samples),
        }
    }
}

/// The labels of a family of this file.
pub fn labels(name: &str) -> &'static str {
    FACTS.iter().find(|fact| fact.name == name).map_or("", |fact| fact.labels)
}

/// THE table of facts.
pub const FACTS: &[Fact] = &[
    Fact {
        name: "quickack_build",
        kind: Kind::Info,
        labels: "version",
        help: "The release that runs.",
        samples: |view, _, page| page.sample(&[("version", &view.release)], 1),
    },
    Fact {
        name: "process_start_time_seconds",
        kind: Kind::Gauge,
        labels: "",
        help: "When the proxy was started, as Unix time.",
        samples: |view, _, page| page.sample(&[], seconds(view.started_unix_us)),
    },
    Fact {
        name: "quickack_draining",
        kind: Kind::Gauge,
        labels: "",
        help: "1 while the proxy ends, from the beginning of `shutdown_delay` on.",
        samples: |view, _, page| page.sample(&[], u8::from(view.state.draining)),
    },
    Fact {
        name: "quickack_config_epoch",
        kind: Kind::Gauge,
        labels: "",
        help: "The number of the configuration in force; it grows with each change.",
        samples: |view, _, page| page.sample(&[], view.scoreboard.config_epoch()),
    },
    Fact {
        name: "quickack_config_reloads",
        kind: Kind::Counter,
        labels: "",
        help: "Reloads that were applied, or that changed nothing.",
        samples: |view, _, page| page.sample(&[], view.state.reloads.applied),
    },
    Fact {
        name: "quickack_config_reloads_failed",
        kind: Kind::Counter,
        labels: "",
        help: "Reloads that were refused; the earlier configuration stayed in force.",
        samples: |view, _, page| page.sample(&[], view.state.reloads.refused),
    },
    Fact {
        name: "quickack_config_last_reload_successful",
        kind: Kind::Gauge,
        labels: "",
        help: "0 if the last reload was refused: the file on disk is not what runs.",
        samples: |view, _, page| page.sample(&[], u8::from(view.state.reloads.last_applied)),
    },
    Fact {
        name: "quickack_config_last_reload_success_timestamp_seconds",
        kind: Kind::Gauge,
        labels: "",
        help: "When a configuration was last read and accepted, as Unix time.",
        samples: |view, _, page| page.sample(&[], view.state.reloads.applied_unix_s),
    },
    Fact {
        name: "quickack_memory_max_bytes",
        kind: Kind::Gauge,
        labels: "",
        help: "`memory_max`: bytes that the buffers of all workers together may hold.",
        samples: |view, _, page| page.sample(&[], view.names.memory_max),
    },
    Fact {
        name: "quickack_private_connections_max",
        kind: Kind::Gauge,
        labels: "",
        help: "The most links that serve one client only, of all workers together.",
        samples: |view, _, page| page.sample(&[], view.names.private_max),
    },
    Fact {
        name: "quickack_clients_max",
        kind: Kind::Gauge,
        labels: "",
        help: "The most clients of all pools and workers together.",
        samples: |view, _, page| page.sample(&[], view.scoreboard.registry().process().clients_max),
    },
    Fact {
        name: "quickack_workers",
        kind: Kind::Gauge,
        labels: "",
        help: "Workers that there should be.",
        samples: |view, _, page| page.sample(&[], view.scoreboard.registry().process().workers),
    },
    Fact {
        name: "quickack_workers_serving",
        kind: Kind::Gauge,
        labels: "",
        help: "Workers that serve clients.",
        samples: |view, _, page| {
            page.sample(&[], (0..view.slots()).filter(|slot| view.serves(*slot)).count());
        },
    },
    Fact {
        name: "quickack_master_heartbeat_age_seconds",
        kind: Kind::Gauge,
        labels: "",
        help: "Time since the master's last turn; half a second at most while it works.",
        samples: |view, now_us, page| page.sample(&[], seconds(view.age_of_master(now_us))),
    },
    Fact {
        name: "quickack_worker_heartbeat_age_seconds",
        kind: Kind::Gauge,
        labels: "worker",
        help: "Time since the last turn of a worker that serves; a second at most while it works.",
        samples: |view, now_us, page| {
            for slot in (0..view.slots()).filter(|slot| view.serves(*slot)) {
                let age = seconds(view.age(slot, now_us));
                page.sample(&[("worker", &slot.to_string())], age);
            }
        },
    },
    Fact {
        name: "quickack_worker_restarts",
        kind: Kind::Counter,
        labels: "worker",
        help: "Times that the worker died or hung, and was started again.",
        samples: |view, _, page| {
            for (slot, deaths) in view.state.deaths.iter().enumerate() {
                page.sample(&[("worker", &slot.to_string())], deaths);
            }
        },
    },
    Fact {
        name: "quickack_http_restarts",
        kind: Kind::Counter,
        labels: "",
        help: "Times that the process that serves these figures died or hung, and was started \
               again.",
        samples: |view, _, page| page.sample(&[], view.state.http_deaths),
    },
    Fact {
        name: "quickack_log_lines_lost",
        kind: Kind::Counter,
        labels: "",
        help: "Lines of the log that could not be written.",
        samples: |view, _, page| page.sample(&[], view.state.log_lines_lost),
    },
    Fact {
        name: "quickack_access_log_lines_lost",
        kind: Kind::Counter,
        labels: "",
        help: "Lines of the access log that were dropped by workers, or could not be written.",
        samples: |view, _, page| {
            let registry = view.scoreboard.registry();
            page.sample(&[], registry.total(0, WorkerCounter::AccessLinesLost));
        },
    },
    Fact {
        name: "quickack_name_lookups_failed",
        kind: Kind::Counter,
        labels: "",
        help: "Look-ups of servers' names that had no answer, or one without an address.",
        samples: |view, _, page| page.sample(&[], view.state.names.lookups_failed),
    },
    Fact {
        name: "quickack_name_address_changes",
        kind: Kind::Counter,
        labels: "",
        help: "Servers that got another address, since their names did.",
        samples: |view, _, page| page.sample(&[], view.state.names.address_changes),
    },
    Fact {
        name: "quickack_lists_failed",
        kind: Kind::Counter,
        labels: "",
        help: "Lists of servers from elsewhere that could not be taken, or were empty or wrong.",
        samples: |view, _, page| page.sample(&[], view.state.names.lists_failed),
    },
    Fact {
        name: "quickack_list_changes",
        kind: Kind::Counter,
        labels: "",
        help: "Pools that got another list of servers from elsewhere.",
        samples: |view, _, page| page.sample(&[], view.state.names.list_changes),
    },
    Fact {
        name: "quickack_lists_waiting",
        kind: Kind::Gauge,
        labels: "",
        help: "Pools whose newest list of servers is not applied, because it would move keys.",
        samples: |view, _, page| page.sample(&[], view.state.names.lists_waiting),
    },
    Fact {
        name: "quickack_server_up",
        kind: Kind::Gauge,
        labels: "pool, server",
        help: "1 if the server is in its ring, or drains, and no worker sees it as down.",
        samples: |view, _, page| servers(view, page, |health| health == Health::Up),
    },
    Fact {
        name: "quickack_server_ejected",
        kind: Kind::Gauge,
        labels: "pool, server",
        help: "1 while the server is out of its ring.",
        samples: |view, _, page| {
            servers(view, page, |health| matches!(health, Health::Ejected { .. }));
        },
    },
    Fact {
        name: "quickack_server_admin_state",
        kind: Kind::Gauge,
        labels: "pool, server, state",
        help: "1 for the state that an operator has given the server: ready, drain or maint.",
        samples: |view, _, page| {
            for (pool, server) in view.servers() {
                let [of_pool, of_server] = of_server(pool, server);
                for state in AdminState::ALL {
                    let labels = [of_pool, of_server, ("state", state.word())];
                    page.sample(&labels, u8::from(server.admin == state.word()));
                }
            }
        },
    },
    Fact {
        name: "quickack_server_unresolved",
        kind: Kind::Gauge,
        labels: "pool, server",
        help: "1 while the server is down because its name does not resolve.",
        samples: |view, _, page| {
            for (pool, server) in view.servers() {
                page.sample(&of_server(pool, server), u8::from(!server.has_address));
            }
        },
    },
];

/// Writes 1 for each server whose health is asked for, and 0 for the others.
fn servers(view: &View, page: &mut Exposition, is: fn(Health) -> bool) {
    for (pool, server) in view.servers() {
        page.sample(&of_server(pool, server), u8::from(is(view.health(server))));
    }
}
