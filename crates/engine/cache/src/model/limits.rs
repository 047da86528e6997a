//! Tables against hits: parts that are forgotten, and frames that are on loan.

use super::check;
use super::entry::EntryState;
use super::readers::Slot;
use super::world::{World, content};

fn hits<const PAGE: u32>(world: &World, slot: &Slot) {
    let hit = world.copy(slot, 0, PAGE);
    assert!(hit.is_none_or(|read| read == content(0, PAGE)), "{hit:?}");
}

fn reads<const PAGE: u32>(world: &World, slot: &Slot) {
    assert_eq!(world.read(slot, 0, PAGE).unwrap(), content(0, PAGE));
}

#[test]
fn a_part_of_a_table_that_is_forgotten_against_a_hit() {
    // The page is evicted, then its part is forgotten in favour of the part of the page that is loaded.
    check(
        || World::new(1, &[2], 1).with(&[0]),
        &[reads::<1>, hits::<0>],
        |world, _| match (world.bypasses(), world.state(0, 0)) {
            (0, EntryState::Absent(None)) | (1, EntryState::Absent(Some(_))) => {}
            other => panic!("{other:?}"),
        },
    );
    // The page is taken out so that its part can be forgotten, and the frame is reused.
    check(
        || World::new(3, &[4], 2).with(&[0, 1]),
        &[
            |world, slot| {
                reads::<2>(world, slot);
                reads::<3>(world, slot);
            },
            hits::<0>,
        ],
        |world, _| assert_eq!(world.state(0, 0), EntryState::Absent(None)),
    );
}

/// Loans out the second of two frames, each with a page; `loaned_and_returned` takes it back.
fn loans_out(world: &World, _: &Slot) {
    world.pool.set_limit(1, &world.readers);
}

fn loaned_and_returned(world: &World, _: Vec<()>) {
    world.make_room();
    assert_eq!((world.pool.limit(), world.bypasses()), (1, 0));
    world.pool.set_limit(2, &world.readers);
    reads::<1>(world, &world.slots[0]);
    reads::<0>(world, &world.slots[0]);
    assert_eq!((world.pool.limit(), world.bypasses()), (2, 0));
}

#[test]
fn a_frame_on_loan_against_a_hit() {
    check(|| World::new(2, &[2], 9).with(&[0, 1]), &[loans_out, hits::<1>], loaned_and_returned);
    check(|| World::new(2, &[2], 9).with(&[0, 1]), &[loans_out, hits::<1>, hits::<1>], loaned_and_returned);
}

#[test]
fn a_frame_on_loan_against_a_guard() {
    fn holds(world: &World, slot: &Slot) {
        if let Some(kept) = world.keep(slot, 0, 1, true) {
            assert_eq!(world.read_kept(&kept), content(0, 1));
            world.release(slot, kept);
        }
    }
    check(|| World::new(2, &[2], 9).with(&[0, 1]), &[loans_out, holds], loaned_and_returned);
}

#[test]
fn a_frame_on_loan_against_a_load() {
    check(
        || World::new(2, &[2], 9).with(&[0]),
        &[loans_out, reads::<1>],
        |world, _| {
            // A page that was being loaded into the frame stays until it is evicted.
            world.read(&world.slots[0], 0, 1).unwrap();
            assert_eq!(world.pool.limit(), 1);
        },
    );
    // Loaned and taken back at the same time.
    check(
        || World::new(2, &[2], 9).with(&[0, 1]),
        &[loans_out, |world, _| world.pool.set_limit(2, &world.readers)],
        |world, _| assert!((1..=2).contains(&world.pool.limit())),
    );
}
