//! Crashes at every operation of short scripts, with each persistence pattern, and again during the
//! next opening.

use pagekeeper_simdisk::Persistence;
use pagekeeper_wal::LogMode;

use super::world::{Crash, Op, Setting, World};
use crate::Durability;

/// Random patterns per operation.
const SEEDS: u64 = 4;

fn crashes() -> impl Iterator<Item = (Crash, u64)> {
    let cuts = Persistence::ALL.into_iter().flat_map(|persistence| {
        let seeds = if matches!(persistence, Persistence::None | Persistence::All) { 1 } else { SEEDS };
        (0..seeds).map(move |seed| (Crash::PowerCut(persistence, seed), seed))
    });
    cuts.chain([(Crash::Kill, 0)])
}

/// Crashes at each operation of a script, and at one of the following opening.
fn exhaust(script: &[Op], setting: Setting) {
    let mut made = World::new(setting, None, None);
    made.open().expect("nothing fails");
    made.crash(Crash::Close(true));
    let made = made.disk();
    let run = |world: &mut World, script: &[Op]| {
        let subject = world.subject.clone().expect("it is open");
        let mut kept = Vec::new();
        script.iter().all(|op| world.run(&subject, &mut kept, *op))
    };
    let some_pages: Vec<_> = (100..120).map(unsynced).chain([Op::Sync]).collect();
    let start = || {
        let mut world = World::new(setting, None, Some(&made));
        world.open().expect("nothing fails");
        assert!(run(&mut world, &some_pages));
        world
    };
    let mut whole = start();
    let first = whole.disk().ops();
    assert!(run(&mut whole, script));
    let last = whole.disk().ops();
    assert!(last > first + 6);
    let mut crashes_in_all = 0;
    for cut in first..=last {
        for (crash, seed) in crashes() {
            let mut world = start();
            world.cut_at(cut);
            run(&mut world, script);
            world.crash(crash);
            // Again during the opening.
            if !seed.is_multiple_of(2) {
                world.cut_at((cut + seed) % 12);
                if world.open().is_err() {
                    world.crash(crash);
                }
            }
            if world.subject.is_none() {
                world.open().expect("nothing fails any more");
            }
            run(&mut world, &[Op::CompareAll, Op::Verify]);
            world.crash(Crash::PowerCut(Persistence::None, seed));
            world.open().expect("nothing fails any more");
            // The store continues from that state, and keeps later commits, too.
            let on = [Op::Checkpoint(0, 0), Op::Transact(cut, Some(Durability::Sync)), Op::CompareAll];
            assert!(run(&mut world, &on));
            world.crash(Crash::PowerCut(Persistence::None, seed));
            world.open().expect("nothing fails any more");
            assert!(run(&mut world, &[Op::CompareAll, Op::Verify]));
            crashes_in_all += world.crashes;
        }
    }
    println!("{crashes_in_all} crashes at {} operations", last - first + 1);
}

fn both_modes(script: &[Op]) {
    for journal_mode in [LogMode::Buffered, LogMode::Direct] {
        exhaust(script, Setting { journal_mode, ..Setting::SMALL });
    }
}

const fn sync(seed: u64) -> Op {
    Op::Transact(seed, Some(Durability::Sync))
}

const fn unsynced(seed: u64) -> Op {
    Op::Transact(seed, Some(Durability::None))
}

#[test]
fn commits_survive_a_crash_at_any_operation() {
    let script: Vec<_> =
        (0..16).map(|seed| if seed % 4 == 2 { unsynced(seed) } else { sync(seed) }).collect();
    both_modes(&script);
}

#[test]
fn checkpoints_survive_a_crash_at_any_operation() {
    both_modes(&[
        sync(1),
        sync(2),
        unsynced(3),
        Op::Checkpoint(9, 2),
        sync(4),
        unsynced(5),
        Op::Checkpoint(0, 0),
    ]);
}

#[test]
fn compactions_survive_a_crash_at_any_operation() {
    both_modes(&[sync(21), Op::FreeMany(7), Op::Keep, Op::Compact, sync(23), Op::Compare(3), Op::Compact]);
}

#[test]
fn snapshots_and_syncs_survive_a_crash_at_any_operation() {
    both_modes(&[
        sync(11),
        unsynced(12),
        Op::Keep,
        sync(13),
        Op::Sync,
        sync(14),
        Op::Compare(3),
        Op::Checkpoint(5, 3),
        Op::Sync,
    ]);
}
