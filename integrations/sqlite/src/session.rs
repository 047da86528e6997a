//! The time in which our log has changes that the database file may lack: from the first write to
//! the close, or to a requested checkpoint.
//!
//! * Begin: the log is created or opened, and the file is marked ([`crate::mark`]).
//! * Commit: one record is appended and synced. Only then the blocks are written to the file; the
//!   kernel writes them back at any time.
//! * Checkpoint: the file is synced, and marked again.
//! * End: the file is synced, the mark is removed, which is synced, too, and the log is removed.
//!
//! The log begins small. Once it was full, or is too small for a transaction, the session ends and
//! another begins with a larger log.
//!
//! Each mark has its own number. The log gets it first, with the file's length; then the file,
//! which is synced; then the log's older records are released. This shows whether a file belongs to
//! its log's time, and is not an earlier or later copy.
//!
//! Invariants:
//! 1. The caller holds the file's EXCLUSIVE lock against other processes from before the log is
//!    created or opened until after its removal, and the log is open all that time.
//! 2. No block reaches the file before the record that has it is durable.
//! 3. A file without a mark is complete without the log, whatever the log has.
//! 4. A block's first record since the checkpoint has the complete block.
//! 5. The log has the record with the number of the file's mark, and all later ones. A mark is
//!    durable before the first commit after it.
//!
//! An error after a record was appended, and any failed sync, is final: the commit may be durable
//! or not, and only opening the log again finds out ([`Failure::Final`]).

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io;

use pagekeeper_io::Error as IoError;
use pagekeeper_text::escaped;
use pagekeeper_wal::{Error as LogError, Lsn, RedoLog, RedoOptions};

use crate::abi::{self, Code};
use crate::database::SideFile;
use crate::mark::{self, Head};
use crate::pending::{self, Pending};
use crate::places::Places;
use crate::real::RealFile;
use crate::record::{self, BLOCK, BLOCK_BYTES, Block};

const LOG_FILES: u32 = 4;
/// The sizes that a log may have: 1, 8 and 32 MiB in bytes.
const LOG_SIZES: [u64; 3] = [1 << 20, 8 << 20, 32 << 20];
/// Past this part of the log the file is synced and the log's records are released.
const CHECKPOINT_DIVISOR: u64 = 2;
/// The longest record is this part of the log, so that it fits behind those that are kept. Longer
/// transactions go through the spill file, if the disk has no room for a larger log.
const RECORD_DIVISOR: u64 = 4;
/// Twice the part of a transaction that is kept in memory, whose record must fit.
const BUFFER_BYTES: usize = 2 * pending::MEMORY_BLOCKS_MAX * BLOCK;
/// Minimum and maximum number of bytes by which a growing file is extended in advance of its
/// commit.
const GROW_BYTES: (u64, u64) = (64 << 10, 1 << 20);

/// An error of a session.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing was done. Has SQLite's code, and the reason if SQLite cannot know it.
    Refused(Code, Option<String>),
    /// It is unknown whether the last commit is durable.
    Final(String),
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self::Refused(code, None)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Refused(code_of(&error), Some(error.to_string()))
    }
}

/// Returns SQLite's code for a failed write.
pub(crate) fn code_of(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => abi::FULL,
        _ => abi::IOERR_WRITE,
    }
}

impl Failure {
    pub(crate) fn of_log(error: &LogError) -> Self {
        let code = match error {
            LogError::Io(IoError::Locked { .. }) => abi::BUSY,
            error if is_full(error) => abi::FULL,
            _ => abi::CANTOPEN,
        };
        Self::Refused(code, Some(error.to_string()))
    }

    pub(crate) fn cant_open(why: impl Into<String>) -> Self {
        Self::Refused(abi::CANTOPEN, Some(why.into()))
    }
}

pub(crate) fn options() -> RedoOptions {
    RedoLog::options()
        .files(LOG_FILES)
        .buffer_bytes(BUFFER_BYTES)
        // The thread that makes a commit waits for it.
        .without_threads()
}

pub(crate) struct Session {
    pub(crate) log: RedoLog,
    pub(crate) places: Places,
    /// The directory of the log.
    pub(crate) directory: File,
    /// The number of the file's mark.
    pub(crate) mark: u64,
    /// The position just past the last record.
    pub(crate) end: Lsn,
    /// Committed size of the file in bytes.
    pub(crate) size: u64,
    /// Actual size of the file in bytes, never less than the committed one.
    pub(crate) real: u64,
    /// Blocks that the log has completely since the checkpoint.
    pub(crate) whole: HashSet<u64>,
    /// The first block in its committed state, once it was read: SQLite reads its change counter in
    /// each transaction.
    head: OnceCell<Box<Block>>,
    /// Files beside the database that are known not to exist.
    none_beside: Vec<SideFile>,
    /// Number of commits since the beginning, for status queries.
    pub(crate) commits: u64,
    /// Whether a checkpoint was due because the log was full.
    was_full: bool,
    /// Whether an attempt to get a larger log failed, which is not repeated.
    cannot_grow: bool,
}

/// Creates a log of this size, or a smaller one if the disk has no room for it.
fn create(places: &Places, bytes: u64) -> Result<RedoLog, LogError> {
    let of_size = |bytes: u64| options().file_bytes(bytes / u64::from(LOG_FILES)).create(places.log());
    let smaller = LOG_SIZES.into_iter().rev().filter(|&size| size < bytes);
    smaller.fold(of_size(bytes), |created, size| match created {
        Err(error) if is_full(&error) => of_size(size),
        created => created,
    })
}

/// Opens the log, or creates one of this size. Returns it with its directory.
fn open_or_create(places: &Places, bytes: u64) -> Result<(RedoLog, File), Failure> {
    let directory = places.prepare()?;
    let log = match options().open(places.log()) {
        Err(LogError::NoLog { .. } | LogError::Unfinished { .. }) => {
            match create(places, bytes) {
                // Left by a power cut during the removal of an unfinished log, for example after a
                // full disk: it never had a record.
                Err(LogError::NotEmpty { .. }) => {
                    fs::remove_dir_all(places.log())?;
                    create(places, bytes)
                }
                created => created,
            }
        }
        opened => opened,
    };
    match log.map_err(|error| Failure::of_log(&error)) {
        Ok(log) => Ok((log, directory)),
        Err(Failure::Refused(abi::CANTOPEN, Some(why))) => {
            Err(Failure::cant_open(format!("{why} (the database is whole without this log)")))
        }
        Err(failure) => Err(failure),
    }
}

fn is_full(error: &LogError) -> bool {
    let errno = if let LogError::Io(error) = error { error.errno() } else { None };
    [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT].iter().any(|full| errno == Some(full.raw_os_error()))
}

impl Session {
    /// Begins a session. The file is marked when this returns, and unchanged if it fails. A log
    /// that is created has `bytes` bytes, if there is room.
    fn begin_with(file: &mut RealFile, places: &Places, bytes: u64) -> Result<Self, Failure> {
        if file.has_moved() {
            // The log would be beside another file, or beside none.
            let why = "moved while it was open: open it by its new name".to_owned();
            return Err(Failure::Refused(abi::READONLY_DBMOVED, Some(why)));
        }
        let mut head: Head = [0; mark::MARK_BYTES];
        file.read(&mut head, 0)?;
        if !mark::can_be_marked(&head) {
            return Err(Failure::cant_open("this file is no plain SQLite database, and can't be marked"));
        }
        let size = file.size()?;
        let opened = match open_or_create(places, bytes) {
            // Another process removed the directory, with its own log, before ours was in it.
            Err(_) if !places.directory.exists() => open_or_create(places, bytes)?,
            opened => opened?,
        };
        let mut session = Self::new(opened, places, size, size);
        session.renew(file)?;
        session.real = file.size()?;
        Ok(session)
    }

    /// Begins a session with the smallest log.
    pub(crate) fn begin(file: &mut RealFile, places: &Places) -> Result<Self, Failure> {
        Self::begin_with(file, places, LOG_SIZES[0])
    }

    /// Returns the size of the log that this transaction needs, if its own is too small and may be
    /// larger.
    fn wanted_size(&self, pending: &Pending) -> Option<u64> {
        if pending.is_spilled() || self.cannot_grow {
            return None;
        }
        let now = self.log.capacity();
        let mut larger = LOG_SIZES.into_iter().filter(|&size| size > now);
        let wants_larger = self.was_full || is_short(now, pending);
        if wants_larger { larger.find(|&size| !is_short(size, pending)) } else { None }
    }

    /// Whether the log should be larger for a transaction, and may be.
    pub(crate) fn wants_larger_log(&self, pending: &Pending) -> bool {
        self.wanted_size(pending).is_some()
    }

    /// Ends the session, and begins another with the log that this transaction needs, or as large a
    /// one as the disk has room for.
    pub(crate) fn grow(mut self, file: &mut RealFile, pending: &Pending) -> Result<Self, Failure> {
        let Some(bytes) = self.wanted_size(pending) else { return Ok(self) };
        if file.has_moved() || !self.places.is_at_its_name(&self.directory) {
            // The new log would be another database's.
            self.cannot_grow = true;
            return Ok(self);
        }
        let (places, commits, none_beside) = (self.places.clone(), self.commits, self.none_beside.clone());
        let before = self.log.capacity();
        self.end(file)?;
        let mut grown = Self::begin_with(file, &places, bytes)?;
        (grown.commits, grown.none_beside) = (commits, none_beside);
        // The disk has no room, or the old log could not be removed.
        grown.cannot_grow = grown.log.capacity() <= before;
        Ok(grown)
    }

    /// Creates a session without a mark, for a file with `size` committed and `real` actual bytes.
    pub(crate) fn new((log, directory): (RedoLog, File), places: &Places, size: u64, real: u64) -> Self {
        Self {
            end: log.end(),
            log,
            directory,
            places: places.clone(),
            mark: 0,
            size,
            real,
            whole: HashSet::new(),
            head: OnceCell::new(),
            none_beside: Vec::new(),
            commits: 0,
            was_full: false,
            cannot_grow: false,
        }
    }

    pub(crate) fn has_none_beside(&self, which: SideFile) -> bool {
        self.none_beside.contains(&which)
    }

    pub(crate) fn note_none_beside(&mut self, which: SideFile) {
        if !self.has_none_beside(which) {
            self.none_beside.push(which);
        }
    }

    /// Marks a file that is complete without the log's records so far, and releases those records.
    fn renew(&mut self, file: &mut RealFile) -> Result<(), Failure> {
        let before = self.end;
        let new = RandomState::new().hash_one(self.mark);
        self.append(&record::length(self.size, new)).map_err(|error| Failure::of_log(&error))?;
        let mut head: Head = [0; mark::MARK_BYTES];
        file.read(&mut head, 0)?;
        mark::put(&mut head, new);
        file.write(&head, 0)?;
        self.mark = new;
        file.sync().map_err(not_synced)?;
        self.log.checkpoint(before).map_err(|error| Failure::Final(error.to_string()))?;
        self.whole.clear();
        Ok(())
    }

    fn append(&mut self, body: &[u8]) -> Result<(), LogError> {
        let end = self.log.try_append(body)?;
        self.log.wait_flushed(end)?;
        self.end = end;
        Ok(())
    }

    /// Returns the number of a file's mark, if it has one.
    pub(crate) fn mark_of(file: &mut RealFile) -> Result<Option<u64>, Code> {
        let mut head: Head = [0; mark::MARK_BYTES];
        file.read(&mut head, 0)?;
        Ok(mark::of(&head))
    }

    /// Whether a file only has the length that the mark gave to an empty file: the power was cut
    /// before the mark was durable. SQLite does not accept that as a database.
    pub(crate) fn is_left_of_mark(file: &mut RealFile) -> Result<bool, Code> {
        if !(1..=mark::MARK_BYTES as u64).contains(&file.size()?) {
            return Ok(false);
        }
        let mut head: Head = [0; mark::MARK_BYTES];
        file.read(&mut head, 0)?;
        Ok(head.iter().all(|&byte| byte == 0))
    }

    /// Makes room in the file for `size` bytes, before a commit that needs them is acknowledged.
    pub(crate) fn reserve(&mut self, file: &mut RealFile, size: u64) -> Result<(), Code> {
        if size <= self.real {
            return Ok(());
        }
        let ahead = (self.real / 8).clamp(GROW_BYTES.0, GROW_BYTES.1);
        let upto = size.next_multiple_of(BLOCK_BYTES);
        // Space in advance is not necessary: a full disk may refuse it.
        if self.extend(file, upto + ahead).is_ok() { Ok(()) } else { self.extend(file, upto) }
    }

    fn extend(&mut self, file: &mut RealFile, upto: u64) -> Result<(), Code> {
        let zeros = [0; BLOCK];
        while self.real < upto {
            let len = usize::try_from(upto - self.real).map_or(zeros.len(), |len| len.min(zeros.len()));
            file.write(&zeros[..len], self.real)?;
            self.real += len as u64;
        }
        Ok(())
    }

    /// Reads a block in its committed state.
    pub(crate) fn read_block(&self, file: &mut RealFile, number: u64) -> Result<Box<Block>, Code> {
        if number > 0 {
            return self.read_file(file, number);
        }
        if let Some(head) = self.head.get() {
            return Ok(head.clone());
        }
        let head = self.read_file(file, 0)?;
        Ok(self.head.get_or_init(|| head).clone())
    }

    fn read_file(&self, file: &mut RealFile, number: u64) -> Result<Box<Block>, Code> {
        let mut block = Box::new([0; BLOCK]);
        let start = number * BLOCK_BYTES;
        if start < self.size {
            file.read(&mut block[..], start)?;
            mark::take_off(&mut block[..], start);
            let there = usize::try_from(self.size - start).unwrap_or(BLOCK).min(BLOCK);
            block[there..].fill(0);
        }
        Ok(block)
    }

    /// Commits the writes of a transaction, after which the file has `size` bytes. After an error
    /// the transaction may continue, unless the error is final.
    pub(crate) fn commit(
        &mut self,
        file: &mut RealFile,
        pending: &mut Pending,
        size: u64,
    ) -> Result<(), Failure> {
        let head = pending.get(0)?;
        if size > 0 && head.is_some_and(|head| !mark::is_database(&head[..])) {
            // After any error except an I/O error, SQLite would take its pages for committed.
            let why = "the new first page is not a plain SQLite database".to_owned();
            return Err(Failure::Refused(abi::IOERR_WRITE, Some(why)));
        }
        if pending.is_spilled() || is_short(self.log.capacity(), pending) {
            return self.commit_spilled(file, pending, size);
        }
        let mut writer = record::Writer::new(size);
        for (number, new) in pending.in_memory() {
            let is_old = number * BLOCK_BYTES < self.size;
            let old = if is_old { Some(self.read_block(file, number)?) } else { None };
            match old {
                Some(old) if *old == *new => {}
                Some(old) if self.whole.contains(&number) => writer.changes(number, &old, new),
                _ => writer.whole(number, new),
            }
        }
        if !writer.has_blocks() && size == self.size {
            return Ok(());
        }
        self.append(writer.body()).map_err(|error| Failure::Final(error.to_string()))?;
        self.apply(file, pending, size).map_err(not_applied)?;
        self.whole.extend(pending.in_memory().map(|(number, _)| number));
        if self.log_bytes() > self.log.capacity() / CHECKPOINT_DIVISOR {
            self.was_full = true;
            self.checkpoint(file)?;
        }
        Ok(())
    }

    /// Commits blocks in the spill file, which the record names. The spill file is free again once
    /// the database file has them.
    fn commit_spilled(
        &mut self,
        file: &mut RealFile,
        pending: &mut Pending,
        size: u64,
    ) -> Result<(), Failure> {
        let (slots, index) = pending.seal(&self.directory)?;
        self.directory.sync_all()?;
        let body = record::spilled(size, slots, index);
        self.append(&body).map_err(|error| Failure::Final(error.to_string()))?;
        self.apply(file, pending, size).map_err(not_applied)?;
        self.checkpoint(file)
    }

    fn apply(&mut self, file: &mut RealFile, pending: &Pending, size: u64) -> Result<(), Code> {
        self.head.take();
        if size < self.size {
            cut(file, &mut self.real, size)?;
            let end = size.div_ceil(BLOCK_BYTES);
            self.whole.retain(|&number| number < end);
        }
        for number in pending.numbers() {
            let block = pending.get(number).map_err(|_| abi::IOERR_READ)?;
            let Some(mut block) = block else { continue };
            if number == 0 && size >= BLOCK_BYTES {
                self.head = OnceCell::from(block.clone());
            }
            put_mark(&mut block, number, self.mark);
            // The length of the file is independent of blocks: pages may be shorter than blocks.
            let start = number * BLOCK_BYTES;
            let len = usize::try_from(size.saturating_sub(start)).unwrap_or(BLOCK).min(BLOCK);
            file.write(&block[..len], start)?;
            self.real = self.real.max(start + len as u64);
        }
        self.size = size;
        self.commits += 1;
        Ok(())
    }

    /// Makes the file complete without the log, except for the mark.
    pub(crate) fn checkpoint(&mut self, file: &mut RealFile) -> Result<(), Failure> {
        file.sync().map_err(not_synced)?;
        self.renew(file).map_err(at_a_checkpoint)
    }

    /// Ends the session. The file is a plain one when this returns, and without a log. If it fails,
    /// the file may still be marked, and its log has everything.
    pub(crate) fn end(self, file: &mut RealFile) -> Result<(), Failure> {
        file.sync().map_err(not_synced)?;
        self.take_mark_off(file).map_err(at_a_checkpoint)?;
        file.sync().map_err(not_synced)?;
        if let Err(error) = self.places.remove_log(&self.directory) {
            let place = escaped(&self.places.directory);
            crate::said(abi::WARNING, &format!("{place}: the log, which nothing needs, stays: {error}"));
        }
        Ok(())
    }

    fn take_mark_off(&self, file: &mut RealFile) -> Result<(), Failure> {
        if self.size == 0 {
            return Ok(file.truncate(0)?);
        }
        if self.real > self.size {
            file.truncate(self.size)?;
        }
        let mut head: Head = [0; mark::MARK_BYTES];
        file.read(&mut head, 0)?;
        mark::take_off(&mut head, 0);
        Ok(file.write(&head, 0)?)
    }

    /// Returns the size of the log since the checkpoint in bytes.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.end - self.log.checkpoint_lsn()
    }
}

/// Whether a log of this size in bytes is too small for the record of a transaction in memory.
fn is_short(size: u64, pending: &Pending) -> bool {
    pending.in_memory().count() as u64 * record::BLOCK_RECORD_MAX > size / RECORD_DIVISOR
}

fn not_synced(code: Code) -> Failure {
    Failure::Final(format!("the database file can't be synced (SQLite's code {code})"))
}

/// Returns the state after a failed checkpoint: it is unknown whether the file is still marked, and
/// with which number.
fn at_a_checkpoint(failure: Failure) -> Failure {
    match failure {
        Failure::Refused(code, None) => Failure::Final(format!("a checkpoint failed (SQLite's code {code})")),
        Failure::Refused(_, Some(why)) => Failure::Final(format!("a checkpoint failed: {why}")),
        failure => failure,
    }
}

fn not_applied(code: Code) -> Failure {
    Failure::Final(format!(
        "a commit is in the log, but the database file can't be written (SQLite's code {code})"
    ))
}

pub(crate) fn put_mark(block: &mut Block, number: u64, new: u64) {
    if number == 0
        && let Some(head) = block.first_chunk_mut()
        && mark::is_database(head)
    {
        mark::put(head, new);
    }
}

/// Truncates the file, so that later writes past the end follow zeros.
pub(crate) fn cut(file: &mut RealFile, real: &mut u64, size: u64) -> Result<(), Code> {
    // The mark stays, even in an otherwise empty file.
    let size = size.max(mark::MARK_BYTES as u64);
    if size < *real {
        file.truncate(size)?;
        *real = size;
    }
    Ok(())
}
