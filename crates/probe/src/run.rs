//! What all measurements share: where, how long, the request to stop, and how far it has come.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_io::{Choice, Io};
use serde::Serialize;

use crate::directory::TestDirectory;
use crate::{Error, Result};

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Direct I/O: its alignment, and whether it is real.
    Direct,
    /// Uncached writes: what stays resident.
    Uncached,
    /// Atomic writes: their sizes.
    Atomic,
    /// Direct reads and writes while others use the file's page cache.
    Mixed,
    /// Latency and width of random reads.
    Reads,
    /// What one small read brings in.
    ReadAhead,
    /// Syncs.
    Sync,
    /// Releasing pages.
    Release,
    /// Small writes beside a bulk writer.
    Bulk,
}

impl Part {
    /// All, in the order in which they are measured.
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

impl fmt::Display for Part {
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

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// What is being measured; `None` while the file is written that it is measured on.
    pub part: Option<Part>,
    /// The share of the time that is over, as far as can be foreseen: 0 to 1.
    pub done: f64,
}

/// Called with the progress.
pub(crate) type OnProgress<'a> = &'a (dyn Fn(&Progress) + Sync);

/// How long and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    /// Bytes of the file.
    pub(crate) file_bytes: u64,
    /// One interval of one subject; other measurements take a multiple of it.
    pub(crate) interval: Duration,
    /// How often each interval is repeated.
    pub(crate) rounds: u32,
    /// The maximum time that writing the file may take.
    pub(crate) fill: Duration,
    pub(crate) seed: u64,
}

/// What a measurement is given.
pub(crate) struct Run<'a> {
    pub(crate) directory: TestDirectory,
    pub(crate) measure: Measure,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) not_uring: Option<String>,
    cancel: &'a AtomicBool,
    on_progress: Option<OnProgress<'a>>,
    /// In seconds.
    before: f64,
    current: Option<Part>,
    began: Instant,
    /// How long each part takes about, and to write the file, in seconds.
    estimates: BTreeMap<Option<Part>, f64>,
    /// All of that.
    whole: f64,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        directory: TestDirectory,
        measure: Measure,
        estimates: BTreeMap<Option<Part>, f64>,
        cancel: &'a AtomicBool,
        on_progress: Option<OnProgress<'a>>,
    ) -> Self {
        let Choice { io, not_uring } = Choice::new();
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

    /// Begins the next measurement.
    pub(crate) fn begin(&mut self, part: Part) -> Result<()> {
        self.before += self.estimate();
        self.current = Some(part);
        self.began = Instant::now();
        self.check()
    }

    fn estimate(&self) -> f64 {
        self.estimates.get(&self.current).copied().unwrap_or_default()
    }

    /// Reports how far it has come; fails if it is to stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.stopping() {
            return Err(Error::Cancelled);
        }
        if let Some(on_progress) = self.on_progress {
            let share = self.estimate();
            let done = (self.before + self.began.elapsed().as_secs_f64().min(share)) / self.whole.max(1e-9);
            on_progress(&Progress { part: self.current, done: done.min(1.0) });
        }
        Ok(())
    }

    /// Whether it is to stop: for threads, which report nothing.
    pub(crate) fn stopping(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// So many intervals.
    pub(crate) fn intervals(&self, count: u32) -> Duration {
        self.measure.interval * count
    }
}

#[cfg(test)]
impl Run<'static> {
    /// For tests: as short as can be.
    pub(crate) fn for_test(directory: &std::path::Path) -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let measure = Measure {
            file_bytes: 64 << 20,
            interval: Duration::from_millis(10),
            rounds: 1,
            fill: Duration::ZERO,
            seed: 1,
        };
        Self::new(TestDirectory::open(directory).unwrap(), measure, BTreeMap::new(), &NEVER, None)
    }
}
