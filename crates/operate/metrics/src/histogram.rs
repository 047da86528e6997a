//! The durations of ticks as a Prometheus histogram.

use std::time::Duration;

/// Upper bounds of the buckets in seconds.
const BUCKET_BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Durations by bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TickHistogram {
    counts: [u64; BUCKET_BOUNDS.len() + 1],
    sum: f64,
}

impl TickHistogram {
    /// Adds a duration.
    pub(crate) fn add(&mut self, length: Duration) {
        let seconds = length.as_secs_f64();
        self.counts[BUCKET_BOUNDS.iter().take_while(|end| seconds > **end).count()] += 1;
        self.sum += seconds;
    }

    /// Returns the number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns their sum in seconds.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns the upper bound of each bucket in seconds, the last being infinite, and its count.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        BUCKET_BOUNDS.into_iter().chain([f64::INFINITY]).zip(self.counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_at_an_end_is_still_in_its_class() {
        let mut histogram = TickHistogram::default();
        for milliseconds in [1, 2, 5, 5000, 100_000] {
            histogram.add(Duration::from_millis(milliseconds));
        }
        let full: Vec<(f64, u64)> = histogram.buckets().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(full, [(0.001, 1), (0.0025, 1), (0.005, 1), (5.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum() - 105.008).abs() < 1e-9);
    }
}
