//! Entries of a store's journal. Any record bodies are parsed or rejected. A parsed entry fits into
//! its pages, and is the same after it was written and read again, in one record and in parts.
//!
//! The input is a list of records. Each has a byte of flags (low 2 bits: its seq; next 2: its part;
//! then whether the entry continues, and whether the header comes from the input), its length (1
//! byte), and its body. Finally, two halves of the input are two versions of a page, and applying
//! their difference to the one must give the other.

use crate::format::entry::{EntryReader, EntryWriter, JournalEntry, PageChange, diff_ranges};

const PAYLOAD: usize = 4096 - 32;

/// Runs one input.
pub fn fuzz_one(data: &[u8]) {
    let mut reader = EntryReader::new(PAYLOAD);
    let mut rest = data;
    while let [what, len, after @ ..] = rest {
        let (body, left) = after.split_at(usize::from(*len).min(after.len()));
        rest = left;
        let mut record = Vec::new();
        if what & 0x20 == 0 {
            record.extend([1, what >> 4 & 1, 0, 0, what >> 2 & 3, 0, 0, 0]);
            record.extend((1000 + u64::from(what & 3)).to_le_bytes());
        }
        record.extend(body);
        match reader.read(&record.into()) {
            Ok(Some(entry)) => try_writing(&entry),
            Ok(None) => {}
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                break;
            }
        }
    }
    let half = (data.len() / 2).min(PAYLOAD);
    try_differing(&data[..half], &data[data.len() - half..]);
}

fn try_writing(entry: &JournalEntry) {
    let mut writer = EntryWriter::new(entry.seq, &entry.meta);
    for (page, change) in &entry.changes {
        assert!(page.get() < entry.meta.pages);
        match change {
            PageChange::FullPageImage { kind, crc, first, bytes } => {
                let mut payload = vec![0; PAYLOAD];
                payload[*first as usize..][..bytes.len()].copy_from_slice(bytes);
                writer.full_page_image(*page, *kind, *crc, &payload);
            }
            PageChange::Diff { kind, crc, base_seq, ranges } => {
                let ranges: Vec<_> = ranges.iter().collect();
                assert!(ranges.iter().all(|(start, bytes)| *start as usize + bytes.len() <= PAYLOAD));
                writer.diff(*page, *kind, *crc, *base_seq, &ranges);
            }
            PageChange::Free { crc } => writer.free(*page, *crc),
            PageChange::Placed(_) => unreachable!("places are given to who asks for them"),
        }
    }
    // Some entries in many parts, some in one.
    let longest = if entry.seq.get() & 1 == 0 { 40 } else { usize::MAX };
    let mut reader = EntryReader::new(PAYLOAD);
    let records = writer.finish(longest);
    let read = records.into_iter().filter_map(|body| reader.read(&body.into()).unwrap());
    let [again] = &read.collect::<Vec<_>>()[..] else { panic!("one entry") };
    assert_eq!((again.seq, &again.meta, again.changes.len()), (entry.seq, &entry.meta, entry.changes.len()));
    for ((page, change), (page_again, change_again)) in entry.changes.iter().zip(&again.changes) {
        assert_eq!((page, put_together(change)), (page_again, put_together(change_again)));
    }
}

/// Returns a payload of non-zero bytes with the change applied.
fn put_together(change: &PageChange) -> Vec<u8> {
    let mut payload = vec![0xa5; PAYLOAD];
    match change {
        PageChange::FullPageImage { first, bytes, .. } => {
            payload.fill(0);
            payload[*first as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        PageChange::Diff { ranges, .. } => {
            for (start, bytes) in ranges.iter() {
                payload[start as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        PageChange::Free { .. } => payload.fill(0),
        PageChange::Placed(_) => unreachable!("places are given to who asks for them"),
    }
    payload
}

fn try_differing(old: &[u8], new: &[u8]) {
    let ranges = diff_ranges(old, new, usize::MAX).unwrap();
    assert!(ranges.is_sorted_by(|a, b| a.end < b.start) && ranges.iter().all(|range| !range.is_empty()));
    let mut patched = old.to_vec();
    for range in ranges {
        patched[range.clone()].copy_from_slice(&new[range]);
    }
    assert_eq!(patched, new);
}
