//! What the directives of a block set, before the rules that look at several of them at once.

use proxy::limits;
use proxy::plan::{OnFailure, PoolPlan, QuickAck};

use super::address::{Address, ServerLine};
use super::report::Place;

/// One pool while it is read. `None` is "not written", where that differs from the default.
pub struct PoolDraft {
    /// Directives that concern nothing else go straight into the plan.
    pub plan: PoolPlan,
    pub listen: Option<Address>,
    pub servers: Vec<ServerDraft>,
    /// 0 is no limit.
    pub client_connections: usize,
    pub backlog: i32,
    pub tcpkeepalive: bool,
    pub tcp_nodelay: bool,
    pub reuseport: bool,
    pub timeout: Option<u64>,
    pub timeout_connect: Option<u64>,
    pub timeout_queue: Option<u64>,
    pub timeout_reply: Option<u64>,
    pub auto_eject: Option<bool>,
    pub on_failure: Option<OnFailure>,
    pub quickack: Option<QuickAck>,
    pub server_quickack: Option<QuickAck>,
    pub memory: Option<usize>,
    pub redis: bool,
    pub redis_auth: bool,
}

/// A line under `servers:` and where it stands.
pub struct ServerDraft {
    pub line: ServerLine,
    pub place: Place,
}

/// The `global:` block while it is read.
pub struct GlobalDraft {
    pub memory_max: usize,
    pub clients_max: Option<usize>,
}

impl PoolDraft {
    pub fn new(name: &str) -> PoolDraft {
        PoolDraft {
            plan: PoolPlan::new(name, proto::PROTOCOLS[0], Vec::new()),
            listen: None,
            servers: Vec::new(),
            client_connections: 0,
            backlog: 512,
            tcpkeepalive: false,
            tcp_nodelay: true,
            reuseport: false,
            timeout: None,
            timeout_connect: None,
            timeout_queue: None,
            timeout_reply: None,
            auto_eject: None,
            on_failure: None,
            quickack: None,
            server_quickack: None,
            memory: None,
            redis: false,
            redis_auth: false,
        }
    }
}

impl GlobalDraft {
    pub fn new() -> GlobalDraft {
        GlobalDraft { memory_max: limits::MEMORY_DEFAULT, clients_max: None }
    }
}
