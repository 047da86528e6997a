//! The whole: what is measured, in which order, and what it amounts to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagekeeper_kernel::text::unescaped_bytes;
use pagekeeper_policy::DiskProfile;
use serde::Serialize;

use crate::bulk::{self, BulkReport};
use crate::direct::{self, DirectReport};
use crate::directory::TestDirectory;
use crate::events::Events;
use crate::file::{self, TestFile};
use crate::mixed::{self, MixedReport};
use crate::pages::{self, ReadAheadReport, ReleaseReport};
use crate::reads::{self, ReadsReport};
use crate::run::{Measure, OnProgress, Part, Progress, Run};
use crate::summary;
use crate::sync::{self, SyncReport};
use crate::writes::{self, AtomicReport, UncachedReport};
use crate::{Error, Result};

/// The smallest file, in bytes: less says more of caches than of disks.
pub const MIN_FILE_BYTES: u64 = file::MIN_BYTES;
const _: () = assert!(MIN_FILE_BYTES >= mixed::MIN_FILE);

static NEVER: AtomicBool = AtomicBool::new(false);

/// A measurement of the disk that a directory is on.
///
/// Takes about a minute, and half of the disk's attention while it lasts. What is written goes to files without a name in
/// the directory, which are gone afterwards, whatever ends it.
///
/// ```
/// use std::time::Duration;
/// use pagekeeper_probe::{Part, Probe};
///
/// let report = Probe::new("/var/tmp").quick().only([Part::Sync]).interval(Duration::from_millis(5)).run()?;
/// println!("a sync after an append takes {:?} us", report.profile.sync_us);
/// println!("{}", report.summary);
/// # Ok::<(), pagekeeper_probe::Error>(())
/// ```
#[must_use = "nothing is measured before it is run"]
pub struct Probe<'a> {
    directory: PathBuf,
    measure: Measure,
    parts: BTreeSet<Part>,
    cancel: &'a AtomicBool,
    on_progress: Option<OnProgress<'a>>,
}

impl<'a> Probe<'a> {
    /// Of everything, on a file of 1 GiB, in about a minute.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        let clock = UNIX_EPOCH.elapsed().map_or(1, |since| u64::from(since.subsec_nanos()) ^ since.as_secs());
        Self {
            directory: directory.as_ref().to_path_buf(),
            measure: Measure {
                file_bytes: 1 << 30,
                interval: Duration::from_millis(90),
                rounds: 9,
                fill: Duration::from_secs(15),
                seed: clock,
            },
            parts: Part::ALL.into(),
            cancel: &NEVER,
            on_progress: None,
        }
    }

    /// In about ten seconds, on a file of 256 MiB: less exact.
    pub fn quick(mut self) -> Self {
        self.measure = Measure {
            file_bytes: 256 << 20,
            interval: Duration::from_millis(40),
            rounds: 5,
            fill: Duration::from_secs(3),
            ..self.measure
        };
        self
    }

    /// Bytes of the file that is read and written at random, at least [`MIN_FILE_BYTES`]. It should be larger than what the
    /// disk itself caches. On a slow disk it is as much of it as is written in 15 seconds.
    pub fn file_bytes(mut self, bytes: u64) -> Self {
        self.measure.file_bytes = bytes.max(MIN_FILE_BYTES);
        self
    }

    /// How long one interval of one subject is; 90 ms if not said. All other times are multiples of it.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.measure.interval = interval;
        self
    }

    /// How often intervals that are compared are repeated, at least once; 9 if not said.
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.measure.rounds = rounds.max(1);
        self
    }

    /// Seed of the random choices; of the clock if not said.
    pub fn seed(mut self, seed: u64) -> Self {
        self.measure.seed = seed;
        self
    }

    /// These measurements only.
    pub fn only(mut self, parts: impl IntoIterator<Item = Part>) -> Self {
        self.parts = parts.into_iter().collect();
        self
    }

    /// Ends the measurement soon after this has become true, with [`Error::Cancelled`].
    pub fn cancel(mut self, cancel: &'a AtomicBool) -> Self {
        self.cancel = cancel;
        self
    }

    /// Calls back with its progress, some times a second.
    pub fn on_progress(mut self, report: &'a (dyn Fn(&Progress) + Sync)) -> Self {
        self.on_progress = Some(report);
        self
    }

    /// Measures.
    ///
    /// Fails, before anything is written, where the directory can't be measured: no directory, in memory, read-only, full or
    /// forbidden; where memory is short; and with what reading or writing failed with.
    pub fn run(self) -> Result<Report> {
        let began = Instant::now();
        let directory = TestDirectory::open(&self.directory)?;
        let measure = self.measure;
        directory.require_space(measure.file_bytes + bulk::max_bytes(&measure) + mixed::MIN_FILE)?;
        directory.dirty_allowance(bulk::max_bytes(&measure))?;
        let all = self.parts.iter().copied().map(Some).chain([None]);
        let estimates = all.map(|part| (part, estimate(&measure, part))).collect();
        let mut work = Run::new(directory, measure, estimates, self.cancel, self.on_progress);
        work.check()?;
        let mut file = TestFile::new(&work.directory, &*work.io)?;
        file.fill(measure.file_bytes, measure.fill, &work)?;
        let mut events = Events::start(&work.directory);
        let mut found = Findings::default();
        for part in &self.parts {
            work.begin(*part)?;
            found.measure(*part, &work, &file, &mut events)?;
        }
        let profile = found.profile(&work.directory, &file);
        Ok(Report {
            directory: self.directory,
            took_seconds: began.elapsed().as_secs_f64(),
            interval_ms: measure.interval.as_secs_f64() * 1e3,
            rounds: measure.rounds,
            seed: measure.seed,
            file_bytes_wanted: measure.file_bytes,
            events: events.source,
            summary: summary::summary(&profile),
            notes: summary::notes(
                found.direct.as_ref(),
                found.bulk.as_ref(),
                &profile,
                measure.file_bytes,
                &work,
            ),
            found,
            profile,
        })
    }
}

/// How long a part takes about, in seconds; without a part, to write the file.
fn estimate(measure: &Measure, part: Option<Part>) -> f64 {
    let interval = measure.interval.as_secs_f64();
    let intervals = |count: u32, cases: f64| interval * f64::from(count) * cases;
    match part {
        // At a few hundred MB/s.
        None => (measure.file_bytes as f64 / 4e8).min(measure.fill.as_secs_f64()),
        Some(Part::Direct) => 1.0,
        Some(Part::Uncached | Part::Atomic | Part::ReadAhead) => 0.3,
        Some(Part::Mixed) => intervals(measure.rounds, mixed::SUBJECTS as f64 * 1.15),
        Some(Part::Reads) => intervals(reads::INTERVALS, 5.0),
        Some(Part::Sync) => intervals(sync::INTERVALS, 2.0),
        Some(Part::Release) => 1.5,
        Some(Part::Bulk) => intervals(bulk::INTERVALS * bulk::rounds(measure), 5.0 * 1.2),
    }
}

/// What was measured; `None` of what was not asked for, or can't be had.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Findings {
    /// Direct I/O.
    pub direct: Option<DirectReport>,
    /// Uncached writes.
    pub uncached: Option<UncachedReport>,
    /// Atomic writes.
    pub atomic: Option<AtomicReport>,
    /// Direct I/O while others use the file's page cache.
    pub mixed: Option<MixedReport>,
    /// Random reads.
    pub reads: Option<ReadsReport>,
    /// Read-ahead.
    pub read_ahead: Option<ReadAheadReport>,
    /// Syncs.
    pub sync: Option<SyncReport>,
    /// Releasing pages.
    pub release: Option<ReleaseReport>,
    /// Small writes beside bulk output.
    pub bulk: Option<BulkReport>,
}

impl Findings {
    fn measure(&mut self, part: Part, work: &Run<'_>, file: &TestFile, events: &mut Events) -> Result<()> {
        match part {
            Part::Direct => self.direct = Some(direct::measure(work, file, events)?),
            Part::Uncached => self.uncached = Some(writes::uncached(work)?),
            Part::Atomic => self.atomic = Some(writes::atomic(work, file)?),
            Part::Mixed => {
                let other = mixed::other_file(work)?;
                self.mixed = mixed::measure(work, file, &other, events)?;
            }
            Part::Reads => self.reads = Some(reads::measure(work, file)?),
            Part::ReadAhead => self.read_ahead = Some(pages::read_ahead(work, file)?),
            Part::Sync => self.sync = Some(sync::measure(work)?),
            Part::Release => self.release = Some(pages::release(work, file)?),
            Part::Bulk => self.bulk = Some(bulk::measure(work, events)?),
        }
        Ok(())
    }

    /// The short form.
    fn profile(&self, directory: &TestDirectory, file: &TestFile) -> DiskProfile {
        let system = rustix::system::uname();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole pages, not negative"
        )]
        let bytes = |bytes: f64| bytes as u64;
        DiskProfile {
            version: DiskProfile::VERSION,
            measured_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            kernel: unescaped_bytes(system.release().to_bytes()).into_owned(),
            file_system: directory.file_system.clone(),
            device: directory.device.clone(),
            file_system_id: directory.file_system_id(),
            file_bytes: file.len,
            read_ahead_bytes: directory.read_ahead,
            small_read_bytes: self.read_ahead.and_then(|found| found.random_bytes).map(bytes),
            direct: self.direct.as_ref().and_then(DirectReport::profile),
            mixed: self.mixed.as_ref().map(MixedReport::profile),
            uncached: self.uncached.as_ref().map(UncachedReport::profile).unwrap_or_default(),
            atomic_write_bytes_max: self.atomic.as_ref().and_then(AtomicReport::bytes_max),
            atomic_in_place_bytes_max: self.atomic.as_ref().and_then(AtomicReport::in_place_bytes_max),
            reads: self.reads.as_ref().map(|reads| reads.depths.clone()).unwrap_or_default(),
            sync_us: self.sync.map(|sync| sync.append.p50_us),
            sync_overwrite_us: self.sync.map(|sync| sync.overwrite.p50_us),
            release_us_per_gib: self.release.and_then(|release| release.sequential_us_per_gib),
            bulk: self.bulk.as_ref().and_then(BulkReport::profile),
        }
    }
}

/// What came of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Where.
    pub directory: PathBuf,
    /// How long it took, in seconds.
    pub took_seconds: f64,
    /// How long one interval was, in milliseconds.
    pub interval_ms: f64,
    /// How often intervals that are compared were repeated.
    pub rounds: u32,
    /// Seed of the random choices.
    pub seed: u64,
    /// Bytes that the file was to have; [`DiskProfile::file_bytes`] is what it had.
    pub file_bytes_wanted: u64,
    /// Where events of the kernel come from, or why there are none.
    pub events: String,
    /// The details.
    #[serde(flatten)]
    pub found: Findings,
    /// The short form, for programs.
    pub profile: DiskProfile,
    /// What a reader of the figures should know.
    pub notes: Vec<String>,
    /// The disk in one sentence, for people.
    pub summary: String,
}

impl std::fmt::Debug for Probe<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe")
            .field("directory", &self.directory)
            .field("measure", &self.measure)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

/// Whether the error is the answer to a wanted to stop.
impl Error {
    /// Whether the measurement was ended by the wanted to stop.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use super::*;
    use pagekeeper_testing::disk_dir;

    fn shortest(directory: &Path) -> Probe<'_> {
        Probe::new(directory).quick().file_bytes(0).rounds(1).interval(Duration::from_millis(5))
    }

    #[test]
    fn all_of_it_is_measured_and_nothing_left() {
        let dir = disk_dir();
        let calls = Mutex::new(Vec::new());
        let report = |progress: &Progress| calls.lock().unwrap().push(*progress);
        let report = shortest(dir.path()).on_progress(&report).run().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let Report { profile, found, .. } = &report;
        assert_eq!(profile.version, 1);
        assert_eq!(profile.file_bytes, MIN_FILE_BYTES);
        assert_eq!(profile.reads.len(), 5);
        assert!(profile.sync_us.is_some() && profile.bulk.is_some() && found.release.is_some());
        assert_eq!(profile.mixed.is_some(), found.mixed.is_some());
        assert!(!report.summary.is_empty());
        let calls = calls.into_inner().unwrap();
        assert!(calls.windows(2).all(|pair| pair[0].done <= pair[1].done), "it only grows");
        let parts: BTreeSet<Part> = calls.iter().filter_map(|progress| progress.part).collect();
        assert_eq!(parts, Part::ALL.into());
    }

    #[test]
    fn the_wish_to_stop_ends_it_and_nothing_is_left() {
        let dir = disk_dir();
        let cancel = AtomicBool::new(false);
        let stop = |progress: &Progress| {
            if progress.part == Some(Part::Mixed) {
                cancel.store(true, Ordering::Relaxed);
            }
        };
        let error = shortest(dir.path()).cancel(&cancel).on_progress(&stop).run().unwrap_err();
        assert!(error.is_cancelled(), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_asked_for_is_not_measured() {
        let dir = disk_dir();
        let report = shortest(dir.path()).only([Part::Uncached]).run().unwrap();
        assert_eq!(report.found, Findings { uncached: report.found.uncached.clone(), ..Findings::default() });
        assert!(report.profile.reads.is_empty() && report.profile.mixed.is_none());
    }
}
