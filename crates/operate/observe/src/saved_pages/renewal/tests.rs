#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]

use proptest::prelude::*;

use super::*;

const PAGE: u64 = 4096;

fn time(seconds: i64) -> SavedTime {
    SavedTime { seconds, nanos: 0 }
}

fn entry(path: &str, pages: u64, extents: &[Range<u64>]) -> SavedFile {
    SavedFile {
        path: path.into(),
        inode: Inode { dev: 1, ino: 1 },
        size: pages * PAGE,
        changed: time(50),
        last_used: time(50),
        extents: extents.to_vec(),
    }
}

fn present(files: &[(&str, u64, i64)]) -> PresentFiles {
    let file = |(path, pages, changed): &(&str, u64, i64)| {
        let inode = Inode { dev: 1, ino: 2 };
        (PathBuf::from(path), PresentFile { inode, size: pages * PAGE, changed: time(*changed) })
    };
    files.iter().map(file).collect()
}

/// Renews a recording that was made at second 100; returns paths and extents.
fn renewed_list(files: Vec<SavedFile>, now: &[(&str, u64, i64)]) -> Vec<(String, Vec<Range<u64>>)> {
    let profiles = Profile::built_in();
    let roles =
        files.iter().filter_map(|file| Some((file.path.clone(), role_of(&profiles, &file.path)?))).collect();
    let recording = SavedPages { created: time(100), page_size: PAGE, files };
    let renewed = renew(recording, &roles, &profiles, &present(now));
    let text = |file: SavedFile| (file.path.to_str().unwrap().to_owned(), file.extents);
    renewed.files.into_iter().map(text).collect()
}

fn wal(number: u32) -> String {
    format!("/pg/pg_wal/0000000100000000{number:08X}")
}

#[test]
fn later_segments_replace_removed_ones() {
    let data = || entry("/pg/base/5/16384", 100, &[3..4]);
    let old = vec![
        entry(&wal(2), 8, &[4..8]),
        entry(&wal(3), 8, &[0..6]),
        data(),
        entry(&wal(3), 8, &[6..8]),
        entry(&wal(4), 8, &[0..2]),
    ];
    // 9 is a spare segment: its name is later than that of the one written last.
    let [six, seven, eight, nine] = [6, 7, 8, 9].map(wal);
    let now = [
        ("/pg/base/5/16384", 120, 400),
        ("/pg/base/5/16999", 120, 400),
        (&six, 8, 200),
        (&seven, 8, 300),
        (&eight, 8, 310),
        (&nine, 8, 150),
    ];
    let whole = vec![0..8];
    assert_eq!(
        renewed_list(old, &now),
        [
            (six, whole.clone()),
            (seven, whole.clone()),
            ("/pg/base/5/16384".to_owned(), vec![3..4]),
            (eight, whole),
        ]
    );
}

#[test]
fn tables_are_read_at_their_ends() {
    let old = vec![
        entry("/r/000010.sst", 100, &[0..1, 97..100]),
        entry("/r/000011.sst", 200, &[198..200]),
        entry("/r/MANIFEST-000009", 2, &[0..2]),
    ];
    let now = [("/r/000011.sst", 200, 50), ("/r/000020.sst", 40, 200), ("/r/LOG", 9, 200)];
    assert_eq!(
        renewed_list(old, &now),
        [("/r/000020.sst".to_owned(), vec![0..1, 37..40]), ("/r/000011.sst".to_owned(), vec![198..200])]
    );
}

#[test]
fn a_file_that_grew_is_read_to_its_new_end() {
    let old = vec![
        entry("/s/db-wal", 10, &[0..4]),
        entry("/s/db-wal", 10, &[4..10]),
        entry("/s/db", 10, &[2..3]),
        entry("/e/wal/0000000000000001-00000000000000a0.wal", 16, &[0..3]),
        entry("/e/wal/0000000000000001-00000000000000a0.wal", 16, &[3..5]),
    ];
    let log = "/e/wal/0000000000000001-00000000000000a0.wal";
    let now = [("/s/db-wal", 40, 200), ("/s/db", 90, 200), (log, 16, 200)];
    assert_eq!(
        renewed_list(old, &now),
        [
            ("/s/db-wal".to_owned(), vec![0..4]),
            ("/s/db-wal".to_owned(), vec![4..40]),
            ("/s/db".to_owned(), vec![2..3]),
            (log.to_owned(), vec![0..3]),
            (log.to_owned(), vec![3..16]),
        ]
    );
}

#[test]
fn new_files_are_at_most_twice_as_many() {
    let old = vec![entry("/r/000010.log", 4, &[0..4])];
    let names: Vec<String> = (20..30).map(|number| format!("/r/{number:06}.log")).collect();
    let now: Vec<(&str, u64, i64)> = names.iter().map(|name| (name.as_str(), 4, 200)).collect();
    let paths: Vec<String> = renewed_list(old, &now).into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, names[8..]);
}

#[test]
fn only_files_written_since_are_new() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["000001.sst", "000002.sst", "000004.sst", "000005.log"] {
        std::fs::write(at(name), [1; 9000]).unwrap();
    }
    std::fs::File::open(at("000002.sst")).and_then(|file| file.set_modified(std::time::UNIX_EPOCH)).unwrap();
    std::os::unix::fs::symlink(at("000001.sst"), at("000006.sst")).unwrap();
    let recording = SavedPages {
        created: SavedTime { seconds: 100, nanos: 0 },
        page_size: PAGE,
        files: vec![
            entry(at("000000.sst").to_str().unwrap(), 3, &[2..3]),
            entry(at("000001.sst").to_str().unwrap(), 3, &[0..3]),
        ],
    };
    let renewed = renewed(recording, &Profile::built_in());
    let paths: Vec<_> = renewed.files.iter().map(|file| file.path.clone()).collect();
    assert_eq!(paths, [at("000004.sst"), at("000001.sst")]);
}

#[test]
fn a_million_ranges_are_compared_in_a_moment() {
    let pages = |start: u64| (0..1 << 20).map(|at| 4 * at + start..4 * at + start + 2).collect::<Vec<_>>();
    let old: Vec<_> = pages(0).chunks(64).map(|pages| entry("/a", 1 << 23, pages)).collect();
    let new: Vec<_> = pages(1).chunks(64).map(|pages| entry("/a", 1 << 23, pages)).collect();
    let kept = kept_of(old, &new);
    assert_eq!((kept.len(), &kept[1].extents[..2]), (1 << 14, &[256..257, 260..261][..]));
}

proptest! {
    #[test]
    fn old_extents_less_new_ones_are_the_rest(
        old in prop::collection::vec((0_u64..50, 1_u64..9), 0..12),
        new in prop::collection::vec((0_u64..60, 1_u64..9), 0..12),
    ) {
        let ranges = |parts: &[(u64, u64)]| {
            let mut sorted: Vec<_> = parts.iter().map(|(start, length)| *start..start + length).collect();
            sorted.sort_unstable_by_key(|range: &Range<u64>| range.start);
            let mut joined = Vec::new();
            for range in sorted {
                append(&mut joined, range, 0);
            }
            joined
        };
        let (old, new) = (ranges(&old), ranges(&new));
        let expected: Vec<u64> =
            old.iter().cloned().flatten().filter(|page| !new.iter().any(|range| range.contains(page))).collect();
        // The pages of a path may be in many entries, in any order.
        let new: Vec<_> = new.iter().rev().map(|range| entry("/a", 90, std::slice::from_ref(range))).collect();
        let kept = kept_of(vec![entry("/a", 90, &old), entry("/b", 90, &[1..2])], &new);
        let (rest, others): (Vec<_>, Vec<_>) = kept.into_iter().partition(|file| file.path == Path::new("/a"));
        prop_assert_eq!(others.len(), 1);
        let extents: Vec<Range<u64>> = rest.into_iter().flat_map(|file| file.extents).collect();
        prop_assert!(extents.is_sorted_by(|a, b| a.end < b.start));
        prop_assert_eq!(extents.into_iter().flatten().collect::<Vec<_>>(), expected);
    }
}
