//! Crashes at random.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::chance::Seed;
use pagekeeper_io::Persistence;

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

/// Whoever makes a store may be killed at any operation of that, and of the opening behind it. What is found counts all the same.
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
