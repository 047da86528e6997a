//! The content of a disk that loses power: the files as they are now, as they were synced, and each
//! change between the two.
//!
//! Invariants:
//! - Synced data stays until it is changed again.
//! - At a power cut each unsynced change is there, not there, or partly there, as a [`CutOutcome`]
//!   says.
//! - Data changes by sectors of the promised size, or by blocks of 4 KiB, in any order. Each length
//!   changes by itself.
//! - Names of a directory change in order up to some change, each change as a whole.
//! - A file is synced by itself, its name by its directory.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use pagekeeper_testing::Rng;

use crate::file::{BLOCK, Change, CutOutcome, File};

/// The root directory.
pub(crate) const ROOT: u64 = 1;

/// Names that one call adds and removes.
type Renames = Vec<(OsString, Option<u64>)>;

#[derive(Debug, Default)]
struct Directory {
    now: BTreeMap<OsString, u64>,
    synced: BTreeMap<OsString, u64>,
    pending: Vec<Renames>,
}

fn rename_all(names: &mut BTreeMap<OsString, u64>, renames: &Renames) {
    for (name, node) in renames {
        match node {
            Some(node) => names.insert(name.clone(), *node),
            None => names.remove(name),
        };
    }
}

impl Directory {
    fn change(&mut self, renames: Renames) {
        rename_all(&mut self.now, &renames);
        self.pending.push(renames);
    }

    fn sync(&mut self) {
        self.synced = self.now.clone();
        self.pending.clear();
    }

    fn cut(&mut self, cut: CutOutcome, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        let kept = match cut {
            CutOutcome::Nothing => 0,
            CutOutcome::Everything => pending.len(),
            CutOutcome::First | CutOutcome::Each(_) => rng.index(pending.len() + 1),
        };
        pending[..kept].iter().for_each(|renames| rename_all(&mut self.synced, renames));
        self.now = self.synced.clone();
    }
}

#[derive(Debug)]
enum Node {
    File(File),
    Directory(Directory),
}

/// All files.
#[derive(Debug)]
pub(crate) struct Medium {
    nodes: HashMap<u64, Node>,
    next: u64,
    /// Bytes that a power cut leaves whole.
    sector: usize,
}

/// The type of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeKind {
    File { size: u64, blocks: u64 },
    Directory,
}

impl Medium {
    pub(crate) fn new(sector: usize) -> Self {
        let nodes = HashMap::from([(ROOT, Node::Directory(Directory::default()))]);
        Self { nodes, next: ROOT + 1, sector }
    }

    pub(crate) fn kind(&self, node: u64) -> Option<NodeKind> {
        self.nodes.get(&node).map(|node| match node {
            Node::File(File { now, .. }) => {
                NodeKind::File { size: now.size, blocks: now.blocks.len() as u64 }
            }
            Node::Directory(_) => NodeKind::Directory,
        })
    }

    fn file(&mut self, node: u64) -> Option<&mut File> {
        match self.nodes.get_mut(&node)? {
            Node::File(file) => Some(file),
            Node::Directory(_) => None,
        }
    }

    fn directory(&mut self, node: u64) -> Option<&mut Directory> {
        match self.nodes.get_mut(&node)? {
            Node::Directory(directory) => Some(directory),
            Node::File(_) => None,
        }
    }

    pub(crate) fn find(&self, parent: u64, name: &OsStr) -> Option<u64> {
        match self.nodes.get(&parent)? {
            Node::Directory(directory) => directory.now.get(name).copied(),
            Node::File(_) => None,
        }
    }

    pub(crate) fn names(&self, parent: u64) -> Vec<(OsString, u64)> {
        match self.nodes.get(&parent) {
            Some(Node::Directory(directory)) => {
                directory.now.iter().map(|(name, node)| (name.clone(), *node)).collect()
            }
            Some(Node::File(_)) | None => Vec::new(),
        }
    }

    /// Creates an empty file or directory; returns `None` where the parent is not a directory.
    pub(crate) fn make(&mut self, parent: u64, name: &OsStr, is_directory: bool) -> Option<u64> {
        let node = self.next;
        self.directory(parent)?.change(vec![(name.to_owned(), Some(node))]);
        let made =
            if is_directory { Node::Directory(Directory::default()) } else { Node::File(File::default()) };
        self.nodes.insert(node, made);
        self.next += 1;
        Some(node)
    }

    /// Removes a name. The file stays for processes that have it open, until the power is cut.
    pub(crate) fn remove(&mut self, parent: u64, name: &OsStr) {
        if let Some(directory) = self.directory(parent) {
            directory.change(vec![(name.to_owned(), None)]);
        }
    }

    pub(crate) fn link(&mut self, node: u64, parent: u64, name: &OsStr) {
        if let Some(directory) = self.directory(parent) {
            directory.change(vec![(name.to_owned(), Some(node))]);
        }
    }

    /// Renames within a directory; returns false between directories, which no subject does.
    pub(crate) fn rename(&mut self, parent: u64, name: &OsStr, new_name: &OsStr) -> bool {
        let Some(node) = self.find(parent, name) else { return false };
        if let Some(directory) = self.directory(parent) {
            directory.change(vec![(name.to_owned(), None), (new_name.to_owned(), Some(node))]);
        }
        true
    }

    /// Exchanges two names of a directory; returns false unless both are there.
    pub(crate) fn exchange(&mut self, parent: u64, name: &OsStr, other: &OsStr) -> bool {
        let (node, other_node) = (self.find(parent, name), self.find(parent, other));
        if let (Some(_), Some(_), Some(directory)) = (node, other_node, self.directory(parent)) {
            directory.change(vec![(name.to_owned(), other_node), (other.to_owned(), node)]);
            return true;
        }
        false
    }

    pub(crate) fn read(&self, node: u64, offset: u64, size: usize) -> Option<Vec<u8>> {
        match self.nodes.get(&node)? {
            Node::File(file) => Some(file.now.read(offset, size)),
            Node::Directory(_) => None,
        }
    }

    pub(crate) fn write(&mut self, node: u64, offset: u64, data: &[u8]) {
        let Some(file) = self.file(node) else { return };
        let end = offset + data.len() as u64;
        if end > file.now.size {
            file.change(Change::Size(end));
        }
        let mut at = offset;
        while at < end {
            let (number, within) = (at / BLOCK as u64, usize::try_from(at % BLOCK as u64).unwrap());
            let rest = &data[usize::try_from(at - offset).unwrap()..];
            let count = (BLOCK - within).min(rest.len());
            let mut block = file.now.block(number);
            block[within..within + count].copy_from_slice(&rest[..count]);
            file.change(Change::Block(number, Arc::new(block)));
            at += count as u64;
        }
    }

    pub(crate) fn resize(&mut self, node: u64, size: u64) {
        if let Some(file) = self.file(node) {
            file.change(Change::Size(size));
        }
    }

    /// Allocates zero blocks where there are none.
    pub(crate) fn allocate(&mut self, node: u64, offset: u64, length: u64, keep_size: bool) {
        let Some(file) = self.file(node) else { return };
        let end = offset + length;
        if end > file.now.size && !keep_size {
            file.change(Change::Size(end));
        }
        for number in offset / BLOCK as u64..end.min(file.now.size).div_ceil(BLOCK as u64) {
            if !file.now.blocks.contains_key(&number) {
                file.change(Change::Block(number, Arc::new([0; BLOCK])));
            }
        }
    }

    /// Writes zeros; whole blocks are freed.
    pub(crate) fn punch(&mut self, node: u64, offset: u64, length: u64) {
        let Some(file) = self.file(node) else { return };
        let end = (offset + length).min(file.now.size);
        let mut at = offset;
        while at < end {
            let (number, within) = (at / BLOCK as u64, usize::try_from(at % BLOCK as u64).unwrap());
            let count = (BLOCK - within).min(usize::try_from(end - at).unwrap());
            if !file.now.blocks.contains_key(&number) {
                // Zeros already.
            } else if count == BLOCK {
                file.change(Change::Hole(number));
            } else {
                let mut block = file.now.block(number);
                block[within..within + count].fill(0);
                file.change(Change::Block(number, Arc::new(block)));
            }
            at += count as u64;
        }
    }

    pub(crate) fn sync(&mut self, node: u64) {
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => file.sync(),
            Some(Node::Directory(directory)) => directory.sync(),
            None => {}
        }
    }

    /// Loses a file's unsynced data for good, although it reads as if it was there until the power
    /// is cut.
    pub(crate) fn lose(&mut self, node: u64) {
        if let Some(file) = self.file(node) {
            file.pending.clear();
        }
    }

    /// Loses a file's unsynced data, and shows the synced data at once.
    pub(crate) fn revert(&mut self, node: u64) {
        if let Some(file) = self.file(node) {
            file.pending.clear();
            file.now = file.synced.clone();
        }
    }

    /// Returns the number of blocks of a write that are not allocated yet.
    pub(crate) fn new_blocks(&self, node: u64, offset: u64, length: u64) -> u64 {
        let Some(Node::File(file)) = self.nodes.get(&node) else { return 0 };
        let numbers = offset / BLOCK as u64..(offset + length).div_ceil(BLOCK as u64);
        numbers.filter(|number| !file.now.blocks.contains_key(number)).count() as u64
    }

    /// Returns the blocks of all files that have a name.
    pub(crate) fn used_blocks(&self) -> u64 {
        let named = self.nodes.values().flat_map(|node| match node {
            Node::Directory(directory) => directory.now.values().copied().collect::<Vec<_>>(),
            Node::File(_) => Vec::new(),
        });
        let blocks = named.filter_map(|node| match self.kind(node) {
            Some(NodeKind::File { blocks, .. }) => Some(blocks),
            Some(NodeKind::Directory) | None => None,
        });
        blocks.sum()
    }

    /// Returns a random block of some file: the file, and its number there.
    pub(crate) fn any_block(&self, rng: &mut Rng) -> Option<(u64, u64)> {
        let mut blocks: Vec<_> = self
            .nodes
            .iter()
            .filter_map(|(&number, node)| match node {
                Node::File(file) if !file.now.blocks.is_empty() => Some((number, &file.now.blocks)),
                Node::File(_) | Node::Directory(_) => None,
            })
            .collect();
        blocks.sort_by_key(|(number, _)| *number);
        if blocks.is_empty() {
            return None;
        }
        let (node, blocks) = blocks[rng.index(blocks.len())];
        let mut numbers: Vec<_> = blocks.keys().copied().collect();
        numbers.sort_unstable();
        Some((node, numbers[rng.index(numbers.len())]))
    }

    /// Cuts the power: from now on the files are what a restart finds.
    pub(crate) fn cut(&mut self, cut: CutOutcome, rng: &mut Rng) {
        let mut numbers: Vec<u64> = self.nodes.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            match self.nodes.get_mut(&number) {
                Some(Node::File(file)) => file.cut(cut, self.sector, rng),
                Some(Node::Directory(directory)) => directory.cut(cut, rng),
                None => {}
            }
        }
        let mut reached = vec![ROOT];
        let mut at = 0;
        while let Some(&node) = reached.get(at) {
            if let Some(Node::Directory(directory)) = self.nodes.get(&node) {
                reached.extend(directory.now.values());
            }
            at += 1;
        }
        self.nodes.retain(|number, _| reached.contains(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::SECTOR;

    fn name() -> &'static OsStr {
        OsStr::new("file")
    }

    fn file() -> (Medium, u64) {
        of_sectors(SECTOR)
    }

    fn of_sectors(sector: usize) -> (Medium, u64) {
        let mut medium = Medium::new(sector);
        let file = medium.make(ROOT, name(), false).unwrap();
        medium.sync(ROOT);
        (medium, file)
    }

    #[test]
    fn synced_writes_survive_and_others_may_not() {
        let mut rng = Rng::from_seed(1);
        let mut seen = [0; 3];
        for _ in 0..200 {
            let (mut medium, file) = file();
            medium.write(file, 0, &[1; 2 * BLOCK]);
            medium.sync(file);
            medium.write(file, 100, &[2; BLOCK]);
            let cut = CutOutcome::random(&mut rng);
            medium.cut(cut, &mut rng);
            let found = medium.read(file, 0, 3 * BLOCK).unwrap();
            assert!(
                found.len() == 2 * BLOCK
                    && found[..100] == [1; 100]
                    && found[BLOCK + 100..] == [1; BLOCK - 100]
            );
            let new: usize = found.iter().map(|&byte| usize::from(byte == 2)).sum();
            seen[match new {
                0 => 0,
                BLOCK => 2,
                _ => 1,
            }] += 1;
        }
        assert!(seen.iter().all(|&times| times > 10), "{seen:?}");
    }

    #[test]
    fn a_sector_is_never_torn() {
        let mut rng = Rng::from_seed(1);
        for sector in [SECTOR, BLOCK] {
            let mut is_torn = false;
            for _ in 0..200 {
                let (mut medium, file) = of_sectors(sector);
                (1..9).for_each(|version| medium.write(file, 0, &[version; 2 * BLOCK]));
                let cut = CutOutcome::random(&mut rng);
                medium.cut(cut, &mut rng);
                let found = medium.read(file, 0, 2 * BLOCK).unwrap();
                let is_whole = |bytes: &[u8]| bytes.iter().all(|byte| *byte == bytes[0]);
                assert!(found.chunks(sector).all(is_whole), "{cut:?}");
                is_torn |= !found.chunks(BLOCK).all(is_whole);
            }
            assert_eq!(is_torn, sector < BLOCK);
        }
    }

    #[test]
    fn names_are_synced_by_their_directory() {
        let mut rng = Rng::from_seed(1);
        let mut medium = Medium::new(SECTOR);
        let file = medium.make(ROOT, name(), false).unwrap();
        medium.write(file, 0, b"text");
        medium.sync(file);
        medium.cut(CutOutcome::Nothing, &mut rng);
        assert_eq!((medium.find(ROOT, name()), medium.kind(file)), (None, None));

        let (mut medium, file) = self::file();
        medium.write(file, 0, b"text");
        medium.sync(file);
        assert!(medium.rename(ROOT, name(), OsStr::new("new")));
        medium.cut(CutOutcome::Nothing, &mut rng);
        assert_eq!(medium.find(ROOT, name()), Some(file));
        assert_eq!(medium.read(file, 0, 10).unwrap(), b"text");
    }

    #[test]
    fn writes_lost_by_a_lying_sync_are_read_until_the_power_cut() {
        let mut rng = Rng::from_seed(1);
        let (mut medium, file) = file();
        medium.write(file, 0, b"text");
        medium.lose(file);
        medium.sync(file);
        assert_eq!(medium.read(file, 0, 10).unwrap(), b"text");
        medium.cut(CutOutcome::Everything, &mut rng);
        assert_eq!(medium.read(file, 0, 10).unwrap(), b"");
    }

    #[test]
    fn holes_and_lengths_are_as_on_any_file_system() {
        let (mut medium, file) = file();
        medium.write(file, 0, &[1; 3 * BLOCK]);
        medium.punch(file, 10, 2 * BLOCK as u64);
        medium.resize(file, 2 * BLOCK as u64 + 20);
        medium.resize(file, 3 * BLOCK as u64);
        let mut expected = vec![0; 3 * BLOCK];
        expected[..10].fill(1);
        expected[2 * BLOCK + 10..2 * BLOCK + 20].fill(1);
        assert!(medium.read(file, 0, 4 * BLOCK).unwrap() == expected);
        assert_eq!(medium.new_blocks(file, 0, 4 * BLOCK as u64), 2);
        medium.allocate(file, 0, 4 * BLOCK as u64, false);
        assert_eq!(medium.kind(file), Some(NodeKind::File { size: 4 * BLOCK as u64, blocks: 4 }));
        assert_eq!(medium.used_blocks(), 4);
    }
}
