//! Options: the scope of observation, and the paths of the kernel's file systems.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_trace::TraceOptions;

/// The scope of observation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ObserverScope {
    /// Every database that is found.
    #[default]
    All,
    /// These processes, whatever they are; with the profile `generic` if none fits.
    Pids(Vec<u32>),
    /// The files in and below these directories, for the process that has some of them open, if
    /// there is one.
    Directories(Vec<PathBuf>),
}

/// A predicate on a process (or none) and a directory.
type DirectoryPredicate = dyn Fn(Option<u32>, &Path) -> bool + Send + Sync;

/// A predicate for directories that may be touched: a process's, or one that was named (no
/// process).
#[derive(Clone)]
pub struct DirectoryFilter(Arc<DirectoryPredicate>);

impl DirectoryFilter {
    /// Makes one from a function that gets a directory as the process sees it, without links.
    pub fn new(selects: impl Fn(Option<u32>, &Path) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(selects))
    }

    /// Returns whether the directory may be touched.
    pub fn selects(&self, pid: Option<u32>, directory: &Path) -> bool {
        (self.0)(pid, directory)
    }
}

impl Default for DirectoryFilter {
    /// Selects all directories.
    fn default() -> Self {
        Self::new(|_, _| true)
    }
}

impl fmt::Debug for DirectoryFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Selects")
    }
}

/// Options of an observer.
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    /// Where `/proc` and `/sys` are.
    pub roots: SysRoots,
    /// The known kinds of databases. By default the built-in ones.
    pub profiles: Vec<Profile>,
    /// The scope of observation. By default everything.
    pub scope: ObserverScope,
    /// The directories that may be touched. Files in others are left out, and nothing about them is
    /// read. By default all.
    pub selects: DirectoryFilter,
    /// Maximum number of files and subdirectories that are kept for all databases together, some 1
    /// KiB each; by default a million. Each user has a share, divided among their databases and
    /// these databases' directories; the excess is left out. The same number limits the names read
    /// in one snapshot, for files of any kind. Twice as many open files of their processes are
    /// kept, and as many openers per user.
    pub max_files: usize,
    /// Whether a scope of everything also has processes that no profile knows, if they hold or read
    /// very much through the page cache. By default not: their files are opened for it.
    pub unknown_databases: bool,
    /// Options for tracing between two snapshots. By default none.
    pub trace: Option<TraceOptions>,
}

impl Default for ObserverOptions {
    fn default() -> Self {
        Self {
            roots: SysRoots::default(),
            profiles: Profile::built_in(),
            scope: ObserverScope::default(),
            selects: DirectoryFilter::default(),
            max_files: 1_000_000,
            unknown_databases: false,
            trace: None,
        }
    }
}
