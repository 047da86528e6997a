//! Opening and recovery: the whole directory is checked first, and nothing is changed unless all of
//! it is valid.
//!
//! The checks, in order: the names, the lock, the index, each segment's header and length, and the
//! records of the last segment if it was left open. [`RecordReader`] finds the end of that segment.
//! A group without its end is dropped.
//!
//! The data that is kept is synced before anything is appended. It is read past the page cache,
//! which after a failed sync shows bytes that the device never got. Names can't be read past a
//! cache: after a failed sync of a directory, mount the file system again before opening the log.
//!
//! Nothing is ever appended to a segment that may have had records: the first append seals the last
//! segment and begins another one. A position that a follower saw before a crash therefore never
//! refers to another record afterwards. Past the end of its segment it refers to none. Only a
//! segment that was sealed empty, by [`BinLog::close`](crate::BinLog::close), is reused. Opening an
//! existing log without appending to it changes nothing, and needs no room.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::{Access, Create, Error as IoError, FileLock, Io, IoFile, open_past_cache};
use pagekeeper_text::escaped;

use super::index::{INDEX_NAME, ListedSegment, NEW_INDEX_NAME, SegmentIndex, TRUNCATED_INDEX_NAME};
use super::injected_fault::BinLogFault;
use super::progress::Segment;
use super::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, segment_number};
use super::segment_store::{AppendFailure, NewSegment, SegmentStore, random};
use super::writer::{DueRepairs, SegmentWriter};
use crate::Error;
use crate::limits::{LOCK_NAME, LOST_AND_FOUND};
use crate::position::Position;
use crate::record::{LogSource, RecordReader};

/// A log that was opened.
pub(super) struct RecoveredLog {
    pub(super) lock: Option<FileLock>,
    pub(super) writer: SegmentWriter,
    /// All segments, the writer's last.
    pub(super) segments: VecDeque<Segment>,
}

/// The names in the directory.
#[derive(Default)]
struct DirectoryNames {
    index: bool,
    /// The numbers of the segments, ascending.
    segments: Vec<u64>,
    /// The first name that does not belong to a log.
    foreign: Option<String>,
}

/// Opens the log, or creates it.
pub(super) fn open(store: &SegmentStore) -> Result<RecoveredLog, Error> {
    let (io, dir) = (&*Arc::clone(&store.io), &*store.dir.clone());
    let read_only = store.options.read_only;
    match names(io, dir)? {
        Some(names) => names.check(dir)?,
        None if read_only => return Err(Error::NoLog { path: dir.to_path_buf() }),
        None => io.create_dir(dir)?,
    }
    let lock_path = dir.join(LOCK_NAME);
    let lock = if read_only { io.lock_shared(&lock_path)? } else { Some(io.lock(&lock_path)?) };
    let mut names = names(io, dir)?.unwrap_or_default();
    names.check(dir)?;
    let index = match SegmentIndex::read(io, dir, TRUNCATED_INDEX_NAME)? {
        Some(index) => {
            // A truncation was interrupted.
            let end = index.segments.last().map_or(0, |last| last.number);
            if !read_only {
                store.finish_truncation(&index, names.segments.last().copied().unwrap_or(end))?;
            }
            names.segments.retain(|number| *number <= end);
            Some(index)
        }
        None => SegmentIndex::read(io, dir, INDEX_NAME)?,
    };
    let (writer, segments) = match index {
        Some(index) => find(store, index, &names)?,
        None if read_only => return Err(Error::NoLog { path: dir.join(INDEX_NAME) }),
        None => {
            // Syncs the log's own name: whoever created the directory may have crashed before that.
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            io.sync_dir(parent.unwrap_or(Path::new(".")))?;
            make(store, SegmentIndex { log_id: random(), segments: Vec::new() })?
        }
    };
    Ok(RecoveredLog { lock, writer, segments })
}

/// Lists the names; `None` if there is no such directory.
fn names(io: &dyn Io, dir: &Path) -> Result<Option<DirectoryNames>, Error> {
    let list = match io.list(dir) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        list => list?,
    };
    let mut names = DirectoryNames::default();
    for name in list {
        match name.to_str() {
            Some(LOCK_NAME | NEW_INDEX_NAME | LOST_AND_FOUND) => {}
            Some(INDEX_NAME | TRUNCATED_INDEX_NAME) => names.index = true,
            name_str => match name_str.and_then(segment_number) {
                Some(number) => names.segments.push(number),
                None => {
                    names.foreign.get_or_insert_with(|| escaped(&name).to_string());
                }
            },
        }
    }
    names.segments.sort_unstable();
    Ok(Some(names))
}

impl DirectoryNames {
    /// Fails if there is no index but other files.
    fn check(&self, dir: &Path) -> Result<(), Error> {
        if self.index {
            return Ok(());
        }
        if !self.segments.is_empty() {
            return Err(Error::MissingFile { path: dir.join(INDEX_NAME) });
        }
        match &self.foreign {
            Some(found) => Err(Error::NotEmpty { path: dir.to_path_buf(), found: found.clone() }),
            None => Ok(()),
        }
    }
}

/// Checks each segment without changing anything. Returns the segments, and the numbers of files
/// that a crash left over. Finds the end of the last segment if it was left open.
fn survey(
    store: &SegmentStore,
    index: &SegmentIndex,
    names: &DirectoryNames,
) -> Result<(VecDeque<Segment>, Vec<u64>), Error> {
    let first = index.segments.first().map_or(1, |first| first.number);
    let next = index.segments.last().map_or(1, |last| last.number + 1);
    let mut leftovers = Vec::new();
    for &number in names.segments.iter().filter(|number| !(first..next).contains(number)) {
        // The segment was purged but not removed yet, or it was begun but not listed yet: then it
        // is empty.
        let path = store.segment_path(number);
        if number >= next && store.open(number)?.stat()?.size > SEGMENT_HEADER_BYTES {
            return Err(Error::Unlisted { path });
        }
        leftovers.push(number);
    }
    let mut segments = VecDeque::new();
    let mut previous_end = None;
    for &ListedSegment { number, sealed } in &index.segments {
        let path = store.segment_path(number);
        let file = match open_past_cache(&*store.io, &path) {
            Err(error) if error.errno() == Some(libc::ENOENT) => {
                return Err(Error::MissingFile { path });
            }
            file => file?,
        };
        let len = file.stat()?.size;
        let least = sealed.unwrap_or(SEGMENT_HEADER_BYTES);
        if len < least {
            return Err(Error::WrongSize { path, expected: least, found: len });
        }
        let header = SegmentHeader::read(&*file)?.filter(|header| {
            header.log_id == index.log_id
                && header.number == number
                && previous_end.is_none_or(|end| end == header.previous_end)
        });
        let Some(header) = header else { return Err(Error::NotASegment { path }) };
        previous_end = sealed;
        segments.push_back(Segment { number, salt: header.salt, sealed });
    }
    #[cfg(test)]
    if let Some(last) = segments.back_mut()
        && store.injected_fault(BinLogFault::SealedEndIgnored)
    {
        last.sealed = None;
    }
    if let Some(last) = segments.back_mut()
        && last.sealed.is_none()
    {
        last.sealed = Some(find_end(store, last)?);
    }
    Ok((segments, leftovers))
}

/// Syncs the segment that was left open, and finds its end.
fn find_end(store: &SegmentStore, segment: &Segment) -> Result<u64, Error> {
    let path = store.segment_path(segment.number);
    if !(store.options.read_only || store.injected_fault(BinLogFault::NoSyncAtOpen)) {
        store.open(segment.number)?.sync_all()?;
    }
    let file = if store.injected_fault(BinLogFault::ReadThroughCache) {
        store.io.open(&path, Access::Buffered)?
    } else {
        open_past_cache(&*store.io, &path)?
    };
    let len = file.stat()?.size;
    let mut reader = RecordReader::new(SegmentFile { file, len }, SEGMENT_HEADER_BYTES, segment.salt);
    #[cfg(test)]
    {
        use crate::injected_fault::InjectedFault as RecordFault;
        reader.injected_fault = match store.options.injected_fault {
            Some(BinLogFault::NoSearchBehindEnd) => Some(RecordFault::NoSearchBehindEnd),
            Some(BinLogFault::UnreadableIsEmpty) => Some(RecordFault::UnreadableIsEmpty),
            _ => None,
        };
    }
    // The end of the last whole group.
    let mut end = SEGMENT_HEADER_BYTES;
    let mut torn = false;
    while let Some(entry) = reader.next()? {
        torn = entry.part;
        if !torn || store.injected_fault(BinLogFault::TornGroups) {
            end = entry.next;
        }
    }
    Ok(if torn { end } else { reader.lsn() })
}

/// Checks that a segment of `len` bytes begins or ends at this offset, or a group ends there.
pub(super) fn check_end(store: &SegmentStore, segment: &Segment, len: u64, offset: u64) -> Result<(), Error> {
    let file = store.open(segment.number)?;
    let mut reader = RecordReader::new(SegmentFile { file, len }, SEGMENT_HEADER_BYTES, segment.salt);
    let mut is_end = offset == SEGMENT_HEADER_BYTES || offset == len;
    while !is_end {
        match reader.next()? {
            Some(entry) if entry.next <= offset => is_end = entry.next == offset && !entry.part,
            Some(_) | None => {
                let position = Position { segment: segment.number, offset };
                return Err(Error::NoRecord { position });
            }
        }
    }
    Ok(())
}

/// A segment's file. An LSN is an offset in it.
struct SegmentFile {
    file: Arc<dyn IoFile>,
    len: u64,
}

impl LogSource for SegmentFile {
    fn read(&mut self, lsn: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        Ok(self.file.read_at(lsn, bytes)?)
    }

    fn chunk(&self) -> usize {
        1 << 20
    }

    fn end(&self) -> u64 {
        self.len
    }

    fn locate(&self, lsn: u64) -> (PathBuf, u64) {
        (self.file.path().to_path_buf(), lsn)
    }
}

/// Creates the first segment of a log.
fn make(store: &SegmentStore, mut index: SegmentIndex) -> Result<(SegmentWriter, VecDeque<Segment>), Error> {
    final_error(store.sync_dir())?;
    // From here on the directory belongs to a log, also after a crash.
    final_error(store.replace_index(&index))?;
    let begun = final_error(store.begin_segment(&mut index, 0))?;
    let first = Segment { number: begun.number, salt: begun.salt, sealed: None };
    Ok((SegmentWriter::new(begun, index), VecDeque::from([first])))
}

/// Finds the end of an existing log. Nothing is changed before the first append.
fn find(
    store: &SegmentStore,
    index: SegmentIndex,
    names: &DirectoryNames,
) -> Result<(SegmentWriter, VecDeque<Segment>), Error> {
    let (mut segments, leftovers) = survey(store, &index, names)?;
    let was_open = index.segments.last().is_some_and(|last| last.sealed.is_none());
    let Some(last) = segments.back_mut() else {
        if store.options.read_only {
            return Err(Error::Unfinished { path: store.dir.clone() });
        }
        // The creation of the log was interrupted.
        for number in leftovers {
            store.io.remove(&store.segment_path(number))?;
        }
        return make(store, index);
    };
    let end = last.sealed.take().unwrap_or(SEGMENT_HEADER_BYTES);
    let Segment { number, salt, .. } = *last;
    if store.injected_fault(BinLogFault::AppendAfterTorn) && was_open {
        let path = store.segment_path(number);
        let file = store.io.open_writable(&path, store.access(), Create::Never)?;
        let mut writer = SegmentWriter::new(NewSegment { file, number, salt }, index);
        (writer.end, writer.durable) = (end, end);
        return Ok((writer, segments));
    }
    let file = store.open(number)?;
    let found = DueRepairs { leftovers, was_open };
    Ok((SegmentWriter::at_end(NewSegment { file, number, salt }, end, index, found), segments))
}

/// Unwraps a failure: every one is final while a log is opened.
fn final_error<T>(result: Result<T, AppendFailure>) -> Result<T, IoError> {
    result.map_err(|failure| match failure {
        AppendFailure::Passing(error) | AppendFailure::Final(error) => error,
    })
}
