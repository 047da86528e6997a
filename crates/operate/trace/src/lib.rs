//! Traces the page cache: which tasks add and remove pages of which files, which are throttled for
//! dirty pages, which have to reclaim memory for themselves, and the latency of block devices.
//!
//! # Why BPF is assembled here
//!
//! Counting in the kernel needs a few programs of some 50 instructions, run at tracepoints. The
//! usual tools for that have large dependencies: libbpf and bcc need clang, at build or at run
//! time; aya needs a second Rust toolchain (nightly, bpf-linker) for its programs. All of them want
//! BTF from the running kernel to find fields. This crate needs none of it, at build or run time.
//!
//! The kernel describes each tracepoint's record in a text file (`events/CATEGORY/NAME/format` in
//! tracefs), with every field's offset and size. The programs are written with those offsets, so
//! one binary fits every kernel that has the tracepoints, with or without BTF. Tracing begins in
//! milliseconds. The price is an assembler of 350 lines (`asm`), and programs written instruction
//! by instruction. The kernel's verifier checks each one, so a mistake in them is an error at the
//! start, not a crash.
//!
//! # How an event becomes a count
//!
//! 1. `tracefs` finds the mount (or mounts its own), and `format` parses a tracepoint's fields.
//! 2. `programs` writes one program for each tracepoint with `asm`; `record` has the layout of the
//!    tables' keys and values.
//! 3. `sys` makes the maps and loads the programs (bpf(2)), and attaches them
//!    (`perf_event_open(2)`).
//! 4. The programs count in the maps, by file, task and device. `bpf` reads the maps in batches and
//!    passes changes to `period_sums`, which both sources share; [`Tracer::take`] makes
//!    [`TraceCounts`] of it.
//!
//! Without permission to load programs, `polling` and `machine` read plain counters.
//! [`Tracer::source`] returns the source in use, and why it is not a better one.
//!
//! # Events of single processes
//!
//! [`page_events`] passes on each event of a few followed processes instead of counting those of
//! all: the pages that they add, uses of these pages, and the ends of the processes. It needs
//! fields that no tracepoint's record has (an inode's generation), so it reads the kernel's BTF,
//! with a reader of its own. Of the existing crates that read BTF, one is under the LGPL (btf-rs),
//! and the other does not expose the fields of structs (aya-obj).
//!
//! # Syncs
//!
//! [`syncs`] passes on each sync of a file: its task, its descriptor, and its duration.
//!
//! # Requests
//!
//! [`disk_use`] counts the requests to each disk by processes that are not followed, without an
//! event for each request.
//!
//! # Samples
//!
//! [`page_events::samples`] passes on each event of a sample of pages, in the whole page cache or below some
//! directories, and counts the accesses to all of them.
//!
//! # To add an event
//!
//! 1. In `event`: a variant of `TracepointKind`, with its category and name.
//! 2. In `options`: the `TracepointGroup` it belongs to, and the switch in [`TraceOptions`] if the
//!    kind is new.
//! 3. In `programs`: its program, which names the fields. A field with another name in older
//!    kernels gets several names.
//! 4. In `bpf`: the table in which it counts; in `record` the layout of a new table; in
//!    `period_sums` and `counts` the result.
//! 5. In `lines` and `pipe`: the same event as a line of text.
//! 6. In `tests`: make the event happen, and compare the sources.
//!
//! # Invariants
//!
//! This crate only observes; no other user of tracing is disturbed. All tables and buffers are
//! bounded, and events without room are counted ([`EventLosses`]). Everything is removed when the
//! [`Tracer`] is dropped, and when its process ends for whatever cause, even `kill -9`. Fails only
//! if not even counters can be read; a lesser source is not a failure.
//!
//! Not covered: pages added to a tmpfs are not events, although some of those that leave it are. On
//! kernels whose events do not have a folio's size, it counts as one page. The length of a pause is
//! the one that the kernel intends, in its ticks.
//!
//! ```
//! use pagekeeper_trace::{TraceOptions, Tracer};
//!
//! let mut tracer = Tracer::start(&TraceOptions::default())?;
//! println!("{}", tracer.source());
//! std::fs::read(std::env::current_exe()?)?;
//! let counts = tracer.take()?;
//! for (file, flow) in counts.by_file() {
//!     println!("inode {}: {} bytes came, {} left", file.ino, flow.added.bytes, flow.removed.bytes);
//! }
//! for pauses in counts.pauses.iter().flatten() {
//!     println!("{} throttled for {:?}, {} over", pauses.task.name, pauses.pauses.total(), pauses.levels.over());
//! }
//! println!("{}", counts.losses);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod asm;
mod bpf;
mod counts;
pub mod disk_use;
mod durations;
mod error;
mod event;
mod machine;
mod options;
pub mod page_events;
mod period_sums;
mod polling;
pub mod syncs;
mod sys;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tracefs;

use std::fmt;
use std::time::Instant;

pub use counts::{
    BlockCounts, BlockOp, DirtyLevels, EventLosses, PageCounts, PageFlow, PageTotals, PauseCounts,
    ReclaimCounts, ReclaimKind, TaskIdentity, TraceCounts,
};
pub use durations::DurationStats;
pub use error::{LockdownLevel, MissingPermission, TraceError};
pub use machine::MachineCounts;
pub use options::{PageFilter, TraceLevel, TraceOptions, traced_inode};

use bpf::BpfSource;
use bpf::programs::KernelFilter;
use options::{TracepointGroup, TracepointSet};
use period_sums::PeriodSums;
use polling::PollingSource;
use tracefs::Tracefs;

/// The source of the counts, and why it is not a better one. Its `Display` is a sentence.
#[derive(Debug)]
pub enum TraceSource {
    /// Programs in the kernel: everything is known, at the lowest cost.
    Bpf,
    /// The machine's counters, and the residency of the chosen files: no tasks.
    Counters {
        /// The reason why there are no programs.
        no_bpf: TraceError,
    },
}

impl TraceSource {
    /// Returns the level of the source.
    pub fn level(&self) -> TraceLevel {
        match self {
            Self::Bpf => TraceLevel::Bpf,
            Self::Counters { .. } => TraceLevel::Counters,
        }
    }
}

impl fmt::Display for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bpf => f.write_str("events are counted in the kernel"),
            Self::Counters { no_bpf } => {
                write!(f, "no events, only counters are read; they can't be counted in the kernel: {no_bpf}")
            }
        }
    }
}

#[derive(Debug)]
enum CountReader {
    // This variant is boxed, since it is by far the largest.
    Bpf(Box<BpfSource>),
    Polling(PollingSource),
}

/// Counts events, from its creation until it is dropped.
///
/// Dropping it takes about half a second: the kernel waits, for each tracepoint, until no processor
/// runs its program any more.
#[derive(Debug)]
pub struct Tracer {
    reader: CountReader,
    source: TraceSource,
    missing: Vec<TraceError>,
    traced: Vec<TracepointGroup>,
    sums: PeriodSums,
    options: TraceOptions,
    began: Instant,
    machine_then: MachineCounts,
}

impl Tracer {
    /// Starts to count, with the best source available.
    ///
    /// Fails if a file of the filter can't be opened, or the machine's counters can't be read.
    pub fn start(options: &TraceOptions) -> Result<Self, TraceError> {
        let filter = options.kernel_filter()?;
        let machine_then = MachineCounts::read(&options.roots)?;
        let (reader, source, points) = match start_bpf(options, &filter) {
            Ok((reader, points)) => (CountReader::Bpf(Box::new(reader)), TraceSource::Bpf, Some(points)),
            Err(no_bpf) => {
                let reader = PollingSource::start(options)?;
                (CountReader::Polling(reader), TraceSource::Counters { no_bpf }, None)
            }
        };
        let traced = match (&points, &reader) {
            (Some(points), _) => points.kinds(),
            (None, CountReader::Polling(files)) if files.watches() => vec![TracepointGroup::Pages],
            (None, _) => Vec::new(),
        };
        Ok(Self {
            reader,
            source,
            missing: points.map(|points| points.missing).unwrap_or_default(),
            traced,
            sums: PeriodSums::new(options.entries),
            options: options.clone(),
            began: Instant::now(),
            machine_then,
        })
    }

    /// Returns the source of the counts.
    pub fn source(&self) -> &TraceSource {
        &self.source
    }

    /// Returns the events that the options ask for and this kernel lacks, each a
    /// [`TraceError::NoEvent`].
    pub fn missing(&self) -> &[TraceError] {
        &self.missing
    }

    /// Returns the counts since the start or the last [`Self::take`].
    pub fn snapshot(&mut self) -> Result<TraceCounts, TraceError> {
        match &mut self.reader {
            CountReader::Bpf(reader) => reader.read(&mut self.sums)?,
            CountReader::Polling(reader) => reader.read(&mut self.sums)?,
        }
        let sums = &self.sums;
        let has = |kind| self.traced.contains(&kind);
        Ok(TraceCounts {
            period: self.began.elapsed(),
            pages: has(TracepointGroup::Pages).then(|| sums.page_counts()),
            pauses: has(TracepointGroup::Pauses).then(|| sums.pause_counts()),
            reclaim: has(TracepointGroup::Reclaim).then(|| sums.reclaim_counts()),
            block: has(TracepointGroup::Block).then(|| sums.block_counts()),
            machine: MachineCounts::read(&self.options.roots)?.since(&self.machine_then),
            losses: sums.losses,
        })
    }

    /// Returns the same, and begins a new period: nothing is counted twice, and nothing is missed.
    ///
    /// To trace for long, call it now and then: the room for files and tasks is that of one period.
    pub fn take(&mut self) -> Result<TraceCounts, TraceError> {
        let machine_now = MachineCounts::read(&self.options.roots)?;
        let counts = self.snapshot()?;
        let machine = machine_now.since(&self.machine_then);
        self.sums = PeriodSums::new(self.options.entries);
        self.began += counts.period;
        self.machine_then = machine_now;
        Ok(TraceCounts { machine, ..counts })
    }
}

fn start_bpf(
    options: &TraceOptions,
    filter: &KernelFilter,
) -> Result<(BpfSource, TracepointSet), TraceError> {
    if options.best > TraceLevel::Bpf {
        return Err(TraceError::NotAsked);
    }
    let points = options.points(&Tracefs::find(&options.roots.proc)?)?;
    Ok((BpfSource::start(options, &points, filter)?, points))
}
