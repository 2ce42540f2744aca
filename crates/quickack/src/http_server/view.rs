//! What this process knows of the proxy: the shared memory, and what the master has sent. The side
//! that hears the master writes it, the side that serves clients reads it.

use proxy::plan::AdminState;

use crate::ipc::Question;
use crate::ipc::http_view::{Names, PoolNames, ServerNames, State};
use crate::scoreboard::Scoreboard;
use crate::stats::{self, Health};

pub struct View {
    pub release: String,
    /// When the master started, in microseconds since 1970.
    pub started_unix_us: u64,
    pub scoreboard: Scoreboard,
    pub names: Names,
    pub state: State,
    /// Grows with each change of the names or of the state.
    pub version: u64,
    /// Questions that are to be asked; each is there once.
    pub questions: Vec<Question>,
    /// Answers that have come and were not looked at yet.
    pub answers: Vec<(Question, String)>,
}

impl View {
    pub fn new(release: String, started_unix_us: u64, scoreboard: Scoreboard) -> View {
        View {
            release,
            started_unix_us,
            scoreboard,
            names: Names::default(),
            state: State::default(),
            version: 0,
            questions: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Slots that have ever had a worker.
    pub fn slots(&self) -> usize {
        self.state.deaths.len()
    }

    /// All servers, each with its pool.
    pub fn servers(&self) -> impl Iterator<Item = (&PoolNames, &ServerNames)> {
        let pools = self.names.pools.iter();
        pools.flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)))
    }

    /// The state of a server: what the workers see, the master has decided, and somebody has set.
    pub fn health(&self, server: &ServerNames) -> Health {
        let admin = AdminState::parse(&server.admin).unwrap_or_default();
        stats::health(&self.scoreboard, server.id).under(admin)
    }

    /// How long ago a worker's last turn began, in microseconds.
    pub fn age(&self, slot: usize, now_us: u64) -> u64 {
        now_us.saturating_sub(self.scoreboard.beat_at(slot))
    }

    /// How long ago the master's last turn began, in microseconds.
    pub fn age_of_master(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.scoreboard.master_beat())
    }

    /// Whether a worker serves clients, as far as the master knows.
    pub fn serves(&self, slot: usize) -> bool {
        self.scoreboard.is_serving(slot)
    }
}
