//! Faults of raw reads, raw writes and syncs, planned or at random.
//!
//! Invariant: a random number depends only on the disk's seed, the file, the offset and the count
//! of requests there. So a sequence of faults repeats from its seed, whatever the threads do.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::content::mix;

/// A fault of one raw read: the device's or kernel's result, before the common loop retries it.
///
/// ```
/// use pagekeeper_io::{Access, Io};
/// use pagekeeper_simdisk::{Fault, SimDisk, Times};
///
/// let disk = SimDisk::new();
/// disk.create("/file", [7; 4096])?;
/// disk.inject("/file", 0..u64::MAX, Fault::Short(1000), Times::Always)?;
/// let file = disk.open("/file".as_ref(), Access::Buffered)?;
/// assert_eq!(file.read_at(0, &mut [0; 4096])?, 4096); // continued: five requests
/// assert_eq!(disk.stats().requests, 5);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The raw read fails with this error number. `EINTR` and `EAGAIN` are retried.
    Error(i32),
    /// The raw read returns at most this many bytes (at least one).
    Short(usize),
    /// The file is truncated to this many bytes just before the raw read.
    Cut(u64),
}

impl Fault {
    /// The device cannot read: `EIO`.
    pub const EIO: Self = Self::Error(libc::EIO);
    /// A signal interrupted the call: `EINTR`.
    pub const INTERRUPTED: Self = Self::Error(libc::EINTR);
}

/// A fault of a write, a sync or an allocation.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, WriteMode};
/// use pagekeeper_simdisk::{SimDisk, Times, WriteFault};
///
/// let disk = SimDisk::new();
/// let file = disk.open_writable("/log".as_ref(), Access::Buffered, Create::New)?;
/// disk.inject_all(WriteFault::NO_SPACE, Times::Nth(1));
/// file.write_at(0, b"first", WriteMode::Plain)?;
/// let second = file.write_at(5, b"second", WriteMode::Plain);
/// assert_eq!(second.unwrap_err().errno(), Some(libc::ENOSPC));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteFault {
    /// The raw write fails with this error number and writes nothing. `EINTR` and `EAGAIN` are
    /// retried.
    Error(i32),
    /// The raw write accepts at most this many bytes (at least one). A direct write accepts at
    /// least as many as its alignment, up to 4096. An atomic write is never short.
    Short(usize),
    /// A sync, a wait for writeback or a durable write fails with this error number. Data written
    /// since the last sync will never reach the device; the kernel's cache keeps it and marks it
    /// clean. For a directory, the names are lost.
    Sync(i32),
    /// [`pagekeeper_io::IoFile::allocate`] fails with this error number.
    Allocate(i32),
    /// As [`Self::Sync`], but the cache drops the data and from then on shows the device's content.
    SyncDrop(i32),
    /// A sync, a wait for writeback or a durable write reports success without making anything
    /// durable.
    SyncLie,
    /// The raw write reports success, but never reaches the device. The cache shows the data as
    /// long as the pages stay.
    Lost,
    /// As [`Self::Lost`], but the device writes the bytes at this offset of the file instead, up to
    /// its end.
    Misdirected {
        /// The offset.
        to: u64,
    },
}

impl WriteFault {
    /// The device cannot write: `EIO`.
    pub const EIO: Self = Self::Error(libc::EIO);
    /// The disk is full: `ENOSPC`.
    pub const NO_SPACE: Self = Self::Error(libc::ENOSPC);
    /// A signal interrupted the call: `EINTR`.
    pub const INTERRUPTED: Self = Self::Error(libc::EINTR);
    /// The device could not write, which the sync reports: `EIO`.
    pub const SYNC_EIO: Self = Self::Sync(libc::EIO);
}

/// A fault of any request.
///
/// ```
/// use pagekeeper_simdisk::{AnyFault, Fault, WriteFault};
/// let faults = [AnyFault::from(Fault::EIO), WriteFault::SYNC_EIO.into()];
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnyFault {
    /// A fault of a read.
    Read(Fault),
    /// A fault of a write, a sync or an allocation.
    Write(WriteFault),
}

impl From<Fault> for AnyFault {
    fn from(fault: Fault) -> Self {
        Self::Read(fault)
    }
}

impl From<WriteFault> for AnyFault {
    fn from(fault: WriteFault) -> Self {
        Self::Write(fault)
    }
}

/// The number of times that a planned fault occurs.
///
/// ```
/// use pagekeeper_io::{Access, Io};
/// use pagekeeper_simdisk::{Fault, SimDisk, Times};
///
/// let disk = SimDisk::new();
/// disk.create("/file", [7; 4096])?;
/// let file = disk.open("/file".as_ref(), Access::Buffered)?;
/// disk.inject("/file", 0..1, Fault::EIO, Times::Always)?;
/// assert!(file.read_at(0, &mut [0; 8]).is_err());
/// assert!(file.read_at(0, &mut [0; 8]).is_err());
/// disk.heal("/file")?;
/// assert_eq!(file.read_at(0, &mut [0; 8])?, 8);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// At the next matching request.
    Once,
    /// Once, after this many matching requests have passed.
    Nth(u64),
    /// At each matching request, until the file is healed.
    Always,
}

/// Random faults of raw reads, each as a share of a thousand.
///
/// ```
/// use pagekeeper_simdisk::{RandomFaults, SimDisk};
/// let faults = RandomFaults { short_per_mille: 50, interrupted_per_mille: 50, ..RandomFaults::default() };
/// let disk = SimDisk::builder().random_faults(faults).seed(12).build();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RandomFaults {
    /// Reads that return only a part, of any size.
    pub short_per_mille: u16,
    /// Interrupted reads.
    pub interrupted_per_mille: u16,
    /// Reads that fail with `EIO`.
    pub failing_per_mille: u16,
}

/// Random faults of writes and syncs, each as a share of a thousand.
///
/// ```
/// use pagekeeper_simdisk::{RandomWriteFaults, SimDisk};
/// let faults = RandomWriteFaults { short_per_mille: 50, no_space_per_mille: 1, ..RandomWriteFaults::default() };
/// let disk = SimDisk::builder().random_write_faults(faults).seed(12).build();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RandomWriteFaults {
    /// Raw writes that accept only a part, of any size.
    pub short_per_mille: u16,
    /// Interrupted raw writes.
    pub interrupted_per_mille: u16,
    /// Raw writes that fail with `EIO`.
    pub failing_per_mille: u16,
    /// Raw writes and allocations that fail with `ENOSPC`.
    pub no_space_per_mille: u16,
    /// Syncs (waits for writeback and durable writes too) that fail with `EIO`.
    pub failing_sync_per_mille: u16,
    /// Syncs that fail with `EIO`, after which the cache drops the data.
    pub dropping_sync_per_mille: u16,
    /// Syncs that report success and do nothing.
    pub lying_sync_per_mille: u16,
    /// Raw writes that report success and are lost.
    pub lost_per_mille: u16,
    /// Raw writes that report success but land up to 32 KiB farther on.
    pub misdirected_per_mille: u16,
}

/// An operation that changes or syncs a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultAction {
    Write,
    Sync,
    Allocate,
}

#[derive(Debug, Default)]
pub(crate) struct FaultPlan {
    planned: Vec<PlannedFault>,
    random: RandomFaults,
    random_write: RandomWriteFaults,
    seed: u64,
    /// The number of requests per inode and offset; only kept if faults depend on it.
    attempts: BTreeMap<(u64, u64), u64>,
}

#[derive(Debug)]
struct PlannedFault {
    /// The file; any file without one.
    inode: Option<u64>,
    range: Range<u64>,
    fault: AnyFault,
    times: Times,
}

impl FaultPlan {
    pub(crate) fn new(random: RandomFaults, random_write: RandomWriteFaults, seed: u64) -> Self {
        Self { random, random_write, seed, ..Self::default() }
    }

    /// Creates the faults of a restarted disk: without planned ones, and with other random numbers.
    pub(crate) fn again(&self, seed: u64) -> Self {
        Self::new(self.random, self.random_write, mix(self.seed ^ mix(seed)))
    }

    pub(crate) fn set_random(&mut self, random: RandomFaults, random_write: RandomWriteFaults) {
        (self.random, self.random_write) = (random, random_write);
    }

    pub(crate) fn plan(&mut self, inode: Option<u64>, range: Range<u64>, fault: AnyFault, times: Times) {
        self.planned.push(PlannedFault { inode, range, fault, times });
    }

    /// Cancels the planned faults for a file, or for all.
    pub(crate) fn heal(&mut self, inode: Option<u64>) {
        self.planned.retain(|plan| plan.inode != inode);
    }

    /// Returns the first planned fault that matches and occurs now.
    fn planned<T>(
        &mut self,
        inode: u64,
        range: &Range<u64>,
        fits: impl Fn(AnyFault) -> Option<T>,
    ) -> Option<T> {
        for at in 0..self.planned.len() {
            let plan = &mut self.planned[at];
            let here = plan.inode.is_none_or(|of| of == inode) && meet(&plan.range, range);
            let Some(fault) = fits(plan.fault).filter(|_| here) else { continue };
            match &mut plan.times {
                Times::Nth(left @ 1..) => {
                    *left -= 1;
                    continue;
                }
                Times::Once | Times::Nth(_) => drop(self.planned.remove(at)),
                Times::Always => {}
            }
            return Some(fault);
        }
        None
    }

    /// Returns the fault of a raw read of this range, if any: the first planned one, otherwise a
    /// random one.
    pub(crate) fn strike(&mut self, inode: u64, range: &Range<u64>) -> Option<Fault> {
        let planned = self.planned(inode, range, |fault| match fault {
            AnyFault::Read(fault) => Some(fault),
            AnyFault::Write(_) => None,
        });
        if planned.is_some() || self.random == RandomFaults::default() {
            return planned;
        }
        let RandomFaults { short_per_mille, interrupted_per_mille, failing_per_mille } = self.random;
        let drawn = self.draw(inode, range.start);
        let shares = [
            (short_per_mille, Fault::Short(part_of(range, drawn))),
            (interrupted_per_mille, Fault::INTERRUPTED),
            (failing_per_mille, Fault::EIO),
        ];
        choose(drawn, &shares)
    }

    /// Returns the fault of an operation that changes or syncs this range.
    pub(crate) fn strike_write(
        &mut self,
        inode: u64,
        range: &Range<u64>,
        action: FaultAction,
    ) -> Option<WriteFault> {
        let planned = self.planned(inode, range, |fault| match (fault, action) {
            (
                AnyFault::Write(
                    fault @ (WriteFault::Error(_)
                    | WriteFault::Short(_)
                    | WriteFault::Lost
                    | WriteFault::Misdirected { .. }),
                ),
                FaultAction::Write,
            )
            | (
                AnyFault::Write(
                    fault @ (WriteFault::Sync(_) | WriteFault::SyncDrop(_) | WriteFault::SyncLie),
                ),
                FaultAction::Sync,
            )
            | (AnyFault::Write(fault @ WriteFault::Allocate(_)), FaultAction::Allocate) => Some(fault),
            _ => None,
        });
        if planned.is_some() || self.random_write == RandomWriteFaults::default() {
            return planned;
        }
        let random = self.random_write;
        // Independent of the faults of reads at the same offset.
        let drawn = self.draw(inode ^ (action as u64 + 1) << 60, range.start);
        let shares = match action {
            FaultAction::Write => &[
                (random.short_per_mille, WriteFault::Short(part_of(range, drawn))),
                (random.interrupted_per_mille, WriteFault::INTERRUPTED),
                (random.failing_per_mille, WriteFault::EIO),
                (random.no_space_per_mille, WriteFault::NO_SPACE),
                (random.lost_per_mille, WriteFault::Lost),
                (
                    random.misdirected_per_mille,
                    WriteFault::Misdirected { to: range.start + 4096 * (1 + (drawn >> 32) % 8) },
                ),
            ][..],
            FaultAction::Sync => &[
                (random.failing_sync_per_mille, WriteFault::SYNC_EIO),
                (random.dropping_sync_per_mille, WriteFault::SyncDrop(libc::EIO)),
                (random.lying_sync_per_mille, WriteFault::SyncLie),
            ],
            FaultAction::Allocate => &[(random.no_space_per_mille, WriteFault::Allocate(libc::ENOSPC))],
        };
        choose(drawn, shares)
    }

    /// Draws a random number for the next raw request at this offset.
    pub(crate) fn draw(&mut self, inode: u64, offset: u64) -> u64 {
        let attempt = self.attempts.entry((inode, offset)).or_default();
        *attempt += 1;
        mix(self.seed ^ mix(inode ^ mix(offset ^ mix(*attempt))))
    }
}

/// Returns a random part of the range's length: at least one byte.
fn part_of(range: &Range<u64>, drawn: u64) -> usize {
    let part = 1 + (drawn >> 32) % (range.end - range.start).max(1);
    usize::try_from(part).unwrap_or(usize::MAX)
}

/// Chooses one of these by their shares of a thousand.
fn choose<T: Copy>(drawn: u64, shares: &[(u16, T)]) -> Option<T> {
    let mut rest = drawn % 1000;
    for (share, fault) in shares {
        match rest.checked_sub(u64::from(*share)) {
            None => return Some(*fault),
            Some(left) => rest = left,
        }
    }
    None
}

/// Whether two ranges overlap.
pub(crate) fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
