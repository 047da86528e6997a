//! The index: pages whose newest version the data file does not have yet, or whose older versions somebody still reads.
//!
//! Invariants:
//! 1. Versions of a page ascend by seq. Those not applied are the newest ones.
//! 2. A page that is not in the index is in the data file as its newest commit left it.
//! 3. A version goes only when no snapshot that lives, or can come, would read it.
//!
//! Locks are held for a look-up or a change of one page only. Nothing fails.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::snapshots::Needed;
use crate::version::{Content, Version};
use crate::{PageNo, Seq};

const SHARDS: usize = 64;

/// Memory of an entry beside its pages, in bytes, about.
const ENTRY: u64 = 96;

type Shard = HashMap<PageNo, Vec<Version>>;

/// The versions in memory.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[RwLock<Shard>]>,
    bytes: AtomicU64,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| RwLock::default()).collect(), bytes: AtomicU64::new(0) }
    }

    fn shard(&self, page: PageNo) -> &RwLock<Shard> {
        // Neighbours in different shards; the remainder is below 64.
        &self.shards[usize::try_from(page % SHARDS as u64).unwrap_or(0)]
    }

    fn read(&self, page: PageNo) -> RwLockReadGuard<'_, Shard> {
        self.shard(page).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, page: PageNo) -> RwLockWriteGuard<'_, Shard> {
        self.shard(page).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn grown(&self, version: &Version) {
        self.bytes.fetch_add(ENTRY + version.content.size(), Ordering::Relaxed);
    }

    fn shrunk(&self, version: &Version) {
        self.bytes.fetch_sub(ENTRY + version.content.size(), Ordering::Relaxed);
    }

    /// The newest version up to `seq`.
    pub(crate) fn get(&self, page: PageNo, seq: Seq) -> Option<Version> {
        let shard = self.read(page);
        shard.get(&page)?.iter().rev().find(|version| version.seq <= seq).cloned()
    }

    /// Whether there is any version of the page.
    pub(crate) fn has(&self, page: PageNo) -> bool {
        self.read(page).contains_key(&page)
    }

    /// Adds what a commit made of a page; versions that nobody needs any more go.
    pub(crate) fn push(&self, page: PageNo, seq: Seq, content: Content, needed: &Needed) {
        let version = Version { seq, applied: false, content };
        self.grown(&version);
        let mut shard = self.write(page);
        let versions = shard.entry(page).or_default();
        debug_assert!(versions.last().is_none_or(|last| last.seq < seq));
        versions.push(version);
        self.prune(versions, needed);
    }

    /// Adds what recovery found: the change is done to what was found before.
    pub(crate) fn replay(&self, page: PageNo, seq: Seq, change: crate::format::entry::Change) {
        let mut shard = self.write(page);
        let versions = shard.entry(page).or_default();
        let before = versions.pop();
        let mut replay = match before {
            Some(before) => {
                self.shrunk(&before);
                match before.content {
                    Content::Replay(replay) => std::sync::Arc::unwrap_or_clone(replay),
                    Content::Whole(_) => unreachable!("nothing is read while the journal is"),
                }
            }
            None => crate::version::Replay::default(),
        };
        replay.push(change);
        let version = Version { seq, applied: false, content: Content::Replay(replay.into()) };
        self.grown(&version);
        versions.push(version);
    }

    /// A replay was put together.
    pub(crate) fn settle(&self, page: PageNo, seq: Seq, content: Content) {
        let mut shard = self.write(page);
        let Some(versions) = shard.get_mut(&page) else { return };
        let found = versions.iter_mut().find(|version| version.seq == seq);
        if let Some(version) = found
            && matches!(version.content, Content::Replay(_))
        {
            self.shrunk(version);
            version.content = content;
            self.grown(version);
        }
    }

    /// Keeps what the data file has of a page, for snapshots older than its first version here.
    pub(crate) fn keep_base(&self, page: PageNo, seq: Seq, content: Content) {
        let mut shard = self.write(page);
        let Some(versions) = shard.get_mut(&page) else { return };
        if versions.first().is_some_and(|first| seq < first.seq) {
            let version = Version { seq, applied: true, content };
            self.grown(&version);
            versions.insert(0, version);
        }
    }

    /// Whether a snapshot as old as `oldest` would miss what the data file has of the page now, once it is overwritten.
    pub(crate) fn base_is_needed(&self, page: PageNo, oldest: Seq) -> bool {
        let shard = self.read(page);
        let first = shard.get(&page).and_then(|versions| versions.first());
        first.is_some_and(|first| !first.applied && first.seq > oldest)
    }

    /// The data file has the page as of `seq` now.
    pub(crate) fn applied(&self, page: PageNo, seq: Seq, needed: &Needed) {
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

    /// Pages that the data file does not have as they were at `seq`, in order.
    pub(crate) fn unapplied(&self, seq: Seq) -> Vec<PageNo> {
        let mut pages = Vec::new();
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            let due = |versions: &Vec<Version>| {
                versions.iter().any(|version| !version.applied && version.seq <= seq)
            };
            pages.extend(shard.iter().filter(|(_, versions)| due(versions)).map(|(page, _)| *page));
        }
        pages.sort_unstable();
        pages
    }

    /// How many pages have a version that is not applied.
    pub(crate) fn unapplied_pages(&self) -> u64 {
        let count = |shard: &RwLock<Shard>| {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.values().filter(|versions| versions.iter().any(|version| !version.applied)).count() as u64
        };
        self.shards.iter().map(count).sum()
    }

    /// Lets all versions go that nobody needs any more. Gives the bytes of those that are kept for snapshots only.
    pub(crate) fn prune_all(&self, needed: &Needed) -> u64 {
        let mut kept = 0;
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|_, versions| {
                self.prune(versions, needed);
                if let [version] = &versions[..]
                    && version.applied
                {
                    self.shrunk(version);
                    return false;
                }
                let applied = versions.iter().filter(|version| version.applied);
                kept += applied.map(|version| ENTRY + version.content.size()).sum::<u64>();
                true
            });
        }
        kept
    }

    fn prune(&self, versions: &mut Vec<Version>, needed: &Needed) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::format::page::PageKind;
    use crate::version::Whole;

    fn content(byte: u8) -> Content {
        Content::Whole(Whole::new(PageKind::Data, Arc::from(vec![byte; 4096])))
    }

    fn needed(live: &[Seq], visible: Seq) -> Needed {
        Needed { live: live.to_vec(), visible }
    }

    fn seqs(index: &Index, page: PageNo) -> Vec<Seq> {
        index.read(page).get(&page).map_or(Vec::new(), |all| all.iter().map(|version| version.seq).collect())
    }

    #[test]
    fn versions_are_kept_as_long_as_a_snapshot_may_read_them() {
        let index = Index::new();
        for seq in 1..=6 {
            index.push(7, seq, content(0), &needed(&[2], 4));
        }
        // 2 is read, 4 can be, and what is to come.
        assert_eq!(seqs(&index, 7), [2, 4, 5, 6]);
        assert_eq!(index.get(7, 3).unwrap().seq, 2);
        assert!(index.get(7, 1).is_none() && index.get(8, 9).is_none());
        index.prune_all(&needed(&[], 6));
        assert_eq!(seqs(&index, 7), [6]);
    }

    #[test]
    fn a_page_goes_when_the_data_file_has_its_newest_version() {
        let index = Index::new();
        index.push(1, 5, content(5), &needed(&[], 5));
        index.push(1, 9, content(9), &needed(&[5], 9));
        assert_eq!(index.unapplied(9), [1]);
        index.applied(1, 5, &needed(&[5], 9));
        assert_eq!((seqs(&index, 1), index.unapplied(5)), (vec![5, 9], vec![]));
        index.applied(1, 9, &needed(&[5], 9));
        // The old one is read; without the new one beside it, it would be taken for the newest.
        assert_eq!((seqs(&index, 1), index.unapplied_pages()), (vec![5, 9], 0));
        index.prune_all(&needed(&[], 9));
        assert_eq!((seqs(&index, 1), index.bytes()), (vec![], 0));
    }

    #[test]
    fn what_is_overwritten_is_kept_for_older_snapshots() {
        let index = Index::new();
        index.push(1, 5, content(5), &needed(&[3], 5));
        assert!(index.base_is_needed(1, 3) && !index.base_is_needed(1, 5));
        index.keep_base(1, 2, content(2));
        assert!(!index.base_is_needed(1, 3));
        assert_eq!(index.get(1, 3).unwrap().seq, 2);
        index.applied(1, 5, &needed(&[3], 5));
        assert_eq!(seqs(&index, 1), [2, 5]);
    }
}
