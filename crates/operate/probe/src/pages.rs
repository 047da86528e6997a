//! The pages that one small read brings into the page cache, and the cost of releasing pages.

use std::time::{Duration, Instant};

use pagekeeper_io::AlignedBuf;
use serde::Serialize;

use crate::Result;
use crate::figures::{RandomNumbers, median};
use crate::file::{BLOCK_LEN, TestFile, check};
use crate::mixed::random_offset;
use crate::run::ProbeContext;

/// Number of small reads.
const SMALL_READS: usize = 9;
/// Bytes that are made resident and released.
const SEQUENTIAL_BYTES: u64 = 256 << 20;
/// Bytes that are made resident as single pages.
const SCATTERED_BYTES: u64 = 32 << 20;
/// Time limit for making them resident, per round.
const LOAD_TIME_MAX: Duration = Duration::from_millis(600);
/// Number of measurements.
const RELEASE_ROUNDS: usize = 3;

/// Results about read-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReadAheadReport {
    /// The disk's setting (`read_ahead_kb`) in bytes; `None` if unknown.
    pub setting_bytes: Option<u64>,
    /// Bytes that one cold read of 4 KiB at a random offset made resident: the median. `None` if
    /// unknown.
    pub random_bytes: Option<f64>,
    /// The same at the start of the file, where the kernel assumes a sequential reader.
    pub start_bytes: Option<f64>,
}

/// Measures how much small reads bring in.
pub(crate) fn read_ahead(work: &ProbeContext<'_>, file: &TestFile) -> Result<ReadAheadReport> {
    let mut random = RandomNumbers::new(work.measure.seed);
    let mut block = AlignedBuf::new(BLOCK_LEN);
    let (mut at_random, mut at_start) = (Vec::new(), Vec::new());
    for number in 0..2 * SMALL_READS {
        work.check()?;
        file.drop_pages()?;
        let is_start = number % 2 == 0;
        let offset = if is_start { 0 } else { random_offset(&mut random, &(file.len / 4..file.len / 4 * 3)) };
        file.buffered.read_at(offset, &mut block)?;
        check(&block, &*file.buffered, offset)?;
        if let Some(found) = file.resident(0..u64::MAX)? {
            if is_start { at_start.push(found as f64) } else { at_random.push(found as f64) }
        }
    }
    file.drop_pages()?;
    Ok(ReadAheadReport {
        setting_bytes: work.directory.read_ahead,
        random_bytes: median(&at_random),
        start_bytes: median(&at_start),
    })
}

/// The cost of releasing clean pages (`POSIX_FADV_DONTNEED`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReleaseReport {
    /// Microseconds per GiB of pages that were read sequentially. The kernel keeps them in large
    /// folios if the file system supports that.
    pub sequential_us_per_gib: Option<f64>,
    /// Microseconds per GiB of pages that were read one by one.
    pub scattered_us_per_gib: Option<f64>,
    /// Bytes that stayed resident after a release of the whole file: the maximum of all rounds.
    /// `None` if unknown.
    pub left_bytes: Option<u64>,
}

/// Measures releases.
pub(crate) fn release(work: &ProbeContext<'_>, file: &TestFile) -> Result<ReleaseReport> {
    let (mut sequential, mut scattered, mut left) = (Vec::new(), Vec::new(), None);
    for _ in 0..RELEASE_ROUNDS {
        for (is_sequential, took) in [(true, &mut sequential), (false, &mut scattered)] {
            file.drop_pages()?;
            let range = 0..bring(work, file, is_sequential)?;
            let resident = file.resident(range.clone())?.unwrap_or(range.end);
            let began = Instant::now();
            file.buffered.release(0..u64::MAX)?;
            let seconds = began.elapsed().as_secs_f64();
            if resident > 0 {
                took.push(seconds * 1e6 / resident as f64 * f64::from(1 << 30));
            }
            left = left.max(file.resident(range)?);
        }
    }
    Ok(ReleaseReport {
        sequential_us_per_gib: median(&sequential),
        scattered_us_per_gib: median(&scattered),
        left_bytes: left,
    })
}

/// Makes the start of the file resident, as far as the time allows. Returns how far.
fn bring(work: &ProbeContext<'_>, file: &TestFile, is_sequential: bool) -> Result<u64> {
    let began = Instant::now();
    let step: u64 = 1 << 20;
    let end = if is_sequential { SEQUENTIAL_BYTES } else { SCATTERED_BYTES }.min(file.len);
    let mut piece = AlignedBuf::new(1 << 20);
    let mut offset = 0;
    while offset < end && (offset == 0 || began.elapsed() < LOAD_TIME_MAX) {
        work.check()?;
        if is_sequential {
            file.buffered.read_at(offset, &mut piece)?;
        } else {
            // From the last page to the first, so that the kernel does not detect a sequential
            // reader.
            for page in (0..piece.len()).step_by(BLOCK_LEN).rev() {
                file.buffered.read_at(offset + page as u64, &mut piece[page..page + BLOCK_LEN])?;
            }
        }
        check(&piece, &*file.buffered, offset)?;
        offset += step;
    }
    Ok(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn small_reads_and_releases_are_measured() {
        let dir = disk_dir();
        let work = ProbeContext::for_test(dir.path());
        let mut file = TestFile::new(&work.directory, &*work.io).unwrap();
        file.fill(8 << 20, Duration::MAX, &work).unwrap();
        let report = read_ahead(&work, &file).unwrap();
        assert!(report.random_bytes.is_none_or(|bytes| bytes >= 4096.0), "{report:?}");
        let report = release(&work, &file).unwrap();
        assert!(report.sequential_us_per_gib.unwrap() > 0.0 && report.scattered_us_per_gib.unwrap() > 0.0);
        assert_eq!(file.resident(0..u64::MAX).unwrap().unwrap_or(0), report.left_bytes.unwrap_or(0));
    }
}
