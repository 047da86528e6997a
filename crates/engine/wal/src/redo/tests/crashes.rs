//! Crashes at every operation of short scripts, with every pattern of persistence, and at random.
//! Faults injected into the log prove that the tests would detect them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagekeeper_simdisk::Persistence;

use super::super::options::FlushPolicy;
use super::world::{Crash, Op, World, live};
use crate::LogMode;
use crate::injected_fault::InjectedFault;
use crate::testing::lives;
use pagekeeper_testing::Seed;

/// Number of random patterns for each operation.
const SEEDS: u64 = 20;

/// Cuts the power at each operation of a script, and again at each operation of the next opening.
fn exhaust(script: &[Op], mode: LogMode) {
    let start = || World::new(FlushPolicy::EachCommit, mode, None, false);
    let mut whole = start();
    let first = whole.disk.ops();
    for op in script {
        whole.run(*op).unwrap();
    }
    let last = whole.disk.ops();
    assert!(last > first + 3);
    let mut crashes = 0_u64;
    for cut in first..=last {
        for persistence in Persistence::ALL {
            let seeds = if matches!(persistence, Persistence::None | Persistence::All) { 1 } else { SEEDS };
            for seed in 0..seeds {
                let mut world = start();
                world.disk.cut_power_at(cut);
                let _ = script.iter().try_for_each(|op| world.run(*op));
                world.crash(Crash::PowerCut(persistence, seed));
                // The power is cut again while the log is opened.
                if seed % 4 == 3 {
                    world.disk.cut_power_at(seed / 4);
                    if world.open().is_err() {
                        world.crash(Crash::PowerCut(persistence, seed));
                    }
                }
                let context = format!("cut at {cut} of {first}..{last}, {persistence:?}, seed {seed}");
                world
                    .open()
                    .or_else(|error| {
                        // The second cut was too late to strike.
                        world.crash(Crash::PowerCut(persistence, seed));
                        world.open().map_err(|_| error)
                    })
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                // The log continues from there, and keeps the new records, too.
                world
                    .run(Op::Append(100))
                    .and_then(|()| world.run(Op::Commit))
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                world.crash(Crash::PowerCut(Persistence::None, 0));
                world.open().unwrap_or_else(|error| panic!("{context}: then {error}"));
                crashes += 2;
            }
        }
    }
    println!("{crashes} crashes");
}

#[test]
fn commits_survive_a_cut_at_any_operation() {
    use Op::{Append, Commit, Write};
    for mode in [LogMode::Buffered, LogMode::Direct] {
        exhaust(
            &[Append(50), Commit, Append(5000), Append(30), Commit, Append(9000), Write, Append(10), Commit],
            mode,
        );
    }
}

#[test]
fn checkpoints_survive_a_cut_at_any_operation() {
    use Op::{Append, Checkpoint, Commit};
    exhaust(
        &[
            Append(50),
            Append(60),
            Commit,
            Checkpoint(50),
            Append(7000),
            Commit,
            Checkpoint(100),
            Append(9),
            Commit,
        ],
        LogMode::Buffered,
    );
}

#[test]
fn wraparounds_survive_a_cut_at_any_operation() {
    use Op::{Append, Checkpoint, Commit, Reopen};
    let wraparound = [Append(12_000), Commit, Append(12_000), Commit, Append(12_000), Checkpoint(70)];
    let script: Vec<_> =
        wraparound.into_iter().chain(wraparound).chain([Reopen, Append(12_000), Commit]).collect();
    exhaust(&script, LogMode::Buffered);
}

/// The opener of a log after a kill finds unsynced writes, and must not append before they are
/// synced.
#[test]
fn a_kill_at_any_operation_and_a_power_cut_at_any_after_it_lose_nothing() {
    use Op::{Append, Checkpoint, Commit, Reopen};
    let script = [Append(50), Commit, Checkpoint(100), Append(60), Commit, Reopen, Append(9), Commit, Reopen];
    let start = || World::new(FlushPolicy::EachCommit, LogMode::Buffered, None, false);
    let mut whole = start();
    let first = whole.disk.ops();
    script.iter().try_for_each(|op| whole.run(*op)).unwrap();
    for kill in first..=whole.disk.ops() {
        for cut in 0..16 {
            for seed in 0..4 * Persistence::ALL.len() {
                let persistence = Persistence::ALL[seed % Persistence::ALL.len()];
                let context = format!("killed at {kill}, cut at {cut}, {persistence:?}, seed {seed}");
                let mut world = start();
                world.disk.cut_power_at(kill);
                let _ = script.iter().try_for_each(|op| world.run(*op));
                world.crash(Crash::Kill);
                world.disk.cut_power_at(cut);
                let _ =
                    world.open().and_then(|()| [Append(7), Commit].iter().try_for_each(|op| world.run(*op)));
                world.crash(Crash::PowerCut(persistence, seed as u64));
                world.open().unwrap_or_else(|error| panic!("{context}: {error}"));
            }
        }
    }
}

#[test]
fn lives_with_random_crashes() {
    let seed = Seed::new();
    for which in 0..lives(1500) {
        let life = || live(seed.rng(which), None, 4);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(life)) {
            eprintln!("life {which}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Each fault must be found within this many lives.
#[test]
fn injected_faults_are_found() {
    let seed = Seed(12);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let faults = InjectedFault::OF_CRASHES;
    let found = faults.map(|fault| {
        let found = (0..3000)
            .find(|which| catch_unwind(AssertUnwindSafe(|| live(seed.rng(*which), Some(fault), 4))).is_err());
        println!("{fault:?}: found in life {found:?}");
        found
    });
    std::panic::set_hook(quiet);
    assert!(found.iter().all(Option::is_some));
}
