//! The directory tree of the simulated disk: as it is seen, as it would be after a power cut, and the pending changes between.
//!
//! Invariants: each name but the root's has a directory above it, both now and after a crash. A change of a directory is durable once
//! that directory has been synced. Before that it may persist or not, each operation by itself and in any order. But a rename is one
//! operation: no file is without a name in between (unless another has taken its old one), also when it moves between directories. Syncing
//! the new directory makes the new name durable; syncing the old one removes the old name as well.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::crash::Fate;

/// What a name stands for, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Directory(u64),
}

type Tree = BTreeMap<Arc<Path>, Node>;

#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    seen: Tree,
    durable: Tree,
    /// What was done since, in order.
    pending: Vec<Pending>,
}

#[derive(Debug, Clone)]
struct Pending {
    number: u64,
    change: Change,
}

#[derive(Debug, Clone)]
enum Change {
    Link {
        path: Arc<Path>,
        node: Node,
    },
    Unlink {
        path: Arc<Path>,
        node: Node,
        /// Its name in another directory, without which it is not to lose this one. That was a change of the same number.
        moved_to: Option<Arc<Path>>,
    },
    /// Within one directory.
    Rename {
        from: Arc<Path>,
        to: Arc<Path>,
        node: Node,
    },
}

/// The number of the root.
pub(super) const ROOT: u64 = 0;

impl Names {
    /// What a name stands for. `/` and the directory that relative names begin in are the same one.
    pub(super) fn find(&self, path: &Path) -> Option<Node> {
        look_up(&self.seen, path)
    }

    /// The directory that a name is in: its number, or `ENOENT` or `ENOTDIR`.
    pub(super) fn parent(&self, path: &Path) -> Result<u64, i32> {
        self.directory(above(path))
    }

    /// A directory's number, or `ENOENT` or `ENOTDIR`.
    pub(super) fn directory(&self, path: &Path) -> Result<u64, i32> {
        match self.find(path) {
            Some(Node::Directory(number)) => Ok(number),
            Some(Node::File(_)) => Err(libc::ENOTDIR),
            None => Err(libc::ENOENT),
        }
    }

    /// What is in a directory, sorted.
    pub(super) fn list(&self, dir: &Path) -> Vec<OsString> {
        let inside =
            self.seen.keys().filter(|path| above(path) == dir || is_root(dir) && is_root(above(path)));
        let mut names: Vec<_> = inside.filter_map(|path| path.file_name()).map(OsString::from).collect();
        names.sort_unstable();
        names
    }

    /// Whether a number still has a name, or could have one after a crash.
    pub(super) fn refer_to(&self, number: u64) -> bool {
        let is = |node: &Node| *node == Node::File(number);
        self.seen.values().any(is)
            || self.durable.values().any(is)
            || self.pending.iter().any(|pending| match &pending.change {
                Change::Link { node, .. } | Change::Rename { node, .. } | Change::Unlink { node, .. } => {
                    is(node)
                }
            })
    }

    /// Gives a name, in place of what has it.
    pub(super) fn link(&mut self, number: u64, path: &Path, node: Node) {
        self.change(number, Change::Link { path: path.into(), node });
    }

    /// Takes a name away.
    pub(super) fn unlink(&mut self, number: u64, path: &Path) {
        if let Some(node) = self.find(path) {
            self.change(number, Change::Unlink { path: path.into(), node, moved_to: None });
        }
    }

    /// Gives a file another name.
    pub(super) fn rename(&mut self, number: u64, from: &Path, to: &Path) {
        let Some(node) = self.find(from) else { return };
        if from == to {
            return;
        }
        let (from, to): (Arc<Path>, Arc<Path>) = (from.into(), to.into());
        if above(&from) == above(&to) {
            return self.change(number, Change::Rename { from, to, node });
        }
        self.change(number, Change::Link { path: Arc::clone(&to), node });
        self.change(number, Change::Unlink { path: from, node, moved_to: Some(to) });
    }

    fn change(&mut self, number: u64, change: Change) {
        change.apply(&mut self.seen);
        self.pending.push(Pending { number, change });
    }

    /// Makes durable what was done in a directory.
    pub(super) fn sync(&mut self, dir: &Path) {
        self.sync_until(dir, u64::MAX);
    }

    /// Makes durable what was done in a directory up to a change.
    fn sync_until(&mut self, dir: &Path, last: u64) {
        let is_due = |pending: &Pending| pending.number <= last && pending.change.is_in(dir);
        while let Some(at) = self.pending.iter().position(is_due) {
            let Pending { number, change } = self.pending.remove(at);
            if let Change::Unlink { moved_to: Some(to), .. } = &change {
                // It has the new name first, in directories that are there.
                for dir in to.ancestors().skip(1) {
                    self.sync_until(dir, number);
                }
            }
            change.apply(&mut self.durable);
        }
    }

    /// A sync that fails: what was done in the directory will never be durable.
    pub(super) fn fail_sync(&mut self, dir: &Path) {
        let inside = self.pending.iter().filter(|pending| pending.change.is_in(dir));
        let lost: Vec<_> = inside.map(|pending| pending.number).collect();
        self.pending.retain(|pending| !lost.contains(&pending.number));
    }

    /// The directories above a name that are missing, the uppermost first.
    pub(super) fn missing_above(&self, path: &Path) -> Vec<Arc<Path>> {
        let mut missing: Vec<Arc<Path>> =
            path.ancestors().skip(1).filter(|dir| self.find(dir).is_none()).map(Arc::from).collect();
        missing.reverse();
        missing
    }

    /// The numbers of what was not synced.
    pub(super) fn pending(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|pending| pending.number)
    }

    /// The tree as it is found after a power cut.
    pub(super) fn after_power_cut(&self, fate: &Fate) -> Self {
        let mut tree = self.durable.clone();
        for Pending { number, change } in &self.pending {
            let possible = match change {
                Change::Unlink { moved_to: Some(to), .. } => has_all_above(&tree, to),
                Change::Unlink { moved_to: None, .. } | Change::Link { .. } | Change::Rename { .. } => true,
            };
            if possible && fate.keeps(*number) {
                change.apply(&mut tree);
            }
        }
        // What is in a directory that is not there is not there. Those above come first in the order of paths.
        let mut found = Tree::new();
        for (path, node) in tree {
            if matches!(look_up(&found, above(&path)), Some(Node::Directory(_))) {
                found.insert(path, node);
            }
        }
        Self { seen: found.clone(), durable: found, pending: Vec::new() }
    }

    /// All files that have a name.
    pub(super) fn files(&self) -> impl Iterator<Item = u64> {
        self.seen.values().filter_map(|node| match node {
            Node::File(number) => Some(*number),
            Node::Directory(_) => None,
        })
    }
}

impl Change {
    fn apply(&self, tree: &mut Tree) {
        match self {
            Self::Link { path, node } => {
                tree.insert(Arc::clone(path), *node);
            }
            Self::Unlink { path, node, .. } => {
                if tree.get(path) == Some(node) {
                    tree.remove(path);
                }
            }
            Self::Rename { from, to, node } => {
                if tree.get(from) == Some(node) {
                    tree.remove(from);
                }
                tree.insert(Arc::clone(to), *node);
            }
        }
    }

    fn is_in(&self, dir: &Path) -> bool {
        let (Self::Link { path, .. } | Self::Unlink { path, .. } | Self::Rename { to: path, .. }) = self;
        above(path) == dir || is_root(dir) && is_root(above(path))
    }
}

fn look_up(tree: &Tree, path: &Path) -> Option<Node> {
    if is_root(path) {
        return Some(Node::Directory(ROOT));
    }
    tree.get(path).copied()
}

fn has_all_above(tree: &Tree, path: &Path) -> bool {
    path.ancestors().skip(1).all(|dir| look_up(tree, dir).is_some())
}

fn is_root(path: &Path) -> bool {
    path.parent().is_none()
}

/// The directory that a name is in.
fn above(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::super::crash::Persistence;
    use super::*;

    fn names_of(tree: &Names) -> Vec<&str> {
        tree.seen.keys().map(|path| path.to_str().unwrap()).collect()
    }

    /// What is found when all persists, or nothing.
    fn after(names: &Names, persistence: Persistence) -> Names {
        names.after_power_cut(&Fate::new(persistence, 0, names.pending().collect()))
    }

    #[test]
    fn a_name_is_durable_when_its_directory_was_synced() {
        let mut names = Names::default();
        names.link(1, "/a".as_ref(), Node::Directory(1));
        names.link(2, "/a/x".as_ref(), Node::File(2));
        names.sync("/a".as_ref());
        assert_eq!(names_of(&after(&names, Persistence::All)), ["/a", "/a/x"]);
        assert!(names_of(&after(&names, Persistence::None)).is_empty(), "the directory itself is lost");
        names.sync("/".as_ref());
        assert_eq!(names_of(&after(&names, Persistence::None)), ["/a", "/a/x"]);
        names.unlink(3, "/a/x".as_ref());
        assert_eq!(names_of(&names), ["/a"]);
        assert_eq!(names_of(&after(&names, Persistence::None)), ["/a", "/a/x"]);
        assert!(names.refer_to(2));
        names.sync("/a".as_ref());
        assert_eq!(names_of(&after(&names, Persistence::None)), ["/a"]);
        assert!(!names.refer_to(2));
    }

    #[test]
    fn a_failed_sync_makes_nothing_durable_later() {
        let mut names = Names::default();
        names.link(1, "/x".as_ref(), Node::File(1));
        names.fail_sync("/".as_ref());
        names.sync("/".as_ref());
        assert_eq!(names_of(&names), ["/x"]);
        assert!(names_of(&after(&names, Persistence::All)).is_empty());
    }

    #[test]
    fn a_file_that_moves_is_never_without_a_name() {
        let mut names = Names::default();
        for (number, dir) in [(1, "/a"), (2, "/b")] {
            names.link(number, dir.as_ref(), Node::Directory(number));
        }
        names.link(3, "/a/x".as_ref(), Node::File(3));
        for dir in ["/", "/a"] {
            names.sync(dir.as_ref());
        }
        names.rename(4, "/a/x".as_ref(), "/b/y".as_ref());
        assert_eq!(names_of(&names), ["/a", "/b", "/b/y"]);
        assert_eq!(names_of(&after(&names, Persistence::None)), ["/a", "/a/x", "/b"]);
        assert_eq!(names_of(&after(&names, Persistence::All)), ["/a", "/b", "/b/y"]);
        let mut other = names.clone();
        other.sync("/b".as_ref());
        assert_eq!(names_of(&after(&other, Persistence::None)), ["/a", "/a/x", "/b", "/b/y"]);
        names.sync("/a".as_ref());
        assert_eq!(names_of(&after(&names, Persistence::None)), ["/a", "/b", "/b/y"]);
    }
}
