//! How much the writers of one process may have unwritten: well under what the kernel lets be dirty.
//!
//! Writers are slowed down from the middle between the two limits on (`domain_dirty_limits` and `balance_dirty_pages` of
//! `mm/page-writeback.c`), whoever dirtied the pages: so a process takes a quarter of that, and leaves the rest to others.

use pagekeeper_kernel::pressure::{DirtyReport, DirtyThresholds, SysRoots};

/// The least, in bytes: less would wait for each write by itself.
const MIN: u64 = 1 << 20;
/// The most, in bytes: more gains nothing, since a disk is busy with less.
const MAX: u64 = 8 << 20;

/// The budget under these limits, in bytes.
pub(crate) fn budget(limits: DirtyThresholds) -> u64 {
    let middle = limits.background / 2 + limits.limit / 2;
    (middle / 4).clamp(MIN, MAX)
}

/// The budget on this host now; the least where its limits can't be seen.
pub(crate) fn budget_here() -> u64 {
    let report = DirtyReport::read(&SysRoots::default());
    report.map_or(MIN, |report| budget(report.kernel_thresholds.unwrap_or(report.thresholds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_well_under_the_middle_of_the_limits() {
        for (background, limit, expected) in [
            (0, 0, MIN),
            (1 << 20, 2 << 20, MIN),
            (8 << 20, 16 << 20, 3 << 20),
            (64 << 20, 128 << 20, MAX),
            (u64::MAX, u64::MAX, MAX),
        ] {
            assert_eq!(budget(DirtyThresholds { background, limit }), expected, "{background} {limit}");
        }
    }

    #[test]
    fn this_host_has_one() {
        assert!((MIN..=MAX).contains(&budget_here()));
    }
}
