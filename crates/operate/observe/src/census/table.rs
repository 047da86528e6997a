//! The files that have pages in memory, in a compact table with an index by inode and sums by file
//! system.
//!
//! Invariants: an entry exists only while its file has resident pages, or a trace of evicted ones.
//! The sums are those of the entries at any time. An id is reused only after its entry was removed.
//! Pages are counted in 32 bits: 16 TiB per file.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_kernel::{Inode, Residency, ResidencySource, page_size};

/// Directories by number: a path is stored once for all files in it. Directories that are gone are
/// forgotten, and their numbers reused.
#[derive(Debug, Default)]
pub(super) struct DirectoryTable {
    list: Vec<Option<WalkedDirectory>>,
    by_path: HashMap<Arc<Path>, u32>,
    free: Vec<u32>,
    /// The number of rescans that have ended.
    rescan: u32,
}

/// A directory that was walked.
#[derive(Debug, Clone)]
pub(super) struct WalkedDirectory {
    pub(super) path: Arc<Path>,
    /// Its file system: an index into
    /// [`FileSystems::walked`](super::file_systems::FileSystems::walked).
    pub(super) file_system: u16,
    /// The time of the last change of its names, in nanoseconds of its file system's clock; `None`
    /// if it has to be listed to find changes.
    pub(super) changed: Option<i128>,
    /// The rescan of [`DirectoryTable`] in which its number was last requested.
    asked: u32,
}

impl DirectoryTable {
    /// A number that was last requested this many rescans ago, and that no entry has, is no longer
    /// in use. Neither the background thread uses it, which may be a rescan ahead of the reader of
    /// its messages, nor the messages of its last rescan.
    const RESCANS_KEPT: u32 = 3;

    /// Returns the number of a directory, new or known.
    pub(super) fn number(&mut self, path: &Path, file_system: impl FnOnce() -> u16) -> u32 {
        let asked = self.rescan;
        if let Some(known) = self.by_path.get(path).copied() {
            if let Some(directory) = self.get_mut(known) {
                directory.asked = asked;
            }
            return known;
        }
        let path: Arc<Path> = path.into();
        let directory =
            WalkedDirectory { path: Arc::clone(&path), file_system: file_system(), changed: None, asked };
        let number = if let Some(number) = self.free.pop() {
            self.list[number as usize] = Some(directory);
            number
        } else {
            // Each has an inode in memory while it is walked.
            let number = u32::try_from(self.list.len()).expect("fewer than 2^32 directories");
            self.list.push(Some(directory));
            number
        };
        self.by_path.insert(path, number);
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&WalkedDirectory> {
        self.list.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut WalkedDirectory> {
        self.list.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn is_known(&self, path: &Path) -> bool {
        self.by_path.contains_key(path)
    }

    /// Returns a number above all numbers.
    pub(super) fn end(&self) -> u32 {
        u32::try_from(self.list.len()).expect("fewer than 2^32 directories")
    }

    /// Ends a rescan: forgets directories that no rescan has visited since, except the `used` ones.
    pub(super) fn forget(&mut self, used: &HashSet<u32>) {
        self.rescan += 1;
        for (number, slot) in (0_u32..).zip(&mut self.list) {
            let gone = |directory: &mut WalkedDirectory| {
                directory.asked + Self::RESCANS_KEPT <= self.rescan && !used.contains(&number)
            };
            if let Some(directory) = slot.take_if(gone) {
                self.by_path.remove(&directory.path);
                self.free.push(number);
            }
        }
    }
}

/// The name of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileName {
    /// Its name in a directory, by number.
    In(u32, Box<OsStr>),
    /// Its last path before it was removed.
    Deleted(Box<Path>),
    /// Unknown: only its inode number is known.
    Unknown,
}

/// The pages of a file in memory, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CachedPages {
    pub(super) resident: u32,
    pub(super) dirty: u32,
    pub(super) writeback: u32,
    pub(super) evicted: u32,
    pub(super) recently_evicted: u32,
}

impl CachedPages {
    pub(super) fn of(residency: &Residency) -> Self {
        let pages = |bytes: u64| u32::try_from(bytes / page_size()).unwrap_or(u32::MAX);
        let maybe = |bytes: Option<u64>| bytes.map_or(0, pages);
        Self {
            resident: pages(residency.resident),
            dirty: maybe(residency.dirty),
            writeback: maybe(residency.writeback),
            evicted: maybe(residency.evicted),
            recently_evicted: maybe(residency.recently_evicted),
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.resident == 0 && self.evicted == 0
    }
}

/// A file that has pages in memory.
#[derive(Debug, Clone)]
pub(super) struct FileEntry {
    pub(super) inode: Inode,
    pub(super) name: FileName,
    pub(super) size: u64,
    pub(super) pages: CachedPages,
    /// Its file system, as in [`WalkedDirectory`].
    pub(super) file_system: u16,
    /// Whether only the resident pages are known.
    pub(super) resident_only: bool,
    /// The rescan that last saw it.
    pub(super) rescan: u32,
    /// The cost of its last count, in microseconds.
    pub(super) cost: u32,
    /// The tick in which it was last counted.
    pub(super) counted: u32,
}

/// A file with pages in memory, as it was counted.
#[derive(Debug, Clone)]
pub(super) struct FoundFile {
    pub(super) inode: Inode,
    pub(super) name: FileName,
    pub(super) size: u64,
    pub(super) file_system: u16,
    pub(super) residency: Residency,
    /// The cost of the count, in microseconds.
    pub(super) cost: u32,
}

/// Pages of all files of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PageSums {
    pub(super) files: u64,
    pub(super) resident: u64,
    pub(super) dirty: u64,
    pub(super) writeback: u64,
}

/// The table of all entries.
#[derive(Debug, Default)]
pub(super) struct FileTable {
    entries: Vec<Option<FileEntry>>,
    free: Vec<u32>,
    by_inode: HashMap<Inode, u32>,
    sums: Vec<PageSums>,
    /// The resident pages, at the last tick, of entries that changed since.
    before: HashMap<u32, u32>,
}

impl FileTable {
    pub(super) fn with_file_systems(file_systems: usize) -> Self {
        Self { sums: vec![PageSums::default(); file_systems], ..Self::default() }
    }

    pub(super) fn id(&self, inode: Inode) -> Option<u32> {
        self.by_inode.get(&inode).copied()
    }

    pub(super) fn get(&self, id: u32) -> Option<&FileEntry> {
        self.entries.get(id as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut FileEntry> {
        self.entries.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &FileEntry)> {
        let numbered = (0_u32..).zip(&self.entries);
        numbered.filter_map(|(id, entry)| Some((id, entry.as_ref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.by_inode.len()
    }

    /// Returns the numbers of the directories that have entries.
    pub(super) fn directories(&self) -> HashSet<u32> {
        let number = |entry: &FileEntry| match entry.name {
            FileName::In(number, _) => Some(number),
            _ => None,
        };
        self.entries.iter().flatten().filter_map(number).collect()
    }

    /// Returns the sums by file system, in the order of
    /// [`FileSystems::walked`](super::file_systems::FileSystems::walked).
    pub(super) fn sums(&self) -> &[PageSums] {
        &self.sums
    }

    /// Records a counted file. Returns the entry's id if the file has pages in memory.
    pub(super) fn take(&mut self, found: FoundFile, tick: u32, rescan: u32) -> Option<u32> {
        let pages = CachedPages::of(&found.residency);
        let resident_only = found.residency.source == ResidencySource::Mincore;
        let FoundFile { inode, name, size, file_system, cost, .. } = found;
        if let Some(id) = self.id(inode) {
            if let Some(entry) = self.get_mut(id) {
                if name != FileName::Unknown {
                    entry.name = name;
                }
                (entry.size, entry.rescan, entry.cost) = (size, rescan, cost);
                (entry.counted, entry.resident_only) = (tick, resident_only);
            }
            return self.set_pages(id, pages).then_some(id);
        }
        if pages.is_empty() {
            return None;
        }
        let entry =
            FileEntry { inode, name, size, pages, file_system, resident_only, rescan, cost, counted: tick };
        Some(self.insert(entry))
    }

    /// Inserts a file that tracing reported and whose name is not known yet.
    pub(super) fn insert_unknown(
        &mut self,
        inode: Inode,
        file_system: u16,
        resident: u32,
        rescan: u32,
    ) -> u32 {
        let entry = FileEntry {
            inode,
            name: FileName::Unknown,
            size: 0,
            pages: CachedPages { resident, ..CachedPages::default() },
            file_system,
            resident_only: true,
            rescan,
            cost: 0,
            counted: 0,
        };
        self.insert(entry)
    }

    fn insert(&mut self, entry: FileEntry) -> u32 {
        self.sum(entry.file_system, entry.pages, true);
        let inode = entry.inode;
        let id = if let Some(id) = self.free.pop() {
            self.entries[id as usize] = Some(entry);
            id
        } else {
            let id = u32::try_from(self.entries.len()).expect("fewer than 2^32 files");
            self.entries.push(Some(entry));
            id
        };
        self.by_inode.insert(inode, id);
        self.before.insert(id, 0);
        id
    }

    /// Sets an entry's pages. Returns whether the entry still exists.
    pub(super) fn set_pages(&mut self, id: u32, pages: CachedPages) -> bool {
        if pages.is_empty() {
            self.remove(id);
            return false;
        }
        let Some(entry) = self.get_mut(id) else { return false };
        let file_system = entry.file_system;
        let then = std::mem::replace(&mut entry.pages, pages);
        if then != pages {
            self.before.entry(id).or_insert(then.resident);
            self.sum(file_system, then, false);
            self.sum(file_system, pages, true);
        }
        true
    }

    /// Records that a rescan saw the file.
    pub(super) fn mark_seen(&mut self, id: u32, rescan: u32) {
        if let Some(entry) = self.get_mut(id) {
            entry.rescan = rescan;
        }
    }

    pub(super) fn set_name(&mut self, id: u32, name: FileName) {
        if let Some(entry) = self.get_mut(id) {
            entry.name = name;
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        if let Some(entry) = self.entries.get_mut(id as usize).and_then(Option::take) {
            self.by_inode.remove(&entry.inode);
            self.before.remove(&id);
            self.free.push(id);
            self.sum(entry.file_system, entry.pages, false);
        }
    }

    /// Returns the changes of resident pages since the last call, by id.
    pub(super) fn take_changes(&mut self) -> Vec<(u32, i64)> {
        let before = std::mem::take(&mut self.before);
        let change = |(id, then): (u32, u32)| {
            let now = self.get(id)?.pages.resident;
            Some((id, i64::from(now) - i64::from(then)))
        };
        before.into_iter().filter_map(change).collect()
    }

    /// Adds an entry to the sums of its file system, or subtracts it.
    fn sum(&mut self, file_system: u16, pages: CachedPages, add: bool) {
        let Some(sum) = self.sums.get_mut(usize::from(file_system)) else { return };
        let bytes = |pages: u32| u64::from(pages) * page_size();
        for (sum, part) in [
            (&mut sum.files, 1),
            (&mut sum.resident, bytes(pages.resident)),
            (&mut sum.dirty, bytes(pages.dirty)),
            (&mut sum.writeback, bytes(pages.writeback)),
        ] {
            *sum = if add { *sum + part } else { *sum - part };
        }
    }
}

/// The directory of each file of the walk, including files without pages: 12 bytes per file.
#[derive(Debug, Default)]
pub(super) struct DirectoryIndex {
    by_device: HashMap<u64, (Vec<u64>, Vec<u32>)>,
}

impl DirectoryIndex {
    pub(super) fn of(mut files: Vec<(Inode, u32)>) -> Self {
        files.sort_unstable();
        let mut known = Self::default();
        for (inode, directory) in files {
            let (numbers, directories) = known.by_device.entry(inode.dev).or_default();
            numbers.push(inode.ino);
            directories.push(directory);
        }
        for (numbers, directories) in known.by_device.values_mut() {
            numbers.shrink_to_fit();
            directories.shrink_to_fit();
        }
        known
    }

    pub(super) fn directory(&self, inode: Inode) -> Option<u32> {
        let (numbers, directories) = self.by_device.get(&inode.dev)?;
        numbers.binary_search(&inode.ino).ok().map(|at| directories[at])
    }
}

impl FileEntry {
    /// Returns the name to be shown, which is also the path for opening it if it has one.
    pub(super) fn path(&self, directories: &DirectoryTable) -> Option<PathBuf> {
        match &self.name {
            FileName::In(directory, name) => {
                Some(directories.get(*directory)?.path.join(OsString::from(name.clone())))
            }
            FileName::Deleted(path) => Some(path.to_path_buf()),
            FileName::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ino: u64, resident: u64, dirty: u64, evicted: u64) -> FoundFile {
        let residency = Residency {
            resident: resident * page_size(),
            dirty: Some(dirty * page_size()),
            writeback: Some(0),
            evicted: Some(evicted * page_size()),
            recently_evicted: Some(0),
            source: ResidencySource::Cachestat,
        };
        let name = FileName::In(0, OsStr::new("x").into());
        FoundFile { inode: Inode { dev: 1, ino }, name, size: 5, file_system: 1, residency, cost: 3 }
    }

    fn sum(table: &FileTable) -> (u64, u64, u64) {
        let sum = table.sums()[1];
        (sum.files, sum.resident / page_size(), sum.dirty / page_size())
    }

    #[test]
    fn sums_agree_with_the_entries_and_empty_ones_are_removed() {
        let mut table = FileTable::with_file_systems(2);
        assert_eq!(table.take(found(1, 0, 0, 0), 1, 1), None);
        let one = table.take(found(1, 10, 2, 0), 1, 1).unwrap();
        let two = table.take(found(2, 5, 0, 0), 1, 1).unwrap();
        assert_eq!(sum(&table), (2, 15, 2));
        assert_eq!(table.take(found(1, 4, 0, 0), 2, 1), Some(one));
        assert_eq!(sum(&table), (2, 9, 0));
        assert_eq!(table.take(found(2, 0, 0, 0), 2, 1), None);
        assert_eq!((sum(&table), table.get(two).is_none()), ((1, 4, 0), true));
        // A trace of evicted pages is worth an entry.
        assert_eq!(table.take(found(3, 0, 0, 7), 2, 1), Some(two));
        assert_eq!((table.len(), sum(&table)), (2, (2, 4, 0)));
        table.remove(one);
        table.remove(two);
        assert_eq!((table.len(), sum(&table)), (0, (0, 0, 0)));
    }

    #[test]
    fn changes_are_against_the_last_call() {
        let mut table = FileTable::with_file_systems(2);
        let id = table.take(found(1, 10, 0, 0), 1, 1).unwrap();
        assert_eq!(table.take_changes(), [(id, 10)]);
        table.take(found(1, 12, 0, 0), 2, 1);
        table.take(found(1, 7, 0, 0), 2, 1);
        assert_eq!(table.take_changes(), [(id, -3)]);
        table.take(found(1, 7, 0, 0), 3, 1);
        assert_eq!(table.take_changes(), []);
    }

    #[test]
    fn removed_directories_are_forgotten_unless_entries_need_them() {
        let mut directories = DirectoryTable::default();
        let [kept, used, gone] =
            ["/kept", "/used", "/gone"].map(|path| directories.number(Path::new(path), || 0));
        let mut table = FileTable::with_file_systems(2);
        let name = FileName::In(used, OsStr::new("x").into());
        let entry = table.take(FoundFile { name, ..found(1, 1, 0, 0) }, 1, 1).unwrap();
        for _ in 0..DirectoryTable::RESCANS_KEPT {
            assert!(directories.is_known(Path::new("/gone")));
            assert_eq!(directories.number(Path::new("/kept"), || 0), kept);
            directories.forget(&table.directories());
        }
        assert!(!directories.is_known(Path::new("/gone")) && directories.get(gone).is_none());
        assert_eq!(table.get(entry).unwrap().path(&directories).unwrap(), Path::new("/used/x"));
        assert_eq!(directories.number(Path::new("/new"), || 0), gone, "its number is used again");
        assert_eq!(directories.end(), 3);
        table.remove(entry);
        directories.forget(&table.directories());
        assert!(!directories.is_known(Path::new("/used")) && directories.is_known(Path::new("/kept")));
    }

    #[test]
    fn a_name_once_known_stays() {
        let mut table = FileTable::with_file_systems(2);
        let id = table.insert_unknown(Inode { dev: 1, ino: 9 }, 1, 3, 1);
        assert_eq!(table.get(id).unwrap().path(&DirectoryTable::default()), None);
        let mut directories = DirectoryTable::default();
        assert_eq!(directories.number(Path::new("/d"), || 1), 0);
        assert_eq!(directories.number(Path::new("/d"), || 2), 0);
        table.take(found(9, 3, 0, 0), 1, 1);
        table.take(FoundFile { name: FileName::Unknown, ..found(9, 3, 0, 0) }, 1, 1);
        assert_eq!(table.get(id).unwrap().path(&directories).unwrap(), Path::new("/d/x"));
    }

    #[test]
    fn directories_of_files_are_found_by_inode() {
        let inode = |dev, ino| Inode { dev, ino };
        let known = DirectoryIndex::of(vec![(inode(2, 5), 7), (inode(1, 9), 1), (inode(1, 3), 2)]);
        assert_eq!(known.directory(inode(1, 3)), Some(2));
        assert_eq!(known.directory(inode(1, 9)), Some(1));
        assert_eq!(known.directory(inode(2, 5)), Some(7));
        assert_eq!((known.directory(inode(1, 5)), known.directory(inode(3, 5))), (None, None));
    }
}
