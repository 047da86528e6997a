//! PostgreSQL's replication slots, read from `pg_replslot/NAME/state`: the position from which a
//! slot's reader may still read WAL.
//!
//! The file is one C structure in the machine's byte order, with a CRC-32C
//! (`src/backend/replication/slot.c` of each version). The server writes a new file and renames it,
//! so a reader never sees a partial one. Its contents may be old, never too new: the saved position
//! lags behind the one in memory, by up to a checkpoint for a physical slot.

use crate::checkpoint::{CheckpointError, array};

/// Bytes needed of the file: no version has a longer structure.
pub const SLOT_BYTES: usize = 512;

/// The first bytes of the file in every version.
const SLOT_MAGIC: u32 = 0x0105_1ca1;
/// Offset of the structure's own data, behind the magic, the checksum, the version and the length.
const DATA_OFFSET: usize = 16;
/// Versions with the fields below at these offsets: PostgreSQL 13 to 15 write 2, 16 writes 3, 17
/// and 18 write 5.
const SLOT_VERSIONS: std::ops::RangeInclusive<u32> = 2..=5;
/// Offset of the database ID, which is 0 in a physical slot. The name, of 64 bytes, comes before
/// it.
const DATABASE_OFFSET: usize = DATA_OFFSET + 64;
const RESTART_LSN_OFFSET: usize = DATABASE_OFFSET + 16;
/// Offset of the cause for which the server invalidated the slot, or 0. Version 2 has another LSN
/// there.
const INVALIDATION_OFFSET: usize = RESTART_LSN_OFFSET + 8;
const INVALIDATION_SINCE_VERSION: u32 = 3;

/// A replication slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicationSlot {
    /// The position from which its reader would start to read WAL: an LSN, in bytes. `None` while
    /// none is reserved, and once the server has invalidated the slot.
    pub restart_lsn: Option<u64>,
    /// Whether it serves logical decoding: by a WAL sender, or by SQL, where no process exists
    /// between two polls.
    pub is_logical: bool,
}

impl ReplicationSlot {
    /// Parses the first [`SLOT_BYTES`] bytes of the file, or more.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let number = |at| array(bytes, at).map(u32::from_ne_bytes);
        let (magic, checksum, version, len) = (number(0)?, number(4)?, number(8)?, number(12)?);
        if magic != SLOT_MAGIC {
            return Err(CheckpointError::UnknownFormat { format: magic });
        }
        if !SLOT_VERSIONS.contains(&version) {
            return Err(CheckpointError::UnknownFormat { format: version });
        }
        let end = usize::try_from(len).ok().and_then(|len| len.checked_add(DATA_OFFSET));
        let end = end.filter(|end| (INVALIDATION_OFFSET + 4..=SLOT_BYTES).contains(end));
        let end = end.ok_or(CheckpointError::Implausible { what: "length" })?;
        let too_short = CheckpointError::TooShort { found: bytes.len(), needed: end };
        if crc32c::crc32c(bytes.get(8..end).ok_or(too_short)?) != checksum {
            return Err(CheckpointError::Checksum);
        }
        let restart_lsn = u64::from_ne_bytes(array(bytes, RESTART_LSN_OFFSET)?);
        let is_invalid = version >= INVALIDATION_SINCE_VERSION && number(INVALIDATION_OFFSET)? != 0;
        Ok(Self {
            restart_lsn: (restart_lsn > 0 && !is_invalid).then_some(restart_lsn),
            is_logical: number(DATABASE_OFFSET)? != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The fields of a slot, as one server wrote them.
    struct SavedSlot {
        version: u32,
        database: u32,
        catalog_xmin: u32,
        restart_lsn: u64,
        invalidated: u32,
        confirmed_flush: u64,
        /// The checksum in the server's file, on a little-endian machine.
        checksum: u32,
    }

    /// Slots for `test_decoding`: with two-phase decoding since PostgreSQL 14, for failover since
    /// 17.
    const LOGICAL_SLOTS: [(u32, SavedSlot); 6] = [
        (13, logical(2, 13383, 0x1e5, 0x15c_4a18, 0x15c_4a50, 0xa194_3c95)),
        (14, logical(2, 13695, 0x2dd, 0x16e_fed0, 0x16e_ff08, 0x9d54_468e)),
        (15, logical(2, 5, 0x2d4, 0x150_07b8, 0x150_07f0, 0x6be0_e37c)),
        (16, logical(3, 5, 0x2da, 0x14d_deb8, 0x14d_def0, 0x9b67_f828)),
        (17, logical(5, 5, 0x2e2, 0x14d_8a80, 0x14d_8ab8, 0xd8f6_b2cd)),
        (18, logical(5, 5, 0x2f0, 0x174_b300, 0x174_b338, 0x801e_3f5b)),
    ];
    const PHYSICAL_SLOTS: [(u32, SavedSlot); 6] = [
        (13, physical(2, 0x15c_4968, 0xa82f_88d8)),
        (14, physical(2, 0x16e_fe20, 0x3999_fdc2)),
        (15, physical(2, 0x150_0708, 0x6109_da08)),
        (16, physical(3, 0x14d_de08, 0x985f_1436)),
        (17, physical(5, 0x14d_89d0, 0xab9a_d28c)),
        (18, physical(5, 0x174_b250, 0xd07b_97b2)),
    ];
    /// A slot of PostgreSQL 18 that was idle for longer than `idle_replication_slot_timeout`.
    const TIMED_OUT_SLOT: SavedSlot =
        SavedSlot { invalidated: 8, checksum: 0xe8e8_daac, ..physical(5, 0x174_b250, 0) };

    const fn logical(
        version: u32,
        database: u32,
        catalog_xmin: u32,
        restart_lsn: u64,
        confirmed_flush: u64,
        checksum: u32,
    ) -> SavedSlot {
        SavedSlot { version, database, catalog_xmin, restart_lsn, invalidated: 0, confirmed_flush, checksum }
    }

    const fn physical(version: u32, restart_lsn: u64, checksum: u32) -> SavedSlot {
        logical(version, 0, 0, restart_lsn, 0, checksum)
    }

    impl SavedSlot {
        /// Returns the bytes of the server's file.
        fn bytes(&self, server: u32) -> Vec<u8> {
            let is_logical = self.database != 0;
            let mut bytes = vec![0; if server < 14 { 184 } else { 200 }];
            let len = u32::try_from(bytes.len() - DATA_OFFSET).unwrap();
            bytes[..4].copy_from_slice(&SLOT_MAGIC.to_ne_bytes());
            bytes[8..12].copy_from_slice(&self.version.to_ne_bytes());
            bytes[12..16].copy_from_slice(&len.to_ne_bytes());
            bytes[16] = if is_logical { b'l' } else { b'p' };
            bytes[80..84].copy_from_slice(&self.database.to_ne_bytes());
            bytes[92..96].copy_from_slice(&self.catalog_xmin.to_ne_bytes());
            bytes[96..104].copy_from_slice(&self.restart_lsn.to_ne_bytes());
            bytes[104..108].copy_from_slice(&self.invalidated.to_ne_bytes());
            bytes[112..120].copy_from_slice(&self.confirmed_flush.to_ne_bytes());
            let plugin = if server < 14 { 120 } else { 129 };
            if is_logical && server >= 14 {
                bytes[120..128].copy_from_slice(&self.confirmed_flush.to_ne_bytes());
                bytes[128] = 1;
            }
            if is_logical {
                bytes[plugin..plugin + 13].copy_from_slice(b"test_decoding");
            }
            if is_logical && server >= 17 {
                bytes[194] = 1;
            }
            seal(&mut bytes);
            let sealed = u32::from_ne_bytes(bytes[4..8].try_into().unwrap());
            assert!(cfg!(target_endian = "big") || sealed == self.checksum, "{server}: {sealed:#x}");
            bytes
        }
    }

    fn seal(bytes: &mut [u8]) {
        let checksum = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&checksum.to_ne_bytes());
    }

    /// Returns a logical slot of PostgreSQL 15, and its position.
    fn slot() -> (Vec<u8>, u64) {
        let (server, written) = &LOGICAL_SLOTS[2];
        (written.bytes(*server), written.restart_lsn)
    }

    #[test]
    fn slot_files_of_each_server_version_are_read() {
        for (slots, is_logical) in [(LOGICAL_SLOTS, true), (PHYSICAL_SLOTS, false)] {
            for (server, written) in slots {
                let slot = ReplicationSlot { restart_lsn: Some(written.restart_lsn), is_logical };
                assert_eq!(ReplicationSlot::parse(&written.bytes(server)), Ok(slot), "{server}");
            }
        }
    }

    #[test]
    fn a_slot_that_the_server_has_invalidated_has_no_place() {
        let slot = ReplicationSlot { restart_lsn: None, is_logical: false };
        assert_eq!(ReplicationSlot::parse(&TIMED_OUT_SLOT.bytes(18)), Ok(slot));
    }

    #[test]
    fn other_versions_are_not_known() {
        for (version, is_known) in [(1, false), (2, true), (3, true), (5, true), (6, false), (10_002, false)]
        {
            for len in [184_u32, 192, 256] {
                let (mut bytes, restart_lsn) = slot();
                bytes.resize(DATA_OFFSET + usize::try_from(len).unwrap(), 7);
                bytes[8..12].copy_from_slice(&u32::to_ne_bytes(version));
                bytes[12..16].copy_from_slice(&len.to_ne_bytes());
                seal(&mut bytes);
                let unknown = CheckpointError::UnknownFormat { format: version };
                let read = ReplicationSlot { restart_lsn: Some(restart_lsn), is_logical: true };
                let expected = if is_known { Ok(read) } else { Err(unknown) };
                assert_eq!(ReplicationSlot::parse(&bytes), expected, "{version} {len}");
            }
        }
    }

    #[test]
    fn a_slot_that_holds_nothing_has_no_place() {
        let (mut bytes, _) = slot();
        bytes[RESTART_LSN_OFFSET..RESTART_LSN_OFFSET + 8].fill(0);
        seal(&mut bytes);
        assert_eq!(ReplicationSlot::parse(&bytes).unwrap().restart_lsn, None);
    }

    #[test]
    fn a_file_that_is_not_a_slot_is_refused() {
        let (whole, _) = slot();
        for len in 0..whole.len() {
            assert!(ReplicationSlot::parse(&whole[..len]).is_err(), "{len}");
        }
        for len in [0, 91, 497, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[12..16].copy_from_slice(&u32::to_ne_bytes(len));
            seal(&mut bytes);
            let implausible = CheckpointError::Implausible { what: "length" };
            assert_eq!(ReplicationSlot::parse(&bytes), Err(implausible), "{len}");
        }
        assert!(matches!(
            ReplicationSlot::parse(&[0; SLOT_BYTES]),
            Err(CheckpointError::UnknownFormat { format: 0 })
        ));
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_an_error(bit in 0_usize..200 * 8) {
            let (mut bytes, _) = slot();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(ReplicationSlot::parse(&bytes).is_err());
        }

        #[test]
        fn random_bytes_cause_no_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), seals: bool) {
            if seals && bytes.len() >= 108 {
                let len = u32::try_from(bytes.len() - DATA_OFFSET).unwrap();
                bytes[..4].copy_from_slice(&SLOT_MAGIC.to_ne_bytes());
                bytes[8..12].copy_from_slice(&5_u32.to_ne_bytes());
                bytes[12..16].copy_from_slice(&len.to_ne_bytes());
                seal(&mut bytes);
                prop_assert_eq!(ReplicationSlot::parse(&bytes).is_ok(), bytes.len() <= SLOT_BYTES);
            }
            let _ = ReplicationSlot::parse(&bytes);
        }
    }
}
