//! What can go wrong with a raw read, planned or by chance.
//!
//! Invariant: chance is a function of the disk's seed, the file, the offset and how often that offset was read, so that a
//! schedule of faults repeats from its seed whatever the threads do.

use std::collections::BTreeMap;
use std::ops::Range;

use super::content::mix;

/// A fault of one raw read: of what a device or the kernel gives, before the common loop goes on with it.
///
/// ```
/// use pagekeeper_io::{Access, Fault, Io, SimDisk, Times};
///
/// let disk = SimDisk::new();
/// disk.create("/file", [7; 4096])?;
/// disk.inject("/file", 0..u64::MAX, Fault::Short(1000), Times::Always)?;
/// let file = disk.open("/file".as_ref(), Access::Buffered)?;
/// assert_eq!(file.read_at(0, &mut [0; 4096])?, 4096); // gone on with: five requests
/// assert_eq!(disk.stats().requests, 5);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The raw read fails with this error number. `EINTR` and `EAGAIN` are gone on with.
    Error(i32),
    /// The raw read brings no more than so many bytes (at least one).
    Short(usize),
    /// The file is cut to so many bytes just before the raw read takes place.
    Cut(u64),
}

impl Fault {
    /// The device can't read: `EIO`.
    pub const EIO: Self = Self::Error(libc::EIO);
    /// A signal came in between: `EINTR`.
    pub const INTERRUPTED: Self = Self::Error(libc::EINTR);
}

/// How often a planned fault strikes.
///
/// ```
/// use pagekeeper_io::{Access, Fault, Io, SimDisk, Times};
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
    /// The next raw read that it concerns.
    Once,
    /// Each, until the file is healed.
    Always,
}

/// How many of a thousand raw reads suffer what, by chance.
///
/// ```
/// use pagekeeper_io::{RandomFaults, SimDisk};
/// let faults = RandomFaults { short_per_mille: 50, interrupted_per_mille: 50, ..RandomFaults::default() };
/// let disk = SimDisk::builder().random_faults(faults).seed(12).build();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RandomFaults {
    /// Bring a part only, of any size.
    pub short_per_mille: u16,
    /// Are interrupted.
    pub interrupted_per_mille: u16,
    /// Fail with `EIO`.
    pub failing_per_mille: u16,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    planned: Vec<(u64, Range<u64>, Fault, Times)>,
    random: RandomFaults,
    seed: u64,
    /// How often an offset of an inode was read; kept only where it makes a difference.
    attempts: BTreeMap<(u64, u64), u64>,
}

impl Faults {
    pub(super) fn new(random: RandomFaults, seed: u64) -> Self {
        Self { random, seed, ..Self::default() }
    }

    pub(super) fn plan(&mut self, inode: u64, range: Range<u64>, fault: Fault, times: Times) {
        self.planned.push((inode, range, fault, times));
    }

    pub(super) fn heal(&mut self, inode: u64) {
        self.planned.retain(|(of, ..)| *of != inode);
    }

    /// The fault of a raw read of this range, if it has one: the first that was planned, else chance.
    pub(super) fn strike(&mut self, inode: u64, range: &Range<u64>) -> Option<Fault> {
        let met = self.planned.iter().position(|(of, place, ..)| *of == inode && meet(place, range));
        if let Some(at) = met {
            let (_, _, fault, times) = &self.planned[at];
            let fault = *fault;
            if *times == Times::Once {
                self.planned.remove(at);
            }
            return Some(fault);
        }
        let RandomFaults { short_per_mille, interrupted_per_mille, failing_per_mille } = self.random;
        if self.random == RandomFaults::default() {
            return None;
        }
        let chance = self.chance(inode, range.start);
        let part = 1 + (chance >> 32) % (range.end - range.start).max(1);
        let mut die = chance % 1000;
        for (share, fault) in [
            (short_per_mille, Fault::Short(usize::try_from(part).unwrap_or(usize::MAX))),
            (interrupted_per_mille, Fault::INTERRUPTED),
            (failing_per_mille, Fault::EIO),
        ] {
            match die.checked_sub(u64::from(share)) {
                None => return Some(fault),
                Some(left) => die = left,
            }
        }
        None
    }

    /// A number by chance for the next raw read at this place.
    pub(super) fn chance(&mut self, inode: u64, offset: u64) -> u64 {
        let attempt = self.attempts.entry((inode, offset)).or_default();
        *attempt += 1;
        mix(self.seed ^ mix(inode ^ mix(offset ^ mix(*attempt))))
    }
}

/// Whether two ranges have a byte in common.
pub(super) fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
