//! Syncs: how long fdatasync(2) takes after one page was appended, and after one was written over.

use std::time::{Duration, Instant};

use pagekeeper_io::{IoFile, WriteMode};
use serde::Serialize;

use crate::Result;
use crate::figures::{Random, percentile};
use crate::file::{BLOCK, BLOCK_BYTES, TestFile, drop_pages, random_piece, stamp};
use crate::mixed::random_offset;
use crate::run::Run;

/// How many intervals a kind takes.
pub(crate) const INTERVALS: u32 = 6;
/// No fewer than so many syncs are measured.
const MIN_SYNCS: usize = 10;
/// Bytes that are written over.
const AREA: u64 = 4 << 20;

/// How long syncs took, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SyncTimes {
    /// How many there were.
    pub count: usize,
    /// The median.
    pub p50_us: f64,
    /// What 99 of 100 did not exceed.
    pub p99_us: f64,
}

/// Syncs after one page of 4 KiB was written through the page cache; the write itself is not counted in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SyncReport {
    /// Behind the end of the file.
    pub append: SyncTimes,
    /// Over a random page that was written before.
    pub overwrite: SyncTimes,
}

/// Measures both.
pub(crate) fn measure(work: &Run<'_>) -> Result<SyncReport> {
    let mut random = Random::new(work.measure.seed);
    let appended = TestFile::new(&work.directory, &*work.io)?;
    let mut end = 0;
    let append = times(work, &*appended.buffered, || {
        end += BLOCK_BYTES;
        end - BLOCK_BYTES
    })?;
    drop(appended);
    let mut file = TestFile::new(&work.directory, &*work.io)?;
    file.fill(AREA, Duration::MAX, work)?;
    let overwrite = times(work, &*file.buffered, || random_offset(&mut random, &(0..AREA)))?;
    Ok(SyncReport { append, overwrite })
}

fn times(work: &Run<'_>, file: &dyn IoFile, mut next: impl FnMut() -> u64) -> Result<SyncTimes> {
    let mut block = random_piece(BLOCK);
    let (mut took, began) = (Vec::new(), Instant::now());
    while took.len() < MIN_SYNCS || began.elapsed() < work.intervals(INTERVALS) {
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
        let report = measure(&Run::for_test(dir.path())).unwrap();
        for times in [report.append, report.overwrite] {
            assert!(
                times.count >= MIN_SYNCS && times.p50_us > 0.0 && times.p99_us >= times.p50_us,
                "{report:?}"
            );
        }
    }
}
