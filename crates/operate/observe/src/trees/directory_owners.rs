//! Maps directories to the databases that have them, and to the roots through which they are
//! reached. The tree of one database stops where another's begins.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::ProcRoot;

use crate::discovery::subjects::ObservedDatabase;

/// The directories of all databases of a snapshot.
#[derive(Debug)]
pub(crate) struct DirectoryOwners {
    /// For each database, the process through whose root its directories are reached; `None` for
    /// this process's root.
    through: Vec<Option<u32>>,
    /// The owners of directories, by that process.
    owners: HashMap<Option<u32>, HashMap<PathBuf, DirectoryOwner>>,
}

/// The owner of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectoryOwner {
    One(usize),
    Several,
}

impl DirectoryOwners {
    pub(crate) fn of(proc: &ProcRoot, subjects: &[ObservedDatabase]) -> Self {
        let through: Vec<Option<u32>> = subjects.iter().map(|subject| subject.through(proc)).collect();
        let mut owners: HashMap<Option<u32>, HashMap<PathBuf, DirectoryOwner>> = HashMap::new();
        for (index, (subject, through)) in subjects.iter().zip(&through).enumerate() {
            let known = owners.entry(*through).or_default();
            for directory in &subject.directories {
                let owner = known.entry(directory.clone()).or_insert(DirectoryOwner::One(index));
                if *owner != DirectoryOwner::One(index) {
                    *owner = DirectoryOwner::Several;
                }
            }
        }
        Self { through, owners }
    }

    /// Returns the process through whose root a database's directories are reached; `None` for this
    /// process's root.
    pub(crate) fn through(&self, index: usize) -> Option<u32> {
        self.through[index]
    }

    /// Returns whether another database has this directory as well.
    pub(crate) fn is_anothers(&self, index: usize, directory: &Path) -> bool {
        let owner = self.owners.get(&self.through[index]).and_then(|known| known.get(directory));
        owner.is_some_and(|owner| *owner != DirectoryOwner::One(index))
    }
}
