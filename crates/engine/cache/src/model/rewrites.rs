//! Pages that their owner rewrites, against hits, loads and evictions. The cache checks at the end
//! of each order that no old content is left.

#![expect(clippy::unnecessary_wraps, reason = "the callers of a model are of one type")]

use super::check;
use super::entry::EntryState;
use super::model_cache::{ModelCache, ReadOutcome, VERSION_STRIDE, content};
use super::pool::LoadReason;
use super::readers::ReaderSlot;

/// Creates one more frame than pages: for a superseded load, and the load after it.
fn absent() -> ModelCache {
    ModelCache::new(2, &[1], 9).written()
}

fn resident() -> ModelCache {
    absent().with(&[0])
}

fn settled() -> ModelCache {
    absent().with_settled(0)
}

fn unread() -> ModelCache {
    absent().with_unread(0)
}

fn old() -> u64 {
    content(0, 0)
}

/// Returns the device's content after one write.
fn new() -> u64 {
    content(0, 0) + VERSION_STRIDE
}

fn reads(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    cache.read(slot, 0, 0)
}

fn awaits(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    cache.read_async(slot, 0, 0)
}

fn fails(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    cache.read_failing(slot, 0, 0)
}

/// Checks that a second read never returns older content than the first.
fn reads_twice(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    let first = cache.read(slot, 0, 0)?;
    let second = cache.read(slot, 0, 0)?;
    assert!(first <= second, "{second} after {first}");
    Ok(second)
}

fn discards(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    cache.write(0);
    cache.discard(0);
    assert_eq!(reads(cache, slot).ok(), Some(new()), "after the discard");
    Ok(new())
}

fn installs(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    cache.write(0);
    let installed = cache.install(0, LoadReason::Read);
    let read = cache.copy(slot, 0, 0);
    assert!(!installed || read == Some(new()), "{read:?} after the install");
    Ok(new())
}

fn installs_or_discards(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    cache.write(0);
    cache.install(0, LoadReason::Prefetch);
    assert_eq!(reads(cache, slot).ok(), Some(new()), "after the install");
    Ok(new())
}

/// Evicts pages, and reuses their frames.
fn evicts(cache: &ModelCache, _: &ReaderSlot) -> ReadOutcome {
    cache.make_room();
    Ok(new())
}

/// Checks that a read beside a write returns old or new content. Nobody waits forever, or for a
/// failure that does not concern the page.
fn old_or_new(cache: &ModelCache, results: Vec<ReadOutcome>) {
    for read in results {
        let read = read.unwrap();
        assert!(read == old() || read == new(), "{read}");
    }
    assert_eq!(cache.read(&cache.slots[0], 0, 0).unwrap(), new());
}

#[test]
fn a_discard_against_a_hit() {
    for cache in [resident, settled, unread] {
        check(cache, &[discards, reads], old_or_new);
        check(cache, &[discards, reads_twice], old_or_new);
    }
    check(resident, &[discards, reads, reads], old_or_new);
}

#[test]
fn a_discard_against_a_load_and_its_waiters() {
    check(absent, &[discards, reads], old_or_new);
    check(absent, &[discards, reads_twice], old_or_new);
    check(absent, &[discards, reads, reads], old_or_new);
    check(absent, &[discards, reads, awaits], old_or_new);
    check(absent, &[discards, awaits, awaits], old_or_new);
}

#[test]
fn a_discard_against_a_load_for_which_there_is_one_frame() {
    check(|| ModelCache::new(1, &[1], 9).written(), &[discards, reads, reads], old_or_new);
    check(|| ModelCache::new(1, &[1], 9).written().with(&[0]), &[discards, reads, evicts], old_or_new);
}

#[test]
fn a_discard_against_a_load_that_fails() {
    fn old_or_new_or_failed(cache: &ModelCache, results: Vec<ReadOutcome>) {
        // A failure of a load that is not superseded is reported like any other.
        old_or_new(cache, results.into_iter().flatten().map(Ok).collect());
    }
    fn discards_only(cache: &ModelCache, _: &ReaderSlot) -> ReadOutcome {
        cache.write(0);
        cache.discard(0);
        Ok(new())
    }
    fn reads_or_fails(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
        let first = cache.read_failing(slot, 0, 0);
        assert!(first.is_err());
        reads(cache, slot)
    }
    check(absent, &[discards_only, reads_or_fails], old_or_new);
    check(absent, &[discards_only, fails, reads], old_or_new_or_failed);
    check(absent, &[discards_only, fails, awaits], old_or_new_or_failed);
}

#[test]
fn a_load_that_is_awaited_after_it_was_superseded() {
    fn begins_and_joins(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
        cache.read_joined(slot, 0, 0)
    }
    check(absent, &[discards, begins_and_joins], old_or_new);
    check(absent, &[discards, begins_and_joins, reads], old_or_new);
}

#[test]
fn an_install_against_a_hit() {
    for cache in [resident, settled, unread] {
        check(cache, &[installs, reads], old_or_new);
        check(cache, &[installs, reads_twice], old_or_new);
    }
    check(resident, &[installs, reads, reads], old_or_new);
}

/// The second install writes to the frame that the first left.
#[test]
fn installs_one_after_another_against_a_hit() {
    fn installs_twice(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
        for version in 1..=2 {
            cache.write(0);
            cache.install(0, LoadReason::Read);
            assert_eq!(reads(cache, slot).ok(), Some(old() + version * VERSION_STRIDE), "after the install");
        }
        Ok(new())
    }
    fn of_any_version(_: &ModelCache, results: Vec<ReadOutcome>) {
        assert!(
            results.into_iter().all(|read| [0, 1, 2].contains(&((read.unwrap() - old()) / VERSION_STRIDE)))
        );
    }
    for cache in [resident, settled, unread] {
        check(cache, &[installs_twice, reads], of_any_version);
    }
    check(resident, &[installs_twice, reads_twice], of_any_version);
}

#[test]
fn an_install_against_a_load_and_its_waiters() {
    check(absent, &[installs, reads], old_or_new);
    check(absent, &[installs, reads_twice], old_or_new);
    check(absent, &[installs, reads, reads], old_or_new);
    check(absent, &[installs, reads, awaits], old_or_new);
}

#[test]
fn an_install_for_which_there_may_be_no_frame() {
    check(|| ModelCache::new(1, &[1], 9).written(), &[installs_or_discards, reads], old_or_new);
    check(|| ModelCache::new(1, &[1], 9).written().with(&[0]), &[installs_or_discards, reads], old_or_new);
    check(
        || ModelCache::new(1, &[1], 9).written().with(&[0]),
        &[installs_or_discards, reads, reads],
        old_or_new,
    );
}

#[test]
fn an_install_against_an_eviction() {
    fn evicts_and_reads(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
        cache.make_room();
        reads(cache, slot)
    }
    check(resident, &[installs_or_discards, evicts], old_or_new);
    check(resident, &[installs_or_discards, evicts_and_reads], old_or_new);
    check(resident, &[installs_or_discards, evicts, reads], old_or_new);
}

#[test]
fn a_guard_keeps_its_content() {
    fn holds(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
        let Some(kept) = cache.keep(slot, 0, 0, true).or_else(|| cache.load_kept(slot, 0, 0, true)) else {
            return Ok(old());
        };
        let first = cache.read_kept(&kept);
        loom::thread::yield_now();
        assert_eq!(cache.read_kept(&kept), first, "under a guard");
        cache.release(slot, kept);
        Ok(first)
    }
    for cache in [absent, resident] {
        check(cache, &[discards, holds], old_or_new);
        check(cache, &[installs_or_discards, holds], old_or_new);
    }
}

#[test]
fn a_discard_and_an_install_against_a_close() {
    fn closes(cache: &ModelCache, _: &ReaderSlot) -> ReadOutcome {
        cache.close(0);
        cache.pool.tidy(&cache.readers);
        Err(ModelCache::closed())
    }
    fn rewrites(cache: &ModelCache, _: &ReaderSlot) -> ReadOutcome {
        cache.write(0);
        cache.install(0, LoadReason::Read);
        cache.discard(0);
        Err(ModelCache::closed())
    }
    fn nothing_is_left(cache: &ModelCache, _: Vec<ReadOutcome>) {
        cache.pool.tidy(&cache.readers);
        assert_eq!((cache.files[0].live_pages(), cache.state(0, 0)), (0, EntryState::Absent(None)));
    }
    check(resident, &[closes, rewrites], nothing_is_left);
    check(absent, &[closes, rewrites, reads], nothing_is_left);
}
