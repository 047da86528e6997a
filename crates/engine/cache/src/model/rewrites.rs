//! Pages that their owner rewrites, against hits, loads and evictions. The world checks at the end of each
//! order that no old content is left.

#![expect(clippy::unnecessary_wraps, reason = "the callers of a model are of one type")]

use super::check;
use super::entry::EntryState;
use super::error::Error;
use super::pool::LoadReason;
use super::readers::Slot;
use super::world::{VERSION, World, content};

type Read = Result<u64, Error>;

/// Creates one more frame than pages: for a superseded load, and the load after it.
fn absent() -> World {
    World::new(2, &[1], 9).written()
}

fn resident() -> World {
    absent().with(&[0])
}

fn settled() -> World {
    absent().with_settled(0)
}

fn unread() -> World {
    absent().with_unread(0)
}

fn old() -> u64 {
    content(0, 0)
}

/// Returns the device's content after one write.
fn new() -> u64 {
    content(0, 0) + VERSION
}

fn reads(world: &World, slot: &Slot) -> Read {
    world.read(slot, 0, 0)
}

fn awaits(world: &World, slot: &Slot) -> Read {
    world.read_async(slot, 0, 0)
}

fn fails(world: &World, slot: &Slot) -> Read {
    world.read_failing(slot, 0, 0)
}

/// Checks that a second read never returns older content than the first.
fn reads_twice(world: &World, slot: &Slot) -> Read {
    let first = world.read(slot, 0, 0)?;
    let second = world.read(slot, 0, 0)?;
    assert!(first <= second, "{second} after {first}");
    Ok(second)
}

fn discards(world: &World, slot: &Slot) -> Read {
    world.write(0);
    world.discard(0);
    assert_eq!(reads(world, slot).ok(), Some(new()), "after the discard");
    Ok(new())
}

fn installs(world: &World, slot: &Slot) -> Read {
    world.write(0);
    let installed = world.install(0, LoadReason::Read);
    let read = world.copy(slot, 0, 0);
    assert!(!installed || read == Some(new()), "{read:?} after the install");
    Ok(new())
}

fn installs_or_discards(world: &World, slot: &Slot) -> Read {
    world.write(0);
    world.install(0, LoadReason::Prefetch);
    assert_eq!(reads(world, slot).ok(), Some(new()), "after the install");
    Ok(new())
}

/// Evicts, and reuses frames.
fn evicts(world: &World, _: &Slot) -> Read {
    world.make_room();
    Ok(new())
}

/// Checks that a read beside a write returns old or new content. Nobody waits forever, or for a failure that
/// does not concern the page.
fn old_or_new(world: &World, results: Vec<Read>) {
    for read in results {
        let read = read.unwrap();
        assert!(read == old() || read == new(), "{read}");
    }
    assert_eq!(world.read(&world.slots[0], 0, 0).unwrap(), new());
}

#[test]
fn a_discard_against_a_hit() {
    for world in [resident, settled, unread] {
        check(world, &[discards, reads], old_or_new);
        check(world, &[discards, reads_twice], old_or_new);
    }
    check(resident, &[discards, reads, reads], old_or_new);
}

#[test]
fn a_discard_against_a_load_and_those_who_wait_for_it() {
    check(absent, &[discards, reads], old_or_new);
    check(absent, &[discards, reads_twice], old_or_new);
    check(absent, &[discards, reads, reads], old_or_new);
    check(absent, &[discards, reads, awaits], old_or_new);
    check(absent, &[discards, awaits, awaits], old_or_new);
}

#[test]
fn a_discard_against_a_load_for_which_there_is_one_frame() {
    check(|| World::new(1, &[1], 9).written(), &[discards, reads, reads], old_or_new);
    check(|| World::new(1, &[1], 9).written().with(&[0]), &[discards, reads, evicts], old_or_new);
}

#[test]
fn a_discard_against_a_load_that_fails() {
    fn old_or_new_or_failed(world: &World, results: Vec<Read>) {
        // A failure of a load that is not superseded is reported like any other.
        old_or_new(world, results.into_iter().flatten().map(Ok).collect());
    }
    fn discards_only(world: &World, _: &Slot) -> Read {
        world.write(0);
        world.discard(0);
        Ok(new())
    }
    fn reads_or_fails(world: &World, slot: &Slot) -> Read {
        let first = world.read_failing(slot, 0, 0);
        assert!(first.is_err());
        reads(world, slot)
    }
    check(absent, &[discards_only, reads_or_fails], old_or_new);
    check(absent, &[discards_only, fails, reads], old_or_new_or_failed);
    check(absent, &[discards_only, fails, awaits], old_or_new_or_failed);
}

#[test]
fn a_load_that_is_awaited_after_it_was_superseded() {
    fn begins_and_joins(world: &World, slot: &Slot) -> Read {
        world.read_joined(slot, 0, 0)
    }
    check(absent, &[discards, begins_and_joins], old_or_new);
    check(absent, &[discards, begins_and_joins, reads], old_or_new);
}

#[test]
fn an_install_against_a_hit() {
    for world in [resident, settled, unread] {
        check(world, &[installs, reads], old_or_new);
        check(world, &[installs, reads_twice], old_or_new);
    }
    check(resident, &[installs, reads, reads], old_or_new);
}

/// The second install writes to the frame that the first left.
#[test]
fn installs_one_after_another_against_a_hit() {
    fn installs_twice(world: &World, slot: &Slot) -> Read {
        for version in 1..=2 {
            world.write(0);
            world.install(0, LoadReason::Read);
            assert_eq!(reads(world, slot).ok(), Some(old() + version * VERSION), "after the install");
        }
        Ok(new())
    }
    fn of_any_version(_: &World, results: Vec<Read>) {
        assert!(results.into_iter().all(|read| [0, 1, 2].contains(&((read.unwrap() - old()) / VERSION))));
    }
    for world in [resident, settled, unread] {
        check(world, &[installs_twice, reads], of_any_version);
    }
    check(resident, &[installs_twice, reads_twice], of_any_version);
}

#[test]
fn an_install_against_a_load_and_those_who_wait_for_it() {
    check(absent, &[installs, reads], old_or_new);
    check(absent, &[installs, reads_twice], old_or_new);
    check(absent, &[installs, reads, reads], old_or_new);
    check(absent, &[installs, reads, awaits], old_or_new);
}

#[test]
fn an_install_for_which_there_may_be_no_frame() {
    check(|| World::new(1, &[1], 9).written(), &[installs_or_discards, reads], old_or_new);
    check(|| World::new(1, &[1], 9).written().with(&[0]), &[installs_or_discards, reads], old_or_new);
    check(|| World::new(1, &[1], 9).written().with(&[0]), &[installs_or_discards, reads, reads], old_or_new);
}

#[test]
fn an_install_against_an_eviction() {
    fn evicts_and_reads(world: &World, slot: &Slot) -> Read {
        world.make_room();
        reads(world, slot)
    }
    check(resident, &[installs_or_discards, evicts], old_or_new);
    check(resident, &[installs_or_discards, evicts_and_reads], old_or_new);
    check(resident, &[installs_or_discards, evicts, reads], old_or_new);
}

#[test]
fn a_guard_keeps_what_it_had() {
    fn holds(world: &World, slot: &Slot) -> Read {
        let Some(kept) = world.keep(slot, 0, 0, true).or_else(|| world.load_kept(slot, 0, 0, true)) else {
            return Ok(old());
        };
        let first = world.read_kept(&kept);
        loom::thread::yield_now();
        assert_eq!(world.read_kept(&kept), first, "under a guard");
        world.release(slot, kept);
        Ok(first)
    }
    for world in [absent, resident] {
        check(world, &[discards, holds], old_or_new);
        check(world, &[installs_or_discards, holds], old_or_new);
    }
}

#[test]
fn a_discard_and_an_install_against_a_close() {
    fn closes(world: &World, _: &Slot) -> Read {
        world.close(0);
        world.pool.tidy(&world.readers);
        Err(World::closed())
    }
    fn rewrites(world: &World, _: &Slot) -> Read {
        world.write(0);
        world.install(0, LoadReason::Read);
        world.discard(0);
        Err(World::closed())
    }
    fn nothing_is_left(world: &World, _: Vec<Read>) {
        world.pool.tidy(&world.readers);
        assert_eq!((world.files[0].live_pages(), world.state(0, 0)), (0, EntryState::Absent(None)));
    }
    check(resident, &[closes, rewrites], nothing_is_left);
    check(absent, &[closes, rewrites, reads], nothing_is_left);
}
