//! Files of a database that state something about its logs: where crash recovery would start, and
//! who has yet to read WAL.

use std::path::PathBuf;
use std::time::Instant;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::StepFacts;

use crate::checkpoints::Checkpoints;
use crate::config::WalReaderLimits;
use crate::directory::{Directory, StateFileReader};
use crate::wal_readers::WalReaders;

/// The content of these files, for one directory.
#[derive(Default)]
struct StateFiles {
    checkpoints: Checkpoints,
    wal_readers: WalReaders,
}

impl StateFileReader for StateFiles {
    fn read(
        &mut self,
        directory: &Directory,
        proc: &ProcRoot,
        limits: &WalReaderLimits,
        now: Instant,
        begins: &dyn Fn(bool),
    ) {
        self.checkpoints.read(directory, proc, now, begins);
        if self.wal_readers.are_due(directory, now) {
            self.wal_readers.read(directory, proc, limits, now, begins);
        }
    }

    fn add(
        &mut self,
        directory: &Directory,
        titles: &[(u32, String)],
        limits: &WalReaderLimits,
        facts: &mut StepFacts,
        problem: &mut dyn FnMut(PathBuf, String),
    ) {
        self.checkpoints.add(directory, facts, problem);
        self.wal_readers.add(directory, titles, limits, facts, problem);
    }
}

/// Has a directory's state files read or added by `act`.
pub(crate) fn with_state_files(
    directory: &mut Directory,
    act: impl FnOnce(&mut dyn StateFileReader, &Directory),
) {
    let mut files = directory.state_files.take().unwrap_or_else(|| Box::<StateFiles>::default());
    act(&mut *files, directory);
    directory.state_files = Some(files);
}
