//! File patterns of profiles: any text is parsed or rejected, and matching any name ends soon.
//!
//! The first line is the pattern, the rest a path.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagekeeper_policy::names::{NamePattern, by_last_number};

/// The maximum length of a file's name on Linux.
const FILE_NAME_BYTES_MAX: usize = 255;

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (pattern, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let path = Path::new(OsStr::from_bytes(path));
    let Some(name) = path.file_name().filter(|name| name.len() <= FILE_NAME_BYTES_MAX) else {
        return;
    };
    assert!(by_last_number(name.as_bytes()).stem().concat().len() <= name.len());
    let Ok(Ok(pattern)) = std::str::from_utf8(pattern).map(str::parse::<NamePattern>) else {
        return;
    };
    if let Some(found) = pattern.matches(path) {
        assert_eq!(pattern.matches_name(name), Some(found));
        assert!(found.stem().concat().len() <= name.len());
    }
}
