//! How long ticks took, in classes as Prometheus has them.

use std::time::Duration;

/// Where classes end, in seconds.
const ENDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Lengths of time by class.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Histogram {
    counts: [u64; ENDS.len() + 1],
    sum: f64,
}

impl Histogram {
    /// Counts one in.
    pub(super) fn add(&mut self, length: Duration) {
        let seconds = length.as_secs_f64();
        self.counts[ENDS.iter().take_while(|end| seconds > **end).count()] += 1;
        self.sum += seconds;
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them together, in seconds.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// The end of each class in seconds, the last being infinite, and how many are in it.
    pub(super) fn classes(&self) -> Vec<(f64, u64)> {
        ENDS.into_iter().chain([f64::INFINITY]).zip(self.counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_at_an_end_is_still_in_its_class() {
        let mut histogram = Histogram::default();
        for milliseconds in [1, 2, 5, 5000, 100_000] {
            histogram.add(Duration::from_millis(milliseconds));
        }
        let full: Vec<(f64, u64)> = histogram.classes().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(full, [(0.001, 1), (0.0025, 1), (0.005, 1), (5.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum() - 105.008).abs() < 1e-9);
    }
}
