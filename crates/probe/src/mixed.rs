//! Direct I/O on a file whose page cache others use: what does it cost?
//!
//! Random direct reads and writes of 4 KiB, by one thread and by eight, in intervals: alone; while a few pages of the file are
//! resident that nobody uses (left by one buffered read of 16 KiB at its start, which is not read directly); beside a
//! thread that reads, and one that writes, 4 KiB at a time through the page cache, some thousand times a second, in a part
//! of the file of its own. The same reader and writer on *another* file are what the last two are compared with: so what
//! they take of processors and disk is not laid to the sharing of the file. (One that writes as fast as it can has the
//! file's lock nearly always: on ext4 and Linux 6.18 it left a direct reader 3 % of its rate.)
//!
//! Invariants: intervals that are compared follow each other in an order that is shuffled anew in each round; ratios are of
//! intervals of one round, and the median of them counts; each interval begins with nothing of the file resident; what is read is checked.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_io::{AlignedBuf, IoFile, WriteMode};
use pagekeeper_kernel::Inode;
use pagekeeper_policy::MixedProfile;
use pagekeeper_trace::TraceCounts;
use serde::Serialize;

use crate::events::{EventRates, Events, rates};
use crate::figures::{FREE, Random, median, ratio, sure_share};
use crate::file::{BLOCK, BLOCK_BYTES, TestFile, check, random_piece, stamp};
use crate::run::Run;
use crate::{Error, Result};

/// Bytes of the part that buffered readers and writers keep to, at the end of the file.
const OTHER_BYTES: u64 = 4 << 20;
/// Where direct I/O begins: behind what one read at the start makes resident.
const BEHIND: u64 = 8 << 20;
/// Bytes of the read that leaves pages.
const LEFT: usize = 16 << 10;
/// What a thread beside waits at least after each read or write.
const PAUSE: Duration = Duration::from_micros(50);
/// Threads that do direct I/O.
const THREADS: [usize; 2] = [1, 8];
/// How many intervals a round has.
pub(crate) const SUBJECTS: usize = 2 * THREADS.len() * Beside::ALL.len();

/// What is done directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
}

/// Who uses the page cache meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// Nothing, but a few pages of the file are resident.
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

impl Beside {
    /// All.
    pub const ALL: [Self; 6] = [
        Self::Nothing,
        Self::Leftovers,
        Self::ReaderElsewhere,
        Self::Reader,
        Self::WriterElsewhere,
        Self::Writer,
    ];

    /// What it is compared with.
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

/// What one interval was: which I/O, by how many threads, beside whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Subject {
    /// What is done directly.
    pub access: Access,
    /// By how many threads.
    pub threads: usize,
    /// Beside whom.
    pub beside: Beside,
}

/// What came of a subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MixedCase {
    /// Which.
    #[serde(flatten)]
    pub subject: Subject,
    /// Direct reads or writes in a second: the median of the rounds.
    pub per_second: f64,
    /// The same of each round.
    pub rounds: Vec<f64>,
    /// The share of what it is compared with: 1 is no cost. `None` of those that others are compared with.
    pub ratio: Option<f64>,
    /// The same as far as it is sure: no better in three quarters of the rounds, and at most 1. `None` where the rounds differ
    /// so much that it may cost much or nothing.
    pub sure_share: Option<f64>,
    /// What the thread beside did in a second; 0 without one.
    pub beside_per_second: f64,
    /// Bytes of the file that were resident when the intervals began: the median.
    pub resident_before_bytes: Option<f64>,
    /// The same at their end.
    pub resident_after_bytes: Option<f64>,
    /// What the kernel did.
    pub events: EventRates,
}

/// All subjects.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MixedReport {
    /// Where events come from, or why there are none.
    pub events: String,
    /// By access, threads, and who is beside.
    pub cases: Vec<MixedCase>,
}

impl MixedReport {
    /// The case of a subject.
    pub fn case(&self, access: Access, threads: usize, beside: Beside) -> Option<&MixedCase> {
        let wanted = Subject { access, threads, beside };
        self.cases.iter().find(|case| case.subject == wanted)
    }

    /// The worse share of one thread and eight, as far as it is sure; `None` where neither was measured, or where one seems to cost
    /// nothing and of the other it is not known.
    pub fn worst(&self, access: Access, beside: Beside) -> Option<f64> {
        let shares =
            THREADS.map(|threads| self.case(access, threads, beside).and_then(|case| case.sure_share));
        let worst = shares.iter().flatten().copied().min_by(f64::total_cmp)?;
        (worst < FREE || shares.iter().all(Option::is_some)).then_some(worst)
    }

    /// The short form.
    pub fn profile(&self) -> MixedProfile {
        MixedProfile {
            leftover_read: self.worst(Access::Read, Beside::Leftovers),
            leftover_write: self.worst(Access::Write, Beside::Leftovers),
            buffered_reader_read: self.worst(Access::Read, Beside::Reader),
            buffered_writer_read: self.worst(Access::Read, Beside::Writer),
            buffered_writer_write: self.worst(Access::Write, Beside::Writer),
        }
    }
}

/// One interval.
#[derive(Debug, Default)]
struct Sample {
    per_second: f64,
    beside_per_second: f64,
    before: Option<f64>,
    after: Option<f64>,
    seconds: f64,
    counts: Option<TraceCounts>,
}

/// Measures all; nothing where direct I/O is refused.
pub(crate) fn measure(
    work: &Run<'_>,
    file: &TestFile,
    other: &TestFile,
    events: &mut Events,
) -> Result<Option<MixedReport>> {
    let Ok(direct) = &file.direct else { return Ok(None) };
    let accesses = [Access::Read, Access::Write];
    let mut subjects = Vec::new();
    for access in accesses {
        for threads in THREADS {
            subjects.extend(Beside::ALL.map(|beside| Subject { access, threads, beside }));
        }
    }
    let stat = file.buffered.stat()?;
    let inode = work.directory.traced.map(|dev| Inode { dev, ino: stat.inode });
    let mut bench =
        Bench { work, file, direct: &**direct, other, events, random: Random::new(work.measure.seed) };
    // What is compared stays together: the disk changes from second to second.
    let mut order: Vec<Vec<usize>> =
        (0..subjects.len()).collect::<Vec<_>>().chunks(Beside::ALL.len()).map(<[usize]>::to_vec).collect();
    let mut samples: Vec<Vec<Sample>> = subjects.iter().map(|_| Vec::new()).collect();
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
        let control = Subject { beside: subject.beside.control(), ..*subject };
        let against = subjects.iter().position(|other| *other == control && control != *subject);
        let known = |of: fn(&Sample) -> Option<f64>| {
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

/// What intervals are measured with.
struct Bench<'a, 'w> {
    work: &'a Run<'w>,
    file: &'a TestFile,
    direct: &'a dyn IoFile,
    other: &'a TestFile,
    events: &'a mut Events,
    random: Random,
}

impl Bench<'_, '_> {
    fn interval(&mut self, subject: Subject) -> Result<Sample> {
        self.file.drop_pages()?;
        let other_file = if subject.beside.is_elsewhere() { self.other } else { self.file };
        // What the last interval left dirty in the other file is not to be written in this one.
        self.other.drop_pages()?;
        match subject.beside {
            Beside::Nothing => {}
            Beside::Leftovers => {
                let mut piece = AlignedBuf::new(LEFT);
                self.file.buffered.read_at(0, &mut piece)?;
                check(&piece, &*self.file.buffered, 0)?;
            }
            // In memory from the start on, so that it is memory that they use and not the disk.
            Beside::ReaderElsewhere | Beside::Reader | Beside::WriterElsewhere | Beside::Writer => {
                bring(&*other_file.buffered, part_of(other_file))?;
            }
        }
        let before = self.file.resident(0..u64::MAX)?;
        self.events.take();
        let seeds: Vec<u64> = (0..=subject.threads).map(|_| self.random.next_u64()).collect();
        let run = IntervalRun {
            work: self.work,
            direct: self.direct,
            region: BEHIND..self.file.len - OTHER_BYTES,
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
        Ok(Sample {
            per_second: rate(&run.done),
            beside_per_second: rate(&run.beside),
            before: before.map(|bytes| bytes as f64),
            after: after.map(|bytes| bytes as f64),
            seconds,
            counts,
        })
    }
}

/// Where those beside keep to.
fn part_of(file: &TestFile) -> Range<u64> {
    file.len.saturating_sub(OTHER_BYTES)..file.len
}

/// Reads a range into the page cache.
fn bring(file: &dyn IoFile, range: Range<u64>) -> Result<()> {
    let mut piece = AlignedBuf::new(1 << 20);
    for offset in range.step_by(piece.len()) {
        file.read_at(offset, &mut piece)?;
    }
    Ok(())
}

/// One interval's threads.
struct IntervalRun<'a, 'w> {
    work: &'a Run<'w>,
    direct: &'a dyn IoFile,
    region: Range<u64>,
    /// The file of the thread beside.
    other_file: &'a TestFile,
    subject: Subject,
    done: AtomicU64,
    beside: AtomicU64,
    over: AtomicBool,
    begin: Barrier,
}

impl IntervalRun<'_, '_> {
    /// Runs them; returns how many seconds it took.
    fn run(&self, seeds: &[u64]) -> Result<f64> {
        let (first, others) = seeds.split_at(1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = others
                .iter()
                .map(|seed| scope.spawn(|| self.ended(self.directly(Random::new(*seed)))))
                .collect();
            let beside = scope.spawn(|| self.ended(self.through_cache(Random::new(first[0]))));
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
            // With the last one of each thread, however long it took: an interval may be shorter than one of a slow disk.
            let seconds = began.elapsed().as_secs_f64();
            results.into_iter().collect::<Result<Vec<()>>>().map(|_| seconds)
        })
    }

    fn sleep(&self, time: Duration) {
        let deadline = Instant::now() + time;
        while !self.stop() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    fn stop(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.work.stopping()
    }

    /// A thread that fails ends the interval for all.
    fn ended(&self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.over.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Random reads or writes past the page cache.
    fn directly(&self, mut random: Random) -> Result<()> {
        let mut block = random_piece(BLOCK);
        self.begin.wait();
        // At least one.
        loop {
            let offset = random_offset(&mut random, &self.region);
            match self.subject.access {
                Access::Read => {
                    self.direct.read_at(offset, &mut block)?;
                    check(&block, self.direct, offset)?;
                }
                Access::Write => {
                    stamp(&mut block, offset);
                    self.direct.write_at(offset, &block, WriteMode::Plain)?;
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
            if self.stop() {
                return Ok(());
            }
        }
    }

    /// Reads or writes through the page cache, if the subject has any.
    fn through_cache(&self, mut random: Random) -> Result<()> {
        let (mut block, part) = (random_piece(BLOCK), part_of(self.other_file));
        let file = &*self.other_file.buffered;
        self.begin.wait();
        let writes = match self.subject.beside {
            Beside::Nothing | Beside::Leftovers => return Ok(()),
            Beside::Reader | Beside::ReaderElsewhere => false,
            Beside::Writer | Beside::WriterElsewhere => true,
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
            if self.stop() {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// A random block of a range.
pub(crate) fn random_offset(random: &mut Random, range: &Range<u64>) -> u64 {
    range.start + random.below((range.end - range.start) / BLOCK_BYTES) * BLOCK_BYTES
}

/// All intervals together.
fn event_rates(samples: &[Sample], file: Option<Inode>, disk: Option<u64>) -> EventRates {
    let counts: Vec<&TraceCounts> = samples.iter().filter_map(|sample| sample.counts.as_ref()).collect();
    rates(&counts, samples.iter().map(|sample| sample.seconds).sum(), file, disk)
}

/// Bytes that a file must have for this.
pub(crate) const MIN_FILE: u64 = BEHIND + 2 * OTHER_BYTES;

/// Makes the other file: as long as is needed.
pub(crate) fn other_file(work: &Run<'_>) -> Result<TestFile> {
    let mut other = TestFile::new(&work.directory, &*work.io)?;
    other.fill(OTHER_BYTES, Duration::MAX, work)?;
    if other.len < OTHER_BYTES {
        return Err(Error::Wrong { path: work.directory.directory.clone(), offset: other.len });
    }
    Ok(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;

    fn measured(directory: &std::path::Path) -> Option<MixedReport> {
        let work = Run::for_test(directory);
        let mut file = TestFile::new(&work.directory, &*work.io).unwrap();
        file.fill(MIN_FILE, Duration::MAX, &work).unwrap();
        let other = other_file(&work).unwrap();
        let mut events = Events::start(&work.directory);
        measure(&work, &file, &other, &mut events).unwrap()
    }

    #[test]
    fn every_subject_is_measured_and_compared_with_its_control() {
        let dir = disk_dir();
        let Some(report) = measured(dir.path()) else {
            eprintln!("SKIPPED: no direct I/O here");
            return;
        };
        assert_eq!(report.cases.len(), SUBJECTS);
        for case in &report.cases {
            assert!(case.per_second > 0.0, "{case:?}");
            let is_control = case.subject.beside.control() == case.subject.beside;
            assert_eq!(case.ratio.is_none(), is_control, "{case:?}");
            let has_neighbour = !matches!(case.subject.beside, Beside::Nothing | Beside::Leftovers);
            assert_eq!(case.beside_per_second > 0.0, has_neighbour, "{case:?}");
            match case.subject.beside {
                Beside::Nothing => {
                    assert!(case.resident_before_bytes.is_none_or(|bytes| bytes < 1.0), "{case:?}");
                }
                Beside::Leftovers => {
                    assert!(case.resident_before_bytes.is_none_or(|bytes| bytes >= LEFT as f64), "{case:?}");
                    assert!(
                        case.resident_before_bytes.is_none_or(|bytes| bytes <= BEHIND as f64),
                        "{case:?}"
                    );
                }
                _ => {}
            }
        }
        let profile = report.profile();
        assert!(profile.leftover_read.is_some() && profile.buffered_writer_write.is_some());
        let worst = report.worst(Access::Read, Beside::Writer);
        assert!(THREADS.iter().all(|threads| {
            report.case(Access::Read, *threads, Beside::Writer).unwrap().sure_share >= worst
        }));
        // Of one the rounds did not agree: the other's cost is a cost all the same, but none is no answer.
        let mut doubtful = report.clone();
        for (share, worst) in [(0.5, Some(0.5)), (1.0, None)] {
            for case in &mut doubtful.cases {
                case.sure_share = (case.subject.threads == 8).then_some(share);
            }
            assert_eq!(doubtful.worst(Access::Read, Beside::Writer), worst);
        }
    }
}
