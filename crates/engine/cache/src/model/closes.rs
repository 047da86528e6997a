//! Closes against hits and loads.

use super::check;
use super::error::Error;
use super::model_cache::{ModelCache, ReadOutcome, content};
use super::pool::LoadReason;
use super::readers::ReaderSlot;

/// Creates one frame for two files of a page each.
fn absent() -> ModelCache {
    ModelCache::new(1, &[1, 1], 9)
}

fn resident() -> ModelCache {
    absent().with(&[0])
}

fn reads(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    cache.read(slot, 0, 0)
}

fn closes_only(cache: &ModelCache, _: &ReaderSlot) -> ReadOutcome {
    cache.close(0);
    Err(ModelCache::closed())
}

fn makes_room(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    assert_eq!(cache.read(slot, 1, 0).unwrap(), content(1, 0));
    Err(ModelCache::closed())
}

/// Closes the file, and reuses its frame for the other file.
fn closes(cache: &ModelCache, slot: &ReaderSlot) -> ReadOutcome {
    cache.close(0);
    assert!(matches!(cache.read(slot, 0, 0), Err(Error::Closed { .. })), "read after the close");
    assert_eq!(cache.read(slot, 1, 0).unwrap(), content(1, 0));
    cache.read(slot, 0, 0)
}

/// Checks the results: the first caller closed the file, the others got the page or an error.
fn page_or_closed(cache: &ModelCache, results: Vec<ReadOutcome>) {
    for (number, read) in results.into_iter().enumerate() {
        match read {
            Ok(read) => assert_eq!((number > 0, read), (true, content(0, 0))),
            Err(Error::Closed { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    // Nothing is left of the closed file.
    let slot = &cache.slots[0];
    assert_eq!(cache.read(slot, 1, 0).unwrap(), content(1, 0));
    assert_eq!(cache.copy(slot, 1, 0), Some(content(1, 0)), "the frame is the other file's");
    assert_eq!(cache.files[0].live_pages(), 0);
}

#[test]
fn a_close_against_a_hit() {
    check(resident, &[closes, reads], page_or_closed);
    check(resident, &[closes, reads, reads], page_or_closed);
}

#[test]
fn a_close_that_is_tidied_up_against_a_hit() {
    fn closes_and_tidies(cache: &ModelCache, _: &ReaderSlot) -> ReadOutcome {
        cache.close(0);
        cache.pool.tidy(&cache.readers);
        cache.load(1, 0, LoadReason::Read);
        Err(ModelCache::closed())
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
    fn closes_first(cache: &ModelCache, _: &ReaderSlot) -> bool {
        cache.pool.close(&cache.files[0])
    }
    check(resident, &[closes_first, closes_first], |cache, results| {
        assert_eq!(results.into_iter().filter(|first| *first).count(), 1);
        cache.make_room();
        assert_eq!(cache.files[0].live_pages(), 0);
    });
}
