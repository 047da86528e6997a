//! All that is read of `/proc` and `/sys`: a part of one file of a fake machine is replaced, and everything is read.
//!
//! The input: which file (1 byte), from where (2), how many bytes are replaced (1; 255 for the rest), and by what.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/kernel/tests/machine/mod.rs"]
mod machine;

static TREE: OnceLock<tempfile::TempDir> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let tree = TREE.get_or_init(|| {
        let tree = tempfile::tempdir().unwrap();
        machine::make(tree.path());
        tree
    });
    let [file, high, low, length, by @ ..] = data else {
        return;
    };
    let file = usize::from(*file) % machine::FILES.len();
    let right = machine::content(tree.path(), file).into_bytes();
    let start = usize::from(u16::from_be_bytes([*high, *low])).min(right.len());
    let end = match *length {
        u8::MAX => right.len(),
        length => right.len().min(start + usize::from(length)),
    };
    let mut spoilt = right.clone();
    spoilt.splice(start..end, by.iter().copied());
    let path = tree.path().join(machine::FILES[file].0);
    std::fs::write(&path, spoilt).unwrap();
    let _ = machine::read_all(tree.path());
    std::fs::write(&path, right).unwrap();
});
