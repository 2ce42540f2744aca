//! The generator's counters: requests answered, by kind, and their latencies.

use hdrhistogram::Histogram;

/// Counts and latencies of one stretch of load.
pub struct Tally {
    /// Gets answered, each counted once for any number of keys.
    pub gets: u64,
    /// Keys of the answered gets.
    pub get_keys: u64,
    /// Sets answered correctly.
    pub sets: u64,
    /// Pings answered.
    pub pings: u64,
    /// Keys not found.
    pub misses: u64,
    /// Requests with an unexpected answer.
    pub errors: u64,
    /// The first such answer.
    pub first_error: Option<String>,
    /// Requests answered while `recording`.
    pub recorded: u64,
    /// Nanoseconds from due time (open loop) or from the write (closed loop) to the whole reply.
    pub latency_ns: Histogram<u64>,
    /// Nanoseconds from the write to the whole reply.
    pub service_ns: Histogram<u64>,
    /// Replies enter the histograms.
    pub recording: bool,
}

impl Tally {
    pub fn new() -> Self {
        // The longest wait of a late request in a long open loop.
        let two_hours_ns = 7_200_000_000_000;
        let empty = Histogram::new_with_bounds(1000, two_hours_ns, 3);
        let empty = empty.expect("three digits between a microsecond and two hours are legal");
        Tally {
            gets: 0,
            get_keys: 0,
            sets: 0,
            pings: 0,
            misses: 0,
            errors: 0,
            first_error: None,
            recorded: 0,
            latency_ns: empty.clone(),
            service_ns: empty,
            recording: false,
        }
    }

    pub fn requests(&self) -> u64 {
        self.gets + self.sets + self.pings + self.errors
    }

    #[inline]
    pub fn record(&mut self, due_ns: u64, sent_ns: u64, now_ns: u64) {
        if !self.recording {
            return;
        }
        self.recorded += 1;
        self.latency_ns.saturating_record(now_ns - due_ns);
        if due_ns != sent_ns {
            self.service_ns.saturating_record(now_ns - sent_ns);
        }
    }

    pub fn error(&mut self, line: &[u8]) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| String::from_utf8_lossy(line).trim_end().into());
    }
}

impl Default for Tally {
    fn default() -> Self {
        Tally::new()
    }
}
