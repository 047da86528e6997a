//! All parsers of `/proc` and `/sys`: a part of one file of a fake machine is replaced, and
//! everything is read.
//!
//! The input: the number of the file (1 byte), the offset (2), how many bytes are replaced (1; 255
//! for the rest), and the replacement. As it was made, the tree is read without error.

use std::path::Path;

use crate::machine_tree;

thread_local! {
    // Per thread, since a static value is never dropped.
    static TREE: tempfile::TempDir = {
        let tree = crate::scratch();
        machine_tree::make(tree.path());
        machine_tree::read_all(tree.path()).unwrap();
        tree
    };
}

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    TREE.with(|tree| replace(tree.path(), data));
}

fn replace(tree: &Path, data: &[u8]) {
    let [file, high, low, length, by @ ..] = data else {
        return;
    };
    let file = usize::from(*file) % machine_tree::FILES.len();
    let right = machine_tree::content(tree, file).into_bytes();
    let start = usize::from(u16::from_be_bytes([*high, *low])).min(right.len());
    let end = match *length {
        u8::MAX => right.len(),
        length => right.len().min(start + usize::from(length)),
    };
    let mut spoilt = right.clone();
    spoilt.splice(start..end, by.iter().copied());
    let path = tree.join(machine_tree::FILES[file].0);
    std::fs::write(&path, spoilt).unwrap();
    let _ = machine_tree::read_all(tree);
    std::fs::write(&path, right).unwrap();
}

/// Returns each file unchanged.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let files = (0_u8..).zip(machine_tree::FILES);
    files.map(|(file, (_, content))| [&[file, 0, 0, u8::MAX], content.as_bytes()].concat()).collect()
}
