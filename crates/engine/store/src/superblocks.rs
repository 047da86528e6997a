//! The file `superblock`: two slots that say the same, each written and synced apart, so that either of them may be lost at any time.
//!
//! Invariants:
//! 1. Where one slot is written the other one is whole, and what of the journal the other one counts on is still there: nothing
//!    is given up before both say so.
//! 2. A slot that was found not to be whole is written anew before anything else is. One that can't be read is not: a new file
//!    takes the place of the old one.
//!
//! Fails as the disk does; a failure of a write or sync is final.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{
    AlignedBuf, Create, Error as IoError, Io, IoFile, WriteMode, open_past_cache, open_writable_past_cache,
};

use crate::Error;
use crate::data::{Use, open_file};
use crate::format::superblock::{Found, SLOT, SlotFault, Superblock, newest};
#[cfg(test)]
use crate::injected_fault::InjectedFault;

/// Its name.
pub(crate) const NAME: &str = "superblock";
/// The same while the store is made: only when all else is there does it get its name.
pub(crate) const UNFINISHED: &str = "superblock.new";
/// The same while a backup or a repair makes the store: what there is of it is no store's to be made anew.
pub(crate) const COPYING: &str = "superblock.copy";
/// The same while one takes its place of which a slot can't be read.
pub(crate) const REPLACEMENT: &str = "superblock.repaired";

/// The number of the superblock that the making of a store writes.
pub(crate) const MADE: u64 = 1;

/// The file, open.
pub(crate) struct Superblocks {
    file: Arc<dyn IoFile>,
    newest: Superblock,
    /// Which is written first the next time: the one that does not hold the newest, if only one of them does.
    first: u64,
    buf: AlignedBuf,
    #[cfg(test)]
    pub(crate) injected_fault: Option<InjectedFault>,
}

/// What a slot of the file holds, as the device has it.
#[derive(Debug)]
pub(crate) enum SlotRead {
    Found(Found),
    Unreadable(IoError),
}

/// What both slots hold.
#[derive(Debug)]
pub(crate) struct SlotsRead([SlotRead; 2]);

/// Why no slot counts, or what is wrong with one of them, in words.
impl fmt::Display for SlotRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(Found::Superblock(_)) => f.write_str("whole"),
            Self::Found(Found::Version(version)) => write!(f, "of version {version}"),
            Self::Found(Found::Nothing(fault)) => fault.fmt(f),
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
    fn found(&self) -> [&Found; 2] {
        self.0.each_ref().map(|slot| match slot {
            SlotRead::Found(found) => found,
            SlotRead::Unreadable(_) => &Found::Nothing(SlotFault::Missing),
        })
    }

    /// The one that counts, and its slot.
    pub(crate) fn newest(&self) -> Option<(&Found, u64)> {
        let found = self.found();
        newest(found).map(|slot| (found[slot], slot as u64))
    }

    /// What each holds.
    pub(crate) fn slots(&self) -> &[SlotRead; 2] {
        &self.0
    }
}

/// What the file of a directory holds, as the device has it; `None` if there is none. What can't be read is no failure.
pub(crate) fn read(io: &dyn Io, directory: &Path) -> Result<Option<SlotsRead>, Error> {
    let path = directory.join(NAME);
    let file = match open_past_cache(io, &path) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        opened => opened?,
    };
    // Apart, so that one that can't be read keeps nobody from reading the other.
    let slot = |slot: u64| {
        let mut bytes = AlignedBuf::new(SLOT);
        match file.read_at(slot * SLOT as u64, &mut bytes) {
            Ok(got) => SlotRead::Found(Superblock::decode(&bytes[..got])),
            Err(error) => SlotRead::Unreadable(error),
        }
    };
    Ok(Some(SlotsRead([slot(0), slot(1)])))
}

/// The file, which may be there from an attempt before. It is not taken away: its name says that there was one.
fn new_file(io: &dyn Io, path: &Path) -> Result<Arc<dyn IoFile>, IoError> {
    match open_writable_past_cache(io, path, Create::New) {
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            open_writable_past_cache(io, path, Create::Never)
        }
        opened => opened,
    }
}

/// Whether a directory with these names has a store, or a copy of one, whose making never ended.
pub(crate) fn is_unfinished(names: &[OsString]) -> bool {
    let has = |name: &str| names.iter().any(|found| found == name);
    !has(NAME) && (has(UNFINISHED) || has(COPYING))
}

/// Notes durably, by one of the two names, that the making of a store has begun: nothing that is found in the directory is a store's
/// from then on.
pub(crate) fn begin(io: &dyn Io, directory: &Path, name: &str) -> Result<(), Error> {
    new_file(io, &directory.join(name))?;
    Ok(io.sync_dir(directory)?)
}

/// A new file with both slots, durable but for its name.
fn make(io: &dyn Io, path: &Path, superblock: &Superblock) -> Result<(), Error> {
    let file = new_file(io, path)?;
    let mut buf = AlignedBuf::new(2 * SLOT);
    let bytes = superblock.encode();
    buf[..SLOT].copy_from_slice(&bytes);
    buf[SLOT..].copy_from_slice(&bytes);
    file.write_at(0, &buf, WriteMode::Plain)?;
    Ok(file.sync_all()?)
}

/// Ends the making of a store that began with this name: its first superblock, durably.
pub(crate) fn create(io: &dyn Io, directory: &Path, name: &str, first: Superblock) -> Result<(), Error> {
    let path = directory.join(name);
    make(io, &path, &Superblock { number: MADE, ..first })?;
    io.rename(&path, &directory.join(NAME))?;
    Ok(io.sync_dir(directory)?)
}

impl Superblocks {
    /// To go on from what was read, in this slot.
    pub(crate) fn open(
        io: &dyn Io,
        directory: &Path,
        newest: Superblock,
        slot: u64,
        use_of: Use,
    ) -> Result<Self, Error> {
        let file = open_file(io, &directory.join(NAME), use_of)?;
        Ok(Self {
            file,
            newest,
            first: 1 - slot,
            buf: AlignedBuf::new(SLOT),
            #[cfg(test)]
            injected_fault: None,
        })
    }

    /// Makes both slots hold the newest, durably, if one of them does not.
    pub(crate) fn complete(&mut self, io: &dyn Io, directory: &Path, read: &SlotsRead) -> Result<(), Error> {
        let other = usize::from(self.first == 1);
        match &read.slots()[other] {
            SlotRead::Found(Found::Superblock(superblock)) if superblock.number == self.newest.number => {
                Ok(())
            }
            SlotRead::Found(_) => {
                self.buf.copy_from_slice(&self.newest.encode());
                self.write_slot(self.first)
            }
            SlotRead::Unreadable(_) => {
                let path = directory.join(REPLACEMENT);
                make(io, &path, &self.newest)?;
                io.rename(&path, &directory.join(NAME))?;
                io.sync_dir(directory)?;
                self.file = open_writable_past_cache(io, &directory.join(NAME), Create::Never)?;
                Ok(())
            }
        }
    }

    /// Makes what was read durable: after a kill the device's own cache may have it alone.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        Ok(self.file.sync_all()?)
    }

    /// What counts now.
    pub(crate) fn newest(&self) -> &Superblock {
        &self.newest
    }

    /// Says something new, durably, in one slot and then in the other.
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
        self.file.write_at(slot * SLOT as u64, &self.buf, WriteMode::Plain)?;
        if !injected!(self, NoSyncOfSuperblock) {
            self.file.sync_data()?;
        }
        Ok(())
    }
}
