//! File systems that do not answer: how long they are waited for, when that is reported, and how many may hang.

use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;

/// How long a tick waits for one job.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// From when on it is reported that it does not come back, and after how many times that again.
const REPORTED: Duration = Duration::from_secs(5);
const REPORTED_AGAIN: u32 = 12;

/// Since when a job has not come back, and when that is to be reported.
#[derive(Debug)]
pub(super) struct Silence {
    since: Instant,
    report_after: Duration,
    was_reported: bool,
}

impl Silence {
    pub(super) fn new(since: Instant) -> Self {
        Self { since, report_after: REPORTED, was_reported: false }
    }

    /// For how long.
    pub(super) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether it is to be reported now.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.time() >= self.report_after;
        if is_due {
            self.was_reported = true;
            self.report_after *= REPORTED_AGAIN;
        }
        is_due
    }

    /// Whether it was reported, so that its end is, too.
    pub(super) fn was_reported(&self) -> bool {
        self.was_reported
    }
}

/// Whether as many jobs hang as may: of one user, and of all.
pub(super) fn are_too_many(
    hung: impl Iterator<Item = Party>,
    party: Party,
    (of_party, of_all): (usize, usize),
) -> bool {
    let (own, all) = hung.fold((0, 0), |(own, all), other| (own + usize::from(other == party), all + 1));
    own >= of_party || all >= of_all
}
