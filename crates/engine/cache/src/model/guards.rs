//! Guards keep their frames, whatever is evicted or closed meanwhile.

use super::check;
use super::lookup::KeptFrame;
use super::model_cache::{ModelCache, content};
use super::pool::LoadReason;
use super::readers::ReaderSlot;

/// Creates one frame, with page 0 of the first of two files in it.
fn one_frame() -> ModelCache {
    ModelCache::new(1, &[2, 2], 9).with(&[0])
}

/// Reads twice, so that a frame that is reused in between is noticed.
fn reads_twice(cache: &ModelCache, kept: &KeptFrame) {
    for _ in 0..2 {
        assert_eq!(cache.read_kept(kept), content(0, 0));
        loom::thread::yield_now();
    }
}

fn holds(cache: &ModelCache, slot: &ReaderSlot) -> Option<KeptFrame> {
    let kept = cache.keep(slot, 0, 0, true)?;
    reads_twice(cache, &kept);
    cache.release(slot, kept);
    None
}

/// Takes two guards: the second guard's hold replaces the first one's.
fn holds_twice(cache: &ModelCache, slot: &ReaderSlot) -> Option<KeptFrame> {
    holds(cache, slot);
    holds(cache, slot)
}

/// Takes a pin, and passes it to another thread.
fn pins(cache: &ModelCache, slot: &ReaderSlot) -> Option<KeptFrame> {
    let kept = cache.keep(slot, 0, 0, false)?;
    reads_twice(cache, &kept);
    Some(kept)
}

/// Evicts a page, and reuses the frame if it is free.
fn evicts(cache: &ModelCache, _: &ReaderSlot) -> Option<KeptFrame> {
    if cache.make_room() {
        cache.load(0, 1, LoadReason::Read);
    }
    None
}

fn closes(cache: &ModelCache, slot: &ReaderSlot) -> Option<KeptFrame> {
    cache.close(0);
    for page in 0..2 {
        assert_eq!(cache.read(slot, 1, page).unwrap(), content(1, page));
    }
    None
}

/// Checks that the kept frames are unchanged when all callers are done, and releases them.
fn lets_pins_go(cache: &ModelCache, results: Vec<Option<KeptFrame>>) {
    for kept in results.into_iter().flatten() {
        cache.make_room();
        reads_twice(cache, &kept);
        cache.release(&cache.slots[0], kept);
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
    check(|| ModelCache::new(2, &[2, 2], 9).with(&[0]), &[closes, holds], lets_pins_go);
}

#[test]
fn a_pin_that_outlives_a_close() {
    check(one_frame, &[closes, pins], lets_pins_go);
    check(|| ModelCache::new(2, &[2, 2], 9).with(&[0]), &[closes, pins], lets_pins_go);
}

#[test]
fn a_pin_that_is_let_go_against_an_eviction() {
    fn pins_shortly(cache: &ModelCache, slot: &ReaderSlot) -> Option<KeptFrame> {
        let kept = pins(cache, slot)?;
        cache.release(slot, kept);
        None
    }
    check(one_frame, &[evicts, pins_shortly], lets_pins_go);
}

#[test]
fn a_hold_that_is_handed_over_to_a_pin() {
    fn hands_over(cache: &ModelCache, slot: &ReaderSlot) -> Option<KeptFrame> {
        let held = cache.keep(slot, 0, 0, true)?;
        let pinned = cache.pin(slot, &held);
        cache.release(slot, held);
        reads_twice(cache, &pinned);
        Some(pinned)
    }
    check(one_frame, &[evicts, hands_over], lets_pins_go);
}

#[test]
fn a_load_that_is_kept_against_an_eviction_and_a_close() {
    fn absent() -> ModelCache {
        ModelCache::new(1, &[2, 2], 9)
    }
    fn loads_held(cache: &ModelCache, slot: &ReaderSlot) -> Option<KeptFrame> {
        let kept = cache.load_kept(slot, 0, 0, true)?;
        reads_twice(cache, &kept);
        cache.release(slot, kept);
        None
    }
    fn loads_pinned(cache: &ModelCache, slot: &ReaderSlot) -> Option<KeptFrame> {
        let kept = cache.load_kept(slot, 0, 0, false)?;
        reads_twice(cache, &kept);
        Some(kept)
    }
    check(absent, &[evicts, loads_held], lets_pins_go);
    check(absent, &[evicts, loads_pinned], lets_pins_go);
    // The file may be closed when the page is published: its loader gets the page anyway.
    check(absent, &[closes, loads_held], lets_pins_go);
    check(absent, &[closes, loads_pinned], lets_pins_go);
}
