//! Decides whether a process goes through its files once, as a stream does, or comes back to data
//! it read and wrote, as a database does.
//!
//! A transfer that starts at or before the file's furthest offset and extends it is *in order*. The
//! bytes of a transfer below the furthest offset come *again*. A transfer that skips ahead is
//! neither.
//!
//! Invariant: no byte of a transfer counts twice. Nothing is allocated.

/// Bytes in order, or again, after which a process is judged.
pub const STREAM_BYTES: u64 = 64 << 20;
/// A stream rereads at most one byte per this many bytes in order: headers that are written last,
/// indexes that are read first.
const IN_ORDER_PER_REREAD: u64 = 8;

/// The furthest offset reached in one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilePassage {
    furthest: u64,
}

/// Transferred bytes of one file or of a whole process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassedBytes {
    /// Bytes in order.
    pub in_order: u64,
    /// Bytes at offsets that the process had passed before.
    pub again: u64,
}

impl FilePassage {
    /// Returns the state of an untouched file.
    pub const fn new() -> Self {
        Self { furthest: 0 }
    }

    /// Records a transfer of `length` bytes at offset `at`.
    pub fn passed(&mut self, at: u64, length: u64) -> PassedBytes {
        let end = at.saturating_add(length);
        let again = self.furthest.min(end).saturating_sub(at);
        let is_in_order = at <= self.furthest;
        let in_order = if is_in_order { end.saturating_sub(self.furthest.max(at)) } else { 0 };
        self.furthest = self.furthest.max(end);
        PassedBytes { in_order, again }
    }
}

impl PassedBytes {
    /// Whether a process with these transfers is a stream; `None` if they are too few to judge.
    pub fn is_stream(self) -> Option<bool> {
        let is_much = self.in_order.max(self.again) >= STREAM_BYTES;
        is_much.then(|| self.again.saturating_mul(IN_ORDER_PER_REREAD) <= self.in_order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sum of transfers on one file.
    fn sum(transfers: impl Iterator<Item = (u64, u64)>) -> PassedBytes {
        let mut passage = FilePassage::new();
        transfers.fold(PassedBytes::default(), |sum, (at, length)| {
            let PassedBytes { in_order, again } = passage.passed(at, length);
            PassedBytes { in_order: sum.in_order + in_order, again: sum.again + again }
        })
    }

    #[test]
    fn a_stream_is_known_by_its_first_bytes() {
        let copied = sum((0..1024).map(|nth| (nth << 16, 1 << 16)));
        assert_eq!(
            (copied, copied.is_stream()),
            (PassedBytes { in_order: STREAM_BYTES, again: 0 }, Some(true))
        );
        let half = sum((0..512).map(|nth| (nth << 16, 1 << 16)));
        assert_eq!(half.is_stream(), None);
        // A header written at the end.
        let headed = sum((0..1024).map(|nth| (nth << 16, 1 << 16)).chain([(0, 4096)]));
        assert_eq!(headed.is_stream(), Some(true));
    }

    #[test]
    fn a_reader_that_comes_back_is_not_once_through() {
        let mut state = 1_u64;
        let random = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 34 << 14 & 0xfff_c000, 1 << 14)
        });
        assert_eq!(sum(random.take(8192)).is_stream(), Some(false));
        let twice = sum((0..4096).map(|nth| ((nth % 2048) << 16, 1 << 16)));
        assert_eq!(twice.is_stream(), Some(false));
    }

    proptest::proptest! {
        #[test]
        fn no_byte_counts_twice(transfers: Vec<(u64, u64)>) {
            let mut passage = FilePassage::new();
            for (at, length) in transfers {
                let PassedBytes { in_order, again } = passage.passed(at, length);
                let length = length.min(u64::MAX - at);
                proptest::prop_assert!(u128::from(in_order) + u128::from(again) <= u128::from(length));
            }
        }
    }
}
