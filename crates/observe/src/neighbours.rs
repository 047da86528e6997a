//! Which databases have which directories, and through whose root: the tree of one database stops where another's begins.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::ProcRoot;

use crate::subjects::Subject;

/// The directories of all databases of a snapshot.
#[derive(Debug)]
pub(crate) struct Neighbours {
    /// Of each database the process through whose root its directories are reached, if that is another than this process's.
    through: Vec<Option<u32>>,
    /// By what they are reached through.
    owners: HashMap<Option<u32>, HashMap<PathBuf, Owner>>,
}

/// Whose a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    One(usize),
    Several,
}

impl Neighbours {
    pub(crate) fn of(proc: &ProcRoot, subjects: &[Subject]) -> Self {
        let through: Vec<Option<u32>> = subjects.iter().map(|subject| subject.through(proc)).collect();
        let mut owners: HashMap<Option<u32>, HashMap<PathBuf, Owner>> = HashMap::new();
        for (index, (subject, through)) in subjects.iter().zip(&through).enumerate() {
            let known = owners.entry(*through).or_default();
            for directory in &subject.directories {
                let owner = known.entry(directory.clone()).or_insert(Owner::One(index));
                if *owner != Owner::One(index) {
                    *owner = Owner::Several;
                }
            }
        }
        Self { through, owners }
    }

    /// The process through whose root a database's directories are reached, if that is another than this process's.
    pub(crate) fn through(&self, index: usize) -> Option<u32> {
        self.through[index]
    }

    /// Whether another database has this directory, too.
    pub(crate) fn is_anothers(&self, index: usize, directory: &Path) -> bool {
        let owner = self.owners.get(&self.through[index]).and_then(|known| known.get(directory));
        owner.is_some_and(|owner| *owner != Owner::One(index))
    }
}
