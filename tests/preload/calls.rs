//! Every call that the preloaded library hooks, made with unusual arguments, plain and under each
//! rule: results, errno, bytes, offsets and files are the same, line by line.
//!
//! Invariants: the programs (`tests/preload/programs_in_c/*.c`) print nothing that differs
//! between two plain runs, as a control shows.

use crate::support;
use std::path::Path;

use crate::support::compare::{Way, assert_same, built, built_library, difference, left_by, ways};
use crate::support::loop_images::LoopImage;
use pagekeeper_testing::Seed;

/// Options of a plain build.
const PLAIN: &[&str] = &["-O1", "-U_FORTIFY_SOURCE"];

/// Options of distributions: checked forms of calls, and 64-bit forms by other names.
const FORTIFIED: &[&str] = &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64"];

/// Compares a program on a disk under each rule, and with other entry points and on a tmpfs under
/// some.
fn compare(name: &str) {
    if !support::can_start(name, &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    assert_same(&built(name, PLAIN), &[], &ways(), scratch.path());
    let some =
        [Way::run(&["--as", "stream"], "stream.file"), Way::run(&["--profile", "mariadb"], "binlog.000001")];
    assert_same(&built(name, FORTIFIED), &[], &some, scratch.path());
    // A tmpfs has no uncached reads and writes and no releases.
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        assert_same(&built(name, PLAIN), &[], &some, memory);
    }
}

#[test]
fn opening_is_the_same() {
    compare("open");
}

#[test]
fn reading_is_the_same() {
    compare("read");
}

#[test]
fn writing_is_the_same() {
    compare("write");
}

#[test]
fn syncing_advising_and_allocating_are_the_same() {
    compare("sync");
}

#[test]
fn renaming_and_unlinking_are_the_same() {
    compare("names");
}

#[test]
fn descriptors_are_the_same() {
    compare("descriptors");
}

#[test]
fn locks_leases_and_watchers_notice_nothing() {
    compare("held");
}

#[test]
fn files_whose_leases_an_open_would_break_are_not_opened() {
    compare("apart");
}

#[test]
fn moving_bytes_in_the_kernel_is_the_same() {
    compare("moves");
}

#[test]
fn mapping_is_the_same() {
    compare("maps");
}

#[test]
fn streams_of_the_c_library_are_the_same() {
    compare("stdio");
}

#[test]
fn calls_handed_to_the_kernel_are_the_same() {
    compare("rings");
}

#[test]
fn raw_calls_are_the_same() {
    compare("raw");
}

#[test]
fn one_call_is_never_split() {
    compare("whole");
}

/// Tests the comparison itself: it finds no difference with an empty library, and one with each
/// wrong library.
#[test]
fn a_wrong_library_is_found_out() {
    if !support::can_start("a wrong library", &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    for (wrong, program) in [
        ("WRONG_ERRNO", "read"),
        ("WRONG_NUMBER", "raw"),
        ("WRONG_HOLD", "held"),
        ("WRONG_BYTE", "names"),
        ("WRONG_LOCK", "held"),
    ] {
        let program = built(program, PLAIN);
        let plain = left_by(&Way::plain(), &program, &[], scratch.path());
        let with = |library: &Path| left_by(&Way::with_library(library), &program, &[], scratch.path());
        let nothing = with(&built_library("wrong", &[]));
        assert_eq!(difference(&plain, &nothing), None, "{program:?} differs by itself");
        let found = difference(&plain, &with(&built_library("wrong", &[&format!("-D{wrong}")])));
        assert!(found.is_some(), "{wrong} goes unnoticed");
    }
}

/// Uses one file at random, on each of these file systems and under each rule, and compares every
/// read with the expected bytes.
fn exercise(seed: u64, steps: u32) {
    let kinds = ["ext4", "xfs", "btrfs"];
    let programs: Vec<String> = kinds.iter().flat_map(|kind| LoopImage::programs(kind)).collect();
    let programs: Vec<&str> = programs.iter().map(String::as_str).chain(["cc"]).collect();
    if !support::can_run("a file that is used at random", &programs) {
        return;
    }
    let program = built("exerciser", PLAIN);
    for kind in kinds {
        let image = LoopImage::new(kind, 1 << 30);
        let left = |way: &Way| left_by(way, &program, &[&seed.to_string(), &steps.to_string()], image.path());
        let plain = left(&Way::plain());
        for way in ways() {
            let now = left(&way);
            let fine = now.code == 0 && now.stdout.last().is_some_and(|line| line.starts_with("fine: "));
            let difference = difference(&plain, &now);
            assert!(
                fine && difference.is_none(),
                "PAGEKEEPER_SEED={seed} repeats this, {steps} steps on {kind}, {}: {difference:?}\n{now:#?}",
                way.label
            );
        }
    }
}

#[test]
fn a_file_used_at_random_keeps_its_content() {
    exercise(Seed::new().0, 1000);
}

#[test]
#[ignore = "minutes: make test-preload"]
fn a_file_used_at_random_for_long_keeps_its_content() {
    let first = Seed::new().0;
    for round in 0..3 {
        exercise(first + round, 20_000);
    }
}

/// The comparison notices a differing byte.
#[test]
fn a_wrong_byte_at_random_is_found_out() {
    if !support::can_start("a wrong byte at random", &["cc"]) {
        return;
    }
    let scratch = support::scratch();
    let wrong = Way::with_library(&built_library("wrong", &["-DWRONG_READ"]));
    let left = left_by(&wrong, &built("exerciser", PLAIN), &["1", "1000"], scratch.path());
    assert!(left.code == 1 && left.stdout.iter().any(|line| line.contains("another byte")), "{left:#?}");
}
