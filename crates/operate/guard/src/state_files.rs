//! Files of a database that state something about its logs: where crash recovery would start, and
//! who has yet to read WAL.

use std::path::PathBuf;
use std::time::Instant;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::Facts;

use crate::checkpoints::Checkpoints;
use crate::config::WalReaderLimits;
use crate::directory::Directory;
use crate::wal_readers::WalReaders;

/// The content of these files, for one directory.
#[derive(Default)]
pub(crate) struct StateFiles {
    checkpoints: Checkpoints,
    wal_readers: WalReaders,
}

impl Directory {
    /// Reads the files that are due. `begins` is told for each whether it may be on another file
    /// system.
    pub(crate) fn read_state_files(
        &mut self,
        proc: &ProcRoot,
        limits: &WalReaderLimits,
        now: Instant,
        begins: &dyn Fn(bool),
    ) {
        let mut files = std::mem::take(&mut self.state_files);
        files.checkpoints.read(self, proc, now, begins);
        if files.wal_readers.are_due(self, now) {
            files.wal_readers.read(self, proc, limits, now, begins);
        }
        self.state_files = files;
    }

    /// Adds their content to the facts, among which the directory's files are already. `titles` are
    /// those of the server's processes. Calls `problem` for what could not be read.
    pub(crate) fn add_state_files(
        &mut self,
        titles: &[(u32, String)],
        limits: &WalReaderLimits,
        facts: &mut Facts,
        problem: &mut dyn FnMut(PathBuf, String),
    ) {
        let mut files = std::mem::take(&mut self.state_files);
        files.checkpoints.add(self, facts, problem);
        files.wal_readers.add(self, titles, limits, facts, problem);
        self.state_files = files;
    }
}
