//! What clients ask about clients. The master asks all workers; this one asks it one thing at a
//! time, so that no crowd of clients makes more work than that.
//!
//! ```text
//!   Action::Inquire ─▶ waiting ─▶ Control::ask ─▶ master ─▶ every worker
//!   handle_told    ◀──────────── Command::Told ◀──┘
//! ```

use std::collections::VecDeque;

use proto::{ClientFilter, Inquiry, Told};
use proxy::{Asking, ConnId};

use super::Loop;
use crate::ipc::query::{Asked, Filter, Query};

/// What clients wait for.
#[derive(Default)]
pub(super) struct Inquiries {
    waiting: VecDeque<(ConnId, Asking)>,
    /// What the master has been asked, with its number.
    running: Option<(u64, ConnId)>,
    number: u64,
}

impl Loop<'_> {
    #[cold]
    pub(super) fn inquire(&mut self, client: ConnId, asking: Asking) {
        self.inquiries.waiting.push_back((client, asking));
        self.inquire_next();
    }

    /// Asks the master what the next client waits for. Clients that have gone wait for nothing.
    fn inquire_next(&mut self) {
        while self.inquiries.running.is_none()
            && let Some((client, asking)) = self.inquiries.waiting.pop_front()
        {
            if self.conns.find(client).is_none() {
                continue;
            }
            let Some(query) = query_of(asking) else {
                self.give_told(client, Ok(Told::default()));
                continue;
            };
            self.inquiries.number += 1;
            let number = self.inquiries.number;
            match self.control.ask(number, query) {
                Ok(()) => self.inquiries.running = Some((number, client)),
                Err(why) => self.give_told(client, Err(why)),
            }
        }
    }

    /// All workers have told.
    pub(super) fn take_told(&mut self, number: u64, told: Result<Told, String>) {
        let asked = self.inquiries.running.take_if(|(running, _)| *running == number);
        if let Some((_, client)) = asked {
            self.give_told(client, told);
        }
        self.inquire_next();
    }

    fn give_told(&mut self, client: ConnId, told: Result<Told, String>) {
        self.service.handle_told(client, told, self.now);
        // Its request is read again in a turn of its own.
        self.has_new_endpoints = true;
    }
}

/// Returns the question for all workers; none if no client is meant.
fn query_of(asking: Asking) -> Option<Query> {
    let Asking { inquiry, asker, pool, tenant } = asking;
    let (Inquiry::List(filter) | Inquiry::Kill(filter) | Inquiry::Unblock { filter, .. }) =
        &inquiry;
    let ClientFilter { ids, user, from, to, age_min_s, not_own, nobody } = filter.clone();
    if nobody {
        return None;
    }
    let age_min_us = age_min_s.saturating_mul(1_000_000);
    let asked = Asked { asker, not_own, from, to, age_min_us };
    let filter = Filter {
        ids,
        user,
        pool: tenant.is_none().then_some(pool),
        tenant,
        address: None,
        asked: Some(asked),
    };
    Some(match inquiry {
        Inquiry::Kill(_) => Query::Kill { filter },
        Inquiry::List(_) => Query::List { filter, best: None },
        Inquiry::Unblock { with_error, .. } => Query::Unblock { filter, with_error },
    })
}
