//! Small writes that are never synced, beside a bulk writer on the same disk.
//!
//! A thread appends 4 KiB to a file about each millisecond; only the write(2) is timed. It goes to the page cache and waits
//! for nothing of its own: what is above the idle case is the kernel making it wait, for the bulk writer's dirty pages or
//! for the processor. The kernel's limits are left as they are: buffered output does its harm only past them, and whether it
//! came there in the time is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use pagekeeper_io::{IoFile, WriteMode};
use pagekeeper_kernel::pressure::DirtyReport;
use pagekeeper_log::{BulkMode, BulkWriter};
use pagekeeper_policy::BulkProfile;
use serde::Serialize;

use crate::events::Events;
use crate::figures::{Random, median, percentile};
use crate::file::{BLOCK, BLOCK_BYTES, TestFile, Unnamed, bulk_path, random_piece, stamp};
use crate::run::{Measure, Run};
use crate::{Error, Result};

/// How many intervals a case takes in a round.
pub(crate) const INTERVALS: u32 = 12;
/// Between two appends.
const EVERY: Duration = Duration::from_millis(1);
/// Bytes that the bulk writer is given at a time.
const PIECE: usize = 1 << 20;
/// The name of the appending thread, by which its pauses are found.
const APPENDER: &str = "probe-append";

/// How often each case is measured.
pub(crate) fn rounds(measure: &Measure) -> u32 {
    measure.rounds.div_ceil(5)
}

/// The maximum of bulk output on the disk at a time, in bytes.
pub(crate) fn max_bytes(measure: &Measure) -> u64 {
    measure.file_bytes
}

/// Who writes beside the appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkBeside {
    /// Nothing.
    Idle,
    /// Output that waits for its own writeback.
    Paced,
    /// Direct output.
    Direct,
    /// Output whose pages the kernel drops by itself, and that waits for its writeback.
    Uncached,
    /// Output through the page cache.
    Buffered,
}

impl BulkBeside {
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

/// What came of a case, of all its rounds together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BulkCase {
    /// Who wrote beside.
    pub beside: BulkBeside,
    /// How many appends there were.
    pub appends: usize,
    /// The median of what one took, in microseconds.
    pub p50_us: f64,
    /// What 99 of 100 did not exceed.
    pub p99_us: f64,
    /// What 999 of 1000 did not exceed; of fewer than 1000 the longest.
    pub p999_us: f64,
    /// The longest.
    pub longest_us: f64,
    /// How often the kernel throttled the appending thread for dirty pages; `None` where that is not counted.
    pub pauses: Option<u64>,
    /// Bytes that the bulk writer wrote in a second, its last sync counted in; `None` of idle and buffered cases, whose
    /// output is thrown away before it is all on the disk.
    pub bytes_per_second: Option<f64>,
}

/// So few appends have no 999th of 1000: it would be one of them, by accident.
const ENOUGH: usize = 1000;

impl BulkCase {
    /// What next to none exceeded: 999 of 1000, or 99 of 100 of fewer than 1000.
    fn tail_us(&self) -> f64 {
        if self.appends >= ENOUGH { self.p999_us } else { self.p99_us }
    }
}

/// Small writes beside bulk output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BulkReport {
    /// Idle first.
    pub cases: Vec<BulkCase>,
    /// Bytes of dirty pages from which the kernel slows writers down; `None` if unknown.
    pub slows_from_bytes: Option<u64>,
    /// The maximum that buffered output was given, in bytes: no more than a quarter of the memory that was available.
    pub buffered_bytes_max: u64,
}

impl BulkReport {
    /// The case, if it was measured.
    pub fn case(&self, beside: BulkBeside) -> Option<&BulkCase> {
        self.cases.iter().find(|case| case.beside == beside)
    }

    /// Whether buffered output was enough to reach the kernel's limits, so that what it does to others could be seen.
    pub fn buffered_reached_limits(&self) -> bool {
        let throttled = self.case(BulkBeside::Buffered).and_then(|case| case.pauses).unwrap_or(0) > 0;
        throttled || self.slows_from_bytes.is_some_and(|from| from <= self.buffered_bytes_max)
    }

    /// The short form.
    pub fn profile(&self) -> Option<BulkProfile> {
        let us = |beside| self.case(beside).map(BulkCase::tail_us);
        let rate = |beside| self.case(beside)?.bytes_per_second;
        let rates = [BulkBeside::Paced, BulkBeside::Direct, BulkBeside::Uncached].map(rate);
        Some(BulkProfile {
            idle_us: us(BulkBeside::Idle)?,
            buffered_us: us(BulkBeside::Buffered)?,
            paced_us: us(BulkBeside::Paced)?,
            direct_us: us(BulkBeside::Direct),
            uncached_us: us(BulkBeside::Uncached),
            bytes_per_second: rates.into_iter().flatten().max_by(f64::total_cmp)?,
            paced_bytes_per_second: rates[0],
            direct_bytes_per_second: rates[1],
            uncached_bytes_per_second: rates[2],
        })
    }
}

#[derive(Debug, Default)]
struct Sample {
    us: Vec<f64>,
    pauses: Option<u64>,
    rate: Option<f64>,
}

/// Measures all cases that can be had.
pub(crate) fn measure(work: &Run<'_>, events: &mut Events) -> Result<BulkReport> {
    let limits = DirtyReport::read(&work.directory.roots).ok();
    let limits = limits.map(|report| report.kernel_thresholds.unwrap_or(report.thresholds));
    let buffered_bytes_max = work.directory.dirty_allowance(max_bytes(&work.measure))?;
    let io = Unnamed::shared(Arc::clone(&work.io));
    let mut besides = vec![BulkBeside::Idle, BulkBeside::Paced];
    for beside in [BulkBeside::Direct, BulkBeside::Uncached] {
        let output =
            options(&io, beside).map(|options| options.create(bulk_path(&work.directory))).transpose()?;
        // Something else is taken where the wanted can't be had.
        if output.is_some_and(|output| Some(output.mode()) == beside.mode()) {
            besides.push(beside);
        }
    }
    besides.push(BulkBeside::Buffered);
    let mut random = Random::new(work.measure.seed);
    let mut samples: Vec<Vec<Sample>> = besides.iter().map(|_| Vec::new()).collect();
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

fn options(io: &Arc<dyn pagekeeper_io::Io>, beside: BulkBeside) -> Option<pagekeeper_log::BulkOptions> {
    Some(BulkWriter::options().mode(beside.mode()?).io(Arc::clone(io)))
}

fn case(beside: BulkBeside, samples: Vec<Sample>) -> BulkCase {
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
    work: &Run<'_>,
    beside: BulkBeside,
    io: &Arc<dyn pagekeeper_io::Io>,
    buffered_bytes_max: u64,
    events: &mut Events,
) -> Result<Sample> {
    work.check()?;
    let log = TestFile::new(&work.directory, &*work.io)?;
    let over = AtomicBool::new(false);
    events.take();
    let (us, rate) = std::thread::scope(|scope| {
        let appender = Builder::new()
            .name(APPENDER.to_owned())
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
        let ours = pauses.iter().filter(|pauses| pauses.task.name == APPENDER);
        ours.map(|pauses| pauses.pauses.count()).sum()
    });
    Ok(Sample { us, pauses, rate })
}

/// Appends until it is over; how long each took, in microseconds.
fn append_until(over: &AtomicBool, log: &dyn IoFile) -> Result<Vec<f64>> {
    let mut block = random_piece(BLOCK);
    let (mut us, mut offset, mut due) = (Vec::new(), 0, Instant::now());
    while !over.load(Ordering::Relaxed) {
        stamp(&mut block, offset);
        let began = Instant::now();
        log.write_at(offset, &block, WriteMode::Plain)?;
        us.push(began.elapsed().as_secs_f64() * 1e6);
        offset += BLOCK_BYTES;
        // What a stall made late is not made up for: a burst would be another load.
        due = (due + EVERY).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(us)
}

/// Writes for the time of a sample, and says when it is over; bytes a second, until all were durable.
fn write_bulk(
    work: &Run<'_>,
    beside: BulkBeside,
    io: &Arc<dyn pagekeeper_io::Io>,
    buffered_bytes_max: u64,
    over: &AtomicBool,
) -> Result<Option<f64>> {
    let time = work.intervals(INTERVALS);
    let began = Instant::now();
    let Some(options) = options(io, beside) else {
        while began.elapsed() < time {
            work.check()?;
            std::thread::sleep(time.min(Duration::from_millis(20)));
        }
        return Ok(None);
    };
    let is_buffered = beside == BulkBeside::Buffered;
    let max = if is_buffered { buffered_bytes_max } else { max_bytes(&work.measure) };
    let mut piece = random_piece(PIECE);
    let mut bytes = 0;
    loop {
        let mut output = options.clone().create(bulk_path(&work.directory))?;
        while began.elapsed() < time && output.written() < max {
            work.check()?;
            stamp(&mut piece, output.written());
            output.write_all(&piece)?;
        }
        if is_buffered {
            // While the kernel writes it back, appends go on; then it is thrown away unwritten.
            while began.elapsed() < time {
                work.check()?;
                std::thread::sleep(Duration::from_millis(20).min(time));
            }
            over.store(true, Ordering::Relaxed);
            return Ok(None);
        }
        // A fast disk has time for another file: the first one's room is given back.
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
        let work = Run::for_test(dir.path());
        let mut events = Events::start(&work.directory);
        let report = measure(&work, &mut events).unwrap();
        for beside in [BulkBeside::Idle, BulkBeside::Paced, BulkBeside::Buffered] {
            let case = report.case(beside).unwrap();
            assert!(case.appends > 0 && case.p50_us > 0.0 && case.longest_us >= case.p999_us, "{case:?}");
            assert_eq!(case.bytes_per_second.is_some(), beside == BulkBeside::Paced, "{case:?}");
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
            case(BulkBeside::Idle, vec![Sample { us, ..Sample::default() }]).tail_us()
        };
        assert_eq!((Some(of(200)), Some(of(2000))), (Some(198.0), Some(1998.0)));
    }

    #[test]
    fn whether_buffered_output_came_to_the_limits_is_reported() {
        let buffered = |pauses, slows_from_bytes| BulkReport {
            cases: vec![BulkCase { pauses, ..case(BulkBeside::Buffered, Vec::new()) }],
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
