//! The syncs of all processes during a watch, each with the file of its descriptor.
//!
//! Invariants: the watch only reads. A descriptor is looked up at the tick after its first sync,
//! and again whenever it was synced in a later tick: a reused descriptor counts for the old file
//! for one tick at most. At most [`CALLS_MAX`] syncs are kept; the rest is counted. If syncs can't
//! be seen, that is a gap, not an error.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_trace::syncs::{SyncEvent, SyncEvents};
use pagekeeper_trace::{TaskIdentity, TraceError};

use crate::{Snapshot, VisibilityGap, not_traced};

/// Syncs that are kept: one minute at 8,000 a second.
const CALLS_MAX: usize = 500_000;

/// The syncs of a watch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Syncs {
    /// The duration of the watch.
    pub looked: Duration,
    /// All syncs.
    pub calls: Vec<SeenSync>,
    /// The number of further syncs for which there was no room.
    pub lost: u64,
}

/// One sync.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenSync {
    /// The calling task.
    pub task: TaskIdentity,
    /// The call: "fdatasync".
    pub call: &'static str,
    /// The file; `None` if its descriptor was closed before it could be looked up.
    pub file: Option<Arc<SyncedFile>>,
    /// Its start, from the start of the watch.
    pub began: Duration,
    /// Its duration.
    pub took: Duration,
    /// Whether it was still running at the end of the watch.
    pub goes_on: bool,
}

/// A synced file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncedFile {
    /// Its identity as in stat.
    pub inode: Inode,
    /// Its path as its process sees it.
    pub path: PathBuf,
}

impl Syncs {
    /// Returns the syncs by process and file; those of unknown files are left out.
    pub fn by_file(&self) -> Vec<(&SyncedFile, Vec<&SeenSync>)> {
        let mut files: BTreeMap<(u32, Inode), (&SyncedFile, Vec<&SeenSync>)> = BTreeMap::new();
        for call in &self.calls {
            let Some(file) = call.file.as_deref() else { continue };
            let entry = files.entry((call.task.process, file.inode));
            entry.or_insert_with(|| (file, Vec::new())).1.push(call);
        }
        files.into_values().collect()
    }
}

/// The syncs since this was made.
#[derive(Debug)]
pub struct SyncWatch {
    events: Result<SyncEvents, TraceError>,
    began: Duration,
    proc: ProcRoot,
    syncs: Syncs,
}

impl SyncWatch {
    /// Begins the watch; from now on, it also counts threads of these databases that are already in
    /// a sync.
    pub fn start(before: &Snapshot) -> Self {
        let events = SyncEvents::open();
        if let Ok(events) = &events {
            for database in &before.databases {
                database.pid.iter().chain(&database.workers).for_each(|pid| events.adopt(*pid));
            }
        }
        Self { events, began: SyncEvents::now(), proc: ProcRoot::default(), syncs: Syncs::default() }
    }

    /// Takes the syncs that have ended since the last tick.
    pub fn tick(&mut self) {
        let mut ended = Vec::new();
        if let Ok(events) = &mut self.events {
            events.drain(&mut |event| ended.push(event));
        }
        self.keep(ended);
    }

    /// Returns the syncs, including those that have not ended, and a gap if they could not be seen.
    pub fn finish(mut self) -> (Option<Syncs>, Option<VisibilityGap>) {
        self.tick();
        let (waiting, lost) = match &self.events {
            Ok(events) => (events.waiting().unwrap_or_default(), events.lost().unwrap_or_default()),
            Err(error) => return (None, Some(not_traced("syncs are not observed", error))),
        };
        self.keep(waiting);
        self.syncs.lost += lost;
        self.syncs.looked = SyncEvents::now().saturating_sub(self.began);
        (Some(self.syncs), None)
    }

    fn keep(&mut self, events: Vec<SyncEvent>) {
        let mut files: HashMap<(u32, i32), Option<Arc<SyncedFile>>> = HashMap::new();
        let now = SyncEvents::now();
        for event in events {
            if self.syncs.calls.len() >= CALLS_MAX {
                self.syncs.lost += 1;
                continue;
            }
            let file = files.entry((event.process, event.fd)).or_insert_with(|| self.file_of(&event)).clone();
            let began = event.began.max(self.began);
            let took = event.ended.unwrap_or(now).saturating_sub(began);
            self.syncs.calls.push(SeenSync {
                call: event.call.name(),
                task: TaskIdentity { process: event.process, thread: event.thread, name: event.name },
                file,
                began: began.saturating_sub(self.began),
                took,
                goes_on: event.ended.is_none(),
            });
        }
    }

    /// Returns the descriptor's current file.
    fn file_of(&self, event: &SyncEvent) -> Option<Arc<SyncedFile>> {
        let inode = self.proc.inode_behind(event.process, event.fd)?;
        let path: PathBuf = std::fs::read_link(self.proc.fd_path(event.process, event.fd)).ok()?;
        Some(Arc::new(SyncedFile { inode, path }))
    }
}
