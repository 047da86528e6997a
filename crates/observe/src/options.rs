//! What to observe, and where the kernel's file systems are.

use std::path::PathBuf;

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

/// How to observe.
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    /// Where `/proc` and `/sys` are.
    pub roots: SysRoots,
    /// The kinds of databases that are known. By default those that are built in.
    pub profiles: Vec<Profile>,
    /// What to observe. By default all.
    pub scope: Scope,
    /// What to trace between two snapshots. By default nothing.
    pub trace: Option<TraceOptions>,
}

impl Default for ObserverOptions {
    fn default() -> Self {
        Self {
            roots: SysRoots::default(),
            profiles: Profile::built_in(),
            scope: Scope::default(),
            trace: None,
        }
    }
}
