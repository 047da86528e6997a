//! Reports that were already made, so that each is made once.
//!
//! Invariants of the warnings ([`WarningDedup`]):
//! 1. The record belongs to its directory or process. A database that is started again is warned of
//!    again. Another user's directories do not displace its warnings, and neither does a directory
//!    of the same path in another namespace.
//! 2. It holds at most `WARNINGS_MAX` warnings. The next one is replaced by a single notice that
//!    there are more.

use std::collections::HashSet;
use std::hash::Hash;

/// Maximum number of warnings given for one directory or process. A log has a handful of kinds of
/// warnings, each in a few variants.
const WARNINGS_MAX: usize = 32;

/// The warnings given so far, and one more once there were too many.
#[derive(Debug, Default)]
pub struct WarningDedup(HashSet<String>);

impl WarningDedup {
    /// Returns what is to be reported for a warning; `None` if it was given before.
    pub fn news(&mut self, warning: String) -> Option<String> {
        if self.0.len() > WARNINGS_MAX || !self.0.insert(warning.clone()) {
            return None;
        }
        let is_one_too_many = self.0.len() > WARNINGS_MAX;
        let notice = || {
            format!(
                "there are more than {WARNINGS_MAX} different warnings here: no further ones are reported"
            )
        };
        Some(if is_one_too_many { notice() } else { warning })
    }
}

/// The most reports of one kind that are remembered, so that each is made once.
const REPORTS_REMEMBERED: usize = 10_000;

/// Reports of one kind that were made.
#[derive(Debug)]
pub struct ReportOnce<T>(HashSet<T>);

impl<T> Default for ReportOnce<T> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<T: Eq + Hash> ReportOnce<T> {
    /// Returns whether this is to be reported: it was not yet, and can be remembered.
    pub fn is_news(&mut self, report: T) -> bool {
        self.0.len() < REPORTS_REMEMBERED && self.0.insert(report)
    }

    /// Forgets all, so that each is made once more.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_comes_once_and_so_does_that_there_are_too_many() {
        let mut warned = WarningDedup::default();
        assert_eq!(warned.news("recycled".to_owned()).as_deref(), Some("recycled"));
        assert_eq!(warned.news("recycled".to_owned()), None);
        let all = (0..3 * WARNINGS_MAX).filter_map(|number| warned.news(number.to_string()));
        let all: Vec<String> = all.collect();
        assert_eq!(all.len(), WARNINGS_MAX, "one of them was the first, and the last is about the rest");
        assert!(all[WARNINGS_MAX - 1].contains("no further ones are reported"), "{all:?}");
    }
}
