//! Hits against evictions.

use super::check;
use super::entry::EntryState;
use super::model_cache::{ModelCache, content};
use super::readers::{ReadSection, ReaderSlot};

/// Reads page 0, whether it is there or not.
fn hits(cache: &ModelCache, slot: &ReaderSlot) {
    let hit = cache.copy(slot, 0, 0);
    assert!(hit.is_none_or(|read| read == content(0, 0)), "{hit:?}");
}

fn reads<const PAGE: u32>(cache: &ModelCache, slot: &ReaderSlot) {
    assert_eq!(cache.read(slot, 0, PAGE).unwrap(), content(0, PAGE));
}

fn hits_twice(cache: &ModelCache, slot: &ReaderSlot) {
    hits(cache, slot);
    hits(cache, slot);
}

#[test]
fn a_hit_against_an_eviction() {
    // The frame is loaded into again as soon as it is free.
    check(|| ModelCache::new(1, &[2], 9).with(&[0]), &[reads::<1>, hits], |_, _| {});
    check(|| ModelCache::new(1, &[2], 9).with_settled(0), &[reads::<1>, hits], |_, _| {});
    check(|| ModelCache::new(1, &[2], 9).with_unread(0), &[reads::<1>, hits], |_, _| {});
    check(|| ModelCache::new(1, &[2], 9).with(&[0]), &[reads::<1>, hits_twice], |_, _| {});
    check(|| ModelCache::new(1, &[2], 9).with(&[0]), &[reads::<1>, hits, hits], |_, _| {});
}

#[test]
fn threads_that_evict_each_others_pages() {
    check(|| ModelCache::new(1, &[2], 9), &[reads::<0>, reads::<1>], |_, _| {});
    check(|| ModelCache::new(2, &[4], 9).with(&[0, 1]), &[reads::<2>, reads::<3>, hits], |_, _| {});
}

#[test]
fn an_eviction_against_a_frequency_that_is_raised() {
    fn evicts(cache: &ModelCache, _: &ReaderSlot) {
        cache.make_room();
    }
    fn end(cache: &ModelCache, _: Vec<()>) {
        // The page goes however often it is read, and no read brings its frame back into the entry.
        match cache.state(0, 0) {
            EntryState::Absent(stamp) => assert!(stamp.is_some()),
            other => panic!("{other:?}"),
        }
    }
    check(|| ModelCache::new(1, &[1], 9).with(&[0]), &[evicts, hits_twice], end);
    check(|| ModelCache::new(1, &[1], 9).with_unread(0), &[evicts, hits_twice], end);
}

#[test]
fn the_first_read_of_a_thread_against_an_eviction() {
    fn comes_and_goes(cache: &ModelCache, _: &ReaderSlot) {
        let slot = cache.readers.register();
        hits(cache, &slot);
        slot.give_back();
    }
    check(|| ModelCache::new(1, &[2], 9).with(&[0]), &[reads::<1>, comes_and_goes], |_, _| {});
    // The second thread may get the slot of the first.
    check(
        || ModelCache::new(1, &[2], 9).with(&[0]),
        &[reads::<1>, comes_and_goes, comes_and_goes],
        |_, _| {},
    );
}

/// Other threads continue while a reader is stopped. Its frame is not reused; when the other frames
/// are used up, pages are read past the cache.
#[test]
fn retired_frames_against_a_reader_that_is_stopped() {
    type StoppedRead = (Option<u32>, Option<ReadSection>);

    fn stops(cache: &ModelCache, slot: &ReaderSlot) -> StoppedRead {
        let (frame, section) = cache.stop_within(slot, 0, 0);
        (frame, Some(section))
    }
    fn goes_on(cache: &ModelCache, slot: &ReaderSlot) -> StoppedRead {
        for page in 1..5 {
            assert_eq!(cache.read(slot, 0, page).unwrap(), content(0, page));
        }
        (None, None)
    }
    check(
        || ModelCache::new(3, &[5], 9).with(&[0]),
        &[goes_on, stops],
        |cache, mut results| {
            let Some((frame, Some(section))) = results.pop() else { unreachable!("it stopped") };
            for _ in 0..3 {
                cache.make_room();
            }
            if let Some(frame) = frame {
                assert_eq!(cache.pool.arena.read(frame), content(0, 0));
                assert!(cache.bypasses() <= 2, "of four pages, in two frames");
                assert!(cache.pool.totals().0 >= 1, "not all frames wait for the one that is stopped");
            }
            cache.slots[1].leave(section);
        },
    );
}
