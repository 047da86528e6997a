//! Tests of the page map: the pages it accepts after writes that ended in any order, with corrupt
//! or unreadable places, and with evicted blocks.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, AlignedBuf, Create, Io, WriteMode};
use pagekeeper_simdisk::{Fault, Persistence, SimDisk, Times};

use crate::data::FileUse;
use crate::depth::WriteDepth;
use crate::format::page::{PageFault, PageHeader, PageKind};
use crate::format::page_map::{BLOCK_BYTES, BLOCK_PAGES};
use crate::page_map::{MAP_NAME, PageMap};
use crate::{Error, PageNo, Seq};

const STORE: u64 = 7;

fn path() -> std::path::PathBuf {
    Path::new("/store").join(MAP_NAME)
}

/// Creates an empty map.
fn map(disk: &SimDisk, pages: u64, memory: u64) -> PageMap {
    let io: Arc<dyn Io> = Arc::new(disk.clone());
    io.create_dir(Path::new("/store")).unwrap();
    PageMap::create(&io, Path::new("/store")).unwrap();
    let file = disk.open_writable(&path(), Access::Direct, Create::Never).unwrap();
    file.set_len(crate::page_map::bytes_for(pages)).unwrap();
    file.sync_all().unwrap();
    for dir in ["/store", "/"] {
        io.sync_dir(Path::new(dir)).unwrap();
    }
    open(disk, pages, memory)
}

/// Opens an existing map.
fn open(disk: &SimDisk, pages: u64, memory: u64) -> PageMap {
    let io: Arc<dyn Io> = Arc::new(disk.clone());
    PageMap::open(&io, Path::new("/store"), FileUse::Write, (STORE, Seq::NONE, pages), memory).unwrap()
}

fn passes(map: &PageMap, page: u64, crc: u32, seq: u64) -> bool {
    let (page, seq) = (PageNo::new(page), Seq::new(seq));
    map.check(page, &Ok(PageHeader { crc, kind: PageKind::Data, page, seq, store: STORE })).is_ok()
}

/// Sets the checksums of pages.
fn set(map: &PageMap, pages: &[(u64, u32)]) -> Result<(), Error> {
    map.set(pages.iter().map(|(page, crc)| (PageNo::new(*page), *crc)).collect())
}

fn flush(map: &PageMap, pages: u64, seq: u64) {
    map.flush(pages, Seq::new(seq), WriteDepth::of(None, false)).unwrap();
}

#[test]
fn accepted_damage_ends_with_the_next_write_in_any_order() {
    let disk = SimDisk::new();
    let map = map(&disk, 3000, 0);
    let pages = [2500, 3, 900, 1, 2, 1500];
    map.accept(pages.into_iter().map(|page| (PageNo::new(page), 10)));
    set(&map, &pages.map(|page| (page, 10))).unwrap();
    // All of them are written once more, and none of that gets to the disk.
    map.accept(pages.into_iter().map(|page| (PageNo::new(page), 20)));
    set(&map, &pages.map(|page| (page, 20))).unwrap();
    for page in pages {
        assert!(passes(&map, page, 20, 2) && !passes(&map, page, 10, 1), "page {page}");
    }
}

/// The same holds if the commits that the other place lacks came after the opening.
#[test]
fn one_rotten_copy_of_an_unloaded_block_hides_no_page() {
    let disk = SimDisk::new();
    let map = map(&disk, 1000, 0);
    for (crc, seq) in [(10, 1), (20, 2)] {
        set(&map, &[(5, crc), (6, 60)]).unwrap();
        flush(&map, 1000, seq);
    }
    // The second write went to place 0.
    let mut rotten = AlignedBuf::new(BLOCK_BYTES);
    rotten.fill(7);
    let file = disk.open_writable(&path(), Access::Direct, Create::Never).unwrap();
    file.write_at(0, &rotten, WriteMode::Plain).unwrap();
    map.evict(0);
    assert!(passes(&map, 5, 20, 2) && passes(&map, 6, 60, 1));
    // Also by what is written to it then.
    set(&map, &[(7, 70)]).unwrap();
    flush(&map, 1000, 3);
    map.evict(0);
    assert!(passes(&map, 5, 20, 2) && passes(&map, 6, 60, 1) && passes(&map, 7, 70, 3));
    assert!(!passes(&map, 7, 71, 4));
}

#[test]
fn a_block_that_can_not_be_read_for_a_while_is_not_written_over() {
    let disk = SimDisk::new();
    let map = map(&disk, 1000, 0);
    for seq in 1..=4 {
        set(&map, &[(5, 10 * seq)]).unwrap();
        flush(&map, 1000, seq.into());
    }
    map.evict(0);
    disk.inject(path(), 0..u64::MAX, Fault::EIO, Times::Always).unwrap();
    assert!(!passes(&map, 5, 40, 4));
    assert!(!passes(&map, 5, 30, 3));
    assert_eq!(set(&map, &[(6, 60)]).unwrap_err().errno(), Some(libc::EIO));
    assert!(map.faults(1000)[0].contains("Input/output error"), "{:?}", map.faults(1000));
    disk.heal(path()).unwrap();
    assert_eq!(map.kept(), 0);
    assert!(passes(&map, 5, 40, 4) && !passes(&map, 5, 30, 3));
    assert!(map.faults(1000).is_empty());
}

/// The unreadable place is written next: its content never counts.
#[test]
fn an_unreadable_copy_is_rewritten_or_fails() {
    for writes in 0..3_u32 {
        for place in 0..2_u64 {
            let disk = SimDisk::new();
            let map = map(&disk, 1000, 0);
            for seq in 1..=writes {
                set(&map, &[(5, 10 * seq)]).unwrap();
                flush(&map, 1000, seq.into());
            }
            map.evict(0);
            let range = place * BLOCK_BYTES as u64..(place + 1) * BLOCK_BYTES as u64;
            disk.inject(path(), range, Fault::EIO, Times::Always).unwrap();
            let set = set(&map, &[(5, 77)]);
            // If place 1 is zeros and place 0 is unreadable, nobody knows which was written last.
            assert_eq!(set.is_err(), writes == 0 && place == 0, "{writes} writes, place {place}");
            if set.is_ok() {
                flush(&map, 1000, 9);
            }
            disk.heal(path()).unwrap();
            map.evict(0);
            if set.is_ok() {
                assert!(passes(&map, 5, 77, 9) && !passes(&map, 5, 78, 10), "{writes} writes, place {place}");
            }
        }
    }
}

#[test]
fn more_blocks_than_are_kept_go_and_come_back() {
    let disk = SimDisk::new();
    let blocks = 150_u32;
    let pages = u64::from(blocks) * BLOCK_PAGES as u64;
    let map = map(&disk, pages, 0);
    let crc = |block: u32, round: u32| 1000 * round + block + 2;
    let page = |block: u32| u64::from(block) * BLOCK_PAGES as u64 + 11;
    for round in 1..=3 {
        let pages_of_round: Vec<_> = (0..blocks).map(|block| (page(block), crc(block, round))).collect();
        set(&map, &pages_of_round).unwrap();
        assert_eq!(map.kept(), 150, "blocks to be written stay");
        flush(&map, pages, round.into());
        assert_eq!(map.kept(), 64);
        for block in 0..blocks {
            assert!(passes(&map, page(block), crc(block, round), round.into()), "block {block}");
            assert!(!passes(&map, page(block), crc(block, round - 1), u64::from(round) - 1));
        }
        assert!(map.kept() < 64 + 16, "{} blocks", map.kept());
    }
}

/// A page was written for the first time, after any other write of its block. If the disk then
/// loses the page and either place of the block, it must not read as never written.
#[test]
fn a_lost_place_lets_no_written_page_pass_for_one_that_never_was() {
    for place in 0..2_u64 {
        for lost in [0, 7] {
            let disk = SimDisk::new();
            let map = map(&disk, 1000, 0);
            for seq in 1..=4_u32 {
                let page = u64::from(seq);
                set(&map, &[(page, 10 * seq)]).unwrap();
                flush(&map, 1000, seq.into());
                let disk = disk.after_kill();
                let file = disk.open_writable(&path(), Access::Direct, Create::Never).unwrap();
                let mut bytes = AlignedBuf::new(BLOCK_BYTES);
                bytes.fill(lost);
                file.write_at(place * BLOCK_BYTES as u64, &bytes, WriteMode::Plain).unwrap();
                let found = open(&disk, 1000, 0);
                let zeros = found.check(PageNo::new(page), &Err(PageFault::NeverWritten));
                assert!(zeros.is_err(), "place {place} filled with {lost}, commit {seq}");
                assert!(passes(&found, page, 10 * seq, seq.into()));
                // Nor a version of it that the disk should no longer have.
                assert!(!passes(&found, page, 10 * seq + 1, seq.into()));
                assert!(found.check(PageNo::new(page + 1), &Err(PageFault::NeverWritten)).is_ok());
            }
        }
    }
}

/// A killed process wrote data without syncing it. The next process reads it, and a power cut loses
/// it, so the other place must not be written before a sync.
#[test]
fn a_power_cut_after_a_kill_leaves_one_place_whole() {
    for cut in 0..7 {
        for (persistence, seed) in
            Persistence::ALL.into_iter().flat_map(|each| (0..20).map(move |seed| (each, seed)))
        {
            let disk = SimDisk::new();
            let first = map(&disk, 1000, 0);
            for seq in 1..=2 {
                set(&first, &[(5, 10), (6, 60)]).unwrap();
                flush(&first, 1000, seq);
            }
            set(&first, &[(5, 30)]).unwrap();
            // The block is written, and the sync fails.
            disk.cut_power_at(disk.ops() + 1);
            first.flush(1000, Seq::new(3), WriteDepth::of(None, false)).unwrap_err();
            let disk = disk.after_kill();
            let second = open(&disk, 1000, 0);
            set(&second, &[(5, 40)]).unwrap();
            disk.cut_power_at(disk.ops() + cut);
            let _ = second.flush(1000, Seq::new(4), WriteDepth::of(None, false));
            let disk = disk.after_power_cut(persistence, seed);
            let found = open(&disk, 1000, 0).faults(1000);
            assert!(found.is_empty(), "cut at {cut}, {persistence:?}, {seed}: {found:?}");
        }
    }
}
