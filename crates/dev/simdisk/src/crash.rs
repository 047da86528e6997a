//! Decides which unsynced changes are on the device after a power cut.
//!
//! Invariant: a [`CrashOutcome`] depends only on the pattern, the seed and the numbers of the
//! operations, so that a crash repeats.

use std::ops::Range;

use crate::content::{CHUNK_BYTES, FileContent, SECTOR_BYTES, mix, pattern};
use crate::inode::PendingWrite;

/// The unsynced writes, sizes and names that survive a power cut. Synced ones always survive.
///
/// A device may keep unsynced writes in any order and in part, so tests should go through all of
/// these. In each case an atomic write ([`pagekeeper_io::WriteMode::Atomic`]) survives completely
/// or not at all.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, WriteMode};
/// use pagekeeper_simdisk::{Persistence, SimDisk};
///
/// let disk = SimDisk::new();
/// let file = disk.open_writable("/log".as_ref(), Access::Buffered, Create::New)?;
/// disk.sync_dir("/".as_ref())?;
/// file.write_at(0, b"synced", WriteMode::Plain)?;
/// file.sync_data()?;
/// file.write_at(0, b"rushed", WriteMode::Plain)?;
///
/// for (persistence, found) in [(Persistence::None, b"synced"), (Persistence::All, b"rushed")] {
///     let disk = disk.after_power_cut(persistence, 1);
///     let mut bytes = [0; 6];
///     disk.open("/log".as_ref(), Access::Buffered)?.read_at(0, &mut bytes)?;
///     assert_eq!(bytes, *found);
/// }
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Persistence {
    /// None.
    None,
    /// All.
    All,
    /// The first ones, up to a random moment.
    Prefix,
    /// The last ones, from a random moment on.
    Suffix,
    /// Some at random; for a write, some of its pages (4096 bytes).
    Random,
    /// Some at random; for a write, some of its sectors (512 bytes).
    Torn,
    /// As [`Self::Torn`], but some of the missing sectors hold garbage. The garbage fills the whole
    /// sector, even if the write covered only a part and the rest had been synced.
    TornGarbage,
}

impl Persistence {
    /// All cases.
    pub const ALL: [Self; 7] =
        [Self::None, Self::All, Self::Prefix, Self::Suffix, Self::Random, Self::Torn, Self::TornGarbage];
}

/// Decides which operations persist.
#[derive(Debug)]
pub(crate) struct CrashOutcome {
    persistence: Persistence,
    seed: u64,
    /// For a prefix, the first operation that does not persist; for a suffix, the first that does.
    split: u64,
    /// Operations of a thousand that persist at random.
    share: u64,
}

/// The outcome for a part of a write.
enum PartOutcome {
    Written,
    Missing,
    Garbage,
}

impl CrashOutcome {
    /// Creates the outcome of a crash; `pending` has the numbers of all operations that were not
    /// synced.
    pub(crate) fn new(persistence: Persistence, seed: u64, mut pending: Vec<u64>) -> Self {
        pending.sort_unstable();
        pending.dedup();
        let random = mix(seed ^ 0x5eed);
        let at = usize::try_from(random % (pending.len() as u64 + 1)).expect("no more than a length");
        let split = pending.get(at).copied().unwrap_or(u64::MAX);
        let share = [100, 500, 900][usize::try_from((random >> 32) % 3).expect("less than 3")];
        Self { persistence, seed, split, share }
    }

    fn random(&self, operation: u64, part: u64) -> u64 {
        mix(self.seed ^ mix(operation ^ mix(part)))
    }

    /// Whether an operation persists that cannot persist in part: a name, a size.
    pub(crate) fn keeps(&self, operation: u64) -> bool {
        match self.persistence {
            Persistence::None => false,
            Persistence::All => true,
            Persistence::Prefix => operation < self.split,
            Persistence::Suffix => operation >= self.split,
            Persistence::Random | Persistence::Torn | Persistence::TornGarbage => {
                self.random(operation, u64::MAX) % 1000 < self.share
            }
        }
    }

    /// Writes the persisting part of a write. An atomic write, or its remainder, persists
    /// completely or not at all.
    pub(crate) fn write(&self, operation: u64, content: &mut FileContent, write: &PendingWrite) {
        let PendingWrite { offset, bytes, atomic } = write;
        let unit = match self.persistence {
            Persistence::Random if !atomic => CHUNK_BYTES as u64,
            Persistence::Torn | Persistence::TornGarbage if !atomic => SECTOR_BYTES,
            Persistence::None
            | Persistence::All
            | Persistence::Prefix
            | Persistence::Suffix
            | Persistence::Random
            | Persistence::Torn
            | Persistence::TornGarbage => {
                if self.keeps(operation) {
                    content.write(*offset, bytes);
                }
                return;
            }
        };
        // Most writes are not torn.
        let whole = match (unit, self.random(operation, u64::MAX - 1) % 4) {
            (SECTOR_BYTES, 0) => Some(PartOutcome::Written),
            (SECTOR_BYTES, 1) => Some(PartOutcome::Missing),
            _ => None,
        };
        match whole {
            Some(PartOutcome::Written) => content.write(*offset, bytes),
            Some(_) => {}
            None => self.write_parts(operation, content, *offset, bytes, unit),
        }
    }

    fn write_parts(&self, operation: u64, content: &mut FileContent, offset: u64, bytes: &[u8], unit: u64) {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let next = end.min((at / unit + 1) * unit);
            match self.part(operation, at / unit) {
                PartOutcome::Written => content.write(at, &bytes[within(offset, at..next)]),
                PartOutcome::Missing => {}
                PartOutcome::Garbage => {
                    let start = at / unit * unit;
                    let end = content.len().max(next).min(start + unit);
                    let mut garbage = vec![0; within(start, start..end).len()];
                    pattern(self.random(operation, !start), start, &mut garbage);
                    content.write(start, &garbage);
                }
            }
            at = next;
        }
    }

    fn part(&self, operation: u64, part: u64) -> PartOutcome {
        let random = self.random(operation, part);
        if random % 1000 < self.share {
            PartOutcome::Written
        } else if self.persistence == Persistence::TornGarbage && random >> 63 == 0 {
            PartOutcome::Garbage
        } else {
            PartOutcome::Missing
        }
    }
}

/// Converts a range into indices of bytes that begin at `start`.
fn within(start: u64, range: Range<u64>) -> Range<usize> {
    let index = |at: u64| usize::try_from(at - start).expect("bytes in memory");
    index(range.start)..index(range.end)
}
