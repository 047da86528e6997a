//! What can go wrong, in one type. An error is `Clone`, so that all who waited for a failed sync get it.

use std::path::PathBuf;

use crate::Position;

/// What went wrong with a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk failed, or a file can't be opened; the message names the call, the path and the system's error.
    #[error(transparent)]
    Io(#[from] pagekeeper_io::Error),
    /// What was known to be durable can't be read any more, so that records which were acknowledged are lost.
    #[error("{}: corrupt at byte {offset} (LSN {lsn}): what stands there is no record, but a later one says that it was durable", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// The same place in the log.
        lsn: u64,
    },
    /// There is no log: the directory has no control file (or, for a binlog, no index).
    #[error("{}: no log here", path.display())]
    NoLog {
        /// What is missing.
        path: PathBuf,
    },
    /// A log is to be made in a directory that has something in it.
    #[error("{}: not empty, so that no log can be made here: it has {found}", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// The making of the log was interrupted, by a crash or an error; no record was ever in it. Make it anew.
    #[error("{}: this log was never finished: create it again", path.display())]
    Unfinished {
        /// The directory.
        path: PathBuf,
    },
    /// A file that says what the log is can't be made sense of, though the log's other files are there.
    #[error("{}: broken: none of it is whole, or it belongs to another kind of log", path.display())]
    BrokenControl {
        /// The file.
        path: PathBuf,
    },
    /// The log was written by a newer pagekeeper.
    #[error("{}: version {version}, which this pagekeeper does not know: use a newer one", path.display())]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: u16,
    },
    /// A file of the log is not there.
    #[error("{}: missing: the log can't be opened without it", path.display())]
    MissingFile {
        /// The file.
        path: PathBuf,
    },
    /// A file of the log is shorter or longer than it was made.
    #[error("{}: {found} bytes long, and not {expected}: cut short, or not this log's", path.display())]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Its length by what the log says of itself, in bytes.
        expected: u64,
        /// Its length, in bytes.
        found: u64,
    },
    /// A setting that no log can work with.
    #[error("{what} of {given}: {wanted}")]
    Setting {
        /// Which.
        what: &'static str,
        /// As it was given.
        given: u64,
        /// What it should be.
        wanted: &'static str,
    },
    /// The record is longer than the log can take. Nothing of it was appended.
    #[error("a record of {bytes} bytes: this log takes at max {max}")]
    RecordTooLarge {
        /// Bytes of its body.
        bytes: u64,
        /// The longest body that goes, in bytes.
        max: u64,
    },
    /// The ring has no room before the checkpoint is moved. Nothing was appended.
    #[error("the ring is full: records from LSN {checkpoint} on are still needed; move the checkpoint")]
    RingFull {
        /// The checkpoint.
        checkpoint: u64,
    },
    /// The LSN is not in the log: before its checkpoint, or past its end.
    #[error("LSN {lsn} is not in the log, which has {from} to {upto}")]
    NotInLog {
        /// As it was given.
        lsn: u64,
        /// The first that can be read.
        from: u64,
        /// Just past the last.
        upto: u64,
    },
    /// No record begins at the LSN.
    #[error("no record begins at LSN {lsn}: give one that an append returned")]
    NotARecord {
        /// As it was given.
        lsn: u64,
    },
    /// A reader was too slow: the ring has been written over what it was to read next.
    #[error("LSN {lsn} was written over while it was to be read: a checkpoint had given it up")]
    Overtaken {
        /// Where the reader was.
        lsn: u64,
    },
    /// A write or sync failed before, so the log takes nothing any more: what is on the disk is not known. Open it
    /// again to find out.
    #[error("the log takes nothing any more since an error: {cause}")]
    Poisoned {
        /// The error that did it.
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
    /// A binlog's index is not as it was written.
    #[error("{}: line {line} is not as it was written", path.display())]
    BrokenIndex {
        /// The index.
        path: PathBuf,
        /// Its first line that is wrong or missing, from 1.
        line: usize,
    },
    /// A file that a binlog's index lists as a segment is none of this log's, or not the one that it should be.
    #[error("{}: not the segment of this log that the index lists under this name", path.display())]
    NotASegment {
        /// The file.
        path: PathBuf,
    },
    /// A segment has records that the index knows nothing of.
    #[error("{}: a segment too many: the log's index does not list it", path.display())]
    Unlisted {
        /// The segment.
        path: PathBuf,
    },
    /// A group that is larger than a segment. Nothing of it was appended.
    #[error("a group that takes up {bytes} bytes: a segment of this log takes at max {max}, a record {longest}", longest = crate::record::LONGEST)]
    GroupTooLarge {
        /// Bytes that it takes up, 24 and a few for each record included.
        bytes: u64,
        /// Bytes that fit into a segment.
        max: u64,
    },
    /// A group without records.
    #[error("a group without records")]
    EmptyGroup,
    /// The position is, or now was, in a segment that was purged.
    #[error("{position} was purged: the log begins at {first}")]
    Purged {
        /// As it was given, or where the follower was.
        position: Position,
        /// The oldest there is.
        first: Position,
    },
    /// The position is past the end of the log, or of its segment: what a crash took away may have stood there.
    #[error("{position} is past {end}, where the log or this segment of it ends")]
    PastEnd {
        /// As it was given.
        position: Position,
        /// The last there is.
        end: Position,
    },
    /// No record stands at the position.
    #[error("no record stands at {position}: give a position that an append or a follower gave")]
    NoRecord {
        /// As it was given.
        position: Position,
    },
    /// What was written can't be read any more.
    #[error("{}: damaged at byte {offset}: what stands there is not the record that was written", path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// A follower has yet to read what is to be purged.
    #[error("a follower is at {position} and has yet to read what is to be purged")]
    Followed {
        /// Where the follower is that is farthest behind.
        position: Position,
    },
    /// A thread that was writing ended by a panic, so the log takes nothing any more.
    #[error("the log takes nothing any more since a thread that was writing to it panicked")]
    Abandoned,
}
