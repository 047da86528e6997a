//! Releases a range of a file in pieces, so that a deadline is kept.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::pages::release::{ReleaseOptions, release};
use crate::pages::writeback::FlushMode;
use crate::{InspectedFile, Result};

/// The time is checked between two pieces of this many bytes.
const PIECE_BYTES: u64 = 1 << 30;

/// Releases a range, as far as there is time. Returns the bytes released, the bytes that stayed,
/// and the rest of the range.
pub fn release_pieces(
    file: &InspectedFile,
    range: &Range<u64>,
    deadline: Instant,
) -> Result<(u64, u64, Option<Range<u64>>)> {
    let (mut released, mut kept) = (0, 0);
    let mut start = range.start;
    while start < range.end {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() && start > range.start {
            return Ok((released, kept, Some(start..range.end)));
        }
        let options = ReleaseOptions {
            flush: FlushMode::Watch,
            patience: left,
            retry_pause: Duration::ZERO,
            explain: false,
        };
        let end = (start + PIECE_BYTES).min(range.end);
        let report = release(file, start..end, &options)?;
        released += report.released;
        kept += report.kept();
        start = end;
    }
    Ok((released, kept, None))
}
