//! Ids of files, directories and databases. They are never reused.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns an id, or a version, that was never given out before. Ids ascend, so that those of a
/// directory's files are close.
pub(crate) fn new_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns an id that is made from something else.
pub(crate) fn hash_of(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The id of a directory while it is watched; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct DirectoryId(u64);

impl DirectoryId {
    pub(crate) fn new() -> Self {
        Self(new_id())
    }
}

/// The database that a directory belongs to: the unit of budgets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum DatabaseKey {
    /// A process.
    Process(u32),
    /// A directory that was named by the user.
    Named(PathBuf),
}

impl DatabaseKey {
    /// Returns the process, if it is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) => Some(*pid),
            Self::Named(_) => None,
        }
    }
}
