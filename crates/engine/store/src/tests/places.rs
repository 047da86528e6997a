//! Changes that an opening leaves in the journal and reads again: they are the original ones, or
//! there is a clear error. Snapshots have them after the journal was given up, and a checkpoint
//! reads them in few pieces.

use std::sync::Arc;

use pagekeeper_simdisk::{Damage, Fault, Persistence, SimDisk, Times};
use pagekeeper_testing::Seed;

use super::disk::{Meanwhile, Prompt};
use super::world::dir;
use crate::page::Page;
use crate::{Durability, Error, FullPageImages, PageNo, Store, StoreOptions};
use pagekeeper_wal::Lsn;

/// Pages that are changed before the crash.
const PAGES: u64 = 300;
const PAGE_1: PageNo = PageNo::new(1);
const RING: &str = "/store/journal/redo.000";

/// Returns those pages.
fn all() -> impl Iterator<Item = PageNo> + Clone {
    (0..PAGES).map(PageNo::new)
}

fn disk() -> SimDisk {
    SimDisk::builder().by_steps().build()
}

/// Returns options with which nothing of the journal is kept in memory.
fn options(disk: &SimDisk) -> StoreOptions {
    let io = Arc::new(Prompt::new(disk.clone(), Meanwhile::default()));
    let options = Store::options().journal_bytes(4 << 20).memory(1 << 20).io(io).warm(false);
    let mut options = options.full_page_images(FullPageImages::Always).without_threads();
    options.held_journal_bytes = Some(0);
    options
}

fn open(disk: &SimDisk) -> Store {
    options(disk).open(dir()).expect("nothing fails")
}

/// Writes the content of a page after this many rounds.
fn content(page: PageNo, round: u64, payload: &mut [u8]) {
    for (at, bytes) in payload.chunks_mut(8).enumerate() {
        // Only the second half changes in later rounds.
        let round = if at < 254 { 0 } else { round };
        let number =
            (page.get() << 32 | round << 16).wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.copy_from_slice(&number.to_le_bytes()[..bytes.len()]);
    }
}

fn has(found: &Page, page: PageNo, round: u64) -> bool {
    let mut expected = vec![0; found.len()];
    content(page, round, &mut expected);
    found[..] == expected[..]
}

fn write(store: &Store, pages: impl Iterator<Item = PageNo>, round: u64) {
    let mut txn = store.begin_write().expect("nothing fails");
    let mut whole = vec![0; store.payload_size()];
    for page in pages {
        content(page, round, &mut whole);
        if round == 0 {
            txn.write(page, &whole).expect("it is there");
        } else {
            txn.page_mut(page).expect("it is there").copy_from_slice(&whole);
        }
    }
    txn.commit(Durability::Sync).expect("nothing fails");
}

/// Makes a store that was killed: each page has a full image in the journal, every third one also
/// two partial changes, and nothing is applied.
fn crashed() -> SimDisk {
    let disk = disk();
    let mut options = options(&disk).memory(64 << 20);
    options.held_journal_bytes = None;
    let store = options.open(dir()).expect("nothing fails");
    let mut txn = store.begin_write().expect("nothing fails");
    assert_eq!(txn.allocate_run(PAGES).expect("there is room"), PageNo::new(0));
    txn.commit(Durability::Sync).expect("nothing fails");
    store.sync().expect("nothing fails");
    for from in (0..PAGES).step_by(25) {
        write(&store, (from..from + 25).map(|page| PageNo::new(page * 7 % PAGES)), 0);
    }
    for round in 1..3 {
        write(&store, all().step_by(3), round);
    }
    let found = disk.after_kill();
    drop(store);
    found
}

/// Writes whole pages, so that nobody reads their previous content, and applies them.
fn write_over(store: &Store, pages: impl Iterator<Item = PageNo>, round: u64) {
    let mut txn = store.begin_write().expect("nothing fails");
    let mut payload = vec![0; store.payload_size()];
    for page in pages {
        content(page, round, &mut payload);
        txn.write(page, &payload).expect("it is there");
    }
    txn.commit(Durability::Sync).expect("nothing fails");
    store.sync().expect("nothing fails");
}

/// Returns the last round of a page.
fn round(page: PageNo) -> u64 {
    if page.get().is_multiple_of(3) { 2 } else { 0 }
}

/// Returns the place of page 1's bytes in the ring's first file.
fn place_of_page_1(disk: &SimDisk) -> u64 {
    use pagekeeper_io::{Access, Io};
    let file = disk.open(RING.as_ref(), Access::Buffered).expect("it is there");
    let mut bytes = vec![0; usize::try_from(file.stat().expect("it is open").size).expect("it is small")];
    file.read_at(0, &mut bytes).expect("nothing fails");
    let mut payload = vec![0; 4064];
    content(PAGE_1, 0, &mut payload);
    let at = bytes.windows(64).position(|window| window == &payload[64..128]).expect("it is there");
    at as u64 - 64
}

#[test]
fn all_is_found_and_applied_though_nothing_of_it_is_in_memory() {
    let disk = crashed();
    let store = open(&disk);
    assert_eq!((store.stats().opening.pages, store.stats().unapplied_pages), (PAGES, PAGES));
    // A few bytes for each, of a journal of more than 1 MiB.
    assert!(store.stats().opening.journal_bytes > 1 << 20 && store.stats().unapplied_bytes < 100 << 10);
    for page in all().step_by(5) {
        let before = disk.stats();
        let read = store.begin_read().expect("nothing fails").read(page).expect("it is there");
        assert!(has(&read, page, round(page)), "{page}");
        assert!(disk.stats().reads - before.reads <= 3);
    }
    // No more rebuilt pages are kept than their share.
    assert!(store.stats().unapplied_bytes < 384 << 10, "{}", store.stats().unapplied_bytes);
    let before = disk.stats().reads;
    assert!(store.step().expect("nothing fails"));
    // In pieces of at least 64 KiB, not page by page.
    assert!(disk.stats().reads - before < 100, "{} reads", disk.stats().reads - before);
    assert_eq!((store.stats().unapplied_pages, store.stats().journal_bytes), (0, 0));
    let read = store.begin_read().expect("nothing fails");
    assert!(all().all(|page| has(&read.read(page).expect("it is there"), page, round(page))));
    drop(read);
    assert!(store.verify().expect("nothing fails").is_sound());
}

#[test]
fn a_place_that_rots_after_the_opening_is_an_error_until_the_page_is_written() {
    let disk = crashed();
    let at = place_of_page_1(&disk);
    let store = open(&disk);
    disk.damage(RING, &Damage::Bit { at: at + 777, bit: 3 }).expect("it is there");
    let read = store.begin_read().expect("nothing fails");
    let error = read.read(PAGE_1).expect_err("it is rotten");
    assert!(matches!(error, Error::Damaged { page: PAGE_1, .. }), "{error}");
    assert!(error.to_string().contains("put together from the journal it has another checksum"), "{error}");
    assert!(all().skip(2).all(|page| has(&read.read(page).expect("it is there"), page, round(page))));
    // The checkpoint applies the others, does not count, and gives nothing up.
    let lsn = store.core().journal.checkpoint_lsn();
    assert!(matches!(store.step(), Err(Error::Damaged { page: PAGE_1, .. })));
    assert_eq!((store.core().journal.checkpoint_lsn(), store.stats().unapplied_pages), (lsn, 1));
    drop(read);
    // An opening finds it at once.
    let error = options(&disk.after_kill()).open(dir()).expect_err("it is rotten");
    assert!(matches!(error, Error::Journal(pagekeeper_wal::Error::Corrupt { .. })), "{error}");
    write(&store, [PAGE_1].into_iter(), 0);
    store.sync().expect("nothing is wrong any more");
    assert!(has(&store.begin_read().expect("nothing fails").read(PAGE_1).expect("it is there"), PAGE_1, 0));
    assert!(store.verify().expect("nothing fails").is_sound());
}

#[test]
fn a_place_that_cannot_be_read_is_an_error_of_the_disk() {
    let disk = crashed();
    let at = place_of_page_1(&disk);
    let store = open(&disk);
    let read = store.begin_read().expect("nothing fails");
    disk.inject(RING, at..at + 4064, Fault::EIO, Times::Always).expect("it is there");
    let error = read.read(PAGE_1).expect_err("it can't be read");
    assert_eq!(error.errno(), Some(libc::EIO), "{error}");
    disk.heal(RING).expect("it is there");
    assert!(has(&read.read(PAGE_1).expect("it can be read again"), PAGE_1, 0));
    drop(read);
    // A checkpoint that cannot read a place poisons the store, and loses nothing.
    disk.inject(RING, 0..4 << 20, Fault::EIO, Times::Always).expect("it is there");
    assert!(matches!(store.step(), Err(Error::Poisoned { .. })));
    let found = disk.after_kill();
    found.heal_all();
    drop(store);
    let read = open(&found);
    let read = read.begin_read().expect("nothing fails");
    assert!(all().all(|page| has(&read.read(page).expect("it is there"), page, round(page))));
}

/// The journal is overwritten while a snapshot reads its previous content.
#[test]
fn a_snapshot_keeps_its_pages_when_the_journal_is_truncated() {
    let disk = crashed();
    // Enough memory for the snapshot, which would be ended otherwise.
    let store = options(&disk).memory(16 << 20).open(dir()).expect("nothing fails");
    let read = store.begin_read().expect("nothing fails");
    let kept = all().take(20);
    (3..80).for_each(|round| write_over(&store, kept.clone(), round));
    assert!(store.core().journal.end() > Lsn::new(store.core().journal.capacity()), "it was written over");
    for page in kept.clone() {
        assert!(has(&read.read(page).expect("it is kept"), page, round(page)), "{page}");
    }
    drop(read);
    // The next checkpoint drops it.
    write_over(&store, kept, 80);
    assert_eq!(store.stats().unapplied_bytes, 0);
}

/// While a backup has bytes loaded, replays seem to lack nothing, until the bytes are dropped.
#[test]
fn a_snapshot_keeps_loaded_places_when_the_journal_is_truncated() {
    let disk = crashed();
    let store = options(&disk).memory(16 << 20).open(dir()).expect("nothing fails");
    let read = store.begin_read().expect("nothing fails");
    let mut brought_in = store.core().load_places(all().take(20), store.stats().seq);
    brought_in.reach(PageNo::new(0));
    write_over(&store, all().take(20), 3);
    drop(brought_in);
    for page in all().take(20) {
        assert!(has(&read.read(page).expect("it is kept"), page, round(page)), "{page}");
    }
}

/// The disk cannot read bytes that only a snapshot needs: that snapshot ends, and nobody takes the
/// page for damaged.
#[test]
fn a_snapshot_with_unreadable_places_ends_when_the_journal_is_truncated() {
    let disk = crashed();
    let at = place_of_page_1(&disk);
    let store = options(&disk).memory(64 << 20).open(dir()).expect("nothing fails");
    let read = store.begin_read().expect("nothing fails");
    disk.inject(RING, at..at + 4064, Fault::EIO, Times::Always).expect("it is there");
    write_over(&store, all(), 3);
    disk.heal(RING).expect("it is there");
    assert!(matches!(read.read(PAGE_1), Err(Error::SnapshotTooOld)));
    drop(read);
    let read = store.begin_read().expect("nothing fails");
    assert!(all().all(|page| has(&read.read(page).expect("it is there"), page, 3)));
}

#[test]
fn a_power_cut_at_any_time_while_places_are_applied_loses_nothing() {
    let made = crashed();
    let ops = {
        let disk = made.after_kill();
        let store = open(&disk);
        let before = disk.ops();
        store.sync().expect("nothing fails");
        disk.ops() - before
    };
    let mut rng = Seed::new().rng(0);
    let mut cuts = 0;
    for cut in (0..ops).step_by(7) {
        let disk = made.after_kill();
        let store = open(&disk);
        write(&store, (0..10).map(|page| PageNo::new(page * 3 + 1)), 0);
        disk.cut_power_at(disk.ops() + cut);
        cuts += u64::from(store.sync().is_err());
        let persistence = Persistence::ALL[rng.index(Persistence::ALL.len())];
        let found = disk.after_power_cut(persistence, rng.number());
        drop(store);
        let store = open(&found);
        let read = store.begin_read().expect("nothing fails");
        assert!(all().all(|page| has(&read.read(page).expect("it is there"), page, round(page))), "{cut}");
        drop(read);
        store.sync().expect("nothing fails");
        assert!(store.verify().expect("nothing fails").is_sound());
    }
    assert!(cuts > 10, "{cuts} of {ops}");
}

#[test]
fn a_reader_rereads_places_each_time() {
    let disk = crashed();
    let store = options(&disk).read_only(true).open(dir()).expect("nothing fails");
    for _ in 0..2 {
        let read = store.begin_read().expect("nothing fails");
        assert!(all().all(|page| has(&read.read(page).expect("it is there"), page, round(page))));
    }
    assert!(store.stats().unapplied_bytes < 384 << 10, "{}", store.stats().unapplied_bytes);
}

#[test]
fn a_full_scan_reads_places_in_batches_and_keeps_none() {
    let disk = crashed();
    for read_only in [true, false] {
        // Room in the index for all of them, also as whole pages.
        let store = options(&disk).memory(16 << 20).read_only(read_only).open(dir()).expect("nothing fails");
        let unapplied_bytes = store.stats().unapplied_bytes;
        let all: [&dyn Fn(); 3] = [
            &|| assert!(store.verify().expect("nothing fails").is_sound()),
            &|| {
                let found = store.inspect(PageNo::new(0)..PageNo::new(PAGES));
                assert_eq!(found.expect("nothing fails").len() as u64, PAGES);
            },
            &|| {
                let to = format!("/copy-{read_only}");
                assert_eq!(store.backup(&to).expect("nothing fails").pages, PAGES);
                let io = Arc::new(Prompt::new(disk.clone(), Meanwhile::default()));
                let copy = Store::options().io(io).without_threads().warm(false).open(to);
                let copy = copy.expect("nothing fails");
                let read = copy.begin_read().expect("nothing fails");
                assert!(all().all(|page| has(&read.read(page).expect("it is there"), page, round(page))));
            },
        ];
        for (which, read_all) in all.into_iter().enumerate() {
            let before = disk.stats().reads;
            read_all();
            let reads = disk.stats().reads - before;
            // Reading the copy takes one read per page.
            let most = if which == 2 { PAGES + 100 } else { 100 };
            assert!(reads < most, "{which}: {reads} reads");
            assert_eq!(store.stats().unapplied_bytes, unapplied_bytes, "{which}");
        }
    }
}

/// Pages with small changes, each by a commit that ends a block of the journal.
const SMALL_CHANGE_PAGES: u64 = 100;
const COMMITS: u64 = 2000;

/// Returns those pages.
fn small() -> impl Iterator<Item = PageNo> {
    (0..SMALL_CHANGE_PAGES).map(PageNo::new)
}

/// Returns the page that a commit changes: page 0 for every second one.
fn small_of(commit: u64) -> PageNo {
    PageNo::new(if commit < SMALL_CHANGE_PAGES || commit.is_multiple_of(2) {
        commit % SMALL_CHANGE_PAGES
    } else {
        0
    })
}

/// Returns the last commits of those pages.
fn small_expected() -> Vec<u64> {
    let last = |page| (0..COMMITS).rev().find(|commit| small_of(*commit) == page).expect("each is changed");
    small().map(last).collect()
}

/// Makes a store that was killed after those commits.
fn small_changes() -> SimDisk {
    let disk = disk();
    let mut options = options(&disk).memory(64 << 20).journal_bytes(32 << 20);
    options.held_journal_bytes = None;
    let store = options.open(dir()).expect("nothing fails");
    let mut txn = store.begin_write().expect("nothing fails");
    assert_eq!(txn.allocate_run(SMALL_CHANGE_PAGES).expect("there is room"), PageNo::new(0));
    txn.commit(Durability::Sync).expect("nothing fails");
    store.sync().expect("nothing fails");
    let mut payload = vec![0; store.payload_size()];
    for commit in 0..COMMITS {
        let mut txn = store.begin_write().expect("nothing fails");
        let of = small_of(commit);
        payload[..8].copy_from_slice(&commit.to_le_bytes());
        if commit < SMALL_CHANGE_PAGES {
            txn.write(of, &payload).expect("it is there");
        } else {
            txn.page_mut(of).expect("it is there")[..8].copy_from_slice(&commit.to_le_bytes());
        }
        txn.commit(Durability::Sync).expect("nothing fails");
    }
    let found = disk.after_kill();
    drop(store);
    found
}

/// The share holds however many bytes must be read: for pages that have few bytes in each block,
/// and for a page larger than the share.
#[test]
fn loaded_places_stay_within_the_share() {
    let disk = small_changes();
    let expected = small_expected();
    let is_right = |store: &Store| {
        let read = store.begin_read().expect("nothing fails");
        small()
            .zip(&expected)
            .all(|(page, last)| read.read(page).expect("it is there")[..8] == last.to_le_bytes())
    };
    for read_only in [true, false] {
        let options = options(&disk).journal_bytes(32 << 20).read_only(read_only);
        let store = options.open(dir()).expect("nothing fails");
        assert!(store.stats().opening.journal_bytes > COMMITS * 4096, "each commit has a block");
        let (core, seq) = (store.core(), store.stats().seq);
        let (_, largest) = core.index.placed(PageNo::new(0), seq).expect("it has places");
        assert!(largest.size_with_bytes() > core.loaded_places_share());
        let (before, read) = (core.index.bytes(), disk.stats().bytes);
        let mut brought_in = core.load_places(small(), seq);
        let (mut most, mut times) = (0, 1);
        for page in small() {
            let bytes = core.index.bytes();
            brought_in.reach(page);
            times += u64::from(core.index.bytes() < bytes);
            most = most.max(core.index.bytes() - before);
            assert_eq!(core.index.placed(page, seq).is_some(), page == PageNo::new(0), "{page}");
        }
        drop(brought_in);
        assert!(core.index.bytes() == before && most > 0 && most <= core.loaded_places_share(), "{most}");
        let read = disk.stats().bytes - read;
        assert!((2..20).contains(&times) && read < times * COMMITS * 4096 * 2, "{times} times, {read} bytes");
        let batches = core.batches(core.index.unapplied(seq), seq);
        assert!(
            batches.iter().map(Vec::len).sum::<usize>() as u64 == SMALL_CHANGE_PAGES && batches.len() > 2
        );
        assert!(store.verify().expect("nothing fails").is_sound());
        assert!(core.index.bytes() <= before, "of page 0 alone a whole page is kept");
        assert!(is_right(&store));
        if !read_only {
            assert!(store.step().expect("nothing fails"));
            assert!(store.stats().unapplied_pages == 0 && is_right(&store));
        }
    }
}
