//! What a pass over the streams is given, and what it reports.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::Error;
use pagekeeper_kernel::process::ProcRoot;

use crate::config::Streams;
use crate::event::Event;
use crate::targets::{ProcessTraits, Targets};

/// What one pass over the streams is given.
pub(crate) struct StreamContext<'a> {
    pub(crate) proc: &'a ProcRoot,
    pub(crate) options: &'a Streams,
    pub(crate) dry_run: bool,
    pub(crate) targets: &'a Targets,
    /// The databases that run, with their profiles.
    pub(crate) databases: &'a [(u32, Arc<Profile>)],
    pub(crate) events: &'a mut Vec<Event>,
    /// What could not be done.
    pub(crate) problems: &'a mut Vec<(PathBuf, String)>,
}

impl StreamContext<'_> {
    /// Whether what is decided for a file of a streaming process is done, and not only reported.
    pub(super) fn acts_on(&self, process: &ProcessTraits, file: &Path) -> bool {
        !self.dry_run && self.targets.acts_on(Some(process), directory_of(file))
    }

    /// Whether a file is left alone, by whose it is or where it lies. What `only` lists are databases, which a streaming
    /// program is not.
    pub(super) fn leaves_alone(&self, process: &ProcessTraits, file: &Path) -> bool {
        self.targets.never(Some(process), directory_of(file))
    }

    /// Reports what could not be done with a file, unless that is nothing to report.
    pub(super) fn problem(&mut self, path: PathBuf, error: &Error) {
        // What ended or was closed meanwhile is no problem, nor is a file system that has nothing to release.
        if error.is_gone() || matches!(error, Error::Unsupported { .. }) {
            return;
        }
        let mut problem = error.to_string();
        if error.is_denied() {
            problem += "; run as root, or with CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_FOWNER";
        }
        self.problems.push((path, problem));
    }
}

fn directory_of(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}
