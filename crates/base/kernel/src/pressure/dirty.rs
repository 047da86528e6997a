//! The kernel's limits of dirty pages: its parameters, and the thresholds that follow from them
//! now.
//!
//! Sources: `Documentation/admin-guide/sysctl/vm.rst`, and `domain_dirty_limits` and
//! `global_dirtyable_memory` in `mm/page-writeback.c`. Each limit has a ratio and a bytes form.
//! **Setting one form sets the other to 0**, so only one of each pair is ever in force. Ratios
//! apply to *dirtyable* memory (free memory plus file pages less the kernel's reserves), not to all
//! memory, so the thresholds move with every allocation.
//!
//! Not included: tasks of real-time priority get at least a quarter more, single disks get only a
//! share (see [`BackingDevice`](super::BackingDevice)), and a memory cgroup of version 2 has its
//! own thresholds.

use super::{MemInfo, SysRoots, VmStat, Watermarks, read_number};
use crate::process::malformed;
use crate::{Result, page_size};

/// The form of a limit that is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirtyLimit {
    /// Percent of dirtyable memory, 0 to 100.
    Ratio(u64),
    /// Bytes.
    Bytes(u64),
}

/// The kernel's current parameters for dirty memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyParameters {
    /// Start of background writeback: `dirty_background_ratio` or `dirty_background_bytes`.
    pub background: DirtyLimit,
    /// Limit at which writers wait: `dirty_ratio` or `dirty_bytes`.
    pub limit: DirtyLimit,
    /// Minimum age of a dirty page for periodic writeback, in 1/100 s.
    pub expire_centisecs: u64,
    /// Interval of the periodic writeback, in 1/100 s; 0 is never.
    pub writeback_centisecs: u64,
}

/// The thresholds that follow from the parameters, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyThresholds {
    /// Start of background writeback.
    pub background: u64,
    /// Limit at which writers wait. They are slowed down from the midpoint between the two on.
    pub limit: u64,
}

/// The parameters, the thresholds and the dirty memory in one snapshot. `Display` formats it for an
/// operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyReport {
    /// The parameters in force.
    pub parameters: DirtyParameters,
    /// The dirtyable memory that ratios apply to, in bytes.
    pub dirtyable: u64,
    /// The thresholds, computed as the kernel does.
    pub thresholds: DirtyThresholds,
    /// The kernel's own thresholds, if it shows them.
    pub kernel_thresholds: Option<DirtyThresholds>,
    /// Dirty memory in bytes.
    pub dirty: u64,
    /// Memory under writeback in bytes; it counts against the limit too.
    pub writeback: u64,
}

impl DirtyParameters {
    /// Reads `/proc/sys/vm/dirty_*`.
    pub fn read(roots: &SysRoots) -> Result<Self> {
        let read = |name: &str| read_number(&roots.proc_file("sys/vm").join(name));
        let pair = |ratio: &str, bytes: &str| -> Result<DirtyLimit> {
            Ok(match read(bytes)? {
                0 => DirtyLimit::Ratio(read(ratio)?),
                bytes => DirtyLimit::Bytes(bytes),
            })
        };
        Ok(Self {
            background: pair("dirty_background_ratio", "dirty_background_bytes")?,
            limit: pair("dirty_ratio", "dirty_bytes")?,
            expire_centisecs: read("dirty_expire_centisecs")?,
            writeback_centisecs: read("dirty_writeback_centisecs")?,
        })
    }

    /// Returns the thresholds of these parameters with `dirtyable` bytes of dirtyable memory.
    ///
    /// A background limit that is not below the other counts as half of it.
    ///
    /// ```
    /// use pagekeeper_kernel::pressure::{DirtyReport, DirtyLimit, SysRoots};
    /// let now = DirtyReport::read(&SysRoots::default())?;
    /// let mut raised = now.parameters;
    /// raised.limit = DirtyLimit::Ratio(50);
    /// assert!(raised.thresholds(now.dirtyable).limit > 0);
    /// # Ok::<(), pagekeeper_kernel::Error>(())
    /// ```
    pub fn thresholds(&self, dirtyable: u64) -> DirtyThresholds {
        // As in the kernel: in pages, the ratio in 1/PAGE_SIZE, limits below 2^32 pages.
        let page = u128::from(page_size());
        let available = u128::from(dirtyable) / page;
        let pages = |limit: DirtyLimit| match limit {
            DirtyLimit::Ratio(percent) => u128::from(percent) * page / 100 * available / page,
            DirtyLimit::Bytes(bytes) => u128::from(bytes).div_ceil(page),
        };
        let limit = pages(self.limit).min(u128::from(u32::MAX));
        let background = pages(self.background);
        let background = if background >= limit { limit / 2 } else { background };
        let bytes = |pages: u128| u64::try_from(pages * page).unwrap_or(u64::MAX);
        DirtyThresholds { background: bytes(background), limit: bytes(limit) }
    }
}

impl DirtyReport {
    /// Reads the parameters and computes the current thresholds.
    pub fn read(roots: &SysRoots) -> Result<Self> {
        let parameters = DirtyParameters::read(roots)?;
        let reserve = Watermarks::read(roots)?.reserve;
        let memory = MemInfo::read(roots)?;
        let vmstat = VmStat::read(roots)?;
        let pages = |name: &str| {
            vmstat
                .get(name)
                .map(|pages| pages.saturating_mul(page_size()))
                .ok_or_else(|| malformed(&roots.proc_file("vmstat"), name))
        };
        // Both are the same figure, with two exceptions: kernels that initialise memory late count
        // it only in the first, and containers may be shown their own `meminfo`.
        let free = memory.free.max(pages("nr_free_pages")?);
        // On 32-bit machines high memory is excluded as well; there this is too high.
        let file = pages("nr_inactive_file")?.saturating_add(pages("nr_active_file")?);
        let dirtyable = free.saturating_sub(reserve).saturating_add(file).saturating_add(page_size());
        let kernel_thresholds = vmstat.dirty_background_threshold().zip(vmstat.dirty_threshold());
        Ok(Self {
            parameters,
            dirtyable,
            thresholds: parameters.thresholds(dirtyable),
            kernel_thresholds: kernel_thresholds
                .map(|(background, limit)| DirtyThresholds { background, limit }),
            dirty: pages("nr_dirty")?,
            writeback: pages("nr_writeback")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn parameters(background: DirtyLimit, limit: DirtyLimit) -> DirtyParameters {
        DirtyParameters { background, limit, expire_centisecs: 3000, writeback_centisecs: 500 }
    }

    #[test]
    fn the_kernels_own_figures_are_met_within_two_percent() {
        let near = |computed: u64, kernel: u64| computed.abs_diff(kernel) <= kernel / 50;
        // Free memory is read a moment before the kernel's figures, and another process may
        // allocate a lot in between: some attempts are allowed.
        let met = (0..100_u64).any(|attempt| {
            std::thread::sleep(std::time::Duration::from_millis(attempt.min(50)));
            let report = DirtyReport::read(&SysRoots::default()).unwrap();
            let kernel = report.kernel_thresholds.expect("vmstat shows thresholds since Linux 2.6.37");
            near(report.thresholds.background, kernel.background)
                && near(report.thresholds.limit, kernel.limit)
        });
        assert!(met, "{:?}", DirtyReport::read(&SysRoots::default()).unwrap());
    }

    #[test]
    fn bytes_win_over_a_ratio() {
        let vm = |name: &'static str, value: &'static str| (format!("proc/sys/vm/dirty_{name}"), value);
        let read = |values: [(String, &str); 6]| {
            let values: Vec<(&str, &str)> =
                values.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            let (_tree, roots) = tree(&values);
            DirtyParameters::read(&roots)
        };
        let found = read([
            vm("background_ratio", "0\n"),
            vm("background_bytes", "8388608\n"),
            vm("ratio", "0\n"),
            vm("bytes", "0\n"),
            vm("expire_centisecs", "3000\n"),
            vm("writeback_centisecs", "500\n"),
        ]);
        // A ratio of 0 is in force like any other.
        assert_eq!(found.unwrap(), parameters(DirtyLimit::Bytes(8 << 20), DirtyLimit::Ratio(0)));
        let error = read([
            vm("background_ratio", "10\n"),
            vm("background_bytes", "0\n"),
            vm("ratio", "twenty\n"),
            vm("bytes", "0\n"),
            vm("expire_centisecs", "3000\n"),
            vm("writeback_centisecs", "500\n"),
        ]);
        assert!(error.unwrap_err().to_string().contains("twenty"));
    }

    #[test]
    fn thresholds_as_the_kernel_rounds_them() {
        let page = page_size();
        let ratios = parameters(DirtyLimit::Ratio(10), DirtyLimit::Ratio(20)).thresholds(GIB);
        // The kernel computes 10 % as 409/4096.
        assert_eq!(ratios.background, page * 10 / 100 * (GIB / page) / page * page);
        assert!(ratios.limit.abs_diff(GIB / 5) < GIB / 1000);
        let bytes = parameters(DirtyLimit::Bytes(1), DirtyLimit::Bytes(page + 1)).thresholds(GIB);
        assert_eq!((bytes.background, bytes.limit), (page, 2 * page));
    }

    #[test]
    fn a_background_limit_not_below_the_other_is_half_of_it() {
        let page = page_size();
        for background in [DirtyLimit::Bytes(10 * page), DirtyLimit::Bytes(11 * page), DirtyLimit::Ratio(50)]
        {
            let found = parameters(background, DirtyLimit::Bytes(10 * page)).thresholds(GIB);
            assert_eq!((found.background, found.limit), (5 * page, 10 * page));
        }
        let huge = parameters(DirtyLimit::Bytes(u64::MAX), DirtyLimit::Bytes(u64::MAX)).thresholds(GIB);
        assert_eq!(huge.limit, u64::from(u32::MAX) * page);
    }

    #[test]
    fn a_whole_report_from_files() {
        let vmstat =
            "nr_free_pages 1000\nnr_active_file 500\nnr_inactive_file 700\nnr_dirty 3\nnr_writeback 1\n";
        let page = page_size();
        let meminfo = |free: u64| {
            "MemTotal MemAvailable Buffers Cached Dirty Writeback Shmem Mapped Active(file) Inactive(file) Mlocked \
             SReclaimable SwapTotal SwapFree SwapCached"
                .split_ascii_whitespace()
                .map(|name| format!("{name}: 0 kB\n"))
                .chain([format!("MemFree: {} kB\n", free * page / 1024)])
                .collect::<String>()
        };
        let report = |meminfo: &str, vmstat: &str| {
            let (_tree, roots) = tree(&[
                ("proc/sys/vm/dirty_background_ratio", "10"),
                ("proc/sys/vm/dirty_background_bytes", "0"),
                ("proc/sys/vm/dirty_ratio", "20"),
                ("proc/sys/vm/dirty_bytes", "0"),
                ("proc/sys/vm/dirty_expire_centisecs", "3000"),
                ("proc/sys/vm/dirty_writeback_centisecs", "0"),
                ("proc/zoneinfo", "Node 0, zone DMA\n min 10\n low 20\n high 30\n managed 9000\n"),
                ("proc/meminfo", meminfo),
                ("proc/vmstat", vmstat),
            ]);
            DirtyReport::read(&roots)
        };
        let found = report(&meminfo(1000), vmstat).unwrap();
        assert_eq!(found.dirtyable, (1000 - 30 + 500 + 700 + 1) * page);
        assert_eq!((found.dirty, found.writeback, found.kernel_thresholds), (3 * page, page, None));
        assert_eq!(found.parameters.writeback_centisecs, 0);
        // Memory that is initialised late is free, too.
        assert_eq!(report(&meminfo(1100), vmstat).unwrap().dirtyable, found.dirtyable + 100 * page);
        assert_eq!(report(&meminfo(1), vmstat).unwrap().dirtyable, found.dirtyable);
        let error = report(&meminfo(1000), "nr_free_pages 1000\n").unwrap_err();
        assert!(error.to_string().contains("nr_inactive_file"), "{error}");
    }
}
