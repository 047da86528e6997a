//! Splits a large copy by the kernel into parts, so that a rule can act in between. Reads and
//! writes are never split: the kernel holds the file and its offset for the whole call.
//!
//! Invariants: the parts follow each other without a gap. A short or failed part is the last. After
//! a failure the result is what was done before, as the kernel itself reports it. A copy of one
//! part is the call itself.

/// Bytes of a part.
pub const PART_BYTES: usize = 8 << 20;

/// Maximum bytes that the kernel reads, writes or copies in one call (`MAX_RW_COUNT`, read(2)).
pub const MAX_TRANSFER: usize = 0x7fff_f000;

/// Makes `call` for each part of `total` bytes, with the bytes done so far and the bytes requested.
/// Returns the sum of the results, or the failure of the first part.
///
/// ```
/// use pagekeeper_preload::parts::{PART_BYTES, in_parts};
///
/// assert_eq!(in_parts(2 * PART_BYTES + 5, |_done, asked| asked as isize), 2 * PART_BYTES as isize + 5);
/// let short = |done, _asked| if done == 0 { PART_BYTES as isize } else { -1 };
/// assert_eq!(in_parts(2 * PART_BYTES, short), PART_BYTES as isize);
/// ```
pub fn in_parts(total: usize, mut call: impl FnMut(usize, usize) -> isize) -> isize {
    let total = total.min(MAX_TRANSFER);
    let mut done = 0_usize;
    loop {
        let asked = total.saturating_sub(done).min(PART_BYTES);
        let result = call(done, asked);
        let Ok(more) = usize::try_from(result) else { return if done == 0 { result } else { done as isize } };
        done = done.saturating_add(more);
        if more < asked || done >= total {
            return done as isize;
        }
    }
}

#[cfg(all(test, not(feature = "interpose")))]
mod tests {
    use super::*;

    /// Returns the requests when each call returns the next of `results`.
    fn asked(total: usize, results: &[isize]) -> (isize, Vec<(usize, usize)>) {
        let mut calls = Vec::new();
        let result = in_parts(total, |done, asked| {
            calls.push((done, asked));
            results[calls.len() - 1]
        });
        (result, calls)
    }

    #[test]
    fn a_short_part_or_a_failure_is_the_last() {
        let part = PART_BYTES as isize;
        assert_eq!(asked(0, &[0]), (0, vec![(0, 0)]));
        assert_eq!(asked(5, &[-1]), (-1, vec![(0, 5)]));
        assert_eq!(asked(5, &[3]), (3, vec![(0, 5)]));
        assert_eq!(asked(PART_BYTES, &[part]), (part, vec![(0, PART_BYTES)]));
        let three = 2 * PART_BYTES + 7;
        let all = vec![(0, PART_BYTES), (PART_BYTES, PART_BYTES), (2 * PART_BYTES, 7)];
        assert_eq!(asked(three, &[part, part, 7]), (2 * part + 7, all.clone()));
        assert_eq!(asked(three, &[part, part, -1]), (2 * part, all));
        assert_eq!(asked(three, &[part, 0]), (part, vec![(0, PART_BYTES), (PART_BYTES, PART_BYTES)]));
        assert_eq!(asked(three, &[part - 1]), (part - 1, vec![(0, PART_BYTES)]));
    }

    #[test]
    fn no_more_is_asked_for_than_the_kernel_does() {
        let mut asked = 0;
        assert_eq!(
            in_parts(usize::MAX, |_, part| {
                asked += part;
                part as isize
            }),
            MAX_TRANSFER as isize
        );
        assert_eq!(asked, MAX_TRANSFER);
    }
}
