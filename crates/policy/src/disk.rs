//! What a disk and the file system on it do, as `pagekeeper probe` measured it: plain data that the guard, the bulk
//! writer and the page store can be given instead of finding it out again.
//!
//! Invariants: what could not be measured is `None`. Rates are of the machine and the hour of the measurement; ratios
//! are of two things measured in turn and hold longer.

use serde::{Deserialize, Serialize};

/// What one file system does on one device.
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
    /// When it was measured, in seconds of the epoch.
    pub measured_at: u64,
    /// The kernel that it was measured on, as uname(2) has it.
    pub kernel: String,
    /// The kind of file system, as `/proc/self/mountinfo` has it: `ext4`.
    pub file_system: String,
    /// The device of the file system, "MAJOR:MINOR" of `st_dev`.
    pub device: String,
    /// The file system's own number: `f_fsid` of statfs(2), 16 hexadecimal digits. Of ext4 and btrfs it is made of their
    /// UUID and stays when they are mounted elsewhere; of XFS it is the device's number.
    pub file_system_id: String,
    /// Bytes of the file that was measured on: what a device caches of so much may be fast.
    #[serde(default)]
    pub file_bytes: u64,
    /// Bytes that the kernel reads ahead; `None` if unknown.
    pub read_ahead_bytes: Option<u64>,
    /// Bytes that one cold read of 4 KiB at a random place makes resident.
    #[serde(default)]
    pub small_read_bytes: Option<u64>,
    /// Direct I/O; `None` where it is refused, or answered from the page cache.
    pub direct: Option<DirectProfile>,
    /// What it costs when others use the page cache of a file that is read and written directly.
    pub mixed: Option<MixedProfile>,
    /// Uncached writes (`RWF_DONTCACHE`).
    pub uncached: UncachedProfile,
    /// The largest write that is atomic, in bytes; `None` where none is.
    pub atomic_write_bytes_max: Option<u64>,
    /// The largest write that is atomic by the device's own doing, in bytes: larger ones the file system writes to
    /// another place, at a cost. `None` where none is.
    #[serde(default)]
    pub atomic_in_place_bytes_max: Option<u64>,
    /// Random direct reads of 4 KiB, by how many are in flight, ascending.
    pub reads: Vec<DepthProfile>,
    /// `fdatasync(2)` after one page was appended, the median in microseconds.
    pub sync_us: Option<f64>,
    /// The same after one page was written over, where nothing of the file's length or place changes.
    #[serde(default)]
    pub sync_overwrite_us: Option<f64>,
    /// Releasing clean pages, in microseconds per GiB.
    pub release_us_per_gib: Option<f64>,
    /// Small writes beside a bulk writer.
    pub bulk: Option<BulkProfile>,
}

impl Default for DiskProfile {
    /// Of an unknown disk: nothing measured.
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

/// What direct I/O has to keep to, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectProfile {
    /// Alignment of memory.
    pub memory_alignment: u32,
    /// Alignment of offsets and lengths.
    pub offset_alignment: u32,
}

/// Rates of random direct I/O of 4 KiB while something else uses the file's page cache, as a share of the rate without:
/// 1 is no cost, 0.5 is half the rate. The worse of one thread and eight. Beside a buffered reader or writer, "without" is
/// beside the same on another file: what they take of processors and disk is not counted. It was no better than this in three
/// quarters of the rounds, and never is above 1: so what is below is no chance.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixedProfile {
    /// Reads, while a few pages are resident that nobody uses.
    pub leftover_read: Option<f64>,
    /// Writes, while a few pages are resident that nobody uses.
    pub leftover_write: Option<f64>,
    /// Reads, beside a buffered reader.
    pub buffered_reader_read: Option<f64>,
    /// Reads, beside a buffered writer.
    pub buffered_writer_read: Option<f64>,
    /// Writes, beside a buffered writer.
    pub buffered_writer_write: Option<f64>,
}

/// Whether uncached writes are taken, and leave nothing resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UncachedProfile {
    /// Appending.
    pub append: bool,
    /// Overwriting what is there.
    pub overwrite: bool,
}

/// Reads with so many in flight.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DepthProfile {
    /// How many.
    pub depth: u32,
    /// How many were served in a second.
    pub per_second: f64,
    /// The median of what one took, in microseconds.
    pub p50_us: f64,
    /// What 99 of 100 did not exceed, in microseconds.
    pub p99_us: f64,
}

/// How long small unsynced writes take while bulk output is written to the same device: p99.9 in microseconds, or p99 where
/// fewer than 1000 were measured (`pagekeeper probe --quick`).
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
    /// Beside output whose pages the kernel drops by itself, and that waits for its writeback; `None` where there are no
    /// uncached writes.
    #[serde(default)]
    pub uncached_us: Option<f64>,
    /// What the device took of the bulk output, in bytes per second: of the fastest that waits for the device.
    pub bytes_per_second: f64,
    /// The same of the output that waits for its own writeback.
    #[serde(default)]
    pub paced_bytes_per_second: Option<f64>,
    /// The same of direct output.
    #[serde(default)]
    pub direct_bytes_per_second: Option<f64>,
    /// The same of uncached output.
    #[serde(default)]
    pub uncached_bytes_per_second: Option<f64>,
}

impl DiskProfile {
    /// The version of the format that this code writes, and the highest that it reads.
    pub const VERSION: u32 = 1;

    /// How many random reads the disk serves at once: the least depth that reached nine tenths of the best rate.
    pub fn width(&self) -> Option<u32> {
        let best = self.reads.iter().map(|read| read.per_second).fold(0.0, f64::max);
        self.reads.iter().find(|read| read.per_second >= 0.9 * best).map(|read| read.depth)
    }

    /// What one read takes that is alone, in microseconds.
    pub fn read_us(&self) -> Option<f64> {
        self.reads.first().map(|read| read.p50_us)
    }

    /// Whether it is wide but slow: a read takes half a millisecond or more, and 8 or more at once are served eight times
    /// as fast or faster.
    pub fn is_wide_but_slow(&self) -> bool {
        let Some(alone) = self.reads.first() else {
            return false;
        };
        let best = self.reads.iter().map(|read| read.per_second).fold(0.0, f64::max);
        alone.p50_us >= 500.0 && best >= 8.0 * alone.per_second
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
}
