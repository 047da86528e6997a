//! A life by chance: what is done to a store between two crashes, and how the crashes come, some of them while it is opened
//! again or made.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pagekeeper_io::{Persistence, SimDisk};
use pagekeeper_log::LogMode;

use super::world::{Crash, Failing, Op, Setting, Step, World, durability_by_chance};
use crate::injected_fault::InjectedFault;
use pagekeeper_testing::{Chance, Seed};

/// What happens, by chance.
fn op_by_chance(chance: &mut Chance) -> Op {
    match chance.of(0..60) {
        0..34 => {
            let durability = (!chance.one_in(12)).then(|| durability_by_chance(chance));
            Op::Transact(chance.number(), durability)
        }
        34..44 => {
            let transactions = if chance.one_in(2) { chance.of(1..4) } else { 0 };
            Op::Checkpoint(chance.number(), transactions)
        }
        44 => Op::Sync,
        45..48 => Op::Keep,
        48..54 => Op::Compare(chance.number()),
        54..56 => Op::Release(chance.number()),
        56 => Op::CompareAll,
        57 => Op::Verify,
        _ => match chance.of(0..8) {
            0..2 => Op::Fail(Failing::DataSync),
            2 => Op::Fail(Failing::Sync(chance.of(0..6))),
            3 => Op::Fail(Failing::Write(chance.of(0..12))),
            4 => Op::Fail(Failing::Full),
            5 => Op::Fail(Failing::Grow),
            _ => Op::Fail(Failing::Read(chance.of(0..8))),
        },
    }
}

fn crash_by_chance(chance: &mut Chance, power_is_off: bool) -> Crash {
    match chance.of(0..16) {
        // If the power is off, it is a kill in the place of that: at a certain operation, with all before it done.
        0..4 => Crash::Kill,
        4 if !power_is_off => Crash::Drop,
        5 if !power_is_off => Crash::Close(chance.one_in(2)),
        _ => {
            let all = Persistence::ALL;
            Crash::PowerCut(all[chance.index(all.len())], chance.number())
        }
    }
}

/// Stores that were just made, to begin lives with.
pub(super) struct Made(Vec<(Setting, SimDisk)>);

impl Made {
    pub(super) fn new() -> Self {
        let settings = [64, 64, 96, 256, 64, 64].into_iter().enumerate().map(|(at, kib)| Setting {
            atomic: at > 3,
            journal_bytes: kib << 10,
            journal_mode: if at % 2 == 1 { LogMode::Direct } else { LogMode::Buffered },
            ..Setting::SMALL
        });
        let made = |setting: Setting| {
            let mut world = World::new(setting, None, None);
            world.open().expect("nothing fails");
            world.crash(Crash::Close(true));
            (setting, world.disk())
        };
        Self(settings.map(made).collect())
    }
}

/// Lives a life of so many crashes and prints it if it fails.
pub(super) fn live(
    mut chance: Chance,
    made: &Made,
    injected_fault: Option<InjectedFault>,
    crashes: u64,
) -> Vec<Step> {
    let (setting, disk) = &made.0[chance.index(made.0.len())];
    let is_new = chance.one_in(10);
    let max_pages = if chance.one_in(6) { 100 } else { 8 + chance.index(30) };
    let memory = if chance.one_in(4) { 2 << 20 } else { 1 << 20 };
    let even = chance.one_in(4);
    let setting = Setting { even, max_pages, memory, is_new, warm: chance.one_in(40), ..*setting };
    let mut world = World::new(setting, injected_fault, (!is_new).then_some(disk));
    let lived = catch_unwind(AssertUnwindSafe(|| go_on(&mut world, &mut chance, crashes)));
    if let Err(panic) = lived {
        if injected_fault.is_none() {
            eprintln!("{setting:?}");
            world.story.iter().for_each(|step| eprintln!("{step:?}"));
        }
        resume_unwind(panic);
    }
    world.story
}

fn go_on(world: &mut World, chance: &mut Chance, crashes: u64) {
    open_at_last(world, chance, world.setting.is_new, crashes);
    while world.crashes < crashes {
        let subject = world.subject.clone().expect("it is open");
        if chance.one_in(3) {
            let max_pages = if world.setting.even { 8 } else { 80 };
            world.cut_at(world.disk().ops() + chance.of(0..max_pages));
        }
        let mut kept = Vec::new();
        for _ in 0..chance.of(1..40) {
            if !world.run(&subject, &mut kept, op_by_chance(chance)) && chance.one_in(2) {
                break;
            }
        }
        drop(kept);
        drop(subject);
        world.crash(crash_by_chance(chance, world.power_is_off()));
        if chance.one_in(25) {
            (0..=chance.of(0..3)).for_each(|_| world.rot(chance));
        }
        open_at_last(world, chance, false, crashes);
    }
}

/// Opens the store, with crashes while that is done. Then reads it, or not: what was read is put together.
fn open_at_last(world: &mut World, chance: &mut Chance, is_new: bool, crashes: u64) {
    loop {
        if world.crashes < crashes && chance.one_in(if is_new { 2 } else { 4 }) {
            world.cut_at(chance.of(0..if is_new { 45 } else { 12 }));
        } else if world.crashes < crashes && chance.one_in(30) {
            let failing = match chance.of(0..3) {
                0 => Failing::Read(chance.of(0..8)),
                // A sync of a directory that failed would lose its names forever: no program can repair that.
                1 if !world.setting.is_new => Failing::Sync(chance.of(0..5)),
                _ => Failing::Write(chance.of(0..3)),
            };
            world.fail(failing);
        }
        if world.open().is_ok() {
            break;
        }
        world.crash(crash_by_chance(chance, world.power_is_off()));
    }
    let subject = world.subject.clone().expect("it is open");
    let mut kept = Vec::new();
    let first = match chance.of(0..8) {
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

/// So many crashes, or as `PAGEKEEPER_CRASHES` says.
pub(super) fn crashes(unless_said: u64) -> u64 {
    let said = std::env::var("PAGEKEEPER_CRASHES").ok();
    said.map_or(unless_said, |said| said.parse().expect("PAGEKEEPER_CRASHES is a number"))
}

/// Crashes of one life.
pub(super) const OF_A_LIFE: u64 = 8;

/// The life of this number.
pub(super) fn life(seed: &Seed, which: u64, made: &Made, injected_fault: Option<InjectedFault>) -> Vec<Step> {
    live(seed.chance(which), made, injected_fault, OF_A_LIFE)
}
