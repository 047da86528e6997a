//! The codec on its own output, and the reader on logs with holes, ghosts, epochs and decay.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::{Error, Lsn};

/// These bytes are on users' disks and must stay readable.
#[test]
fn the_format_of_a_record_is_fixed() {
    let bytes = encode(RecordKind::Data, b"redo", 8192, 0x1234_5678, 4096);
    let mut expected = vec![0x04, 0, 0, 0x10, 0, 0x20, 0, 0, 0, 0, 0, 0];
    expected.extend([0x78, 0x56, 0x34, 0x12, 0, 0x02, 0, 0, b'r', b'e', b'd', b'o', 0, 0, 0, 0]);
    assert_eq!(bytes[4..], expected);
    let summed = [b"redo", &expected[..20]].concat();
    assert_eq!(bytes[..4], crc32c::crc32c(&summed).to_le_bytes());
}

#[test]
fn padding_ends_where_a_block_starts() {
    for lsn in (0..3 * BLOCK).step_by(8) {
        let bytes = encode_padding(lsn, 7, 0).len() as u64;
        assert_eq!(bytes, padding_size(lsn));
        assert!((lsn + bytes).is_multiple_of(BLOCK) && (bytes == 0 || bytes >= RECORD_HEADER_BYTES as u64));
        assert!(bytes < BLOCK + RECORD_HEADER_BYTES as u64);
    }
}

#[test]
fn the_durable_end_is_never_overstated() {
    // This is too far behind to be stated.
    let bytes = encode(RecordKind::Data, b"", 1 << 40, 0, 8);
    assert_eq!(RecordHeader::decode(&bytes, 1 << 40, 0).unwrap().durable_upto, 0);
}

proptest! {
    #[test]
    fn encoded_records_decode_to_the_same(
        body in prop::collection::vec(any::<u8>(), 0..200),
        lsn in (0_u64..1 << 50).prop_map(|lsn| lsn * 8),
        salt: u32,
        behind in 0_u64..1 << 30,
    ) {
        let durable_upto = lsn.saturating_sub(behind * 8);
        let bytes = encode(RecordKind::Data, &body, lsn, salt, durable_upto);
        prop_assert_eq!(bytes.len() as u64, size(body.len()));
        let header = RecordHeader::decode(&bytes, lsn, salt).unwrap();
        prop_assert_eq!(header, RecordHeader { kind: RecordKind::Data, len: body.len(), lsn, salt, durable_upto });
        prop_assert!(is_whole(&bytes, header.len));
        prop_assert_eq!(RecordHeader::decode(&bytes, lsn + 8, salt), None);
        prop_assert_eq!(RecordHeader::decode(&bytes, lsn, salt ^ 1), None);
    }

    #[test]
    fn no_changed_byte_goes_unseen(
        body in prop::collection::vec(any::<u8>(), 0..100),
        at: prop::sample::Index,
        flip in 1..=u8::MAX,
    ) {
        let mut bytes = encode(RecordKind::Data, &body, 4096, 9, 0);
        // The bytes that fill up to a multiple of 8 are not protected.
        bytes[at.index(RECORD_HEADER_BYTES + body.len())] ^= flip;
        let header = RecordHeader::decode(&bytes, 4096, 9);
        prop_assert!(header.is_none_or(|header| !is_whole(&bytes, header.len)));
    }
}

/// The entries, the end of the log, and the salt there.
type Found = (Vec<Vec<u8>>, u64, u32);

/// A log in memory.
#[derive(Debug, Clone, Default)]
struct Tape {
    bytes: Vec<u8>,
    chunk: usize,
    /// A block that can't be read.
    unreadable: Option<u64>,
}

impl LogSource for &Tape {
    fn read(&mut self, lsn: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        assert!(lsn.is_multiple_of(BLOCK) && (bytes.len() as u64).is_multiple_of(BLOCK));
        assert!((bytes.as_ptr() as usize).is_multiple_of(4096));
        let end = lsn + bytes.len() as u64;
        if self.unreadable.is_some_and(|block| (lsn..end).contains(&block)) {
            return Err(pagekeeper_io::Error::Read {
                path: "/tape".into(),
                range: lsn..end,
                errno: libc::EIO,
            }
            .into());
        }
        let rest = self.bytes.get(usize::try_from(lsn).unwrap()..).unwrap_or_default();
        let len = rest.len().min(bytes.len());
        bytes[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn chunk(&self) -> usize {
        self.chunk
    }

    fn end(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn locate(&self, lsn: u64) -> (PathBuf, u64) {
        ("/tape".into(), lsn)
    }
}

impl Tape {
    fn lsn(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn append(&mut self, body: &[u8], salt: u32, durable_upto: u64) {
        let record = encode(RecordKind::Data, body, self.lsn(), salt, durable_upto);
        self.bytes.extend(record);
    }

    fn padding(&mut self, salt: u32) {
        self.bytes.extend(encode_padding(self.lsn(), salt, 0));
    }

    /// Returns all entries, the end of the log, and the salt there.
    fn read(&self, salt: u32) -> Result<Found, Error> {
        self.read_by(RecordReader::new(self, 0, salt))
    }

    #[expect(clippy::unused_self, reason = "the reader's bytes")]
    fn read_by(&self, mut reader: RecordReader<BufferedSource<&Self>>) -> Result<Found, Error> {
        let mut entries = Vec::new();
        while let Some(entry) = reader.next()? {
            assert_eq!(entry.lsn + size(entry.body.len()), entry.next);
            entries.push(entry.body.to_vec());
        }
        assert_eq!(reader.next(), Ok(None), "once ended, it has ended");
        Ok((entries, reader.lsn(), reader.salt()))
    }
}

fn body(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at as u64 * 7).to_le_bytes()[0]).collect()
}

/// Damages any one byte, to any value.
#[test]
fn a_damaged_padding_is_recognized_and_told_from_everything_else() {
    for lsn in [3 * BLOCK + 3000, 3 * BLOCK - 64, 2 * BLOCK - 24] {
        let padding = encode_padding(lsn, 9, lsn - 800);
        // Data as similar as possible: zeros that end where the padding does.
        let data = encode(RecordKind::Data, &vec![0; padding.len() - RECORD_HEADER_BYTES], lsn, 9, lsn - 800);
        for at in 0..padding.len() {
            for flips in 1..=if at < RECORD_HEADER_BYTES { u8::MAX } else { 3 } {
                let damaged = |record: &[u8]| {
                    let mut record = record.to_vec();
                    record[at] ^= flips;
                    record
                };
                assert!(is_damaged_padding(&damaged(&padding), lsn, 9), "byte {at} ^ {flips}");
                assert!(!is_damaged_padding(&damaged(&data), lsn, 9), "byte {at} ^ {flips}");
            }
        }
        assert!(
            !is_damaged_padding(&padding, lsn + 8, 9) && !is_damaged_padding(&vec![0; padding.len()], lsn, 9)
        );
    }
    assert!(!is_damaged_padding(&[], BLOCK, 9));
}

#[test]
fn an_empty_log_ends_where_it_begins() {
    let tape = Tape { bytes: vec![0; 8192], chunk: 4096, unreadable: None };
    assert_eq!(tape.read(5), Ok((vec![], 0, 5)));
    assert_eq!(Tape { chunk: 4096, ..Tape::default() }.read(5), Ok((vec![], 0, 5)));
}

#[test]
fn reading_continues_behind_a_torn_tail_at_a_known_epoch() {
    let mut tape = Tape { chunk: 4096, ..Tape::default() };
    tape.append(b"first", 1, 0);
    let end = tape.lsn();
    // A torn record, followed by an intact one of the same write.
    tape.append(&body(1, 5000), 1, 0);
    let torn = usize::try_from(end + BLOCK).unwrap();
    tape.bytes[torn..torn + 8].fill(0xee);
    tape.padding(1);
    tape.append(b"ghost", 1, 0);
    tape.padding(1);
    assert_eq!(tape.read(1), Ok((vec![b"first".to_vec()], end, 1)));
    let epoch = EpochAt { previous_end: end, salt: 2 };
    let read = |tape: &Tape| tape.read_by(RecordReader::new(tape, 0, 1).with_epochs([epoch].into_iter()));
    assert_eq!(read(&tape), Ok((vec![b"first".to_vec()], BLOCK, 2)), "ghosts have the old salt");

    tape.bytes.truncate(usize::try_from(BLOCK).unwrap());
    tape.append(b"second", 2, 0);
    assert_eq!(read(&tape).unwrap().0, [b"first".to_vec(), b"second".to_vec()]);

    // An epoch is known to begin, so everything before it was durable.
    let mut rotten = tape.clone();
    rotten.bytes[24] ^= 1;
    assert_eq!(read(&rotten), Err(Error::Corrupt { path: "/tape".into(), offset: 0, lsn: Lsn::new(0) }));
    let later = EpochAt { previous_end: end + 8, salt: 2 };
    let corrupt = Error::Corrupt { path: "/tape".into(), offset: end, lsn: Lsn::new(end) };
    assert_eq!(tape.read_by(RecordReader::new(&tape, 0, 1).with_epochs([later].into_iter())), Err(corrupt));
}

#[test]
fn any_later_record_has_the_durable_end() {
    for longest in [200, u64::MAX] {
        let mut tape = Tape { chunk: 4096, ..Tape::default() };
        tape.append(b"first", 1, 0);
        let hole = tape.lsn();
        for _ in 0..1000 {
            tape.append(&[3; 100], 1, 0);
        }
        // In the middle of a block.
        tape.append(b"knows", 1, hole + 128);
        let knows = usize::try_from(tape.lsn()).unwrap();
        tape.bytes.resize(knows.next_multiple_of(4096), 0);
        let mut rotten = tape.clone();
        rotten.bytes[usize::try_from(hole).unwrap() + 30] ^= 1;
        let read = |tape: &Tape| tape.read_by(RecordReader::new(tape, 0, 1).with_longest(longest));
        assert_eq!(read(&tape).unwrap().0.len(), 1002);
        let corrupt = Error::Corrupt { path: "/tape".into(), offset: hole, lsn: Lsn::new(hole) };
        assert_eq!(read(&rotten), Err(corrupt));
        // A record farther behind than the longest record belongs to another lap.
        let gap = rotten.bytes[usize::try_from(hole).unwrap()..knows - 50].iter_mut();
        gap.for_each(|byte| *byte = 0);
        assert_eq!(read(&rotten).is_ok(), longest == 200);
    }
}

#[test]
fn unreadable_bytes_are_an_error_only_at_a_records_place() {
    let mut tape = Tape { chunk: 16384, ..Tape::default() };
    tape.append(&[1; 6000], 1, 0);
    tape.padding(1);
    let end = tape.lsn();
    tape.bytes.resize(usize::try_from(end + 8 * BLOCK).unwrap(), 0);
    let found = Ok((vec![vec![1; 6000]], end, 1));
    assert_eq!(tape.read(1), found);
    for (block, readable) in [(0, false), (1, false), (end / BLOCK, false), (end / BLOCK + 1, true)] {
        tape.unreadable = Some(block * BLOCK);
        match tape.read(1) {
            Err(error) => assert!(!readable && is_of_medium(&error), "{block}: {error}"),
            read => assert!(readable && read == found, "{block}"),
        }
        let closed = tape.read_by(RecordReader::new(&tape, 0, 1).until(end));
        assert_eq!(closed.is_ok(), block * BLOCK >= end);
    }
}

#[test]
fn a_record_that_is_not_known_here_is_no_end() {
    let mut tape = Tape { chunk: 4096, ..Tape::default() };
    tape.append(b"first", 1, 0);
    let (place, newer) = (tape.lsn(), encode(RecordKind::Unknown(9), b"?", tape.lsn(), 1, 0));
    tape.bytes.extend(newer);
    assert_eq!(tape.read(1), Err(Error::UnknownRecord { path: "/tape".into(), offset: place }));
    // Unless it is not a valid record.
    tape.bytes[usize::try_from(place).unwrap() + 24] ^= 1;
    assert_eq!(tape.read(1), Ok((vec![b"first".to_vec()], place, 1)));
}

#[test]
fn a_hole_that_was_durable_is_corruption() {
    let mut tape = Tape { chunk: 4096, ..Tape::default() };
    tape.append(b"first", 1, 0);
    tape.padding(1);
    let hole = tape.lsn();
    tape.append(b"second", 1, BLOCK);
    tape.padding(1);
    let synced = tape.lsn();
    tape.append(b"third", 1, synced);
    let mut rotten = tape.clone();
    rotten.bytes[usize::try_from(hole).unwrap() + 24] ^= 1;
    let corrupt = Error::Corrupt { path: "/tape".into(), offset: hole, lsn: Lsn::new(hole) };
    assert_eq!(rotten.read(1), Err(corrupt.clone()));

    // No record says that it was durable: a torn tail.
    rotten.bytes.truncate(usize::try_from(synced).unwrap());
    rotten.append(b"third", 1, hole);
    assert_eq!(rotten.read(1), Ok((vec![b"first".to_vec()], hole, 1)));
    // If the end is known, everything before it must be there.
    let mut reader = RecordReader::new(&rotten, 0, 1).until(synced);
    assert_eq!(
        reader.next().map(|entry| entry.map(|entry| entry.body.to_vec())),
        Ok(Some(b"first".to_vec()))
    );
    assert_eq!(reader.next(), Err(corrupt));
    let mut reader = RecordReader::new(&rotten, 0, 1).until(hole);
    assert!(reader.next().unwrap().is_some());
    assert_eq!(reader.next(), Ok(None));
    // The same holds for the settled position.
    let settled = |lsn| rotten.read_by(RecordReader::new(&rotten, 0, 1).settled(lsn));
    assert!(settled(hole + 8).is_err() && settled(hole).is_ok());
}

proptest! {
    /// Entries of all sizes, epochs between them, chunks of any size, and an end cut anywhere.
    #[test]
    fn appended_records_are_read_up_to_the_cut(
        steps in prop::collection::vec((0_usize..10_000, 0_u8..8), 1..30),
        chunk in 1_usize..5,
        cut: prop::sample::Index,
        garbage: u8,
    ) {
        let mut tape = Tape { chunk: chunk * 4096, ..Tape::default() };
        let mut salt = 1;
        let (mut ends, mut epochs) = (Vec::new(), Vec::new());
        for (number, (len, what)) in (0..).zip(&steps) {
            tape.append(&body(number, *len), salt, 0);
            ends.push(tape.lsn());
            match what {
                0 => tape.padding(salt),
                1 => {
                    salt += 1;
                    let epoch = EpochAt { previous_end: tape.lsn(), salt };
                    tape.bytes.resize(usize::try_from(epoch.start()).unwrap(), garbage);
                    epochs.push(epoch);
                }
                _ => {}
            }
        }
        let cut = cut.index(tape.bytes.len() + 1);
        tape.bytes.truncate(cut);
        tape.bytes.resize((cut + 8192).next_multiple_of(4096), garbage);
        epochs.retain(|epoch| epoch.previous_end <= cut as u64);
        let (entries, end, _) = tape.read_by(RecordReader::new(&tape, 0, 1).with_epochs(epochs.into_iter())).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut as u64).count();
        // The padding of the last entry may be any bytes, so one more entry may be whole.
        prop_assert!((whole..=whole + 1).contains(&entries.len()));
        for (number, (entry, (len, _))) in (0..).zip(entries.iter().zip(&steps)) {
            prop_assert_eq!(entry, &body(number, *len));
        }
        prop_assert!(end <= (cut as u64).next_multiple_of(8) + BLOCK);
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..20_000),
        places in prop::collection::vec((0_u64..2500, 0_usize..9000, 0_u64..3000), 0..10),
    ) {
        for (at, len, durable) in places {
            let lsn = at * 8;
            let record = encode(RecordKind::Data, &body(at, len), lsn, 3, lsn.saturating_sub(durable * 8));
            let at = usize::try_from(lsn).unwrap().min(bytes.len());
            let end = (at + record.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&record[..end - at]);
        }
        let tape = Tape { bytes, chunk: 4096, unreadable: None };
        if let Ok((_, end, salt)) = tape.read(3) {
            prop_assert!(end <= tape.lsn() && salt == 3);
        }
    }
}
