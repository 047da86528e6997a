//! PostgreSQL's `global/pg_control`: the start of its last checkpoint.
//!
//! The file is one C structure in the machine's byte order, with a CRC-32C at its end, written in
//! one piece and followed by zeros up to 8 KiB (`src/include/catalog/pg_control.h` of each
//! version). A reader can see a half-done write, as PostgreSQL's own tools can: the checksum then
//! does not match, and a moment later it does.

use pagekeeper_policy::names::SegmentSize;

use super::{CheckpointError, array};

/// Bytes needed from the start of the file: no version has a longer structure.
pub const CONTROL_FILE_BYTES: usize = 512;

/// The last checkpoint according to `pg_control`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlFile {
    /// The file's format number: 1300 for PostgreSQL 13 to 16, 1700 for 17, 1800 for 18.
    pub format: u32,
    /// The unique identifier of this database.
    pub system_identifier: u64,
    /// The position of the checkpoint record: an LSN, in bytes.
    pub checkpoint: u64,
    /// The position from which crash recovery reads the WAL: an LSN, in bytes, at or before
    /// [`Self::checkpoint`].
    pub redo: u64,
    /// The timeline of the checkpoint.
    pub timeline: u32,
    /// The size of the WAL segments.
    pub segment_size: SegmentSize,
    /// Whether the server was shut down, so that there is nothing to recover.
    pub clean: bool,
}

/// `DB_SHUTDOWNED` and `DB_SHUTDOWNED_IN_RECOVERY`.
const SHUT_DOWN_STATES: [u32; 2] = [1, 2];

/// Offset of the checksum by format number.
const CHECKSUM_OFFSETS: [(u32, usize); 3] = [(1300, 288), (1700, 288), (1800, 292)];

impl ControlFile {
    /// Parses the first [`CONTROL_FILE_BYTES`] bytes of the file, or more.
    ///
    /// Returns [`CheckpointError::UnknownFormat`] for versions other than 13 to 18, and for a file
    /// from a machine of the other byte order.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let format = u32::from_ne_bytes(array(bytes, 8)?);
        let known = CHECKSUM_OFFSETS.iter().find(|(number, _)| *number == format);
        let &(_, end) = known.ok_or(CheckpointError::UnknownFormat { format })?;
        let sum = u32::from_ne_bytes(array(bytes, end)?);
        if crc32c::crc32c(bytes.get(..end).unwrap_or_default()) != sum {
            return Err(CheckpointError::Checksum);
        }
        let word = |at| array(bytes, at).map(u64::from_ne_bytes);
        let (checkpoint, redo) = (word(32)?, word(40)?);
        if redo > checkpoint {
            return Err(CheckpointError::Implausible { what: "redo position" });
        }
        let segment_bytes = u32::from_ne_bytes(array(bytes, 228)?);
        Ok(Self {
            format,
            system_identifier: word(0)?,
            checkpoint,
            redo,
            timeline: u32::from_ne_bytes(array(bytes, 48)?),
            segment_size: SegmentSize::of_file(segment_bytes.into())
                .ok_or(CheckpointError::Implausible { what: "segment size" })?,
            clean: SHUT_DOWN_STATES.contains(&u32::from_ne_bytes(array(bytes, 16)?)),
        })
    }

    /// Returns the place from which recovery reads: the sequence of its segment
    /// ([`WalSegment::sequence`](pagekeeper_policy::names::WalSegment::sequence)) and the offset in
    /// it, in bytes.
    pub const fn place(&self) -> (u64, u64) {
        self.segment_size.place_of(self.redo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a file as PostgreSQL of that format writes it.
    fn file(format: u32, redo: u64, segment_bytes: u32) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let end = CHECKSUM_OFFSETS.iter().find(|(number, _)| *number == format).map_or(288, |known| known.1);
        bytes[..8].copy_from_slice(&7_711_394_114_605_313_163_u64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&format.to_ne_bytes());
        bytes[32..40].copy_from_slice(&(redo + 56).to_ne_bytes());
        bytes[40..48].copy_from_slice(&redo.to_ne_bytes());
        bytes[48..52].copy_from_slice(&3_u32.to_ne_bytes());
        bytes[228..232].copy_from_slice(&segment_bytes.to_ne_bytes());
        seal(&mut bytes, end);
        bytes
    }

    fn seal(bytes: &mut [u8], end: usize) {
        let sum = crc32c::crc32c(&bytes[..end]);
        bytes[end..end + 4].copy_from_slice(&sum.to_ne_bytes());
    }

    /// `pg_control` after `initdb` of PostgreSQL 15.18: its 292 bytes other than zero.
    #[cfg(target_endian = "little")]
    const INITDB_15: &str = "8b6c162c1760046b140500002577 0d0c0100000000000000 1860046b00000000 1807500100000000 \
        1807500100000000 0100000001000000 0100000000000000 d402000000000000 0435000001000000 00000000cc020000 \
        0100000001000000 0100000000000000 1860046b00000000 0000000000000000 0000000000000000 e803000000000000 \
        0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000001000000 0000000064000000 \
        080000000a000000 0000000040000000 0000000008000000 0000000087d63241 0020000000000200 0020000000000001 \
        4000000020000000 cc07000000080000 0100000000000000 71844c6c14f6abf0e3cff a13c307245aa29d5dff1edaaee62330 \
        63d213cf54e2 6b066005";

    #[cfg(target_endian = "little")]
    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
        digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_control_file_of_initdb_is_read() {
        let control = ControlFile::parse(&hex(INITDB_15)).unwrap();
        // The values that pg_controldata shows.
        assert_eq!((control.format, control.system_identifier), (1300, 7_711_394_114_605_313_163));
        assert_eq!((control.redo, control.checkpoint, control.timeline), (0x150_0718, 0x150_0718, 1));
        assert_eq!((control.segment_size, control.place()), (SegmentSize::DEFAULT, (1, 0x50_0718)));
        assert!(control.clean, "initdb shuts it down");
    }

    #[test]
    fn each_format_has_its_checksum_where_its_structure_ends() {
        for (format, _) in CHECKSUM_OFFSETS {
            let bytes = file(format, 0x16_b374_d848, 1 << 30);
            let control = ControlFile::parse(&bytes[..CONTROL_FILE_BYTES]).unwrap();
            assert_eq!((control.format, control.redo, control.timeline), (format, 0x16_b374_d848, 3));
            assert_eq!(control.place(), (0x16_b374_d848 >> 30, 0x3374_d848));
        }
    }

    #[test]
    fn other_versions_and_the_other_byte_order_are_not_known() {
        for format in [0, 1201, 1301, 1902, u32::MAX, 1300_u32.swap_bytes()] {
            let error = ControlFile::parse(&file(format, 1, 1 << 24)).unwrap_err();
            assert_eq!(error, CheckpointError::UnknownFormat { format });
        }
    }

    #[test]
    fn a_torn_file_is_an_error() {
        let (old, new) = (file(1300, 0x100_0000, 1 << 24), file(1300, 0x900_0000, 1 << 24));
        for torn in 41..292 {
            let bytes = [&new[..torn], &old[torn..]].concat();
            let parsed = ControlFile::parse(&bytes);
            let whole = bytes[..292] == old[..292] || bytes[..292] == new[..292];
            assert_eq!(parsed.is_ok(), whole, "{torn}");
        }
        for len in 0..292 {
            assert!(ControlFile::parse(&new[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn figures_that_cannot_be_are_refused() {
        let mut late = file(1300, 0x100_0000, 1 << 24);
        late[32..40].copy_from_slice(&0xff_ffff_u64.to_ne_bytes());
        seal(&mut late, 288);
        assert_eq!(ControlFile::parse(&late), Err(CheckpointError::Implausible { what: "redo position" }));
        for size in [0, 1 << 19, (16 << 20) + 1, 1 << 31] {
            let error = ControlFile::parse(&file(1300, 1, size)).unwrap_err();
            assert_eq!(error, CheckpointError::Implausible { what: "segment size" });
        }
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_an_error(bit in 0_usize..292 * 8) {
            let mut bytes = file(1300, 0x100_0000, 1 << 24);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(ControlFile::parse(&bytes).is_err());
        }

        #[test]
        fn random_bytes_cause_no_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), seals: bool) {
            if seals && bytes.len() >= 292 {
                bytes[8..12].copy_from_slice(&1300_u32.to_ne_bytes());
                seal(&mut bytes, 288);
            }
            if let Ok(control) = ControlFile::parse(&bytes) {
                let _ = control.place();
            }
        }
    }
}
