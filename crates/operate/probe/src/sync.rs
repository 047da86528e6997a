//! Syncs: the time of fdatasync(2) after one page was appended, and after one was overwritten.

use std::time::{Duration, Instant};

use pagekeeper_io::{IoFile, WriteMode};
use serde::Serialize;

use crate::Result;
use crate::figures::{RandomNumbers, percentile};
use crate::file::{BLOCK_BYTES, BLOCK_LEN, TestFile, drop_pages, random_piece, stamp};
use crate::mixed::random_offset;
use crate::run::ProbeContext;

/// Intervals per kind.
pub(crate) const SYNC_INTERVALS: u32 = 6;
/// Minimum number of syncs per kind.
const SYNCS_MIN: usize = 10;
/// Size of the part that is overwritten, in bytes.
const OVERWRITE_BYTES: u64 = 4 << 20;

/// Times of syncs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SyncTimes {
    /// Number of syncs.
    pub count: usize,
    /// The median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
}

/// Syncs after one page of 4 KiB was written through the page cache. The write itself is not
/// included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SyncReport {
    /// After an append.
    pub append: SyncTimes,
    /// After a random page was overwritten.
    pub overwrite: SyncTimes,
}

/// Measures both kinds.
pub(crate) fn measure(work: &ProbeContext<'_>) -> Result<SyncReport> {
    let mut random = RandomNumbers::new(work.measure.seed);
    let appended = TestFile::new(&work.directory, &*work.io)?;
    let mut end = 0;
    let append = times(work, &*appended.buffered, || {
        end += BLOCK_BYTES;
        end - BLOCK_BYTES
    })?;
    drop(appended);
    let mut file = TestFile::new(&work.directory, &*work.io)?;
    file.fill(OVERWRITE_BYTES, Duration::MAX, work)?;
    let overwrite = times(work, &*file.buffered, || random_offset(&mut random, &(0..OVERWRITE_BYTES)))?;
    Ok(SyncReport { append, overwrite })
}

fn times(work: &ProbeContext<'_>, file: &dyn IoFile, mut next: impl FnMut() -> u64) -> Result<SyncTimes> {
    let mut block = random_piece(BLOCK_LEN);
    let (mut took, began) = (Vec::new(), Instant::now());
    while took.len() < SYNCS_MIN || began.elapsed() < work.intervals(SYNC_INTERVALS) {
        work.check()?;
        let offset = next();
        stamp(&mut block, offset);
        file.write_at(offset, &block, WriteMode::Plain)?;
        let syncing = Instant::now();
        file.sync_data()?;
        took.push(syncing.elapsed().as_secs_f64() * 1e6);
    }
    drop_pages(file)?;
    let count = took.len();
    Ok(SyncTimes { count, p50_us: percentile(&mut took, 500), p99_us: percentile(&mut took, 990) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn both_kinds_are_measured() {
        let dir = disk_dir();
        let report = measure(&ProbeContext::for_test(dir.path())).unwrap();
        for times in [report.append, report.overwrite] {
            assert!(
                times.count >= SYNCS_MIN && times.p50_us > 0.0 && times.p99_us >= times.p50_us,
                "{report:?}"
            );
        }
    }
}
