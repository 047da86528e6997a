//! The open databases of this process: one per file, for any number of connections, found by the
//! file or by the name of its journal.
//!
//! Invariants:
//! 1. A file is open only once, under one name. A connection with another name, or that finds
//!    another file under the same name, is refused.
//! 2. A forked process touches nothing of its parent's: log, locks and transaction belong to the
//!    parent, and their locks may be held forever. Its copies are never dropped, since the list
//!    holds them.
//! 3. Nobody waits for a database's disk with the list locked, except for its opening.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use pagekeeper_io::Process;
use pagekeeper_kernel::mutex::lock;

use crate::abi::{self, Code};
use crate::locks::Level;
use crate::places::Places;
use crate::real::{RealFile, RealVfs};
use crate::session::Failure;
use crate::state::State;

/// A file that SQLite may find beside a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SideFile {
    /// A rollback journal.
    Journal,
    /// A write-ahead log.
    Wal,
}

impl SideFile {
    /// Returns the suffix of its name.
    fn suffix(self) -> &'static [u8] {
        match self {
            Self::Journal => b"-journal",
            Self::Wal => b"-wal",
        }
    }
}

/// The open databases of this process, by device and inode.
static OPEN_DATABASES: Mutex<Databases> = Mutex::new(BTreeMap::new());

/// Device and inode.
type Inode = (u64, u64);

type Databases = BTreeMap<Inode, Arc<Database>>;

/// Locks the list. Returns `None` in a forked child if another thread of the parent held the lock:
/// nobody there will release it.
fn list() -> Option<MutexGuard<'static, Databases>> {
    /// The number of the process whose threads alone may hold the lock.
    static LIST_OWNER: AtomicU32 = AtomicU32::new(0);
    /// Two threads of a child may compete for the lock.
    const LOCK_ATTEMPTS_MAX: usize = 1000;
    let own = Process::current().number();
    // Set before the first lock: a child that is forked while it is held has another number.
    let _ = LIST_OWNER.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
    for _ in 0..LOCK_ATTEMPTS_MAX {
        let open = if LIST_OWNER.load(Ordering::SeqCst) == own {
            lock(&OPEN_DATABASES)
        } else {
            match OPEN_DATABASES.try_lock() {
                Ok(open) => open,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::yield_now();
                    continue;
                }
            }
        };
        LIST_OWNER.store(own, Ordering::SeqCst);
        return Some(open);
    }
    None
}

pub(crate) struct Database {
    key: Inode,
    vfs: RealVfs,
    pub(crate) name: CString,
    pub(crate) places: Places,
    /// Incremented with [`OPEN_DATABASES`] locked, but decremented without it, so that nobody waits
    /// there for a database's disk.
    connections: AtomicU64,
    /// The process that opened it.
    process: Process,
    state: Mutex<State>,
}

/// Access to the open databases, by name or file.
impl Database {
    /// Adds a connection to the existing file of this name.
    pub(crate) fn open(vfs: RealVfs, name: &CStr) -> Result<(Arc<Self>, u64), Failure> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let found = rustix::fs::stat(path).map_err(|_| abi::CANTOPEN)?;
        let key = (found.st_dev, found.st_ino);
        let refused = |why| Err(Failure::cant_open(format!("{}: {why}", pagekeeper_text::escaped(path))));
        let Some(mut open) = list() else {
            return refused("this process was forked while another thread opened or closed a database");
        };
        for (&other, database) in open.iter() {
            if (other == key || *database.name == *name) && database.is_forked() {
                return refused("open in the process that this one was forked from");
            }
            if (other == key) != (*database.name == *name) {
                return refused("open under another name, or replaced while it is open");
            }
        }
        let database = if let Some(database) = open.get(&key) {
            Arc::clone(database)
        } else {
            let mut directory = name.to_bytes().to_vec();
            directory.extend_from_slice(b"-pagekeeper");
            let directory = PathBuf::from(std::ffi::OsString::from(std::ffi::OsStr::from_bytes(&directory)));
            let mut keeper = RealFile::open_database(vfs, name)?;
            if keeper.has_moved() {
                return refused("replaced while it was being opened");
            }
            let database = Arc::new(Self {
                key,
                vfs,
                name: name.to_owned(),
                places: Places { directory },
                connections: AtomicU64::new(0),
                process: Process::current(),
                state: Mutex::new(State::new(keeper)),
            });
            open.insert(key, Arc::clone(&database));
            database
        };
        database.connections.fetch_add(1, Ordering::SeqCst);
        Ok((database, CONNECTIONS.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns the open database whose journal has this name.
    pub(crate) fn of_journal(name: &CStr) -> Option<Arc<Self>> {
        Self::beside(name, SideFile::Journal)
    }

    /// Returns the open database to which a file of this name would belong.
    pub(crate) fn beside(name: &CStr, which: SideFile) -> Option<Arc<Self>> {
        let database = name.to_bytes().strip_suffix(which.suffix())?;
        list()?.values().find(|open| open.name.to_bytes() == database).cloned()
    }

    /// Returns the open database beside which SQLite would have a file of this name.
    pub(crate) fn of_file_beside(name: &CStr) -> Option<Arc<Self>> {
        let is_beside = |open: &&Arc<Self>| {
            let rest = name.to_bytes().strip_prefix(open.name.to_bytes());
            rest.is_some_and(|rest| rest.starts_with(b"-"))
        };
        list()?.values().find(is_beside).cloned()
    }

    /// Ends a connection. The last one leaves a plain file.
    pub(crate) fn close(self: &Arc<Self>, connection: u64) -> Result<(), Code> {
        // The parent's copy stays as it is, and only the parent may close it.
        let Ok(mut state) = self.state() else { return Ok(()) };
        let mut ended = state.unlock(connection, Level::None);
        if self.connections.fetch_sub(1, Ordering::SeqCst) == 1 {
            ended = ended.and(self.remove_foreign_journal(&state)).and(state.end());
        }
        drop(state);
        let mut open = lock(&OPEN_DATABASES);
        // Another connection may have come meanwhile, or even gone, and another database may be in
        // its place.
        let is_own = open.get(&self.key).is_some_and(|found| Arc::ptr_eq(found, self));
        if is_own && self.connections.load(Ordering::SeqCst) == 0 {
            open.remove(&self.key);
        }
        ended
    }

    fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Makes the file a plain one and lets other processes use it, until the next write.
    pub(crate) fn release(&self, state: &mut State) -> Result<(), Code> {
        self.remove_foreign_journal(state)?;
        state.release()
    }

    /// Removes a journal that appeared while nobody else could write here, for example one that was
    /// copied back. It belongs to another time: once the mark is off, the next opener of the file
    /// would undo committed data with it.
    fn remove_foreign_journal(&self, state: &State) -> Result<(), Code> {
        if !state.has_none_beside(SideFile::Journal) {
            return Ok(());
        }
        let mut name = self.name.to_bytes().to_vec();
        name.extend_from_slice(SideFile::Journal.suffix());
        let name = CString::new(name).map_err(|_| abi::IOERR)?;
        if !self.vfs.exists(&name)? {
            return Ok(());
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let path = pagekeeper_text::escaped(path);
        crate::said(
            abi::WARNING,
            &format!("{path}: appeared while the database was in use, and is not its journal: removed"),
        );
        self.vfs.delete(&name, true)
    }

    /// Returns the state that the connections share. Fails in a forked process.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, State>, Code> {
        if self.is_forked() {
            crate::said(
                abi::IOERR,
                "a connection of the process that this one was forked from can't be used",
            );
            return Err(abi::IOERR);
        }
        Ok(lock(&self.state))
    }
}
