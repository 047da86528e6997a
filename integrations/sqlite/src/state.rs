//! The state of a database file that all connections of this process share: its locks, its session
//! with a log, the current write transaction, its journal.
//!
//! Invariants:
//! 1. One file of the underlying VFS, the *keeper*, holds the process's lock. While there is a
//!    session, the lock is EXCLUSIVE, whatever the connections do.
//! 2. Only the connection with the process's own EXCLUSIVE lock writes, and reads its own writes;
//!    the others read committed data.
//! 3. A transaction is committed when its journal ends; without a journal, when the file is synced
//!    or the lock is released.
//! 4. After a failure that leaves the durability of a commit unknown, nothing is read, written or
//!    locked until all connections are closed.

use crate::abi::{self, Code};
use crate::database::SideFile;
use crate::journal::Journal;
use crate::locks::{Level, Locks};
use crate::mark;
use crate::pending::Pending;
use crate::places::Places;
use crate::real::RealFile;
use crate::record::{BLOCK, BLOCK_BYTES};
use crate::session::{Failure, Session};

pub(crate) struct State {
    keeper: RealFile,
    locks: Locks,
    /// The lock of the keeper.
    real: Level,
    session: Option<Session>,
    pending: Pending,
    /// Size of the file within the transaction in bytes, if it wrote.
    size: Option<u64>,
    journal: Option<Journal>,
    /// Whether a journal that another VFS left is being rolled back.
    has_real_journal: bool,
    failed: bool,
    /// The last refusal, for status queries.
    said: Option<String>,
}

impl State {
    pub(crate) fn new(keeper: RealFile) -> Self {
        Self {
            keeper,
            locks: Locks::default(),
            real: Level::None,
            session: None,
            pending: Pending::default(),
            size: None,
            journal: None,
            has_real_journal: false,
            failed: false,
            said: None,
        }
    }

    /// Converts a failure to SQLite's code. Keeps and logs its reason.
    fn noted<T>(&mut self, result: Result<T, Failure>) -> Result<T, Code> {
        let (code, why) = match result {
            Ok(value) => return Ok(value),
            Err(Failure::Refused(code, why)) => (code, why),
            Err(Failure::Final(why)) => {
                self.failed = true;
                (abi::IOERR_FSYNC, Some(format!("{why}; close all connections, and open the database again")))
            }
        };
        if let Some(why) = why {
            self.refuse(code, &why);
        }
        Err(code)
    }

    /// Logs a refusal and keeps it for status queries.
    pub(crate) fn refuse(&mut self, code: Code, why: &str) -> Code {
        crate::said(code, why);
        self.said = Some(why.to_owned());
        code
    }

    fn check(&self, code: Code) -> Result<(), Code> {
        if self.failed { Err(code) } else { Ok(()) }
    }

    pub(crate) fn lock(&mut self, places: &Places, connection: u64, level: Level) -> Result<(), Code> {
        self.check(abi::IOERR_FSYNC)?;
        let before = self.locks.of(connection);
        if before >= level {
            return Ok(());
        }
        if !self.locks.try_take(connection, level) {
            return Err(abi::BUSY);
        }
        let taken = self.lock_beneath(places, level);
        if taken.is_err() {
            // As in SQLite's own VFS: PENDING stays, so that readers in other processes eventually
            // finish.
            let left = if level == Level::Exclusive && self.real == Level::Pending {
                Level::Pending
            } else {
                before
            };
            self.locks.set(connection, left);
        }
        taken
    }

    fn lock_beneath(&mut self, places: &Places, level: Level) -> Result<(), Code> {
        if self.real < level {
            let before = self.real;
            if let Err(code) = self.keeper.lock(level as i32) {
                if level == Level::Exclusive && before != Level::None {
                    self.real = Level::Pending;
                }
                return Err(code);
            }
            self.real = level;
            if before == Level::None {
                let looked = self.look(places);
                if looked.is_err() && self.locks.strongest() <= Level::Shared {
                    // Only the connection that has just come holds a lock.
                    let _ = self.keeper.unlock(Level::None as i32);
                    self.real = Level::None;
                }
                return looked;
            }
        }
        Ok(())
    }

    /// Checks whether the file was left with commits in its log, and recovers them. The keeper has
    /// just got its first lock.
    fn look(&mut self, places: &Places) -> Result<(), Code> {
        let Some(mark) = Session::mark_of(&mut self.keeper)? else {
            // The log exists before the mark is set.
            if self.keeper.is_writable && places.log().exists() && Session::is_left_of_mark(&mut self.keeper)?
            {
                self.lock_whole()?;
                self.keeper.truncate(0)?;
            }
            return Ok(());
        };
        if self.keeper.is_writable {
            self.lock_whole()?;
        }
        let recovered = Session::recover(&mut self.keeper, places, mark);
        self.session = Some(self.noted(recovered)?);
        Ok(())
    }

    fn lock_whole(&mut self) -> Result<(), Code> {
        self.keeper.lock(Level::Exclusive as i32)?;
        self.real = Level::Exclusive;
        Ok(())
    }

    pub(crate) fn unlock(&mut self, connection: u64, level: Level) -> Result<(), Code> {
        let before = self.locks.of(connection);
        if before <= level {
            return Ok(());
        }
        let mut ended = Ok(());
        if before >= Level::Reserved {
            // Released in the middle, with a live journal: the writes that it would roll back were
            // never done.
            if !self.has_live_journal() {
                ended = self.commit();
            }
            // An ended journal must not be mistaken for one that another VFS leaves later.
            self.forget();
        }
        self.locks.set(connection, level);
        if self.session.is_none() {
            let strongest = self.locks.strongest();
            if strongest < self.real && strongest <= Level::Shared {
                self.keeper.unlock(strongest as i32)?;
                self.real = strongest;
            }
        }
        ended
    }

    fn forget(&mut self) {
        self.pending = Pending::default();
        self.size = None;
        self.journal = None;
        self.has_real_journal = false;
    }

    /// Whether a connection or, without a session, another process is about to write.
    pub(crate) fn is_reserved(&mut self) -> Result<bool, Code> {
        if self.locks.strongest() >= Level::Reserved {
            return Ok(true);
        }
        if self.session.is_some() { Ok(false) } else { self.keeper.is_reserved() }
    }

    pub(crate) fn level(&self, connection: u64) -> Level {
        self.locks.of(connection)
    }

    /// Reads into the buffer, unless the connection can read the file itself.
    pub(crate) fn read(&mut self, connection: u64, buffer: &mut [u8], offset: u64) -> Result<Read, Code> {
        self.check(abi::IOERR_READ)?;
        let Some(session) = &self.session else {
            if offset >= mark::MARK_BYTES as u64 {
                return Ok(Read::File { upto: u64::MAX });
            }
            let is_whole = self.keeper.read(buffer, offset)?;
            // The first look at a file happens without a lock, and the file may be marked.
            if offset == 0 && mark::of(buffer).is_some() {
                mark::take_off(buffer, 0);
            }
            return Ok(Read::Done { is_whole });
        };
        let is_writer = self.size.is_some() && self.locks.of(connection) >= Level::Exclusive;
        if !is_writer && offset >= mark::MARK_BYTES as u64 {
            return Ok(Read::File { upto: session.size });
        }
        let size = self.size.filter(|_| is_writer).unwrap_or(session.size);
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let (number, within) = place(at);
            let len = (BLOCK - within).min(buffer.len() - done);
            let pending =
                if is_writer { self.pending.get(number).map_err(|_| abi::IOERR_READ)? } else { None };
            let block = match pending {
                Some(block) => block,
                None => session.read_block(&mut self.keeper, number)?,
            };
            buffer[done..done + len].copy_from_slice(&block[within..within + len]);
            done += len;
        }
        Ok(Read::Done { is_whole: cut(buffer, offset, size) })
    }

    pub(crate) fn write(
        &mut self,
        places: &Places,
        connection: u64,
        bytes: &[u8],
        offset: u64,
    ) -> Result<(), Code> {
        let before = self.prepare(places, connection)?;
        let end = offset + bytes.len() as u64;
        let session = self.session.as_mut().ok_or(abi::IOERR_WRITE)?;
        session.reserve(&mut self.keeper, end)?;
        let mut done = 0;
        while done < bytes.len() {
            let (number, within) = place(offset + done as u64);
            let len = (BLOCK - within).min(bytes.len() - done);
            let mut block = match self.pending.get(number).map_err(|_| abi::IOERR_READ)? {
                Some(block) => block,
                None if len == BLOCK => Box::new([0; BLOCK]),
                None => {
                    let session = self.session.as_ref().ok_or(abi::IOERR_WRITE)?;
                    let mut block = session.read_block(&mut self.keeper, number)?;
                    // Bytes that the transaction truncated must not return.
                    cut(&mut block[..], number * BLOCK_BYTES, before);
                    block
                }
            };
            block[within..within + len].copy_from_slice(&bytes[done..done + len]);
            let session = self.session.as_ref().ok_or(abi::IOERR_WRITE)?;
            let put = self.pending.put(number, block, &session.directory).map_err(Failure::from);
            self.noted(put)?;
            done += len;
        }
        self.size = Some(before.max(end));
        Ok(())
    }

    pub(crate) fn truncate(&mut self, places: &Places, connection: u64, size: u64) -> Result<(), Code> {
        let before = self.prepare(places, connection)?;
        if size > before {
            let session = self.session.as_mut().ok_or(abi::IOERR_WRITE)?;
            session.reserve(&mut self.keeper, size)?;
        }
        let cut = self.pending.truncate(size).map_err(Failure::from);
        self.noted(cut)?;
        self.size = Some(size);
        Ok(())
    }

    /// Ensures that there is a session to write in. Returns the size of the file in bytes.
    fn prepare(&mut self, places: &Places, connection: u64) -> Result<u64, Code> {
        self.check(abi::IOERR_WRITE)?;
        if self.locks.of(connection) < Level::Exclusive || self.real < Level::Exclusive {
            return Err(self.refuse(abi::IOERR_WRITE, "a write without the exclusive lock"));
        }
        if self.session.is_none() {
            let begun = Session::begin(&mut self.keeper, places);
            self.session = Some(self.noted(begun)?);
        }
        Ok(self.size.or(self.session.as_ref().map(|session| session.size)).unwrap_or(0))
    }

    /// Returns the size of the file for a connection in bytes; `None` if it must query the file
    /// itself.
    pub(crate) fn file_size(&self, connection: u64) -> Option<u64> {
        let session = self.session.as_ref()?;
        let own = self.size.filter(|_| self.locks.of(connection) >= Level::Exclusive);
        Some(own.unwrap_or(session.size))
    }

    /// Handles SQLite's sync of the file. Without a journal, the sync is the commit.
    pub(crate) fn sync(&mut self) -> Result<(), Code> {
        self.check(abi::IOERR_FSYNC)?;
        if self.has_live_journal() { Ok(()) } else { self.commit() }
    }

    fn has_live_journal(&self) -> bool {
        self.has_real_journal || self.journal.as_ref().is_some_and(|journal| journal.is_live)
    }

    /// Gives the session a larger log, if the transaction needs one.
    fn grow_log(&mut self, size: u64) -> Result<(), Failure> {
        if let Some(short) = self.session.take_if(|session| session.wants_larger_log(&self.pending)) {
            // The end of the session removes the file.
            self.pending.close_spill();
            let session = self.session.insert(short.grow(&mut self.keeper, &self.pending)?);
            session.reserve(&mut self.keeper, size)?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Code> {
        self.check(abi::IOERR_FSYNC)?;
        if let Some(size) = self.size {
            let grown = self.grow_log(size);
            self.noted(grown).map_err(as_io_error)?;
        }
        if let (Some(session), Some(size)) = (&mut self.session, self.size) {
            let committed = session.commit(&mut self.keeper, &mut self.pending, size);
            self.noted(committed).map_err(as_io_error)?;
        }
        self.pending = Pending::default();
        self.size = None;
        Ok(())
    }

    /// Ends a journal, and with it the transaction.
    pub(crate) fn end_journal(&mut self) -> Result<(), Code> {
        self.commit()?;
        if let Some(journal) = &mut self.journal {
            journal.is_live = false;
        }
        Ok(())
    }

    pub(crate) fn journal(&mut self) -> &mut Option<Journal> {
        &mut self.journal
    }

    pub(crate) fn set_real_journal(&mut self, is_there: bool) {
        self.has_real_journal = is_there;
    }

    pub(crate) fn has_real_journal(&self) -> bool {
        self.has_real_journal
    }

    /// Whether it is known that no such file exists beside the database. During a session nobody
    /// else may create one, and a file that appears nevertheless does not belong to this database.
    pub(crate) fn has_none_beside(&self, which: SideFile) -> bool {
        !self.has_real_journal && self.session.as_ref().is_some_and(|session| session.has_none_beside(which))
    }

    /// Records that such a file does not exist, or was deleted.
    pub(crate) fn note_none_beside(&mut self, which: SideFile) {
        if let Some(session) = &mut self.session {
            session.note_none_beside(which);
        }
    }

    /// Makes the file a plain one and lets other processes use it, until the next write.
    pub(crate) fn release(&mut self) -> Result<(), Code> {
        self.check(abi::IOERR_FSYNC)?;
        if self.locks.strongest() > Level::Shared {
            return Err(abi::BUSY);
        }
        self.end()
    }

    pub(crate) fn end(&mut self) -> Result<(), Code> {
        let mut ended = Ok(());
        if let Some(session) = self.session.take()
            && !self.failed
        {
            let end = session.end(&mut self.keeper);
            ended = self.noted(end);
            // It is still marked, and the next lock will notice that.
        }
        let strongest = self.locks.strongest().min(Level::Shared);
        if strongest < self.real {
            self.keeper.unlock(strongest as i32)?;
            self.real = strongest;
        }
        ended
    }

    /// Returns a line about the current state.
    pub(crate) fn status(&self) -> String {
        let mut line = match &self.session {
            _ if self.failed => "failed: close all connections, and open the database again".to_owned(),
            None => "plain: no commits in a log".to_owned(),
            Some(session) => format!(
                "this process alone: {} commits, {} bytes of them in the log",
                session.commits,
                session.log_bytes()
            ),
        };
        if let Some(said) = &self.said {
            line.push_str("; last refusal: ");
            line.push_str(said);
        }
        line
    }
}

/// After a commit that failed with anything except an I/O error or a full disk, SQLite takes its
/// pages for committed.
fn as_io_error(code: Code) -> Code {
    if code & 0xff == abi::IOERR || code == abi::FULL { code } else { abi::IOERR_WRITE }
}

/// The way in which a connection must read.
pub(crate) enum Read {
    /// From the file, up to this length.
    File { upto: u64 },
    /// It was read, either completely or with zeros past the end.
    Done { is_whole: bool },
}

/// Zeros the bytes past a length. Returns whether there were none.
pub(crate) fn cut(buffer: &mut [u8], offset: u64, size: u64) -> bool {
    let there = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    if there < buffer.len() {
        buffer[there..].fill(0);
        return false;
    }
    true
}

fn place(offset: u64) -> (u64, usize) {
    (offset / BLOCK_BYTES, usize::try_from(offset % BLOCK_BYTES).expect("less than a block"))
}
