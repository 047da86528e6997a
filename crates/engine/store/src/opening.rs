//! The statistics of an opening, and the progress of applying recovered changes.

use std::fmt;
use std::time::Duration;

/// The statistics of an opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Opening {
    /// Time from the call to its end.
    pub took: Duration,
    /// The part of that time for reading and checking the journal, taking in its content, and
    /// making it durable.
    pub journal_read: Duration,
    /// Bytes of the journal that the opening found behind the checkpoint LSN.
    pub journal_bytes: u64,
    /// Commits found in the journal that the data file does not have durably.
    pub commits: u64,
    /// Pages that these commits change.
    pub pages: u64,
}

/// Progress of applying what an opening found.
///
/// Its `Display` is a log line: pages left, rate, time to go.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Pages left.
    pub left: u64,
    /// Pages in all.
    pub total: u64,
    /// Pages per second since the start.
    pub rate: f64,
    /// The remaining time at this rate; unknown at the start.
    pub to_go: Option<Duration>,
}

impl Progress {
    pub(crate) fn new(left: u64, total: u64, since: Duration) -> Self {
        let rate = (total - left) as f64 / since.as_secs_f64().max(1e-9);
        let to_go =
            (total > left).then(|| Duration::try_from_secs_f64(left as f64 / rate).unwrap_or(Duration::MAX));
        Self { left, total, rate, to_go }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recovery: {} of {} pages left, {:.0} pages/s", self.left, self.total, self.rate)?;
        match self.to_go {
            Some(to_go) if self.left > 0 => write!(f, ", {:.1} s to go", to_go.as_secs_f64()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_the_remaining_bytes_and_time() {
        let line = |left| Progress::new(left, 1000, Duration::from_secs(2)).to_string();
        assert_eq!(line(1000), "recovery: 1000 of 1000 pages left, 0 pages/s");
        assert_eq!(line(250), "recovery: 250 of 1000 pages left, 375 pages/s, 0.7 s to go");
        assert_eq!(line(0), "recovery: 0 of 1000 pages left, 500 pages/s");
    }
}
