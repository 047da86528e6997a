//! An overview of the databases on a host within a given time: what runs, and what its files hold.
//!
//! Invariants: it returns in time, whatever the size of the host, and says what it left out. It
//! sends no requests to a file system that depends on another machine or process: Kafka, or an
//! engine within another program, is not found if its files are on one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagekeeper_catalog::{DatabaseDiscovery, InspectionBudget, Profile, ProfileMatch};
use pagekeeper_kernel::hang;
use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_kernel::process::{Mount, ProcRoot};
use pagekeeper_policy::FileClass;

use crate::{DirectoryFilter, Observer, ObserverOptions, ObserverScope, Snapshot};

/// The limit for the search for databases; the rest is for counting.
const SEARCH_TIME_MAX: Duration = Duration::from_millis(400);
/// Processor time after which the results so far are passed on.
const SEARCH_STEP: Duration = Duration::from_millis(20);
/// Files that are counted for one database.
const COUNTED_FILES_MAX: usize = 20_000;
/// Databases whose files are counted, those of system users first.
const COUNTED_DATABASES_MAX: usize = 8;
/// System users have lower IDs than people.
const FIRST_PERSON_ID: u32 = 1000;

/// The databases that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overview {
    /// By process ID.
    pub databases: BTreeMap<u32, RunningDatabase>,
    /// Whether all processes were inspected.
    pub is_complete: bool,
}

/// A database, and the page cache of its files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunningDatabase {
    /// The name of its profile.
    pub kind: String,
    /// The page cache of its files.
    pub held: HeldPages,
}

/// The page cache of a database's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HeldPages {
    /// There was no time to count it.
    #[default]
    Uncounted,
    /// Its files can't be seen.
    Unseen,
    /// They are on a file system that depends on another machine or process.
    Elsewhere {
        /// The directory with the shortest name.
        directory: Option<PathBuf>,
    },
    /// In bytes.
    Counted {
        /// The directory with the shortest name.
        directory: Option<PathBuf>,
        /// Resident bytes of logs.
        logs: u64,
        /// Resident bytes of other files.
        others: u64,
        /// Whether it is more.
        is_cut: bool,
    },
}

impl Overview {
    /// Returns what is found within this time.
    pub fn within(patience: Duration, roots: &SysRoots) -> Self {
        let roots = roots.clone();
        Self::of_search(patience, move |overview| search(&roots, overview))
    }

    fn of_search(patience: Duration, search: impl FnOnce(&Mutex<Self>) + Send + 'static) -> Self {
        let overview = Arc::new(Mutex::new(Self::default()));
        let (done, is_done) = channel::<()>();
        let found = Arc::clone(&overview);
        // A file system may block it forever; it ends with the process. Without a thread nothing
        // is found.
        let _ = std::thread::Builder::new().name("search".to_owned()).spawn(move || {
            search(&found);
            drop(done);
        });
        let _ = is_done.recv_timeout(patience);
        lock(&overview).clone()
    }
}

fn search(roots: &SysRoots, overview: &Mutex<Overview>) {
    find(&roots.proc, overview);
    let pids: Vec<u32> = lock(overview).databases.keys().copied().collect();
    let mut order: Vec<(bool, u32)> = pids.into_iter().map(|pid| (is_of_person(roots, pid), pid)).collect();
    order.sort_unstable();
    for (_, pid) in order.into_iter().take(COUNTED_DATABASES_MAX) {
        let held = held(roots, pid);
        lock(overview).databases.entry(pid).and_modify(|database| database.held = held);
    }
}

fn is_of_person(roots: &SysRoots, pid: u32) -> bool {
    let users = roots.proc.users(pid).ok().and_then(|users| users.one());
    users.is_none_or(|user| user >= FIRST_PERSON_ID)
}

/// Finds databases for [`SEARCH_TIME_MAX`], and passes them on as they are found.
fn find(proc: &ProcRoot, overview: &Mutex<Overview>) {
    let profiles: Vec<Arc<Profile>> = Profile::built_in().into_iter().map(Arc::new).collect();
    let (mut discovery, began) = (DatabaseDiscovery::of_own_disks(), Instant::now());
    let mut known: BTreeMap<u32, ProfileMatch> = BTreeMap::new();
    loop {
        let budget = InspectionBudget { new: SEARCH_STEP, old: Duration::ZERO };
        let found = discovery.advance(proc, &known, &profiles, budget, Instant::now());
        let is_over = found.is_err() || discovery.has_seen_all() || began.elapsed() >= SEARCH_TIME_MAX;
        for found in found.into_iter().flatten() {
            known.insert(found.pid, found.recognised);
        }
        let databases = without_workers(&discovery, &known);
        *lock(overview) = Overview { databases, is_complete: discovery.has_seen_all() };
        if is_over {
            return;
        }
    }
}

fn without_workers(
    discovery: &DatabaseDiscovery,
    known: &BTreeMap<u32, ProfileMatch>,
) -> BTreeMap<u32, RunningDatabase> {
    // A worker may have been met before the process that started it.
    let kind_of = |pid| known.get(&pid).map(ProfileMatch::kind);
    let own =
        known.iter().filter(|(pid, known)| !discovery.processes().is_worker(**pid, known.kind(), kind_of));
    own.map(|(&pid, known)| {
        (pid, RunningDatabase { kind: known.profile.name.clone(), held: HeldPages::default() })
    })
    .collect()
}

/// Returns the page cache of one database's files.
fn held(roots: &SysRoots, pid: u32) -> HeldPages {
    let mounts = roots.proc.mounts(pid).or_else(|_| roots.proc.own_mounts()).unwrap_or_default();
    let is_elsewhere = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_elsewhere);
    let selects = DirectoryFilter::new(move |_, directory| {
        let may_hang = may_never_answer(&mounts, directory);
        noted.fetch_or(may_hang, Ordering::Relaxed);
        !may_hang
    });
    let options = ObserverOptions {
        roots: roots.clone(),
        scope: ObserverScope::Pids(vec![pid]),
        selects,
        max_files: COUNTED_FILES_MAX,
        ..ObserverOptions::default()
    };
    let snapshot = Observer::start(options).and_then(|mut observer| observer.snapshot());
    let is_elsewhere = is_elsewhere.load(Ordering::Relaxed) || !hang::hung_file_systems().is_empty();
    snapshot.map_or(HeldPages::Unseen, |snapshot| of_snapshot(&snapshot, is_elsewhere))
}

/// Whether a directory is on a file system that depends on another machine or process; no file
/// system is asked.
fn may_never_answer(mounts: &[Mount], directory: &Path) -> bool {
    Mount::of_path(mounts, directory).is_some_and(Mount::may_never_answer)
}

fn of_snapshot(snapshot: &Snapshot, is_elsewhere: bool) -> HeldPages {
    let directories = snapshot.databases.iter().flat_map(|database| &database.directories);
    let directory = directories.min_by_key(|path| path.as_os_str().len()).cloned();
    let of_database = snapshot.files.iter().filter(|file| file.database.is_some());
    let (mut logs, mut others, mut seen, mut unseen) = (0_u64, 0_u64, 0_u64, 0_u64);
    for file in of_database {
        let Some(residency) = file.residency else {
            unseen += 1;
            continue;
        };
        seen += 1;
        let sum = if file.class.is_some_and(FileClass::is_log) { &mut logs } else { &mut others };
        *sum = sum.saturating_add(residency.resident);
    }
    match (seen, is_elsewhere) {
        (0, true) => HeldPages::Elsewhere { directory },
        (0, false) => HeldPages::Unseen,
        _ => {
            let is_cut = unseen > 0 || is_elsewhere || !snapshot.visibility_gaps.is_empty();
            HeldPages::Counted { directory, logs, others, is_cut }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hung_file_systems_are_not_waited_for() {
        let (keep, kept) = channel::<()>();
        let overview = Overview::of_search(Duration::from_millis(100), move |overview| {
            lock(overview).databases.insert(9, RunningDatabase::default());
            // The search never ends.
            let _ = kept.recv();
        });
        assert_eq!(overview.databases[&9].held, HeldPages::Uncounted);
        drop(keep);
    }

    #[test]
    fn file_systems_served_by_others_are_not_asked() {
        let mounts = |line: &str| {
            let proc = tempfile::tempdir().unwrap();
            std::fs::create_dir(proc.path().join("5")).unwrap();
            std::fs::write(proc.path().join("5/mountinfo"), line).unwrap();
            ProcRoot::at(proc.path()).mounts(5).unwrap()
        };
        let mounts = mounts(
            "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /srv/net rw - nfs4 host:/ rw\n\
             3 2 8:2 / /srv/net/disk rw - xfs /dev/b rw\n",
        );
        let asked = |path: &str| !may_never_answer(&mounts, Path::new(path));
        assert!(asked("/srv") && asked("/srv/network") && asked("/srv/net/disk/d"));
        assert!(!asked("/srv/net") && !asked("/srv/net/mysql"));
    }
}
