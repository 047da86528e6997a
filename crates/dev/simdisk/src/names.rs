//! The directory tree of the simulated disk: the visible tree, the durable one, and the pending
//! changes between them.
//!
//! Invariants: each name except the root has a directory above it, both now and after a crash. A
//! change of a directory is durable once that directory has been synced. Before that, each
//! operation may persist or not, independently and in any order. A rename is one operation, even
//! between directories: at no time is the file without a name (unless another one has taken its old
//! name). A sync of the new directory makes the new name durable; a sync of the old one also
//! removes the old name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use crate::crash::CrashOutcome;

/// The file or directory of a name, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedNode {
    File(u64),
    Directory(u64),
}

type NameTree = BTreeMap<Arc<Path>, NamedNode>;

#[derive(Debug, Clone, Default)]
pub(crate) struct NameTable {
    seen: NameTree,
    durable: NameTree,
    /// Changes since the last sync, in order.
    pending: Vec<PendingNameChange>,
}

#[derive(Debug, Clone)]
struct PendingNameChange {
    number: u64,
    change: NameChange,
}

#[derive(Debug, Clone)]
enum NameChange {
    Link {
        path: Arc<Path>,
        node: NamedNode,
    },
    Unlink {
        path: Arc<Path>,
        node: NamedNode,
        /// The new name in another directory, a change of the same number. The old name must not
        /// vanish without it.
        moved_to: Option<Arc<Path>>,
    },
    /// A rename within one directory.
    Rename {
        from: Arc<Path>,
        to: Arc<Path>,
        node: NamedNode,
    },
    /// Two files of one directory, each with its new name.
    Exchange([(Arc<Path>, NamedNode); 2]),
}

/// The number of the root.
pub(crate) const ROOT_NUMBER: u64 = 0;

impl NameTable {
    /// Returns the file or directory of a name. `/` and the directory where relative names begin
    /// are the same.
    pub(crate) fn find(&self, path: &Path) -> Option<NamedNode> {
        look_up(&self.seen, path)
    }

    /// Returns the number of the directory of a name, or `ENOENT` or `ENOTDIR`.
    pub(crate) fn parent(&self, path: &Path) -> Result<u64, i32> {
        self.directory(above(path))
    }

    /// Returns the number of a directory, or `ENOENT` or `ENOTDIR`.
    pub(crate) fn directory(&self, path: &Path) -> Result<u64, i32> {
        match self.find(path) {
            Some(NamedNode::Directory(number)) => Ok(number),
            Some(NamedNode::File(_)) => Err(libc::ENOTDIR),
            None => Err(libc::ENOENT),
        }
    }

    /// Returns the names in a directory, sorted.
    pub(crate) fn list(&self, dir: &Path) -> Vec<OsString> {
        let inside =
            self.seen.keys().filter(|path| above(path) == dir || is_root(dir) && is_root(above(path)));
        let mut names: Vec<_> = inside.filter_map(|path| path.file_name()).map(OsString::from).collect();
        names.sort_unstable();
        names
    }

    /// Whether a number still has a name, or could have one after a crash.
    pub(crate) fn refer_to(&self, number: u64) -> bool {
        let is = |node: &NamedNode| *node == NamedNode::File(number);
        self.seen.values().any(is)
            || self.durable.values().any(is)
            || self.pending.iter().any(|pending| match &pending.change {
                NameChange::Link { node, .. }
                | NameChange::Rename { node, .. }
                | NameChange::Unlink { node, .. } => is(node),
                NameChange::Exchange(both) => both.iter().any(|(_, node)| is(node)),
            })
    }

    /// Adds a name, in place of an existing one.
    pub(crate) fn link(&mut self, number: u64, path: &Path, node: NamedNode) {
        self.change(number, NameChange::Link { path: path.into(), node });
    }

    /// Removes a name.
    pub(crate) fn unlink(&mut self, number: u64, path: &Path) {
        if let Some(node) = self.find(path) {
            self.change(number, NameChange::Unlink { path: path.into(), node, moved_to: None });
        }
    }

    /// Renames a file.
    pub(crate) fn rename(&mut self, number: u64, from: &Path, to: &Path) {
        let Some(node) = self.find(from) else { return };
        if from == to {
            return;
        }
        let (from, to): (Arc<Path>, Arc<Path>) = (from.into(), to.into());
        if above(&from) == above(&to) {
            return self.change(number, NameChange::Rename { from, to, node });
        }
        self.change(number, NameChange::Link { path: Arc::clone(&to), node });
        self.change(number, NameChange::Unlink { path: from, node, moved_to: Some(to) });
    }

    /// Exchanges the names of two files in one directory.
    pub(crate) fn exchange(&mut self, number: u64, one: &Path, other: &Path) {
        debug_assert_eq!(above(one), above(other), "no crash can part them");
        if let (Some(node), Some(other_node)) = (self.find(one), self.find(other)) {
            self.change(number, NameChange::Exchange([(other.into(), node), (one.into(), other_node)]));
        }
    }

    fn change(&mut self, number: u64, change: NameChange) {
        change.apply(&mut self.seen);
        self.pending.push(PendingNameChange { number, change });
    }

    /// Makes the changes in a directory durable.
    pub(crate) fn sync(&mut self, dir: &Path) {
        self.sync_until(dir, u64::MAX);
    }

    /// Makes the changes in a directory durable, up to a change.
    fn sync_until(&mut self, dir: &Path, last: u64) {
        let is_due = |pending: &PendingNameChange| pending.number <= last && pending.change.is_in(dir);
        while let Some(at) = self.pending.iter().position(is_due) {
            let PendingNameChange { number, change } = self.pending.remove(at);
            if let NameChange::Unlink { moved_to: Some(to), .. } = &change {
                // The new name comes first, in directories that exist.
                for dir in to.ancestors().skip(1) {
                    self.sync_until(dir, number);
                }
            }
            change.apply(&mut self.durable);
        }
    }

    /// Fails a sync: the changes in the directory never become durable.
    pub(crate) fn fail_sync(&mut self, dir: &Path) {
        let inside = self.pending.iter().filter(|pending| pending.change.is_in(dir));
        let lost: Vec<_> = inside.map(|pending| pending.number).collect();
        self.pending.retain(|pending| !lost.contains(&pending.number));
    }

    /// Returns the missing directories above a name, the uppermost first.
    pub(crate) fn missing_above(&self, path: &Path) -> Vec<Arc<Path>> {
        let mut missing: Vec<Arc<Path>> =
            path.ancestors().skip(1).filter(|dir| self.find(dir).is_none()).map(Arc::from).collect();
        missing.reverse();
        missing
    }

    /// Returns the numbers of unsynced changes.
    pub(crate) fn pending(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|pending| pending.number)
    }

    /// Returns the tree as found after a power cut.
    pub(crate) fn after_power_cut(&self, fate: &CrashOutcome) -> Self {
        let mut tree = self.durable.clone();
        for PendingNameChange { number, change } in &self.pending {
            let possible = match change {
                NameChange::Unlink { moved_to: Some(to), .. } => has_all_above(&tree, to),
                NameChange::Unlink { moved_to: None, .. }
                | NameChange::Link { .. }
                | NameChange::Rename { .. }
                | NameChange::Exchange(_) => true,
            };
            if possible && fate.keeps(*number) {
                change.apply(&mut tree);
            }
        }
        // The content of a missing directory is missing as well. In the order of paths, directories
        // come before their content.
        let mut found = NameTree::new();
        for (path, node) in tree {
            if matches!(look_up(&found, above(&path)), Some(NamedNode::Directory(_))) {
                found.insert(path, node);
            }
        }
        Self { seen: found.clone(), durable: found, pending: Vec::new() }
    }

    /// Returns all files that have a name.
    pub(crate) fn files(&self) -> impl Iterator<Item = u64> {
        self.seen.values().filter_map(|node| match node {
            NamedNode::File(number) => Some(*number),
            NamedNode::Directory(_) => None,
        })
    }
}

impl NameChange {
    fn apply(&self, tree: &mut NameTree) {
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
            Self::Exchange(both) => tree.extend(both.iter().cloned()),
        }
    }

    fn is_in(&self, dir: &Path) -> bool {
        let (Self::Link { path, .. }
        | Self::Unlink { path, .. }
        | Self::Rename { to: path, .. }
        | Self::Exchange([(path, _), _])) = self;
        above(path) == dir || is_root(dir) && is_root(above(path))
    }
}

fn look_up(tree: &NameTree, path: &Path) -> Option<NamedNode> {
    if is_root(path) {
        return Some(NamedNode::Directory(ROOT_NUMBER));
    }
    tree.get(path).copied()
}

fn has_all_above(tree: &NameTree, path: &Path) -> bool {
    path.ancestors().skip(1).all(|dir| look_up(tree, dir).is_some())
}

fn is_root(path: &Path) -> bool {
    path.parent().is_none()
}

/// Returns the directory of a name.
fn above(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Persistence;

    fn names_of(tree: &NameTable) -> Vec<&str> {
        tree.seen.keys().map(|path| path.to_str().unwrap()).collect()
    }

    /// Returns the tree after a crash with this persistence.
    fn after(names: &NameTable, persistence: Persistence) -> NameTable {
        names.after_power_cut(&CrashOutcome::new(persistence, 0, names.pending().collect()))
    }

    #[test]
    fn a_name_is_durable_when_its_directory_was_synced() {
        let mut names = NameTable::default();
        names.link(1, "/a".as_ref(), NamedNode::Directory(1));
        names.link(2, "/a/x".as_ref(), NamedNode::File(2));
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
    fn exchanged_files_have_both_names_after_a_crash() {
        let mut names = NameTable::default();
        let found =
            |names: &NameTable| ["/x", "/y"].map(|path| names.find(path.as_ref()).expect("it is there"));
        let before = [NamedNode::File(1), NamedNode::File(2)];
        names.link(1, "/x".as_ref(), before[0]);
        names.link(2, "/y".as_ref(), before[1]);
        names.sync("/".as_ref());
        names.exchange(3, "/x".as_ref(), "/y".as_ref());
        let after_exchange = [before[1], before[0]];
        assert_eq!(found(&names), after_exchange);
        assert_eq!(found(&after(&names, Persistence::None)), before);
        assert_eq!(found(&after(&names, Persistence::All)), after_exchange);
        names.sync("/".as_ref());
        assert_eq!(found(&after(&names, Persistence::None)), after_exchange);
    }

    #[test]
    fn a_failed_sync_makes_nothing_durable_later() {
        let mut names = NameTable::default();
        names.link(1, "/x".as_ref(), NamedNode::File(1));
        names.fail_sync("/".as_ref());
        names.sync("/".as_ref());
        assert_eq!(names_of(&names), ["/x"]);
        assert!(names_of(&after(&names, Persistence::All)).is_empty());
    }

    #[test]
    fn a_file_that_moves_is_never_without_a_name() {
        let mut names = NameTable::default();
        for (number, dir) in [(1, "/a"), (2, "/b")] {
            names.link(number, dir.as_ref(), NamedNode::Directory(number));
        }
        names.link(3, "/a/x".as_ref(), NamedNode::File(3));
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
