//! Objects that a parent has open during a fork, and a child's acts on them.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use pagekeeper_io::Error as IoError;
use pagekeeper_store::{Durability, Error, PageNo, Store, StoreOptions};
use pagekeeper_wal::{BinLog, Error as LogError, RedoLog};

/// An object that the parent has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thing {
    Store,
    StoreWithoutThreads,
    Redo,
    Binlog,
}

pub(crate) const THINGS: [Thing; 4] = [Thing::Store, Thing::StoreWithoutThreads, Thing::Redo, Thing::Binlog];

/// An act of a child on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Drop,
    Close,
    CloseAndSync,
    Sync,
    Commit,
    Read,
    Backup,
}

pub(crate) const ACTS: [Act; 7] =
    [Act::Drop, Act::Close, Act::CloseAndSync, Act::Sync, Act::Commit, Act::Read, Act::Backup];

/// The answer to the child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    Refused,
    Worked,
    Other(String),
}

impl Answer {
    pub(crate) fn text(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing is done",
            Self::Refused => "`Forked`",
            Self::Worked | Self::Other(_) => "wrong",
        }
    }

    fn of<E: std::fmt::Debug>(error: Option<E>, of_io: impl Fn(&E) -> Option<&IoError>) -> Self {
        match error {
            None => Self::Worked,
            Some(error) if of_io(&error) == Some(&IoError::Forked) => Self::Refused,
            Some(error) => Self::Other(format!("{error:?}")),
        }
    }

    pub(crate) fn of_io<T>(result: Result<T, IoError>) -> Self {
        Self::of(result.err(), |error| Some(error))
    }

    pub(crate) fn of_store<T>(result: Result<T, Error>) -> Self {
        Self::of(result.err(), |error| match error {
            Error::Io(error) => Some(error),
            _ => None,
        })
    }

    pub(crate) fn of_log<T>(result: Result<T, LogError>) -> Self {
        Self::of(result.err(), |error| match error {
            LogError::Io(error) => Some(error),
            _ => None,
        })
    }
}

impl Act {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Close => "close",
            Self::CloseAndSync => "close and sync",
            Self::Sync => "sync",
            Self::Commit => "commit, append",
            Self::Read => "read, follow",
            Self::Backup => "backup, checkpoint, rotate",
        }
    }

    pub(crate) fn right_answer(self) -> Answer {
        if self == Self::Drop { Answer::Nothing } else { Answer::Refused }
    }
}

/// Writes a line at once, past locks and buffers that another thread may have held when this
/// process was forked.
pub(crate) fn report(line: impl AsRef<str>) {
    let line = format!("\n{}\n", line.as_ref());
    rustix::io::write(rustix::stdio::stdout(), line.as_bytes()).unwrap();
}

/// The open object.
pub(crate) enum Opened {
    Store(Store),
    Redo(RedoLog, AtomicU64),
    Binlog(BinLog, AtomicU64),
}

impl Thing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Store => "`Store`",
            Self::StoreWithoutThreads => "`Store` without threads",
            Self::Redo => "`RedoLog`",
            Self::Binlog => "`BinLog`",
        }
    }

    pub(crate) fn has(self, act: Act) -> bool {
        act != Act::CloseAndSync || matches!(self, Self::Store | Self::StoreWithoutThreads)
    }

    fn options(self) -> StoreOptions {
        let options = Store::options().memory(2 << 20).journal_bytes(512 << 10);
        if self == Self::StoreWithoutThreads { options.without_threads() } else { options }
    }

    pub(crate) fn open(self, directory: &Path) -> Opened {
        match self {
            Self::Store | Self::StoreWithoutThreads => Opened::Store(self.options().open(directory).unwrap()),
            Self::Redo => {
                let options = RedoLog::options().files(2).file_bytes(1 << 20);
                Opened::Redo(options.create(directory).unwrap(), AtomicU64::new(1))
            }
            Self::Binlog => Opened::Binlog(BinLog::options().open(directory).unwrap(), AtomicU64::new(1)),
        }
    }

    /// Returns the numbers that are found when it is opened again.
    pub(crate) fn found(self, directory: &Path) -> Result<HashSet<u64>, String> {
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        match self {
            Self::Store | Self::StoreWithoutThreads => {
                let store = self.options().open(directory).map_err(|error| error.to_string())?;
                let verified = store.verify().map_err(|error| error.to_string())?;
                if !verified.is_sound() {
                    return Err(verified.to_string());
                }
                let read = store.begin_read().map_err(|error| error.to_string())?;
                let last = number(read.metadata());
                let on_page = number(&read.read(PageNo::new(0)).map_err(|error| error.to_string())?[..8]);
                if on_page == last { Ok((1..=last).collect()) } else { Err(format!("{on_page}, not {last}")) }
            }
            Self::Redo => {
                let log = RedoLog::options().open(directory).map_err(|error| error.to_string())?;
                let records = log.read_from(log.checkpoint_lsn()).map_err(|error| error.to_string())?;
                records.map(|record| Ok(number(&record.map_err(|error| error.to_string())?.body))).collect()
            }
            Self::Binlog => {
                let log = BinLog::options().open(directory).map_err(|error| error.to_string())?;
                let mut follower = log.follow(log.first()).map_err(|error| error.to_string())?;
                let mut found = HashSet::new();
                while let Some(event) = follower.try_next().map_err(|error| error.to_string())? {
                    found.insert(number(&event.bytes));
                }
                Ok(found)
            }
        }
    }
}

fn commit(store: &Store) -> Result<u64, Error> {
    let mut txn = store.begin_write()?;
    let number = txn.metadata().try_into().map_or(0, u64::from_le_bytes) + 1;
    if txn.pages() == 0 {
        txn.allocate()?;
    }
    txn.page_mut(PageNo::new(0))?[..8].copy_from_slice(&number.to_le_bytes());
    txn.set_metadata(&number.to_le_bytes())?;
    txn.commit(Durability::Sync)?;
    Ok(number)
}

/// Returns a copy of a value for this process alone.
#[expect(unsafe_code, reason = "takes over what threads borrow that are not there")]
pub(crate) fn taken<T>(value: &T) -> T {
    // SAFETY: called in a forked child, whose memory is its own, by its only thread, which uses the
    // value no more and leaves without destructors.
    unsafe { std::ptr::read(value) }
}

impl Opened {
    /// Appends durably, and reports that.
    pub(crate) fn acknowledge(&self) {
        let number = match self {
            Self::Store(store) => commit(store).unwrap(),
            Self::Redo(log, next) => {
                let number = next.fetch_add(1, Ordering::Relaxed);
                log.wait_flushed(log.append(&number.to_le_bytes()).unwrap()).unwrap();
                number
            }
            Self::Binlog(log, next) => {
                let number = next.fetch_add(1, Ordering::Relaxed);
                log.append_group(&[&number.to_le_bytes()]).unwrap();
                number
            }
        };
        report(format!("acknowledged {number}"));
    }

    /// Acknowledges, unless the ring's second half would be needed: nothing is given up in it.
    pub(crate) fn acknowledge_while_there_is_room(&self) {
        match self {
            Self::Redo(log, _) if log.end() - log.checkpoint_lsn() > log.capacity() / 2 => self.read(),
            _ => self.acknowledge(),
        }
    }

    pub(crate) fn read(&self) {
        match self {
            Self::Store(store) => {
                store.begin_read().unwrap().read(PageNo::new(0)).unwrap();
                store.stats();
            }
            Self::Redo(log, _) => log.read_from(log.checkpoint_lsn()).unwrap().for_each(drop),
            Self::Binlog(log, _) => {
                log.follow(log.first()).unwrap().try_next().unwrap();
            }
        }
    }

    /// Performs the act, and reports its result.
    pub(crate) fn act_in_child(&self, act: Act) -> bool {
        let answer = match self {
            Self::Store(store) => act_on_store(store, act),
            Self::Redo(log, _) => act_on_redo(log, act),
            Self::Binlog(log, _) => act_on_binlog(log, act),
        };
        report(format!("answer {answer:?}"));
        true
    }
}

fn act_on_store(store: &Store, act: Act) -> Answer {
    match act {
        Act::Drop => {
            drop(taken(store));
            Answer::Nothing
        }
        Act::Close => Answer::of_store(taken(store).close()),
        Act::CloseAndSync => Answer::of_store(taken(store).close_and_sync()),
        Act::Sync => Answer::of_store(store.sync()),
        Act::Commit => Answer::of_store(commit(store)),
        Act::Read => Answer::of_store(store.begin_read().and_then(|read| read.read(PageNo::new(0)))),
        Act::Backup => Answer::of_store(store.backup(Path::new("/nonexistent/copy"))),
    }
}

fn act_on_redo(log: &RedoLog, act: Act) -> Answer {
    match act {
        Act::Drop | Act::CloseAndSync => {
            drop(taken(log));
            Answer::Nothing
        }
        Act::Close => Answer::of_log(taken(log).close()),
        Act::Sync => Answer::of_log(log.sync_upto(log.end())),
        Act::Commit => Answer::of_log(log.append(&[0; 8]).and_then(|lsn| log.wait_flushed(lsn))),
        Act::Read => Answer::of_log(log.read_from(log.checkpoint_lsn())),
        Act::Backup => Answer::of_log(log.checkpoint(log.end())),
    }
}

fn act_on_binlog(log: &BinLog, act: Act) -> Answer {
    match act {
        Act::Drop | Act::CloseAndSync => {
            drop(taken(log));
            Answer::Nothing
        }
        Act::Close => Answer::of_log(taken(log).close()),
        Act::Sync => Answer::of_log(log.sync()),
        Act::Commit => Answer::of_log(log.append_group(&[&[0; 8]])),
        Act::Read => {
            let followed = log.follow(log.first()).and_then(|mut follower| follower.try_next());
            match Answer::of_log(log.partition_point(|_| true)) {
                Answer::Refused => Answer::of_log(followed),
                other => other,
            }
        }
        Act::Backup => Answer::of_log(log.rotate()),
    }
}
