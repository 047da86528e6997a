//! Damage of a medium: what time, a bad sector or a firmware does to bytes that were durable.
//!
//! Invariant: a random damage is a function of its seed and the file's length alone, so that it repeats.

use std::ops::Range;

use super::content::{Content, mix, pattern};
use super::crash::SECTOR;

/// What befalls the medium under a file, behind everybody's back: what was durable is so no more, and no call says so.
///
/// ```
/// use pagekeeper_io::{Access, Damage, Io, SimDisk};
///
/// let disk = SimDisk::new();
/// disk.create("/file", [7; 4096])?;
/// disk.damage("/file", &Damage::Bit { at: 100, bit: 3 })?;
/// disk.damage("/file", &Damage::Unreadable(2048..2560))?;
/// let file = disk.open("/file".as_ref(), Access::Buffered)?;
/// let mut bytes = [0; 2048];
/// file.read_at(0, &mut bytes)?;
/// assert_eq!((bytes[99], bytes[100]), (7, 15));
/// assert_eq!(file.read_at(2048, &mut bytes).unwrap_err().errno(), Some(5));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// One bit of the byte `at` is another: the one of this number, 0 to 7.
    Bit {
        /// Which byte.
        at: u64,
        /// Which bit of it.
        bit: u8,
    },
    /// These bytes are zeros.
    Zeros(Range<u64>),
    /// These bytes are any: [`pattern`](crate::pattern) of the seed.
    Garbage {
        /// Which bytes.
        range: Range<u64>,
        /// Of the pattern.
        seed: u64,
    },
    /// What stood in this range stands `by` bytes farther on, as far as it still is in the range; the first `by` bytes stay.
    Shifted {
        /// Which bytes.
        range: Range<u64>,
        /// How far.
        by: u64,
    },
    /// The sectors (512 bytes) in which these bytes are can't be read, with `EIO`, until they are written as a whole. Also
    /// after a crash.
    Unreadable(Range<u64>),
    /// The file ends here.
    Cut(u64),
}

impl Damage {
    /// One of them, of a file of so many bytes (at least one): single bits most often, else sectors or pages at their
    /// boundaries.
    pub fn random(seed: u64, len: u64) -> Self {
        let random = |what: u64| mix(seed ^ mix(what ^ 0x0da_3a6e));
        let len = len.max(1);
        let unit = if random(1) % 2 == 0 { SECTOR } else { 8 * SECTOR };
        let start = random(2) % len / unit * unit;
        let units = match random(3) % 4 {
            0 | 1 => 1,
            2 => 2,
            _ => 8,
        };
        let range = start..len.min(start + units * unit);
        match random(4) % 16 {
            0..6 => Self::Bit { at: random(2) % len, bit: random(5).to_le_bytes()[0] % 8 },
            6..9 => Self::Zeros(range),
            9..11 => Self::Garbage { range, seed },
            11..13 => {
                let by = SECTOR * (1 + random(6) % 8);
                Self::Shifted { range: start..len.min(start + units * unit + by), by }
            }
            _ => Self::Unreadable(range),
        }
    }

    /// The bytes as they are from now on.
    pub(super) fn apply(&self, content: &mut Content) {
        let part = |range: &Range<u64>| {
            let range = range.start.min(content.len())..range.end.min(content.len());
            let len = usize::try_from(range.end.saturating_sub(range.start)).expect("bytes in memory");
            let mut bytes = vec![0; len];
            content.read(range.start, &mut bytes);
            bytes
        };
        match self {
            Self::Bit { at, bit } => {
                let mut byte = part(&(*at..at.saturating_add(1)));
                for byte in &mut byte {
                    *byte ^= 1 << (bit % 8);
                }
                content.write(*at, &byte);
            }
            Self::Zeros(range) => {
                let zeros = vec![0; part(range).len()];
                content.write(range.start, &zeros);
            }
            Self::Garbage { range, seed } => {
                let mut bytes = part(range);
                pattern(*seed, range.start, &mut bytes);
                content.write(range.start, &bytes);
            }
            Self::Shifted { range, by } => {
                let bytes = part(range);
                let kept = bytes.len().saturating_sub(usize::try_from(*by).unwrap_or(usize::MAX));
                content.write(range.start + by, &bytes[..kept]);
            }
            Self::Unreadable(_) => {}
            Self::Cut(len) => content.set_len(content.len().min(*len)),
        }
    }
}
