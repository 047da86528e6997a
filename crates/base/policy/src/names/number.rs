//! Numbers in file names: their syntax and the sequences they yield.
//!
//! Invariants: a sequence never falls from a file of a log to a later one, and grows by exactly 1
//! to the next. Reading a number fails only if it does not fit in 64 bits.

/// The syntax of a number in a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberSyntax {
    Decimal,
    Hexadecimal,
    WalSegment,
}

impl NumberSyntax {
    /// Reads the number at the start of `text`, and returns it with the rest.
    pub(super) fn read(self, text: &[u8]) -> Option<(FileNumber, &[u8])> {
        let (length, radix) = match self {
            Self::Decimal => (text.iter().take_while(|byte| byte.is_ascii_digit()).count(), 10),
            Self::Hexadecimal => (hexadecimal_digits(text), 16),
            Self::WalSegment => {
                let (digits, after) = text.split_at_checked(WalSegment::NAME_DIGITS)?;
                return Some((FileNumber::WalSegment(WalSegment::of_name(digits)?), after));
            }
        };
        let (digits, after) = text.split_at_checked(length)?;
        if digits.is_empty() {
            return None;
        }
        Some((FileNumber::Counted(value(digits, radix)?), after))
    }

    /// Whether this byte belongs to the number that follows it. A WAL segment has a fixed length.
    pub(super) const fn continues_after(self, byte: u8) -> bool {
        match self {
            Self::Decimal => byte.is_ascii_digit(),
            Self::Hexadecimal => byte.is_ascii_hexdigit(),
            Self::WalSegment => false,
        }
    }
}

/// Returns the number of hexadecimal digits, of either case, at the start of `text`.
pub(super) fn hexadecimal_digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count()
}

fn value(digits: &[u8], radix: u32) -> Option<u64> {
    digits.iter().try_fold(0_u64, |sum, &byte| {
        let digit = (byte as char).to_digit(radix)?;
        sum.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    })
}

/// The number in a name that orders the files of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileNumber {
    /// The name has no number.
    None,
    /// A number that goes up by 1 from file to file.
    Counted(u64),
    /// A PostgreSQL WAL segment, whose low part wraps around.
    WalSegment(WalSegment),
}

impl FileNumber {
    /// Returns the file's position in its log: the next file's sequence is larger by 1. Returns 0
    /// for a name without a number. WAL segments need the segment size of their log
    /// ([`WalSegment::sequence`]).
    pub const fn sequence(self, segment_size: Option<SegmentSize>) -> u64 {
        match self {
            Self::None => 0,
            Self::Counted(number) => number,
            Self::WalSegment(segment) => segment.sequence(segment_size),
        }
    }
}

/// The name of a PostgreSQL WAL segment: three numbers of 8 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalSegment {
    /// The timeline. It does not order files: the same position on two timelines has one sequence.
    pub timeline: u32,
    /// The number of the segment's 4 GiB section of the log.
    pub high: u32,
    /// The number of the segment within that section.
    pub low: u32,
}

impl WalSegment {
    /// Length of a segment name.
    pub const NAME_DIGITS: usize = 24;

    /// Parses a name: 24 digits, upper-case as PostgreSQL writes them.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'A'..=b'F');
        if name.len() != Self::NAME_DIGITS || !name.iter().all(is_digit) {
            return None;
        }
        let part = |from: usize, to: usize| u32::try_from(value(name.get(from..to)?, 16)?).ok();
        Some(Self { timeline: part(0, 8)?, high: part(8, 16)?, low: part(16, 24)? })
    }

    /// Returns the segment's position in its log, regardless of the timeline.
    ///
    /// The low part counts up to the number of segments in 4 GiB, which depends on the segment
    /// size. If the size is unknown, PostgreSQL's default is used ([`SegmentSize::DEFAULT`]). A low
    /// part beyond the last segment of this size counts as the last one. Sequences then still do
    /// not fall, and distances are underestimated rather than overestimated, so that the files near
    /// a reader stay.
    ///
    /// ```
    /// use pagekeeper_policy::names::{SegmentSize, WalSegment};
    ///
    /// let before = WalSegment::of_name(b"0000000100000000000000FF").unwrap();
    /// let after = WalSegment::of_name(b"000000010000000100000000").unwrap();
    /// let size = SegmentSize::of_file(16 << 20);
    /// assert_eq!(after.sequence(size) - before.sequence(size), 1);
    /// ```
    pub const fn sequence(self, size: Option<SegmentSize>) -> u64 {
        let size = match size {
            Some(size) => size,
            None => SegmentSize::DEFAULT,
        };
        let last = size.count_in_4gib() - 1;
        let low = self.low as u64;
        self.high as u64 * size.count_in_4gib() + if low < last { low } else { last }
    }
}

/// The size of PostgreSQL's WAL segments: a power of two from 1 MiB to 1 GiB
/// (`initdb --wal-segsize`), the same for all segments of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentSize {
    /// The logarithm to base 2, from 20 to 30.
    bits: u32,
}

impl SegmentSize {
    /// PostgreSQL's default, 16 MiB.
    pub const DEFAULT: Self = Self { bits: 24 };

    /// Returns the segment size from the size of a segment file in bytes. Returns `None` if no
    /// segment has that size, as while the file is being copied.
    pub const fn of_file(bytes: u64) -> Option<Self> {
        let bits = bytes.trailing_zeros();
        if bytes.is_power_of_two() && 20 <= bits && bits <= 30 { Some(Self { bits }) } else { None }
    }

    /// Returns the segment size of each log (`L`), given the logs and sizes of segment files. Most
    /// files of a log have its size; a file that is being copied may have another, or an impossible
    /// one.
    #[cfg(feature = "std")]
    pub fn of_logs<L: Ord + Copy>(
        files: impl Iterator<Item = (L, u64)>,
    ) -> std::collections::BTreeMap<L, Self> {
        use std::collections::BTreeMap;

        let mut counts: BTreeMap<(L, Self), usize> = BTreeMap::new();
        for (log, size) in files.filter_map(|(log, bytes)| Some((log, Self::of_file(bytes)?))) {
            *counts.entry((log, size)).or_default() += 1;
        }
        let mut most: BTreeMap<L, (usize, Self)> = BTreeMap::new();
        for ((log, size), count) in counts {
            let best = most.entry(log).or_insert((count, size));
            *best = (*best).max((count, size));
        }
        most.into_iter().map(|(log, (_, size))| (log, size)).collect()
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.bits
    }

    /// Returns the place of a log position (an LSN, in bytes): the sequence of its segment, and the
    /// offset in the segment in bytes.
    ///
    /// ```
    /// use pagekeeper_policy::names::{SegmentSize, WalSegment};
    ///
    /// let segment = WalSegment::of_name(b"0000000100000016000000B3").unwrap();
    /// let (sequence, offset) = SegmentSize::DEFAULT.place_of(0x16_b374_d848);
    /// assert_eq!((sequence, offset), (segment.sequence(None), 0x74_d848));
    /// ```
    pub const fn place_of(self, lsn: u64) -> (u64, u64) {
        (lsn >> self.bits, lsn & (self.bytes() - 1))
    }

    const fn count_in_4gib(self) -> u64 {
        1 << (32 - self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_power_of_two_in_postgresqls_range() {
        for bytes in [0, 1, 4096, 512 << 10, 3 << 20, (16 << 20) - 1, 2 << 30, u64::MAX] {
            assert_eq!(SegmentSize::of_file(bytes), None, "{bytes}");
        }
        for bits in 20..=30 {
            assert_eq!(SegmentSize::of_file(1 << bits).map(SegmentSize::bytes), Some(1 << bits));
        }
        assert_eq!(SegmentSize::DEFAULT.bytes(), 16 << 20);
    }

    #[test]
    fn names_that_a_size_does_not_have_keep_the_order() {
        let at = |high, low, size| WalSegment { timeline: 1, high, low }.sequence(size);
        assert_eq!(at(0, 256, None), at(0, 255, None));
        assert!(at(0, u32::MAX, None) < at(1, 0, None));
        assert_eq!(at(1, 4, SegmentSize::of_file(1 << 30)), 7);
        assert_eq!(at(u32::MAX, u32::MAX, SegmentSize::of_file(1 << 20)), (1 << 44) - 1);
    }
}
