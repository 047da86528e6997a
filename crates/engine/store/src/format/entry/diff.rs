//! Diffs: the changed ranges of a payload.
//!
//! Invariant: the ranges of a diff ascend, do not overlap, are not empty, and end within the
//! payload.

use std::ops::Range;

use bytes::Bytes;

use super::super::varint;

/// Changed bytes with fewer equal bytes than this between them form one range.
const GAP_BYTES_MIN: usize = 16;

/// Equal bytes are skipped in chunks of this size.
const STRIDE_BYTES: usize = 64;

/// The encoded ranges of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiffRanges(Bytes);

impl DiffRanges {
    /// Takes encoded ranges; `None` unless all are valid in a payload of this length.
    pub(super) fn new(encoded: Bytes, payload: usize) -> Option<Self> {
        let (mut rest, mut end) = (&encoded[..], 0_usize);
        while !rest.is_empty() {
            let (range, _, after) = split(rest, end)?;
            if range.is_empty() || range.end > payload {
                return None;
            }
            (rest, end) = (after, range.end);
        }
        Some(Self(encoded))
    }

    /// Returns no ranges.
    pub(super) fn none() -> Self {
        Self(Bytes::new())
    }

    /// Returns their encoding.
    pub(super) fn encoded(&self) -> &Bytes {
        &self.0
    }

    /// Returns the offset of each range in the payload, and its bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let (mut rest, mut end) = (&self.0[..], 0);
        std::iter::from_fn(move || {
            let (range, bytes, after) = split(rest, end)?;
            (rest, end) = (after, range.end);
            Some((u32::try_from(range.start).ok()?, bytes))
        })
    }
}

/// Splits off the first encoded range, which follows one that ended at `end`. Returns its position,
/// its bytes, and the rest.
fn split(encoded: &[u8], end: usize) -> Option<(Range<usize>, &[u8], &[u8])> {
    let (gap, gap_len) = varint::get(encoded)?;
    let encoded = &encoded[gap_len..];
    let (len, len_len) = varint::get(encoded)?;
    let len = usize::try_from(len).ok()?;
    let (bytes, rest) = encoded[len_len..].split_at_checked(len)?;
    let start = end.checked_add(usize::try_from(gap).ok()?)?;
    Some((start..start.checked_add(len)?, bytes, rest))
}

/// Returns the encoded bytes of a range that follows one that ended at `end`.
pub(super) const fn encoded_len(end: usize, start: usize, len: usize) -> usize {
    varint::len((start - end) as u64) + varint::len(len as u64) + len
}

/// Returns the ranges of a payload that changed; `None` if they take more than `max_bytes` encoded,
/// or the lengths differ.
pub(crate) fn diff_ranges(old: &[u8], new: &[u8], max_bytes: usize) -> Option<Vec<Range<usize>>> {
    if old.len() != new.len() {
        return None;
    }
    let mut found = DiffBuilder { ranges: Vec::new(), end_before: 0, len: 0, max: max_bytes };
    let strides = old.chunks(STRIDE_BYTES).zip(new.chunks(STRIDE_BYTES));
    for (start, (old, new)) in (0..).step_by(STRIDE_BYTES).zip(strides) {
        if old == new {
            continue;
        }
        let (old_words, old_rest) = old.as_chunks::<8>();
        let (new_words, new_rest) = new.as_chunks::<8>();
        for (word, (old, new)) in old_words.iter().zip(new_words).enumerate() {
            let changed = u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new);
            if changed != 0 {
                let first = changed.trailing_zeros() as usize / 8;
                let end = 8 - changed.leading_zeros() as usize / 8;
                found.add(start + word * 8 + first..start + word * 8 + end)?;
            }
        }
        let start = start + old_words.len() * 8;
        for (at, _) in old_rest.iter().zip(new_rest).enumerate().filter(|(_, (old, new))| old != new) {
            found.add(start + at..start + at + 1)?;
        }
    }
    found.is_within().then_some(found.ranges)
}

/// The ranges found so far.
struct DiffBuilder {
    ranges: Vec<Range<usize>>,
    /// The end of the last range but one.
    end_before: usize,
    /// Encoded bytes of all but the last range.
    len: usize,
    max: usize,
}

impl DiffBuilder {
    /// Adds a range behind all others; `None` if they take too much.
    fn add(&mut self, range: Range<usize>) -> Option<()> {
        match self.ranges.last_mut() {
            Some(last) if range.start - last.end < GAP_BYTES_MIN => last.end = range.end,
            last => {
                if let Some(last) = last {
                    self.len += encoded_len(self.end_before, last.start, last.len());
                    self.end_before = last.end;
                }
                self.ranges.push(range);
            }
        }
        self.is_within().then_some(())
    }

    fn is_within(&self) -> bool {
        let last = self.ranges.last().map_or(0, |last| encoded_len(self.end_before, last.start, last.len()));
        self.len + last <= self.max
    }
}
