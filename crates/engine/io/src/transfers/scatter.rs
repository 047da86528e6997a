//! Lists of pieces of memory in the kernel's form (`struct iovec`).
//!
//! Nothing here reads or writes the memory.

use std::borrow::Cow;
use std::io::IoSliceMut;

use libc::iovec;

use crate::ReadTarget;

/// Maximum number of pieces per call: `IOV_MAX` of limits.h, which Linux has never changed.
pub(crate) const PIECES_MAX: usize = 1024;

/// Returns the buffers of a batch read as a list.
pub(crate) fn of_slices<'a>(bufs: &'a [IoSliceMut<'_>]) -> &'a [iovec] {
    // SAFETY: "IoSliceMut is guaranteed to be ABI compatible with the iovec type on Unix platforms"
    // (its docs), so a slice of the one is a slice of the other, with the same length and lifetime.
    #[expect(unsafe_code, reason = "the standard library has no safe way to see an IoSliceMut as an iovec")]
    unsafe {
        std::slice::from_raw_parts(bufs.as_ptr().cast(), bufs.len())
    }
}

/// Returns the targets of a background read as a list.
pub(crate) fn of_targets(targets: &[ReadTarget]) -> &[iovec] {
    // SAFETY: `ReadTarget` is `repr(transparent)` over iovec.
    #[expect(unsafe_code, reason = "a change of type only")]
    unsafe {
        std::slice::from_raw_parts(targets.as_ptr().cast(), targets.len())
    }
}

/// Returns the total length in bytes.
pub fn total(pieces: &[iovec]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

/// Whether each piece begins and ends at a multiple of `align` bytes.
pub fn are_aligned(pieces: &[iovec], align: usize) -> bool {
    pieces
        .iter()
        .all(|piece| piece.iov_base.addr().is_multiple_of(align) && piece.iov_len.is_multiple_of(align))
}

/// Returns the pieces after their first `done` bytes, at most `PIECES_MAX` of them.
pub fn rest(pieces: &[iovec], done: usize) -> Cow<'_, [iovec]> {
    if done == 0 {
        return Cow::Borrowed(&pieces[..pieces.len().min(PIECES_MAX)]);
    }
    let mut skip = done;
    let mut left = Vec::new();
    for piece in pieces {
        if skip >= piece.iov_len {
            skip -= piece.iov_len;
            continue;
        }
        left.push(iovec { iov_base: piece.iov_base.wrapping_byte_add(skip), iov_len: piece.iov_len - skip });
        skip = 0;
        if left.len() == PIECES_MAX {
            break;
        }
    }
    Cow::Owned(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(pieces: &[iovec]) -> Vec<usize> {
        pieces.iter().map(|piece| piece.iov_len).collect()
    }

    #[test]
    fn the_rest_starts_behind_the_finished_part() {
        let (mut a, mut b, mut c) = ([0_u8; 3], [0_u8; 5], [0_u8; 2]);
        let second = b.as_ptr();
        let bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)];
        let pieces = of_slices(&bufs);
        assert_eq!(total(pieces), 10);
        assert_eq!(lengths(&rest(pieces, 0)), [3, 5, 2]);
        assert_eq!(lengths(&rest(pieces, 2)), [1, 5, 2]);
        assert_eq!(lengths(&rest(pieces, 3)), [5, 2]);
        let left = rest(pieces, 7);
        assert_eq!(lengths(&left), [1, 2]);
        assert_eq!(left[0].iov_base.cast_const().cast::<u8>(), second.wrapping_add(4));
        assert_eq!(lengths(&rest(pieces, 10)), [0; 0]);
    }

    #[test]
    fn no_call_gets_more_pieces_than_it_takes() {
        let mut memory = vec![0_u8; PIECES_MAX + 7];
        let bufs: Vec<_> = memory.chunks_mut(1).map(IoSliceMut::new).collect();
        assert_eq!(rest(of_slices(&bufs), 0).len(), PIECES_MAX);
        assert_eq!(rest(of_slices(&bufs), 1).len(), PIECES_MAX);
        assert_eq!(rest(of_slices(&bufs), PIECES_MAX).len(), 7);
    }
}
