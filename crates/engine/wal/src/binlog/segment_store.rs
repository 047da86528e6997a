//! The directory of a binlog: the order in which its files are created, renamed and replaced.
//!
//! A new segment is created in these steps:
//! 1. Its header is written and synced.
//! 2. The directory is synced.
//! 3. A new index that lists it replaces the old one ([`super::index`]).
//! 4. The directory is synced again.
//!
//! A crash between two steps leaves one of two states:
//! - the old index, and perhaps an empty segment that it does not list. The next opening for
//!   writing, or its first append, removes the segment;
//! - the new index and everything it lists.
//!
//! The end is cut off in these steps, and the next opening for writing continues after a crash:
//! 1. A shorter index is made durable under a name of its own. From then on it counts.
//! 2. Later segments are removed, and the last one is cut.
//! 3. The index gets its usual name.
//!
//! If a test is needed to learn how segments can be written, it runs before the first segment is
//! written. The test needs room on the disk; readers never run it.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use pagekeeper_io::{Access, Create, Error as IoError, Io, IoFile, WriteMode, open_past_cache};
use pagekeeper_kernel::mutex::lock;

use super::index::{
    INDEX_NAME, IndexRoom, ListedSegment, NEW_INDEX_NAME, SegmentIndex, TRUNCATED_INDEX_NAME, remove_if_there,
};
use super::injected_fault::BinLogFault;
use super::options::BinLogOptions;
use super::segment::{SegmentHeader, segment_name};
use crate::{Error, FileUse, LogMode, SyncFrequency};

/// The location of a log, and the way it is written.
pub(super) struct SegmentStore {
    pub(super) io: Arc<dyn Io>,
    pub(super) dir: PathBuf,
    pub(super) options: BinLogOptions,
    how: OnceLock<WriteMethod>,
    /// Space for the next index. Used by the holder of the writer.
    next_index: Mutex<Option<IndexRoom>>,
}

/// The way segments are written.
pub(super) struct WriteMethod {
    pub(super) access: Access,
    pub(super) write_mode: WriteMode,
    /// The reason for this choice.
    pub(super) why: String,
}

impl WriteMethod {
    fn new(mode: LogMode, why: String) -> Self {
        let (access, write_mode) = match mode {
            LogMode::Direct => (Access::Direct, WriteMode::Plain),
            LogMode::Uncached => (Access::Buffered, WriteMode::Uncached),
            LogMode::Buffered | LogMode::Auto => (Access::Buffered, WriteMode::Plain),
        };
        Self { access, write_mode, why }
    }
}

/// The consequence of an I/O error for a log that is being written.
#[derive(Debug, Clone)]
pub(super) enum AppendFailure {
    /// Nothing was accepted and nothing lost: no space or no descriptors. A later attempt may
    /// succeed.
    Passing(IoError),
    /// Accepted data may be lost.
    Final(IoError),
}

impl From<IoError> for AppendFailure {
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
pub(super) struct NewSegment {
    pub(super) file: Arc<dyn IoFile>,
    pub(super) number: u64,
    pub(super) salt: u32,
}

impl SegmentStore {
    /// Whether a test injected this fault.
    #[cfg(test)]
    pub(super) fn injected_fault(&self, fault: BinLogFault) -> bool {
        self.options.injected_fault == Some(fault)
    }

    /// Returns false: only tests inject faults.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "as in tests")]
    pub(super) const fn injected_fault(&self, _: BinLogFault) -> bool {
        false
    }

    pub(super) fn new(io: Arc<dyn Io>, dir: PathBuf, options: BinLogOptions) -> Self {
        let how = OnceLock::new();
        if options.read_only {
            how.get_or_init(|| WriteMethod::new(LogMode::Buffered, "read only".to_owned()));
        }
        Self { io, dir, options, how, next_index: Mutex::default() }
    }

    fn syncs(&self) -> SyncFrequency {
        if self.options.sync_every == 1 { SyncFrequency::EachCommit } else { SyncFrequency::Seldom }
    }

    /// Returns how segments are written, if that is known, or needs no test.
    pub(super) fn known(&self) -> Option<&WriteMethod> {
        if self.how.get().is_none() && !self.options.mode.is_tried(&*self.io, FileUse::Append, self.syncs()) {
            return self.how().ok();
        }
        self.how.get()
    }

    /// Returns how segments are written. The first call tests what works. If the test fails for
    /// lack of space or descriptors, this call fails too, and the next one tests again. After any
    /// other failure the log uses the page cache.
    pub(super) fn how(&self) -> Result<&WriteMethod, AppendFailure> {
        if let Some(how) = self.how.get() {
            return Ok(how);
        }
        let chosen = self.options.mode.choose(&*self.io, &self.dir, FileUse::Append, self.syncs());
        let how = match chosen {
            Ok(chosen) => WriteMethod::new(chosen.mode, chosen.why),
            Err(error) => {
                if let Error::Io(error) = &error
                    && let passing @ AppendFailure::Passing(_) = error.clone().into()
                {
                    return Err(passing);
                }
                WriteMethod::new(LogMode::Buffered, format!("nothing else can be tried: {error}"))
            }
        };
        Ok(self.how.get_or_init(|| how))
    }

    /// Returns how segments are opened. As long as that is unknown, returns the requested access.
    pub(super) fn access(&self) -> Access {
        let is_direct = || self.options.mode == LogMode::Direct;
        self.known()
            .map_or_else(|| if is_direct() { Access::Direct } else { Access::Buffered }, |how| how.access)
    }

    /// Opens a segment's file for reading.
    pub(super) fn open(&self, number: u64) -> Result<Arc<dyn IoFile>, IoError> {
        let path = self.segment_path(number);
        match self.access() {
            Access::Direct if self.known().is_none() => open_past_cache(&*self.io, &path),
            access => self.io.open(&path, access),
        }
    }

    pub(super) fn segment_path(&self, number: u64) -> PathBuf {
        self.dir.join(segment_name(number))
    }

    /// Adds a segment to the log and to `index`, whose last segment ended at `previous_end`. If
    /// that fails for lack of space or descriptors, the log is unchanged. The remains are removed
    /// now or by the next attempt.
    pub(super) fn begin_segment(
        &self,
        index: &mut SegmentIndex,
        previous_end: u64,
    ) -> Result<NewSegment, AppendFailure> {
        let number = index.segments.last().map_or(1, |last| last.number + 1);
        index.segments.push(ListedSegment { number, sealed: None });
        if self.injected_fault(BinLogFault::IndexFirst) {
            self.replace_index(index)?;
        }
        let header =
            SegmentHeader { log_id: index.log_id, number, salt: (random() >> 32) as u32, previous_end };
        let begun = self.make_segment(&header).and_then(|file| {
            self.replace_index(index)?;
            Ok(NewSegment { file, number, salt: header.salt })
        });
        if let Err(AppendFailure::Passing(_)) = begun {
            // If this removal fails, too, the next attempt begins with it.
            let _ = self.io.remove(&self.segment_path(number));
        }
        begun
    }

    fn make_segment(&self, header: &SegmentHeader) -> Result<Arc<dyn IoFile>, AppendFailure> {
        let path = self.segment_path(header.number);
        remove_if_there(&*self.io, &path)?;
        let file = self.io.open_writable(&path, self.how()?.access, Create::New)?;
        file.write_at(0, &header.encode(), WriteMode::Plain)?;
        if !self.injected_fault(BinLogFault::NoHeaderSync) {
            file.sync_all()?;
        }
        if !self.injected_fault(BinLogFault::NoNameSync) {
            self.sync_dir()?;
        }
        Ok(file)
    }

    /// Replaces the current index.
    pub(super) fn replace_index(&self, index: &SegmentIndex) -> Result<(), AppendFailure> {
        let prepare =
            |room| index.prepare(&*self.io, &self.dir, room, !self.injected_fault(BinLogFault::NoIndexSync));
        let room = self.room()?;
        let had_room = room.is_some();
        match prepare(room)?.replace(&*self.io) {
            // Somebody removed the room: the new index was written to a file without a name.
            Err(error) if had_room && error.errno() == Some(libc::ENOENT) => {
                prepare(None)?.replace(&*self.io)?;
            }
            replaced => replaced?,
        }
        if !self.injected_fault(BinLogFault::NoRenameSync) {
            // The file of the temporary name may still be the index after a crash.
            self.sync_dir()
                .inspect_err(|_| drop(remove_if_there(&*self.io, &self.dir.join(NEW_INDEX_NAME))))?;
        }
        // The old index has just given up its file or its space.
        *lock(&self.next_index) = index.keep_room(&*self.io, &self.dir);
        Ok(())
    }

    /// Takes the space for the next index. Without it, makes sure that a file of its name is not
    /// the index after a crash.
    fn room(&self) -> Result<Option<IndexRoom>, AppendFailure> {
        let room = lock(&self.next_index).take();
        if room.is_none() {
            self.sync_dir()?;
        }
        Ok(room)
    }

    /// Makes a shorter index durable. Then [`Self::finish_truncation`] is due.
    pub(super) fn begin_truncation(&self, index: &SegmentIndex) -> Result<(), AppendFailure> {
        // The file is opened again, since somebody may have removed its name.
        drop(self.room()?);
        index.prepare(&*self.io, &self.dir, None, true)?.rename(&*self.io, TRUNCATED_INDEX_NAME)?;
        self.sync_dir()
    }

    /// Cuts off what the shorter index no longer lists, up to segment `last`, also after a crash.
    pub(super) fn finish_truncation(&self, index: &SegmentIndex, last: u64) -> Result<(), IoError> {
        if let Some(ListedSegment { number, sealed: Some(end) }) = index.segments.last() {
            for removed in number + 1..=last {
                remove_if_there(&*self.io, &self.segment_path(removed))?;
            }
            // Behind the end there must be no record, since a segment that is empty is used again.
            let path = self.segment_path(*number);
            let file = self.io.open_writable(&path, Access::Buffered, Create::Never)?;
            file.set_len(*end)?;
            file.sync_all()?;
        }
        self.io.sync_dir(&self.dir)?;
        self.io.rename(&self.dir.join(TRUNCATED_INDEX_NAME), &self.dir.join(INDEX_NAME))?;
        self.io.sync_dir(&self.dir)
    }

    /// Makes all names in the directory durable as they are now. Any failure is final.
    pub(super) fn sync_dir(&self) -> Result<(), AppendFailure> {
        self.io.sync_dir(&self.dir).map_err(AppendFailure::Final)
    }
}

/// Returns an unpredictable number.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}
