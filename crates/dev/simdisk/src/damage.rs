//! Damage to durable bytes of a medium, as by age, a bad sector or faulty firmware.
//!
//! Invariant: random damage depends only on its seed and the file's length, so that it repeats.

use std::ops::Range;

use crate::content::{FileContent, SECTOR_BYTES, mix, pattern};

/// Damage to the medium of a file. Durable data is lost, and no call reports that.
///
/// ```
/// use pagekeeper_io::{Access, Io};
/// use pagekeeper_simdisk::{Damage, SimDisk};
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
    /// Inverts one bit.
    Bit {
        /// The offset of the byte.
        at: u64,
        /// The number of the bit, 0 to 7.
        bit: u8,
    },
    /// Fills these bytes with zeros.
    Zeros(Range<u64>),
    /// Fills these bytes with [`pattern`](crate::pattern).
    Garbage {
        /// The bytes.
        range: Range<u64>,
        /// The seed of the pattern.
        seed: u64,
    },
    /// Moves the content of this range `by` bytes forward within the range; the first `by` bytes
    /// stay.
    Shifted {
        /// The bytes.
        range: Range<u64>,
        /// The distance in bytes.
        by: u64,
    },
    /// Reads of the sectors (512 bytes) with these bytes fail with `EIO` until the whole sector is
    /// written, even after a crash.
    Unreadable(Range<u64>),
    /// The file ends here.
    Cut(u64),
}

impl Damage {
    /// Returns random damage to a file of `len` bytes (at least one): mostly single bits, otherwise
    /// sectors or pages at their boundaries.
    pub fn random(seed: u64, len: u64) -> Self {
        let random = |what: u64| mix(seed ^ mix(what ^ 0x0da_3a6e));
        let len = len.max(1);
        let unit = if random(1) % 2 == 0 { SECTOR_BYTES } else { 8 * SECTOR_BYTES };
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
                let by = SECTOR_BYTES * (1 + random(6) % 8);
                Self::Shifted { range: start..len.min(start + units * unit + by), by }
            }
            _ => Self::Unreadable(range),
        }
    }

    /// Applies the damage to the content.
    pub(crate) fn apply(&self, content: &mut FileContent) {
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
