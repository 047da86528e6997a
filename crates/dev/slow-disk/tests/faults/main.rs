//! Store, redo log, binlog and SQLite on a disk that loses power, fails and lies, in processes that
//! are killed. As root, with FUSE.
//!
//! `PAGEKEEPER_FAULT_CYCLES` sets the number of cycles per test; `make test-faults` has 500. A
//! failure prints the seed of its life: with `PAGEKEEPER_SEED` set to it that life is the first
//! one.

mod cycle;
mod database;
mod device;
mod disk;
mod file;
mod medium;
mod oracle;
mod serve;
mod subjects;

use std::path::Path;
use std::time::Instant;

use cycle::{DiskBehaviour, FilePlace, LifeCounts, SubjectLife};
use pagekeeper_testing::{Seed, skip};
use subjects::Subject;

/// Cycles of a life; with a file system in between half as many.
const CYCLES_PER_LIFE: u64 = 10;

/// Whether such disks can be created here.
fn possible(place: FilePlace) -> bool {
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if !rustix::process::geteuid().is_root() {
        skip("a disk that fails needs root");
    } else if fuse.is_err() {
        skip("a disk that fails needs /dev/fuse");
    } else if let FilePlace::On(kind) = place
        && (!Path::new("/dev/loop-control").exists()
            || std::process::Command::new(format!("mkfs.{kind}")).arg("-V").output().is_err())
    {
        skip(format_args!("{kind} on a disk that fails needs mkfs.{kind} and loop devices"));
    } else {
        return true;
    }
    false
}

fn cycles(few: u64) -> u64 {
    std::env::var("PAGEKEEPER_FAULT_CYCLES").map_or(few, |cycles| cycles.parse().unwrap())
}

fn add(sum: &mut LifeCounts, account: &LifeCounts) {
    sum.cycles += account.cycles;
    sum.openings += account.openings;
    sum.acknowledgements += account.acknowledgements;
    sum.syncs += account.syncs;
    sum.lies += account.lies;
    sum.failed_syncs += account.failed_syncs;
    sum.ruined += account.ruined;
}

/// Runs lives until this many cycles: everything acknowledged must be there.
fn nothing_is_lost(subject: Subject, place: FilePlace, few: u64) {
    if !possible(place) {
        return;
    }
    let (seed, cycles, began) = (Seed::new().0, cycles(few), Instant::now());
    let mut sum = LifeCounts::default();
    let length = if place == FilePlace::Files { CYCLES_PER_LIFE } else { CYCLES_PER_LIFE / 2 };
    for life in 0..cycles.div_ceil(length) {
        let seed = seed.wrapping_add(life);
        let manner = if seed % 2 == 1 { DiskBehaviour::Failing } else { DiskBehaviour::Honest };
        let lived = SubjectLife::new(subject, place, manner, seed).run(length.min(cycles - sum.cycles));
        let account = lived.unwrap_or_else(|what| {
            panic!(
                "{subject:?} on {place:?}, {manner:?}, {what}; PAGEKEEPER_SEED={seed} begins with this life"
            )
        });
        add(&mut sum, &account);
    }
    println!("{subject:?} on {place:?}: {sum:?} in {:.0?}", began.elapsed());
    assert!(sum.openings > cycles / 4 && sum.acknowledgements > 0, "hardly anything was committed: {sum:?}");
    assert!(sum.failed_syncs > 0 || cycles < 200, "no sync failed: {sum:?}");
    assert!(sum.ruined <= 1 + cycles / 10, "hardly a file system lived: {sum:?}");
}

/// Checks that the same check soon fails on a lying disk.
fn a_lie_is_caught(subject: Subject) {
    if !possible(FilePlace::Files) {
        return;
    }
    let (seed, mut refused, mut unseen) = (Seed::new().0, 0, 0);
    for life in 0..100 {
        match SubjectLife::new(subject, FilePlace::Files, DiskBehaviour::Lying, seed.wrapping_add(life))
            .run(3)
        {
            Ok(account) => unseen += account.lies,
            Err(what) if what.contains("acknowledged commits are lost") => {
                return println!(
                    "{subject:?}: life {life}, {what}; before it {refused} had damage, {unseen} lies took nothing"
                );
            }
            Err(what) => {
                println!("{what}");
                refused += 1;
            }
        }
    }
    panic!(
        "a disk that lies was not caught: {refused} lives ended in damage, and no acknowledged commit was lost in silence"
    );
}

#[test]
fn child() {
    let Ok(asked) = std::env::var(cycle::TASK_VARIABLE) else { return };
    let mut words = asked.splitn(5, ' ');
    let mut word = || words.next().unwrap();
    let (subject, way, cycle) = (Subject::by_name(word()), word().parse().unwrap(), word().parse().unwrap());
    let only_look = word() == "true";
    subject.run(Path::new(word()), way, cycle, only_look);
}

#[test]
fn the_store_loses_nothing_on_files() {
    nothing_is_lost(Subject::Store, FilePlace::Files, 20);
}

#[test]
fn the_redo_log_loses_nothing_on_files() {
    nothing_is_lost(Subject::Redo, FilePlace::Files, 20);
}

#[test]
fn the_binlog_loses_nothing_on_files() {
    nothing_is_lost(Subject::Binlog, FilePlace::Files, 20);
}

#[test]
fn a_disk_that_lies_to_the_store_is_caught() {
    a_lie_is_caught(Subject::Store);
}

#[test]
fn a_disk_that_lies_to_the_redo_log_is_caught() {
    a_lie_is_caught(Subject::Redo);
}

#[test]
fn a_disk_that_lies_to_the_binlog_is_caught() {
    a_lie_is_caught(Subject::Binlog);
}

#[test]
fn the_store_loses_nothing_on_ext4() {
    nothing_is_lost(Subject::Store, FilePlace::On("ext4"), 10);
}

#[test]
fn the_redo_log_loses_nothing_on_ext4() {
    nothing_is_lost(Subject::Redo, FilePlace::On("ext4"), 10);
}

#[test]
fn the_binlog_loses_nothing_on_ext4() {
    nothing_is_lost(Subject::Binlog, FilePlace::On("ext4"), 10);
}

#[test]
fn the_store_loses_nothing_on_xfs() {
    nothing_is_lost(Subject::Store, FilePlace::On("xfs"), 10);
}

#[test]
fn the_redo_log_loses_nothing_on_xfs() {
    nothing_is_lost(Subject::Redo, FilePlace::On("xfs"), 10);
}

#[test]
fn the_binlog_loses_nothing_on_xfs() {
    nothing_is_lost(Subject::Binlog, FilePlace::On("xfs"), 10);
}

#[test]
fn sqlite_loses_nothing_on_files() {
    if database::has_shell() {
        nothing_is_lost(Subject::Sqlite, FilePlace::Files, 20);
    } else {
        skip("sqlite3 is not installed");
    }
}

#[test]
fn sqlite_loses_nothing_on_ext4() {
    if database::has_shell() {
        nothing_is_lost(Subject::Sqlite, FilePlace::On("ext4"), 10);
    } else {
        skip("sqlite3 is not installed");
    }
}

/// The power is cut at each change of a short life in turn: the first ones create the log, and the
/// last ones remove it.
#[test]
fn sqlite_loses_nothing_at_any_change_between_opening_and_close() {
    if !database::has_shell() || !possible(FilePlace::Files) {
        return skip("sqlite3 is not installed, or there is no disk that fails");
    }
    let (seed, few) = (Seed::new().0, 20);
    let mut change = 1;
    loop {
        let life = SubjectLife::new(
            Subject::SqliteShort,
            FilePlace::Files,
            DiskBehaviour::Honest,
            seed.wrapping_add(change),
        );
        let ended = life
            .run_until(change)
            .unwrap_or_else(|what| panic!("change {change}: {what}; PAGEKEEPER_SEED={seed}"));
        if ended {
            break;
        }
        // All of them, or some that each run chooses.
        change += if cycles(few) > few { 1 } else { 1 + seed.wrapping_mul(change) % 20 };
    }
    assert!(change > 100, "only {change} changes");
    println!("the power was cut at changes up to {change}");
}

#[test]
fn a_disk_that_lies_to_sqlite_is_caught() {
    if database::has_shell() {
        a_lie_is_caught(Subject::Sqlite);
    } else {
        skip("sqlite3 is not installed");
    }
}
