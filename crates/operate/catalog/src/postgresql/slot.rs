//! PostgreSQL's replication slots, read from `pg_replslot/NAME/state`: the position from which a slot's reader may
//! still read WAL.
//!
//! The file is one C structure in the machine's byte order, with a CRC-32C (`src/backend/replication/slot.c` of
//! each version). The server writes a new file and renames it, so a reader never sees a partial one. Its contents
//! may be old, never too new: the saved position lags behind the one in memory, by up to a checkpoint for a
//! physical slot.

use crate::checkpoint::{CheckpointError, array};

/// Bytes needed of the file: no version has a longer structure.
pub const LEN: usize = 512;

/// The first bytes of the file in every version.
const MAGIC: u32 = 0x0105_1ca1;
/// Offset of the structure's own data, behind the magic, the checksum, the version and the length.
const DATA: usize = 16;
/// Versions with the fields below at these offsets: PostgreSQL 9.5 to 15 write 2, 16 writes 3, 17 and 18 write 5.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=5;
/// Offset of the database ID, which is 0 in a physical slot. The name, of 64 bytes, comes before it.
const DATABASE: usize = DATA + 64;
const RESTART_LSN: usize = DATABASE + 16;

/// A replication slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicationSlot {
    /// The position from which its reader would start to read WAL: an LSN, in bytes. `None` while none is
    /// reserved, and once it was lost.
    pub restart_lsn: Option<u64>,
    /// Whether it serves logical decoding: by a WAL sender, or by SQL, where no process exists between two polls.
    pub is_logical: bool,
}

impl ReplicationSlot {
    /// Parses the first [`LEN`] bytes of the file, or more.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let number = |at| array(bytes, at).map(u32::from_ne_bytes);
        let (magic, checksum, version, len) = (number(0)?, number(4)?, number(8)?, number(12)?);
        if magic != MAGIC {
            return Err(CheckpointError::UnknownFormat { format: magic });
        }
        if !VERSIONS.contains(&version) {
            return Err(CheckpointError::UnknownFormat { format: version });
        }
        let end = usize::try_from(len).ok().and_then(|len| len.checked_add(DATA));
        let end = end.filter(|end| (RESTART_LSN + 8..=LEN).contains(end));
        let end = end.ok_or(CheckpointError::Implausible { what: "length" })?;
        let too_short = CheckpointError::TooShort { found: bytes.len(), needed: end };
        if crc32c::crc32c(bytes.get(8..end).ok_or(too_short)?) != checksum {
            return Err(CheckpointError::Checksum);
        }
        let restart_lsn = u64::from_ne_bytes(array(bytes, RESTART_LSN)?);
        Ok(Self { restart_lsn: (restart_lsn > 0).then_some(restart_lsn), is_logical: number(DATABASE)? != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a slot as PostgreSQL 15.18 wrote it (a name of one byte, then zeros), for `test_decoding` or
    /// physical.
    fn written_by_15(name: u8, database: u32, catalog_xmin: u32, lsns: [u64; 2], plugin: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 200];
        bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..12].copy_from_slice(&2_u32.to_ne_bytes());
        bytes[12..16].copy_from_slice(&184_u32.to_ne_bytes());
        bytes[16] = name;
        bytes[80..84].copy_from_slice(&database.to_ne_bytes());
        bytes[92..96].copy_from_slice(&catalog_xmin.to_ne_bytes());
        bytes[96..104].copy_from_slice(&lsns[0].to_ne_bytes());
        bytes[112..120].copy_from_slice(&lsns[1].to_ne_bytes());
        bytes[129..129 + plugin.len()].copy_from_slice(plugin);
        bytes
    }

    fn seal(bytes: &mut [u8]) {
        let checksum = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&checksum.to_ne_bytes());
    }

    /// Returns the two slots of one server, with the checksums that it wrote on a little-endian machine.
    fn slots() -> [Vec<u8>; 2] {
        let mut logical = written_by_15(b'l', 5, 0x2d4, [0x150_07c8, 0x150_0800], b"test_decoding");
        let mut physical = written_by_15(b'p', 0, 0, [0x150_0718, 0], b"");
        if cfg!(target_endian = "little") {
            logical[4..8].copy_from_slice(&[0xd3, 0x12, 0x65, 0xab]);
            physical[4..8].copy_from_slice(&[0xbc, 0x30, 0x00, 0x0b]);
        } else {
            seal(&mut logical);
            seal(&mut physical);
        }
        [logical, physical]
    }

    #[test]
    fn what_a_server_wrote_is_read() {
        // The values in pg_replication_slots.
        let slots = slots().map(|bytes| ReplicationSlot::parse(&bytes));
        assert_eq!(slots[0], Ok(ReplicationSlot { restart_lsn: Some(0x150_07c8), is_logical: true }));
        assert_eq!(slots[1], Ok(ReplicationSlot { restart_lsn: Some(0x150_0718), is_logical: false }));
    }

    #[test]
    fn later_versions_have_more_behind_what_is_read() {
        for (version, is_known) in [(1, false), (2, true), (3, true), (5, true), (6, false), (10_002, false)]
        {
            for len in [184_u32, 192, 256] {
                let mut bytes = slots()[0].clone();
                bytes.resize(DATA + usize::try_from(len).unwrap(), 7);
                bytes[8..12].copy_from_slice(&u32::to_ne_bytes(version));
                bytes[12..16].copy_from_slice(&len.to_ne_bytes());
                seal(&mut bytes);
                let unknown = CheckpointError::UnknownFormat { format: version };
                let read = ReplicationSlot { restart_lsn: Some(0x150_07c8), is_logical: true };
                let expected = if is_known { Ok(read) } else { Err(unknown) };
                assert_eq!(ReplicationSlot::parse(&bytes), expected, "{version} {len}");
            }
        }
    }

    #[test]
    fn a_slot_that_holds_nothing_has_no_place() {
        let mut bytes = slots()[0].clone();
        bytes[RESTART_LSN..RESTART_LSN + 8].fill(0);
        seal(&mut bytes);
        assert_eq!(ReplicationSlot::parse(&bytes).unwrap().restart_lsn, None);
    }

    #[test]
    fn what_is_no_slot_is_refused() {
        let whole = slots()[0].clone();
        for len in 0..whole.len() {
            assert!(ReplicationSlot::parse(&whole[..len]).is_err(), "{len}");
        }
        for len in [0, 87, 497, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[12..16].copy_from_slice(&u32::to_ne_bytes(len));
            seal(&mut bytes);
            let implausible = CheckpointError::Implausible { what: "length" };
            assert_eq!(ReplicationSlot::parse(&bytes), Err(implausible), "{len}");
        }
        assert!(matches!(
            ReplicationSlot::parse(&[0; LEN]),
            Err(CheckpointError::UnknownFormat { format: 0 })
        ));
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_an_error(bit in 0_usize..200 * 8) {
            let mut bytes = slots()[0].clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(ReplicationSlot::parse(&bytes).is_err());
        }

        #[test]
        fn no_bytes_are_too_odd(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), seals: bool) {
            if seals && bytes.len() >= 104 {
                let len = u32::try_from(bytes.len() - DATA).unwrap();
                bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
                bytes[8..12].copy_from_slice(&5_u32.to_ne_bytes());
                bytes[12..16].copy_from_slice(&len.to_ne_bytes());
                seal(&mut bytes);
                prop_assert_eq!(ReplicationSlot::parse(&bytes).is_ok(), bytes.len() <= LEN);
            }
            let _ = ReplicationSlot::parse(&bytes);
        }
    }
}
