//! Tables against hits: parts that are forgotten, and frames that are lent.

use super::check;
use super::readers::Slot;
use super::word::State;
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
    // The page is evicted, then its part is forgotten for that of the page which is loaded.
    check(
        || World::new(1, &[2], 1).with(&[0]),
        &[reads::<1>, hits::<0>],
        |world, _| match (world.bypasses(), world.state(0, 0)) {
            (0, State::Absent(None)) | (1, State::Absent(Some(_))) => {}
            other => panic!("{other:?}"),
        },
    );
    // The page is taken out so that its part can be forgotten, and the frame is used again.
    check(
        || World::new(3, &[4], 2).with(&[0, 1]),
        &[
            |world, slot| {
                reads::<2>(world, slot);
                reads::<3>(world, slot);
            },
            hits::<0>,
        ],
        |world, _| assert_eq!(world.state(0, 0), State::Absent(None)),
    );
}

/// Two frames, with a page in each; the second is lent, and comes back.
fn lends(world: &World, _: &Slot) {
    world.pool.set_limit(1, &world.readers);
}

fn lent_and_taken_back(world: &World, _: Vec<()>) {
    world.make_room();
    assert_eq!((world.pool.limit(), world.bypasses()), (1, 0));
    world.pool.set_limit(2, &world.readers);
    reads::<1>(world, &world.slots[0]);
    reads::<0>(world, &world.slots[0]);
    assert_eq!((world.pool.limit(), world.bypasses()), (2, 0));
}

#[test]
fn a_frame_that_is_lent_against_a_hit() {
    check(|| World::new(2, &[2], 9).with(&[0, 1]), &[lends, hits::<1>], lent_and_taken_back);
    check(|| World::new(2, &[2], 9).with(&[0, 1]), &[lends, hits::<1>, hits::<1>], lent_and_taken_back);
}

#[test]
fn a_frame_that_is_lent_against_a_guard() {
    fn holds(world: &World, slot: &Slot) {
        if let Some(keeping) = world.keep(slot, 0, 1, true) {
            assert_eq!(world.look(&keeping), content(0, 1));
            world.let_go(slot, keeping);
        }
    }
    check(|| World::new(2, &[2], 9).with(&[0, 1]), &[lends, holds], lent_and_taken_back);
}

#[test]
fn a_frame_that_is_lent_against_a_load() {
    check(
        || World::new(2, &[2], 9).with(&[0]),
        &[lends, reads::<1>],
        |world, _| {
            // A page that was being loaded into the frame stays until it is evicted.
            world.read(&world.slots[0], 0, 1).unwrap();
            assert_eq!(world.pool.limit(), 1);
        },
    );
    // Lent and taken back at the same time.
    check(
        || World::new(2, &[2], 9).with(&[0, 1]),
        &[lends, |world, _| world.pool.set_limit(2, &world.readers)],
        |world, _| assert!((1..=2).contains(&world.pool.limit())),
    );
}
