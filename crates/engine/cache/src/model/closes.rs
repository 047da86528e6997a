//! Closes against hits and loads.

use super::check;
use super::error::Error;
use super::pool::LoadReason;
use super::readers::Slot;
use super::world::{World, content};

type Read = Result<u64, Error>;

/// Creates one frame for two files of a page each.
fn absent() -> World {
    World::new(1, &[1, 1], 9)
}

fn resident() -> World {
    absent().with(&[0])
}

fn reads(world: &World, slot: &Slot) -> Read {
    world.read(slot, 0, 0)
}

fn closes_only(world: &World, _: &Slot) -> Read {
    world.close(0);
    Err(World::closed())
}

fn makes_room(world: &World, slot: &Slot) -> Read {
    assert_eq!(world.read(slot, 1, 0).unwrap(), content(1, 0));
    Err(World::closed())
}

/// Closes the file, and reuses its frame for the other file.
fn closes(world: &World, slot: &Slot) -> Read {
    world.close(0);
    assert!(matches!(world.read(slot, 0, 0), Err(Error::Closed { .. })), "read after the close");
    assert_eq!(world.read(slot, 1, 0).unwrap(), content(1, 0));
    world.read(slot, 0, 0)
}

/// Checks the results: the first caller closed the file, the others got the page or an error.
fn page_or_closed(world: &World, results: Vec<Read>) {
    for (number, read) in results.into_iter().enumerate() {
        match read {
            Ok(read) => assert_eq!((number > 0, read), (true, content(0, 0))),
            Err(Error::Closed { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    // Nothing is left of the closed file.
    let slot = &world.slots[0];
    assert_eq!(world.read(slot, 1, 0).unwrap(), content(1, 0));
    assert_eq!(world.copy(slot, 1, 0), Some(content(1, 0)), "the frame is the other file's");
    assert_eq!(world.files[0].live_pages(), 0);
}

#[test]
fn a_close_against_a_hit() {
    check(resident, &[closes, reads], page_or_closed);
    check(resident, &[closes, reads, reads], page_or_closed);
}

#[test]
fn a_close_that_is_tidied_up_against_a_hit() {
    fn closes_and_tidies(world: &World, _: &Slot) -> Read {
        world.close(0);
        world.pool.tidy(&world.readers);
        world.load(1, 0, LoadReason::Read);
        Err(World::closed())
    }
    check(resident, &[closes_and_tidies, reads], page_or_closed);
    check(absent, &[closes_and_tidies, reads], page_or_closed);
}

#[test]
fn a_close_against_a_load() {
    check(absent, &[closes, reads], page_or_closed);
    check(absent, &[closes, reads, reads], page_or_closed);
    // Another thread makes room in the middle of the close.
    check(absent, &[closes_only, reads, makes_room], page_or_closed);
}

#[test]
fn a_file_is_closed_once() {
    fn closes_first(world: &World, _: &Slot) -> bool {
        world.pool.close(&world.files[0])
    }
    check(resident, &[closes_first, closes_first], |world, results| {
        assert_eq!(results.into_iter().filter(|first| *first).count(), 1);
        world.make_room();
        assert_eq!(world.files[0].live_pages(), 0);
    });
}
