//! A random life: operations on a store between two crashes, and the crashes themselves. Some come
//! while it is made or opened again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pagekeeper_simdisk::{Persistence, SimDisk};
use pagekeeper_wal::LogMode;

use super::world::{Crash, Failing, Op, Setting, Step, World, random_durability};
use crate::injected_fault::InjectedFault;
use pagekeeper_testing::{Rng, Seed};

/// Returns a random operation.
fn random_op(rng: &mut Rng) -> Op {
    match rng.of(0..60) {
        0..34 => {
            let durability = (!rng.one_in(12)).then(|| random_durability(rng));
            Op::Transact(rng.number(), durability)
        }
        34..44 => {
            let transactions = if rng.one_in(2) { rng.of(1..4) } else { 0 };
            Op::Checkpoint(rng.number(), transactions)
        }
        44 => Op::Sync,
        45..48 => Op::Keep,
        48..54 => Op::Compare(rng.number()),
        54..56 => Op::Release(rng.number()),
        56 if rng.one_in(3) => Op::CompareAll,
        56 => Op::CompareAgain,
        57 => Op::Verify,
        _ => match rng.of(0..8) {
            0 => Op::Fail(Failing::DataSync),
            1 => Op::Fail(Failing::DataSyncDrop),
            2 => Op::Fail(Failing::Sync(rng.of(0..6))),
            3 => Op::Fail(Failing::Write(rng.of(0..12))),
            4 => Op::Fail(Failing::Full),
            5 => Op::Fail(Failing::Grow),
            _ => Op::Fail(Failing::Read(rng.of(0..8))),
        },
    }
}

fn random_crash(rng: &mut Rng, power_is_off: bool) -> Crash {
    match rng.of(0..16) {
        // If the power is off, it is a kill instead: at a certain operation, with all previous ones
        // done.
        0..4 => Crash::Kill,
        4 if !power_is_off => Crash::Drop,
        5 if !power_is_off => Crash::Close(rng.one_in(2)),
        _ => {
            let all = Persistence::ALL;
            Crash::PowerCut(all[rng.index(all.len())], rng.number())
        }
    }
}

/// Stores that were just made, as starts of lives.
pub(super) struct Made(Vec<(Setting, SimDisk)>);

impl Made {
    pub(super) fn new() -> Self {
        Self::like(Setting::SMALL)
    }

    /// Makes stores with settings like this one.
    pub(super) fn like(like: Setting) -> Self {
        let settings = [64, 64, 96, 256, 64, 64].into_iter().enumerate().map(|(at, kib)| Setting {
            atomic: at > 3,
            journal_bytes: kib << 10,
            journal_mode: if at % 2 == 1 { LogMode::Direct } else { LogMode::Buffered },
            ..like
        });
        let made = |setting: Setting| {
            let mut world = World::new(setting, None, None);
            world.open().expect("nothing fails");
            world.crash(Crash::Close(true));
            (setting, world.disk())
        };
        Self(settings.map(made).collect())
    }

    /// Returns one of them.
    pub(super) fn any(&self, rng: &mut Rng) -> &(Setting, SimDisk) {
        &self.0[rng.index(self.0.len())]
    }
}

/// Runs a life with this many crashes, and prints it if it fails.
pub(super) fn live(
    mut rng: Rng,
    made: &Made,
    injected_fault: Option<InjectedFault>,
    crashes: u64,
) -> Vec<Step> {
    let (setting, disk) = made.any(&mut rng);
    let is_new = rng.one_in(10);
    let max_pages = if rng.one_in(6) { 100 } else { 8 + rng.index(30) };
    let memory = if rng.one_in(4) { 2 << 20 } else { 1 << 20 };
    let even = rng.one_in(3);
    let setting = Setting { even, max_pages, memory, is_new, warm: rng.one_in(40), ..*setting };
    let mut world = World::new(setting, injected_fault, (!is_new).then_some(disk));
    let lived = catch_unwind(AssertUnwindSafe(|| go_on(&mut world, &mut rng, crashes)));
    if let Err(panic) = lived {
        if injected_fault.is_none() {
            eprintln!("{setting:?}");
            world.story.iter().for_each(|step| eprintln!("{step:?}"));
        }
        resume_unwind(panic);
    }
    world.story
}

fn go_on(world: &mut World, rng: &mut Rng, crashes: u64) {
    // Separate random numbers, so that a life with the same seed is otherwise the same.
    let mut compactions = world.setting.compacts.then(|| Rng::from_seed(rng.number()));
    open_at_last(world, rng, world.setting.is_new, crashes);
    while world.crashes < crashes {
        let subject = world.subject.clone().expect("it is open");
        if rng.one_in(3) {
            let max_pages = if world.setting.even { 8 } else { 80 };
            world.cut_at(world.disk().ops() + rng.of(0..max_pages));
        }
        let mut kept = Vec::new();
        for _ in 0..rng.of(1..40) {
            if compactions.as_mut().is_some_and(|rng| rng.one_in(8)) {
                world.run(&subject, &mut kept, Op::FreeMany(rng.number()));
                world.run(&subject, &mut kept, Op::Compact);
            }
            if !world.run(&subject, &mut kept, random_op(rng)) && rng.one_in(2) {
                break;
            }
        }
        drop(kept);
        drop(subject);
        world.crash(random_crash(rng, world.power_is_off()));
        if rng.one_in(25) {
            (0..=rng.of(0..3)).for_each(|_| world.rot(rng));
        }
        if rng.one_in(6) {
            world.keep_data();
        }
        if rng.one_in(12) {
            world.rot_superblock(rng);
        }
        open_at_last(world, rng, false, crashes);
    }
}

/// Opens the store, with crashes during that. Then reads it or not, since reading rebuilds pages.
fn open_at_last(world: &mut World, rng: &mut Rng, is_new: bool, crashes: u64) {
    loop {
        if world.crashes < crashes && rng.one_in(if is_new { 2 } else { 4 }) {
            world.cut_at(rng.of(0..if is_new { 45 } else { 12 }));
        } else if world.crashes < crashes && rng.one_in(30) {
            let failing = match rng.of(0..3) {
                0 => Failing::Read(rng.of(0..8)),
                // A failed sync of a directory would lose its names forever: no program can repair
                // that.
                1 if !world.setting.is_new => Failing::Sync(rng.of(0..5)),
                _ => Failing::Write(rng.of(0..3)),
            };
            world.fail(failing);
        }
        if world.open().is_ok() {
            break;
        }
        world.crash(random_crash(rng, world.power_is_off()));
    }
    let subject = world.subject.clone().expect("it is open");
    let mut kept = Vec::new();
    let first = match rng.of(0..8) {
        0..3 => &[Op::CompareAll][..],
        3 => &[Op::Verify, Op::CompareAll],
        4 => &[Op::Checkpoint(0, 0), Op::CompareAll],
        5 => &[Op::Checkpoint(0, 0), Op::Verify],
        _ => &[],
    };
    for op in first {
        world.run(&subject, &mut kept, *op);
    }
}

/// Returns this number of crashes, or that of `PAGEKEEPER_CRASHES`.
pub(super) fn crashes(unless_said: u64) -> u64 {
    let said = std::env::var("PAGEKEEPER_CRASHES").ok();
    said.map_or(unless_said, |said| said.parse().expect("PAGEKEEPER_CRASHES is a number"))
}

/// Crashes of one life.
pub(super) const OF_A_LIFE: u64 = 8;

/// Runs the life with this number.
pub(super) fn life(seed: &Seed, which: u64, made: &Made, injected_fault: Option<InjectedFault>) -> Vec<Step> {
    live(seed.rng(which), made, injected_fault, OF_A_LIFE)
}
