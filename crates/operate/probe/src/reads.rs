//! Latency and concurrency of the disk: random direct reads of 4 KiB, with 1, 4, 16, 64 and 256 in
//! flight.
//!
//! One thread keeps a batch of reads in flight, on a ring as deep as the case. With a depth of D,
//! read number N is submitted when completion number N - D arrives; this yields the time of each
//! read. The rate is counted while the ring is full.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Instant;

use pagekeeper_io::{AlignedBuf, BatchRead, Io, Threads, Uring};
use pagekeeper_policy::DepthProfile;
use serde::Serialize;

use crate::Result;
use crate::figures::{RandomNumbers, percentile};
use crate::file::{BLOCK_LEN, TestFile, check};
use crate::mixed::random_offset;
use crate::run::ProbeContext;

/// Intervals per depth.
pub(crate) const READ_INTERVALS: u32 = 8;
/// Reads in flight.
const READ_DEPTHS: [u32; 5] = [1, 4, 16, 64, 256];

/// Latency and throughput of random reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadsReport {
    /// The back-end that read: "`io_uring`", or "threads".
    pub by: String,
    /// The reason why `io_uring` was not used, if so.
    pub not_uring: Option<String>,
    /// Whether direct I/O was used. Otherwise the reads were buffered, each of a cold page.
    pub direct: bool,
    /// Size of the file that they are spread over, in bytes.
    pub file_bytes: u64,
    /// Results by the number of reads in flight.
    pub depths: Vec<DepthProfile>,
}

/// Measures all depths.
pub(crate) fn measure(work: &ProbeContext<'_>, file: &TestFile) -> Result<ReadsReport> {
    let mut random = RandomNumbers::new(work.measure.seed);
    let mut depths = Vec::new();
    let mut rate = 1000.0;
    let mut by = "";
    for depth in READ_DEPTHS {
        let io: Arc<dyn Io> = match Uring::with_depth(depth) {
            Ok(uring) => Arc::new(uring),
            Err(_) => Arc::new(Threads::with_threads(depth as usize)),
        };
        by = io.name();
        let found = of_depth(work, file, &*io, depth, rate, &mut random)?;
        rate = found.per_second.max(1.0);
        depths.push(found);
    }
    Ok(ReadsReport {
        by: by.to_owned(),
        not_uring: work.not_uring.clone(),
        direct: file.direct.is_ok(),
        file_bytes: file.len,
        depths,
    })
}

/// Measures one depth. `rate` is the expected number of reads per second: it limits the length of
/// batches, so that a request to stop is noticed in time.
fn of_depth(
    work: &ProbeContext<'_>,
    file: &TestFile,
    io: &dyn Io,
    depth: u32,
    rate: f64,
    random: &mut RandomNumbers,
) -> Result<DepthProfile> {
    let depth_len = depth as usize;
    let time = work.intervals(READ_INTERVALS);
    let began = Instant::now();
    let (mut lengths, mut full, mut seconds) = (Vec::new(), 0, 0.0);
    let mut rate = rate;
    while lengths.is_empty() || began.elapsed() < time {
        work.check()?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small number, not negative"
        )]
        let wanted = (rate * 0.1) as usize;
        let count = wanted.clamp(2 * depth_len, 64.max(16 * depth_len));
        let batch = if depth == 1 {
            alone(file, count, random)?
        } else {
            together(file, io, depth_len, count, random)?
        };
        full += batch.full;
        seconds += batch.seconds;
        rate = batch.full as f64 / batch.seconds.max(1e-9);
        lengths.extend(batch.lengths);
    }
    Ok(DepthProfile {
        depth,
        per_second: full as f64 / seconds.max(1e-9),
        p50_us: percentile(&mut lengths, 500),
        p99_us: percentile(&mut lengths, 990),
    })
}

#[derive(Default)]
struct ReadBatch {
    /// Time of each read in microseconds.
    lengths: Vec<f64>,
    /// Reads that completed while the intended number was in flight.
    full: usize,
    /// Duration of those in seconds.
    seconds: f64,
}

/// Reads blocks one after the other.
fn alone(file: &TestFile, count: usize, random: &mut RandomNumbers) -> Result<ReadBatch> {
    let nearest = &**file.nearest();
    if file.direct.is_err() {
        file.drop_pages()?;
    }
    let mut block = AlignedBuf::new(BLOCK_LEN);
    let mut batch = ReadBatch { full: count, ..ReadBatch::default() };
    for _ in 0..count {
        let offset = random_offset(random, &(0..file.len));
        let began = Instant::now();
        nearest.read_at(offset, &mut block)?;
        let took = began.elapsed().as_secs_f64();
        check(&block, nearest, offset)?;
        batch.lengths.push(took * 1e6);
        batch.seconds += took;
    }
    Ok(batch)
}

/// Reads blocks with `depth` of them in flight.
fn together(
    file: &TestFile,
    io: &dyn Io,
    depth: usize,
    count: usize,
    random: &mut RandomNumbers,
) -> Result<ReadBatch> {
    let nearest = &**file.nearest();
    if file.direct.is_err() {
        file.drop_pages()?;
    }
    let mut memory = AlignedBuf::new(count * BLOCK_LEN);
    // Touches the memory, so that no read waits for it.
    memory.fill(1);
    let offsets: Vec<u64> = (0..count).map(|_| random_offset(random, &(0..file.len))).collect();
    let mut reads: Vec<BatchRead<'_>> = memory
        .chunks_mut(BLOCK_LEN)
        .zip(&offsets)
        .map(|(block, offset)| BatchRead {
            file: nearest,
            offset: *offset,
            bufs: vec![IoSliceMut::new(block)],
        })
        .collect();
    let mut ended: Vec<(usize, Instant)> = Vec::with_capacity(count);
    let mut failed = None;
    let began = Instant::now();
    io.read_batch(&mut reads, &mut |index, result| {
        ended.push((index, Instant::now()));
        if let Err(error) = result {
            failed.get_or_insert(error);
        }
    });
    drop(reads);
    if let Some(error) = failed {
        return Err(error.into());
    }
    for (block, offset) in memory.chunks(BLOCK_LEN).zip(&offsets) {
        check(block, nearest, *offset)?;
    }
    let full = count - depth;
    let last = ended.get(full.saturating_sub(1)).map_or(began, |(_, at)| *at);
    let submitted = |index: usize| index.checked_sub(depth).map_or(began, |before| ended[before].1);
    let lengths = ended
        .iter()
        .map(|(index, at)| at.saturating_duration_since(submitted(*index)).as_secs_f64() * 1e6)
        .collect();
    Ok(ReadBatch { lengths, full, seconds: last.duration_since(began).as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pagekeeper_io::Access;
    use pagekeeper_simdisk::SimDisk;

    use super::*;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn every_depth_is_measured() {
        let dir = disk_dir();
        let work = ProbeContext::for_test(dir.path());
        let mut file = TestFile::new(&work.directory, &*work.io).unwrap();
        file.fill(8 << 20, Duration::MAX, &work).unwrap();
        let report = measure(&work, &file).unwrap();
        assert_eq!(report.depths.iter().map(|found| found.depth).collect::<Vec<_>>(), READ_DEPTHS);
        for found in &report.depths {
            assert!(
                found.per_second > 0.0 && found.p50_us > 0.0 && found.p99_us >= found.p50_us,
                "{found:?}"
            );
        }
        assert_eq!(report.not_uring.is_some(), report.by == "threads");
    }

    #[test]
    fn all_reads_of_a_batch_are_counted() {
        // A disk that is independent of the machine.
        let disk = SimDisk::new();
        let blocks: Vec<u8> = (0..64_u64)
            .flat_map(|block| {
                let mut bytes = vec![0; BLOCK_LEN];
                crate::file::stamp(&mut bytes, block * BLOCK_LEN as u64);
                bytes
            })
            .collect();
        disk.create("/file", blocks).unwrap();
        let open = |access| disk.open("/file".as_ref(), access).unwrap();
        let file =
            TestFile { buffered: open(Access::Buffered), direct: Ok(open(Access::Direct)), len: 64 * 4096 };
        let batch = together(&file, &disk, 4, 32, &mut RandomNumbers::new(3)).unwrap();
        assert_eq!((batch.lengths.len(), batch.full), (32, 28));
        let batch = alone(&file, 5, &mut RandomNumbers::new(3)).unwrap();
        assert_eq!((batch.lengths.len(), batch.full), (5, 5));
    }
}
