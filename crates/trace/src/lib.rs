//! What happens in the page cache, as it happens: who brings in and drives out pages of which file, who is paused for
//! dirty pages, who has to reclaim memory for himself, how long block devices take.
//!
//! Counted by small programs in the kernel, assembled here and attached to tracepoints whose records are read as the
//! kernel's own `format` files describe them: no compiler, no headers, no BTF, no kprobes. Where programs are not to be
//! had, by lines that a private instance of the kernel's tracing writes; where that is not to be had either, by plain
//! counters. [`Tracer::source`] says which it came to be, and why not the better one.
//!
//! Invariants: only looks; no other user of tracing is disturbed. All tables and buffers have an end, and what found
//! no room is counted ([`Losses`]). All is removed when the [`Tracer`] is dropped, and when its process ends by
//! whatever cause, `kill -9` too.
//! Fails only where not even counters can be read; lesser sources are no failure.
//!
//! What the kernel does not tell: pages that come to a tmpfs are no events, though some of those that leave it are; on
//! kernels whose events don't say how large a folio is, it counts as one page. A pause is as long as the kernel means
//! it to be, in its ticks.
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
//!     println!("{} paused for {:?}, {} over", pauses.task.name, pauses.pauses.total(), pauses.levels.over());
//! }
//! println!("{}", counts.losses);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod asm;
mod bpf;
mod counts;
mod durations;
mod error;
mod format;
mod gathered;
mod instance;
mod lines;
mod machine;
mod options;
mod pipe;
mod polling;
mod programs;
mod record;
mod sys;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tracefs;

use std::fmt;
use std::time::Instant;

pub use counts::{
    BlockCounts, BlockOp, DirtyLevels, Losses, PageCounts, PageFlow, PageTotals, PauseCounts, ReclaimCounts,
    ReclaimKind, Task, TraceCounts,
};
pub use durations::Durations;
pub use error::{Lockdown, Needs, TraceError};
pub use machine::MachineCounts;
pub use options::{PageFilter, TraceLevel, TraceOptions, traced_inode};

use bpf::BpfSource;
use gathered::Gathered;
use options::{Kind, Points};
use pipe::PipeSource;
use polling::PollingSource;
use programs::Choice;
use tracefs::Tracefs;

/// Where the counts come from, and why not from something better. Shown, it says so in a sentence.
#[derive(Debug)]
pub enum TraceSource {
    /// Programs in the kernel: all is known, at the least cost.
    Bpf,
    /// The lines of a private instance of tracing: the same, but it costs more, and the process of a thread that has
    /// ended is not known.
    Tracefs {
        /// Why there are no programs.
        no_bpf: TraceError,
    },
    /// The machine's counters, and the residency of the chosen files: no tasks.
    Counters {
        /// Why there are no programs.
        no_bpf: TraceError,
        /// Why there is no instance.
        no_tracefs: TraceError,
    },
}

impl TraceSource {
    /// Which one it is.
    pub fn level(&self) -> TraceLevel {
        match self {
            Self::Bpf => TraceLevel::Bpf,
            Self::Tracefs { .. } => TraceLevel::Tracefs,
            Self::Counters { .. } => TraceLevel::Counters,
        }
    }
}

impl fmt::Display for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bpf => f.write_str("events are counted in the kernel"),
            Self::Tracefs { no_bpf } => {
                write!(f, "events are read from tracefs; they can't be counted in the kernel: {no_bpf}")
            }
            Self::Counters { no_bpf, no_tracefs } => write!(
                f,
                "no events, only counters are read; they can't be counted in the kernel: {no_bpf}; nor read from \
                 tracefs: {no_tracefs}"
            ),
        }
    }
}

#[derive(Debug)]
enum Reader {
    // They are by far the largest.
    Bpf(Box<BpfSource>),
    Pipe(Box<PipeSource>),
    Polling(PollingSource),
}

/// Counts what happens, from when it is made until it is dropped.
///
/// Dropping it takes about half a second: the kernel waits, for each tracepoint, until no processor runs its program
/// any more.
#[derive(Debug)]
pub struct Tracer {
    reader: Reader,
    source: TraceSource,
    missing: Vec<TraceError>,
    traced: Vec<Kind>,
    gathered: Gathered,
    options: TraceOptions,
    began: Instant,
    machine_then: MachineCounts,
}

impl Tracer {
    /// Starts to count, by the best source there is.
    ///
    /// Fails where a file of the filter can't be opened, or the machine's counters can't be read.
    pub fn start(options: &TraceOptions) -> Result<Self, TraceError> {
        let choice = options.choice()?;
        let machine_then = MachineCounts::read(&options.roots)?;
        let (reader, source, points) = match by_bpf(options, &choice) {
            Ok((reader, points)) => (Reader::Bpf(Box::new(reader)), TraceSource::Bpf, Some(points)),
            Err(no_bpf) => match by_tracefs(options, &choice) {
                Ok((reader, points)) => {
                    (Reader::Pipe(Box::new(reader)), TraceSource::Tracefs { no_bpf }, Some(points))
                }
                Err(no_tracefs) => {
                    let reader = PollingSource::start(options)?;
                    (Reader::Polling(reader), TraceSource::Counters { no_bpf, no_tracefs }, None)
                }
            },
        };
        let traced = match (&points, &reader) {
            (Some(points), _) => points.kinds(),
            (None, Reader::Polling(files)) if files.watches() => vec![Kind::Pages],
            (None, _) => Vec::new(),
        };
        Ok(Self {
            reader,
            source,
            missing: points.map(|points| points.missing).unwrap_or_default(),
            traced,
            gathered: Gathered::new(options.entries),
            options: options.clone(),
            began: Instant::now(),
            machine_then,
        })
    }

    /// Where the counts come from.
    pub fn source(&self) -> &TraceSource {
        &self.source
    }

    /// What was asked for and this kernel does not have, each a [`TraceError::NoEvent`].
    pub fn missing(&self) -> &[TraceError] {
        &self.missing
    }

    /// What happened since the start or the last [`Self::take`].
    ///
    /// Where the source is tracefs it has to be called before its buffer is full; once in a second is a good measure.
    pub fn snapshot(&mut self) -> Result<TraceCounts, TraceError> {
        match &mut self.reader {
            Reader::Bpf(reader) => reader.read(&mut self.gathered)?,
            Reader::Pipe(reader) => reader.read(&mut self.gathered)?,
            Reader::Polling(reader) => reader.read(&mut self.gathered)?,
        }
        let gathered = &self.gathered;
        let has = |kind| self.traced.contains(&kind);
        Ok(TraceCounts {
            period: self.began.elapsed(),
            pages: has(Kind::Pages).then(|| gathered.page_counts()),
            pauses: has(Kind::Pauses).then(|| gathered.pause_counts()),
            reclaim: has(Kind::Reclaim).then(|| gathered.reclaim_counts()),
            block: has(Kind::Block).then(|| gathered.block_counts()),
            machine: MachineCounts::read(&self.options.roots)?.since(&self.machine_then),
            losses: gathered.losses,
        })
    }

    /// The same, and begins a new period: nothing is counted in two, nothing falls in between.
    ///
    /// Who traces for long has to take now and then: the room for files and tasks is that of one period.
    pub fn take(&mut self) -> Result<TraceCounts, TraceError> {
        let machine_now = MachineCounts::read(&self.options.roots)?;
        let counts = self.snapshot()?;
        let machine = machine_now.since(&self.machine_then);
        self.gathered = Gathered::new(self.options.entries);
        self.began += counts.period;
        self.machine_then = machine_now;
        Ok(TraceCounts { machine, ..counts })
    }
}

fn by_bpf(options: &TraceOptions, choice: &Choice) -> Result<(BpfSource, Points), TraceError> {
    if options.best > TraceLevel::Bpf {
        return Err(TraceError::NotAsked);
    }
    let points = options.points(&Tracefs::find(&options.roots.proc)?)?;
    Ok((BpfSource::start(options, &points, choice)?, points))
}

fn by_tracefs(options: &TraceOptions, choice: &Choice) -> Result<(PipeSource, Points), TraceError> {
    if options.best > TraceLevel::Tracefs {
        return Err(TraceError::NotAsked);
    }
    let tracefs = Tracefs::find(&options.roots.proc)?;
    let points = options.points(&tracefs)?;
    Ok((PipeSource::start(options, &tracefs, &points, choice)?, points))
}
