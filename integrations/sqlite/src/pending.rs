//! The uncommitted writes of a transaction: blocks in memory and, past a limit, in the spill file.
//!
//! Invariants: the database file is not touched before the commit. A block is in memory or in the
//! spill file; if it is in both, the one in memory is newer. The spill file's data is valid only
//! with a record in the log that names its index, written after both are durable.
//!
//! After an error of the spill file the transaction must be rolled back, which drops all of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;

use rustix::fs::{Mode, OFlags, openat};

use crate::places::SPILL_NAME;
use crate::record::{BLOCK, BLOCK_BYTES, Block};

/// Blocks kept in memory: 2 MiB, well below the longest record.
pub(crate) const MEMORY_BLOCKS_MAX: usize = 512;
/// Size of an index entry: block and CRC-32C of its content. Entry `n` describes the block at
/// `n * BLOCK`.
const ENTRY_BYTES: usize = 12;

/// Changes that wait for their commit.
#[derive(Default)]
pub(crate) struct Pending {
    memory: BTreeMap<u64, Box<Block>>,
    /// The spilled blocks, each with its slot in the spill file.
    spilled: BTreeMap<u64, u64>,
    spill: Option<File>,
    slots: u64,
}

impl Pending {
    /// Whether the commit needs the spill file.
    pub(crate) fn is_spilled(&self) -> bool {
        !self.spilled.is_empty()
    }

    /// Returns the blocks in memory, in order: all of them if nothing was spilled.
    pub(crate) fn in_memory(&self) -> impl Iterator<Item = (u64, &Block)> {
        self.memory.iter().map(|(&number, block)| (number, &**block))
    }

    /// Returns the numbers of all blocks, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.memory.keys().chain(self.spilled.keys()).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns a block as the transaction wrote it; `None` for other blocks.
    pub(crate) fn get(&self, number: u64) -> io::Result<Option<Box<Block>>> {
        if let Some(block) = self.memory.get(&number) {
            return Ok(Some(block.clone()));
        }
        match (self.spilled.get(&number), &self.spill) {
            (Some(slot), Some(file)) => {
                let mut block = Box::new([0; BLOCK]);
                file.read_exact_at(&mut block[..], slot * BLOCK_BYTES)?;
                Ok(Some(block))
            }
            _ => Ok(None),
        }
    }

    /// Replaces a block. Past the limit all blocks in memory move to the spill file in the log's
    /// directory.
    pub(crate) fn put(&mut self, number: u64, block: Box<Block>, directory: &File) -> io::Result<()> {
        self.memory.insert(number, block);
        if self.memory.len() > MEMORY_BLOCKS_MAX { self.spill(directory) } else { Ok(()) }
    }

    fn spill(&mut self, directory: &File) -> io::Result<()> {
        let file = match &mut self.spill {
            Some(file) => file,
            none => none.insert(open_spill(directory, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?),
        };
        let mut run = Vec::with_capacity(self.memory.len() * BLOCK);
        let first = self.slots;
        for (&number, block) in &self.memory {
            if let Some(&slot) = self.spilled.get(&number) {
                file.write_all_at(&block[..], slot * BLOCK_BYTES)?;
            } else {
                run.extend_from_slice(&block[..]);
                self.spilled.insert(number, self.slots);
                self.slots += 1;
            }
        }
        file.write_all_at(&run, first * BLOCK_BYTES)?;
        self.memory.clear();
        Ok(())
    }

    /// Drops the blocks past a length of the file, and zeros the part of the last block past it.
    pub(crate) fn truncate(&mut self, size: u64) -> io::Result<()> {
        let end = size.div_ceil(BLOCK_BYTES);
        self.memory.split_off(&end);
        self.spilled.split_off(&end);
        let within = usize::try_from(size % BLOCK_BYTES).unwrap_or(0);
        if within > 0
            && let Some(mut last) = self.get(end - 1)?
        {
            last[within..].fill(0);
            self.memory.insert(end - 1, last);
        }
        Ok(())
    }

    /// Closes the spill file of a transaction that has all of its blocks in memory.
    pub(crate) fn close_spill(&mut self) {
        debug_assert!(!self.is_spilled());
        self.spill = None;
        self.slots = 0;
    }

    /// Makes all blocks and their index durable in the spill file. Returns their number, and the
    /// index's checksum.
    pub(crate) fn seal(&mut self, directory: &File) -> io::Result<(u64, u32)> {
        self.spill(directory)?;
        let mut by_slot: Vec<(u64, u64)> =
            self.spilled.iter().map(|(&number, &slot)| (slot, number)).collect();
        by_slot.sort_unstable();
        let file = self.spill.as_ref().expect("spilled above");
        let mut index = Vec::new();
        let mut block = [0; BLOCK];
        let mut slots = 0;
        for (slot, number) in by_slot {
            file.read_exact_at(&mut block, slot * BLOCK_BYTES)?;
            // Slots of blocks that were truncated away have no block.
            while slots < slot {
                index.extend_from_slice(&entry(NO_BLOCK, 0));
                slots += 1;
            }
            index.extend_from_slice(&entry(number, crc32c::crc32c(&block)));
            slots += 1;
        }
        file.write_all_at(&index, slots * BLOCK_BYTES)?;
        file.set_len(slots * BLOCK_BYTES + index.len() as u64)?;
        file.sync_all()?;
        Ok((slots, crc32c::crc32c(&index)))
    }
}

/// Opens the spill file in the log's directory, which may have been moved. Follows no link.
fn open_spill(directory: &File, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, SPILL_NAME, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Marks an unused slot in the index.
const NO_BLOCK: u64 = u64::MAX;

fn entry(number: u64, checksum: u32) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..8].copy_from_slice(&number.to_le_bytes());
    entry[8..].copy_from_slice(&checksum.to_le_bytes());
    entry
}

/// Passes each block of a sealed spill file to `take`. Returns `Ok(false)`, possibly after some
/// blocks, if it is not the file that was sealed with this index.
pub(crate) fn unseal<E: From<io::Error>>(
    directory: &File,
    slots: u64,
    index: u32,
    mut take: impl FnMut(u64, &Block) -> Result<(), E>,
) -> Result<bool, E> {
    let mut file = open_spill(directory, OFlags::RDONLY)?;
    let mut entries = Vec::new();
    let has_all = slots.checked_mul(BLOCK_BYTES + ENTRY_BYTES as u64) == Some(file.metadata()?.len());
    if !has_all {
        return Ok(false);
    }
    {
        file.seek(io::SeekFrom::Start(slots * BLOCK_BYTES))?;
        file.read_to_end(&mut entries)?;
        file.seek(io::SeekFrom::Start(0))?;
    }
    if crc32c::crc32c(&entries) != index {
        return Ok(false);
    }
    let mut reader = io::BufReader::with_capacity(1 << 20, file);
    let mut block = [0; BLOCK];
    for entry in entries.as_chunks::<ENTRY_BYTES>().0 {
        reader.read_exact(&mut block)?;
        let number = u64::from_le_bytes(entry[..8].try_into().expect("eight bytes"));
        if number == NO_BLOCK {
            continue;
        }
        if crc32c::crc32c(&block).to_le_bytes() != entry[8..] {
            return Ok(false);
        }
        take(number, &block)?;
    }
    Ok(true)
}
