//! All files of the host that have pages in memory, including closed ones, kept up to date at
//! little cost.
//!
//! [`Census::start`] samples every file once. From then on tracing reports which files' pages come
//! and go, and [`Census::tick`] samples only those files, dirty ones and those on the screen. A
//! background thread rescans all files to correct drift, and lists the open files of processes.
//! Without tracing there are only that thread and the files that a process has open, which
//! [`CensusTick::visibility_gaps`] reports.
//!
//! Invariants: only reads. A tick takes at most [`CPU_SHARE`] of a processor, however much happens:
//! files for which there is no time are estimated from events until they are sampled. 12 bytes are
//! kept for a file without pages, and about 100 for a file with pages.
//!
//! File systems that are mounted after the start are not walked, but reported: a new census walks
//! them ([`Census::is_outdated`]). Fails only if `/proc` can't be read; anything that this user may
//! not see is a [`VisibilityGap`], not an error.
//!
//! ```
//! use pagekeeper_observe::{Census, CensusOptions, RowQuery};
//! # let dir = tempfile::tempdir_in(".")?;
//! # std::fs::write(dir.path().join("file"), vec![1; 1 << 20])?;
//! # let options = CensusOptions { directories: vec![dir.path().into()], trace: None, ..CensusOptions::default() };
//! let mut census = Census::start(options)?;
//! let tick = census.tick()?;
//! println!("{} of {} bytes cached are of these files", tick.explained.files, tick.explained.cached);
//! for row in census.rows(&RowQuery::default()).rows {
//!     println!("{} bytes of {}", row.resident, row.label);
//! }
//! # assert_eq!(census.rows(&RowQuery::default()).rows[0].resident, 1 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod background;
mod file_systems;
mod flow;
mod memory;
mod naming;
mod patient;
mod processes;
mod rows;
mod sampling;
mod table;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::hang;
use pagekeeper_kernel::pressure::{MemInfo, SysRoots, VmStat, Watermarks};
use pagekeeper_text::{escaped, unescaped};
use pagekeeper_trace::{
    EventLosses, MachineCounts, PageFilter, PauseCounts, ReclaimCounts, TraceCounts, TraceLevel,
    TraceOptions, Tracer,
};
use serde::{Serialize, Serializer};

use crate::visibility::{of_denied_processes, unanswered};
use crate::{ObserveError, VisibilityGap};
use background::{BackgroundThread, BackgroundWork, WorkerMessage};
use file_systems::FileSystems;
use flow::FlowTable;
use processes::{DatabaseProcess, OpenerIndex, ProcessInfo};
use sampling::TickBudget;
use table::{DirectoryIndex, FileTable, FoundFile, PageSums};
use walk::{SharedScope, WalkScope};

pub use flow::FlowBytes;
pub use memory::{CachedBreakdown, MemoryBreakdown};
pub use patient::PatientCensus;
pub use processes::FileUse;
pub use rows::{GroupBy, QueryRows, Row, RowKey, RowOwner, RowQuery, SortKey};
pub use walk::WalkProgress;

/// The share of one processor that a tick may take, and as much for the background thread: 0.8 %
/// each.
pub const CPU_SHARE: f64 = 0.008;

/// Options of a census.
#[derive(Debug, Clone)]
pub struct CensusOptions {
    /// Where `/proc` and `/sys` are.
    pub roots: SysRoots,
    /// Only files in and below these directories; empty (the default) for all local file systems.
    pub directories: Vec<PathBuf>,
    /// Whether network file systems are walked as well, whose servers may never answer. By default
    /// not.
    pub network: bool,
    /// Options for tracing; `None` for a census without. By default the best method that is
    /// available.
    pub trace: Option<TraceOptions>,
    /// The known kinds of databases. By default the built-in ones.
    pub profiles: Vec<Profile>,
    /// Threads of the first walk; at least 1. By default one for each processor, at most 8.
    pub threads: usize,
    /// Whether the census is kept up to date in the background; by default it is. For a single
    /// snapshot, turn it off: then only events and files on the screen are followed.
    pub follow: bool,
    /// The progress of the first walk.
    pub progress: Arc<WalkProgress>,
}

impl Default for CensusOptions {
    fn default() -> Self {
        Self {
            roots: SysRoots::default(),
            directories: Vec::new(),
            network: false,
            trace: Some(TraceOptions { entries: 32 * 1024, ..TraceOptions::default() }),
            profiles: Profile::built_in(),
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8),
            follow: true,
            progress: Arc::default(),
        }
    }
}

/// The host as a whole at one tick. Its files are in [`Census::rows`].
#[derive(Debug, Clone)]
pub struct CensusTick {
    /// The time of the tick.
    pub at: SystemTime,
    /// The time since the tick before, or the start.
    pub period: Duration,
    /// `/proc/meminfo`.
    pub memory: MemInfo,
    /// The watermarks of free memory below which the kernel reclaims.
    pub watermarks: Watermarks,
    /// Memory by use.
    pub split: MemoryBreakdown,
    /// The parts of `Cached`.
    pub explained: CachedBreakdown,
    /// By file system, in the order of their mounts.
    pub file_systems: Vec<FileSystemSum>,
    /// The number of known files.
    pub files: u64,
    /// The number of these that have pages in memory.
    pub files_in_memory: u64,
    /// The tasks that were throttled for dirty pages, longest first; `None` without tracing.
    pub pauses: Option<Vec<PauseCounts>>,
    /// The tasks that had to reclaim memory directly, longest first; `None` without tracing.
    pub reclaim: Option<Vec<ReclaimCounts>>,
    /// The machine's counters; `None` without tracing.
    pub machine: Option<MachineCounts>,
    /// Events that were lost.
    pub losses: EventLosses,
    /// The duration of the last background rescan of all files; `None` before the first is
    /// complete.
    pub rescan: Option<Duration>,
    /// Everything that could not be seen.
    pub visibility_gaps: Vec<VisibilityGap>,
}

/// Memory of the files of one file system, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileSystemSum {
    /// Its mount point.
    #[serde(serialize_with = "as_text")]
    pub point: PathBuf,
    /// Its type: `ext4`.
    pub kind: String,
    /// Its device or other source.
    pub source: String,
    /// Files with pages in memory.
    pub files: u64,
    /// Resident bytes.
    pub resident: u64,
    /// Resident bytes that are changed and not being written yet.
    pub dirty: u64,
    /// Resident bytes that are being written.
    pub writeback: u64,
}

fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&unescaped(path))
}

/// All files of the host that have pages in memory.
///
/// Everything is owned by the thread that calls [`Self::tick`], except `scope`, which the
/// background thread shares. `scope` has locks of its own, and none is held over I/O.
#[derive(Debug)]
pub struct Census {
    options: CensusOptions,
    profiles: Vec<Arc<Profile>>,
    scope: SharedScope,
    background: Option<BackgroundThread>,
    tracer: Option<Tracer>,
    devices: DeviceNames,
    files: KnownFiles,
    processes: KnownProcesses,
    clock: CensusClock,
    gaps: CensusGaps,
    view: Option<rows::RankedView>,
    /// Whether the host has more dirty bytes than the known files.
    dirty_elsewhere: bool,
}

/// The mapping from devices in events and mappings to devices in the table.
#[derive(Debug, Default)]
struct DeviceNames {
    /// The devices of files by the device that tracing names.
    traced: HashMap<u64, Vec<u64>>,
    /// Overlays, and the device of the layers below them.
    overlays: HashMap<u64, u64>,
}

/// The files, and the work pending for some of them.
#[derive(Debug)]
struct KnownFiles {
    /// The files with pages in memory.
    table: FileTable,
    /// The directory of each file, including files without pages.
    directories: DirectoryIndex,
    /// The number of files.
    count: u64,
    flows: FlowTable,
    /// Paths through which files without a name can be opened.
    reach: HashMap<Inode, PathBuf>,
    /// Ids of files whose name is wanted, and the number of searches of all changed directories for
    /// it.
    nameless: HashMap<u32, u8>,
    /// Ids of files with unwritten pages.
    unwritten: HashSet<u32>,
    /// Ids of files that are sampled in each tick.
    shown: HashSet<u32>,
    /// Bytes a second by id, of the last tick.
    growth: HashMap<u32, i64>,
}

/// The processes, and their open files.
#[derive(Debug, Default)]
struct KnownProcesses {
    known: HashMap<u32, ProcessInfo>,
    openers: OpenerIndex,
    databases: Vec<DatabaseProcess>,
    /// The processes whose files may not be listed.
    denied: HashSet<u32>,
}

/// Times of the last actions.
#[derive(Debug)]
struct CensusClock {
    /// The number of the tick.
    tick: u32,
    ticked: Instant,
    /// The number of the background rescan in progress.
    rescan: u32,
    rescan_took: Option<Duration>,
}

/// Everything that the census could not see.
#[derive(Debug, Default)]
struct CensusGaps {
    /// Mount points of file systems that were mounted since it began.
    mounted: Vec<PathBuf>,
    denied_files: u64,
    failed_files: u64,
    losses: EventLosses,
}

impl Census {
    /// Samples all files once, in several threads, and starts tracing.
    ///
    /// Blocks until that is complete: about 1.5 seconds for half a million files if the kernel has
    /// their names in memory, otherwise as long as reading the names from disk takes. Fails if a
    /// directory that was named can't be found, or `/proc` can't be read.
    pub fn start(mut options: CensusOptions) -> Result<Self, ObserveError> {
        let proc = options.roots.proc.clone();
        let file_systems = if options.directories.is_empty() {
            FileSystems::of_host(&proc, options.network)?
        } else {
            FileSystems::of_directories(&proc, &options.directories, options.network)?
        };
        let profiles: Vec<_> = std::mem::take(&mut options.profiles).into_iter().map(Arc::new).collect();
        let scope = Arc::new(WalkScope::new(file_systems));
        // Before the walk, so that no event is missed.
        let tracer =
            options.trace.clone().map(|trace| start_tracing(trace, &scope.file_systems)).transpose()?;
        let result = walk::walk_all(&scope, options.threads, &options.progress);
        let mut census = Self {
            files: KnownFiles {
                table: FileTable::with_file_systems(scope.file_systems.walked.len()),
                count: result.known.len() as u64,
                directories: DirectoryIndex::of(result.known),
                flows: FlowTable::default(),
                reach: HashMap::new(),
                nameless: HashMap::new(),
                unwritten: HashSet::new(),
                shown: HashSet::new(),
                growth: HashMap::new(),
            },
            devices: DeviceNames::default(),
            processes: KnownProcesses::default(),
            clock: CensusClock { tick: 0, ticked: Instant::now(), rescan: 1, rescan_took: None },
            gaps: CensusGaps {
                denied_files: result.denied,
                failed_files: result.failed,
                ..CensusGaps::default()
            },
            view: None,
            tracer,
            background: None,
            dirty_elsewhere: false,
            profiles,
            scope,
            options,
        };
        for found in result.found {
            census.take_found(found);
        }
        census.learn_devices();
        census.scan_processes()?;
        census.files.table.take_changes();
        // Events during the walk are in the figures already, except for files that the walk had
        // passed.
        if let Some(counts) = census.take_trace()? {
            census.apply(&counts, &mut TickBudget::of(Duration::from_secs(10)));
            census.files.table.take_changes();
        }
        census.clock.ticked = Instant::now();
        // Observations of the background thread belong to the next rescan.
        census.clock.rescan += 1;
        if census.options.follow {
            census.background = Some(census.start_background()?);
        }
        Ok(census)
    }

    /// Returns whether file systems were mounted since the start that only a new census would walk.
    pub fn is_outdated(&self) -> bool {
        !self.gaps.mounted.is_empty()
    }

    fn start_background(&self) -> Result<BackgroundThread, ObserveError> {
        let work = BackgroundWork {
            proc: self.options.roots.proc.clone(),
            scope: Arc::clone(&self.scope),
            profiles: self.profiles.clone(),
            counts_open: !self.has_events(),
            network: self.options.network,
            share: CPU_SHARE,
        };
        BackgroundThread::start(work)
            .map_err(|source| ObserveError::Directory { path: "/proc/self/task".into(), source })
    }

    /// Returns whether the tracer reports events of all files.
    fn has_events(&self) -> bool {
        self.tracer.as_ref().is_some_and(|tracer| tracer.source().level() != TraceLevel::Counters)
    }

    fn take_trace(&mut self) -> Result<Option<TraceCounts>, ObserveError> {
        Ok(self.tracer.as_mut().map(Tracer::take).transpose()?)
    }

    /// Learns which devices of files each device in tracing stands for.
    fn learn_devices(&mut self) {
        let file_systems = &self.scope.file_systems;
        for (dev, file_system) in self.scope.devices().iter() {
            if let Some(file_system) = file_systems.walked.get(usize::from(*file_system)) {
                let devices = self.devices.traced.entry(file_system.traced).or_default();
                if !devices.contains(dev) {
                    devices.push(*dev);
                }
            }
        }
        for (dev, layer) in &file_systems.overlays {
            if let Ok(_call) = hang::announce(layer)
                && let Ok(stat) = rustix::fs::stat(layer)
            {
                self.devices.overlays.insert(*dev, stat.st_dev);
            }
        }
    }

    /// Takes a snapshot of every process.
    fn scan_processes(&mut self) -> Result<(), ObserveError> {
        let proc = self.options.roots.proc.clone();
        for pid in proc.pids()? {
            if self.options.progress.is_cancelled() {
                break;
            }
            // Open files that the walk has not reached.
            let counts = self.options.progress.is_walk_ended();
            if let Some(snapshot) = processes::snapshot(&proc, pid, &self.profiles, &self.scope, counts) {
                self.take_process(snapshot);
            }
        }
        Ok(())
    }

    fn take_process(&mut self, snapshot: processes::ProcessSnapshot) {
        let processes::ProcessSnapshot { pid, process, mut files, deleted, counted, database, denied } =
            snapshot;
        if denied {
            self.processes.denied.insert(pid);
        } else {
            self.processes.denied.remove(&pid);
        }
        for (inode, _) in &mut files {
            *inode = self.own_inode(*inode).unwrap_or(*inode);
        }
        self.processes.openers.set(pid, &files);
        self.processes.known.insert(pid, process);
        for (found, reach) in deleted {
            self.files.reach.insert(found.inode, reach);
            self.take_found(found);
        }
        for found in counted {
            self.take_found(found);
        }
        let Some(database) = database else { return };
        match self.processes.databases.iter_mut().find(|known| known.pid == pid) {
            Some(known)
                if known.directories == database.directories
                    && known.profile.name == database.profile.name => {}
            Some(known) => {
                *known = database;
                self.view = None;
            }
            None => {
                self.processes.databases.push(database);
                self.view = None;
            }
        }
    }

    /// Returns the file of an event or mapping as this census identifies it, for files of
    /// subvolumes and of layers below an overlay.
    fn own_inode(&self, inode: Inode) -> Option<Inode> {
        if let Some(below) = self.devices.overlays.get(&inode.dev) {
            return Some(Inode { dev: *below, ..inode });
        }
        match self.devices.traced.get(&inode.dev).map(Vec::as_slice) {
            Some([dev]) => Some(Inode { dev: *dev, ..inode }),
            Some(devices) => {
                let known = |dev: &&u64| {
                    let inode = Inode { dev: **dev, ..inode };
                    self.files.table.id(inode).is_some() || self.files.directories.directory(inode).is_some()
                };
                let dev = devices.iter().find(known).or(devices.first())?;
                Some(Inode { dev: *dev, ..inode })
            }
            None => None,
        }
    }

    fn take_found(&mut self, found: FoundFile) -> Option<u32> {
        let inode = found.inode;
        let id = self.files.table.take(found, self.clock.tick, self.clock.rescan);
        self.update_id_sets(inode, id);
        id
    }

    /// Updates the sets of ids after a file was sampled.
    fn update_id_sets(&mut self, inode: Inode, id: Option<u32>) {
        let Some(id) = id else {
            self.files.reach.remove(&inode);
            return;
        };
        let Some(entry) = self.files.table.get(id) else { return };
        if entry.pages.dirty > 0 || entry.pages.writeback > 0 {
            self.files.unwritten.insert(id);
        } else {
            self.files.unwritten.remove(&id);
        }
        if entry.name == table::FileName::Unknown {
            self.files.nameless.entry(id).or_insert(0);
        } else {
            self.files.nameless.remove(&id);
        }
    }

    /// Brings everything up to date.
    ///
    /// Meant to be called about once a second. Takes at most [`CPU_SHARE`] of the time since the
    /// last call, but at least 4 ms.
    pub fn tick(&mut self) -> Result<CensusTick, ObserveError> {
        let period = self.clock.ticked.elapsed();
        self.clock.ticked = Instant::now();
        self.clock.tick += 1;
        let mut budget = TickBudget::of(period.mul_f64(CPU_SHARE).max(Duration::from_millis(4)));
        self.take_messages();
        let counts = self.take_trace()?;
        // At the same moment as the events end, so that the two agree.
        let memory = MemInfo::read(&self.options.roots)?;
        match &counts {
            Some(counts) if counts.pages.is_some() => self.apply(counts, &mut budget),
            _ => self.sample_without_events(&mut budget),
        }
        let seconds = period.as_secs_f64().max(1e-3);
        let changes = self.files.table.take_changes();
        if let Some(view) = &mut self.view {
            view.touch(changes.iter().map(|(id, _)| *id));
        }
        let page = pagekeeper_kernel::page_size() as f64;
        #[allow(clippy::cast_possible_truncation, reason = "bytes a second of real memory")]
        let rate = |pages: i64| (pages as f64 * page / seconds) as i64;
        self.files.growth = changes.into_iter().map(|(id, pages)| (id, rate(pages))).collect();
        self.finish(period, memory, counts)
    }

    fn finish(
        &mut self,
        period: Duration,
        memory: MemInfo,
        counts: Option<TraceCounts>,
    ) -> Result<CensusTick, ObserveError> {
        let roots = &self.options.roots;
        let split = MemoryBreakdown::of(&memory, &VmStat::read(roots)?);
        let sums = self.files.table.sums();
        let resident: u64 = sums.iter().map(|sum| sum.resident).sum();
        let dirty: u64 = sums.iter().map(|sum| sum.dirty).sum();
        self.dirty_elsewhere = memory.dirty > dirty + (dirty / 8).max(4 << 20);
        let file_systems = self.scope.file_systems.walked.iter().zip(sums);
        let file_systems = file_systems.map(|(file_system, sum)| sum_of(file_system, *sum)).collect();
        if let Some(counts) = &counts {
            let (sum, new) = (&mut self.gaps.losses, counts.losses);
            sum.no_room += new.no_room;
            sum.skipped += new.skipped;
        }
        Ok(CensusTick {
            at: SystemTime::now(),
            period,
            watermarks: Watermarks::read(roots)?,
            explained: CachedBreakdown {
                cached: memory.cached,
                files: resident,
                shmem: memory.shmem,
                scoped: self.scope.file_systems.scoped,
            },
            memory,
            split,
            file_systems,
            files: self.files.count,
            files_in_memory: self.files.table.len() as u64,
            visibility_gaps: self.visibility_gaps(),
            losses: self.gaps.losses,
            rescan: self.clock.rescan_took,
            machine: counts.as_ref().map(|counts| counts.machine),
            pauses: counts.as_ref().and_then(|counts| counts.pauses.clone()),
            reclaim: counts.and_then(|counts| counts.reclaim),
        })
    }

    /// Applies the background thread's results.
    fn take_messages(&mut self) {
        let messages = self.background.as_ref().map(BackgroundThread::take).unwrap_or_default();
        let mut ended = false;
        for message in messages {
            match message {
                WorkerMessage::Directory(result) => {
                    for found in result.found {
                        let flowing = self
                            .files
                            .flows
                            .of(found.inode)
                            .is_some_and(|flow| flow.tick + 1 >= self.clock.tick);
                        // A file that is changing right now is sampled by the tick itself.
                        if !flowing
                            || self
                                .files
                                .table
                                .id(found.inode)
                                .is_none_or(|id| self.files.nameless.contains_key(&id))
                        {
                            self.take_found(found);
                        } else if let Some(id) = self.files.table.id(found.inode) {
                            self.files.table.mark_seen(id, self.clock.rescan);
                        }
                    }
                }
                WorkerMessage::Process(snapshot) => self.take_process(*snapshot),
                WorkerMessage::Processes(alive) => self.forget_processes(&alive),
                WorkerMessage::RescanDone { known, files, took } => {
                    self.files.directories = known;
                    self.files.count = files;
                    self.clock.rescan_took = Some(took);
                    self.end_rescan();
                    ended = true;
                }
                WorkerMessage::Mounted(points) => self.gaps.mounted = points,
                WorkerMessage::Searched => {
                    for searches in self.files.nameless.values_mut() {
                        *searches = searches.saturating_add(1);
                    }
                }
            }
        }
        if ended {
            // Once, whatever the number of rescans: numbers of directories in unread messages are
            // newer than that.
            self.scope.directories().forget(&self.files.table.directories());
        }
    }

    /// Removes files that a whole rescan did not see, except files without a name, which no rescan
    /// can see.
    fn end_rescan(&mut self) {
        self.learn_devices();
        let seen_since = self.clock.rescan;
        let gone: Vec<u32> = self
            .files
            .table
            .iter()
            .filter(|(_, entry)| entry.rescan < seen_since && matches!(entry.name, table::FileName::In(..)))
            .map(|(id, _)| id)
            .collect();
        for id in gone {
            self.files.table.remove(id);
            self.forget(id);
        }
        self.clock.rescan += 1;
    }

    fn forget(&mut self, id: u32) {
        self.files.unwritten.remove(&id);
        self.files.nameless.remove(&id);
        self.files.shown.remove(&id);
        self.files.growth.remove(&id);
    }

    fn forget_processes(&mut self, alive: &HashSet<u32>) {
        let ended: Vec<u32> =
            self.processes.known.keys().filter(|pid| !alive.contains(pid)).copied().collect();
        let remembered = self.files.flows.processes();
        for pid in ended {
            self.processes.openers.forget(pid);
            self.processes.denied.remove(&pid);
            if !remembered.contains(&pid) {
                self.processes.known.remove(&pid);
            }
        }
        let databases = self.processes.databases.len();
        self.processes.databases.retain(|database| alive.contains(&database.pid));
        if self.processes.databases.len() != databases {
            self.view = None;
        }
    }

    /// Returns everything that can't be seen.
    fn visibility_gaps(&self) -> Vec<VisibilityGap> {
        let mut gaps = Vec::new();
        let mut add = |what: String, why: &str, needs: Option<&str>| {
            gaps.push(VisibilityGap { what, why: why.to_owned(), needs: needs.map(str::to_owned) });
        };
        if self.gaps.denied_files > 0 {
            add(
                format!("the cached pages of {} files or directories of other users", self.gaps.denied_files),
                "the kernel shows it to a file's owner only",
                Some("root, or CAP_FOWNER and CAP_DAC_READ_SEARCH"),
            );
        }
        if self.gaps.failed_files > 0 {
            add(format!("{} files or directories", self.gaps.failed_files), "they can't be opened", None);
        }
        if !self.processes.denied.is_empty() {
            let (why, needs) = of_denied_processes();
            add(
                format!("the open files of others' processes ({} of them)", self.processes.denied.len()),
                why,
                needs,
            );
        }
        for point in &self.scope.file_systems.network {
            add(
                format!("files on {}", escaped(point)),
                "it is a network file system, whose server might never answer",
                Some("--network"),
            );
        }
        if let Some(point) = self.gaps.mounted.first() {
            let more = self.gaps.mounted.len() - 1;
            add(
                format!(
                    "files on {}{}",
                    escaped(point),
                    if more == 0 { String::new() } else { format!(" and {more} more") }
                ),
                "mounted since the start",
                Some("a new start"),
            );
        }
        match self.tracer.as_ref().map(Tracer::source) {
            Some(source) if !self.has_events() => add(
                "pages of closed files as they come and go, nor who brings them in, is throttled or reclaims"
                    .to_owned(),
                &format!("{source}; closed files are sampled only by the background rescan"),
                Some("root, or CAP_BPF and CAP_PERFMON"),
            ),
            _ => {}
        }
        if self.gaps.losses.total() > 0 {
            let losses = self.gaps.losses.to_string();
            add(
                losses,
                "more happened than could be counted; the background rescan corrects the figures",
                None,
            );
        }
        gaps.extend(unanswered());
        gaps
    }
}

fn sum_of(file_system: &file_systems::WalkedFileSystem, sum: PageSums) -> FileSystemSum {
    FileSystemSum {
        point: file_system.point.clone(),
        kind: file_system.kind.clone(),
        source: file_system.source.clone(),
        files: sum.files,
        resident: sum.resident,
        dirty: sum.dirty,
        writeback: sum.writeback,
    }
}

/// Starts tracing the pages of files that are walked.
fn start_tracing(options: TraceOptions, file_systems: &FileSystems) -> Result<Tracer, ObserveError> {
    let mut devices: Vec<u64> = file_systems.walked.iter().map(|file_system| file_system.traced).collect();
    devices.sort_unstable();
    devices.dedup();
    // The filter's length is limited; with more file systems than that, events are filtered here.
    let filter = if devices.len() <= 64 { PageFilter::Devices(devices) } else { PageFilter::Everything };
    Ok(Tracer::start(&TraceOptions { filter, block: false, ..options })?)
}
