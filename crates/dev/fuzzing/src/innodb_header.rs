//! Headers of InnoDB redo logs: any bytes are parsed or rejected, and a parsed checkpoint lies
//! within the file.
//!
//! The bytes are tried as they are. They are also spread over the blocks of each layout, with valid
//! checksums, which mutations never hit.

use pagekeeper_catalog::checkpoint::innodb::{REDO_HEADER_BYTES, RedoHeader, RedoLayout};

/// The number of each layout, and numbers of encrypted logs.
const HEADER_FORMATS: [u32; 7] = [1, 5, 6, 104, 0x5048_5953, 0x5068_7973, 0x5068_7973 | 1 << 31];
/// Each block's offset, and its length without its checksum.
const HEADER_BLOCKS: [(usize, usize); 5] = [(0, 508), (512, 508), (1536, 508), (4096, 60), (8192, 60)];
/// Meaningful bytes of a block.
const BLOCK_DATA_BYTES: usize = 32;

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    try_reading(data);
    let mut bytes = vec![0; REDO_HEADER_BYTES];
    for ((at, _), part) in HEADER_BLOCKS.iter().zip(data.chunks(BLOCK_DATA_BYTES)) {
        bytes[*at..at + part.len()].copy_from_slice(part);
    }
    for format in HEADER_FORMATS {
        bytes[..4].copy_from_slice(&format.to_be_bytes());
        for (at, len) in HEADER_BLOCKS {
            let crc = crc32c::crc32c(&bytes[at..at + len]);
            bytes[at + len..at + len + 4].copy_from_slice(&crc.to_be_bytes());
        }
        try_reading(&bytes);
    }
}

fn try_reading(bytes: &[u8]) {
    if let Ok(header) = RedoHeader::parse(bytes) {
        let may_be_before = matches!(header.layout, RedoLayout::OldRing | RedoLayout::RingOfFiles);
        assert!(header.checkpoint.is_none_or(|lsn| may_be_before || lsn >= header.start));
        for size in [0, 2048, 2049, REDO_HEADER_BYTES as u64, REDO_HEADER_BYTES as u64 + 1, 1 << 30, u64::MAX]
        {
            assert!(header.checkpoint_offset(size).is_none_or(|offset| offset < size));
        }
    }
}

/// Returns the blocks of a log that starts at an LSN, with two checkpoints at either place.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let words = |words: [u64; 4]| words.map(u64::to_be_bytes).concat();
    let start = words([0, 0x3000, 0, 0]);
    let (old, older) = (words([8, 0x9000, 0x1388, 0]), words([7, 0x8000, 0x1770, 0]));
    let (ring, before) = (words([0x9000, 0x9010, 0, 0]), words([0x8000, 0x8010, 0, 0]));
    vec![[start, old, older, ring, before].concat()]
}
