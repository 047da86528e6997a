//! Loads: one for all callers that want the page at the same time, and its outcome for each of
//! them.

use super::check;
use super::entry::EntryState;
use super::error::Error;
use super::model_cache::{ModelCache, ReadOutcome, content};
use super::readers::ReaderSlot;

fn one_frame() -> ModelCache {
    ModelCache::new(1, &[1], 9)
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

fn all_have_the_page(cache: &ModelCache, results: Vec<ReadOutcome>) {
    assert!(results.into_iter().all(|read| read.unwrap() == content(0, 0)));
    assert_eq!((cache.loads(), cache.bypasses()), (1, 0));
}

#[test]
fn misses_of_one_page_load_it_once() {
    check(one_frame, &[reads, reads], all_have_the_page);
    check(one_frame, &[reads, reads, reads], all_have_the_page);
}

#[test]
fn misses_that_block_and_that_await_wait_for_one_another() {
    check(one_frame, &[reads, awaits], all_have_the_page);
    check(one_frame, &[awaits, awaits], all_have_the_page);
    check(one_frame, &[awaits, reads, awaits], all_have_the_page);
}

/// Returns the number of the load that the error came from.
fn load_of(error: &Error) -> usize {
    let Error::Rejected { reason, .. } = error else { panic!("{error}") };
    reason.parse().unwrap()
}

#[test]
fn an_error_reaches_all_waiters_and_the_next_caller_loads_again() {
    fn all_failed(cache: &ModelCache, results: Vec<ReadOutcome>) {
        let mut loads: Vec<_> = results.into_iter().map(|read| load_of(&read.unwrap_err())).collect();
        loads.sort_unstable();
        loads.dedup();
        assert_eq!(
            loads.len(),
            cache.loads(),
            "each failed load had a caller, and its error reached all waiters"
        );
        assert_eq!(cache.state(0, 0), EntryState::Absent(None));
        assert_eq!(cache.read(&cache.slots[0], 0, 0).unwrap(), content(0, 0));
        assert_eq!(cache.loads(), loads.len() + 1);
    }
    fn one_failed(cache: &ModelCache, mut results: Vec<ReadOutcome>) {
        let second = results.pop();
        match (results.pop().unwrap(), second.unwrap()) {
            // The second caller waited for the failure, or loaded after it.
            (Err(one), Err(other)) => assert_eq!((load_of(&one), load_of(&other), cache.loads()), (1, 1, 1)),
            (Err(one), Ok(_)) => assert_eq!((load_of(&one), cache.loads()), (1, 2)),
            // The first caller found the page that the second had loaded, or waited for it.
            (Ok(_), Ok(_)) => assert_eq!(cache.loads(), 1),
            (Ok(_), Err(error)) => panic!("the second can't fail by itself: {error}"),
        }
    }
    check(one_frame, &[fails, fails], all_failed);
    check(one_frame, &[fails, fails, fails], all_failed);
    check(one_frame, &[fails, reads], one_failed);
    check(one_frame, &[fails, awaits], one_failed);
}
