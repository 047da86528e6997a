//! The snapshot file: any bytes are parsed or rejected, and a parsed file is the same after it was
//! written and read again.
//!
//! The bytes are tried as they are, and as content of version 1 with a valid checksum, which
//! mutations never hit.

use pagekeeper_observe::saved_pages as format;

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    try_reading(data);
    let mut sealed = [&format::SNAPSHOT_MAGIC[..], &1_u16.to_le_bytes(), data].concat();
    let checksum = crc32c::crc32c(&sealed);
    sealed.extend_from_slice(&checksum.to_le_bytes());
    try_reading(&sealed);
}

fn try_reading(bytes: &[u8]) {
    if let Ok(snapshot) = format::decode(bytes) {
        let page = snapshot.page_size;
        for file in &snapshot.files {
            // The arithmetic of `warm --from`.
            assert!(file.resident_pages().checked_mul(page).is_some());
            assert!(file.extents.is_sorted_by(|a, b| a.end < b.start));
        }
        assert_eq!(format::decode(&format::encode(&snapshot)).as_ref(), Ok(&snapshot));
        // A recording of a start is such a file: nothing of it is left besides itself.
        assert_eq!(format::kept_of(snapshot.files.clone(), &snapshot.files), []);
    }
}
