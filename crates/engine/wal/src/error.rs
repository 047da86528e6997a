//! All errors, in one type. It is `Clone`, so that every thread that waited for a failed sync gets
//! the same error.

use std::path::PathBuf;

use crate::Lsn;
use crate::position::Position;
use pagekeeper_text::escaped;

/// An error of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk failed, or a file can't be opened; the message names the call, the path and the
    /// system's error.
    #[error(transparent)]
    Io(#[from] pagekeeper_io::Error),
    /// Records that were acknowledged as durable are lost: they can't be read any more.
    #[error(
        "{}: corrupt at byte {offset} (LSN {lsn}): no valid record there, though there was one that was durable",
        escaped(path)
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The offset in it, in bytes.
        offset: u64,
        /// The LSN of the same place.
        lsn: Lsn,
    },
    /// There is no log: the directory has no control file (or, for a binlog, no index).
    #[error("{}: no log here", escaped(path))]
    NoLog {
        /// The missing file or directory.
        path: PathBuf,
    },
    /// A log was to be created in a directory that is not empty.
    #[error("{}: not empty: it has {found}, and a log is made in an empty directory only", escaped(path))]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// Creating the log was interrupted, by a crash or an error; no record was ever in it. Create
    /// it again.
    #[error("{}: this log was never finished: create it again", escaped(path))]
    Unfinished {
        /// The directory.
        path: PathBuf,
    },
    /// A control file (or a segment's header) is not valid, though the log's other files are there.
    #[error("{}: not valid: damaged, or of another kind of log", escaped(path))]
    BrokenControl {
        /// The file.
        path: PathBuf,
    },
    /// The log was written by a newer pagekeeper. Nothing was changed.
    #[error("{}: written by a newer pagekeeper (format {version}): use that one", escaped(path))]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// The version found in it.
        version: u32,
    },
    /// The log was written by an older pagekeeper, in a format that is no longer supported. Nothing
    /// was changed.
    #[error(
        "{}: written by an older pagekeeper (format {version}), which this one does not read",
        escaped(path)
    )]
    OldVersion {
        /// The file.
        path: PathBuf,
        /// The version found in it.
        version: u32,
    },
    /// A whole record is of a kind that a newer pagekeeper writes. Nothing was changed.
    #[error("{}: the record at byte {offset} was written by a newer pagekeeper: use that one", escaped(path))]
    UnknownRecord {
        /// The file.
        path: PathBuf,
        /// The offset in it, in bytes.
        offset: u64,
    },
    /// The log was opened read-only.
    #[error("the log was opened to read only")]
    ReadOnly,
    /// A file of the log is missing.
    #[error("{}: missing, and the log can't be opened without it", escaped(path))]
    MissingFile {
        /// The file.
        path: PathBuf,
    },
    /// A file of the log does not have the length it was created with.
    #[error("{}: {found} bytes long instead of {expected}: truncated, or not of this log", escaped(path))]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// The length that the log itself states, in bytes.
        expected: u64,
        /// Its actual length, in bytes.
        found: u64,
    },
    /// A setting is out of its range.
    #[error("{what} of {given}: {wanted}")]
    Setting {
        /// The setting.
        what: &'static str,
        /// The given value.
        given: u64,
        /// The valid values.
        wanted: &'static str,
    },
    /// The record is longer than the log allows. No part of it was appended.
    #[error("a record of {bytes} bytes: this log takes at most {max}")]
    RecordTooLarge {
        /// Bytes of its body.
        bytes: u64,
        /// The maximum length of a body, in bytes.
        max: u64,
    },
    /// The ring is full until the checkpoint is moved. Nothing was appended.
    #[error("the ring is full: records from LSN {checkpoint} on are still needed; move the checkpoint")]
    RingFull {
        /// The checkpoint.
        checkpoint: Lsn,
    },
    /// The LSN is not in the log: before its checkpoint, or past its end.
    #[error("LSN {lsn} is not in the log, which has {from} to {upto}")]
    NotInLog {
        /// The given LSN.
        lsn: Lsn,
        /// The first LSN that can be read.
        from: Lsn,
        /// The end of the log.
        upto: Lsn,
    },
    /// No record begins at the LSN.
    #[error("no record begins at LSN {lsn}: give one that an append returned")]
    NotARecord {
        /// The given LSN.
        lsn: Lsn,
    },
    /// A reader was too slow: its next record was overwritten.
    #[error("LSN {lsn} was overwritten before it was read: a checkpoint had released it")]
    Overtaken {
        /// The LSN of the reader.
        lsn: Lsn,
    },
    /// A write or sync failed before. The log accepts nothing more, because the state on the disk
    /// is unknown. Open it again to find out.
    #[error("the log accepts nothing after an error: {cause}")]
    Poisoned {
        /// The original error.
        cause: Box<Error>,
    },
    /// A thread of the log could not be started.
    #[error("the thread {name} can't be started: {}", std::io::Error::from_raw_os_error(*errno))]
    NoThread {
        /// Its name.
        name: &'static str,
        /// The system's error number.
        errno: i32,
    },
    /// A binlog's index is damaged.
    #[error("{}: line {line} is damaged", escaped(path))]
    BrokenIndex {
        /// The index.
        path: PathBuf,
        /// The first line that is wrong or missing, from 1.
        line: usize,
    },
    /// A file that the index lists is not that segment of this log.
    #[error("{}: not the segment of this log that the index lists under this name", escaped(path))]
    NotASegment {
        /// The file.
        path: PathBuf,
    },
    /// A segment has records, but the index does not list it.
    #[error("{}: a segment that the log's index does not list", escaped(path))]
    Unlisted {
        /// The segment.
        path: PathBuf,
    },
    /// A group is larger than a segment. No part of it was appended.
    #[error("a group that takes up {bytes} bytes: a segment of this log takes at most {max}, a record {longest}", longest = crate::limits::RECORD_BYTES_MAX)]
    GroupTooLarge {
        /// Bytes that it takes up, including 24 for each record, and padding.
        bytes: u64,
        /// Bytes that fit into a segment.
        max: u64,
    },
    /// A group has no records.
    #[error("a group without records")]
    EmptyGroup,
    /// The position is in a segment that was purged.
    #[error("{position} was purged: the log begins at {first}")]
    Purged {
        /// The given position, or that of the follower.
        position: Position,
        /// The oldest position in the log.
        first: Position,
    },
    /// The log was truncated at or before the follower's segment, so that it may have read records
    /// that are gone. Follow the log anew.
    #[error("the log was truncated while a follower was at {position}: follow it anew")]
    Truncated {
        /// The follower's position.
        position: Position,
    },
    /// The position is past the end of the log, or of its segment. It may belong to a record that a
    /// crash lost.
    #[error("{position} is past {end}, where the log or this segment of it ends")]
    PastEnd {
        /// The given position.
        position: Position,
        /// The last position of the log or segment.
        end: Position,
    },
    /// No record begins at the position.
    #[error("no record begins at {position}: give a position that an append or a follower gave")]
    NoRecord {
        /// The given position.
        position: Position,
    },
    /// A record that was written can no longer be read.
    #[error("{}: damaged at byte {offset}: not the record that was written", escaped(path))]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The offset in it, in bytes.
        offset: u64,
    },
    /// A follower has yet to read a segment that is to be purged, or may have read records that are
    /// to be cut off.
    #[error("a follower is at {position}, in what is to be removed")]
    Followed {
        /// The position of the first such follower.
        position: Position,
    },
    /// A thread panicked while it was writing, so the log accepts nothing more.
    #[error("the log accepts nothing after a thread panicked while writing to it")]
    Abandoned,
}
