//! The whole measurement: its parts, their order, and the report.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagekeeper_policy::DiskProfile;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_text::unescaped_bytes;
use serde::Serialize;

use crate::bulk::{self, BulkReport};
use crate::direct::{self, DirectReport};
use crate::directory::TestDirectory;
use crate::events::EventCounter;
use crate::file::{self, TestFile};
use crate::mixed::{self, MixedReport};
use crate::pages::{self, ReadAheadReport, ReleaseReport};
use crate::reads::{self, ReadsReport};
use crate::run::{MeasureOptions, OnProgress, ProbeContext, ProbePart, ProbeProgress};
use crate::summary;
use crate::sync::{self, SyncReport};
use crate::writes::{self, AtomicReport, UncachedReport};
use crate::{Error, Result};

/// Minimum size of the file in bytes. A smaller file would measure caches rather than disks.
pub const MIN_FILE_BYTES: u64 = file::FILLED_BYTES_MIN;
const _: () = assert!(MIN_FILE_BYTES >= mixed::MIXED_FILE_BYTES_MIN);

static NEVER_CANCELLED: AtomicBool = AtomicBool::new(false);

/// A measurement of the disk below a directory.
///
/// It takes about a minute and uses about half of the disk's capacity meanwhile. All files it
/// writes are without a name in the directory, and are freed at the end, however it ends.
///
/// ```
/// use std::time::Duration;
/// use pagekeeper_probe::{ProbePart, Probe};
///
/// let report = Probe::new("/var/tmp").quick().only([ProbePart::Sync]).interval(Duration::from_millis(5)).run()?;
/// println!("a sync after an append takes {:?} us", report.profile.sync_us);
/// println!("{}", report.summary);
/// # Ok::<(), pagekeeper_probe::Error>(())
/// ```
#[must_use = "nothing is measured before it is run"]
pub struct Probe<'a> {
    directory: PathBuf,
    measure: MeasureOptions,
    parts: BTreeSet<ProbePart>,
    cancel: &'a AtomicBool,
    on_progress: Option<OnProgress<'a>>,
}

impl<'a> Probe<'a> {
    /// Creates a measurement of all parts, on a file of 1 GiB, which takes about a minute.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        let clock = UNIX_EPOCH.elapsed().map_or(1, |since| u64::from(since.subsec_nanos()) ^ since.as_secs());
        Self {
            directory: directory.as_ref().to_path_buf(),
            measure: MeasureOptions {
                file_bytes: 1 << 30,
                interval: Duration::from_millis(90),
                rounds: 9,
                fill: Duration::from_secs(15),
                seed: clock,
                pace: StreamPace::Auto,
            },
            parts: ProbePart::ALL.into(),
            cancel: &NEVER_CANCELLED,
            on_progress: None,
        }
    }

    /// Makes it take about ten seconds, on a file of 256 MiB, with less exact results.
    pub fn quick(mut self) -> Self {
        self.measure = MeasureOptions {
            file_bytes: 256 << 20,
            interval: Duration::from_millis(40),
            rounds: 5,
            fill: Duration::from_secs(3),
            ..self.measure
        };
        self
    }

    /// Sets the size of the file for random reads and writes in bytes, at least [`MIN_FILE_BYTES`].
    /// It should exceed the cache of the disk itself. On a slow disk, the file has only as many
    /// bytes as are written in 15 seconds.
    pub fn file_bytes(mut self, bytes: u64) -> Self {
        self.measure.file_bytes = bytes.max(MIN_FILE_BYTES);
        self
    }

    /// Sets the length of one interval, 90 ms by default. All other times are multiples of it.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.measure.interval = interval;
        self
    }

    /// Sets how often compared intervals are repeated, at least once; 9 times by default.
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.measure.rounds = rounds.max(1);
        self
    }

    /// Sets the seed of the random choices. By default it comes from the clock.
    pub fn seed(mut self, seed: u64) -> Self {
        self.measure.seed = seed;
        self
    }

    /// Sets the pace at which the file is written before it is measured on; if not said, it is
    /// written in pieces, with pauses while others wait for the disk. Measurements take all that
    /// the disk gives.
    pub fn pace(mut self, pace: StreamPace) -> Self {
        self.measure.pace = pace;
        self
    }

    /// Restricts the measurement to these parts.
    pub fn only(mut self, parts: impl IntoIterator<Item = ProbePart>) -> Self {
        self.parts = parts.into_iter().collect();
        self
    }

    /// Makes the measurement end with [`Error::Cancelled`] soon after `cancel` becomes true.
    pub fn cancel(mut self, cancel: &'a AtomicBool) -> Self {
        self.cancel = cancel;
        self
    }

    /// Reports progress to this function, a few times per second.
    pub fn on_progress(mut self, report: &'a (dyn Fn(&ProbeProgress) + Sync)) -> Self {
        self.on_progress = Some(report);
        self
    }

    /// Measures.
    ///
    /// # Errors
    ///
    /// Fails before anything is written if the directory cannot be measured: it is not a directory,
    /// in memory, read-only, full or forbidden, or memory is short. Also fails if a read or a write
    /// fails.
    pub fn run(self) -> Result<ProbeReport> {
        let began = Instant::now();
        let directory = TestDirectory::open(&self.directory)?;
        let measure = self.measure;
        directory
            .require_space(measure.file_bytes + bulk::max_bytes(&measure) + mixed::MIXED_FILE_BYTES_MIN)?;
        directory.dirty_allowance(bulk::max_bytes(&measure))?;
        let all = self.parts.iter().copied().map(Some).chain([None]);
        let estimates = all.map(|part| (part, estimate(&measure, part))).collect();
        let mut work = ProbeContext::new(directory, measure, estimates, self.cancel, self.on_progress);
        work.check()?;
        let mut file = TestFile::new(&work.directory, &*work.io)?;
        file.fill(measure.file_bytes, measure.fill, &work)?;
        let mut events = EventCounter::start(&work.directory);
        let mut found = ProbeFindings::default();
        for part in &self.parts {
            work.begin(*part)?;
            found.measure(*part, &work, &file, &mut events)?;
        }
        let profile = found.profile(&work.directory, &file);
        Ok(ProbeReport {
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

/// Estimates the duration of a part in seconds; without a part, of writing the file.
fn estimate(measure: &MeasureOptions, part: Option<ProbePart>) -> f64 {
    let interval = measure.interval.as_secs_f64();
    let intervals = |count: u32, cases: f64| interval * f64::from(count) * cases;
    match part {
        // Assumes 400 MB/s.
        None => (measure.file_bytes as f64 / 4e8).min(measure.fill.as_secs_f64()),
        Some(ProbePart::Direct) => 1.0,
        Some(ProbePart::Uncached | ProbePart::Atomic | ProbePart::ReadAhead) => 0.3,
        Some(ProbePart::Mixed) => intervals(measure.rounds, mixed::SUBJECTS_PER_ROUND as f64 * 1.15),
        Some(ProbePart::Reads) => intervals(reads::READ_INTERVALS, 5.0),
        Some(ProbePart::Sync) => intervals(sync::SYNC_INTERVALS, 2.0),
        Some(ProbePart::Release) => 1.5,
        Some(ProbePart::Bulk) => intervals(bulk::BULK_INTERVALS * bulk::rounds(measure), 5.0 * 1.2),
    }
}

/// All results. A part is `None` if it was not requested or is not available.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ProbeFindings {
    /// Direct I/O.
    pub direct: Option<DirectReport>,
    /// Uncached writes.
    pub uncached: Option<UncachedReport>,
    /// Atomic writes.
    pub atomic: Option<AtomicReport>,
    /// Direct I/O while the file's page cache is in use.
    pub mixed: Option<MixedReport>,
    /// Random reads.
    pub reads: Option<ReadsReport>,
    /// Read-ahead.
    pub read_ahead: Option<ReadAheadReport>,
    /// Syncs.
    pub sync: Option<SyncReport>,
    /// Releasing pages.
    pub release: Option<ReleaseReport>,
    /// Small writes next to bulk output.
    pub bulk: Option<BulkReport>,
}

impl ProbeFindings {
    fn measure(
        &mut self,
        part: ProbePart,
        work: &ProbeContext<'_>,
        file: &TestFile,
        events: &mut EventCounter,
    ) -> Result<()> {
        match part {
            ProbePart::Direct => self.direct = Some(direct::measure(work, file, events)?),
            ProbePart::Uncached => self.uncached = Some(writes::uncached(work)?),
            ProbePart::Atomic => self.atomic = Some(writes::atomic(work, file)?),
            ProbePart::Mixed => {
                let other = mixed::other_file(work)?;
                self.mixed = mixed::measure(work, file, &other, events)?;
            }
            ProbePart::Reads => self.reads = Some(reads::measure(work, file)?),
            ProbePart::ReadAhead => self.read_ahead = Some(pages::read_ahead(work, file)?),
            ProbePart::Sync => self.sync = Some(sync::measure(work)?),
            ProbePart::Release => self.release = Some(pages::release(work, file)?),
            ProbePart::Bulk => self.bulk = Some(bulk::measure(work, events)?),
        }
        Ok(())
    }

    /// Returns the disk profile.
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

/// The report of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeReport {
    /// The directory.
    pub directory: PathBuf,
    /// Duration in seconds.
    pub took_seconds: f64,
    /// Length of one interval in milliseconds.
    pub interval_ms: f64,
    /// Repetitions of compared intervals.
    pub rounds: u32,
    /// Seed of the random choices.
    pub seed: u64,
    /// Requested size of the file in bytes; [`DiskProfile::file_bytes`] is the actual size.
    pub file_bytes_wanted: u64,
    /// The source of kernel events, or why there is none.
    pub events: String,
    /// The details.
    #[serde(flatten)]
    pub found: ProbeFindings,
    /// The short form, for programs.
    pub profile: DiskProfile,
    /// Notes for readers of the figures.
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

impl Error {
    /// Whether the measurement was cancelled.
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
    fn the_probe_measures_everything_and_leaves_nothing() {
        let dir = disk_dir();
        let calls = Mutex::new(Vec::new());
        let report = |progress: &ProbeProgress| calls.lock().unwrap().push(*progress);
        let report = shortest(dir.path()).on_progress(&report).run().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let ProbeReport { profile, found, .. } = &report;
        assert_eq!(profile.version, 1);
        assert_eq!(profile.file_bytes, MIN_FILE_BYTES);
        assert_eq!(profile.reads.len(), 5);
        assert!(profile.sync_us.is_some() && profile.bulk.is_some() && found.release.is_some());
        assert_eq!(profile.mixed.is_some(), found.mixed.is_some());
        assert!(!report.summary.is_empty());
        let calls = calls.into_inner().unwrap();
        assert!(calls.windows(2).all(|pair| pair[0].done <= pair[1].done), "it only grows");
        let parts: BTreeSet<ProbePart> = calls.iter().filter_map(|progress| progress.part).collect();
        assert_eq!(parts, ProbePart::ALL.into());
    }

    #[test]
    fn a_stop_ends_the_probe_and_leaves_nothing() {
        let dir = disk_dir();
        let cancel = AtomicBool::new(false);
        let stop = |progress: &ProbeProgress| {
            if progress.part == Some(ProbePart::Mixed) {
                cancel.store(true, Ordering::Relaxed);
            }
        };
        let error = shortest(dir.path()).cancel(&cancel).on_progress(&stop).run().unwrap_err();
        assert!(error.is_cancelled(), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn unrequested_parts_are_not_measured() {
        let dir = disk_dir();
        let report = shortest(dir.path()).only([ProbePart::Uncached]).run().unwrap();
        assert_eq!(
            report.found,
            ProbeFindings { uncached: report.found.uncached.clone(), ..ProbeFindings::default() }
        );
        assert!(report.profile.reads.is_empty() && report.profile.mixed.is_none());
    }
}
