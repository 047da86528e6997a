//! The codec on what it encoded, and the reader on logs with holes, ghosts, epochs and rot.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::Error;

/// The bytes as they are on disks: what was written once must be read for ever.
#[test]
fn a_record_looks_as_it_always_did() {
    let bytes = encode(Kind::Data, b"redo", 8192, 0x1234_5678, 4096);
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
        assert!((lsn + bytes).is_multiple_of(BLOCK) && (bytes == 0 || bytes >= HEADER as u64));
        assert!(bytes < BLOCK + HEADER as u64);
    }
}

#[test]
fn an_epoch_begins_at_a_block_and_fills_one() {
    for end in [0, 8, 4096, 5000] {
        let (lsn, bytes) = encode_epoch(end, 1, 2);
        assert_eq!((lsn, bytes.len() as u64), (end.next_multiple_of(BLOCK), BLOCK));
        let header = Header::decode(&bytes, lsn, 1).unwrap();
        assert!(header.kind == Kind::Epoch && is_whole(&bytes, header.len));
        let epoch = Epoch::decode(&bytes[HEADER..HEADER + header.len]);
        assert_eq!(epoch, Some(Epoch { previous_end: end, salt: 2 }));
        let padding = &bytes[usize::try_from(header.size()).unwrap()..];
        assert!(is_whole(padding, Header::decode(padding, lsn + header.size(), 2).unwrap().len));
    }
}

#[test]
fn what_was_durable_is_never_overstated() {
    // Too far behind to be stated.
    let bytes = encode(Kind::Data, b"", 1 << 40, 0, 8);
    assert_eq!(Header::decode(&bytes, 1 << 40, 0).unwrap().durable_upto, 0);
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        body in prop::collection::vec(any::<u8>(), 0..200),
        lsn in (0_u64..1 << 50).prop_map(|lsn| lsn * 8),
        salt: u32,
        behind in 0_u64..1 << 30,
    ) {
        let durable_upto = lsn.saturating_sub(behind * 8);
        let bytes = encode(Kind::Data, &body, lsn, salt, durable_upto);
        prop_assert_eq!(bytes.len() as u64, size(body.len()));
        let header = Header::decode(&bytes, lsn, salt).unwrap();
        prop_assert_eq!(header, Header { kind: Kind::Data, len: body.len(), lsn, salt, durable_upto });
        prop_assert!(is_whole(&bytes, header.len));
        prop_assert_eq!(Header::decode(&bytes, lsn + 8, salt), None);
        prop_assert_eq!(Header::decode(&bytes, lsn, salt ^ 1), None);
    }

    #[test]
    fn no_changed_byte_goes_unseen(
        body in prop::collection::vec(any::<u8>(), 0..100),
        at: prop::sample::Index,
        flip in 1..=u8::MAX,
    ) {
        let mut bytes = encode(Kind::Data, &body, 4096, 9, 0);
        // What fills up to a multiple of 8 is no one's.
        bytes[at.index(HEADER + body.len())] ^= flip;
        let header = Header::decode(&bytes, 4096, 9);
        prop_assert!(header.is_none_or(|header| !is_whole(&bytes, header.len)));
    }
}

/// A log in memory.
#[derive(Debug, Clone, Default)]
struct Tape {
    bytes: Vec<u8>,
    chunk: usize,
}

impl Source for &Tape {
    fn read(&mut self, lsn: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        assert!(lsn.is_multiple_of(BLOCK) && (bytes.len() as u64).is_multiple_of(BLOCK));
        assert!((bytes.as_ptr() as usize).is_multiple_of(4096));
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
        let record = encode(Kind::Data, body, self.lsn(), salt, durable_upto);
        self.bytes.extend(record);
    }

    fn padding(&mut self, salt: u32) {
        self.bytes.extend(encode_padding(self.lsn(), salt, 0));
    }

    /// All entries, and where the log ends, under which salt.
    fn read(&self, salt: u32) -> Result<(Vec<Vec<u8>>, u64, u32), Error> {
        let mut reader = Reader::new(self, 0, salt);
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

#[test]
fn an_empty_log_ends_where_it_begins() {
    let tape = Tape { bytes: vec![0; 8192], chunk: 4096 };
    assert_eq!(tape.read(5), Ok((vec![], 0, 5)));
    assert_eq!(Tape { bytes: vec![], chunk: 4096 }.read(5), Ok((vec![], 0, 5)));
}

#[test]
fn reading_goes_on_behind_a_torn_tail_where_an_epoch_names_it() {
    let mut tape = Tape { chunk: 4096, ..Tape::default() };
    tape.append(b"first", 1, 0);
    let end = tape.lsn();
    // A record that was torn, and behind it one of the same write that was not.
    tape.append(&body(1, 5000), 1, 0);
    let torn = usize::try_from(end + BLOCK).unwrap();
    tape.bytes[torn..torn + 8].fill(0xee);
    tape.padding(1);
    tape.append(b"ghost", 1, 0);
    tape.padding(1);
    let (at, epoch) = encode_epoch(end, 1, 2);
    let at = usize::try_from(at).unwrap();
    tape.bytes[at..at + epoch.len()].copy_from_slice(&epoch);
    let after = at + epoch.len();
    assert_eq!(tape.read(1), Ok((vec![b"first".to_vec()], after as u64, 2)), "ghosts have the old salt");

    tape.bytes.truncate(after);
    tape.append(b"second", 2, 0);
    assert_eq!(tape.read(1).unwrap().0, [b"first".to_vec(), b"second".to_vec()]);

    // An epoch that names another place is none.
    let (_, other) = encode_epoch(end - 8, 1, 2);
    tape.bytes[at..after].copy_from_slice(&other);
    assert_eq!(tape.read(1), Ok((vec![b"first".to_vec()], end, 1)));
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
    let corrupt = Error::Corrupt { path: "/tape".into(), offset: hole, lsn: hole };
    assert_eq!(rotten.read(1), Err(corrupt.clone()));

    // Nobody said that it was durable: a torn tail.
    rotten.bytes.truncate(usize::try_from(synced).unwrap());
    rotten.append(b"third", 1, hole);
    assert_eq!(rotten.read(1), Ok((vec![b"first".to_vec()], hole, 1)));
    // Where the end is known, all before it must be there.
    let mut reader = Reader::until(&rotten, 0, 1, synced);
    assert_eq!(
        reader.next().map(|entry| entry.map(|entry| entry.body.to_vec())),
        Ok(Some(b"first".to_vec()))
    );
    assert_eq!(reader.next(), Err(corrupt));
    let mut reader = Reader::until(&rotten, 0, 1, hole);
    assert!(reader.next().unwrap().is_some());
    assert_eq!(reader.next(), Ok(None));
}

proptest! {
    /// Entries of any sizes, epochs between them, chunks of any size, and an end that is cut anywhere.
    #[test]
    fn what_was_appended_is_read_up_to_the_cut(
        steps in prop::collection::vec((0_usize..10_000, 0_u8..8), 1..30),
        chunk in 1_usize..5,
        cut: prop::sample::Index,
        garbage: u8,
    ) {
        let mut tape = Tape { chunk: chunk * 4096, ..Tape::default() };
        let mut salt = 1;
        let mut ends = Vec::new();
        for (number, (len, what)) in (0..).zip(&steps) {
            tape.append(&body(number, *len), salt, 0);
            ends.push(tape.lsn());
            match what {
                0 => tape.padding(salt),
                1 => {
                    let (start, epoch) = encode_epoch(tape.lsn(), salt, salt + 1);
                    tape.bytes.resize(usize::try_from(start).unwrap(), garbage);
                    tape.bytes.extend(epoch);
                    salt += 1;
                }
                _ => {}
            }
        }
        let cut = cut.index(tape.bytes.len() + 1);
        tape.bytes.truncate(cut);
        tape.bytes.resize((cut + 8192).next_multiple_of(4096), garbage);
        let (entries, end, _) = tape.read(1).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut as u64).count();
        // The padding of the last may be whatever follows, so that one more may be whole.
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
            let record = encode(Kind::Data, &body(at, len), lsn, 3, lsn.saturating_sub(durable * 8));
            let at = usize::try_from(lsn).unwrap().min(bytes.len());
            let end = (at + record.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&record[..end - at]);
        }
        let tape = Tape { bytes, chunk: 4096 };
        if let Ok((_, end, salt)) = tape.read(3) {
            prop_assert!(end <= tape.lsn() && salt == 3);
        }
    }
}
