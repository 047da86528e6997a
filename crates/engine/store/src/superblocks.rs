//! The file `superblock`: two slots with the same content, each written and synced separately, so
//! that either of them may be lost at any time.
//!
//! Invariants:
//! 1. While one slot is written the other one is intact, and the journal that it relies on is still
//!    there: nothing is given up before both slots say so.
//! 2. A slot found to be corrupt is rewritten before anything else is written. If a slot is
//!    unreadable, a new file replaces the old one.
//!
//! Fails as the disk does. A failure of a write or sync is final.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::{
    AlignedBuf, Create, Error as IoError, Io, IoFile, WriteMode, open_past_cache, open_writable_past_cache,
};

use crate::Error;
use crate::data::{FileUse, open_file};
use crate::format::superblock::{SLOT_BYTES, SUPERBLOCK_VERSION, SlotContent, SlotFault, Superblock, newest};
#[cfg(test)]
use crate::injected_fault::InjectedFault;

/// The file's name.
pub(crate) const SUPERBLOCK_NAME: &str = "superblock";
/// Its name while the store is made. It gets its final name only when everything else exists.
pub(crate) const UNFINISHED_NAME: &str = "superblock.new";
/// Its name while a backup or a repair makes the store. Such a directory is never made again as an
/// empty store.
pub(crate) const COPYING_NAME: &str = "superblock.copy";
/// Its name while it replaces a file with an unreadable slot.
pub(crate) const REPLACEMENT_NAME: &str = "superblock.repaired";

/// The number of the first superblock, written when a store is made.
pub(crate) const FIRST_NUMBER: u64 = 1;

/// The open file.
pub(crate) struct Superblocks {
    file: Arc<dyn IoFile>,
    newest: Superblock,
    /// The slot that is written first the next time: the one without the newest superblock, if only
    /// one has it.
    first: u64,
    buf: AlignedBuf,
    #[cfg(test)]
    pub(crate) injected_fault: Option<InjectedFault>,
}

/// The content of a slot, as the device has it.
#[derive(Debug)]
pub(crate) enum SlotRead {
    Found(SlotContent),
    Unreadable(IoError),
}

/// The content of both slots.
#[derive(Debug)]
pub(crate) struct SlotsRead([SlotRead; 2]);

/// Describes why no slot is valid, or what is wrong with one of them.
impl fmt::Display for SlotRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(SlotContent::Superblock(_)) => f.write_str("whole"),
            Self::Found(SlotContent::Version(version)) => write!(f, "of version {version}"),
            Self::Found(SlotContent::Nothing(fault)) => fault.fmt(f),
            Self::Unreadable(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for SlotsRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = &self.0;
        write!(f, "slot 0: {first}; slot 1: {second}")
    }
}

impl SlotsRead {
    fn found(&self) -> [&SlotContent; 2] {
        self.0.each_ref().map(|slot| match slot {
            SlotRead::Found(found) => found,
            SlotRead::Unreadable(_) => &SlotContent::Nothing(SlotFault::Missing),
        })
    }

    /// Returns the valid superblock, and its slot.
    pub(crate) fn newest(&self) -> Option<(&SlotContent, u64)> {
        let found = self.found();
        newest(found).map(|slot| (found[slot], slot as u64))
    }

    /// Returns the content of each slot.
    pub(crate) fn slots(&self) -> &[SlotRead; 2] {
        &self.0
    }
}

/// Reads the file of a directory from the device; `None` if there is none. An unreadable slot is no
/// failure.
pub(crate) fn read(io: &dyn Io, directory: &Path) -> Result<Option<SlotsRead>, Error> {
    let path = directory.join(SUPERBLOCK_NAME);
    let file = match open_past_cache(io, &path) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        opened => opened?,
    };
    // Separately, so that an unreadable slot does not keep the other from being read.
    let slot = |slot: u64| {
        let mut bytes = AlignedBuf::new(SLOT_BYTES);
        match file.read_at(slot * SLOT_BYTES as u64, &mut bytes) {
            Ok(got) => SlotRead::Found(Superblock::decode(&bytes[..got])),
            Err(error) => SlotRead::Unreadable(error),
        }
    };
    Ok(Some(SlotsRead([slot(0), slot(1)])))
}

/// Returns the error for the superblock at `path`, which is of another version.
pub(crate) fn other_version(path: PathBuf, version: u16) -> Error {
    if version < SUPERBLOCK_VERSION {
        Error::OldVersion { path, version }
    } else {
        Error::UnknownVersion { path, version, known: SUPERBLOCK_VERSION }
    }
}

/// Creates the file, or opens it if a previous attempt left it. It is not removed, since its name
/// says that there was one.
fn new_file(io: &dyn Io, path: &Path) -> Result<Arc<dyn IoFile>, IoError> {
    match open_writable_past_cache(io, path, Create::New) {
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            open_writable_past_cache(io, path, Create::Never)
        }
        opened => opened,
    }
}

/// Whether a directory with these names has a store, or a copy of one, that was never finished.
pub(crate) fn is_unfinished(names: &[OsString]) -> bool {
    let has = |name: &str| names.iter().any(|found| found == name);
    !has(SUPERBLOCK_NAME) && (has(UNFINISHED_NAME) || has(COPYING_NAME))
}

/// Durably records, by one of the two names, that a store is being made: from then on, existing
/// files in the directory belong to no store.
pub(crate) fn begin(io: &dyn Io, directory: &Path, name: &str) -> Result<(), Error> {
    new_file(io, &directory.join(name))?;
    Ok(io.sync_dir(directory)?)
}

/// Creates a file with both slots, durably except for its name.
fn make(io: &dyn Io, path: &Path, superblock: &Superblock) -> Result<(), Error> {
    let file = new_file(io, path)?;
    let mut buf = AlignedBuf::new(2 * SLOT_BYTES);
    let bytes = superblock.encode();
    buf[..SLOT_BYTES].copy_from_slice(&bytes);
    buf[SLOT_BYTES..].copy_from_slice(&bytes);
    file.write_at(0, &buf, WriteMode::Plain)?;
    Ok(file.sync_all()?)
}

/// Finishes a store whose making began with this name, by making its first superblock durable.
pub(crate) fn create(io: &dyn Io, directory: &Path, name: &str, first: Superblock) -> Result<(), Error> {
    let path = directory.join(name);
    make(io, &path, &Superblock { number: FIRST_NUMBER, ..first })?;
    io.rename(&path, &directory.join(SUPERBLOCK_NAME))?;
    Ok(io.sync_dir(directory)?)
}

impl Superblocks {
    /// Opens the file to continue from `newest`, which was read from this slot.
    pub(crate) fn open(
        io: &dyn Io,
        directory: &Path,
        newest: Superblock,
        slot: u64,
        use_of: FileUse,
    ) -> Result<Self, Error> {
        let file = open_file(io, &directory.join(SUPERBLOCK_NAME), use_of)?;
        Ok(Self {
            file,
            newest,
            first: 1 - slot,
            buf: AlignedBuf::new(SLOT_BYTES),
            #[cfg(test)]
            injected_fault: None,
        })
    }

    /// Durably writes the newest superblock to both slots, if one of them does not have it.
    pub(crate) fn complete(&mut self, io: &dyn Io, directory: &Path, read: &SlotsRead) -> Result<(), Error> {
        let other = usize::from(self.first == 1);
        match &read.slots()[other] {
            SlotRead::Found(SlotContent::Superblock(superblock))
                if superblock.number == self.newest.number =>
            {
                Ok(())
            }
            SlotRead::Found(_) => {
                self.buf.copy_from_slice(&self.newest.encode());
                self.write_slot(self.first)
            }
            SlotRead::Unreadable(_) => {
                let path = directory.join(REPLACEMENT_NAME);
                make(io, &path, &self.newest)?;
                io.rename(&path, &directory.join(SUPERBLOCK_NAME))?;
                io.sync_dir(directory)?;
                self.file = open_writable_past_cache(io, directory.join(SUPERBLOCK_NAME), Create::Never)?;
                Ok(())
            }
        }
    }

    /// Makes the superblocks durable: after a kill, they may be only in the device's cache.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        Ok(self.file.sync_all()?)
    }

    /// Returns the valid superblock.
    pub(crate) fn newest(&self) -> &Superblock {
        &self.newest
    }

    /// Durably writes a superblock to one slot, and then to the other.
    pub(crate) fn write(&mut self, superblock: Superblock) -> Result<(), Error> {
        debug_assert!(
            self.newest.checkpoint_seq <= superblock.checkpoint_seq
                && (self.newest.checkpoint_lsn <= superblock.checkpoint_lsn
                    || self.newest.journal != superblock.journal),
            "a superblock that goes back"
        );
        let superblock = Superblock { number: self.newest.number + 1, ..superblock };
        self.buf.copy_from_slice(&superblock.encode());
        let first = if injected!(self, OneSuperblockSlot) { 1 - self.first } else { self.first };
        self.write_slot(first)?;
        if injected!(self, OneSlotOfTwo) {
            self.first = 1 - self.first;
        } else if !injected!(self, OneSuperblockSlot) {
            self.write_slot(1 - first)?;
        }
        self.newest = superblock;
        Ok(())
    }

    /// Writes a slot, and returns when it is durable.
    fn write_slot(&self, slot: u64) -> Result<(), Error> {
        self.file.write_at(slot * SLOT_BYTES as u64, &self.buf, WriteMode::Plain)?;
        if !injected!(self, NoSyncOfSuperblock) {
            self.file.sync_data()?;
        }
        Ok(())
    }
}
