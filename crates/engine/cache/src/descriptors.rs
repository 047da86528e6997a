//! The descriptors of files, of which a cache has at most so many open at once, if it was built so.
//!
//! A descriptor that made room for others comes back with the next miss of its file, if the path
//! still names the same one. Descriptors that were used since their last turn get another.
//!
//! Invariants: no lock is held over I/O, and no hit comes here. A read in flight keeps its
//! descriptor. Without a limit a file keeps the one that it was opened with, and nothing is locked.

use std::collections::VecDeque;
use std::ops::Deref;
use std::path::{self, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use pagekeeper_io::{Access, FileStat, Io, IoFile};
use pagekeeper_kernel::InodeId;
use pagekeeper_kernel::mutex::lock;

use crate::Error;

/// The files of one cache that may lose their descriptors.
#[derive(Debug)]
pub(crate) struct OpenDescriptors {
    max: usize,
    /// Those that are open, in the order of their turns.
    turns: Mutex<VecDeque<Weak<LentDescriptor>>>,
}

/// The descriptor of a file.
pub(crate) enum Descriptor {
    Kept(Arc<dyn IoFile>),
    Lent(Arc<LentDescriptor>),
}

/// A descriptor that comes and goes.
pub(crate) struct LentDescriptor {
    path: PathBuf,
    access: Access,
    identity: Identity,
    open: Mutex<Option<Arc<dyn IoFile>>>,
    was_used: AtomicBool,
}

/// The identity of a file: device, inode, and the inode's generation where there is one.
type Identity = (u64, u64, Option<InodeId>);

/// An open file for the length of a call.
pub(crate) enum OpenFile<'a> {
    Kept(&'a Arc<dyn IoFile>),
    Lent(Arc<dyn IoFile>),
}

impl Deref for OpenFile<'_> {
    type Target = Arc<dyn IoFile>;

    fn deref(&self) -> &Arc<dyn IoFile> {
        match self {
            Self::Kept(file) => file,
            Self::Lent(file) => file,
        }
    }
}

fn identity(file: &dyn IoFile, stat: &FileStat) -> Identity {
    (stat.device, stat.inode, file.fd().and_then(InodeId::of))
}

impl OpenDescriptors {
    /// Creates a list of at most `max` descriptors; `None` without a limit.
    pub(crate) fn new(max: Option<usize>) -> Option<Self> {
        max.map(|max| Self { max: max.max(1), turns: Mutex::default() })
    }

    /// Takes over the descriptor of a file that was opened by its path.
    pub(crate) fn lend(&self, file: Arc<dyn IoFile>, stat: &FileStat) -> Descriptor {
        let path = path::absolute(file.path()).unwrap_or_else(|_| file.path().to_owned());
        let (access, identity) = (file.access(), identity(&*file, stat));
        let open = Mutex::new(Some(file));
        let lent = Arc::new(LentDescriptor { path, access, identity, open, was_used: AtomicBool::new(true) });
        self.note_open(&lent);
        Descriptor::Lent(lent)
    }

    /// Notes that a descriptor is open, and closes others if there are too many.
    fn note_open(&self, lent: &Arc<LentDescriptor>) {
        let mut closed = Vec::new();
        let mut turns = lock(&self.turns);
        if turns.len() >= self.max {
            turns.retain(|other| other.strong_count() > 0);
        }
        let mut passes = turns.len();
        while turns.len() >= self.max
            && let Some(first) = turns.pop_front()
        {
            let Some(other) = first.upgrade() else { continue };
            if passes > 0 && other.was_used.swap(false, Ordering::Relaxed) {
                passes -= 1;
                turns.push_back(first);
            } else {
                let descriptor = lock(&other.open).take();
                closed.push((other, descriptor));
            }
        }
        turns.push_back(Arc::downgrade(lent));
        drop(turns);
        drop(closed);
    }
}

impl Descriptor {
    /// Returns the open file; opens it again if it made room for others.
    pub(crate) fn get(&self, all: Option<&OpenDescriptors>, io: &dyn Io) -> Result<OpenFile<'_>, Error> {
        match (self, all) {
            (Self::Kept(file), _) => Ok(OpenFile::Kept(file)),
            (Self::Lent(lent), all) => {
                lent.was_used.store(true, Ordering::Relaxed);
                let open = lock(&lent.open).clone();
                if let Some(file) = open {
                    return Ok(OpenFile::Lent(file));
                }
                let file = io.open(&lent.path, lent.access)?;
                if identity(&*file, &file.stat()?) != lent.identity {
                    return Err(Error::Replaced { path: lent.path.clone() });
                }
                // Several threads may have opened it.
                let is_first = lock(&lent.open).replace(Arc::clone(&file)).is_none();
                if let Some(all) = all.filter(|_| is_first) {
                    all.note_open(lent);
                }
                Ok(OpenFile::Lent(file))
            }
        }
    }

    /// Closes the descriptor of a file that is closed, if it may be.
    pub(crate) fn close(&self) {
        if let Self::Lent(lent) = self {
            drop(lock(&lent.open).take());
        }
    }
}

impl std::fmt::Debug for LentDescriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LentDescriptor").field("path", &self.path).finish_non_exhaustive()
    }
}
