//! The run itself: it starts the children, waits for the warm-ups and the three parts, and samples the residency
//! of the files.
//!
//! Invariants: the pages of the first part are left as they are when the second begins, and these two parts differ
//! only in the guard. The third begins as the first did, on new files, with an engine that releases its pages
//! itself, and without the guard. The store comes last, after the logs and their pages were removed. The parts run
//! one after another, so the disk may have changed in between. Reports are assigned to the parts by their own
//! times, so a delay in a pipe does not matter. Fails when a child ends early, and on SIGINT, SIGTERM and SIGHUP.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use pagekeeper_kernel::pressure::{MemInfo, SysRoots};
use pagekeeper_kernel::text::escaped;
use pagekeeper_kernel::{InspectedFile, Links, residency};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::children::{Child, Message, Role};
use super::recovery::{Recovery, recover};
use super::{REPORT_EACH, config, engine, monotonic_ns, place, store};

/// Time before the first part and before the third that is not measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// Limit for the engine to make its files, and for the store to fill its rows: this takes minutes on an emulated
/// processor.
const START_LIMIT: Duration = Duration::from_secs(300);
/// Limit for the guard to find the logs, and to write its summary: this takes some seconds on a busy emulated
/// processor.
const GUARD_LIMIT: Duration = Duration::from_secs(60);

/// The residency of the files, and the available memory.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Sample {
    /// Time in seconds since the start of the first part.
    pub(super) seconds: f64,
    /// Resident bytes of the redo files.
    pub(super) redo_resident_bytes: u64,
    /// Resident bytes of the binlog files.
    pub(super) binlog_resident_bytes: u64,
    /// Resident bytes of the compaction's files.
    pub(super) bulk_resident_bytes: u64,
    /// Bytes of both logs that are dirty or under writeback.
    pub(super) unwritten_bytes: u64,
    /// `MemFree` of /proc/meminfo.
    pub(super) memory_free_bytes: u64,
    /// `MemAvailable` of /proc/meminfo.
    pub(super) memory_available_bytes: u64,
}

impl Sample {
    /// Returns the resident bytes of all log files.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.redo_resident_bytes + self.binlog_resident_bytes
    }
}

/// One part of the run.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Samples, one each [`REPORT_EACH`].
    pub(super) samples: Vec<Sample>,
    /// The engine's reports that lie entirely in this part.
    pub(super) engine: Vec<engine::Report>,
}

/// All results of the run.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Total seconds of the three parts.
    pub(super) seconds: u64,
    /// The part in which pages are left to the kernel.
    pub(super) alone: Part,
    /// The part with the guard.
    pub(super) guarded: Part,
    /// The part in which the engine releases its pages itself.
    pub(super) inside: Part,
    /// The guard's summary, as it printed it.
    pub(super) guard_summary: serde_json::Value,
    /// The guard's warnings and failures.
    pub(super) guard_problems: Vec<String>,
    /// The opening of the store that was killed.
    pub(super) recovery: Recovery,
}

/// Runs the demo for `seconds`, with its files in a new directory inside `wanted` or a chosen place.
pub(super) fn perform(seconds: u64, wanted: Option<&Path>) -> anyhow::Result<Run> {
    let parent = place::parent(wanted)?;
    crate::frozen::wait_while_frozen(&parent);
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("can't catch signals")?;
    }
    // Declared before the stage, so that it is removed after its children have ended.
    let scratch = place::make(&parent)?;
    let mut stage = Stage::new(scratch.path(), interrupted);
    let run = stage.run(seconds);
    drop(stage);
    show_progress("");
    scratch.close().context("can't remove the temporary directory")?;
    run
}

struct Stage<'a> {
    scratch: &'a Path,
    dir: PathBuf,
    interrupted: Arc<AtomicBool>,
    sender: mpsc::Sender<Message>,
    messages: Receiver<Message>,
    children: Vec<Child>,
    engine: Vec<engine::Report>,
    guard: Vec<serde_json::Value>,
    store: Option<store::Report>,
}

impl<'a> Stage<'a> {
    fn new(scratch: &'a Path, interrupted: Arc<AtomicBool>) -> Self {
        let (sender, messages) = mpsc::channel();
        Self {
            scratch,
            dir: scratch.to_path_buf(),
            interrupted,
            sender,
            messages,
            children: Vec::new(),
            engine: Vec::new(),
            guard: Vec::new(),
            store: None,
        }
    }

    fn run(&mut self, seconds: u64) -> anyhow::Result<Run> {
        let third = Duration::from_secs(seconds) / 3;
        let engine = self.start_engine(Role::Engine, "left")?;
        let began_ns = monotonic_ns();
        let alone = self.watch(third, "alone", Some(began_ns))?;
        let middle_ns = monotonic_ns();
        self.start(Role::Guard, &[engine])?;
        // On a machine where programs take seconds to start, the guard would be ended before it can receive the
        // signal. A log that it did not find is reported below.
        self.wait_for_guard("found")?;
        let guarded_ns = monotonic_ns();
        let guarded = self.watch(third, "under the guard", Some(began_ns))?;
        let ended_ns = monotonic_ns();
        if let Some(guard) = self.children.last_mut() {
            guard.end(GUARD_LIMIT)?;
        }
        let guard_summary = self.wait_for_guard("summary")?.context("the guard gave no summary")?;
        let guard_problems = self.guard_problems();
        ensure!(
            self.guard.iter().any(|line| line["event"] == "found"),
            "the guard did not find the engine's logs. {}",
            guard_problems.join("; ")
        );
        self.end_engine()?;
        self.start_engine(Role::ReleasingEngine, "released")?;
        let anew_ns = monotonic_ns();
        let inside = self.watch(third, "inside", Some(began_ns))?;
        let inside = self.part(inside, anew_ns, monotonic_ns());
        self.end_engine()?;
        let recovery = self.kill_a_store()?;
        Ok(Run {
            seconds,
            alone: self.part(alone, began_ns, middle_ns),
            guarded: self.part(guarded, guarded_ns, ended_ns),
            inside,
            guard_summary,
            guard_problems,
            recovery,
        })
    }

    /// Starts an engine on a new directory, and returns its process ID after the warm-up.
    fn start_engine(&mut self, role: Role, dir: &str) -> anyhow::Result<u32> {
        self.dir = self.scratch.join(dir);
        std::fs::create_dir(&self.dir).with_context(|| format!("can't create {}", escaped(&self.dir)))?;
        let started_ns = monotonic_ns();
        let engine = self.start(role, &[])?;
        self.wait_for_engine(started_ns)?;
        self.watch(WARM_UP, "warming up", None)?;
        Ok(engine)
    }

    /// Ends the engine and removes its files, and so their pages.
    fn end_engine(&mut self) -> anyhow::Result<()> {
        self.children.clear();
        show_progress("removing the engine's files");
        std::fs::remove_dir_all(&self.dir).with_context(|| format!("can't remove {}", escaped(&self.dir)))
    }

    /// Kills a process that commits to a store, and opens the store.
    fn kill_a_store(&mut self) -> anyhow::Result<Recovery> {
        self.dir = self.scratch.to_path_buf();
        self.start(Role::Store, &[])?;
        let limit_ns = monotonic_ns() + nanoseconds(START_LIMIT);
        show_progress("filling a page store");
        while self.store.is_none_or(|report| report.acknowledged == 0) {
            self.listen(REPORT_EACH)?;
            if monotonic_ns() > limit_ns {
                bail!("the store had no commits after {} s: is the disk that slow?", START_LIMIT.as_secs());
            }
        }
        self.watch(config::STORE_COMMITS_FOR, "committing to a page store", None)?;
        // The child is killed by SIGKILL and waited for, so its lock is free after this.
        self.children.clear();
        while let Ok(message) = self.messages.try_recv() {
            self.take(message);
        }
        show_progress("opening the store");
        recover(&self.dir, self.store.map_or(0, |report| report.acknowledged))
    }

    fn start(&mut self, role: Role, pids: &[u32]) -> anyhow::Result<u32> {
        let child = Child::start(role, &self.dir, pids, self.scratch, &self.sender)?;
        let pid = child.pid();
        self.children.push(child);
        Ok(pid)
    }

    /// Waits until the engine that was started at this time commits.
    fn wait_for_engine(&mut self, started_ns: u64) -> anyhow::Result<()> {
        let limit_ns = started_ns + nanoseconds(START_LIMIT);
        show_progress("preparing the log files");
        while self.engine.last().is_none_or(|report| report.from_ns < started_ns) {
            self.listen(REPORT_EACH)?;
            if monotonic_ns() > limit_ns {
                bail!("the engine had no files after {} s: is the disk that slow?", START_LIMIT.as_secs());
            }
        }
        Ok(())
    }

    /// Samples and receives messages for `time`. Without `began_ns` nothing is sampled.
    fn watch(&mut self, time: Duration, what: &str, began_ns: Option<u64>) -> anyhow::Result<Vec<Sample>> {
        let start_ns = monotonic_ns();
        let end_ns = start_ns + nanoseconds(time);
        let mut samples = Vec::new();
        let mut next_ns = start_ns;
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= next_ns || now_ns >= end_ns {
                if let Some(began_ns) = began_ns {
                    samples.push(sample(&self.dir, began_ns)?);
                }
                let passed = Duration::from_nanos(now_ns - start_ns);
                show_progress(&format!("{what}: {} of {} s", passed.as_secs(), time.as_secs()));
                next_ns = (next_ns + nanoseconds(REPORT_EACH)).max(now_ns);
            }
            if now_ns >= end_ns {
                return Ok(samples);
            }
            let pause_ns = next_ns.min(end_ns).saturating_sub(monotonic_ns());
            self.listen(Duration::from_nanos(pause_ns))?;
        }
    }

    /// Receives messages for `time`; fails when a child has ended or a signal has arrived.
    fn listen(&mut self, time: Duration) -> anyhow::Result<()> {
        self.take_messages(time)?;
        self.children.iter_mut().try_for_each(Child::check)
    }

    /// Receives messages for `time`; fails when a signal has arrived.
    fn take_messages(&mut self, time: Duration) -> anyhow::Result<()> {
        match self.messages.recv_timeout(time) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if self.interrupted.load(Ordering::Relaxed) {
            bail!("interrupted; the demo's processes are ended and its files removed");
        }
        Ok(())
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Engine(report) => self.engine.push(report),
            Message::Guard(line) => self.guard.push(line),
            Message::Store(report) => self.store = Some(report),
        }
    }

    /// Returns the guard's first line of this kind, if one arrives in time. Messages of other children are
    /// received meanwhile.
    fn wait_for_guard(&mut self, event: &str) -> anyhow::Result<Option<serde_json::Value>> {
        let limit_ns = monotonic_ns() + nanoseconds(GUARD_LIMIT);
        loop {
            if let Some(line) = self.guard.iter().find(|line| line["event"] == event) {
                return Ok(Some(line.clone()));
            }
            if monotonic_ns() >= limit_ns {
                return Ok(None);
            }
            self.take_messages(REPORT_EACH)?;
        }
    }

    fn guard_problems(&self) -> Vec<String> {
        let words = |line: &serde_json::Value| {
            let said = line["problem"].as_str().or(line["warning"].as_str())?;
            Some(format!("{}: {said}", line["path"].as_str().unwrap_or("?")))
        };
        self.guard.iter().filter_map(words).collect()
    }

    fn part(&self, samples: Vec<Sample>, from_ns: u64, to_ns: u64) -> Part {
        let inside = |at_ns: u64| (from_ns..=to_ns).contains(&at_ns);
        let reports = self.engine.iter().filter(|report| inside(report.from_ns) && inside(report.to_ns));
        Part { samples, engine: reports.cloned().collect() }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Counts the resident pages of all files in `dir`.
fn sample(dir: &Path, began_ns: u64) -> anyhow::Result<Sample> {
    let mut sample = Sample { seconds: (monotonic_ns() - began_ns) as f64 / 1e9, ..Sample::default() };
    let (redo, binlog) = (resident(&dir.join("redo"))?, resident(&dir.join("binlog"))?);
    (sample.redo_resident_bytes, sample.binlog_resident_bytes) = (redo.resident, binlog.resident);
    sample.unwritten_bytes = redo.unwritten + binlog.unwritten;
    sample.bulk_resident_bytes = resident(&dir.join("bulk"))?.resident;
    let memory = MemInfo::read(&SysRoots::default())?;
    sample.memory_free_bytes = memory.free;
    sample.memory_available_bytes = memory.available;
    Ok(sample)
}

/// The residency of a directory's files.
#[derive(Default)]
struct Resident {
    resident: u64,
    unwritten: u64,
}

/// Counts it; files that are purged meanwhile are left out.
fn resident(dir: &Path) -> anyhow::Result<Resident> {
    let mut sum = Resident::default();
    for entry in std::fs::read_dir(dir).with_context(|| format!("can't list {}", escaped(dir)))? {
        let counted =
            InspectedFile::open(entry?.path(), Links::Refuse).and_then(|file| residency(&file, 0..u64::MAX));
        let counted = match counted {
            Err(error) if error.is_gone() => continue,
            counted => counted?,
        };
        sum.resident += counted.resident;
        sum.unwritten += counted.unwritten();
    }
    Ok(sum)
}

/// Shows the progress of the run, only on a terminal.
fn show_progress(text: &str) {
    let mut out = std::io::stderr().lock();
    if out.is_terminal() {
        // The run goes on if the terminal is gone.
        let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
    }
}
