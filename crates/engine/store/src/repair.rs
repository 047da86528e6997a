//! Repairs: makes a new store elsewhere from what can be saved of a damaged one.
//!
//! Invariants:
//! 1. The damaged store is only read.
//! 2. Each intact page is in the repaired store as of the newest readable commit, or else as the
//!    data file has it. A damaged page is listed; reading it there fails until it is written as a
//!    whole.
//! 3. A page that may be in use does not become free: a free page that is missing from the map, or
//!    from an intact free list, is lost.
//! 4. Uncertainty is reported: an intact page may be older or newer than the known commits.
//!
//! Fails if nothing of a store is found, if a newer version wrote it, if it is open, and as the
//! destination does.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_io::{AlignedBuf, Io, IoFile, open_past_cache};

use crate::bulk_read::PIECE_BYTES;
use crate::data::{self, PageRun};
use crate::destination::{Destination, PageWriter, StoreParameters};
use crate::format::page::{self, HEADER_BYTES, PageFault, PageHeader, PageKind};
use crate::format::superblock::{MAX_SEQ, SlotContent, StoreMeta, Superblock};
use crate::names::LOCK_NAME;
use crate::options::StoreOptions;
use crate::replay::JournalContent;
use crate::superblocks::{self, SlotRead};
use crate::version::{PageId, PageVersion, VersionContent};
use crate::{Error, PageNo, Seq};

mod free_list;
mod identify;
mod journal;
mod map;

use free_list::FreePages;
use journal::{made_up, read_journal};
use map::DamagedMap;

/// A finding about one page in a [`Repair`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PageFinding {
    /// Its number.
    pub page: PageNo,
    /// The finding, in words.
    pub what: String,
}

/// A repair, as returned by [`StoreOptions::repair`](crate::StoreOptions::repair).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Repair {
    /// The commit whose state the repaired store has; if unknown, the newest commit of any of its
    /// pages.
    pub seq: Seq,
    /// Its pages, including all below.
    pub pages: u64,
    /// Pages with data that were saved.
    pub data_pages: u64,
    /// Pages that are free.
    pub free_pages: u64,
    /// Pages of runs that were never written.
    pub never_written: u64,
    /// Pages whose content is lost. Reading them in the repaired store fails until they are written
    /// as a whole.
    pub lost: Vec<PageFinding>,
    /// Intact pages that were saved but are not what they should be: older than their last write,
    /// or of a commit that is otherwise lost.
    pub doubtful: Vec<PageFinding>,
    /// Other damage, and what was done about it.
    pub notes: Vec<String>,
    /// Bytes written to the data file.
    pub bytes: u64,
    /// Time from the call to its end.
    pub took: Duration,
}

impl Repair {
    /// Whether all commits are complete, as far as that can be known.
    pub fn is_complete(&self) -> bool {
        self.lost.is_empty() && self.doubtful.is_empty() && self.notes.is_empty()
    }
}

impl StoreOptions {
    /// Saves what can be saved of the store in `from`, which is only read, to a new store in `to`,
    /// which is created. Saves pages that are intact by their own checksums, as of the newest
    /// commit that can be read from the journal. Intact parts of superblocks and page map are used.
    /// Damaged parts are rebuilt from the pages, and listed in [`Repair::notes`].
    ///
    /// Fails with:
    ///
    /// - [`Error::NoStore`] if nothing of a store is found, or if both superblock slots are lost
    ///   and no intact page of the data file identifies the store;
    /// - [`Error::UnknownVersion`] if a newer version wrote it;
    /// - [`pagekeeper_io::Error::Locked`] if it is open;
    /// - [`Error::Exists`] if `to` exists.
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let (dir, to) = (temp.path().join("store"), temp.path().join("repaired"));
    /// let store = Store::options().journal_bytes(1 << 20).open(&dir)?;
    /// let mut txn = store.begin_write()?;
    /// let page = txn.allocate()?;
    /// txn.commit(Durability::Sync)?;
    /// store.close_and_sync()?;
    /// std::fs::remove_file(dir.join("superblock"))?;
    ///
    /// let repair = Store::options().repair(&dir, &to)?;
    /// assert!(repair.lost.is_empty() && repair.notes[0].contains("superblock"));
    /// assert_eq!(Store::options().open(&to)?.begin_read()?.read(page)?[0], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn repair(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Repair, Error> {
        self.check()?;
        let (from, to) = (from.as_ref(), to.as_ref());
        let began = Instant::now();
        let io = self.io_or_best();
        let names = match io.list(from) {
            Err(error) if error.errno() == Some(libc::ENOENT) => {
                return Err(Error::NoStore { path: from.to_path_buf() });
            }
            names => names?,
        };
        if superblocks::is_unfinished(&names) {
            return Err(Error::Unfinished { path: from.to_path_buf() });
        }
        let _held = io.lock_shared(&from.join(LOCK_NAME))?;
        let mut found = Repair::default();
        let source = DamagedStore::read(self, &io, from, &mut found)?;
        let map = DamagedMap::open(&*io, from, source.map)?;
        let DamagedStore { store, page_size, max_journal_bytes, .. } = source;
        let destination =
            Destination::create(self, &io, to, StoreParameters { store, page_size, max_journal_bytes })?;
        let meta = source.save(&destination, map, &mut found)?;
        destination.finish(found.seq, meta)?;
        found.took = began.elapsed();
        Ok(found)
    }
}

/// The page map's entry of a lost page. It says that the page was written, so reading it fails.
const ENTRY_LOST: u32 = 0;

/// The readable parts of the damaged store.
struct DamagedStore {
    data: Option<Arc<dyn IoFile>>,
    path: PathBuf,
    store: u64,
    page_size: usize,
    max_journal_bytes: u64,
    /// The commits of the journal, on top of the superblock's.
    journal: JournalContent,
    /// The store's id and, according to the superblock, the commit and the pages of the map.
    map: (u64, Seq, u64),
    /// Whether the store's meta is known, from the superblock or a commit.
    has_meta: bool,
}

/// The result for a page.
enum SavedPage {
    Page(PageKind, Seq),
    Blank,
    Lost(String),
}

impl DamagedStore {
    fn read(
        options: &StoreOptions,
        io: &Arc<dyn Io>,
        from: &Path,
        found: &mut Repair,
    ) -> Result<Self, Error> {
        let path = from.join(data::DATA_NAME);
        let data = match open_past_cache(&**io, &path) {
            Err(error) if error.errno() == Some(libc::ENOENT) => {
                found.notes.push("data: gone".to_owned());
                None
            }
            opened => Some(opened?),
        };
        let known = read_superblock(&**io, from, found)?;
        let is_known = known.is_some();
        let superblock = match (known, &data) {
            (Some(known), _) => Some(known),
            (None, Some(data)) => {
                let identified = identify::from_pages(&**data)?;
                identified.map(|(store, page_size)| made_up(options, store, page_size))
            }
            (None, None) => None,
        };
        let Some(superblock) = superblock else { return Err(Error::NoStore { path: from.to_path_buf() }) };
        let journal = read_journal(options, io, from, &superblock, is_known, found)?;
        // The seq of a made-up superblock is 0, which no commit has.
        let has_meta = is_known || journal.seq > Seq::NONE;
        Ok(Self {
            has_meta,
            data,
            path,
            store: superblock.store,
            page_size: superblock.page_size as usize,
            max_journal_bytes: superblock.max_journal_bytes,
            journal,
            map: if is_known {
                (superblock.store, superblock.checkpoint_seq, superblock.meta.pages)
            } else {
                (superblock.store, Seq::MAX, data::MAX_PAGES)
            },
        })
    }

    /// Returns the bytes of the data file.
    fn bytes(&self) -> Result<u64, Error> {
        Ok(self.data.as_ref().map_or(Ok(0), |data| data.stat().map(|stat| stat.size))?)
    }

    /// Saves all pages. Returns the store's meta.
    fn save(
        &self,
        destination: &Destination,
        mut map: DamagedMap,
        found: &mut Repair,
    ) -> Result<StoreMeta, Error> {
        let known = self.journal.meta.pages;
        let bytes = self.bytes()?;
        if self.data.is_some() && bytes < known.saturating_mul(self.page_size as u64) {
            found.notes.push("data: shorter than its pages: it was cut off".to_owned());
        }
        let in_file = bytes.div_ceil(self.page_size as u64);
        let most = in_file.max(known).max(map.pages()?).min(data::MAX_PAGES);
        let mut writer = destination.writer();
        writer.begin(known, self.journal.seq)?;
        let mut free = FreePages::default();
        (found.pages, found.seq) = (known, self.journal.seq);
        let at_once = (PIECE_BYTES / self.page_size) as u64;
        for first in (0..most).step_by(PIECE_BYTES / self.page_size) {
            let pages = PageNo::new(first)..PageNo::new(most.min(first + at_once));
            let first = pages.start;
            let (mut piece, failed) = self.read_piece(pages.clone());
            let mut noted = Vec::new();
            for ((page, bytes), failed) in
                PageNo::each(pages).zip(piece.chunks_mut(self.page_size)).zip(failed)
            {
                let doubtful = found.doubtful.len();
                match self.page(page, bytes, failed, &mut map, found) {
                    // Remains of a compaction behind the end.
                    SavedPage::Page(PageKind::Free | PageKind::Trunk, seq)
                        if self.has_meta && page.get() >= known && seq <= self.journal.seq =>
                    {
                        bytes.fill(0);
                        found.doubtful.truncate(doubtful);
                    }
                    SavedPage::Page(kind, seq) => {
                        (found.pages, found.seq) = (found.pages.max(page.get() + 1), found.seq.max(seq));
                        // A doubtful free page may be in use, as may the pages that it lists.
                        if kind != PageKind::Data && found.doubtful.len() > doubtful {
                            bytes.fill(0);
                            found.lost.extend(found.doubtful.drain(doubtful..));
                            continue;
                        }
                        noted.push((page, page::crc(bytes)));
                        match kind {
                            PageKind::Data => found.data_pages += 1,
                            PageKind::Free => free.add(page),
                            PageKind::Trunk => {
                                free.add(page);
                                free.add_trunk(page, &bytes[HEADER_BYTES..]);
                            }
                        }
                    }
                    SavedPage::Blank => {
                        bytes.fill(0);
                        free.add_blank(page);
                    }
                    SavedPage::Lost(what) => {
                        bytes.fill(0);
                        // Behind the last known page, only a page that was written can be lost.
                        if map.was_written(page) {
                            found.pages = found.pages.max(page.get() + 1);
                        }
                        found.lost.push(PageFinding { page, what });
                    }
                }
            }
            if !noted.is_empty() {
                writer.write(vec![PageRun { first, seqs: Vec::new(), bytes: piece }], noted)?;
            }
        }
        found.notes.extend(map.fault());
        // Behind the last page, a damaged page does not count.
        let pages = found.pages;
        found.lost.retain(|lost| lost.page.get() < pages);
        writer.begin(pages, found.seq)?;
        let meta = self.with_free_list(free, &mut writer, found)?;
        writer.write(Vec::new(), found.lost.iter().map(|lost| (lost.page, ENTRY_LOST)).collect())?;
        found.never_written = pages - found.data_pages - found.free_pages - found.lost.len() as u64;
        found.bytes = writer.end()?;
        Ok(meta)
    }

    /// Returns the store's meta, with a correct free list.
    fn with_free_list(
        &self,
        mut free: FreePages,
        writer: &mut PageWriter<'_>,
        found: &mut Repair,
    ) -> Result<StoreMeta, Error> {
        let mut meta = StoreMeta { pages: found.pages, ..self.journal.meta.clone() };
        free.take_blank(meta.free_head);
        if self.has_meta {
            for page in free.take_unlisted(meta.free_head, meta.free_pages) {
                let what = "it is a free page, but not on the free list: what was written there last is lost";
                found.lost.push(PageFinding { page, what: what.to_owned() });
            }
            found.lost.sort_by_key(|lost| lost.page);
        }
        if !free.are_listed(meta.free_head, meta.free_pages) {
            let lost: BTreeSet<_> = found.lost.iter().map(|lost| lost.page).collect();
            free.take_listed(meta.free_head, |page| lost.contains(&page));
            found.lost.retain(|lost| !free.has(lost.page));
            meta.free_head = free.write(writer, (self.page_size, self.store, found.seq))?;
            meta.free_pages = free.count();
            found.notes.push(format!("free list: made again from the pages that are free: {}", free.count()));
        }
        found.free_pages = meta.free_pages;
        Ok(meta)
    }

    /// Reads pages from the data file; each unreadable page has its error. Pages beyond the file
    /// are zeros.
    fn read_piece(&self, pages: Range<PageNo>) -> (AlignedBuf, Vec<Option<String>>) {
        let size = self.page_size;
        let count = PageNo::each(pages.clone()).count();
        let mut piece = AlignedBuf::new(count * size);
        let mut failed = vec![None; count];
        let Some(data) = &self.data else { return (piece, failed) };
        let offset = pages.start.offset(size as u64);
        if let Ok(got) = data.read_at(offset, &mut piece) {
            piece[got..].fill(0);
            return (piece, failed);
        }
        for ((at, bytes), failed) in (offset..).step_by(size).zip(piece.chunks_mut(size)).zip(&mut failed) {
            match data.read_at(at, bytes) {
                Ok(got) => bytes[got..].fill(0),
                Err(error) => {
                    bytes.fill(0);
                    *failed = Some(error.to_string());
                }
            }
        }
        (piece, failed)
    }

    /// Turns the data file's bytes into those of the page.
    fn page(
        &self,
        page: PageNo,
        bytes: &mut [u8],
        failed: Option<String>,
        map: &mut DamagedMap,
        found: &mut Repair,
    ) -> SavedPage {
        let read = page::check(bytes, page, self.store);
        if let Some(version) = self.journal.index.get(page, Seq::MAX) {
            return self.replayed(page, &version, (read, failed), bytes, found);
        }
        if let Some(error) = failed {
            return SavedPage::Lost(error);
        }
        let mut doubt = |what| found.doubtful.push(PageFinding { page, what });
        match read {
            Ok(header) if header.seq.get() > MAX_SEQ => SavedPage::Lost(format!(
                "it is whole, as of commit {}, but no commit has that number",
                header.seq
            )),
            Ok(header) => {
                let seq = header.seq;
                // If no commit is known, only the map says what the page should be.
                if self.has_meta && seq > self.journal.seq {
                    doubt(format!("it is whole, as of commit {seq}; the rest of that commit is lost"));
                } else if let Err(fault) = map.check(page, &read) {
                    doubt(fault.to_string());
                }
                SavedPage::Page(header.kind, seq)
            }
            Err(PageFault::NeverWritten) => match map.check(page, &read) {
                Ok(()) => SavedPage::Blank,
                Err(fault) => SavedPage::Lost(fault.to_string()),
            },
            Err(fault) => SavedPage::Lost(fault.to_string()),
        }
    }

    /// Does the same for a page that the journal changes.
    fn replayed(
        &self,
        page: PageNo,
        version: &PageVersion,
        (read, failed): (Result<PageHeader, PageFault>, Option<String>),
        bytes: &mut [u8],
        found: &mut Repair,
    ) -> SavedPage {
        let VersionContent::Replay(replay) = &version.content else {
            unreachable!("nothing was put together")
        };
        let id = PageId { path: &self.path, store: self.store, page, seq: version.seq };
        if !replay.needs_base() {
            bytes.fill(0);
            return match replay.put_together(&id, bytes) {
                Ok(kind) => SavedPage::Page(kind, version.seq),
                Err(error) => SavedPage::Lost(reason(error)),
            };
        }
        let in_part = "the journal changes a part of it";
        let header = match (read, failed) {
            (_, Some(error)) => return SavedPage::Lost(format!("{in_part}, and the rest: {error}")),
            (Err(fault), None) => return SavedPage::Lost(format!("{in_part}, and the rest: {fault}")),
            (Ok(header), None) => header,
        };
        let before = bytes.to_vec();
        if let Ok(kind) = replay.put_together(&id, bytes) {
            return SavedPage::Page(kind, version.seq);
        }
        bytes.copy_from_slice(&before);
        let (seq, due) = (header.seq, version.seq);
        let what = format!("it is whole, as of commit {seq}, but commit {due} can't be applied to it");
        found.doubtful.push(PageFinding { page, what });
        SavedPage::Page(header.kind, seq)
    }
}

/// Returns why a page is damaged.
fn reason(error: Error) -> String {
    match error {
        Error::Damaged { reason, .. } => reason,
        error => error.to_string(),
    }
}

/// Returns the better of the two slots; `None` if neither is intact.
fn read_superblock(io: &dyn Io, from: &Path, found: &mut Repair) -> Result<Option<Superblock>, Error> {
    let path = from.join(superblocks::SUPERBLOCK_NAME);
    let made_again = "made again from journal and pages";
    let Some(read) = superblocks::read(io, from)? else {
        found.notes.push(format!("superblock: gone: {made_again}"));
        return Ok(None);
    };
    for (number, slot) in read.slots().iter().enumerate() {
        if !matches!(slot, SlotRead::Found(SlotContent::Superblock(_))) {
            found.notes.push(format!("superblock, slot {number}: {slot}"));
        }
    }
    match read.newest() {
        Some((SlotContent::Superblock(newest), _)) => Ok(Some(newest.clone())),
        Some((SlotContent::Version(version), _)) => Err(superblocks::other_version(path, *version)),
        Some((SlotContent::Nothing(_), _)) | None => {
            found.notes.push(format!("superblock: no slot is whole: {made_again}"));
            Ok(None)
        }
    }
}
