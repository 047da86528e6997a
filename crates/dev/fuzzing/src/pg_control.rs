//! `PostgreSQL`'s control file: any bytes are parsed or rejected, and arithmetic on the parsed
//! numbers does not fail.
//!
//! The bytes are tried as they are, and in each format with a valid checksum, which mutations never
//! hit.

use pagekeeper_catalog::checkpoint::postgresql::{CONTROL_FILE_BYTES, ControlFile};

/// The formats, with the offset of the checksum in each.
const CONTROL_FORMATS: [(u32, usize); 3] = [(1300, 288), (1700, 288), (1800, 292)];

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    try_reading(data);
    for format in 0..CONTROL_FORMATS.len() {
        try_reading(&sealed(data, format));
    }
}

/// Returns the bytes with the number of a format, and a valid checksum.
pub(crate) fn sealed(data: &[u8], format: usize) -> Vec<u8> {
    let (number, end) = CONTROL_FORMATS[format];
    let mut sealed = data.to_vec();
    sealed.resize(CONTROL_FILE_BYTES, 0);
    sealed[8..12].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&sealed[..end]);
    sealed[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    sealed
}

fn try_reading(bytes: &[u8]) {
    if let Ok(control) = ControlFile::parse(bytes) {
        assert!(control.redo <= control.checkpoint);
        let (_, offset) = control.place();
        assert!(offset < control.segment_size.bytes());
    }
}

/// Returns a control file with all fields that are read.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut bytes = vec![0; 292];
    let figures = [
        (0, 0x6b04_7617_2c16_6c8b_u64),
        (8, 1300),
        (32, 0x150_0750),
        (40, 0x150_0718),
        (48, 1),
        (228, 16 << 20),
    ];
    for (at, figure) in figures {
        bytes[at..at + 8].copy_from_slice(&figure.to_le_bytes());
    }
    let crc = crc32c::crc32c(&bytes[..288]);
    bytes[288..].copy_from_slice(&crc.to_le_bytes());
    vec![bytes]
}
