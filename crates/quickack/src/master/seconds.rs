//! The master's seconds: at each whole second it notes what the histograms have more than a second
//! ago, for the latencies of the last seconds and minutes. Workers have no part in it.
//!
//! A second is one of Unix time as the master's start found it. A clock that is set later does not
//! move it.

use std::time::Duration;

use metrics::{Measured, Windows};

use super::Master;
use super::lifecycle::LOOK_EVERY;
use crate::log::Clocks;

pub struct Seconds {
    pub windows: Windows,
    /// Unix time minus the steady clock, in microseconds.
    offset_us: u64,
}

impl Seconds {
    pub fn new(clocks: Clocks) -> Seconds {
        let offset_us = clocks.unix_us.saturating_sub(clocks.clock_us);
        let mut seconds = Seconds { windows: Windows::new(0), offset_us };
        seconds.windows = Windows::new(seconds.at_us(clocks) / SECOND_US);
        seconds
    }

    /// Returns the time until the next half second begins, so that the turns that look at
    /// heartbeats also come at whole seconds.
    pub fn until_half(&self, clocks: Clocks) -> Duration {
        let half = LOOK_EVERY.as_micros() as u64;
        Duration::from_micros(half - self.at_us(clocks) % half)
    }

    /// A row is cleared, to be another pool's or server's.
    pub fn forget_row(&mut self, row: u32) {
        self.windows.forget_row(row);
    }

    fn at_us(&self, clocks: Clocks) -> u64 {
        clocks.clock_us + self.offset_us
    }
}

impl Master {
    /// Ends a second, if one has passed.
    pub(super) fn end_second(&mut self) {
        let second = self.seconds.at_us(Clocks::read()) / SECOND_US;
        let pools = self.running.ids.iter();
        let rows = pools.flat_map(|pool| {
            let servers = pool.servers.iter().map(|id| Measured::Server(*id));
            std::iter::once(Measured::Pool(pool.pool)).chain(servers)
        });
        let tenants = self.running.tenants.iter().map(|id| Measured::Tenant(*id));
        let rows = rows.chain(tenants);
        self.seconds.windows.end_slice(self.scoreboard.registry(), second, rows);
    }
}

const SECOND_US: u64 = 1_000_000;
