//! What to observe, and where the kernel's file systems are.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::pressure::SysRoots;
use pagekeeper_trace::TraceOptions;

/// What to observe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Scope {
    /// Every database that is found.
    #[default]
    All,
    /// These processes, whatever they are: the profile `generic` where none fits.
    Pids(Vec<u32>),
    /// The files in and below these directories, for the process that has some of them open, if one does.
    Directories(Vec<PathBuf>),
}

/// Of a process, or of none, and a directory.
type Question = dyn Fn(Option<u32>, &Path) -> bool + Send + Sync;

/// Which directories may be touched: of a process, or of none where one was named.
#[derive(Clone)]
pub struct Selects(Arc<Question>);

impl Selects {
    /// By a function that is given a directory as the process sees it, without links.
    pub fn new(selects: impl Fn(Option<u32>, &Path) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(selects))
    }

    /// Whether it may be touched.
    pub fn selects(&self, pid: Option<u32>, directory: &Path) -> bool {
        (self.0)(pid, directory)
    }
}

impl Default for Selects {
    /// All of them.
    fn default() -> Self {
        Self::new(|_, _| true)
    }
}

impl fmt::Debug for Selects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Selects")
    }
}

/// How to observe.
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    /// Where `/proc` and `/sys` are.
    pub roots: SysRoots,
    /// The kinds of databases that are known. By default those that are built in.
    pub profiles: Vec<Profile>,
    /// What to observe. By default all.
    pub scope: Scope,
    /// Which directories may be touched; what lies in others is left out, and nothing of it is asked. By default all.
    pub selects: Selects,
    /// The most files, and directories below, that are kept of all databases together, some 1 KiB each. Each user has a
    /// share, and of that each database and each of its directories; what is beyond it is left out. As many names are read
    /// in one snapshot, of files of any kind. Of what their
    /// processes hold twice as many are kept, and of each user as many of those who have files open. By default a million.
    pub max_files: usize,
    /// What to trace between two snapshots. By default nothing.
    pub trace: Option<TraceOptions>,
}

impl Default for ObserverOptions {
    fn default() -> Self {
        Self {
            roots: SysRoots::default(),
            profiles: Profile::built_in(),
            scope: Scope::default(),
            selects: Selects::default(),
            max_files: 1_000_000,
            trace: None,
        }
    }
}
