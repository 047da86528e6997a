//! Tables against hits: parts that are forgotten, and frames that are on loan.

use super::check;
use super::entry::EntryState;
use super::model_cache::{ModelCache, content};
use super::readers::ReaderSlot;

fn hits<const PAGE: u32>(cache: &ModelCache, slot: &ReaderSlot) {
    let hit = cache.copy(slot, 0, PAGE);
    assert!(hit.is_none_or(|read| read == content(0, PAGE)), "{hit:?}");
}

fn reads<const PAGE: u32>(cache: &ModelCache, slot: &ReaderSlot) {
    assert_eq!(cache.read(slot, 0, PAGE).unwrap(), content(0, PAGE));
}

#[test]
fn a_part_of_a_table_that_is_forgotten_against_a_hit() {
    // The page is evicted, then its part is forgotten in favour of the part of the page that is
    // loaded.
    check(
        || ModelCache::new(1, &[2], 1).with(&[0]),
        &[reads::<1>, hits::<0>],
        |cache, _| match (cache.bypasses(), cache.state(0, 0)) {
            (0, EntryState::Absent(None)) | (1, EntryState::Absent(Some(_))) => {}
            other => panic!("{other:?}"),
        },
    );
    // The page is taken out so that its part can be forgotten, and the frame is reused.
    check(
        || ModelCache::new(3, &[4], 2).with(&[0, 1]),
        &[
            |cache, slot| {
                reads::<2>(cache, slot);
                reads::<3>(cache, slot);
            },
            hits::<0>,
        ],
        |cache, _| assert_eq!(cache.state(0, 0), EntryState::Absent(None)),
    );
}

/// Loans out the second of two frames, each with a page; `loaned_and_returned` takes it back.
fn loans_out(cache: &ModelCache, _: &ReaderSlot) {
    cache.pool.set_limit(1, &cache.readers);
}

fn loaned_and_returned(cache: &ModelCache, _: Vec<()>) {
    cache.make_room();
    assert_eq!((cache.pool.limit(), cache.bypasses()), (1, 0));
    cache.pool.set_limit(2, &cache.readers);
    reads::<1>(cache, &cache.slots[0]);
    reads::<0>(cache, &cache.slots[0]);
    assert_eq!((cache.pool.limit(), cache.bypasses()), (2, 0));
}

#[test]
fn a_frame_on_loan_against_a_hit() {
    check(|| ModelCache::new(2, &[2], 9).with(&[0, 1]), &[loans_out, hits::<1>], loaned_and_returned);
    check(
        || ModelCache::new(2, &[2], 9).with(&[0, 1]),
        &[loans_out, hits::<1>, hits::<1>],
        loaned_and_returned,
    );
}

#[test]
fn a_frame_on_loan_against_a_guard() {
    fn holds(cache: &ModelCache, slot: &ReaderSlot) {
        if let Some(kept) = cache.keep(slot, 0, 1, true) {
            assert_eq!(cache.read_kept(&kept), content(0, 1));
            cache.release(slot, kept);
        }
    }
    check(|| ModelCache::new(2, &[2], 9).with(&[0, 1]), &[loans_out, holds], loaned_and_returned);
}

#[test]
fn a_frame_on_loan_against_a_load() {
    check(
        || ModelCache::new(2, &[2], 9).with(&[0]),
        &[loans_out, reads::<1>],
        |cache, _| {
            // A page that was being loaded into the frame stays until it is evicted.
            cache.read(&cache.slots[0], 0, 1).unwrap();
            assert_eq!(cache.pool.limit(), 1);
        },
    );
    // Loaned and taken back at the same time.
    check(
        || ModelCache::new(2, &[2], 9).with(&[0, 1]),
        &[loans_out, |cache, _| cache.pool.set_limit(2, &cache.readers)],
        |cache, _| assert!((1..=2).contains(&cache.pool.limit())),
    );
}
