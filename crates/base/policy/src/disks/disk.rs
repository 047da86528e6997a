//! Measurements of a disk and its file system by `pagekeeper probe`: plain data for the guard, the
//! bulk writer and the page store, which then need not measure again.
//!
//! A measurement that could not be made is `None`. Rates hold for the machine and time of the
//! measurement. Ratios compare two alternating measurements and stay valid for longer.

use serde::{Deserialize, Serialize};

/// At or above this share of the full rate, the cost of leftover pages is within the noise.
const FREE_SHARE_MIN: f64 = 0.9;

/// The behaviour of one file system on one device.
///
/// ```
/// use pagekeeper_policy::{DepthProfile, DiskProfile};
/// let read = |depth, per_second, p50_us| DepthProfile { depth, per_second, p50_us, p99_us: p50_us };
/// let disk = DiskProfile {
///     reads: vec![read(1, 500.0, 2000.0), read(16, 8000.0, 2000.0), read(64, 8100.0, 7900.0)],
///     ..DiskProfile::default()
/// };
/// assert_eq!((disk.width(), disk.is_wide_but_slow()), (Some(16), true));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskProfile {
    /// The version of this format: [`DiskProfile::VERSION`].
    pub version: u32,
    /// Time of the measurement, in seconds since the epoch.
    pub measured_at: u64,
    /// The kernel release, as in uname(2).
    pub kernel: String,
    /// The file system type, as in `/proc/self/mountinfo`: `ext4`.
    pub file_system: String,
    /// The device of the file system, `st_dev` as "MAJOR:MINOR".
    pub device: String,
    /// The file system's ID: `f_fsid` of statfs(2), 16 hexadecimal digits. ext4 and btrfs derive it
    /// from their UUID, so it survives a mount elsewhere; XFS uses the device number.
    pub file_system_id: String,
    /// Size of the measured file in bytes. A device cache of this size may make the results too
    /// fast.
    #[serde(default)]
    pub file_bytes: u64,
    /// The kernel's read-ahead in bytes; `None` if unknown.
    pub read_ahead_bytes: Option<u64>,
    /// Bytes that become resident by one cold read of 4 KiB at a random offset.
    #[serde(default)]
    pub small_read_bytes: Option<u64>,
    /// Direct I/O; `None` if it is refused or served from the page cache.
    pub direct: Option<DirectProfile>,
    /// The cost of direct I/O while others use the page cache of the same file.
    pub mixed: Option<MixedProfile>,
    /// Uncached writes (`RWF_DONTCACHE`).
    pub uncached: UncachedProfile,
    /// The largest atomic write in bytes; `None` if no write is atomic.
    pub atomic_write_bytes_max: Option<u64>,
    /// The largest write that the device itself makes atomic, in bytes; `None` if there is none.
    /// The file system writes larger ones to another location, at a cost.
    #[serde(default)]
    pub atomic_in_place_bytes_max: Option<u64>,
    /// Random direct reads of 4 KiB at ascending queue depths.
    pub reads: Vec<DepthProfile>,
    /// Median of `fdatasync(2)` after appending one page, in microseconds.
    pub sync_us: Option<f64>,
    /// Median of `fdatasync(2)` after overwriting one page, which changes neither the file's size
    /// nor its layout, in microseconds.
    #[serde(default)]
    pub sync_overwrite_us: Option<f64>,
    /// Releasing clean pages, in microseconds per GiB.
    pub release_us_per_gib: Option<f64>,
    /// Latency of small writes beside a bulk writer.
    pub bulk: Option<BulkProfile>,
}

impl Default for DiskProfile {
    /// Returns the profile of an unknown disk: nothing is measured.
    fn default() -> Self {
        Self {
            version: Self::VERSION,
            measured_at: 0,
            kernel: String::new(),
            file_system: String::new(),
            device: String::new(),
            file_system_id: String::new(),
            file_bytes: 0,
            read_ahead_bytes: None,
            small_read_bytes: None,
            direct: None,
            mixed: None,
            uncached: UncachedProfile::default(),
            atomic_write_bytes_max: None,
            atomic_in_place_bytes_max: None,
            reads: Vec::new(),
            sync_us: None,
            sync_overwrite_us: None,
            release_us_per_gib: None,
            bulk: None,
        }
    }
}

/// The constraints of direct I/O, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectProfile {
    /// Alignment of memory.
    pub memory_alignment: u32,
    /// Alignment of offsets and lengths.
    pub offset_alignment: u32,
}

/// Rates of random direct I/O of 4 KiB while another user has the file in the page cache, as a
/// fraction of the undisturbed rate: 1 is no cost, 0.5 is half the rate.
///
/// Each value is the worse of one thread and eight. Beside a buffered reader or writer, the
/// undisturbed rate is measured beside the same load on another file, so its use of processors and
/// disk does not count. Three quarters of the rounds gave at most this value, so a value below 1 is
/// not noise. Values are capped at 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixedProfile {
    /// Reads, while a few unused pages of the file are resident.
    pub leftover_read: Option<f64>,
    /// Writes, while a few unused pages of the file are resident.
    pub leftover_write: Option<f64>,
    /// Reads, beside a buffered reader.
    pub buffered_reader_read: Option<f64>,
    /// Reads, beside a buffered writer.
    pub buffered_writer_read: Option<f64>,
    /// Writes, beside a buffered writer.
    pub buffered_writer_write: Option<f64>,
}

/// Whether uncached writes are accepted and leave nothing resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UncachedProfile {
    /// When appending.
    pub append: bool,
    /// When overwriting existing data.
    pub overwrite: bool,
}

/// Reads at one queue depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthProfile {
    /// The number of reads in flight.
    pub depth: u32,
    /// Reads completed per second.
    pub per_second: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// The 99th percentile of the latency, in microseconds.
    pub p99_us: f64,
}

/// Latency of small unsynced writes while bulk output goes to the same device: p99.9 in
/// microseconds, or p99 if fewer than 1000 were measured (`pagekeeper probe --quick`).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BulkProfile {
    /// Without bulk output.
    pub idle_us: f64,
    /// Beside buffered output.
    pub buffered_us: f64,
    /// Beside output that waits for its own writeback.
    pub paced_us: f64,
    /// Beside direct output; `None` without direct I/O.
    pub direct_us: Option<f64>,
    /// Beside uncached output that waits for its writeback; `None` without uncached writes.
    #[serde(default)]
    pub uncached_us: Option<f64>,
    /// Bulk output in bytes per second, of the fastest method that waits for the device.
    pub bytes_per_second: f64,
    /// Bytes per second of output that waits for its own writeback.
    #[serde(default)]
    pub paced_bytes_per_second: Option<f64>,
    /// Bytes per second of direct output.
    #[serde(default)]
    pub direct_bytes_per_second: Option<f64>,
    /// Bytes per second of uncached output.
    #[serde(default)]
    pub uncached_bytes_per_second: Option<f64>,
}

impl DiskProfile {
    /// The format version that this code writes, and the highest that it reads.
    pub const VERSION: u32 = 1;

    /// Returns the number of random reads that the disk serves in parallel: the smallest depth that
    /// reaches 90 % of the best rate.
    pub fn width(&self) -> Option<u32> {
        let best = self.reads.iter().map(|read| read.per_second).fold(0.0, f64::max);
        self.reads.iter().find(|read| read.per_second >= 0.9 * best).map(|read| read.depth)
    }

    /// Returns the median latency of a single read, in microseconds.
    pub fn read_us(&self) -> Option<f64> {
        self.reads.first().map(|read| read.p50_us)
    }

    /// Whether the disk is wide but slow: a single read takes at least 500 µs, and some depth
    /// reaches at least eight times the rate of depth 1.
    pub fn is_wide_but_slow(&self) -> bool {
        let Some(alone) = self.reads.first() else {
            return false;
        };
        let best = self.reads.iter().map(|read| read.per_second).fold(0.0, f64::max);
        alone.p50_us >= 500.0 && best >= 8.0 * alone.per_second
    }
}

/// The cost of leftover pages of a file in direct I/O.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Leftovers {
    /// Not measured.
    Unknown,
    /// They take memory and nothing else.
    Free,
    /// Direct I/O reaches only this share of its rate.
    Cost(f64),
}

impl Leftovers {
    /// Returns the cost that a profile shows: the worse of reads and writes.
    pub fn of(disk: Option<&DiskProfile>) -> Self {
        let Some(mixed) = disk.and_then(|disk| disk.mixed) else { return Self::Unknown };
        let ratios = [mixed.leftover_read, mixed.leftover_write];
        match ratios.iter().flatten().copied().min_by(f64::total_cmp) {
            Some(ratio) if ratio < FREE_SHARE_MIN => Self::Cost(ratio),
            // One of the two measurements has no clear result.
            _ if ratios.iter().any(Option::is_none) => Self::Unknown,
            _ => Self::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_reads(reads: &[(u32, f64, f64)]) -> DiskProfile {
        let of = |&(depth, per_second, p50_us)| DepthProfile { depth, per_second, p50_us, p99_us: p50_us };
        DiskProfile { reads: reads.iter().map(of).collect(), ..DiskProfile::default() }
    }

    #[test]
    fn a_disk_is_as_wide_as_the_least_depth_near_its_best() {
        let cloud = with_reads(&[
            (1, 500.0, 2000.0),
            (4, 2000.0, 2000.0),
            (16, 8000.0, 2000.0),
            (64, 8200.0, 7800.0),
        ]);
        assert_eq!((cloud.width(), cloud.is_wide_but_slow()), (Some(16), true));
        let fast = with_reads(&[(1, 30_000.0, 30.0), (4, 90_000.0, 40.0)]);
        assert_eq!((fast.width(), fast.is_wide_but_slow()), (Some(4), false));
        assert_eq!((with_reads(&[]).width(), with_reads(&[]).is_wide_but_slow()), (None, false));
    }

    #[test]
    fn leftovers_are_judged_by_the_measured_cost() {
        let of = |leftover_read, leftover_write| {
            let mixed = MixedProfile { leftover_read, leftover_write, ..MixedProfile::default() };
            Leftovers::of(Some(&DiskProfile { mixed: Some(mixed), ..DiskProfile::default() }))
        };
        assert_eq!(Leftovers::of(None), Leftovers::Unknown);
        assert_eq!(Leftovers::of(Some(&DiskProfile::default())), Leftovers::Unknown);
        assert_eq!(of(None, None), Leftovers::Unknown);
        assert_eq!((of(Some(0.95), Some(1.2)), of(Some(1.0), None)), (Leftovers::Free, Leftovers::Unknown));
        assert_eq!(of(None, Some(0.3)), Leftovers::Cost(0.3));
        assert_eq!(of(Some(1.0), Some(0.2)), Leftovers::Cost(0.2));
    }
}
