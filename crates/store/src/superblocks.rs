//! The file `superblock`: two slots, written alternately and synced each time, so that one is whole at any time.
//!
//! Invariant: the slot that counts is durable before the other one is written. Fails as the disk does; a failure of a write or
//! sync is final.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{AlignedBuf, Create, Io, IoFile, WriteMode, open_past_cache, open_writable_past_cache};

use crate::Error;
use crate::format::superblock::{Found, SLOT, Superblock, newest};
#[cfg(test)]
use crate::injected_fault::InjectedFault;

/// Its name.
pub(crate) const NAME: &str = "superblock";

/// The number of the last superblock that the making of a store writes.
pub(crate) const MADE: u64 = 2;

/// The file, open.
pub(crate) struct Superblocks {
    file: Arc<dyn IoFile>,
    newest: Superblock,
    /// Where the newest stands.
    slot: u64,
    buf: AlignedBuf,
    #[cfg(test)]
    pub(crate) injected_fault: Option<InjectedFault>,
}

/// What the file of a directory holds, as the device has it; `None` if there is none. With the slot's number.
pub(crate) fn read(io: &dyn Io, directory: &Path) -> Result<Option<(Found, u64)>, Error> {
    let path = directory.join(NAME);
    let file = match open_past_cache(io, &path) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        opened => opened?,
    };
    let mut bytes = AlignedBuf::new(2 * SLOT);
    let got = file.read_at(0, &mut bytes)?;
    let (found, slot) = newest(&bytes[..got]);
    Ok(Some((found, slot as u64)))
}

impl Superblocks {
    /// Makes the file with its first superblock, durably but for its name.
    pub(crate) fn create(io: &dyn Io, directory: &Path, first: Superblock) -> Result<Self, Error> {
        let path = directory.join(NAME);
        let file = open_writable_past_cache(io, &path, Create::New)?;
        file.set_len(2 * SLOT as u64)?;
        file.sync_all()?;
        let mut superblocks = Self::on(file, first.clone(), 1);
        // Both slots, so that one may rot from the start.
        superblocks.write(first.clone())?;
        superblocks.write(first)?;
        Ok(superblocks)
    }

    /// To go on from what was read.
    pub(crate) fn open(io: &dyn Io, directory: &Path, newest: Superblock, slot: u64) -> Result<Self, Error> {
        let file = open_writable_past_cache(io, &directory.join(NAME), Create::Never)?;
        Ok(Self::on(file, newest, slot))
    }

    fn on(file: Arc<dyn IoFile>, newest: Superblock, slot: u64) -> Self {
        Self {
            file,
            newest,
            slot,
            buf: AlignedBuf::new(SLOT),
            #[cfg(test)]
            injected_fault: None,
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

    /// Says something new, durably, in the slot that does not hold what counts now.
    pub(crate) fn write(&mut self, superblock: Superblock) -> Result<(), Error> {
        debug_assert!(
            self.newest.checkpoint_seq <= superblock.checkpoint_seq
                && self.newest.checkpoint_lsn <= superblock.checkpoint_lsn,
            "a superblock that goes back"
        );
        let superblock = Superblock { number: self.newest.number + 1, ..superblock };
        self.buf.copy_from_slice(&superblock.encode());
        let slot = if injected!(self, OneSuperblockSlot) { self.slot } else { 1 - self.slot };
        self.file.write_at(slot * SLOT as u64, &self.buf, WriteMode::Plain)?;
        if !injected!(self, NoSyncOfSuperblock) {
            self.file.sync_data()?;
        }
        (self.newest, self.slot) = (superblock, slot);
        Ok(())
    }
}
