//! Guards keep their frames, whatever is evicted or closed meanwhile.

use super::check;
use super::lookup::KeptFrame;
use super::pool::LoadReason;
use super::readers::Slot;
use super::world::{World, content};

/// Creates one frame, with page 0 of the first of two files in it.
fn one_frame() -> World {
    World::new(1, &[2, 2], 9).with(&[0])
}

/// Reads twice, so that a frame that is reused in between is noticed.
fn reads_twice(world: &World, kept: &KeptFrame) {
    for _ in 0..2 {
        assert_eq!(world.read_kept(kept), content(0, 0));
        loom::thread::yield_now();
    }
}

fn holds(world: &World, slot: &Slot) -> Option<KeptFrame> {
    let kept = world.keep(slot, 0, 0, true)?;
    reads_twice(world, &kept);
    world.release(slot, kept);
    None
}

/// The second guard's hold takes the place of the first.
fn holds_twice(world: &World, slot: &Slot) -> Option<KeptFrame> {
    holds(world, slot);
    holds(world, slot)
}

/// The pin goes to another thread.
fn pins(world: &World, slot: &Slot) -> Option<KeptFrame> {
    let kept = world.keep(slot, 0, 0, false)?;
    reads_twice(world, &kept);
    Some(kept)
}

/// Evicts, and reuses the frame if it is free.
fn evicts(world: &World, _: &Slot) -> Option<KeptFrame> {
    if world.make_room() {
        world.load(0, 1, LoadReason::Read);
    }
    None
}

fn closes(world: &World, slot: &Slot) -> Option<KeptFrame> {
    world.close(0);
    for page in 0..2 {
        assert_eq!(world.read(slot, 1, page).unwrap(), content(1, page));
    }
    None
}

/// Checks that the kept frames are unchanged when all callers are done, and releases them.
fn lets_pins_go(world: &World, results: Vec<Option<KeptFrame>>) {
    for kept in results.into_iter().flatten() {
        world.make_room();
        reads_twice(world, &kept);
        world.release(&world.slots[0], kept);
    }
}

#[test]
fn a_hold_against_an_eviction() {
    check(one_frame, &[evicts, holds], lets_pins_go);
    check(one_frame, &[evicts, holds_twice], lets_pins_go);
    check(one_frame, &[evicts, holds, holds], lets_pins_go);
}

#[test]
fn a_pin_against_an_eviction() {
    check(one_frame, &[evicts, pins], lets_pins_go);
    check(one_frame, &[evicts, pins, holds], lets_pins_go);
}

#[test]
fn a_hold_that_outlives_a_close() {
    check(one_frame, &[closes, holds], lets_pins_go);
    check(|| World::new(2, &[2, 2], 9).with(&[0]), &[closes, holds], lets_pins_go);
}

#[test]
fn a_pin_that_outlives_a_close() {
    check(one_frame, &[closes, pins], lets_pins_go);
    check(|| World::new(2, &[2, 2], 9).with(&[0]), &[closes, pins], lets_pins_go);
}

#[test]
fn a_pin_that_is_let_go_against_an_eviction() {
    fn pins_shortly(world: &World, slot: &Slot) -> Option<KeptFrame> {
        let kept = pins(world, slot)?;
        world.release(slot, kept);
        None
    }
    check(one_frame, &[evicts, pins_shortly], lets_pins_go);
}

#[test]
fn a_hold_that_is_handed_over_to_a_pin() {
    fn hands_over(world: &World, slot: &Slot) -> Option<KeptFrame> {
        let held = world.keep(slot, 0, 0, true)?;
        let pinned = world.pin(slot, &held);
        world.release(slot, held);
        reads_twice(world, &pinned);
        Some(pinned)
    }
    check(one_frame, &[evicts, hands_over], lets_pins_go);
    check(one_frame, &[evicts, hands_over, hands_over], lets_pins_go);
}

#[test]
fn a_load_that_is_kept_against_an_eviction_and_a_close() {
    fn absent() -> World {
        World::new(1, &[2, 2], 9)
    }
    fn loads_held(world: &World, slot: &Slot) -> Option<KeptFrame> {
        let kept = world.load_kept(slot, 0, 0, true)?;
        reads_twice(world, &kept);
        world.release(slot, kept);
        None
    }
    fn loads_pinned(world: &World, slot: &Slot) -> Option<KeptFrame> {
        let kept = world.load_kept(slot, 0, 0, false)?;
        reads_twice(world, &kept);
        Some(kept)
    }
    check(absent, &[evicts, loads_held], lets_pins_go);
    check(absent, &[evicts, loads_pinned], lets_pins_go);
    // The file may be closed when the page is published: its loader gets the page anyway.
    check(absent, &[closes, loads_held], lets_pins_go);
    check(absent, &[closes, loads_pinned], lets_pins_go);
}
