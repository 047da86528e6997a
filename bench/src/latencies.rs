//! Latencies of single calls.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies of calls, in nanoseconds up to a minute.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// Creates an account without calls.
    pub(crate) fn new() -> Self {
        let empty = Histogram::new_with_max(60_000_000_000, 3);
        Self(empty.unwrap_or_else(|_| unreachable!("these bounds are allowed")))
    }

    /// Records a call.
    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the calls of another account.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).unwrap_or_else(|_| unreachable!("all have the same bounds"));
    }

    /// Returns the number of calls.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns a percentile in µs; 100 is the longest call. It is 0 without calls.
    pub(crate) fn us(&self, percentile: f64) -> f64 {
        self.0.value_at_percentile(percentile) as f64 / 1e3
    }

    /// Returns a percentile in ms.
    pub(crate) fn ms(&self, percentile: f64) -> f64 {
        self.us(percentile) / 1e3
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<T: IntoIterator<Item = Duration>>(calls: T) -> Self {
        let mut latencies = Self::new();
        calls.into_iter().for_each(|took| latencies.record(took));
        latencies
    }
}
