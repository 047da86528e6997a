//! A file as it is now, as it was synced, and each change between the two.
//!
//! Invariants: see [`medium`](crate::medium). A block that no change names is as it was synced.

use std::collections::HashMap;
use std::sync::Arc;

use pagekeeper_testing::Rng;

pub(crate) const BLOCK: usize = 4096;
/// The smallest unit that a power cut leaves whole by default.
pub(crate) const SECTOR: usize = 512;

type Block = [u8; BLOCK];

/// The effect of a power cut on unsynced data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CutOutcome {
    Nothing,
    Everything,
    /// The first changes of each file, with the last one of them torn.
    First,
    /// Each change with this probability, in tenths.
    Each(u64),
}

impl CutOutcome {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        match rng.of(0..6) {
            0 => Self::Nothing,
            1 => Self::Everything,
            2 => Self::First,
            _ => Self::Each([1, 5, 9][rng.index(3)]),
        }
    }
}

/// A file's bytes. A missing block is zeros.
#[derive(Debug, Clone, Default)]
pub(crate) struct Image {
    pub(crate) blocks: HashMap<u64, Arc<Block>>,
    pub(crate) size: u64,
}

impl Image {
    pub(crate) fn block(&self, number: u64) -> Block {
        self.blocks.get(&number).map_or([0; BLOCK], |block| **block)
    }

    pub(crate) fn read(&self, offset: u64, size: usize) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(size as u64));
        let mut bytes = Vec::with_capacity(size);
        let mut at = offset;
        while at < end {
            let within = usize::try_from(at % BLOCK as u64).unwrap();
            let count = (BLOCK - within).min(usize::try_from(end - at).unwrap());
            bytes.extend_from_slice(&self.block(at / BLOCK as u64)[within..within + count]);
            at += count as u64;
        }
        bytes
    }

    fn resize(&mut self, size: u64) {
        if size < self.size {
            self.blocks.retain(|&number, _| number * (BLOCK as u64) < size);
            let within = usize::try_from(size % BLOCK as u64).unwrap();
            if let Some(block) = self.blocks.get_mut(&(size / BLOCK as u64)) {
                Arc::make_mut(block)[within..].fill(0);
            }
        }
        self.size = size;
    }

    fn make(&mut self, change: &Change) {
        match change {
            Change::Size(size) => self.resize(*size),
            Change::Hole(number) => {
                self.blocks.remove(number);
            }
            Change::Block(number, block) => {
                self.blocks.insert(*number, Arc::clone(block));
            }
        }
    }

    /// Makes a change except for some of its sectors.
    fn make_torn(&mut self, change: &Change, sector: usize, rng: &mut Rng) {
        if let Change::Block(number, block) = change {
            let mut torn = self.block(*number);
            for at in (0..BLOCK).step_by(sector).filter(|_| rng.one_in(2)) {
                torn[at..at + sector].copy_from_slice(&block[at..at + sector]);
            }
            self.blocks.insert(*number, Arc::new(torn));
        } else if rng.one_in(2) {
            self.make(change);
        }
    }
}

/// A change of a file.
#[derive(Debug)]
pub(crate) enum Change {
    /// A block's new content.
    Block(u64, Arc<Block>),
    Hole(u64),
    Size(u64),
}

#[derive(Debug, Default)]
pub(crate) struct File {
    pub(crate) now: Image,
    pub(crate) synced: Image,
    pub(crate) pending: Vec<Change>,
}

impl File {
    pub(crate) fn change(&mut self, change: Change) {
        self.now.make(&change);
        self.pending.push(change);
    }

    pub(crate) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            self.synced.make(&change);
        }
    }

    pub(crate) fn cut(&mut self, cut: CutOutcome, sector: usize, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        match cut {
            CutOutcome::Nothing => {}
            CutOutcome::Everything => pending.iter().for_each(|change| self.synced.make(change)),
            CutOutcome::First => {
                let first = rng.index(pending.len() + 1);
                pending[..first].iter().for_each(|change| self.synced.make(change));
                if let Some(next) = pending.get(first) {
                    self.synced.make_torn(next, sector, rng);
                }
            }
            CutOutcome::Each(tenths) => {
                let by_sector = rng.one_in(2);
                for change in pending.iter().filter(|_| rng.of(0..10) < tenths).collect::<Vec<_>>() {
                    if by_sector {
                        self.synced.make_torn(change, sector, rng);
                    } else {
                        self.synced.make(change);
                    }
                }
            }
        }
        let size = self.synced.size;
        self.synced.blocks.retain(|&number, _| number * (BLOCK as u64) < size);
        self.now = self.synced.clone();
    }
}
