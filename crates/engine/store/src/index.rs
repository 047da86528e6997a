//! The index: pages whose newest version is not in the data file yet, or whose older versions are
//! still read.
//!
//! Invariants:
//! 1. The versions of a page ascend by seq. Those not applied are the newest ones.
//! 2. A page that is not in the index is in the data file as of its newest commit. A lookup may
//!    find a page in neither place in the right version. A second lookup then finds it in the
//!    index, since the data file's version was kept before it was overwritten.
//! 3. A version is dropped only when no existing or future snapshot would read it.
//!
//! Locks are held only for the lookup or change of one page. Nothing fails.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use pagekeeper_kernel::mutex::ignore_poison;

use super::snapshots::NeededVersions;
use super::sync::{AtomicBool, AtomicU64, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard, SHARDS};
use crate::version::{PageReplay, PageVersion, VersionContent, WholePage};
use crate::{PageNo, Seq};

/// Approximate bytes of an entry beside its pages.
const ENTRY_BYTES: u64 = 96;

/// Returns the approximate bytes of memory of a version, within the budget. Entries of versions on
/// disk are outside of it.
fn bytes_of(version: &PageVersion) -> u64 {
    let size = version.content.size();
    if size > 0 { ENTRY_BYTES + size } else { 0 }
}

type PageVersions = HashMap<PageNo, Vec<PageVersion>>;

/// A part of the index.
#[derive(Debug)]
// Two cache lines, since processors fetch them in pairs.
#[repr(align(128))]
struct IndexShard {
    pages: RwLock<PageVersions>,
    /// The number of its pages, stored before its lock is released. A reader of 0 needs no lock. A
    /// version that its snapshot needs was added before the snapshot began, and is gone since; or
    /// the data file has a newer page by now, which makes the reader look here again.
    len: AtomicU64,
}

impl IndexShard {
    fn read(&self) -> RwLockReadGuard<'_, PageVersions> {
        ignore_poison(self.pages.read())
    }

    fn write(&self) -> ChangingShard<'_> {
        ChangingShard { pages: ignore_poison(self.pages.write()), len: &self.len }
    }
}

/// A shard that is being changed.
struct ChangingShard<'a> {
    pages: RwLockWriteGuard<'a, PageVersions>,
    len: &'a AtomicU64,
}

impl Deref for ChangingShard<'_> {
    type Target = PageVersions;

    fn deref(&self) -> &PageVersions {
        &self.pages
    }
}

impl DerefMut for ChangingShard<'_> {
    fn deref_mut(&mut self) -> &mut PageVersions {
        &mut self.pages
    }
}

impl Drop for ChangingShard<'_> {
    fn drop(&mut self) {
        self.len.store(self.pages.len() as u64, Ordering::Release);
    }
}

/// The versions in memory.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[IndexShard]>,
    bytes: AtomicU64,
    /// Whether recovery found a page whose base is in the data file. If not, nobody has to search
    /// for such pages.
    has_based: AtomicBool,
    /// Whether recovery left bytes in the journal. If not, nobody has to search for them.
    has_placed: AtomicBool,
}

impl Default for Index {
    fn default() -> Self {
        let shard = |_| IndexShard { pages: RwLock::new(PageVersions::new()), len: AtomicU64::new(0) };
        let shards = (0..SHARDS).map(shard).collect();
        let [has_based, has_placed] = [false; 2].map(AtomicBool::new);
        Self { shards, bytes: AtomicU64::new(0), has_based, has_placed }
    }
}

impl Index {
    fn shard(&self, page: PageNo) -> &IndexShard {
        // Neighbouring pages are in different shards.
        #[expect(clippy::cast_possible_truncation, reason = "below the number of shards")]
        &self.shards[(page.get() % SHARDS as u64) as usize]
    }

    fn read(&self, page: PageNo) -> RwLockReadGuard<'_, PageVersions> {
        self.shard(page).read()
    }

    fn write(&self, page: PageNo) -> ChangingShard<'_> {
        self.shard(page).write()
    }

    /// Returns the approximate bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn grown(&self, version: &PageVersion) {
        self.bytes.fetch_add(bytes_of(version), Ordering::Relaxed);
    }

    fn shrunk(&self, version: &PageVersion) {
        self.bytes.fetch_sub(bytes_of(version), Ordering::Relaxed);
    }

    /// Whether the page, or another one in its shard, has any version. Takes no lock.
    #[inline]
    pub(crate) fn has_near(&self, page: PageNo) -> bool {
        self.shard(page).len.load(Ordering::Acquire) > 0
    }

    /// Returns the newest version up to `seq`.
    pub(crate) fn get(&self, page: PageNo, seq: Seq) -> Option<PageVersion> {
        if !self.has_near(page) {
            return None;
        }
        self.read(page).get(&page)?.iter().rev().find(|version| version.seq <= seq).cloned()
    }

    /// Returns the page as of `seq`, from a version or from the data file, whose pages have their
    /// seqs; `None` if it was not written before.
    pub(crate) fn find<T, E>(
        &self,
        page: PageNo,
        seq: Seq,
        whole: impl Fn(PageVersion) -> Result<T, E>,
        in_file: impl Fn() -> Result<Option<(T, Seq)>, E>,
    ) -> Result<Option<T>, E> {
        let mut failed = None;
        // Three attempts: the page may be applied between the lookup and the read, and the base of
        // a version may be gone by then.
        for _ in 0..3 {
            if let Some(version) = self.get(page, seq)
                && !matches!(version.content, VersionContent::InFile)
            {
                match whole(version) {
                    Ok(found) => return Ok(Some(found)),
                    // A newer version may have overwritten its base.
                    Err(error) => failed = Some(error),
                }
                continue;
            }
            match in_file() {
                Ok(Some((found, of))) if of <= seq => return Ok(Some(found)),
                Ok(_) => failed = None,
                // It may have been in the middle of a write.
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Returns versions of the page older than `seq` that are rebuilt from the data file or the
    /// journal, including those whose bytes are in memory only for now.
    pub(crate) fn replays_before(&self, page: PageNo, seq: Seq) -> Vec<PageVersion> {
        let takes_more =
            |replay: &PageReplay| replay.needs_base() || replay.is_placed() || replay.is_passing();
        let needs = |version: &&PageVersion| {
            version.seq < seq
                && match &version.content {
                    VersionContent::Replay(replay) => takes_more(replay),
                    VersionContent::InFile => true,
                    VersionContent::Whole(_) | VersionContent::OnDisk(_) => false,
                }
        };
        let shard = self.read(page);
        shard.get(&page).map_or(Vec::new(), |versions| versions.iter().filter(needs).cloned().collect())
    }

    /// Whether the page has any version.
    pub(crate) fn has(&self, page: PageNo) -> bool {
        self.read(page).contains_key(&page)
    }

    /// Whether any of these pages has a version.
    pub(crate) fn has_any(&self, pages: &Range<PageNo>) -> bool {
        if pages.end.get().saturating_sub(pages.start.get()) <= SHARDS as u64 {
            return PageNo::each(pages.clone()).any(|page| self.get(page, Seq::MAX).is_some());
        }
        let has = |shard: &IndexShard| {
            shard.len.load(Ordering::Acquire) > 0 && shard.read().keys().any(|page| pages.contains(page))
        };
        self.shards.iter().any(has)
    }

    /// Adds a commit's version of a page, and drops versions that nobody needs any more.
    pub(crate) fn push(&self, page: PageNo, seq: Seq, content: VersionContent, needed: &NeededVersions) {
        let version = PageVersion { seq, applied: false, content };
        self.grown(&version);
        let mut shard = self.write(page);
        let versions = shard.entry(page).or_default();
        debug_assert!(versions.last().is_none_or(|last| last.seq < seq));
        versions.push(version);
        self.prune(versions, needed);
    }

    /// Adds a change that recovery found, on top of the earlier ones.
    pub(crate) fn replay(&self, page: PageNo, seq: Seq, change: crate::format::entry::PageChange) {
        let mut shard = self.write(page);
        // Most pages have one version until they are applied.
        let versions = shard.entry(page).or_insert_with(|| Vec::with_capacity(1));
        if versions.is_empty() {
            let content = VersionContent::Replay(Arc::default());
            versions.push(PageVersion { seq, applied: false, content });
        } else if let Some(before) = versions.last() {
            self.shrunk(before);
        }
        let Some(version) = versions.last_mut() else { return };
        let VersionContent::Replay(replay) = &mut version.content else {
            unreachable!("nothing is read while the journal is");
        };
        let replay = Arc::make_mut(replay);
        replay.push(change);
        if replay.needs_base() {
            self.has_based.store(true, Ordering::Relaxed);
        }
        if replay.is_placed() {
            self.has_placed.store(true, Ordering::Relaxed);
        }
        version.seq = seq;
        self.grown(version);
    }

    /// Returns the version of the page to apply as of `seq`, if it has bytes that must be read from
    /// the journal first.
    pub(crate) fn placed(&self, page: PageNo, seq: Seq) -> Option<(Seq, Arc<PageReplay>)> {
        if !self.has_placed.load(Ordering::Relaxed) {
            return None;
        }
        let version = self.get(page, seq).filter(|version| !version.applied)?;
        match version.content {
            VersionContent::Replay(replay) if replay.is_placed() => Some((version.seq, replay)),
            _ => None,
        }
    }

    /// Replaces a version's content after its replay was rebuilt, its bytes were read, or it was
    /// moved.
    pub(crate) fn settle(&self, page: PageNo, seq: Seq, content: VersionContent) {
        let mut shard = self.write(page);
        let Some(versions) = shard.get_mut(&page) else { return };
        let is_due = |version: &&mut PageVersion| match version.content {
            VersionContent::Replay(_) | VersionContent::InFile => true,
            _ => matches!(content, VersionContent::OnDisk(_)),
        };
        let found = versions.iter_mut().find(|version| version.seq == seq);
        if let Some(version) = found.filter(is_due) {
            self.shrunk(version);
            version.content = content;
            self.grown(version);
        }
    }

    /// Drops the content of versions that the data file has, of pages with more versions. Returns
    /// false if there was none.
    pub(crate) fn leave_to_file(&self) -> bool {
        let before = self.bytes();
        for shard in &self.shards {
            for versions in shard.write().values_mut().filter(|versions| versions.len() > 1) {
                let in_file = versions.iter_mut().rfind(|version| version.applied);
                if let Some(version) =
                    in_file.filter(|found| matches!(found.content, VersionContent::Whole(_)))
                {
                    self.shrunk(version);
                    version.content = VersionContent::InFile;
                }
            }
        }
        self.bytes() < before
    }

    /// Returns whole pages that only snapshots need, oldest first, until they take this many bytes
    /// of memory.
    pub(crate) fn old_versions(&self, bytes: u64) -> Vec<((PageNo, Seq), WholePage)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            for (page, versions) in shard.read().iter() {
                found.extend(versions.iter().filter_map(|version| match &version.content {
                    VersionContent::Whole(whole) if version.applied => {
                        Some(((*page, version.seq), whole.clone()))
                    }
                    _ => None,
                }));
            }
        }
        found.sort_unstable_by_key(|((page, seq), _)| (*seq, *page));
        let each = found.first().map_or(1, |(_, whole)| ENTRY_BYTES + whole.bytes().len() as u64);
        found.truncate(usize::try_from(bytes.div_ceil(each)).unwrap_or(usize::MAX));
        found
    }

    /// Called before a page is overwritten: keeps the data file's version, if a snapshot as old as
    /// `oldest` needs it.
    pub(crate) fn keep_base<E>(
        &self,
        page: PageNo,
        oldest: Seq,
        in_file: impl FnOnce() -> Result<Option<(VersionContent, Seq)>, E>,
    ) -> Result<(), E> {
        if self.base_is_needed(page, oldest)
            && let Some((content, seq)) = in_file()?
        {
            self.add_base(page, seq, content);
        }
        Ok(())
    }

    fn add_base(&self, page: PageNo, seq: Seq, content: VersionContent) {
        let mut shard = self.write(page);
        let Some(versions) = shard.get_mut(&page) else { return };
        if versions.first().is_some_and(|first| seq < first.seq) {
            let version = PageVersion { seq, applied: true, content };
            self.grown(&version);
            versions.insert(0, version);
        }
    }

    /// Whether a snapshot as old as `oldest` would miss the data file's version of the page once
    /// that is overwritten.
    pub(crate) fn base_is_needed(&self, page: PageNo, oldest: Seq) -> bool {
        let shard = self.read(page);
        let first = shard.get(&page).and_then(|versions| versions.first());
        first.is_some_and(|first| !first.applied && first.seq > oldest)
    }

    /// Records that the data file has the page as of `seq` now.
    pub(crate) fn applied(&self, page: PageNo, seq: Seq, needed: &NeededVersions) {
        let mut shard = self.write(page);
        let Entry::Occupied(mut entry) = shard.entry(page) else { return };
        for version in entry.get_mut().iter_mut().take_while(|version| version.seq <= seq) {
            version.applied = true;
        }
        self.prune(entry.get_mut(), needed);
        if let [version] = &entry.get()[..]
            && version.applied
        {
            self.shrunk(version);
            entry.remove();
        }
    }

    /// Returns the pages that the data file does not have as of `seq`, in order.
    pub(crate) fn unapplied(&self, seq: Seq) -> Vec<PageNo> {
        let mut pages = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let due = |versions: &Vec<PageVersion>| {
                versions.iter().any(|version| !version.applied && version.seq <= seq)
            };
            pages.extend(shard.iter().filter(|(_, versions)| due(versions)).map(|(page, _)| *page));
        }
        pages.sort_unstable();
        pages
    }

    /// Returns the pages that can be rebuilt only from a base in the data file, each with each
    /// checksum of a version that the file may have by now.
    pub(crate) fn diffed(&self) -> Vec<(PageNo, u32)> {
        let mut found = Vec::new();
        if !self.has_based.load(Ordering::Relaxed) {
            return found;
        }
        for shard in &self.shards {
            for (page, versions) in shard.read().iter() {
                for version in versions {
                    if let VersionContent::Replay(replay) = &version.content
                        && replay.needs_base()
                    {
                        found.extend(replay.checksums().map(|crc| (*page, crc)));
                    }
                }
            }
        }
        found
    }

    /// Returns how many of the first `pages` pages have a version that is not applied. Pages behind
    /// the last one, which a later commit has given up, may have some too.
    pub(crate) fn unapplied_pages(&self, pages: u64) -> u64 {
        let is_unapplied = |(page, versions): &(&PageNo, &Vec<PageVersion>)| {
            page.get() < pages && versions.iter().any(|version| !version.applied)
        };
        let count = |shard: &IndexShard| shard.read().iter().filter(is_unapplied).count() as u64;
        self.shards.iter().map(count).sum()
    }

    /// Drops all versions that nobody needs any more. Returns the bytes of those that are kept only
    /// for snapshots.
    pub(crate) fn prune_all(&self, needed: &NeededVersions) -> u64 {
        let mut kept = 0;
        for shard in &self.shards {
            let mut shard = shard.write();
            shard.retain(|_, versions| {
                self.prune(versions, needed);
                if let [version] = &versions[..]
                    && version.applied
                {
                    self.shrunk(version);
                    return false;
                }
                let applied = versions.iter().filter(|version| version.applied);
                kept += applied.map(bytes_of).sum::<u64>();
                true
            });
        }
        kept
    }

    /// Returns the versions of a page.
    #[cfg(test)]
    pub(crate) fn seqs(&self, page: PageNo) -> Vec<Seq> {
        self.read(page).get(&page).map_or(Vec::new(), |all| all.iter().map(|version| version.seq).collect())
    }

    fn prune(&self, versions: &mut Vec<PageVersion>, needed: &NeededVersions) {
        let mut at = 0;
        while at + 1 < versions.len() {
            if needed.needs(versions[at].seq..versions[at + 1].seq) {
                at += 1;
            } else {
                let version = versions.remove(at);
                self.shrunk(&version);
            }
        }
    }
}
