//! Options of a simulated disk, and counts of what it did.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::SimDisk;
use super::crash::SECTOR;
use super::faults::{RandomFaults, RandomWriteFaults};
use super::request::Handle;
use super::state::DiskState;

/// What a simulated disk is to be like.
///
/// ```
/// use std::time::Duration;
/// use pagekeeper_io::SimDisk;
/// // Slow, but wide: a network disk.
/// let disk = SimDisk::builder().latency(Duration::from_millis(1)).width(256).build();
/// ```
#[derive(Debug, Clone)]
pub struct SimDiskBuilder {
    pub(super) latency: Duration,
    pub(super) jitter: Duration,
    pub(super) width: usize,
    pub(super) seed: u64,
    pub(super) alignment: usize,
    pub(super) direct: bool,
    pub(super) atomic_max: u64,
    pub(super) random: RandomFaults,
    pub(super) random_write: RandomWriteFaults,
    pub(super) by_steps: bool,
}

/// What a simulated disk has done.
///
/// ```
/// use pagekeeper_io::{Access, Io, SimDisk};
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
    /// Reads that were asked for, of any number of bytes.
    pub reads: u64,
    /// Writes that were asked for, of any number of bytes.
    pub writes: u64,
    /// Syncs of files and directories that were asked for.
    pub syncs: u64,
    /// Requests that they all took: more than one each where counts were short or calls interrupted.
    pub requests: u64,
    /// Bytes that reads brought.
    pub bytes: u64,
    /// Bytes that writes took.
    pub written: u64,
    /// Requests that suffered a fault.
    pub faults: u64,
    /// The most requests that were being served at the same (virtual) time.
    pub peak_width: usize,
    /// Requests that have come and not yet ended.
    pub in_flight: usize,
}

impl SimDiskBuilder {
    /// How long a request takes once there is a place for it; 100 µs if not said, at least 1 ns.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Adds between nothing and so much to each request's latency, by the seed; nothing if not said.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// How many requests are served at once, at least 1; 32 if not said.
    #[must_use]
    pub fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Where all random numbers come from.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// To how many bytes direct reads and writes must be aligned, memory and offset; 512 if not said.
    #[must_use]
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.alignment = bytes.max(1);
        self
    }

    /// Refuses [`crate::Access::Direct`], as some file systems do.
    #[must_use]
    pub fn without_direct(mut self) -> Self {
        self.direct = false;
        self
    }

    /// Takes atomic writes ([`crate::WriteMode::Atomic`]) of up to so many bytes (taken down to a power of two), and from 512
    /// bytes or the alignment of direct writes on. None if not said: they fail with `EOPNOTSUPP`.
    #[must_use]
    pub fn atomic_writes(mut self, max_bytes: u64) -> Self {
        self.atomic_max = max_bytes.checked_ilog2().map_or(0, |bits| 1 << bits);
        self
    }

    /// The smallest and largest atomic write.
    pub(super) fn atomic(&self) -> Option<RangeInclusive<u64>> {
        let least = (self.alignment as u64).next_power_of_two().max(SECTOR);
        (least <= self.atomic_max).then_some(least..=self.atomic_max)
    }

    /// Faults of reads at random.
    #[must_use]
    pub fn random_faults(mut self, faults: RandomFaults) -> Self {
        self.random = faults;
        self
    }

    /// Faults of writes and syncs at random.
    #[must_use]
    pub fn random_write_faults(mut self, faults: RandomWriteFaults) -> Self {
        self.random_write = faults;
        self
    }

    /// Leaves submitted reads and writes alone until [`SimDisk::step`] does them: then also they repeat exactly. Without this a
    /// thread does them, as soon as it comes to it.
    #[must_use]
    pub fn by_steps(mut self) -> Self {
        self.by_steps = true;
        self
    }

    /// The disk, empty.
    pub fn build(self) -> SimDisk {
        let state = DiskState::new(&self);
        self.with(state)
    }

    /// A disk like this, with that on it.
    pub(super) fn with(self, state: DiskState) -> SimDisk {
        // Unlike any disk of the machine: its major number would be 0xFFF.
        static DISKS: AtomicU64 = AtomicU64::new(0xfff << 32);
        let device = DISKS.fetch_add(1, Ordering::Relaxed);
        SimDisk { handle: Arc::new(Handle::new(self, state, device)) }
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
        }
    }
}
