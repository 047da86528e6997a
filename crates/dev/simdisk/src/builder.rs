//! Options of a simulated disk, and counters of its work.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::content::SECTOR_BYTES;
use crate::faults::{RandomFaults, RandomWriteFaults};

/// Options of a simulated disk.
///
/// ```
/// use std::time::Duration;
/// use pagekeeper_simdisk::SimDisk;
/// // Slow, but wide: a network disk.
/// let disk = SimDisk::builder().latency(Duration::from_millis(1)).width(256).build();
/// ```
#[derive(Debug, Clone)]
pub struct SimDiskBuilder {
    pub(crate) latency: Duration,
    pub(crate) jitter: Duration,
    pub(crate) width: usize,
    pub(crate) seed: u64,
    pub(crate) alignment: usize,
    pub(crate) direct: bool,
    pub(crate) atomic_max: u64,
    pub(crate) random: RandomFaults,
    pub(crate) random_write: RandomWriteFaults,
    pub(crate) by_steps: bool,
    pub(crate) at_once: bool,
}

/// Counters of a simulated disk.
///
/// ```
/// use pagekeeper_io::{Access, Io};
/// use pagekeeper_simdisk::SimDisk;
/// let disk = SimDisk::new();
/// disk.create("/file", [7; 100])?;
/// disk.open("/file".as_ref(), Access::Buffered)?.read_at(90, &mut [0; 50])?;
/// let stats = disk.stats();
/// assert_eq!((stats.reads, stats.bytes), (1, 10));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SimStats {
    /// Requested reads, of any number of bytes.
    pub reads: u64,
    /// Requested writes, of any number of bytes.
    pub writes: u64,
    /// Requested syncs of files and directories.
    pub syncs: u64,
    /// Raw requests for all of these: several each after short counts or interrupted calls.
    pub requests: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Bytes written.
    pub written: u64,
    /// Raw requests that met a fault.
    pub faults: u64,
    /// Maximum number of requests served at the same (virtual) time.
    pub peak_width: usize,
    /// Requests that have arrived and not yet ended.
    pub in_flight: usize,
}

impl SimDiskBuilder {
    /// Sets the service time of a request, without queueing: 100 µs by default, at least 1 ns.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Adds a pseudo-random time up to `jitter` to each request's latency; none by default.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets how many requests are served at once: at least 1, 32 by default.
    #[must_use]
    pub fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Sets the seed of all random numbers.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the alignment of direct reads and writes, for memory and offset, in bytes; 512 by
    /// default.
    #[must_use]
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes.max(1);
        self
    }

    /// Refuses [`pagekeeper_io::Access::Direct`], as some file systems do.
    #[must_use]
    pub fn without_direct(mut self) -> Self {
        self.direct = false;
        self
    }

    /// Accepts atomic writes ([`pagekeeper_io::WriteMode::Atomic`]) up to this many bytes, rounded
    /// down to a power of two. The minimum is 512 bytes or the alignment of direct writes. By
    /// default they fail with `EOPNOTSUPP`.
    #[must_use]
    pub fn atomic_writes(mut self, max_bytes: u64) -> Self {
        self.atomic_max = max_bytes.checked_ilog2().map_or(0, |bits| 1 << bits);
        self
    }

    /// Returns the smallest and largest atomic write.
    pub(crate) fn atomic(&self) -> Option<RangeInclusive<u64>> {
        let least = (self.alignment as u64).next_power_of_two().max(SECTOR_BYTES);
        (least <= self.atomic_max).then_some(least..=self.atomic_max)
    }

    /// Sets the random faults of reads.
    #[must_use]
    pub fn random_faults(mut self, faults: RandomFaults) -> Self {
        self.random = faults;
        self
    }

    /// Sets the random faults of writes and syncs.
    #[must_use]
    pub fn random_write_faults(mut self, faults: RandomWriteFaults) -> Self {
        self.random_write = faults;
        self
    }

    /// Holds submitted reads and writes until [`SimDisk::step`](crate::SimDisk::step) performs
    /// them, so that their order repeats exactly. Otherwise a thread performs them as soon as it
    /// can.
    #[must_use]
    pub fn by_steps(mut self) -> Self {
        self.by_steps = true;
        self
    }

    /// Performs submitted reads and writes on the submitting thread before the call returns, so
    /// that their order repeats exactly.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.at_once = true;
        self.by_steps()
    }
}

impl Default for SimDiskBuilder {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(100),
            jitter: Duration::ZERO,
            width: 32,
            seed: 0,
            alignment: 512,
            direct: true,
            atomic_max: 0,
            random: RandomFaults::default(),
            random_write: RandomWriteFaults::default(),
            by_steps: false,
            at_once: false,
        }
    }
}
