//! Ranges of bytes in ascending order.

use std::ops::Range;

/// Appends a range to ascending ranges. Joins it with the last one where the two meet, or where the
/// gap between them is less than `gap` bytes. It must not start below the last range's start.
///
/// ```
/// use pagekeeper_policy::ranges::append;
///
/// let mut ranges = vec![0..10];
/// append(&mut ranges, 10..20, 0);
/// append(&mut ranges, 24..30, 5);
/// append(&mut ranges, 35..40, 5);
/// assert_eq!(ranges, [0..30, 35..40]);
/// ```
pub fn append(ranges: &mut Vec<Range<u64>>, range: Range<u64>, gap: u64) {
    match ranges.last_mut() {
        Some(last) if range.start <= last.end || range.start < last.end.saturating_add(gap) => {
            last.end = last.end.max(range.end);
        }
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]
    fn ranges_that_meet_or_nearly_do_are_one() {
        for (second, gap, expected) in [
            (10..20, 0, vec![0..20]),
            (5..8, 0, vec![0..10]),
            (5..20, 0, vec![0..20]),
            (11..20, 0, vec![0..10, 11..20]),
            (11..20, 1, vec![0..10, 11..20]),
            (11..20, 2, vec![0..20]),
            (11..20, u64::MAX, vec![0..20]),
        ] {
            let mut ranges = Vec::new();
            append(&mut ranges, 0..10, gap);
            append(&mut ranges, second, gap);
            assert_eq!(ranges, expected);
        }
    }
}
