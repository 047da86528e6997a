//! The headers of InnoDB's redo log files: the part of the log that a file holds, and the last
//! checkpoint.
//!
//! There are three layouts. All are big-endian, and each block has its own CRC-32C (`log0log.h`,
//! `log0constants.h` of each version):
//!
//! - MariaDB 10.8 and later: one file, a ring behind a header of 12 KiB. The checkpoint is in two
//!   blocks at 4 KiB and 8 KiB, written in turn; the larger LSN counts. Nothing else shows which is
//!   newer, and one may be torn.
//! - MySQL 8.0.30 and later: a series of files, each with its start LSN. The checkpoint is in two
//!   blocks, at 512 and 1536, of the file that it lies in. The largest LSN of all files counts.
//! - Earlier versions (MySQL 5.7 to 8.0.29, MariaDB 10.2 to 10.7): a ring. The checkpoint and its
//!   offset in the ring are in two blocks at 512 and 1536 of the first file; the higher number
//!   counts. MariaDB 10.5 to 10.7 has one file. The others have several of one size
//!   (`innodb_log_files_in_group`), and no header says how many.
//!
//! The headers of an encrypted log are in plain text.

use pagekeeper_kernel::InspectedFile;
use pagekeeper_policy::CheckpointPosition;

use super::{CheckpointError, array, read_header};

/// Bytes needed from the start of a file; of a shorter file, all.
pub const REDO_HEADER_BYTES: usize = 12 << 10;

/// The smallest block in bytes, with the checksum of a header at its end.
const BLOCK_BYTES: usize = 512;
/// Bytes before the log itself in MySQL, and in MariaDB before 10.8.
const SHORT_HEADER_BYTES: u64 = 2048;
/// Bytes before the log itself since MariaDB 10.8.
const LONG_HEADER_BYTES: u64 = 12 << 10;
/// MariaDB sets this bit of the format if the log is encrypted.
const ENCRYPTED_FLAG: u32 = 1 << 31;
/// MariaDB 10.4: 104. Its encrypted logs have this format, too.
const FORMAT_MARIADB_10_4: u32 = 0x68;
/// `PHYS`: MariaDB 10.5.
const FORMAT_MARIADB_10_5: u32 = 0x5048_5953;
/// `Phys`: MariaDB 10.8.
const FORMAT_MARIADB_10_8: u32 = 0x5068_7973;

/// The layout of a log in its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedoLayout {
    /// MariaDB 10.8 and later: one file, a ring.
    Ring,
    /// MySQL 8.0.30 and later: a series of files, each with its own part of the log.
    Series,
    /// MariaDB 10.5 to 10.7: one file, a ring.
    OldRing,
    /// Earlier versions, and MySQL up to 8.0.29: a ring of any number of files.
    RingOfFiles,
}

/// The header of a redo log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedoHeader {
    /// The log's layout.
    pub layout: RedoLayout,
    /// The LSN at which the file starts, in bytes; in a ring, where it once started.
    pub start: u64,
    /// The last checkpoint recorded in this file: an LSN, in bytes. Recovery reads from there.
    pub checkpoint: Option<u64>,
    /// The checkpoint's offset in bytes in the files of a [`RedoLayout::OldRing`] or
    /// [`RedoLayout::RingOfFiles`], counted one after the other.
    old_offset: u64,
}

impl RedoHeader {
    /// Reads the header of a file, without read-ahead.
    pub fn read(file: &InspectedFile) -> Result<Self, String> {
        let mut bytes = [0; REDO_HEADER_BYTES];
        let len = read_header(file, &mut bytes)?;
        Self::parse(&bytes[..len]).map_err(|error| format!("its header: {error}"))
    }

    /// Parses the first [`REDO_HEADER_BYTES`] bytes of a file, or all of a shorter one.
    ///
    /// A header without an intact checkpoint block is not an error: most files of a series have
    /// none.
    pub fn parse(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let layout = layout_of(u32::from_be_bytes(array(bytes, 0)?))?;
        check_block(bytes, 0, BLOCK_BYTES - 4)?;
        let start = read_u64(bytes, 8)?;
        let found = match layout {
            RedoLayout::Ring => ring_checkpoint(bytes)?,
            RedoLayout::Series => series_checkpoint(bytes)?,
            RedoLayout::OldRing | RedoLayout::RingOfFiles => old_checkpoint(bytes)?,
        };
        let starts_once = matches!(layout, RedoLayout::Ring | RedoLayout::Series);
        let before = |&(lsn, _): &(u64, u64)| starts_once && lsn < start;
        if found.as_ref().is_some_and(before) {
            return Err(CheckpointError::Implausible { what: "checkpoint" });
        }
        let (checkpoint, old_offset) = found.map_or((None, 0), |(lsn, offset)| (Some(lsn), offset));
        Ok(Self { layout, start, checkpoint, old_offset })
    }

    /// Returns the offset in bytes from which recovery reads, if it is known and in this file. The
    /// file has `size` bytes, and is the only one of its log if that is a ring.
    pub fn checkpoint_offset(&self, size: u64) -> Option<u64> {
        self.offset_of(self.checkpoint?, size)
    }

    /// Returns the same for a checkpoint that another file of the log records.
    pub fn offset_of(&self, lsn: u64, size: u64) -> Option<u64> {
        let into = lsn.checked_sub(self.start);
        match self.layout {
            RedoLayout::Ring => {
                let capacity = size.checked_sub(LONG_HEADER_BYTES).filter(|capacity| *capacity > 0)?;
                Some(LONG_HEADER_BYTES + into? % capacity)
            }
            RedoLayout::Series => {
                let offset = into?.checked_add(SHORT_HEADER_BYTES)?;
                (offset < size).then_some(offset)
            }
            RedoLayout::OldRing | RedoLayout::RingOfFiles => {
                let is_known =
                    Some(lsn) == self.checkpoint && (SHORT_HEADER_BYTES..size).contains(&self.old_offset);
                is_known.then_some(self.old_offset)
            }
        }
    }
}

/// The header of a file of a log, and what its directory shows of that file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedoFile {
    /// Its header.
    pub header: RedoHeader,
    /// Its place in the log, by its name.
    pub sequence: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// Returns the last checkpoint of a log with these files.
pub fn last_checkpoint(files: &[RedoFile]) -> Result<CheckpointPosition, String> {
    let latest = files.iter().filter_map(|file| file.header.checkpoint).max();
    let latest = latest.ok_or("its files have no checkpoint")?;
    // In a series it lies in the last file that starts before it, whichever file's header has it.
    let holder = files.iter().filter(|file| file.header.start <= latest);
    let RedoFile { header, sequence, size } =
        *holder.max_by_key(|file| file.header.start).ok_or("its files start after it")?;
    let offset = header.offset_of(latest, size).ok_or("its files do not have the checkpoint")?;
    match (header.layout, files.len()) {
        (RedoLayout::Series, _) => Ok(CheckpointPosition::InSeries { sequence, offset }),
        (RedoLayout::Ring | RedoLayout::OldRing, 1) => Ok(CheckpointPosition::InRing { offset }),
        (RedoLayout::Ring | RedoLayout::OldRing | RedoLayout::RingOfFiles, _) => {
            Err("it is a ring of several files, or may be one".to_owned())
        }
    }
}

/// Returns the layout of a format number.
fn layout_of(number: u32) -> Result<RedoLayout, CheckpointError> {
    Ok(match number {
        1..=5 | 103 => RedoLayout::RingOfFiles,
        6 => RedoLayout::Series,
        other => match other & !ENCRYPTED_FLAG {
            FORMAT_MARIADB_10_8 => RedoLayout::Ring,
            FORMAT_MARIADB_10_5 => RedoLayout::OldRing,
            FORMAT_MARIADB_10_4 => RedoLayout::RingOfFiles,
            _ => return Err(CheckpointError::UnknownFormat { format: number }),
        },
    })
}

/// Returns the format number at the start of a file if it is unknown; the way such a log is written
/// is unknown, too. A file that starts with zeros has no header yet.
///
/// ```
/// use pagekeeper_catalog::checkpoint::innodb::unknown_format;
///
/// assert_eq!(unknown_format(*b"Phys"), None);
/// assert_eq!(unknown_format(*b"Tape"), Some(0x5461_7065));
/// ```
pub fn unknown_format(start: [u8; 4]) -> Option<u32> {
    let number = u32::from_be_bytes(start);
    (number > 0 && layout_of(number).is_err()).then_some(number)
}

/// Returns the last checkpoint in a header of MariaDB 10.8, and 0.
fn ring_checkpoint(bytes: &[u8]) -> Result<Option<(u64, u64)>, CheckpointError> {
    latest_checkpoint(bytes, [4 << 10, 8 << 10], 60, |at| {
        Ok((read_u64(bytes, at)?, (read_u64(bytes, at)?, 0)))
    })
}

/// Returns the last checkpoint in a header of MySQL 8.0.30, and 0.
fn series_checkpoint(bytes: &[u8]) -> Result<Option<(u64, u64)>, CheckpointError> {
    latest_checkpoint(bytes, [BLOCK_BYTES, 3 * BLOCK_BYTES], BLOCK_BYTES - 4, |at| {
        Ok((read_u64(bytes, at + 8)?, (read_u64(bytes, at + 8)?, 0)))
    })
}

/// Returns the last checkpoint in an older header, and its offset.
fn old_checkpoint(bytes: &[u8]) -> Result<Option<(u64, u64)>, CheckpointError> {
    latest_checkpoint(bytes, [BLOCK_BYTES, 3 * BLOCK_BYTES], BLOCK_BYTES - 4, |at| {
        Ok((read_u64(bytes, at)?, (read_u64(bytes, at + 8)?, read_u64(bytes, at + 16)?)))
    })
}

/// Returns what `read` finds in the newer of two blocks, by the number that it returns first. Only
/// intact blocks count, with their checksum after `len` bytes and an LSN other than 0.
fn latest_checkpoint(
    bytes: &[u8],
    blocks: [usize; 2],
    len: usize,
    read: impl Fn(usize) -> Result<(u64, (u64, u64)), CheckpointError>,
) -> Result<Option<(u64, u64)>, CheckpointError> {
    let mut found = None;
    for at in blocks {
        match check_block(bytes, at, len) {
            Ok(()) => found = found.max(Some(read(at)?).filter(|(_, (lsn, _))| *lsn > 0)),
            Err(CheckpointError::Checksum) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found.map(|(_, checkpoint)| checkpoint))
}

/// Checks that the block at `at` is intact: it has `len` bytes, followed by their checksum.
fn check_block(bytes: &[u8], at: usize, len: usize) -> Result<(), CheckpointError> {
    let sum = u32::from_be_bytes(array(bytes, at + len)?);
    let content = bytes.get(at..at + len).unwrap_or_default();
    if crc32c::crc32c(content) == sum { Ok(()) } else { Err(CheckpointError::Checksum) }
}

fn read_u64(bytes: &[u8], at: usize) -> Result<u64, CheckpointError> {
    array(bytes, at).map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(bytes: &mut [u8], at: usize, value: u64) {
        bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }

    fn seal(bytes: &mut [u8], at: usize, len: usize) {
        let sum = crc32c::crc32c(&bytes[at..at + len]);
        bytes[at + len..at + len + 4].copy_from_slice(&sum.to_be_bytes());
    }

    fn header(format: u32, start: u64) -> Vec<u8> {
        let mut bytes = vec![0; REDO_HEADER_BYTES];
        bytes[..4].copy_from_slice(&format.to_be_bytes());
        put(&mut bytes, 8, start);
        seal(&mut bytes, 0, 508);
        bytes
    }

    /// Returns a file of MariaDB 10.8 with these checkpoints in its blocks.
    fn ring(start: u64, checkpoints: [u64; 2]) -> Vec<u8> {
        let mut bytes = header(FORMAT_MARIADB_10_8, start);
        for (at, lsn) in [4096, 8192].into_iter().zip(checkpoints) {
            put(&mut bytes, at, lsn);
            put(&mut bytes, at + 8, lsn + 340);
            seal(&mut bytes, at, 60);
        }
        bytes
    }

    #[test]
    fn a_ring_of_mariadb_has_two_checkpoints_and_the_later_counts() {
        let bytes = ring(0xad74, [0xad84, 0xad74]);
        let header = RedoHeader::parse(&bytes).unwrap();
        assert_eq!(
            (header.layout, header.start, header.checkpoint),
            (RedoLayout::Ring, 0xad74, Some(0xad84))
        );
        assert_eq!(header.checkpoint_offset(64 << 20), Some(12288 + 16));
        let turn = (64 << 20) - 12288;
        let header = RedoHeader::parse(&ring(0xad74, [0xad84, 0xad74 + 3 * turn + 77])).unwrap();
        assert_eq!(header.checkpoint_offset(64 << 20), Some(12288 + 77));
        assert_eq!(header.checkpoint_offset(12288), None, "there is no log in it");
    }

    #[test]
    fn the_checkpoint_before_a_torn_one_counts() {
        let mut bytes = ring(0x3000, [0x9000, 0x8000]);
        bytes[4096 + 7] ^= 1;
        assert_eq!(RedoHeader::parse(&bytes).unwrap().checkpoint, Some(0x8000));
        bytes[8192 + 7] ^= 1;
        assert_eq!(RedoHeader::parse(&bytes).unwrap().checkpoint, None);
        bytes[9] ^= 1;
        assert_eq!(RedoHeader::parse(&bytes), Err(CheckpointError::Checksum));
    }

    #[test]
    fn an_encrypted_log_is_read_as_a_plain_one() {
        let mut bytes = ring(0x3000, [0x9000, 0x8000]);
        bytes[0] |= 0x80;
        seal(&mut bytes, 0, 508);
        assert_eq!(RedoHeader::parse(&bytes).unwrap().checkpoint, Some(0x9000));
    }

    #[test]
    fn a_file_of_mysqls_series_has_its_start_lsn() {
        let mut bytes = header(6, 1 << 30);
        let parsed = RedoHeader::parse(&bytes).unwrap();
        assert_eq!((parsed.layout, parsed.start, parsed.checkpoint), (RedoLayout::Series, 1 << 30, None));
        assert_eq!(parsed.checkpoint_offset(1 << 20), None);
        for (at, lsn) in [(512, (1 << 30) + 100), (1536, (1 << 30) + 70_000)] {
            put(&mut bytes, at + 8, lsn);
            seal(&mut bytes, at, 508);
        }
        let parsed = RedoHeader::parse(&bytes[..2048]).unwrap();
        assert_eq!(parsed.checkpoint, Some((1 << 30) + 70_000));
        assert_eq!(parsed.checkpoint_offset(1 << 20), Some(72_048));
        assert_eq!(parsed.checkpoint_offset(72_048), None, "in the next file");
        assert_eq!(parsed.offset_of((1 << 30) + 5, 1 << 20), Some(2053));
        assert_eq!(parsed.offset_of((1 << 30) - 1, 1 << 20), None, "in a file before");
    }

    #[test]
    fn an_old_ring_has_the_offset_beside_the_checkpoint_and_the_number_counts() {
        for (format, layout) in [
            (1, RedoLayout::RingOfFiles),
            (5, RedoLayout::RingOfFiles),
            (103, RedoLayout::RingOfFiles),
            (FORMAT_MARIADB_10_4, RedoLayout::RingOfFiles),
            (FORMAT_MARIADB_10_4 | ENCRYPTED_FLAG, RedoLayout::RingOfFiles),
            (FORMAT_MARIADB_10_5, RedoLayout::OldRing),
            (FORMAT_MARIADB_10_5 | ENCRYPTED_FLAG, RedoLayout::OldRing),
        ] {
            let mut bytes = header(format, 0);
            for (at, number, lsn, offset) in [(512, 8, 9000, 5000), (1536, 7, 9999, 6000)] {
                put(&mut bytes, at, number);
                put(&mut bytes, at + 8, lsn);
                put(&mut bytes, at + 16, offset);
                seal(&mut bytes, at, 508);
            }
            let parsed = RedoHeader::parse(&bytes).unwrap();
            assert_eq!((parsed.layout, parsed.checkpoint), (layout, Some(9000)));
            assert_eq!(parsed.checkpoint_offset(1 << 20), Some(5000));
            assert_eq!(parsed.checkpoint_offset(5000), None, "in another file of the ring");
        }
    }

    #[test]
    fn unknown_and_impossible_headers_are_refused() {
        for format in [0, 7, 102, 105, 6 | ENCRYPTED_FLAG, 0xffff_ffff] {
            assert_eq!(RedoHeader::parse(&header(format, 0)), Err(CheckpointError::UnknownFormat { format }));
        }
        let early = RedoHeader::parse(&ring(0x9000, [0x8000, 0x7000]));
        assert_eq!(early, Err(CheckpointError::Implausible { what: "checkpoint" }));
        let bytes = ring(0x3000, [0x9000, 0x8000]);
        for len in [0, 3, 500, 4096, 4155, 8192 + 63] {
            let error = RedoHeader::parse(&bytes[..len]).unwrap_err();
            assert!(matches!(error, CheckpointError::TooShort { .. }), "{len}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_never_brings_a_later_checkpoint(bit in 0..REDO_HEADER_BYTES * 8) {
            let mut bytes = ring(0x3000, [0x9000, 0x8000]);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let parsed = RedoHeader::parse(&bytes);
            prop_assert!(!parsed.is_ok_and(|header| header.checkpoint.is_some_and(|lsn| lsn > 0x9000)));
        }

        #[test]
        fn random_bytes_cause_no_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..REDO_HEADER_BYTES + 9),
            format: u8,
            seals: bool,
            size: u64,
        ) {
            if seals && bytes.len() >= REDO_HEADER_BYTES {
                let all = [1, 6, 104, FORMAT_MARIADB_10_5, FORMAT_MARIADB_10_8];
                let format = all[usize::from(format) % all.len()];
                bytes[..4].copy_from_slice(&format.to_be_bytes());
                for (at, len) in [(0, 508), (512, 508), (1536, 508), (4096, 60), (8192, 60)] {
                    seal(&mut bytes, at, len);
                }
            }
            if let Ok(header) = RedoHeader::parse(&bytes) {
                let offset = header.checkpoint_offset(size);
                prop_assert!(offset.is_none_or(|offset| offset < size));
            }
        }
    }
}
