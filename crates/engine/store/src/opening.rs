//! How a store was opened, and how far what the opening found is applied.

use std::fmt;
use std::time::Duration;

/// How a store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Opening {
    /// From the call to its end.
    pub took: Duration,
    /// The part of it that reading, checking and taking in the journal took, and making it durable.
    pub journal_read: Duration,
    /// Bytes of the journal that were kept.
    pub journal_bytes: u64,
    /// Commits that were found in it and are not synced.
    pub commits: u64,
    /// Pages that they change.
    pub pages: u64,
}

/// How far the application of what an opening found is.
///
/// Its `Display` is the line for a log: pages left, rate, time to go.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Pages left.
    pub left: u64,
    /// Pages in all.
    pub total: u64,
    /// Pages a second, since the start.
    pub rate: f64,
    /// How long it takes from now on, if it goes on so; not known at the start.
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
    fn progress_says_what_is_left_and_how_long_it_takes() {
        let line = |left| Progress::new(left, 1000, Duration::from_secs(2)).to_string();
        assert_eq!(line(1000), "recovery: 1000 of 1000 pages left, 0 pages/s");
        assert_eq!(line(250), "recovery: 250 of 1000 pages left, 375 pages/s, 0.7 s to go");
        assert_eq!(line(0), "recovery: 0 of 1000 pages left, 500 pages/s");
    }
}
