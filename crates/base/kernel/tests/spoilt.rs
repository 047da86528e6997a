//! Spoilt files of `/proc` and `/sys`: whatever stands in one of them, reading gives an answer or an error, never a
//! panic.
//!
//! A tree of plain files stands for a whole machine; one of its files is replaced by noise, or parts of it are, and
//! then everything is read. A failure prints the file and its smallest spoilt content, and proptest's seed.

mod machine;

use std::cell::Cell;

use proptest::prelude::*;
use proptest::sample::Index;

use machine::{FILES, content, read_all};

#[derive(Debug, Clone)]
enum Corruption {
    All(Vec<u8>),
    /// Replaces so many bytes at a place.
    Bytes(Index, usize, Vec<u8>),
    /// Replaces the first number at or after a place.
    Number(Index, &'static str),
}

impl Corruption {
    fn done_to(&self, content: &mut Vec<u8>) {
        match self {
            Self::All(noise) => content.clone_from(noise),
            Self::Bytes(at, length, noise) => {
                let at = at.index(content.len() + 1);
                let end = content.len().min(at + length);
                content.splice(at..end, noise.iter().copied());
            }
            Self::Number(at, number) => {
                let at = at.index(content.len() + 1);
                let digit = |content: &[u8], at: usize| content.get(at).is_some_and(u8::is_ascii_digit);
                let start = (at..content.len()).find(|at| digit(content, *at)).unwrap_or(content.len());
                let end = (start..content.len()).find(|at| !digit(content, *at)).unwrap_or(content.len());
                content.splice(start..end, number.bytes());
            }
        }
    }
}

fn corruptions() -> impl Strategy<Value = Corruption> {
    let noise = |length| prop::collection::vec(any::<u8>(), 0..length);
    let numbers = [
        "18446744073709551615",
        "9223372036854775807",
        "99999999999999999999",
        "-1",
        "1e308",
        "ffffffff",
        "",
    ];
    prop_oneof![
        1 => noise(200).prop_map(Corruption::All),
        3 => (any::<Index>(), 0_usize..20, noise(8)).prop_map(|(at, length, noise)| Corruption::Bytes(at, length, noise)),
        4 => (any::<Index>(), prop::sample::select(numbers.to_vec()))
            .prop_map(|(at, number)| Corruption::Number(at, number)),
    ]
}

#[test]
fn the_unspoilt_machine_is_read_without_error() {
    let tree = tempfile::tempdir().unwrap();
    machine::make(tree.path());
    read_all(tree.path()).unwrap();
}

#[test]
fn a_spoilt_file_is_an_answer_or_an_error() {
    let tree = tempfile::tempdir().unwrap();
    machine::make(tree.path());
    let last = Cell::new(0);
    let spoilt = (0..FILES.len(), prop::collection::vec(corruptions(), 1..4));
    proptest!(ProptestConfig::with_cases(500), |((file, spoils) in spoilt)| {
        let write = |file: usize, content: &[u8]| std::fs::write(tree.path().join(FILES[file].0), content).unwrap();
        // Here, since a panic leaves it undone.
        write(last.get(), content(tree.path(), last.get()).as_bytes());
        last.set(file);
        let mut content = content(tree.path(), file).into_bytes();
        for spoil in &spoils {
            spoil.done_to(&mut content);
        }
        write(file, &content);
        let _ = read_all(tree.path());
    });
}
