//! File systems that do not answer: how long to wait for them, when to report them, and how many may hang.

use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;

/// The time that a tick waits for one job.
pub(super) const JOB_WAIT_MAX: Duration = Duration::from_secs(2);
/// Time until the first report that a job does not come back, and the factor by which that time grows with
/// each report.
const HANG_REPORT_AFTER: Duration = Duration::from_secs(5);
const HANG_REPORT_FACTOR: u32 = 12;

/// A timer for a job that has not come back, and for its reports.
#[derive(Debug)]
pub(super) struct HangTimer {
    since: Instant,
    report_after: Duration,
    was_reported: bool,
}

impl HangTimer {
    pub(super) fn new(since: Instant) -> Self {
        Self { since, report_after: HANG_REPORT_AFTER, was_reported: false }
    }

    /// Returns how long the job has not come back.
    pub(super) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns whether a report is due now.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.time() >= self.report_after;
        if is_due {
            self.was_reported = true;
            self.report_after *= HANG_REPORT_FACTOR;
        }
        is_due
    }

    /// Returns whether it was reported; then its end is reported as well.
    pub(super) fn was_reported(&self) -> bool {
        self.was_reported
    }
}

/// Returns whether the limits on hung jobs, per party and in all, are reached.
pub(super) fn are_too_many(
    hung: impl Iterator<Item = Party>,
    party: Party,
    (of_party, of_all): (usize, usize),
) -> bool {
    let (own, all) = hung.fold((0, 0), |(own, all), other| (own + usize::from(other == party), all + 1));
    own >= of_party || all >= of_all
}
