//! Inspects a store as it is: pages, the free list, the superblocks. For tools that show them to
//! people.
//!
//! Invariant: nothing is changed, and no fault hides what is intact beside it. A page that is
//! damaged or unreadable is shown as such.

use std::ops::Range;

use pagekeeper_io::AlignedBuf;
use pagekeeper_kernel::mutex::lock;

use crate::bulk_read::{self, PageAt};
use crate::core::Core;
use crate::format::page::PageKind;
use crate::format::superblock::SlotContent;
use crate::format::trunk;
use crate::free_list;
use crate::snapshots::LiveSnapshot;
use crate::superblocks::{self, SlotRead, SlotsRead};
use crate::{Error, PageNo, Seq};
use pagekeeper_wal::Lsn;

/// The state of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageState {
    /// A user's page.
    Data,
    /// Free.
    Free,
    /// Free, and a part of the free list.
    Trunk,
    /// In a run, and not written yet; or free, with its space given back by
    /// [`Store::compact`](crate::Store::compact).
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
    /// The reason why it could not be followed further, if so.
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
    pub checkpoint_lsn: Lsn,
}

impl Core {
    pub(crate) fn inspect(&self, pages: Range<PageNo>) -> Result<Vec<PageInfo>, Error> {
        let live = self.snapshots.begin();
        let found = self.inspect_at(pages, &live);
        self.snapshots.end(&live);
        found
    }

    fn inspect_at(&self, pages: Range<PageNo>, live: &LiveSnapshot) -> Result<Vec<PageInfo>, Error> {
        if pages.end.get() > live.meta.pages {
            return Err(Error::OutOfRange { page: PageNo::new(pages.end.get() - 1), pages: live.meta.pages });
        }
        let file = self.open_data()?;
        let first = pages.start;
        let mut buf = AlignedBuf::new(PageNo::each(pages).count() * self.config.page_size);
        let mut pieces = bulk_read::pieces(first, self.config.page_size, &mut buf);
        let read = self.read_pieces(&*file, &mut pieces);
        let mut infos = Vec::new();
        self.each_page(live, &mut pieces, read, |page, bytes, found| {
            infos.push(match found {
                Ok(PageAt::InFile(header)) => PageInfo::whole(page, header.kind, bytes, true),
                Ok(PageAt::Elsewhere { page: read, applied }) => {
                    PageInfo::whole(page, read.kind(), read.bytes(), applied)
                }
                Ok(PageAt::NeverWritten) => PageInfo::new(page, PageState::NeverWritten, bytes, true),
                Ok(PageAt::Unreadable(error)) => PageInfo::damaged(page, bytes, error.to_string()),
                Err(Error::Damaged { reason, .. }) => PageInfo::damaged(page, bytes, reason),
                Err(error) => return Err(error),
            });
            Ok(())
        })?;
        Ok(infos)
    }

    pub(crate) fn free_list(&self) -> Result<FreeList, Error> {
        let live = self.snapshots.begin();
        let mut found = FreeList::default();
        let see = |page, trunk: &[u8]| {
            // Only a list with a cycle has more.
            if found.pages() >= live.meta.pages {
                return Err("it comes again");
            }
            found.trunks.push(FreeTrunk { page, names: trunk::count(trunk) as u64 });
            Ok(())
        };
        let fault = free_list::walk(&live.meta, |page| self.page_of(&live, page), see);
        self.snapshots.end(&live);
        found.fault = fault?.map(|fault| format!("page {}: {}", fault.page, fault.reason));
        Ok(found)
    }

    pub(crate) fn superblock_infos(&self) -> Result<[Option<SuperblockInfo>; 2], Error> {
        let info = |slot: &SlotRead| match slot {
            SlotRead::Found(SlotContent::Superblock(superblock)) => Some(SuperblockInfo {
                number: superblock.number,
                store: superblock.store,
                checkpoint_seq: superblock.checkpoint_seq,
                checkpoint_lsn: superblock.checkpoint_lsn,
            }),
            SlotRead::Found(SlotContent::Version(_) | SlotContent::Nothing(_)) | SlotRead::Unreadable(_) => {
                None
            }
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
        Self { page, state, seq: Seq::new(seq), crc, applied, bytes: bytes.into() }
    }

    fn whole(page: PageNo, kind: PageKind, bytes: &[u8], applied: bool) -> Self {
        let state = match kind {
            PageKind::Data => PageState::Data,
            PageKind::Free => PageState::Free,
            PageKind::Trunk => PageState::Trunk,
        };
        Self::new(page, state, bytes, applied)
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

    fn range(start: u64, end: u64) -> Range<PageNo> {
        PageNo::new(start)..PageNo::new(end)
    }

    #[test]
    fn pages_are_shown_as_they_are_in_journal_and_data_file() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let dir = temp.path().join("store");
        let options = || Store::options().without_threads().warm(false).journal_bytes(1 << 20);
        let store = options().open(&dir).unwrap();
        let mut txn = store.begin_write().unwrap();
        let pages: Vec<_> = (0..4).map(|_| txn.allocate().unwrap()).collect();
        txn.allocate_run(2).unwrap();
        txn.page_mut(pages[0]).unwrap()[0] = 7;
        txn.commit(Durability::Sync).unwrap();
        let mut txn = store.begin_write().unwrap();
        txn.free(pages[1]).unwrap();
        txn.free(pages[2]).unwrap();
        txn.commit(Durability::Sync).unwrap();
        let all = |store: &Store| {
            let found = store.inspect(range(0, 6)).unwrap();
            found.into_iter().map(|page| (page.state, page.seq.get(), page.applied)).collect::<Vec<_>>()
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
        assert_eq!((free.pages(), &free.trunks[..]), (2, &[FreeTrunk { page: pages[1], names: 1 }][..]));
        let [first, second] = store.superblocks().unwrap();
        assert_eq!([first, second].map(|slot| slot.unwrap().checkpoint_seq), [Seq::new(2); 2]);
        let out_of_range = store.inspect(range(5, 7));
        assert!(matches!(out_of_range, Err(Error::OutOfRange { page, pages: 6 }) if page.get() == 6));
        assert!(store.inspect(range(3, 3)).unwrap().is_empty());
        store.close_and_sync().unwrap();

        let file = std::fs::File::options().write(true).open(dir.join(data::DATA_NAME)).unwrap();
        file.write_all_at(b"rot", 100).unwrap();
        file.write_all_at(b"rot", 4096 + 100).unwrap();
        file.sync_all().unwrap();
        let store = options().open(&dir).unwrap();
        let found = store.inspect(range(0, 6)).unwrap();
        assert_eq!(found[0].state, PageState::Damaged("its checksum does not hold".to_owned()));
        assert_eq!((&found[0].bytes[100..103], found[0].seq.get(), found[0].bytes[32]), (&b"rot"[..], 1, 7));
        assert_eq!(found[3].state, Data);
        let free = store.free_list().unwrap();
        assert_eq!(
            (free.trunks.len(), free.fault.unwrap()),
            (0, "page 1: its checksum does not hold".to_owned())
        );
    }
}
