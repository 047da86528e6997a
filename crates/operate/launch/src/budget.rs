//! The limit of unwritten bytes for the writers of one process: well under what the kernel allows
//! to be dirty, and a share of memory. They use that much only if a disk needs it to stay busy.
//!
//! The kernel slows writers down from the midpoint between its two limits on, whoever dirtied the
//! pages (`domain_dirty_limits` and `balance_dirty_pages` in `mm/page-writeback.c`). So a process
//! takes a quarter of that, and leaves the rest to others. In a memory cgroup with a limit, its
//! memory is somebody's hot set: there a process takes a sixteenth.

use pagekeeper_kernel::pressure::{DirtyReport, DirtyThresholds, MemoryCgroup, SysRoots};

/// The minimum in bytes: less would wait for each write individually.
const BUDGET_BYTES_MIN: u64 = 1 << 20;
/// The maximum in bytes: it keeps a disk of 2 GB/s busy whose requests take 100 ms.
const BUDGET_BYTES_MAX: u64 = 256 << 20;

/// Returns the budget under these limits, and in a memory cgroup of `memory` bytes.
pub(crate) fn budget(limits: DirtyThresholds, memory: Option<u64>) -> u64 {
    let middle = limits.background / 2 + limits.limit / 2;
    (middle / 4).min(memory.unwrap_or(u64::MAX) / 16).clamp(BUDGET_BYTES_MIN, BUDGET_BYTES_MAX)
}

/// Returns the current budget on this host; the minimum if its limits can't be read.
pub(crate) fn budget_here() -> u64 {
    let roots = SysRoots::default();
    let memory = MemoryCgroup::of(&roots, std::process::id()).ok().flatten();
    let memory = memory.and_then(|memory| memory.effective_limit);
    let report = DirtyReport::read(&roots);
    report.map_or(BUDGET_BYTES_MIN, |report| {
        budget(report.kernel_thresholds.unwrap_or(report.thresholds), memory)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_well_under_the_middle_of_the_limits() {
        for (background, limit, expected) in [
            (0, 0, BUDGET_BYTES_MIN),
            (1 << 20, 2 << 20, BUDGET_BYTES_MIN),
            (8 << 20, 16 << 20, 3 << 20),
            (64 << 20, 128 << 20, 24 << 20),
            (u64::MAX, u64::MAX, BUDGET_BYTES_MAX),
        ] {
            let limits = DirtyThresholds { background, limit };
            assert_eq!(budget(limits, None), expected, "{background} {limit}");
            assert_eq!(budget(limits, Some(32 << 20)), expected.min(2 << 20), "{background} {limit}");
        }
    }

    #[test]
    fn this_host_has_one() {
        assert!((BUDGET_BYTES_MIN..=BUDGET_BYTES_MAX).contains(&budget_here()));
    }
}
