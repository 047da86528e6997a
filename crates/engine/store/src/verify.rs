//! Verifies everything: each page's checksum, the free list, the superblocks.
//!
//! Invariant: one snapshot is verified, and nothing is changed. Faults are counted and described; only an error that
//! prevents reading is returned.

use std::fmt;
use std::sync::atomic::Ordering;

use pagekeeper_io::AlignedBuf;
use pagekeeper_text::escaped;

use crate::core::Core;
use crate::format::page::{self, HEADER, PageFault, PageKind};
use crate::format::superblock::Found;
use crate::format::trunk;
use crate::inspect::{InFile, PIECE};
use crate::page::Page;
use crate::snapshots::Live;
use crate::superblocks::SlotRead;
use crate::{Error, PageNo};

/// Reads in flight.
const PIECES: usize = 64;
/// Number of attempts to verify, since a snapshot may be ended.
const TRIES: usize = 3;
/// Maximum number of described faults.
const MAX_NAMED: usize = 100;

/// The result of [`Store::verify`](crate::Store::verify).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Verification {
    /// Pages that hold data.
    pub data_pages: u64,
    /// Pages that are free.
    pub free_pages: u64,
    /// Pages of runs that were never written.
    pub never_written: u64,
    /// Number of intact superblocks, of two.
    pub superblocks: u64,
    /// Number of all faults.
    pub faults: u64,
    /// The first hundred faults, in words.
    pub named: Vec<String>,
}

impl Verification {
    /// Whether there are no faults.
    pub fn is_sound(&self) -> bool {
        self.faults == 0
    }

    fn fault(&mut self, fault: String) {
        self.faults += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(fault);
        }
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data_pages, free_pages, never_written, superblocks, faults, named } = self;
        write!(
            f,
            "{data_pages} data pages, {free_pages} free, {never_written} never written, {superblocks} of 2 superblocks whole: "
        )?;
        match faults {
            0 => write!(f, "sound")?,
            1 => write!(f, "1 fault")?,
            _ => write!(f, "{faults} faults")?,
        }
        named.iter().try_for_each(|fault| write!(f, "\n{fault}"))
    }
}

impl Core {
    pub(crate) fn verify(&self) -> Result<Verification, Error> {
        let mut tries = 0;
        loop {
            let live = self.snapshots.begin();
            let found = self.verify_at(&live);
            self.snapshots.end(&live);
            tries += 1;
            // Writers ended the snapshot: the findings may not be as of one commit.
            let is_old = live.is_ended() || matches!(found, Err(Error::SnapshotTooOld));
            if !is_old {
                return found;
            }
            if tries == TRIES {
                return Err(Error::SnapshotTooOld);
            }
        }
    }

    fn verify_at(&self, live: &Live) -> Result<Verification, Error> {
        let meta = &live.meta;
        let mut found = Verification::default();
        self.verify_superblocks(&mut found)?;
        for (slot, fault) in self.journal.control_faults()? {
            found.fault(format!("the journal's control file, slot {slot}: {fault}"));
        }
        for (path, offset) in self.journal.damaged_paddings() {
            let path = escaped(&path);
            found.fault(format!(
                "{path}: the padding at byte {offset} is damaged: it holds nothing, and no commit is lost"
            ));
        }
        self.map.faults(meta.pages).into_iter().for_each(|fault| found.fault(fault));
        let mut free = Vec::new();
        let listed = self.walk_free_list(live, &mut found)?;
        self.verify_pages(live, &listed, &mut found, &mut free)?;
        free.sort_unstable();
        if listed != free {
            let lost = free.iter().filter(|page| listed.binary_search(page).is_err());
            let used = listed.iter().filter(|page| free.binary_search(page).is_err());
            lost.for_each(|page| found.fault(format!("page {page}: free, but not in the free list")));
            used.for_each(|page| found.fault(format!("page {page}: in the free list, but not free")));
        }
        if meta.free_pages != listed.len() as u64 {
            let recorded = meta.free_pages;
            found.fault(format!("{} pages are in the free list, and {recorded} should be", listed.len()));
        }
        Ok(found)
    }

    fn verify_superblocks(&self, found: &mut Verification) -> Result<(), Error> {
        let Some(read) = self.superblock_slots()? else {
            found.fault("superblock: gone".to_owned());
            return Ok(());
        };
        for (number, slot) in read.slots().iter().enumerate() {
            if matches!(slot, SlotRead::Found(Found::Superblock(_))) {
                found.superblocks += 1;
            } else {
                found.fault(format!("superblock, slot {number}: {slot}"));
            }
        }
        Ok(())
    }

    /// Reads the whole data file, in wide reads past the cache. Pages that the index has are read from there.
    fn verify_pages(
        &self,
        live: &Live,
        listed: &[PageNo],
        found: &mut Verification,
        free: &mut Vec<PageNo>,
    ) -> Result<(), Error> {
        let pages = live.meta.pages;
        let file = self.open_data()?;
        let whole = usize::try_from(pages.saturating_mul(self.config.page_size as u64)).unwrap_or(usize::MAX);
        let mut buf = AlignedBuf::new(whole.clamp(1, PIECE * PIECES).next_multiple_of(PIECE));
        let at_once = (buf.len() / self.config.page_size) as u64;
        for first in (0..pages).step_by(buf.len() / self.config.page_size) {
            let end = pages.min(first + at_once);
            let InFile { newer, got } = self.read_wide(&*file, first..end, &mut buf);
            let mut brought_in = self.bring_in(first..end, live.seq);
            let places = (0..).step_by(self.config.page_size);
            for ((page, newer), at) in (first..end).zip(newer).zip(places) {
                brought_in.reach(page);
                let at: usize = at;
                let (piece, within) = (at / PIECE, at % PIECE);
                let bytes = &buf[at..at + self.config.page_size];
                let read = match &got[piece] {
                    Ok(got) if within + self.config.page_size <= *got => {
                        page::check(bytes, page, self.config.store_id)
                    }
                    Ok(_) => Err(PageFault::NeverWritten),
                    Err(error) => {
                        found.fault(format!("page {page}: {error}"));
                        continue;
                    }
                };
                let is_last = newer || self.map.check(page, &read).is_ok();
                let newest = live.seq.min(self.checkpoints.newest_in_file.load(Ordering::Acquire));
                let kind = match read {
                    Ok(header) if header.seq <= newest && !newer && is_last => Some(header.kind),
                    Err(PageFault::NeverWritten) if !newer && is_last && self.is_blank(live, page) => None,
                    // Not applied yet, being written, or damaged. A cached copy does not count.
                    Ok(_) | Err(_) => match self.page_read_again(live, page) {
                        Ok(page) => page.map(|page| page.kind()),
                        Err(Error::SnapshotTooOld) => return Err(Error::SnapshotTooOld),
                        Err(error) => {
                            found.fault(error.to_string());
                            continue;
                        }
                    },
                };
                match kind {
                    Some(PageKind::Data) => found.data_pages += 1,
                    Some(PageKind::Free | PageKind::Trunk) => {
                        found.free_pages += 1;
                        free.push(page);
                    }
                    // Its space was given back.
                    None if listed.binary_search(&page).is_ok() => {
                        found.free_pages += 1;
                        free.push(page);
                    }
                    None => found.never_written += 1,
                }
            }
        }
        Ok(())
    }

    /// Returns the page as a snapshot sees it, reading the data file again if necessary.
    pub(crate) fn page_read_again(&self, live: &Live, page: PageNo) -> Result<Option<Page>, Error> {
        self.cached.discard(page);
        self.page_of(live, page)
    }

    /// Returns the pages of the free list, including trunks, sorted.
    fn walk_free_list(&self, live: &Live, found: &mut Verification) -> Result<Vec<PageNo>, Error> {
        let mut listed = std::collections::BTreeSet::new();
        let mut next = live.meta.free_head;
        while let Some(head) = next {
            if !listed.insert(head) {
                found.fault(format!("page {head}: twice in the free list"));
                break;
            }
            let read = match self.page_of(live, head) {
                Ok(read) => read.filter(|page| page.kind() == PageKind::Trunk),
                Err(Error::Damaged { .. }) => None,
                Err(error) => return Err(error),
            };
            let Some(read) = read else {
                found.fault(format!("page {head}: in the free list as a trunk, and is none"));
                break;
            };
            let payload = &read.bytes()[HEADER..];
            if let Err(fault) = trunk::check(payload, live.meta.pages) {
                found.fault(format!("page {head}: {fault}"));
                break;
            }
            for page in trunk::iter(payload) {
                if !listed.insert(page) {
                    found.fault(format!("page {page}: twice in the free list"));
                }
            }
            next = trunk::next(payload);
        }
        Ok(listed.into_iter().collect())
    }
}
