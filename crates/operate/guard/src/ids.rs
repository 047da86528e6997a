//! Ids of files, directories and databases, and maps whose keys are ids that this process counts up.
//!
//! Invariants: ids are never reused. Nobody else chooses one, so one multiplication is enough of a hash. The
//! standard library's hash resists chosen keys and takes twenty nanoseconds; the guard looks up some ten
//! thousand ids in a tick.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives out ids that are never reused, in any thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ids(Arc<AtomicU64>);

impl Ids {
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Returns a number that was never given out before.
pub(crate) fn new_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The id of a directory while it is watched; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct DirectoryId(u64);

impl DirectoryId {
    pub(crate) fn new() -> Self {
        Self(new_version())
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

/// A map with such ids as keys.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
/// A set of such ids.
pub(crate) type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The golden ratio: consecutive ids are spread far apart, and their low bits stay different.
        self.0 = (self.0.rotate_left(5) ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_policy::FileId;
    use std::hash::BuildHasher;

    #[test]
    fn ids_in_a_row_are_spread_over_a_table() {
        let builder = BuildHasherDefault::<IdHasher>::default();
        let slots: HashSet<u64> = (0..4096).map(|id| builder.hash_one(FileId(id)) % 4096).collect();
        assert_eq!(slots.len(), 4096);
        let tags: HashSet<u64> = (0..4096).map(|id| builder.hash_one(FileId(id)) >> 57).collect();
        assert_eq!(tags.len(), 128);
        let set: IdSet<FileId> = (0..100).map(FileId).collect();
        assert!(set.contains(&FileId(7)) && !set.contains(&FileId(100)));
    }
}
