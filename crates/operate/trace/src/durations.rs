//! Statistics of durations: a count, a sum, and a histogram.

use std::time::Duration;

/// The number of classes of the histogram.
pub(super) const DURATION_CLASSES: usize = 24;

/// Statistics of the durations of one kind of event.
///
/// Durations are sorted into classes that each end at twice the end of the one before: 2 µs, 4 µs …
/// 8.4 s, and one class for everything longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurationStats {
    pub(super) count: u64,
    pub(super) total: Duration,
    pub(super) longest: Duration,
    pub(super) classes: [u64; DURATION_CLASSES],
}

impl DurationStats {
    /// Returns the count.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Returns the longest one, exactly.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns the mean; `None` if the count is 0.
    pub fn mean(&self) -> Option<Duration> {
        let nanoseconds = self.total.as_nanos().checked_div(u128::from(self.count))?;
        Some(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }

    /// Returns a duration that the share `quantile` (0 to 1) of them did not exceed; it is too long
    /// by less than a factor of two. `None` if the count is 0.
    ///
    /// ```
    /// use pagekeeper_trace::DurationStats;
    /// assert_eq!(DurationStats::default().at_most(0.99), None);
    /// ```
    pub fn at_most(&self, quantile: f64) -> Option<Duration> {
        let all: u64 = self.classes.iter().sum();
        if all == 0 {
            return None;
        }
        let wanted = quantile.clamp(0.0, 1.0) * all as f64;
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if *count > 0 && seen as f64 >= wanted {
                return Some(end_of(class).map_or(self.longest, |end| end.min(self.longest)));
            }
        }
        Some(self.longest)
    }

    /// Counts one duration.
    pub(super) fn add(&mut self, length: Duration) {
        self.count += 1;
        self.total = self.total.saturating_add(length);
        self.longest = self.longest.max(length);
        self.classes[class_of(length)] += 1;
    }

    /// Adds other statistics to these.
    pub fn merge(&mut self, others: &Self) {
        self.count += others.count;
        self.total = self.total.saturating_add(others.total);
        self.longest = self.longest.max(others.longest);
        for (to, from) in self.classes.iter_mut().zip(others.classes) {
            *to += from;
        }
    }
}

impl FromIterator<Duration> for DurationStats {
    /// ```
    /// use pagekeeper_trace::DurationStats;
    /// use std::time::Duration;
    /// let durations: DurationStats = [1, 3].map(Duration::from_millis).into_iter().collect();
    /// assert_eq!((durations.count(), durations.total()), (2, Duration::from_millis(4)));
    /// ```
    fn from_iter<I: IntoIterator<Item = Duration>>(lengths: I) -> Self {
        let mut durations = Self::default();
        lengths.into_iter().for_each(|length| durations.add(length));
        durations
    }
}

/// Returns the class of a duration. Class `i` is from 2^i up to 2^(i+1) microseconds; the first
/// begins at 0, the last has no end.
fn class_of(length: Duration) -> usize {
    let microseconds = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
    microseconds.checked_ilog2().map_or(0, |class| (class as usize).min(DURATION_CLASSES - 1))
}

fn end_of(class: usize) -> Option<Duration> {
    (class < DURATION_CLASSES - 1).then(|| Duration::from_micros(2 << class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_fall_into_their_classes() {
        for (microseconds, class) in
            [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (1000, 9), (1024, 10), (8_388_607, 22), (8_388_608, 23)]
        {
            assert_eq!(class_of(Duration::from_micros(microseconds)), class, "{microseconds}");
        }
        assert_eq!(class_of(Duration::MAX), DURATION_CLASSES - 1);
    }

    #[test]
    fn quantiles_are_ends_of_classes_and_never_past_the_longest() {
        let mut durations = DurationStats::default();
        (0..99).for_each(|_| durations.add(Duration::from_micros(3)));
        durations.add(Duration::from_millis(50));
        assert_eq!(durations.at_most(0.5), Some(Duration::from_micros(4)));
        assert_eq!(durations.at_most(0.99), Some(Duration::from_micros(4)));
        assert_eq!(durations.at_most(1.0), Some(Duration::from_millis(50)));
        assert_eq!(durations.mean(), Some(Duration::from_nanos(502_970)));
        let mut twice = durations;
        twice.merge(&durations);
        assert_eq!(
            (twice.count(), twice.total(), twice.longest()),
            (200, durations.total() * 2, durations.longest())
        );
        assert_eq!(twice.at_most(0.99), durations.at_most(0.99));
    }
}
