//! File patterns of profiles: any text is read or refused, and matching any name ends soon.
//!
//! The first line is the pattern, the rest a path.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pagekeeper_catalog::Pattern;

/// The longest name of a file on Linux.
const NAME_MAX: usize = 255;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (pattern, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok(Ok(pattern)) = std::str::from_utf8(pattern).map(str::parse::<Pattern>) else {
        return;
    };
    let path = Path::new(OsStr::from_bytes(path));
    if path.file_name().is_some_and(|name| name.len() > NAME_MAX) {
        return;
    }
    if let Some(found) = pattern.matches(path) {
        let name = path.file_name().unwrap();
        assert_eq!(pattern.matches_name(name), Some(found.clone()));
        assert!(found.stem.len() <= name.len());
    }
});
