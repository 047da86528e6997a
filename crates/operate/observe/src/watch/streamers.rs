//! Inspects the processes that brought in the most pages, drove out the most, or were throttled, at
//! the end of a watch, while they still run.
//!
//! Invariants: this module only reads. Nothing is known about a process that has ended meanwhile,
//! or that may not be inspected.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::{MemoryCgroup, SysRoots};
use pagekeeper_kernel::process::{AccessMode, CgroupPath, FileSelection, OpenFile};
use pagekeeper_text::unescaped;

use crate::HostChange;

/// A process that moved fewer bytes, and was not throttled, is not inspected.
const INSPECTED_BYTES_MIN: u64 = 8 << 20;
/// Maximum number of running processes inspected.
const MAX_RUNNING: usize = 32;

/// A process that brought pages in, drove pages out, or was throttled during the watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streamer {
    /// The process ID.
    pub pid: u32,
    /// Its command line or title, with arguments separated by spaces; empty if it has ended.
    pub title: String,
    /// Its memory cgroup; `None` if none is visible, or if it has ended.
    pub cgroup: Option<MemoryCgroup>,
    /// The path for a new group of its own beside its present one; `None` if `cgroup` is `None`.
    pub group_beside: Option<PathBuf>,
    /// Whether it is known to have ended: a process without a title may be a kernel thread, or
    /// hidden.
    pub has_ended: bool,
    /// Its open files.
    pub files: Vec<StreamerFile>,
}

impl Streamer {
    /// Returns the open file with the inode in the trace. On btrfs the trace shows another device
    /// than `st_dev`: there the number alone is compared.
    pub fn open(&self, traced: Inode) -> Option<&StreamerFile> {
        let exactly = self.files.iter().find(|file| file.inode == traced);
        exactly.or_else(|| self.files.iter().find(|file| file.inode.ino == traced.ino))
    }
}

/// An open file of such a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamerFile {
    /// Its identity, by `st_dev` and number.
    pub inode: Inode,
    /// Its path as the process sees it.
    pub path: PathBuf,
    /// The access: reading or writing.
    pub access: AccessMode,
}

impl From<OpenFile> for StreamerFile {
    fn from(file: OpenFile) -> Self {
        Self { inode: file.inode, path: file.path, access: file.access }
    }
}

/// Inspects the processes that moved the most pages or were throttled, as counted in `change`;
/// none if neither was traced. The sooner after the sample, the more of them still exist; those
/// that do not have no title.
pub fn streamers(change: Option<&HostChange>, roots: &SysRoots) -> Vec<Streamer> {
    let mut moved: BTreeMap<u32, u64> = BTreeMap::new();
    let trace = change.and_then(|change| change.trace.as_ref());
    for counts in trace.and_then(|trace| trace.pages.as_ref()).into_iter().flatten() {
        if let Some(task) = &counts.task {
            *moved.entry(task.process).or_default() += counts.flow.added.bytes + counts.flow.removed.bytes;
        }
    }
    moved.retain(|_, bytes| *bytes >= INSPECTED_BYTES_MIN);
    for pauses in trace.and_then(|trace| trace.pauses.as_ref()).into_iter().flatten() {
        moved.entry(pauses.task.process).or_default();
    }
    let mut moved: Vec<(u32, u64)> = moved.into_iter().collect();
    moved.sort_by_key(|&(pid, bytes)| (std::cmp::Reverse(bytes), pid));
    let mut running = 0;
    // With hidepid=2 other users' processes seem to have ended (proc(5)).
    let shows_all = roots.proc.stat(1).is_ok();
    let inspected = moved.into_iter().map(|(pid, _)| inspect(pid, roots, shows_all)).filter(|streamer| {
        running += usize::from(!streamer.title.is_empty());
        streamer.title.is_empty() || running <= MAX_RUNNING
    });
    inspected.collect()
}

/// Inspects a process. `shows_all` says whether `/proc` shows other users' processes.
fn inspect(pid: u32, roots: &SysRoots, shows_all: bool) -> Streamer {
    let title = roots.proc.command_line(pid).unwrap_or_default();
    let words: Vec<_> = title.iter().filter(|word| !word.is_empty()).map(unescaped).collect();
    let files = roots.proc.files_of(pid, &FileSelection::default()).open;
    let cgroup = MemoryCgroup::of(roots, pid).ok().flatten();
    let group_beside = cgroup.as_ref().map(|group| beside(pid, roots, &group.directory));
    Streamer {
        pid,
        title: words.join(" ").trim().to_owned(),
        cgroup,
        group_beside,
        has_ended: shows_all && has_ended(pid, roots),
        files: files.into_iter().map(StreamerFile::from).collect(),
    }
}

/// Whether a process is gone, or is a zombie without threads.
fn has_ended(pid: u32, roots: &SysRoots) -> bool {
    match roots.proc.stat(pid) {
        Ok(stat) => stat.state == 'Z' && stat.threads <= 1,
        Err(error) => error.is_gone(),
    }
}

/// Returns where a separate group for a process could be created: beside its present one, or in the
/// root group, which has no neighbour.
fn beside(pid: u32, roots: &SysRoots, present: &Path) -> PathBuf {
    let paths = roots.proc.cgroup_paths(pid).unwrap_or_default();
    let in_root = CgroupPath::charged(&paths).is_some_and(|path| path.path == Path::new("/"));
    let parent = if in_root { present } else { present.parent().unwrap_or(present) };
    parent.join(format!("stream-{pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_trace::{
        DirtyLevels, DurationStats, EventLosses, MachineCounts, PageCounts, PageFlow, PageTotals,
        PauseCounts, TaskIdentity, TraceCounts,
    };
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    fn task(pid: u32) -> TaskIdentity {
        TaskIdentity { process: pid, thread: pid, name: "test".to_owned() }
    }

    fn pages(pid: u32, added: u64, removed: u64) -> PageCounts {
        let totals = |bytes| PageTotals { folios: 1, bytes };
        let flow = PageFlow { added: totals(added), removed: totals(removed) };
        PageCounts { file: Inode { dev: 0x800, ino: 1 }, task: Some(task(pid)), flow }
    }

    #[test]
    fn processes_that_moved_much_data_are_inspected() {
        let own = std::process::id();
        let throttled = PauseCounts {
            task: task(u32::MAX - 1),
            device: "8:0".to_owned(),
            pauses: DurationStats::default(),
            waits: 1,
            longest_wait: Duration::from_millis(5),
            levels: DirtyLevels::default(),
        };
        let (period, machine) = (Duration::from_secs(10), MachineCounts::default());
        let trace = TraceCounts {
            period,
            // Nobody can have the last ID.
            pages: Some(vec![
                pages(own, 5 * MIB, 0),
                pages(own, 0, 5 * MIB),
                pages(1, MIB, 0),
                pages(u32::MAX, 90 * MIB, 0),
            ]),
            pauses: Some(vec![throttled]),
            reclaim: None,
            block: None,
            machine,
            losses: EventLosses::default(),
        };
        let change = HostChange { period, machine, trace: Some(trace) };
        let found = streamers(Some(&change), &SysRoots::default());
        let pids: Vec<u32> = found.iter().map(|streamer| streamer.pid).collect();
        assert_eq!(pids, [u32::MAX, own, u32::MAX - 1]);
        assert_eq!((found[0].title.as_str(), found[0].files.len()), ("", 0));
        assert_eq!((found[0].has_ended, found[1].has_ended), (true, false));
        let name = std::env::current_exe().unwrap();
        assert!(found[1].title.contains(name.file_name().unwrap().to_str().unwrap()), "{found:?}");
        let beside = found[1].group_beside.as_ref().map(|path| path.parent().unwrap().is_dir());
        assert_ne!(beside, Some(false), "{found:?}");
    }

    #[test]
    fn only_a_process_that_is_gone_or_a_zombie_has_ended() {
        let tree = tempfile::tempdir().unwrap();
        let roots = SysRoots::at(tree.path());
        let thread = |pid: u32, state: char, threads: u32| {
            let directory = tree.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&directory).unwrap();
            let fields = format!("{state} 2 {} {threads} {}", "0 ".repeat(15).trim(), "0 ".repeat(30));
            std::fs::write(directory.join("stat"), format!("{pid} (kworker) {fields}")).unwrap();
        };
        thread(7, 'S', 1);
        thread(8, 'Z', 1);
        thread(9, 'Z', 3);
        let of = |pid, shows_all| {
            let streamer = inspect(pid, &roots, shows_all);
            assert_eq!((streamer.title.as_str(), streamer.cgroup), ("", None));
            streamer.has_ended
        };
        assert_eq!([7, 8, 9, 10].map(|pid| of(pid, true)), [false, true, false, true]);
        assert!(!of(10, false), "it may be hidden");
    }

    #[test]
    fn groups_beside_the_databases_or_in_the_root_are_told_apart() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("proc/7")).unwrap();
        let roots = SysRoots::at(tree.path());
        let of = |text: &str, present: &str| {
            std::fs::write(tree.path().join("proc/7/cgroup"), text).unwrap();
            beside(7, &roots, Path::new(present))
        };
        assert_eq!(of("4:memory:/db\n0::/\n", "/m/db"), Path::new("/m/stream-7"));
        assert_eq!(of("4:memory:/\n0::/x\n", "/m"), Path::new("/m/stream-7"));
        assert_eq!(of("0::/pod/db\n", "/u/pod/db"), Path::new("/u/pod/stream-7"));
    }
}
