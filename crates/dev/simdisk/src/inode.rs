//! A file of the simulated disk: its visible content, the content that would survive a power cut,
//! and its pages in the kernel's cache.
//!
//! Invariants:
//!
//! * `content` is what a buffered read returns.
//! * A page is *lost* if a sync failed while it was in the cache. It counts as clean and still
//!   shows the written data, which the device never received.
//! * Except on lost pages, `content` is also what a direct read returns from the device, from its
//!   medium or its volatile cache.
//! * `durable` is what certainly survives a power cut. Each byte in which `content` differs from it
//!   is in a pending change or on a lost page.

use std::ops::Range;
use std::sync::Arc;

use crate::content::{CHUNK_BYTES, FileContent, SECTOR_BYTES};
use crate::crash::CrashOutcome;
use crate::damage::Damage;
use crate::pages::{PageSet, bytes_of, touched};
use pagekeeper_io::{Access, ResidentBytes, WriteMode};

#[derive(Debug, Clone)]
pub(crate) struct Inode {
    content: FileContent,
    durable: FileContent,
    /// Changes since the last sync, in order.
    pending: Vec<PendingChange>,
    resident: PageSet,
    /// Resident pages that are not written back.
    dirty: PageSet,
    /// Resident pages that are clean although the device has other content.
    lost: PageSet,
    /// Sectors that cannot be read.
    unreadable: PageSet,
    /// Space is allocated up to here; writes behind it need more.
    room: u64,
    /// Whether it has a name now.
    pub(crate) named: bool,
    pub(crate) open: usize,
    /// Number of opens for writing.
    pub(crate) writable: usize,
    /// The number of the last change of its content. The changes of the whole disk are counted, so
    /// that no two look alike.
    pub(crate) modified: u64,
    /// The number of its last change, including changes of its name.
    pub(crate) changed: u64,
}

#[derive(Debug, Clone)]
struct PendingChange {
    number: u64,
    change: FileChange,
}

#[derive(Debug, Clone)]
enum FileChange {
    Write(PendingWrite),
    /// Truncated or extended to this many bytes.
    SetLen(u64),
}

/// A write, or its remainder.
#[derive(Debug, Clone)]
pub(crate) struct PendingWrite {
    pub(crate) offset: u64,
    pub(crate) bytes: Arc<[u8]>,
    /// Survives a power cut completely or not at all.
    pub(crate) atomic: bool,
}

impl Inode {
    /// Creates a file that has always been there.
    pub(crate) fn new(content: FileContent, number: u64) -> Self {
        Self {
            durable: content.clone(),
            room: content.len(),
            content,
            pending: Vec::new(),
            unreadable: PageSet::default(),
            resident: PageSet::default(),
            dirty: PageSet::default(),
            lost: PageSet::default(),
            named: true,
            open: 0,
            writable: 0,
            modified: number,
            changed: number,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.content.len()
    }

    /// Whether a part of the range cannot be read.
    pub(crate) fn is_unreadable(&self, range: &Range<u64>) -> bool {
        !self.unreadable.within(sectors(range)).is_empty()
    }

    /// Whether space is allocated for writes up to here.
    pub(crate) fn has_room(&self, end: u64) -> bool {
        end <= self.room
    }

    /// Allocates space up to here.
    pub(crate) fn make_room(&mut self, end: u64) {
        self.room = self.room.max(end);
    }

    /// Damages the medium. The cached pages are dropped.
    pub(crate) fn damage(&mut self, damage: &Damage) {
        damage.apply(&mut self.content);
        damage.apply(&mut self.durable);
        for pages in [&mut self.resident, &mut self.dirty, &mut self.lost] {
            pages.clear();
        }
        if let Damage::Unreadable(range) = damage {
            self.unreadable.insert(sectors(range));
        }
    }

    /// Makes the write of this number never reach the device, although no call reports that. It may
    /// land at another offset.
    pub(crate) fn lose(&mut self, number: u64, landed: Option<(u64, &[u8])>) {
        let pending = std::mem::take(&mut self.pending);
        for PendingChange { number: of, change } in pending {
            match change {
                FileChange::Write(write) if of == number => self.lose_write(&write),
                change => self.push(of, change),
            }
        }
        if let Some((to, bytes)) = landed {
            let most = usize::try_from(self.durable.len().saturating_sub(to)).unwrap_or(usize::MAX);
            let bytes = &bytes[..bytes.len().min(most)];
            self.durable.write(to, bytes);
            self.content.write(to, bytes);
            let pages = touched(&(to..to + bytes.len() as u64));
            self.resident.remove(pages.clone());
            self.dirty.remove(pages);
        }
    }

    /// Makes the device lose a write. Cached pages keep it.
    fn lose_write(&mut self, write: &PendingWrite) {
        let range = write.offset..write.offset + write.bytes.len() as u64;
        for page in touched(&range) {
            self.dirty.remove(page..page + 1);
            if self.resident.contains(page) {
                self.lost.insert(page..page + 1);
            } else {
                let part = meet(&bytes_of(&(page..page + 1)), &range);
                self.content.copy_from(&self.durable, part);
            }
        }
    }

    /// Reads bytes, and adds their pages to the cache.
    pub(crate) fn read(&mut self, access: Access, offset: u64, to: &mut [u8]) {
        self.content.read(offset, to);
        let range = offset..offset + to.len() as u64;
        if access == Access::Buffered {
            self.resident.insert(touched(&range));
            return;
        }
        for pages in self.lost.within(touched(&range)) {
            let part = meet(&bytes_of(&pages), &range);
            let within = |at: u64| usize::try_from(at - offset).expect("bytes in memory");
            self.durable.read(part.start, &mut to[within(part.start)..within(part.end)]);
        }
    }

    /// Writes bytes. After [`WriteMode::Durable`] a [`Self::sync_range`] must follow.
    pub(crate) fn write(&mut self, number: u64, access: Access, offset: u64, bytes: &[u8], mode: WriteMode) {
        let range = offset..offset + bytes.len() as u64;
        let pages = touched(&range);
        let lost = self.lost.within(pages.clone());
        match access {
            Access::Direct => {
                // The kernel drops the pages first, so data that only they had is lost.
                self.forget_lost(lost);
                self.resident.remove(pages.clone());
                self.dirty.remove(pages);
            }
            Access::Buffered => {
                // A page is dirty as a whole.
                for part in lost {
                    let part = meet(&bytes_of(&part), &(0..self.len()));
                    self.lost.remove(touched(&part));
                    let mut bytes = vec![0; usize::try_from(part.end - part.start).expect("bytes in memory")];
                    self.content.read(part.start, &mut bytes);
                    let rewritten = PendingWrite { offset: part.start, bytes: bytes.into(), atomic: false };
                    self.push(number, FileChange::Write(rewritten));
                }
                match mode {
                    // An atomic write is direct and does not come here.
                    WriteMode::Plain | WriteMode::Atomic => {
                        self.resident.insert(pages.clone());
                        self.dirty.insert(pages);
                    }
                    // Pages stay if they were resident before.
                    WriteMode::Uncached => {
                        for part in self.resident.within(pages) {
                            self.dirty.insert(part);
                        }
                    }
                    WriteMode::Durable => self.resident.insert(pages),
                }
            }
        }
        self.content.write(offset, bytes);
        self.make_room(range.end);
        self.unreadable.remove(range.start.div_ceil(SECTOR_BYTES)..range.end / SECTOR_BYTES);
        let atomic = mode == WriteMode::Atomic;
        self.push(number, FileChange::Write(PendingWrite { offset, bytes: bytes.into(), atomic }));
        (self.modified, self.changed) = (number, number);
    }

    /// Zeroes a range block by block. Only metadata is written.
    pub(crate) fn punch(&mut self, number: u64, range: &Range<u64>) {
        let end = range.end.min(self.len());
        let mut at = range.start;
        while at < end {
            let block = end.min((at / CHUNK_BYTES as u64 + 1) * CHUNK_BYTES as u64);
            let zeros = [0; CHUNK_BYTES];
            let len = usize::try_from(block - at).expect("no more than a chunk");
            self.write(number, Access::Direct, at, &zeros[..len], WriteMode::Atomic);
            at = block;
        }
    }

    pub(crate) fn set_len(&mut self, number: u64, len: u64) {
        if len < self.len() {
            let gone = len.div_ceil(CHUNK_BYTES as u64)..u64::MAX;
            for pages in [&mut self.resident, &mut self.dirty, &mut self.lost] {
                pages.remove(gone.clone());
            }
            self.room = self.room.min(len);
            self.unreadable.remove(len.div_ceil(SECTOR_BYTES)..u64::MAX);
        }
        self.content.set_len(len);
        self.push(number, FileChange::SetLen(len));
        (self.modified, self.changed) = (number, number);
    }

    fn push(&mut self, number: u64, change: FileChange) {
        self.pending.push(PendingChange { number, change });
    }

    /// Makes all changes durable, except lost ones.
    pub(crate) fn sync(&mut self) {
        for PendingChange { change, .. } in self.pending.drain(..) {
            match change {
                // In its current state: later changes are pending as well.
                FileChange::Write(PendingWrite { offset, bytes, .. }) => {
                    let end = offset + bytes.len() as u64;
                    self.durable.set_len(self.durable.len().max(end));
                    self.durable.copy_from(&self.content, offset..end);
                }
                FileChange::SetLen(len) => self.durable.set_len(len),
            }
        }
        self.durable.set_len(self.content.len());
        self.dirty.clear();
    }

    /// Makes a range that was just written durable, and the size.
    pub(crate) fn sync_range(&mut self, access: Access, range: &Range<u64>) {
        if self.pending.iter().any(|pending| matches!(pending.change, FileChange::SetLen(_))) {
            return self.sync();
        }
        let pages = touched(range);
        let range = if access == Access::Direct { range.clone() } else { bytes_of(&pages) };
        self.durable.set_len(self.content.len());
        self.durable.copy_from(&self.content, range.clone());
        self.dirty.remove(pages);
        // Older changes must not be applied after it.
        let pending = std::mem::take(&mut self.pending);
        self.pending = pending.into_iter().flat_map(|pending| pending.outside(&range)).collect();
    }

    /// Fails a sync: data written since the last sync does not reach the device, now or later. The
    /// kernel's cache keeps its pages.
    pub(crate) fn fail_sync(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        for PendingChange { number, change } in pending {
            match change {
                FileChange::Write(write) => self.lose_write(&write),
                // Sizes are written by the file system, independent of the pages.
                change @ FileChange::SetLen(_) => self.push(number, change),
            }
        }
        self.dirty.clear();
    }

    /// As [`Self::fail_sync`], but the cache drops data that the device did not receive.
    pub(crate) fn fail_sync_and_drop(&mut self) {
        self.fail_sync();
        for pages in self.lost.within(0..u64::MAX) {
            self.resident.remove(pages.clone());
            self.forget_lost(vec![pages]);
        }
    }

    /// Writes back: pages become clean, and nothing durable.
    pub(crate) fn write_back(&mut self, range: &Range<u64>) {
        self.dirty.remove(touched(range));
    }

    /// Drops clean pages entirely in the range, and the last page if the file ends in the range.
    pub(crate) fn release(&mut self, range: &Range<u64>) {
        let end = if range.end >= self.len() { u64::MAX } else { range.end / CHUNK_BYTES as u64 };
        for pages in self.resident.within(range.start.div_ceil(CHUNK_BYTES as u64)..end) {
            let mut at = pages.start;
            let dirty = self.dirty.within(pages.clone());
            for dirty in dirty.into_iter().chain(std::iter::once(pages.end..pages.end)) {
                let clean = at..dirty.start;
                self.forget_lost(self.lost.within(clean.clone()));
                self.resident.remove(clean);
                at = dirty.end;
            }
        }
    }

    /// Makes these pages show the device's content.
    fn forget_lost(&mut self, lost: Vec<Range<u64>>) {
        for pages in lost {
            self.content.copy_from(&self.durable, bytes_of(&pages));
            self.lost.remove(pages);
        }
    }

    pub(crate) fn residency(&self, range: &Range<u64>) -> ResidentBytes {
        let pages = touched(range);
        let bytes = |pages: u64| pages * CHUNK_BYTES as u64;
        ResidentBytes {
            resident: bytes(self.resident.count(pages.clone())),
            unwritten: bytes(self.dirty.count(pages)),
        }
    }

    /// Returns the numbers of unsynced changes.
    pub(crate) fn pending(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|pending| pending.number)
    }

    /// Returns the file as found after a power cut.
    pub(crate) fn after_power_cut(&self, fate: &CrashOutcome) -> Self {
        let mut found = self.durable.clone();
        for PendingChange { number, change } in &self.pending {
            match change {
                FileChange::Write(write) => fate.write(*number, &mut found, write),
                FileChange::SetLen(len) if fate.keeps(*number) => found.set_len(*len),
                FileChange::SetLen(_) => {}
            }
        }
        let mut unreadable = self.unreadable.clone();
        unreadable.remove(found.len().div_ceil(SECTOR_BYTES)..u64::MAX);
        Self { modified: self.modified, changed: self.changed, unreadable, ..Self::new(found, 0) }
    }

    /// Returns the file as found after all programs have ended.
    pub(crate) fn after_kill(&self) -> Self {
        Self { open: 0, writable: 0, ..self.clone() }
    }
}

impl PendingChange {
    /// Returns the remainder of a write without a range.
    fn outside(self, range: &Range<u64>) -> Vec<Self> {
        let FileChange::Write(PendingWrite { offset, bytes, atomic }) = &self.change else {
            return vec![self];
        };
        let whole = *offset..*offset + bytes.len() as u64;
        if meet(&whole, range).is_empty() {
            return vec![self];
        }
        let part = |part: Range<u64>| {
            let index = |at: u64| usize::try_from(at - whole.start).expect("bytes in memory");
            (!part.is_empty()).then(|| Self {
                number: self.number,
                change: FileChange::Write(PendingWrite {
                    offset: part.start,
                    bytes: bytes[index(part.start)..index(part.end)].into(),
                    atomic: *atomic,
                }),
            })
        };
        let parts = [whole.start..range.start.min(whole.end), range.end.max(whole.start)..whole.end];
        parts.into_iter().filter_map(part).collect()
    }
}

/// Returns the sectors that overlap the range.
fn sectors(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() { 0..0 } else { range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES) }
}

/// Returns the intersection of two ranges.
fn meet(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}
