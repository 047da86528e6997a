//! Crashes at random.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pagekeeper_simdisk::Persistence;
use pagekeeper_testing::Seed;

use super::life::{Made, OF_A_LIFE, crashes, life};
use super::world::{Crash, Op, Setting, World};
use crate::Durability;

#[test]
fn lives_with_random_crashes() {
    let seed = Seed::new();
    let made = Made::new();
    for which in 0..crashes(50_000).div_ceil(OF_A_LIFE) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| life(&seed, which, &made, None))) {
            eprintln!("life {which}");
            resume_unwind(panic);
        }
    }
}

/// A sync fails for a transaction that extended the data file beside a checkpoint. The kernel
/// reports that to nobody else. A random life found this case.
#[test]
fn a_failed_sync_beside_a_checkpoint_is_not_forgotten() {
    life(&Seed(292_349), 1045, &Made::new(), None);
}

/// A process may be killed at any operation while it creates a store, or while it opens the store
/// next. Its commits still count.
#[test]
fn a_kill_while_a_store_is_made_costs_no_commit() {
    let commit = |world: &mut World, number| {
        let subject = world.subject.clone().expect("it is open");
        world.run(&subject, &mut Vec::new(), Op::Transact(number, Some(Durability::Sync)));
    };
    let mut whole = World::new(Setting::SMALL, None, None);
    whole.open().expect("nothing fails");
    for cut in 0..=whole.disk().ops() {
        for persistence in Persistence::ALL {
            let mut world = World::new(Setting::SMALL, None, None);
            world.cut_at(cut);
            let _ = world.open();
            world.crash(Crash::Kill);
            world.open().expect("nothing fails");
            commit(&mut world, cut);
            world.crash(Crash::PowerCut(persistence, cut));
            world.open().expect("nothing fails");
        }
    }
}

/// A crash comes between the superblock and the journal. If nothing is left to apply, no checkpoint
/// gives the journal up.
#[test]
fn a_kill_at_any_operation_of_a_checkpoint_leaves_the_journal_its_whole_room() {
    let setting = Setting { journal_bytes: 512 << 10, memory: 8 << 20, ..Setting::SMALL };
    let fill = |world: &mut World| {
        let subject = world.subject.clone().expect("it is open");
        for number in 0.. {
            world.run(&subject, &mut Vec::new(), Op::Transact(number, Some(Durability::Sync)));
            if !subject.has_room() {
                return;
            }
        }
    };
    for cut in 0.. {
        let mut world = World::new(setting, None, None);
        world.open().expect("nothing fails");
        fill(&mut world);
        world.cut_at(world.disk().ops() + cut);
        let subject = world.subject.clone().expect("it is open");
        let is_whole = world.run(&subject, &mut Vec::new(), Op::Checkpoint(0, 0));
        drop(subject);
        world.crash(Crash::Kill);
        world.open().expect("nothing fails");
        fill(&mut world);
        if is_whole {
            assert!(cut > 5, "a checkpoint is more than that");
            return;
        }
    }
}
