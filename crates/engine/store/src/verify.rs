//! Verifies everything: each page's checksum, the free list, the superblocks.
//!
//! Invariant: one snapshot is verified, and nothing is changed. Faults are counted and described;
//! only an error that prevents reading is returned.

use std::collections::BTreeSet;
use std::fmt;

use pagekeeper_io::AlignedBuf;
use pagekeeper_text::escaped;

use crate::bulk_read::{self, PIECE_BYTES, PageAt};
use crate::core::Core;
use crate::format::page::PageKind;
use crate::format::superblock::SlotContent;
use crate::format::trunk;
use crate::free_list::{self, FreeListFault};
use crate::snapshots::LiveSnapshot;
use crate::superblocks::SlotRead;
use crate::{Error, PageNo};

/// Reads in flight.
const READS_AT_ONCE: usize = 64;
/// Number of attempts to verify, since a snapshot may be ended.
const VERIFY_ATTEMPTS: usize = 3;
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

    fn note(&mut self, fault: String) {
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
            // Writers ended the snapshot, so the findings may mix several commits.
            let is_old = live.is_ended() || matches!(found, Err(Error::SnapshotTooOld));
            if !is_old {
                return found;
            }
            if tries == VERIFY_ATTEMPTS {
                return Err(Error::SnapshotTooOld);
            }
        }
    }

    fn verify_at(&self, live: &LiveSnapshot) -> Result<Verification, Error> {
        let meta = &live.meta;
        let mut found = Verification::default();
        self.verify_superblocks(&mut found)?;
        for (slot, fault) in self.journal.control_faults()? {
            found.note(format!("the journal's control file, slot {slot}: {fault}"));
        }
        for (path, offset) in self.journal.damaged_paddings() {
            let path = escaped(&path);
            found.note(format!(
                "{path}: the padding at byte {offset} is damaged: it holds nothing, and no commit is lost"
            ));
        }
        self.map.faults(meta.pages).into_iter().for_each(|fault| found.note(fault));
        let mut free = Vec::new();
        let listed = self.listed_pages(live, &mut found)?;
        self.verify_pages(live, &listed, &mut found, &mut free)?;
        free.sort_unstable();
        if listed != free {
            let lost = free.iter().filter(|page| listed.binary_search(page).is_err());
            let used = listed.iter().filter(|page| free.binary_search(page).is_err());
            lost.for_each(|page| found.note(format!("page {page}: free, but not in the free list")));
            used.for_each(|page| found.note(format!("page {page}: in the free list, but not free")));
        }
        if meta.free_pages != listed.len() as u64 {
            let recorded = meta.free_pages;
            found.note(format!("{} pages are in the free list, and {recorded} should be", listed.len()));
        }
        Ok(found)
    }

    fn verify_superblocks(&self, found: &mut Verification) -> Result<(), Error> {
        let Some(read) = self.superblock_slots()? else {
            found.note("superblock: gone".to_owned());
            return Ok(());
        };
        for (number, slot) in read.slots().iter().enumerate() {
            if matches!(slot, SlotRead::Found(SlotContent::Superblock(_))) {
                found.superblocks += 1;
            } else {
                found.note(format!("superblock, slot {number}: {slot}"));
            }
        }
        Ok(())
    }

    /// Reads the whole data file, in wide reads past the cache. Pages that the index has are read
    /// from there.
    fn verify_pages(
        &self,
        live: &LiveSnapshot,
        listed: &[PageNo],
        found: &mut Verification,
        free: &mut Vec<PageNo>,
    ) -> Result<(), Error> {
        let pages = live.meta.pages;
        let file = self.open_data()?;
        let whole = usize::try_from(pages.saturating_mul(self.config.page_size as u64)).unwrap_or(usize::MAX);
        let mut buf =
            AlignedBuf::new(whole.clamp(1, PIECE_BYTES * READS_AT_ONCE).next_multiple_of(PIECE_BYTES));
        let at_once = buf.len() / self.config.page_size;
        for first in (0..pages).step_by(at_once) {
            let count = usize::try_from(pages - first).unwrap_or(at_once).min(at_once);
            let bytes = &mut buf[..count * self.config.page_size];
            let mut pieces = bulk_read::pieces(PageNo::new(first), self.config.page_size, bytes);
            let read = self.read_pieces(&*file, &mut pieces);
            self.each_page(live, &mut pieces, read, |page, _, read| {
                let kind = match read {
                    Ok(PageAt::InFile(header)) => Some(header.kind),
                    Ok(PageAt::Elsewhere { page, .. }) => Some(page.kind()),
                    Ok(PageAt::NeverWritten) => None,
                    Ok(PageAt::Unreadable(error)) => {
                        return {
                            found.note(format!("page {page}: {error}"));
                            Ok(())
                        };
                    }
                    Err(Error::SnapshotTooOld) => return Err(Error::SnapshotTooOld),
                    Err(error) => {
                        return {
                            found.note(error.to_string());
                            Ok(())
                        };
                    }
                };
                match kind {
                    Some(PageKind::Data) => found.data_pages += 1,
                    // The page's space was given back.
                    None if listed.binary_search(&page).is_err() => found.never_written += 1,
                    Some(PageKind::Free | PageKind::Trunk) | None => {
                        found.free_pages += 1;
                        free.push(page);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns the pages of the free list, including trunks, sorted.
    fn listed_pages(&self, live: &LiveSnapshot, found: &mut Verification) -> Result<Vec<PageNo>, Error> {
        let (mut listed, mut twice) = (BTreeSet::new(), Vec::new());
        let read = |page| self.page_of(live, page);
        let fault = free_list::walk(&live.meta, read, |head, trunk| {
            if !listed.insert(head) {
                return Err("twice in the free list");
            }
            twice.extend(trunk::iter(trunk).filter(|page| !listed.insert(*page)));
            Ok(())
        })?;
        if let Some(FreeListFault { page, reason }) = fault {
            found.note(format!("page {page}: {reason}"));
        }
        for page in twice {
            found.note(format!("page {page}: twice in the free list"));
        }
        Ok(listed.into_iter().collect())
    }
}
