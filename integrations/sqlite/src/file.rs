//! The files that SQLite has open through this VFS: databases and their journals.
//!
//! Each call locks the database's state while it works on it. Pages that need no state are read
//! from the connection's own file.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::abi::{self, Code};
use crate::database::{Database, SideFile};
use crate::glue::{Opened, string};
use crate::journal::{Journal, WriteEffect, meaning};
use crate::locks::Level;
use crate::mark::{self, Head};
use crate::real::{RealFile, RealVfs};
use crate::session::{Failure, code_of};
use crate::state::{self, Read};
use pagekeeper_text::escaped;

/// A database as one connection has it open.
pub(crate) struct DatabaseFile {
    database: Arc<Database>,
    connection: u64,
    file: RealFile,
}

impl DatabaseFile {
    /// Takes over a file that the underlying VFS opened by this name.
    pub(crate) fn new(vfs: RealVfs, name: &CStr, file: RealFile) -> Result<Self, Failure> {
        let (database, connection) = Database::open(vfs, name)?;
        let mut opened = Self { database, connection, file };
        let Some(why) = opened.why_not() else { return Ok(opened) };
        opened.close()?;
        let name = escaped(Path::new(OsStr::from_bytes(name.to_bytes())));
        Err(Failure::cant_open(format!("{name}: {why}")))
    }

    fn why_not(&mut self) -> Option<&'static str> {
        if self.file.has_moved() {
            return Some("replaced while it was being opened");
        }
        let mut head: Head = [0; mark::MARK_BYTES];
        // One that can't be read fails where SQLite reads it.
        let is_wal = self.file.read(&mut head, 0).is_ok() && mark::is_wal(&head);
        is_wal.then_some("WAL mode is refused: set journal_mode=DELETE by the default VFS first")
    }

    /// Handles a PRAGMA of this VFS: returns the answer, and whether it is an error. Returns `None`
    /// for SQLite's own.
    fn pragma(&mut self, name: &str, value: Option<&str>) -> Option<(Code, String)> {
        let mut state = match self.database.state() {
            Ok(state) => state,
            Err(code) => {
                return Some((code, "pagekeeper: this connection is the parent process's".to_owned()));
            }
        };
        match name.to_ascii_lowercase().as_str() {
            "journal_mode" if value.is_some_and(|value| value.eq_ignore_ascii_case("wal")) => {
                let why = "pagekeeper: WAL mode is refused: commits are in a log already; use DELETE, TRUNCATE, PERSIST or MEMORY";
                Some((abi::ERROR, why.to_owned()))
            }
            "pagekeeper" => Some((abi::OK, state.status())),
            "pagekeeper_release" => match self.database.release(&mut state) {
                Ok(()) => Some((abi::OK, state.status())),
                Err(abi::BUSY) => Some((abi::BUSY, "pagekeeper: a transaction is open".to_owned())),
                Err(code) => Some((code, state.status())),
            },
            _ => None,
        }
    }
}

impl Opened for DatabaseFile {
    fn close(self) -> Result<(), Code> {
        // Before the connection's file: the underlying VFS keeps a descriptor while the file is
        // locked.
        self.database.close(self.connection)
    }

    fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<bool, Code> {
        let how = self.database.state()?.read(self.connection, buffer, offset)?;
        match how {
            Read::Done { is_whole } => Ok(is_whole),
            Read::File { upto } => {
                let is_whole = self.file.read(buffer, offset)?;
                Ok(state::cut(buffer, offset, upto) && is_whole)
            }
        }
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code> {
        self.database.state()?.write(&self.database.places, self.connection, bytes, offset)
    }

    fn truncate(&mut self, size: u64) -> Result<(), Code> {
        self.database.state()?.truncate(&self.database.places, self.connection, size)
    }

    fn sync(&mut self) -> Result<(), Code> {
        self.database.state()?.sync()
    }

    fn size(&mut self) -> Result<u64, Code> {
        let size = self.database.state()?.file_size(self.connection);
        size.map_or_else(|| self.file.size(), Ok)
    }

    fn lock(&mut self, level: c_int) -> Result<(), Code> {
        self.database.state()?.lock(&self.database.places, self.connection, Level::of(level))
    }

    fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        self.database.state()?.unlock(self.connection, Level::of(level))
    }

    fn is_reserved(&mut self) -> Result<bool, Code> {
        self.database.state()?.is_reserved()
    }

    #[allow(unsafe_code, reason = "the control's number determines the argument's type")]
    unsafe fn control(&mut self, op: c_int, argument: *mut c_void) -> Code {
        match op {
            abi::FCNTL_LOCKSTATE => {
                let level = match self.database.state() {
                    Ok(state) => state.level(self.connection),
                    Err(code) => return code,
                };
                // SAFETY: SQLite passes the address of a number with this control.
                unsafe { *argument.cast::<c_int>() = level as c_int };
                abi::OK
            }
            // SQLite sends this before each sync of the file, and instead of a sync if
            // `synchronous` is off.
            abi::FCNTL_SYNC => self.sync().err().unwrap_or(abi::OK),
            abi::FCNTL_SIZE_HINT => abi::OK,
            abi::FCNTL_MMAP_SIZE => {
                // SAFETY: SQLite passes the address of a number, and shows what is in it.
                unsafe { *argument.cast::<i64>() = 0 };
                abi::OK
            }
            abi::FCNTL_VFSNAME => {
                // SAFETY: SQLite passes the address of a string that it frees.
                unsafe { *argument.cast::<*mut c_char>() = string("pagekeeper/unix") };
                abi::OK
            }
            abi::FCNTL_PRAGMA => {
                let parts = argument.cast::<*mut c_char>();
                // SAFETY: SQLite passes three strings: the place of the answer, a name, and a value
                // or NULL.
                let (name, value) = unsafe {
                    let value = *parts.add(2);
                    let value = (!value.is_null()).then(|| CStr::from_ptr(value));
                    (CStr::from_ptr(*parts.add(1)), value)
                };
                let (Ok(name), value) = (name.to_str(), value.and_then(|value| value.to_str().ok())) else {
                    return abi::NOTFOUND;
                };
                let Some((code, answer)) = self.pragma(name, value) else { return abi::NOTFOUND };
                // SAFETY: as above.
                unsafe { *parts = string(&answer) };
                code
            }
            abi::FCNTL_LAST_ERRNO
            | abi::FCNTL_POWERSAFE_OVERWRITE
            | abi::FCNTL_TEMPFILENAME
            | abi::FCNTL_HAS_MOVED => {
                // SAFETY: passed on unchanged.
                unsafe { self.file.control(op, argument) }
            }
            _ => abi::NOTFOUND,
        }
    }
}

/// A journal: our own, or one that another VFS left, which is rolled back once.
pub(crate) struct JournalFile {
    database: Arc<Database>,
    real: Option<RealFile>,
}

impl JournalFile {
    /// Returns a journal of our own; `None` if there is none and it may not be created.
    pub(crate) fn own(database: &Arc<Database>, create: bool) -> Result<Option<Self>, Code> {
        let mut state = database.state()?;
        if create {
            state.journal().get_or_insert_default();
        }
        let is_there = state.journal().is_some();
        Ok(is_there.then(|| Self { database: Arc::clone(database), real: None }))
    }

    /// Wraps a journal that another VFS left, as the underlying VFS opened it.
    pub(crate) fn left(database: Arc<Database>, real: RealFile) -> Result<Self, Code> {
        if real.is_writable {
            database.state()?.set_real_journal(true);
        }
        Ok(Self { database, real: Some(real) })
    }

    /// Ends the transaction, or its rollback. Committed changes are in the log when this returns.
    fn end(&mut self) -> Result<(), Code> {
        let mut state = self.database.state()?;
        state.end_journal()?;
        if let Some(mut real) = self.real.take() {
            // Permanently: if it were found again, it would undo later commits.
            real.truncate(0)?;
            real.sync()?;
            state.set_real_journal(false);
        }
        Ok(())
    }

    fn with<T>(&mut self, what: impl FnOnce(&mut Journal, &Path) -> std::io::Result<T>) -> Result<T, Code> {
        let beside = self.database.places.directory.parent().unwrap_or(Path::new("/"));
        let mut state = self.database.state()?;
        what(state.journal().get_or_insert_default(), beside).map_err(|error| code_of(&error))
    }
}

impl Opened for JournalFile {
    fn close(self) -> Result<(), Code> {
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<bool, Code> {
        match &mut self.real {
            Some(real) => real.read(buffer, offset),
            None => self.with(|journal, _| journal.read(buffer, offset)),
        }
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code> {
        match meaning(bytes, offset) {
            WriteEffect::End => self.end()?,
            WriteEffect::SeveralFiles => {
                let why =
                    "a transaction over several databases is refused: this VFS can't commit them as one";
                return Err(self.database.state()?.refuse(abi::CANTOPEN, why));
            }
            WriteEffect::Begin => self.with(|journal, _| {
                journal.is_live = true;
                Ok(())
            })?,
            WriteEffect::Nothing => {}
        }
        match &mut self.real {
            Some(real) => real.write(bytes, offset),
            None => self.with(|journal, beside| journal.write(bytes, offset, beside)),
        }
    }

    fn truncate(&mut self, size: u64) -> Result<(), Code> {
        if size == 0 {
            self.end()?;
        }
        match &mut self.real {
            Some(real) => real.truncate(size),
            None => self.with(|journal, _| journal.truncate(size)),
        }
    }

    fn sync(&mut self) -> Result<(), Code> {
        // Nobody reads our own journal after a crash.
        self.real.as_mut().map_or(Ok(()), RealFile::sync)
    }

    fn size(&mut self) -> Result<u64, Code> {
        match &mut self.real {
            Some(real) => real.size(),
            None => self.with(|journal, _| journal.size()),
        }
    }

    fn lock(&mut self, _level: c_int) -> Result<(), Code> {
        Ok(())
    }

    fn unlock(&mut self, _level: c_int) -> Result<(), Code> {
        Ok(())
    }

    fn is_reserved(&mut self) -> Result<bool, Code> {
        Ok(false)
    }

    #[allow(unsafe_code, reason = "the trait's")]
    unsafe fn control(&mut self, _op: c_int, _argument: *mut c_void) -> Code {
        abi::NOTFOUND
    }
}

/// Deletes a journal, which is the commit in the usual mode.
pub(crate) fn delete_journal(vfs: RealVfs, database: &Database, name: &CStr, sync: bool) -> Result<(), Code> {
    let mut state = database.state()?;
    state.end_journal()?;
    let was_own = state.journal().take().is_some();
    if was_own && state.has_none_beside(SideFile::Journal) {
        return Ok(());
    }
    let must_last = state.has_real_journal();
    match vfs.delete(name, sync || must_last) {
        Err(abi::IOERR_DELETE_NOENT) if was_own => {}
        deleted => deleted?,
    }
    state.set_real_journal(false);
    state.note_none_beside(SideFile::Journal);
    Ok(())
}

/// Whether a file exists beside a database that SQLite must look at.
pub(crate) fn exists_beside(
    vfs: RealVfs,
    database: &Database,
    name: &CStr,
    which: SideFile,
) -> Result<bool, Code> {
    let mut state = database.state()?;
    let is_live = state.journal().as_ref().is_some_and(|journal| journal.is_live);
    if which == SideFile::Journal && is_live {
        return Ok(true);
    }
    if state.has_none_beside(which) {
        return Ok(false);
    }
    let exists = vfs.exists(name)?;
    // The underlying VFS also answers no if it cannot look, and for empty files.
    if !exists && rustix::fs::lstat(name).err() == Some(rustix::io::Errno::NOENT) {
        state.note_none_beside(which);
    }
    Ok(exists)
}
