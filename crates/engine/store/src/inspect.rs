//! Inspects a store as it is: pages, the free list, the superblocks. For tools that show them to people.
//!
//! Invariant: nothing is changed, and no fault hides what is intact beside it. A page that is damaged or unreadable is
//! shown as such.

use std::io::IoSliceMut;
use std::ops::Range;

use pagekeeper_io::{AlignedBuf, BatchRead, IoFile};

use pagekeeper_kernel::mutex::lock;

use crate::core::Core;
use crate::format::page::{self, PageFault, PageKind};
use crate::format::superblock::Found;
use crate::format::trunk;
use crate::snapshots::Live;
use crate::superblocks::{self, SlotRead, SlotsRead};
use crate::{Error, PageNo, Seq};

/// Bytes of one read; whole pages of any size.
pub(crate) const PIECE: usize = 256 << 10;

/// The state of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageState {
    /// A user's page.
    Data,
    /// Free.
    Free,
    /// Free, and a part of the free list.
    Trunk,
    /// In a run, and not written yet; or free, with its space given back by [`Store::compact`](crate::Store::compact).
    NeverWritten,
    /// Not the page that was written there, or unreadable: in words.
    Damaged(String),
}

/// A page and its header, as returned by [`Store::inspect`](crate::Store::inspect).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageInfo {
    /// Its number.
    pub page: PageNo,
    /// Its state.
    pub state: PageState,
    /// The commit that changed it last; for a damaged page, the seq in its header.
    pub seq: Seq,
    /// The CRC-32C in its header; for a damaged page, it need not match.
    pub crc: u32,
    /// Whether the data file has it. Otherwise it is in the journal, and shown as a reader sees it.
    pub applied: bool,
    /// Header (32 bytes) and payload; for a damaged page, as they are in the data file.
    pub bytes: Box<[u8]>,
}

/// One part of the free list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeTrunk {
    /// Its page.
    pub page: PageNo,
    /// The number of pages that it lists, without itself.
    pub names: u64,
}

/// The free list, as returned by [`Store::free_list`](crate::Store::free_list).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FreeList {
    /// Its trunks, in the order of the list.
    pub trunks: Vec<FreeTrunk>,
    /// Why it could not be followed further, if so.
    pub fault: Option<String>,
}

impl FreeList {
    /// Returns the number of pages in it, including its trunks.
    pub fn pages(&self) -> u64 {
        self.trunks.iter().map(|trunk| trunk.names + 1).sum()
    }
}

/// An intact superblock, as returned by [`Store::superblocks`](crate::Store::superblocks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SuperblockInfo {
    /// The number of its write; of two superblocks, the one with the larger number is valid.
    pub number: u64,
    /// The id of the store.
    pub store: u64,
    /// The last commit that the data file has.
    pub checkpoint_seq: Seq,
    /// The LSN where later commits begin in the journal.
    pub checkpoint_lsn: u64,
}

/// The result of reading pages of the data file.
pub(crate) struct InFile {
    /// For each page, whether the index had a version of it.
    pub(crate) newer: Vec<bool>,
    /// For each piece, how many bytes were read.
    pub(crate) got: Vec<Result<usize, pagekeeper_io::Error>>,
}

impl Core {
    pub(crate) fn inspect(&self, pages: Range<PageNo>) -> Result<Vec<PageInfo>, Error> {
        let live = self.snapshots.begin();
        let found = self.inspect_at(pages, &live);
        self.snapshots.end(&live);
        found
    }

    fn inspect_at(&self, pages: Range<PageNo>, live: &Live) -> Result<Vec<PageInfo>, Error> {
        if pages.end > live.meta.pages {
            return Err(Error::OutOfRange { page: pages.end - 1, pages: live.meta.pages });
        }
        let file = self.open_data()?;
        // Pages behind the end of the file were never written: zeros.
        let mut buf = AlignedBuf::new(pages.clone().count() * self.config.page_size);
        let InFile { newer, got } = self.read_wide(&*file, pages.clone(), &mut buf);
        let mut brought_in = self.bring_in(pages.clone(), live.seq);
        let mut found = Vec::with_capacity(newer.len());
        for ((page, newer), (at, bytes)) in
            pages.zip(newer).zip((0..).step_by(self.config.page_size).zip(buf.chunks(self.config.page_size)))
        {
            brought_in.reach(page);
            found.push(match &got[at / PIECE] {
                Ok(_) => self.page_info(page, newer, bytes, live)?,
                Err(error) => PageInfo::damaged(page, bytes, error.to_string()),
            });
        }
        Ok(found)
    }

    /// Reads pages of the data file into `buf`, which may be longer, in concurrent reads of [`PIECE`] bytes.
    pub(crate) fn read_wide(&self, file: &dyn IoFile, pages: Range<PageNo>, buf: &mut [u8]) -> InFile {
        let start = pages.start * self.config.page_size as u64;
        // Before the pages are read: a version that leaves the index later is newer than what is read.
        let newer = pages.map(|page| self.index.has(page)).collect();
        let mut reads: Vec<_> = (start..)
            .step_by(PIECE)
            .zip(buf.chunks_mut(PIECE))
            .map(|(offset, room)| BatchRead { file, offset, bufs: vec![IoSliceMut::new(room)] })
            .collect();
        let mut got = vec![Ok(0); reads.len()];
        self.config.io.read_batch(&mut reads, &mut |index, result| got[index] = result);
        InFile { newer, got }
    }

    /// Returns the page as the snapshot has it; `bytes` are its bytes in the data file.
    fn page_info(&self, page: PageNo, newer: bool, bytes: &[u8], live: &Live) -> Result<PageInfo, Error> {
        let read = page::check(bytes, page, self.config.store_id);
        let is_last = newer || self.map.check(page, &read).is_ok();
        match read {
            Ok(header) if header.seq <= live.seq && !newer && is_last => {
                return Ok(PageInfo::whole(page, header.kind, bytes, true));
            }
            Err(PageFault::NeverWritten) if !newer && is_last && self.is_blank(live, page) => {
                return Ok(PageInfo::never_written(page, bytes));
            }
            Ok(_) | Err(_) => {}
        }
        // Not applied yet, being written, or damaged.
        match self.page_read_again(live, page) {
            Ok(Some(read)) => Ok(PageInfo::whole(page, read.kind(), read.bytes(), !newer)),
            Ok(None) => Ok(PageInfo::never_written(page, bytes)),
            Err(Error::Damaged { reason, .. }) => Ok(PageInfo::damaged(page, bytes, reason)),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn free_list(&self) -> Result<FreeList, Error> {
        let live = self.snapshots.begin();
        let found = self.free_list_at(&live);
        self.snapshots.end(&live);
        found
    }

    fn free_list_at(&self, live: &Live) -> Result<FreeList, Error> {
        let mut found = FreeList::default();
        let mut next = live.meta.free_head;
        while let Some(page) = next {
            let read = match self.page_of(live, page) {
                Ok(read) => read.filter(|page| page.kind() == PageKind::Trunk),
                Err(Error::Damaged { reason, .. }) => {
                    found.fault = Some(format!("page {page}: {reason}"));
                    return Ok(found);
                }
                Err(error) => return Err(error),
            };
            let checked = match &read {
                Some(trunk) => trunk::check(trunk, live.meta.pages).map_err(|fault| fault.to_string()),
                None => Err("it is no part of the free list".to_owned()),
            };
            // Only a list with a cycle has more.
            let too_many = found.pages() >= live.meta.pages;
            let checked = checked.and(if too_many { Err("it comes again".to_owned()) } else { Ok(()) });
            if let Err(fault) = checked {
                found.fault = Some(format!("page {page}: {fault}"));
                return Ok(found);
            }
            let payload = read.as_deref().unwrap_or_default();
            found.trunks.push(FreeTrunk { page, names: trunk::count(payload) as u64 });
            next = trunk::next(payload);
        }
        Ok(found)
    }

    pub(crate) fn superblock_infos(&self) -> Result<[Option<SuperblockInfo>; 2], Error> {
        let info = |slot: &SlotRead| match slot {
            SlotRead::Found(Found::Superblock(superblock)) => Some(SuperblockInfo {
                number: superblock.number,
                store: superblock.store,
                checkpoint_seq: superblock.checkpoint_seq,
                checkpoint_lsn: superblock.checkpoint_lsn,
            }),
            SlotRead::Found(Found::Version(_) | Found::Nothing(_)) | SlotRead::Unreadable(_) => None,
        };
        Ok(self.superblock_slots()?.map_or([None, None], |read| read.slots().each_ref().map(info)))
    }

    /// Reads both slots from the device; `None` if the file is gone.
    pub(crate) fn superblock_slots(&self) -> Result<Option<SlotsRead>, Error> {
        // Not while one of them is being written.
        let _guard = lock(&self.superblocks);
        superblocks::read(&*self.config.io, &self.config.directory)
    }
}

impl PageInfo {
    fn new(page: PageNo, state: PageState, bytes: &[u8], applied: bool) -> Self {
        let crc = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let seq = bytes.get(16..24).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        Self { page, state, seq, crc, applied, bytes: bytes.into() }
    }

    fn whole(page: PageNo, kind: PageKind, bytes: &[u8], applied: bool) -> Self {
        let state = match kind {
            PageKind::Data => PageState::Data,
            PageKind::Free => PageState::Free,
            PageKind::Trunk => PageState::Trunk,
        };
        Self::new(page, state, bytes, applied)
    }

    fn never_written(page: PageNo, bytes: &[u8]) -> Self {
        Self::new(page, PageState::NeverWritten, bytes, true)
    }

    fn damaged(page: PageNo, bytes: &[u8], reason: String) -> Self {
        Self::new(page, PageState::Damaged(reason), bytes, true)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::PageState::{Data, Free, NeverWritten, Trunk};
    use super::*;
    use crate::{Durability, Store, data};

    #[test]
    fn pages_are_shown_as_they_are_in_journal_and_data_file() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let dir = temp.path().join("store");
        let options = || Store::options().without_threads().warm(false).journal_bytes(1 << 20);
        let store = options().open(&dir).unwrap();
        let mut txn = store.begin().unwrap();
        let pages: Vec<_> = (0..4).map(|_| txn.allocate().unwrap()).collect();
        txn.allocate_run(2).unwrap();
        txn.page_mut(0).unwrap()[0] = 7;
        txn.commit(Durability::Sync).unwrap();
        let mut txn = store.begin().unwrap();
        txn.free(pages[1]).unwrap();
        txn.free(pages[2]).unwrap();
        txn.commit(Durability::Sync).unwrap();
        let all = |store: &Store| {
            let found = store.inspect(0..6).unwrap();
            found.into_iter().map(|page| (page.state, page.seq, page.applied)).collect::<Vec<_>>()
        };
        let expected = |applied| {
            let states = [(Data, 1), (Trunk, 2), (Free, 2), (Data, 1)];
            let mut all: Vec<_> = states.map(|(state, seq)| (state, seq, applied)).into();
            all.extend([(NeverWritten, 0, true), (NeverWritten, 0, true)]);
            all
        };
        assert_eq!(all(&store), expected(false));
        store.sync().unwrap();
        assert_eq!(all(&store), expected(true));
        let free = store.free_list().unwrap();
        assert_eq!((free.pages(), &free.trunks[..]), (2, &[FreeTrunk { page: 1, names: 1 }][..]));
        let [first, second] = store.superblocks().unwrap();
        assert_eq!((first.unwrap().checkpoint_seq, second.unwrap().checkpoint_seq), (2, 2));
        assert!(matches!(store.inspect(5..7), Err(Error::OutOfRange { page: 6, pages: 6 })));
        assert!(store.inspect(3..3).unwrap().is_empty());
        store.close_and_sync().unwrap();

        let file = std::fs::File::options().write(true).open(dir.join(data::NAME)).unwrap();
        file.write_all_at(b"rot", 100).unwrap();
        file.write_all_at(b"rot", 4096 + 100).unwrap();
        file.sync_all().unwrap();
        let store = options().open(&dir).unwrap();
        let found = store.inspect(0..6).unwrap();
        assert_eq!(found[0].state, PageState::Damaged("its checksum does not hold".to_owned()));
        assert_eq!((&found[0].bytes[100..103], found[0].seq, found[0].bytes[32]), (&b"rot"[..], 1, 7));
        assert_eq!(found[3].state, Data);
        let free = store.free_list().unwrap();
        assert_eq!(
            (free.trunks.len(), free.fault.unwrap()),
            (0, "page 1: its checksum does not hold".to_owned())
        );
    }
}
