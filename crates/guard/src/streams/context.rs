//! What a pass over the streams is given, and what it reports.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::Error;
use pagekeeper_kernel::process::ProcRoot;

use crate::event::Event;
use crate::targets::{ProcessTraits, Targets};

/// What holds for all streams in one pass.
#[derive(Debug)]
pub(crate) struct StreamSetting {
    pub(crate) proc: ProcRoot,
    /// Time between two passes.
    pub(crate) tick: Duration,
    pub(crate) dry_run: bool,
    pub(crate) targets: Targets,
    /// The databases that run, with their profiles.
    pub(crate) databases: Vec<(u32, Arc<Profile>)>,
}

/// At which file a pass is.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamPlace(Arc<Mutex<Option<At>>>);

/// A file's path, and the device that it is on where nothing else is asked for it.
type At = (PathBuf, Option<u64>);

impl StreamPlace {
    /// Takes note that the pass goes on with this file, and on which device that is, where nothing else is asked for it.
    pub(super) fn at(&self, path: &Path, dev: Option<u64>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((path.to_path_buf(), dev));
    }

    /// The last file that it was at, and its device.
    pub(crate) fn get(&self) -> Option<At> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the pass over one stream is given, and what it reports.
pub(super) struct StreamContext<'a> {
    pub(super) setting: &'a StreamSetting,
    pub(super) place: &'a StreamPlace,
    pub(super) events: Vec<Event>,
    /// What could not be done.
    pub(super) problems: Vec<(PathBuf, String)>,
}

impl<'a> StreamContext<'a> {
    pub(super) fn new(setting: &'a StreamSetting, place: &'a StreamPlace) -> Self {
        Self { setting, place, events: Vec::new(), problems: Vec::new() }
    }

    /// Whether what is decided for a file of a streaming process is done, and not only reported.
    pub(super) fn acts_on(&self, process: &ProcessTraits, file: &Path) -> bool {
        !self.setting.dry_run && self.setting.targets.acts_on(Some(process), directory_of(file))
    }

    /// Whether a file is left alone, by whose it is or where it lies. What `only` lists are databases, which a streaming
    /// program is not.
    pub(super) fn leaves_alone(&self, process: &ProcessTraits, file: &Path) -> bool {
        self.setting.targets.never(Some(process), directory_of(file))
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
