use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::reader::EntryFault;
use super::*;

const PAYLOAD: usize = 4096 - 32;

fn meta() -> StoreMeta {
    StoreMeta {
        root: Some(PageNo::new(1)),
        pages: 300,
        free_head: None,
        free_pages: 0,
        user: b"user".to_vec(),
    }
}

fn image(page: u64, first: u32, bytes: &[u8]) -> (PageNo, PageChange) {
    (
        PageNo::new(page),
        PageChange::FullPageImage {
            kind: PageKind::Data,
            crc: 0x0403_0201,
            first,
            bytes: Bytes::copy_from_slice(bytes),
        },
    )
}

/// Returns the ranges of a diff, as its writer takes them.
fn ranges(change: &PageChange) -> Vec<(u32, &[u8])> {
    let PageChange::Diff { ranges, .. } = change else { panic!("{change:?}") };
    ranges.iter().collect()
}

fn write(entry: &JournalEntry, longest: usize) -> Vec<Bytes> {
    let mut writer = EntryWriter::new(entry.seq, &entry.meta);
    for (page, change) in &entry.changes {
        match change {
            PageChange::FullPageImage { kind, crc, first, bytes } => {
                let mut payload = vec![0; PAYLOAD];
                payload[*first as usize..][..bytes.len()].copy_from_slice(bytes);
                writer.full_page_image(*page, *kind, *crc, &payload);
            }
            PageChange::Diff { kind, crc, base_seq, .. } => {
                writer.diff(*page, *kind, *crc, *base_seq, &ranges(change));
            }
            PageChange::Free { crc } => writer.free(*page, *crc),
            PageChange::Placed(place) => panic!("{place:?}"),
        }
    }
    writer.finish(longest).into_iter().map(Bytes::from).collect()
}

/// Returns the one entry in these records.
fn read(bodies: &[Bytes]) -> Result<Option<JournalEntry>, EntryFault> {
    let mut reader = EntryReader::new(PAYLOAD);
    let mut entry = None;
    for body in bodies {
        assert_eq!(entry, None, "an entry ends with its last part");
        entry = reader.read(body)?;
    }
    Ok(entry)
}

/// These bytes are on users' disks and must stay readable.
#[test]
fn the_format_of_an_entry_is_fixed() {
    let mut expected = b"\x01\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0".to_vec();
    // Meta: root 1, 300 pages, no free list.
    expected.extend(b"\x09\x01\x01\xac\x02\0user");
    // Page 7 has "ab" at 200, page 299 has "x" at 1 and "yz" at 34 instead of the bytes of commit
    // 290, page 0 is free.
    expected.extend(b"\x0a\x11\x07\x01\x02\x03\x04\xc8\x01ab");
    expected.extend(b"\x0f\x32\xab\x02\x01\x02\x03\x04\x0a\x01\x01x\x20\x02yz");
    expected.extend(b"\x06\x23\0\x01\x02\x03\x04");
    let mut writer = EntryWriter::new(Seq::new(300), &meta());
    let mut payload = vec![0; PAYLOAD];
    payload[200..202].copy_from_slice(b"ab");
    writer.full_page_image(PageNo::new(7), PageKind::Data, 0x0403_0201, &payload);
    writer.diff(PageNo::new(299), PageKind::Trunk, 0x0403_0201, Seq::new(290), &[(1, b"x"), (34, b"yz")]);
    writer.free(PageNo::new(0), 0x0403_0201);
    assert_eq!(writer.finish(1 << 20), [expected.clone()]);

    let entry = read(&[Bytes::from(expected)]).unwrap().unwrap();
    assert_eq!((entry.seq, &entry.meta), (Seq::new(300), &meta()));
    assert_eq!(entry.changes[0], image(7, 200, b"ab"));
    let PageChange::Diff { kind: PageKind::Trunk, crc: 0x0403_0201, base_seq, .. } = entry.changes[1].1
    else {
        panic!("{entry:?}")
    };
    assert_eq!(base_seq, Seq::new(290));
    assert_eq!(ranges(&entry.changes[1].1), [(1, &b"x"[..]), (34, b"yz")]);
    assert_eq!(entry.changes[2], (PageNo::new(0), PageChange::Free { crc: 0x0403_0201 }));
}

#[test]
fn small_entries_are_not_copied() {
    let entry = JournalEntry {
        seq: Seq::new(1),
        meta: meta(),
        changes: (1_u8..10).map(|page| image(page.into(), 3, &[page; 500])).collect(),
    };
    for bodies in [write(&entry, 1 << 20), write(&entry, 1200)] {
        let found = read(&bodies).unwrap().unwrap();
        assert_eq!(found, entry);
        let ranges: Vec<_> = bodies.iter().map(|body| body.as_ptr_range()).collect();
        for (_, change) in &found.changes {
            let PageChange::FullPageImage { bytes, .. } = change else { panic!("{change:?}") };
            assert!(ranges.iter().any(|range| range.contains(&bytes.as_ptr())));
        }
    }
}

/// For any length of records, all items that are not split have the places of their bytes. With
/// these bytes, the change is the original one.
#[test]
fn places_are_where_the_bytes_stand() {
    let finish = |longest| {
        let mut writer = EntryWriter::new(Seq::new(7), &meta());
        let mut payload = vec![0; PAYLOAD];
        for page in 1..40_u64 {
            let byte = page.to_le_bytes()[0];
            payload[200..900].fill(byte);
            let page = PageNo::new(page);
            writer.full_page_image(page, PageKind::Data, 1, &payload);
            writer.diff(page + 100, PageKind::Trunk, 2, Seq::new(3), &[(1, b"x"), (34, &[byte; 200])]);
            writer.free(page + 200, 3);
        }
        writer.full_page_image(PageNo::new(250), PageKind::Data, 4, &[0; PAYLOAD]);
        writer.finish(longest).into_iter().map(Bytes::from).collect::<Vec<_>>()
    };
    let (mut placed, mut cut) = (0, 0);
    for longest in [1 << 20, 5000, 600] {
        let bodies = finish(longest);
        // The bodies as in a journal, each behind a header.
        let (mut log, mut reader, mut found) = (vec![0xee; 1000], EntryReader::new(PAYLOAD), None);
        for body in &bodies {
            log.extend([0xee; 24]);
            found = reader.read_places(body, Lsn::new(log.len() as u64)).unwrap();
            log.extend(body);
        }
        let (found, whole) = (found.unwrap(), read(&bodies).unwrap().unwrap());
        assert_eq!((found.meta, found.changes.len()), (whole.meta, whole.changes.len()));
        for ((page, found), (of, whole)) in found.changes.into_iter().zip(whole.changes) {
            assert_eq!((page, found.crc(), found.is_part()), (of, whole.crc(), whole.is_part()));
            let PageChange::Placed(place) = found else {
                cut += u64::from(found.held_bytes() > 0);
                assert_eq!(found, whole);
                continue;
            };
            placed += 1;
            assert_eq!(found.held_bytes(), 0);
            let at = |lsn: Lsn| usize::try_from(lsn.get()).unwrap();
            let bytes = log[at(place.lsns().start)..at(place.lsns().end)].to_vec();
            let base = if let PageChange::Diff { base_seq, .. } = &whole { *base_seq } else { Seq::NONE };
            let mut again = place.with_bytes(bytes.into(), PAYLOAD).unwrap();
            if let PageChange::Diff { base_seq, .. } = &mut again {
                *base_seq = base;
            }
            assert_eq!(again, whole);
        }
    }
    assert!(placed > 180 && cut > 30, "{placed} {cut}");
}

/// Pages of zeros and empty diffs keep no memory that was read, just as changes whose bytes have
/// places.
#[test]
fn decoding_places_keeps_no_read_buffer() {
    struct Read {
        body: Vec<u8>,
        _counted: Arc<()>,
    }
    impl AsRef<[u8]> for Read {
        fn as_ref(&self) -> &[u8] {
            &self.body
        }
    }

    let mut writer = EntryWriter::new(Seq::new(7), &meta());
    let [first, second, third, fourth] = [1, 2, 3, 4].map(PageNo::new);
    writer.full_page_image(first, PageKind::Data, 1, &[0; PAYLOAD]);
    writer.diff(second, PageKind::Data, 2, Seq::new(3), &[]);
    writer.full_page_image(third, PageKind::Data, 1, &[3; PAYLOAD]);
    writer.free(fourth, 3);
    let owners = Arc::new(());
    let bodies = writer.finish(1 << 20).into_iter();
    let owned = |body| Bytes::from_owner(Read { body, _counted: Arc::clone(&owners) });
    let bodies: Vec<_> = bodies.map(owned).collect();
    let whole = read(&bodies).unwrap().unwrap();
    let mut reader = EntryReader::new(PAYLOAD);
    let found = reader.read_places(&bodies[0], Lsn::new(4096)).unwrap().unwrap();
    assert_eq!((bodies.len(), &found.changes[..2]), (1, &whole.changes[..2]));
    drop((bodies, whole));
    assert_eq!(Arc::strong_count(&owners), 1);
}

#[test]
fn reread_ranges_that_differ_are_refused() {
    let place = JournalPlace { kind: PageKind::Data, crc: 1, first: None, lsn: Lsn::new(8), len: 3 };
    assert!(place.with_bytes(Bytes::from_static(&[1, 1, 7]), PAYLOAD).is_some());
    for bytes in [&[1, 0, 7][..], &[1, 9, 7], &[0xff, 0xff, 0xff]] {
        assert_eq!(place.with_bytes(Bytes::copy_from_slice(bytes), PAYLOAD), None);
    }
}

#[test]
fn parts_that_are_missing_or_foreign_are_reported() {
    let entry =
        |seq| JournalEntry { seq: Seq::new(seq), meta: meta(), changes: vec![image(3, 0, &[7; 100])] };
    let (first, second) = (write(&entry(5), 60), write(&entry(6), 60));
    assert_eq!(first.len(), 4, "a meta, and a page in three parts");
    // By seq and part.
    let read_back = |records: &[(u64, usize)]| {
        let mut reader = EntryReader::new(PAYLOAD);
        let bodies = records.iter().map(|(seq, part)| if *seq == 5 { &first[*part] } else { &second[*part] });
        let entries: Result<Vec<_>, _> = bodies.map(|body| reader.read(body)).collect();
        entries.map(|entries| {
            let read = entries.into_iter().flatten().map(|entry| entry.seq.get());
            (read.collect(), reader.unfinished().map(Seq::get))
        })
    };
    let all = |seq: u64| [(seq, 0), (seq, 1), (seq, 2), (seq, 3)];
    assert_eq!(read_back(&[all(5), all(6)].concat()), Ok((vec![5, 6], None)));
    assert_eq!(read_back(&[&all(5)[..], &all(6)[..3]].concat()), Ok((vec![5], Some(6))), "never committed");
    assert_eq!(read_back(&[&all(5)[..2], &all(5)].concat()), Ok((vec![5], None)), "begun again");
    let part = |seq, found, wanted| Err(EntryFault::Part { seq: Seq::new(seq), found, wanted });
    assert_eq!(read_back(&[(5, 0), (5, 1), (5, 3)]), part(5, 3, 2));
    assert_eq!(read_back(&[(5, 0), (5, 1), (5, 1)]), part(5, 1, 2));
    assert_eq!(read_back(&[(5, 1)]), part(5, 1, 0));
    assert_eq!(read_back(&[&all(5)[..], &[(6, 1)]].concat()), part(6, 1, 0));
    let seq = |found, wanted| Err(EntryFault::Seq { found: Seq::new(found), wanted: Seq::new(wanted) });
    assert_eq!(read_back(&[(5, 0), (5, 1), (5, 2), (6, 0)]), seq(6, 5), "the last part is missing");
    assert_eq!(read_back(&[(5, 0), (6, 1), (5, 2), (5, 3)]), seq(6, 5));
    assert_eq!(read_back(&[&all(5)[..], &all(5)].concat()), seq(5, 6));
}

#[test]
fn nonsense_is_reported() {
    let with = |header: &[u8; 4], items: &[u8]| {
        let body = [&header[..], &[0; 4], &9_u64.to_le_bytes(), items].concat();
        read(&[Bytes::from(body)]).map(|entry| entry.map(|entry| entry.changes.len()))
    };
    let senseless = |page| Err(EntryFault::Change { seq: Seq::new(9), page: PageNo::new(page) });
    let sound = b"\x04\0\x05\0m\x08\x11\x04\0\0\0\0\0z";
    assert_eq!(with(b"\x01\0\0\0", sound), Ok(Some(1)));
    assert_eq!(with(b"\x02\0\0\0", sound), Err(EntryFault::Version(2)));
    assert_eq!(with(b"\x01\x02\0\0", sound), Err(EntryFault::Reserved));
    assert_eq!(with(b"\x01\0\0\x01", sound), Err(EntryFault::Reserved));
    for len in 0..sound.len() {
        let whole = if len == 5 { Ok(Some(0)) } else { Err(EntryFault::Truncated) };
        assert_eq!(with(b"\x01\0\0\0", &sound[..len]), whole, "{len} bytes");
    }
    assert_eq!(read(&[Bytes::from_static(&[1; 15])]), Err(EntryFault::Truncated));
    // Unknown flags; more free pages than pages; a free list behind the end; nothing.
    for meta in [&b"\x03\x04\x05\0"[..], b"\x03\0\x05\x06", b"\x04\x02\x05\x05\0", b"\0"] {
        assert_eq!(with(b"\x01\0\0\0", meta), Err(EntryFault::Meta(Seq::new(9))), "{meta:?}");
    }
    let changes: [&[u8]; 11] = [
        // Unknown kinds of change and of page.
        b"\x14\x04\0\0\0\0\0z",
        b"\x41\x04\0\0\0\0\0z",
        b"\x13\x04\0\0\0\0",
        b"\x23\x04\0\0\0\0\0",
        // Not a page of the store.
        b"\x11\x05\0\0\0\0\0z",
        // A checksum and a first byte that are cut off; bytes behind the payload.
        b"\x11\x04\0\0",
        b"\x11\x04\0\0\0\0",
        b"\x11\x04\0\0\0\0\xe0\x1fz",
        // Based on itself, and on a commit before the first one; ranges that are empty, and behind
        // the payload.
        b"\x12\x04\0\0\0\0\0\0\x01z",
        b"\x12\x04\0\0\0\0\x0a\0\x01z",
        b"\x12\x04\0\0\0\0\x01\0\0",
    ];
    for change in changes {
        let len = u8::try_from(change.len()).unwrap();
        let items = [&sound[..5], &[len], change].concat();
        assert_eq!(with(b"\x01\0\0\0", &items), senseless(change[1].into()), "{change:?}");
    }
    let past = [&sound[..5], b"\x0b\x12\x04\0\0\0\0\x01\xe0\x1f\x01z"].concat();
    assert_eq!(with(b"\x01\0\0\0", &past), senseless(4));
    let cut = [&sound[..5], b"\x0a\x12\x04\0\0\0\0\x01\0\x02z"].concat();
    assert_eq!(with(b"\x01\0\0\0", &cut), senseless(4));
    assert_eq!(
        with(b"\x01\0\0\0", &[&sound[..5], b"\x01\x11"].concat()),
        Err(EntryFault::NoPage(Seq::new(9)))
    );
}

/// Returns the bytes of the record's body of an entry without changes.
fn empty_entry(seq: Seq) -> usize {
    EntryWriter::new(seq, &meta()).finish(1 << 20)[0].len()
}

/// Returns the bytes of encoded ranges.
fn encoded_len(ranges: &[Range<usize>]) -> usize {
    let add = |(end, sum), range: &Range<usize>| {
        (range.end, sum + diff::encoded_len(end, range.start, range.len()))
    };
    ranges.iter().fold((0, 0), add).1
}

/// Finds ranges as `diff_ranges` is specified, byte by byte.
fn slow_ranges(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for at in (0..old.len()).filter(|at| old[*at] != new[*at]) {
        match ranges.last_mut() {
            Some(last) if at - last.end < 16 => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

fn kinds() -> impl Strategy<Value = PageKind> {
    (1_u8..=3).prop_map(|kind| PageKind::of(kind).unwrap())
}

fn some_ranges() -> impl Strategy<Value = DiffRanges> {
    let range = (0_usize..200, prop::collection::vec(any::<u8>(), 1..200));
    prop::collection::vec(range, 0..8).prop_map(|ranges| {
        let mut encoded = Vec::new();
        for (gap, bytes) in ranges {
            super::super::varint::put(&mut encoded, gap as u64);
            super::super::varint::put(&mut encoded, bytes.len() as u64);
            encoded.extend(bytes);
        }
        DiffRanges::new(encoded.into(), PAYLOAD).unwrap()
    })
}

fn changes() -> impl Strategy<Value = PageChange> {
    let bytes = prop_oneof![
        prop::collection::vec(1_u8.., 0..300),
        (1_u8.., 250_usize..2000).prop_map(|(byte, len)| vec![byte; len]),
    ];
    let image = (kinds(), any::<u32>(), 0_u32..2000, bytes).prop_map(|(kind, crc, first, bytes)| {
        let first = if bytes.is_empty() { 0 } else { first };
        PageChange::FullPageImage { kind, crc, first, bytes: bytes.into() }
    });
    let diff =
        (kinds(), any::<u32>(), 0_u64..1000, some_ranges()).prop_map(|(kind, crc, base_seq, ranges)| {
            PageChange::Diff { kind, crc, base_seq: Seq::new(base_seq), ranges }
        });
    prop_oneof![4 => image, 4 => diff, 1 => any::<u32>().prop_map(|crc| PageChange::Free { crc })]
}

fn entries() -> impl Strategy<Value = JournalEntry> {
    let user = prop::collection::vec(any::<u8>(), 0..=1024);
    let meta = (any::<Option<u64>>(), 1_u64.., any::<Option<prop::sample::Index>>(), user).prop_map(
        |(root, pages, free, user)| {
            let free_pages = free.map_or(0, |free| free.index(usize::try_from(pages).unwrap()) as u64);
            let (root, free_head) = (root.map(PageNo::new), free.map(|_| PageNo::new(free_pages)));
            StoreMeta { root, pages, free_head, free_pages, user }
        },
    );
    let changes = prop::collection::vec((any::<prop::sample::Index>(), changes()), 0..20);
    (1000_u64.., meta, changes).prop_map(|(seq, meta, changes)| {
        let pages = usize::try_from(meta.pages).unwrap();
        let changes = changes.into_iter();
        let changes = changes.map(|(page, change)| (PageNo::new(page.index(pages) as u64), change)).collect();
        JournalEntry { seq: Seq::new(seq), meta, changes }
    })
}

/// Generates a payload, and a copy of it with some changed ranges.
fn pairs() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let splices = prop::collection::vec(
        (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..40)),
        0..12,
    );
    (prop::collection::vec(0_u8..4, 1..700), splices).prop_map(|(old, splices)| {
        let mut new = old.clone();
        for (at, bytes) in splices {
            let at = at.index(new.len());
            for (byte, by) in new[at..].iter_mut().zip(bytes) {
                *byte = by;
            }
        }
        (old, new)
    })
}

proptest! {
    #[test]
    fn an_entry_is_read_as_written(entry in entries(), longest in prop_oneof![17_usize..100, 100_usize..5000]) {
        let bodies = write(&entry, longest);
        prop_assert!(bodies.iter().all(|body| body.len() <= longest));
        prop_assert_eq!(read(&bodies), Ok(Some(entry)));
        prop_assert_eq!(read(&bodies[..bodies.len() - 1]), Ok(None));
    }

    #[test]
    fn ends_of_zeros_are_not_written(zeros in 0_usize..300, bytes in prop::collection::vec(0_u8..2, 0..300), behind in 0_usize..300) {
        let payload = [vec![0; zeros], bytes, vec![0; behind]].concat();
        let mut writer = EntryWriter::new(Seq::new(1), &meta());
        writer.full_page_image(PageNo::new(1), PageKind::Data, 5, &payload);
        let body = writer.finish(1 << 20).remove(0);
        let taken = body.len() - empty_entry(Seq::new(1));
        let found = read(&[body.into()]).unwrap().unwrap();
        let PageChange::FullPageImage { first, bytes, .. } = &found.changes[0].1 else { panic!("{found:?}") };
        let first = *first as usize;
        prop_assert!(bytes.first() != Some(&0) && bytes.last() != Some(&0));
        let mut again = vec![0; payload.len()];
        again[first..first + bytes.len()].copy_from_slice(bytes);
        prop_assert_eq!(again, payload);
        prop_assert!(taken <= bytes.len() + 10);
    }

    #[test]
    fn a_diff_makes_the_new_payload_of_the_old((old, new) in pairs(), max in 0_usize..1500) {
        let expected = slow_ranges(&old, &new);
        let all = diff_ranges(&old, &new, usize::MAX).unwrap();
        prop_assert_eq!(&all, &expected);
        let parts: Vec<_> = all.iter().map(|range| (u32::try_from(range.start).unwrap(), &new[range.clone()])).collect();
        let mut writer = EntryWriter::new(Seq::new(1 << 40), &meta());
        writer.diff(PageNo::new(200), PageKind::Data, 5, Seq::new(1), &parts);
        let body = writer.finish(1 << 20).remove(0);
        let taken = body.len() - empty_entry(Seq::new(1 << 40));
        let found = read(&[body.into()]).unwrap().unwrap();
        let mut patched = old.clone();
        for (at, bytes) in ranges(&found.changes[0].1) {
            patched[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        prop_assert_eq!(&patched, &new);
        let len = encoded_len(&all);
        prop_assert!(taken - len <= 16, "a change of {} bytes takes {}", len, taken);
        prop_assert_eq!(diff_ranges(&old, &new, len), Some(all.clone()));
        if len > 0 {
            prop_assert_eq!(diff_ranges(&old, &new, len - 1), None);
        }
        prop_assert_eq!(diff_ranges(&old, &new, max).is_some(), len <= max);
        prop_assert_eq!(diff_ranges(&old, &new[1..], usize::MAX), None);
    }

    #[test]
    fn random_bytes_cause_no_panic(items in prop::collection::vec(any::<u8>(), 0..200), longest in 1_usize..200) {
        let mut reader = EntryReader::new(PAYLOAD);
        let parts = items.chunks(longest).count();
        for (ordinal, part) in items.chunks(longest).enumerate() {
            let more = u8::from(ordinal + 1 < parts);
            let ordinal = u32::try_from(ordinal).unwrap().to_le_bytes();
            let body = [&[1, more, 0, 0], &ordinal[..], &9_u64.to_le_bytes(), part].concat();
            if reader.read(&body.into()).is_err() {
                break;
            }
        }
        let _ = reader.read(&items.into());
    }
}
