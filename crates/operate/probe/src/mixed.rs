//! The cost of direct I/O on a file whose page cache is in use.
//!
//! Random direct reads and writes of 4 KiB, by one thread and by eight, are measured in intervals
//! of several kinds:
//!
//! * alone;
//! * with a few resident pages of the file that nobody uses. One buffered read of 16 KiB at the
//!   start of the file leaves them, where no direct I/O takes place;
//! * next to a thread that reads or writes 4 KiB at a time through the page cache, some thousand
//!   times per second, in its own part of the file.
//!
//! The latter are compared with the same reader and writer on *another* file, so that their use of
//! processors and disk does not count as a cost of sharing the file. They pause between calls: a
//! writer without pauses holds the file's lock nearly all the time, and the result would show
//! nothing else.
//!
//! Invariants: compared intervals follow each other, in an order that is reshuffled in each
//! round. Ratios are taken within a round, and their median counts. Each interval begins with no
//! page of the file resident. All data that is read is checked.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_io::{AlignedBuf, IoFile, WriteMode};
use pagekeeper_kernel::Inode;
use pagekeeper_policy::MixedProfile;
use pagekeeper_trace::TraceCounts;
use serde::Serialize;

use crate::events::{EventCounter, EventRates, rates};
use crate::figures::{NO_COST_SHARE, RandomNumbers, median, ratio, sure_share};
use crate::file::{BLOCK_BYTES, BLOCK_LEN, TestFile, check, random_piece, stamp};
use crate::run::ProbeContext;
use crate::{Error, Result};

/// Size of the part that the buffered reader or writer uses, at the end of the file, in bytes.
const BUFFERED_PART_BYTES: u64 = 4 << 20;
/// The offset at which direct I/O begins, behind the pages that the read at the start makes
/// resident.
const DIRECT_START_OFFSET: u64 = 8 << 20;
/// Size of the read that leaves pages, in bytes.
const LEFTOVER_BYTES: usize = 16 << 10;
/// Minimum pause of the buffered thread after each read or write.
const BUFFERED_PAUSE: Duration = Duration::from_micros(50);
/// Numbers of threads that do direct I/O.
const THREAD_COUNTS: [usize; 2] = [1, 8];
/// Intervals per round.
pub(crate) const SUBJECTS_PER_ROUND: usize = 2 * THREAD_COUNTS.len() * ConcurrentUse::ALL.len();

/// The operation of direct I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectOperation {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
}

/// The concurrent use of the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConcurrentUse {
    /// None.
    Nothing,
    /// None, but a few pages of the file are resident.
    Leftovers,
    /// A thread reads another file.
    ReaderElsewhere,
    /// A thread reads the same file.
    Reader,
    /// A thread writes to another file.
    WriterElsewhere,
    /// A thread writes to the same file.
    Writer,
}

impl ConcurrentUse {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Nothing,
        Self::Leftovers,
        Self::ReaderElsewhere,
        Self::Reader,
        Self::WriterElsewhere,
        Self::Writer,
    ];

    /// Returns the kind that this one is compared with.
    #[must_use]
    pub fn control(self) -> Self {
        match self {
            Self::Nothing | Self::Leftovers => Self::Nothing,
            Self::ReaderElsewhere | Self::Reader => Self::ReaderElsewhere,
            Self::WriterElsewhere | Self::Writer => Self::WriterElsewhere,
        }
    }

    fn is_elsewhere(self) -> bool {
        matches!(self, Self::ReaderElsewhere | Self::WriterElsewhere)
    }
}

/// The conditions of an interval: the operation, its threads, and the concurrent use of the page
/// cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct MixedSubject {
    /// The operation of direct I/O.
    pub access: DirectOperation,
    /// Number of threads.
    pub threads: usize,
    /// The concurrent use of the page cache.
    pub beside: ConcurrentUse,
}

/// The results for one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MixedCase {
    /// The subject.
    #[serde(flatten)]
    pub subject: MixedSubject,
    /// Direct reads or writes per second: the median of all rounds.
    pub per_second: f64,
    /// Direct reads or writes per second in each round.
    pub rounds: Vec<f64>,
    /// The share of the control's rate that remains; 1 means no cost. `None` for the controls
    /// themselves.
    pub ratio: Option<f64>,
    /// The share that remains as far as it is certain: the upper quartile of the rounds, at most 1.
    /// `None` if the rounds differ so much that the cost may be high or zero.
    pub sure_share: Option<f64>,
    /// Operations per second of the buffered thread; 0 without one.
    pub beside_per_second: f64,
    /// Resident bytes of the file at the start of an interval: the median.
    pub resident_before_bytes: Option<f64>,
    /// Resident bytes of the file at the end of an interval: the median.
    pub resident_after_bytes: Option<f64>,
    /// The kernel's activity.
    pub events: EventRates,
}

/// The results for all subjects.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MixedReport {
    /// The source of events, or why there is none.
    pub events: String,
    /// The cases, by operation, threads and concurrent use.
    pub cases: Vec<MixedCase>,
}

impl MixedReport {
    /// Returns the case of a subject.
    pub fn case(&self, access: DirectOperation, threads: usize, beside: ConcurrentUse) -> Option<&MixedCase> {
        let wanted = MixedSubject { access, threads, beside };
        self.cases.iter().find(|case| case.subject == wanted)
    }

    /// Returns the smaller certain share of one thread and of eight. Returns `None` if neither is
    /// known, or if one shows no cost and the other is unknown.
    pub fn worst(&self, access: DirectOperation, beside: ConcurrentUse) -> Option<f64> {
        let shares =
            THREAD_COUNTS.map(|threads| self.case(access, threads, beside).and_then(|case| case.sure_share));
        let worst = shares.iter().flatten().copied().min_by(f64::total_cmp)?;
        (worst < NO_COST_SHARE || shares.iter().all(Option::is_some)).then_some(worst)
    }

    /// Returns the short form for a disk profile.
    pub fn profile(&self) -> MixedProfile {
        MixedProfile {
            leftover_read: self.worst(DirectOperation::Read, ConcurrentUse::Leftovers),
            leftover_write: self.worst(DirectOperation::Write, ConcurrentUse::Leftovers),
            buffered_reader_read: self.worst(DirectOperation::Read, ConcurrentUse::Reader),
            buffered_writer_read: self.worst(DirectOperation::Read, ConcurrentUse::Writer),
            buffered_writer_write: self.worst(DirectOperation::Write, ConcurrentUse::Writer),
        }
    }
}

/// The results of one interval.
#[derive(Debug, Default)]
struct MixedSample {
    per_second: f64,
    beside_per_second: f64,
    before: Option<f64>,
    after: Option<f64>,
    seconds: f64,
    counts: Option<TraceCounts>,
}

/// Measures all subjects. Returns `None` if direct I/O is refused.
pub(crate) fn measure(
    work: &ProbeContext<'_>,
    file: &TestFile,
    other: &TestFile,
    events: &mut EventCounter,
) -> Result<Option<MixedReport>> {
    let Ok(direct) = &file.direct else { return Ok(None) };
    let accesses = [DirectOperation::Read, DirectOperation::Write];
    let mut subjects = Vec::new();
    for access in accesses {
        for threads in THREAD_COUNTS {
            subjects.extend(ConcurrentUse::ALL.map(|beside| MixedSubject { access, threads, beside }));
        }
    }
    let stat = file.buffered.stat()?;
    let inode = work.directory.traced.map(|dev| Inode { dev, ino: stat.inode });
    let mut bench = MixedBench {
        work,
        file,
        direct: &**direct,
        other,
        events,
        random: RandomNumbers::new(work.measure.seed),
    };
    // Compared intervals stay close in time: a disk changes from second to second.
    let mut order: Vec<Vec<usize>> = (0..subjects.len())
        .collect::<Vec<_>>()
        .chunks(ConcurrentUse::ALL.len())
        .map(<[usize]>::to_vec)
        .collect();
    let mut samples: Vec<Vec<MixedSample>> = subjects.iter().map(|_| Vec::new()).collect();
    for _ in 0..work.measure.rounds {
        bench.random.shuffle(&mut order);
        for group in &mut order {
            bench.random.shuffle(group);
        }
        for &index in order.iter().flatten() {
            work.check()?;
            samples[index].push(bench.interval(subjects[index])?);
        }
    }
    file.drop_pages()?;
    other.drop_pages()?;
    let rates: Vec<Vec<f64>> =
        samples.iter().map(|samples| samples.iter().map(|sample| sample.per_second).collect()).collect();
    let cases = subjects.iter().zip(&samples).zip(&rates).map(|((subject, samples), own)| {
        let control = MixedSubject { beside: subject.beside.control(), ..*subject };
        let against = subjects.iter().position(|other| *other == control && control != *subject);
        let known = |of: fn(&MixedSample) -> Option<f64>| {
            let values: Option<Vec<f64>> = samples.iter().map(of).collect();
            values.and_then(|values| median(&values))
        };
        let beside: Vec<f64> = samples.iter().map(|sample| sample.beside_per_second).collect();
        MixedCase {
            subject: *subject,
            per_second: median(own).unwrap_or(0.0),
            rounds: own.clone(),
            ratio: against.and_then(|control| ratio(own, &rates[control])),
            sure_share: against.and_then(|control| sure_share(own, &rates[control])),
            beside_per_second: median(&beside).unwrap_or(0.0),
            resident_before_bytes: known(|sample| sample.before),
            resident_after_bytes: known(|sample| sample.after),
            events: event_rates(samples, inode, work.directory.disk),
        }
    });
    let cases = cases.collect();
    Ok(Some(MixedReport { events: bench.events.source.clone(), cases }))
}

/// The means of a measurement.
struct MixedBench<'a, 'w> {
    work: &'a ProbeContext<'w>,
    file: &'a TestFile,
    direct: &'a dyn IoFile,
    other: &'a TestFile,
    events: &'a mut EventCounter,
    random: RandomNumbers,
}

impl MixedBench<'_, '_> {
    fn interval(&mut self, subject: MixedSubject) -> Result<MixedSample> {
        self.file.drop_pages()?;
        let other_file = if subject.beside.is_elsewhere() { self.other } else { self.file };
        // Pages that the last interval left dirty in the other file must not be written during this
        // one.
        self.other.drop_pages()?;
        match subject.beside {
            ConcurrentUse::Nothing => {}
            ConcurrentUse::Leftovers => {
                let mut piece = AlignedBuf::new(LEFTOVER_BYTES);
                self.file.buffered.read_at(0, &mut piece)?;
                check(&piece, &*self.file.buffered, 0)?;
            }
            // Resident from the start, so that the thread uses memory and not the disk.
            ConcurrentUse::ReaderElsewhere
            | ConcurrentUse::Reader
            | ConcurrentUse::WriterElsewhere
            | ConcurrentUse::Writer => {
                load_range(&*other_file.buffered, part_of(other_file))?;
            }
        }
        let before = self.file.resident(0..u64::MAX)?;
        self.events.take();
        let seeds: Vec<u64> = (0..=subject.threads).map(|_| self.random.next_u64()).collect();
        let run = IntervalRun {
            work: self.work,
            direct: self.direct,
            region: DIRECT_START_OFFSET..self.file.len - BUFFERED_PART_BYTES,
            other_file,
            subject,
            done: AtomicU64::new(0),
            beside: AtomicU64::new(0),
            over: AtomicBool::new(false),
            begin: Barrier::new(subject.threads + 2),
        };
        let seconds = run.run(&seeds)?;
        let counts = self.events.take();
        let after = self.file.resident(0..u64::MAX)?;
        let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / seconds;
        Ok(MixedSample {
            per_second: rate(&run.done),
            beside_per_second: rate(&run.beside),
            before: before.map(|bytes| bytes as f64),
            after: after.map(|bytes| bytes as f64),
            seconds,
            counts,
        })
    }
}

/// Returns the part of a file that the buffered threads use.
fn part_of(file: &TestFile) -> Range<u64> {
    file.len.saturating_sub(BUFFERED_PART_BYTES)..file.len
}

/// Reads a range into the page cache.
fn load_range(file: &dyn IoFile, range: Range<u64>) -> Result<()> {
    let mut piece = AlignedBuf::new(1 << 20);
    for offset in range.step_by(piece.len()) {
        file.read_at(offset, &mut piece)?;
    }
    Ok(())
}

/// The threads of one interval.
struct IntervalRun<'a, 'w> {
    work: &'a ProbeContext<'w>,
    direct: &'a dyn IoFile,
    region: Range<u64>,
    /// The file of the buffered thread.
    other_file: &'a TestFile,
    subject: MixedSubject,
    done: AtomicU64,
    beside: AtomicU64,
    over: AtomicBool,
    begin: Barrier,
}

impl IntervalRun<'_, '_> {
    /// Runs the threads. Returns the duration in seconds.
    fn run(&self, seeds: &[u64]) -> Result<f64> {
        let (first, others) = seeds.split_at(1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = others
                .iter()
                .map(|seed| scope.spawn(|| self.end_on_error(self.run_direct(RandomNumbers::new(*seed)))))
                .collect();
            let beside = scope.spawn(|| self.end_on_error(self.run_buffered(RandomNumbers::new(first[0]))));
            self.begin.wait();
            let began = Instant::now();
            self.sleep(self.work.measure.interval);
            self.over.store(true, Ordering::Relaxed);
            let results = threads.into_iter().chain([beside]).map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All are joined before the first error is reported.
            let results: Vec<Result<()>> = results.collect();
            // Includes the last operation of each thread, however long it takes: an interval may be
            // shorter than one operation on a slow disk.
            let seconds = began.elapsed().as_secs_f64();
            results.into_iter().collect::<Result<Vec<()>>>().map(|_| seconds)
        })
    }

    fn sleep(&self, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.is_over() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.work.is_cancelled()
    }

    /// An error in one thread ends the interval for all threads.
    fn end_on_error(&self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.over.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Reads or writes random blocks by direct I/O.
    fn run_direct(&self, mut random: RandomNumbers) -> Result<()> {
        let mut block = random_piece(BLOCK_LEN);
        self.begin.wait();
        // At least one operation.
        loop {
            let offset = random_offset(&mut random, &self.region);
            match self.subject.access {
                DirectOperation::Read => {
                    self.direct.read_at(offset, &mut block)?;
                    check(&block, self.direct, offset)?;
                }
                DirectOperation::Write => {
                    stamp(&mut block, offset);
                    self.direct.write_at(offset, &block, WriteMode::Plain)?;
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
            if self.is_over() {
                return Ok(());
            }
        }
    }

    /// Reads or writes through the page cache, if the subject requires it.
    fn run_buffered(&self, mut random: RandomNumbers) -> Result<()> {
        let (mut block, part) = (random_piece(BLOCK_LEN), part_of(self.other_file));
        let file = &*self.other_file.buffered;
        self.begin.wait();
        let writes = match self.subject.beside {
            ConcurrentUse::Nothing | ConcurrentUse::Leftovers => return Ok(()),
            ConcurrentUse::Reader | ConcurrentUse::ReaderElsewhere => false,
            ConcurrentUse::Writer | ConcurrentUse::WriterElsewhere => true,
        };
        loop {
            let offset = random_offset(&mut random, &part);
            if writes {
                stamp(&mut block, offset);
                file.write_at(offset, &block, WriteMode::Plain)?;
            } else {
                file.read_at(offset, &mut block)?;
                check(&block, file, offset)?;
            }
            self.beside.fetch_add(1, Ordering::Relaxed);
            if self.is_over() {
                return Ok(());
            }
            std::thread::sleep(BUFFERED_PAUSE);
        }
    }
}

/// Returns the offset of a random block in a range.
pub(crate) fn random_offset(random: &mut RandomNumbers, range: &Range<u64>) -> u64 {
    range.start + random.below((range.end - range.start) / BLOCK_BYTES) * BLOCK_BYTES
}

/// Computes the event rates over all intervals.
fn event_rates(samples: &[MixedSample], file: Option<Inode>, disk: Option<u64>) -> EventRates {
    let counts: Vec<&TraceCounts> = samples.iter().filter_map(|sample| sample.counts.as_ref()).collect();
    rates(&counts, samples.iter().map(|sample| sample.seconds).sum(), file, disk)
}

/// Minimum size of the file in bytes.
pub(crate) const MIXED_FILE_BYTES_MIN: u64 = DIRECT_START_OFFSET + 2 * BUFFERED_PART_BYTES;

/// Creates the other file, only as long as needed.
pub(crate) fn other_file(work: &ProbeContext<'_>) -> Result<TestFile> {
    let mut other = TestFile::new(&work.directory, &*work.io)?;
    other.fill(BUFFERED_PART_BYTES, Duration::MAX, work)?;
    if other.len < BUFFERED_PART_BYTES {
        return Err(Error::Wrong { path: work.directory.directory.clone(), offset: other.len });
    }
    Ok(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;

    fn measured(directory: &std::path::Path) -> Option<MixedReport> {
        let work = ProbeContext::for_test(directory);
        let mut file = TestFile::new(&work.directory, &*work.io).unwrap();
        file.fill(MIXED_FILE_BYTES_MIN, Duration::MAX, &work).unwrap();
        let other = other_file(&work).unwrap();
        let mut events = EventCounter::start(&work.directory);
        measure(&work, &file, &other, &mut events).unwrap()
    }

    #[test]
    fn every_subject_is_measured_and_compared_with_its_control() {
        let dir = disk_dir();
        let Some(report) = measured(dir.path()) else {
            eprintln!("SKIPPED: no direct I/O here");
            return;
        };
        assert_eq!(report.cases.len(), SUBJECTS_PER_ROUND);
        for case in &report.cases {
            assert!(case.per_second > 0.0, "{case:?}");
            let is_control = case.subject.beside.control() == case.subject.beside;
            assert_eq!(case.ratio.is_none(), is_control, "{case:?}");
            let has_neighbour =
                !matches!(case.subject.beside, ConcurrentUse::Nothing | ConcurrentUse::Leftovers);
            assert_eq!(case.beside_per_second > 0.0, has_neighbour, "{case:?}");
            match case.subject.beside {
                ConcurrentUse::Nothing => {
                    assert!(case.resident_before_bytes.is_none_or(|bytes| bytes < 1.0), "{case:?}");
                }
                ConcurrentUse::Leftovers => {
                    assert!(
                        case.resident_before_bytes.is_none_or(|bytes| bytes >= LEFTOVER_BYTES as f64),
                        "{case:?}"
                    );
                    assert!(
                        case.resident_before_bytes.is_none_or(|bytes| bytes <= DIRECT_START_OFFSET as f64),
                        "{case:?}"
                    );
                }
                _ => {}
            }
        }
        let profile = report.profile();
        assert!(profile.leftover_read.is_some() && profile.buffered_writer_write.is_some());
        let worst = report.worst(DirectOperation::Read, ConcurrentUse::Writer);
        assert!(THREAD_COUNTS.iter().all(|threads| {
            report.case(DirectOperation::Read, *threads, ConcurrentUse::Writer).unwrap().sure_share >= worst
        }));
        // One result is unknown: the other's cost still counts, but the absence of a cost is no
        // answer.
        let mut doubtful = report.clone();
        for (share, worst) in [(0.5, Some(0.5)), (1.0, None)] {
            for case in &mut doubtful.cases {
                case.sure_share = (case.subject.threads == 8).then_some(share);
            }
            assert_eq!(doubtful.worst(DirectOperation::Read, ConcurrentUse::Writer), worst);
        }
    }
}
