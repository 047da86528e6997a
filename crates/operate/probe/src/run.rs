//! The state that all measurements share: directory, durations, the request to stop, and progress.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_io::{BackendChoice, Io};
use pagekeeper_policy::stream_pace::StreamPace;
use serde::Serialize;

use crate::directory::TestDirectory;
use crate::{Error, Result};

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbePart {
    /// Direct I/O: its alignment, and whether it is real.
    Direct,
    /// Uncached writes: the pages that stay resident.
    Uncached,
    /// Atomic writes: their sizes.
    Atomic,
    /// Direct reads and writes while the file's page cache is in use.
    Mixed,
    /// Latency and concurrency of random reads.
    Reads,
    /// The pages that one small read brings in.
    ReadAhead,
    /// Syncs.
    Sync,
    /// Releasing pages.
    Release,
    /// Small writes next to a bulk writer.
    Bulk,
}

impl ProbePart {
    /// All parts, in the order in which they are measured.
    pub const ALL: [Self; 9] = [
        Self::Direct,
        Self::Uncached,
        Self::Atomic,
        Self::Mixed,
        Self::Reads,
        Self::ReadAhead,
        Self::Sync,
        Self::Release,
        Self::Bulk,
    ];
}

impl fmt::Display for ProbePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct I/O",
            Self::Uncached => "uncached writes",
            Self::Atomic => "atomic writes",
            Self::Mixed => "direct I/O beside buffered",
            Self::Reads => "random reads",
            Self::ReadAhead => "read-ahead",
            Self::Sync => "syncs",
            Self::Release => "releasing pages",
            Self::Bulk => "small writes beside bulk output",
        })
    }
}

/// The progress of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProbeProgress {
    /// The current part; `None` while the test file is written.
    pub part: Option<ProbePart>,
    /// The estimated share of the time that is over: 0 to 1.
    pub done: f64,
}

/// A callback for the progress.
pub(crate) type OnProgress<'a> = &'a (dyn Fn(&ProbeProgress) + Sync);

/// Sizes, durations and pace of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MeasureOptions {
    /// Size of the file in bytes.
    pub(crate) file_bytes: u64,
    /// Length of one interval; other measurements take a multiple of it.
    pub(crate) interval: Duration,
    /// Repetitions of each interval.
    pub(crate) rounds: u32,
    /// Time limit for writing the file.
    pub(crate) fill: Duration,
    pub(crate) seed: u64,
    /// The pace at which the file is written.
    pub(crate) pace: StreamPace,
}

/// The context of a measurement.
pub(crate) struct ProbeContext<'a> {
    pub(crate) directory: TestDirectory,
    pub(crate) measure: MeasureOptions,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) not_uring: Option<String>,
    cancel: &'a AtomicBool,
    on_progress: Option<OnProgress<'a>>,
    /// Estimated duration of the parts before the current one, in seconds.
    before: f64,
    current: Option<ProbePart>,
    began: Instant,
    /// Estimated duration of each part, and of writing the file (`None`), in seconds.
    estimates: BTreeMap<Option<ProbePart>, f64>,
    /// The sum of `estimates`.
    whole: f64,
}

impl<'a> ProbeContext<'a> {
    pub(crate) fn new(
        directory: TestDirectory,
        measure: MeasureOptions,
        estimates: BTreeMap<Option<ProbePart>, f64>,
        cancel: &'a AtomicBool,
        on_progress: Option<OnProgress<'a>>,
    ) -> Self {
        let BackendChoice { io, not_uring } = BackendChoice::new();
        Self {
            directory,
            measure,
            io,
            not_uring: not_uring.map(|error| error.to_string()),
            cancel,
            on_progress,
            before: 0.0,
            current: None,
            began: Instant::now(),
            whole: estimates.values().sum(),
            estimates,
        }
    }

    /// Begins the next part.
    pub(crate) fn begin(&mut self, part: ProbePart) -> Result<()> {
        self.before += self.estimate();
        self.current = Some(part);
        self.began = Instant::now();
        self.check()
    }

    fn estimate(&self) -> f64 {
        self.estimates.get(&self.current).copied().unwrap_or_default()
    }

    /// Reports the progress. Fails if the measurement is to stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if let Some(on_progress) = self.on_progress {
            let share = self.estimate();
            let done = (self.before + self.began.elapsed().as_secs_f64().min(share)) / self.whole.max(1e-9);
            on_progress(&ProbeProgress { part: self.current, done: done.min(1.0) });
        }
        Ok(())
    }

    /// Whether the measurement is to stop; for threads, which do not report progress.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Returns the duration of `count` intervals.
    pub(crate) fn intervals(&self, count: u32) -> Duration {
        self.measure.interval * count
    }
}

#[cfg(test)]
impl ProbeContext<'static> {
    /// Creates the shortest possible measurement, for tests.
    pub(crate) fn for_test(directory: &std::path::Path) -> Self {
        static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);
        let measure = MeasureOptions {
            file_bytes: 64 << 20,
            interval: Duration::from_millis(10),
            rounds: 1,
            fill: Duration::ZERO,
            seed: 1,
            pace: StreamPace::Auto,
        };
        Self::new(TestDirectory::open(directory).unwrap(), measure, BTreeMap::new(), &NOT_CANCELLED, None)
    }
}
