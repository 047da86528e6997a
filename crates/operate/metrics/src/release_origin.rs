//! The origin of a release: the guard names a process or a directory, a sample knows the database.

use std::path::{Path, PathBuf};

use pagekeeper_guard::Done;

use crate::digest::DatabaseFigures;
use crate::names::{DatabaseName, label};

/// The files on which the guard acted, as it names them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReleaseOrigin {
    pid: Option<u32>,
    profile: String,
    directory: PathBuf,
    pub(crate) class: &'static str,
}

impl ReleaseOrigin {
    /// Returns the origin of one tick's actions.
    pub(crate) fn of(done: &Done) -> Self {
        Self {
            pid: done.pid,
            profile: done.profile.clone(),
            directory: done.directory.clone(),
            class: done.class.as_str(),
        }
    }

    /// Returns a name for a database that no sample has found.
    pub(crate) fn name(&self) -> DatabaseName {
        DatabaseName {
            engine: self.profile.clone(),
            directory: label(&self.directory),
            cgroup: String::new(),
        }
    }

    /// Returns the database whose files these are, by a sample.
    pub(crate) fn owner_among(&self, databases: &[DatabaseFigures]) -> Option<DatabaseName> {
        let overlap = |a: &Path, b: &Path| a.starts_with(b) || b.starts_with(a);
        let owns = |database: &&DatabaseFigures| match self.pid {
            Some(pid) => database.pid == Some(pid),
            None => database.directories.iter().any(|directory| overlap(directory, &self.directory)),
        };
        databases.iter().find(owns).map(|database| database.name.clone())
    }
}
