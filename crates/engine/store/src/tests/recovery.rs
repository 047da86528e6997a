//! Tests of how wide, and with how many requests, a store recovers, on virtual time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_policy::DiskProfile;
use pagekeeper_simdisk::{Fault, Persistence, SimDisk, Times};

use super::disk::{Meanwhile, Prompt};
use super::world::dir;
use crate::format::superblock::SlotContent;
use crate::{Durability, Store, StoreOptions, superblocks};
use pagekeeper_testing::Rng;

/// The disk's latency for each request.
const LATENCY: Duration = Duration::from_millis(2);
/// Requests that it serves at once.
const WIDTH: u64 = 24;
/// Changed pages, of which no two are adjacent.
const CHANGED_PAGES: u64 = 960;

fn options(disk: &SimDisk, writes: u64) -> StoreOptions {
    let io = Prompt::lagging(disk.clone(), Meanwhile::default(), writes);
    Store::options().memory(64 << 20).journal_bytes(16 << 20).io(Arc::new(io))
}

fn open(disk: &SimDisk, writes: u64) -> Store {
    options(disk, writes).without_threads().warm(false).open(dir()).expect("nothing fails")
}

/// Opens the store with a profile of the disk.
fn open_by(disk: &SimDisk, writes: u64, profile: &DiskProfile) -> Store {
    options(disk, writes).disk(profile).without_threads().warm(false).open(dir()).expect("nothing fails")
}

/// Makes a disk with a store of this many pages, of which some were changed before a crash, and
/// none was applied.
fn crashed(pages: u64) -> SimDisk {
    let width = usize::try_from(WIDTH).expect("it is small");
    let disk = SimDisk::builder().latency(LATENCY).width(width).by_steps().build();
    let store = open(&disk, 0);
    let mut rng = Rng::from_seed(pages);
    let mut txn = store.begin_write().expect("nothing fails");
    let first = txn.allocate_run(pages).expect("there is room");
    let changed = first.onward().step_by(2).take(usize::try_from(CHANGED_PAGES).expect("it is small"));
    for (at, page) in changed.enumerate() {
        let payload: Vec<u8> =
            (0..store.payload_size() / 8).flat_map(|_| rng.number().to_le_bytes()).collect();
        txn.write(page, &payload).expect("it is of the run");
        if at % 100 == 99 {
            txn.commit(Durability::None).expect("nothing fails");
            txn = store.begin_write().expect("nothing fails");
        }
    }
    txn.commit(Durability::Sync).expect("nothing fails");
    assert_eq!(store.stats().unapplied_pages, CHANGED_PAGES);
    let found = disk.after_power_cut(Persistence::None, 0);
    drop(store);
    found
}

fn data() -> &'static Path {
    Path::new("/store/data")
}

#[test]
fn opening_reads_the_journal_at_once_and_no_page() {
    let opened = [4096, 1 << 18].map(|pages| {
        let disk = crashed(pages);
        disk.inject(data(), 0..u64::MAX, Fault::EIO, Times::Always).expect("it is there");
        let store = open(&disk, CHANGED_PAGES);
        assert_eq!((store.stats().opening.pages, store.stats().pages), (CHANGED_PAGES, pages));
        let stats = disk.stats();
        (disk.now(), stats.reads, stats.peak_width, stats.faults)
    });
    println!("{opened:?}");
    // 16 MiB of pages or 1 GiB.
    assert_eq!(opened[0], opened[1]);
    let (took, reads, peak, faults) = opened[0];
    assert_eq!(faults, 0, "a page was read");
    // 4 MiB of journal, and little else.
    assert!(reads < 40 && peak >= 16, "{reads} reads, {peak} at once");
    assert!(took < 20 * LATENCY, "{took:?}");
}

#[test]
fn the_first_checkpoint_writes_all_pages_wide_and_reads_none() {
    let disk = crashed(4096);
    disk.inject(data(), 0..u64::MAX, Fault::EIO, Times::Always).expect("it is there");
    let store = open(&disk, CHANGED_PAGES);
    let (before, stats) = (disk.now(), disk.stats());
    assert!(store.step().expect("nothing fails"));
    let took = disk.now().saturating_sub(before);
    let after = disk.stats();
    println!("{took:?}, {} writes, {} reads", after.writes - stats.writes, after.reads - stats.reads);
    assert_eq!((after.faults, after.peak_width as u64), (0, WIDTH));
    // Besides the pages: two blocks of the page map, two superblocks and the journal's control,
    // each in both places with syncs, and the data file's sync.
    let others = after.writes - stats.writes - CHANGED_PAGES;
    assert!(others <= 8, "{others} writes beside those of pages");
    let limit = LATENCY * u32::try_from(CHANGED_PAGES.div_ceil(WIDTH)).expect("it is small");
    assert!(
        took.as_secs_f64() <= 1.1 * limit.as_secs_f64() + 16.0 * LATENCY.as_secs_f64(),
        "{took:?} of {limit:?}"
    );
    assert_eq!((store.stats().unapplied_pages, store.stats().journal_bytes), (0, 0));
    disk.heal(data()).expect("it is there");
    assert!(store.verify().expect("nothing fails").is_sound());
}

#[test]
fn a_disk_without_atomic_writes_in_its_profile_is_not_tested() {
    let first_diffs = |atomic_in_place_bytes_max| {
        let disk = SimDisk::builder().by_steps().atomic_writes(4096).build();
        drop(open_by(&disk, 0, &DiskProfile { atomic_in_place_bytes_max, ..DiskProfile::default() }));
        let read = superblocks::read(&disk, dir()).expect("nothing fails").expect("it is there");
        match read.newest() {
            Some((SlotContent::Superblock(newest), _)) => newest.first_diffs,
            _ => panic!("there is no superblock"),
        }
    };
    assert_eq!([None, Some(2048), Some(4096)].map(first_diffs), [false, false, true]);
}
