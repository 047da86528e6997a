//! The directory of a binlog: which files are created, renamed and replaced there, and in what order.
//!
//! A new segment: its header is written and synced, then the directory; then the index that lists it replaces the old one
//! ([`super::index`]), and the directory is synced again. A crash between any two steps leaves the old index, and perhaps an empty
//! segment that it does not list (the next open removes it), or the new index and all that it lists.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use pagekeeper_io::{Access, Create, Error as IoError, Io, IoFile, WriteMode};

use super::index::{Index, Listed, remove_if_there};
use super::injected_fault::InjectedFault;
use super::options::BinLogOptions;
use super::segment::{Header, segment_name};
use crate::LogMode;

/// Where a log is, and how it is written.
#[derive(Clone)]
pub(super) struct SegmentStore {
    pub(super) io: Arc<dyn Io>,
    pub(super) dir: PathBuf,
    pub(super) options: BinLogOptions,
    pub(super) access: Access,
    pub(super) write_mode: WriteMode,
}

/// What an I/O error means to a log that is being written.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// Nothing was taken, and nothing lost: no space, no descriptors. It may go better later.
    Passing(IoError),
    /// What was taken may be lost.
    Final(IoError),
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Self {
        let passing = match &error {
            IoError::Write { errno, .. } => matches!(*errno, libc::ENOSPC | libc::EDQUOT),
            IoError::Call { errno, .. } => {
                matches!(*errno, libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::ENOMEM)
            }
            _ => false,
        };
        if passing { Self::Passing(error) } else { Self::Final(error) }
    }
}

/// A new segment.
pub(super) struct Begun {
    pub(super) file: Arc<dyn IoFile>,
    pub(super) number: u64,
    pub(super) salt: u32,
}

impl SegmentStore {
    /// Whether a test injected this fault.
    #[cfg(test)]
    pub(super) fn injected_fault(&self, fault: InjectedFault) -> bool {
        self.options.injected_fault == Some(fault)
    }

    /// Only tests inject faults.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "as in tests")]
    pub(super) const fn injected_fault(&self, _: InjectedFault) -> bool {
        false
    }

    /// Segments are written in this mode from now on.
    pub(super) fn write_as(&mut self, mode: LogMode) {
        (self.access, self.write_mode) = match mode {
            LogMode::Direct => (Access::Direct, WriteMode::Plain),
            LogMode::Uncached => (Access::Buffered, WriteMode::Uncached),
            LogMode::Buffered | LogMode::Auto => (Access::Buffered, WriteMode::Plain),
        };
    }

    pub(super) fn segment_path(&self, number: u64) -> PathBuf {
        self.dir.join(segment_name(number))
    }

    /// Adds a segment to the log and to `index`, of which the last segment ended at `previous_end`. Where that fails for
    /// want of space or descriptors, nothing has changed; what was begun is removed, now or by the next who tries.
    pub(super) fn begin_segment(&self, index: &mut Index, previous_end: u64) -> Result<Begun, Failure> {
        let number = index.segments.last().map_or(1, |last| last.number + 1);
        index.segments.push(Listed { number, sealed: None });
        if self.injected_fault(InjectedFault::IndexFirst) {
            self.replace_index(index)?;
        }
        let header = Header { log_id: index.log_id, number, salt: (random() >> 32) as u32, previous_end };
        let begun = self.make_segment(&header).and_then(|file| {
            self.replace_index(index)?;
            Ok(Begun { file, number, salt: header.salt })
        });
        if let Err(Failure::Passing(_)) = begun {
            // If this fails, too, the next attempt begins with it.
            let _ = self.io.remove(&self.segment_path(number));
        }
        begun
    }

    fn make_segment(&self, header: &Header) -> Result<Arc<dyn IoFile>, Failure> {
        let path = self.segment_path(header.number);
        remove_if_there(&*self.io, &path)?;
        let file = self.io.open_writable(&path, self.access, Create::New)?;
        file.write_at(0, &header.encode(), WriteMode::Plain)?;
        if !self.injected_fault(InjectedFault::NoHeaderSync) {
            file.sync_all()?;
        }
        if !self.injected_fault(InjectedFault::NoNameSync) {
            self.sync_dir()?;
        }
        Ok(file)
    }

    /// Puts an index in place of the one that is there.
    pub(super) fn replace_index(&self, index: &Index) -> Result<(), Failure> {
        index
            .prepare(&*self.io, &self.dir, !self.injected_fault(InjectedFault::NoIndexSync))?
            .rename(&*self.io)?;
        if !self.injected_fault(InjectedFault::NoRenameSync) {
            self.sync_dir()?;
        }
        Ok(())
    }

    /// From here on names are as they are now, also after a crash. A failure is final, of whatever kind.
    pub(super) fn sync_dir(&self) -> Result<(), Failure> {
        self.io.sync_dir(&self.dir).map_err(Failure::Final)
    }
}

/// An unpredictable number.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}
