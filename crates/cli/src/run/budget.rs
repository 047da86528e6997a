//! How much the writers of one process may have unwritten at most: well under what the kernel lets be dirty, and a share of memory. They
//! take as much only where a disk needs it to be busy.
//!
//! Writers are slowed down from the middle between the two limits on (`domain_dirty_limits` and `balance_dirty_pages` of
//! `mm/page-writeback.c`), whoever dirtied the pages: so a process takes a quarter of that, and leaves the rest to others. Of a memory
//! cgroup with a limit, what it has in memory is somebody's hot set: there it takes a sixteenth.

use pagekeeper_kernel::pressure::{DirtyReport, DirtyThresholds, MemoryCgroup, SysRoots};

/// The least, in bytes: less would wait for each write by itself.
const MIN: u64 = 1 << 20;
/// The most, in bytes: a disk of 2 GB/s whose requests take 100 ms is busy with it.
const MAX: u64 = 256 << 20;

/// The budget under these limits, and in a memory cgroup of so many bytes.
pub(crate) fn budget(limits: DirtyThresholds, memory: Option<u64>) -> u64 {
    let middle = limits.background / 2 + limits.limit / 2;
    (middle / 4).min(memory.unwrap_or(u64::MAX) / 16).clamp(MIN, MAX)
}

/// The budget on this host now; the least where its limits can't be seen.
pub(crate) fn budget_here() -> u64 {
    let roots = SysRoots::default();
    let memory = MemoryCgroup::of(&roots, std::process::id()).ok().flatten();
    let memory = memory.and_then(|memory| memory.effective_limit);
    let report = DirtyReport::read(&roots);
    report.map_or(MIN, |report| budget(report.kernel_thresholds.unwrap_or(report.thresholds), memory))
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
            (64 << 20, 128 << 20, 24 << 20),
            (u64::MAX, u64::MAX, MAX),
        ] {
            let limits = DirtyThresholds { background, limit };
            assert_eq!(budget(limits, None), expected, "{background} {limit}");
            assert_eq!(budget(limits, Some(32 << 20)), expected.min(2 << 20), "{background} {limit}");
        }
    }

    #[test]
    fn this_host_has_one() {
        assert!((MIN..=MAX).contains(&budget_here()));
    }
}
