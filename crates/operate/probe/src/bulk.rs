//! Small writes that are never synced, next to a bulk writer on the same disk.
//!
//! A thread appends 4 KiB to a file about once per millisecond; only the write(2) is timed. The
//! data goes to the page cache, so the call has nothing of its own to wait for. Times above those
//! of the idle case show that the kernel made it wait, for the bulk writer's dirty pages or for a
//! processor. The kernel's dirty limits are left as they are. Buffered output harms others only
//! beyond them, and the report says whether it got there in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use pagekeeper_bulk::{BulkMode, BulkWriter};
use pagekeeper_io::{IoFile, WriteMode};
use pagekeeper_kernel::pressure::DirtyReport;
use pagekeeper_policy::BulkProfile;
use serde::Serialize;

use crate::events::EventCounter;
use crate::figures::{RandomNumbers, median, percentile};
use crate::file::{BLOCK_BYTES, BLOCK_LEN, TestFile, UnnamedFiles, bulk_path, random_piece, stamp};
use crate::run::{MeasureOptions, ProbeContext};
use crate::{Error, Result};

/// Intervals per case and round.
pub(crate) const BULK_INTERVALS: u32 = 12;
/// Time between two appends.
const APPEND_INTERVAL: Duration = Duration::from_millis(1);
/// Bytes that the bulk writer is given at a time.
const BULK_WRITE_BYTES: usize = 1 << 20;
/// The name of the appending thread, by which its throttling pauses are found.
const APPENDER_THREAD: &str = "probe-append";

/// Returns how often each case is measured.
pub(crate) fn rounds(measure: &MeasureOptions) -> u32 {
    measure.rounds.div_ceil(5)
}

/// Returns the maximum of bulk output that is on the disk at a time, in bytes.
pub(crate) fn max_bytes(measure: &MeasureOptions) -> u64 {
    measure.file_bytes
}

/// The bulk output next to the appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkOutput {
    /// No output.
    Idle,
    /// Buffered output that waits for its own writeback.
    Paced,
    /// Direct output.
    Direct,
    /// Uncached output, whose pages the kernel drops by itself, and which waits for its writeback.
    Uncached,
    /// Plain output through the page cache.
    Buffered,
}

impl BulkOutput {
    fn mode(self) -> Option<BulkMode> {
        match self {
            Self::Idle => None,
            Self::Paced => Some(BulkMode::Paced),
            Self::Direct => Some(BulkMode::Direct),
            Self::Uncached => Some(BulkMode::Uncached),
            Self::Buffered => Some(BulkMode::Buffered),
        }
    }
}

/// The results of one case in all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BulkCase {
    /// The bulk output next to the appends.
    pub beside: BulkOutput,
    /// Number of appends.
    pub appends: usize,
    /// Median time of an append, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, in microseconds; with fewer than 1000 appends, the maximum.
    pub p999_us: f64,
    /// The maximum, in microseconds.
    pub longest_us: f64,
    /// The number of times that the kernel throttled the appending thread for dirty pages; `None`
    /// if that is not counted.
    pub pauses: Option<u64>,
    /// Throughput of the bulk writer including its last sync, in bytes per second. `None` for idle
    /// and buffered cases: buffered output is discarded before all of it is on the disk.
    pub bytes_per_second: Option<f64>,
}

/// With fewer appends than this, the 99.9th percentile would be a single append, by accident.
const TAIL_APPENDS_MIN: usize = 1000;

impl BulkCase {
    /// Returns the 99.9th percentile, or the 99th with fewer than 1000 appends.
    fn tail_us(&self) -> f64 {
        if self.appends >= TAIL_APPENDS_MIN { self.p999_us } else { self.p99_us }
    }
}

/// Small writes next to bulk output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BulkReport {
    /// All cases, the idle one first.
    pub cases: Vec<BulkCase>,
    /// Bytes of dirty pages at which the kernel starts to slow writers down; `None` if unknown.
    pub slows_from_bytes: Option<u64>,
    /// Maximum size of buffered output in bytes: at most a quarter of the available memory.
    pub buffered_bytes_max: u64,
}

impl BulkReport {
    /// Returns the case with this bulk output, if it was measured.
    pub fn case(&self, beside: BulkOutput) -> Option<&BulkCase> {
        self.cases.iter().find(|case| case.beside == beside)
    }

    /// Whether buffered output was large enough to reach the kernel's limits, so that its effect on
    /// others shows.
    pub fn buffered_reached_limits(&self) -> bool {
        let throttled = self.case(BulkOutput::Buffered).and_then(|case| case.pauses).unwrap_or(0) > 0;
        throttled || self.slows_from_bytes.is_some_and(|from| from <= self.buffered_bytes_max)
    }

    /// Returns the short form for a disk profile.
    pub fn profile(&self) -> Option<BulkProfile> {
        let us = |beside| self.case(beside).map(BulkCase::tail_us);
        let rate = |beside| self.case(beside)?.bytes_per_second;
        let rates = [BulkOutput::Paced, BulkOutput::Direct, BulkOutput::Uncached].map(rate);
        Some(BulkProfile {
            idle_us: us(BulkOutput::Idle)?,
            buffered_us: us(BulkOutput::Buffered)?,
            paced_us: us(BulkOutput::Paced)?,
            direct_us: us(BulkOutput::Direct),
            uncached_us: us(BulkOutput::Uncached),
            bytes_per_second: rates.into_iter().flatten().max_by(f64::total_cmp)?,
            paced_bytes_per_second: rates[0],
            direct_bytes_per_second: rates[1],
            uncached_bytes_per_second: rates[2],
        })
    }
}

#[derive(Debug, Default)]
struct BulkSample {
    us: Vec<f64>,
    pauses: Option<u64>,
    rate: Option<f64>,
}

/// Measures all cases that are available here.
pub(crate) fn measure(work: &ProbeContext<'_>, events: &mut EventCounter) -> Result<BulkReport> {
    let limits = DirtyReport::read(&work.directory.roots).ok();
    let limits = limits.map(|report| report.kernel_thresholds.unwrap_or(report.thresholds));
    let buffered_bytes_max = work.directory.dirty_allowance(max_bytes(&work.measure))?;
    let io = UnnamedFiles::shared(Arc::clone(&work.io));
    let mut besides = vec![BulkOutput::Idle, BulkOutput::Paced];
    for beside in [BulkOutput::Direct, BulkOutput::Uncached] {
        let output =
            options(&io, beside).map(|options| options.create(bulk_path(&work.directory))).transpose()?;
        // The writer falls back to another mode if this one is not available.
        if output.is_some_and(|output| Some(output.mode()) == beside.mode()) {
            besides.push(beside);
        }
    }
    besides.push(BulkOutput::Buffered);
    let mut random = RandomNumbers::new(work.measure.seed);
    let mut samples: Vec<Vec<BulkSample>> = besides.iter().map(|_| Vec::new()).collect();
    let mut order: Vec<usize> = (0..besides.len()).collect();
    for _ in 0..rounds(&work.measure) {
        random.shuffle(&mut order);
        for &index in &order {
            samples[index].push(sample(work, besides[index], &io, buffered_bytes_max, events)?);
        }
    }
    let cases = besides.iter().zip(samples).map(|(beside, samples)| case(*beside, samples)).collect();
    let slows_from_bytes = limits.map(|limits| limits.background.midpoint(limits.limit));
    Ok(BulkReport { cases, slows_from_bytes, buffered_bytes_max })
}

fn options(io: &Arc<dyn pagekeeper_io::Io>, beside: BulkOutput) -> Option<pagekeeper_bulk::BulkOptions> {
    Some(BulkWriter::options().mode(beside.mode()?).io(Arc::clone(io)))
}

fn case(beside: BulkOutput, samples: Vec<BulkSample>) -> BulkCase {
    let rates: Vec<f64> = samples.iter().filter_map(|sample| sample.rate).collect();
    let pauses: Option<Vec<u64>> = samples.iter().map(|sample| sample.pauses).collect();
    let mut us: Vec<f64> = samples.into_iter().flat_map(|sample| sample.us).collect();
    BulkCase {
        beside,
        appends: us.len(),
        p50_us: percentile(&mut us, 500),
        p99_us: percentile(&mut us, 990),
        p999_us: percentile(&mut us, 999),
        longest_us: percentile(&mut us, 1000),
        pauses: pauses.map(|pauses| pauses.iter().sum()),
        bytes_per_second: median(&rates),
    }
}

fn sample(
    work: &ProbeContext<'_>,
    beside: BulkOutput,
    io: &Arc<dyn pagekeeper_io::Io>,
    buffered_bytes_max: u64,
    events: &mut EventCounter,
) -> Result<BulkSample> {
    work.check()?;
    let log = TestFile::new(&work.directory, &*work.io)?;
    let over = AtomicBool::new(false);
    events.take();
    let (us, rate) = std::thread::scope(|scope| {
        let appender = Builder::new()
            .name(APPENDER_THREAD.to_owned())
            .spawn_scoped(scope, || append_until(&over, &*log.buffered))
            .map_err(|error| Error::call("start a thread for", &work.directory.directory, error))?;
        let rate = write_bulk(work, beside, io, buffered_bytes_max, &over);
        over.store(true, Ordering::Relaxed);
        let us = match appender.join() {
            Ok(us) => us,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok::<_, Error>((us?, rate?))
    })?;
    let pauses = events.take().and_then(|counts| counts.pauses).map(|pauses| {
        let ours = pauses.iter().filter(|pauses| pauses.task.name == APPENDER_THREAD);
        ours.map(|pauses| pauses.pauses.count()).sum()
    });
    Ok(BulkSample { us, pauses, rate })
}

/// Appends until it is over. Returns the time of each append in microseconds.
fn append_until(over: &AtomicBool, log: &dyn IoFile) -> Result<Vec<f64>> {
    let mut block = random_piece(BLOCK_LEN);
    let (mut us, mut offset, mut due) = (Vec::new(), 0, Instant::now());
    while !over.load(Ordering::Relaxed) {
        stamp(&mut block, offset);
        let began = Instant::now();
        log.write_at(offset, &block, WriteMode::Plain)?;
        us.push(began.elapsed().as_secs_f64() * 1e6);
        offset += BLOCK_BYTES;
        // Appends that a stall made late are skipped: a burst would be a different load.
        due = (due + APPEND_INTERVAL).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(us)
}

/// Writes for the time of a sample, and sets `over` at its end. Returns the throughput in bytes per
/// second until everything is durable.
fn write_bulk(
    work: &ProbeContext<'_>,
    beside: BulkOutput,
    io: &Arc<dyn pagekeeper_io::Io>,
    buffered_bytes_max: u64,
    over: &AtomicBool,
) -> Result<Option<f64>> {
    let time = work.intervals(BULK_INTERVALS);
    let began = Instant::now();
    let Some(options) = options(io, beside) else {
        while began.elapsed() < time {
            work.check()?;
            std::thread::sleep(time.min(Duration::from_millis(20)));
        }
        return Ok(None);
    };
    let is_buffered = beside == BulkOutput::Buffered;
    let max = if is_buffered { buffered_bytes_max } else { max_bytes(&work.measure) };
    let mut piece = random_piece(BULK_WRITE_BYTES);
    let mut bytes = 0;
    loop {
        let mut output = options.clone().create(bulk_path(&work.directory))?;
        while began.elapsed() < time && output.written() < max {
            work.check()?;
            stamp(&mut piece, output.written());
            output.write_all(&piece)?;
        }
        if is_buffered {
            // Appends continue while the kernel writes the output back. Then the rest is discarded.
            while began.elapsed() < time {
                work.check()?;
                std::thread::sleep(Duration::from_millis(20).min(time));
            }
            over.store(true, Ordering::Relaxed);
            return Ok(None);
        }
        // A fast disk has time for another file. This one's space is freed first.
        let is_last = began.elapsed() >= time;
        if is_last {
            over.store(true, Ordering::Relaxed);
        }
        bytes += output.finish()?.bytes;
        if is_last {
            return Ok(Some(bytes as f64 / began.elapsed().as_secs_f64()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn each_case_has_its_appends_and_nothing_is_left() {
        let dir = disk_dir();
        let work = ProbeContext::for_test(dir.path());
        let mut events = EventCounter::start(&work.directory);
        let report = measure(&work, &mut events).unwrap();
        for beside in [BulkOutput::Idle, BulkOutput::Paced, BulkOutput::Buffered] {
            let case = report.case(beside).unwrap();
            assert!(case.appends > 0 && case.p50_us > 0.0 && case.longest_us >= case.p999_us, "{case:?}");
            assert_eq!(case.bytes_per_second.is_some(), beside == BulkOutput::Paced, "{case:?}");
        }
        let profile = report.profile().unwrap();
        assert_eq!(profile.direct_us.is_some(), profile.direct_bytes_per_second.is_some());
        assert!(profile.bytes_per_second >= profile.paced_bytes_per_second.unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_few_appends_have_no_tail_of_a_thousand() {
        let of = |appends: usize| {
            let us = (1..=appends).map(|us| us as f64).collect();
            case(BulkOutput::Idle, vec![BulkSample { us, ..BulkSample::default() }]).tail_us()
        };
        assert_eq!((Some(of(200)), Some(of(2000))), (Some(198.0), Some(1998.0)));
    }

    #[test]
    fn whether_buffered_output_came_to_the_limits_is_reported() {
        let buffered = |pauses, slows_from_bytes| BulkReport {
            cases: vec![BulkCase { pauses, ..case(BulkOutput::Buffered, Vec::new()) }],
            slows_from_bytes,
            buffered_bytes_max: 100,
        };
        assert!(buffered(Some(3), None).buffered_reached_limits());
        assert!(buffered(Some(0), Some(100)).buffered_reached_limits());
        assert!(!buffered(Some(0), Some(101)).buffered_reached_limits());
        assert!(!buffered(None, None).buffered_reached_limits());
        assert_eq!(buffered(None, None).profile(), None, "not all was measured");
    }
}
