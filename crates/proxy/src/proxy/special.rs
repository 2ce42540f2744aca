//! Requests while some pool or tenant is paused, or looked at by MONITOR, or a client may go around
//! a link. Nobody comes here otherwise.

use std::rc::Rc;

use proto::{Class, Local};

use super::Proxy;
use crate::base::block::Block;
use crate::base::buffer::Source;
use crate::client::Frame;

impl Proxy {
    /// Ends a transaction that EXEC does not send.
    pub(super) fn drop_block(&mut self, frame: &Frame) {
        let counters = self.base.pools[frame.asks.pool()].counters;
        counters.add(metrics::PoolCounter::TransactionsRefused, 1);
        self.end_bound(frame.asks.id);
    }

    /// Holds a request if its client is paused. Commands about clients pass: one of them ends a
    /// pause.
    fn hold(&mut self, frame: &Frame) -> bool {
        let writes = match frame.request.class {
            Class::Local(Local::Clients | Local::Quit) => return false,
            Class::Local(Local::Execute) => {
                self.clients.queued(frame.asks.id).is_some_and(|queued| queued.writes)
            }
            class => class.is_update(),
        };
        self.clients.hold(&mut self.base, frame, writes)
    }

    /// Handles a request as `serve` does, unless it is held, and shows it to those who look.
    /// Returns how many bytes it used.
    #[cold]
    pub(super) fn serve_specially(
        &mut self,
        frame: &mut Frame,
        rest: Source<'_>,
        is_queued: bool,
        block: Option<(&Rc<Block>, usize)>,
    ) -> usize {
        if self.hold(frame) {
            return 0;
        }
        self.go_around(frame);
        let used = if is_queued { self.serve_queued(frame, rest) } else { None };
        let used = used.unwrap_or_else(|| self.serve(frame, rest, block));
        if used > 0 {
            let head = &rest.bytes[..frame.request.head as usize];
            self.clients.tap(&mut self.base, frame, head);
        }
        used
    }
}
