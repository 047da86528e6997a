//! Helpers of this crate's own tests.

use std::path::PathBuf;

/// A directory under the build's own, since /tmp may be a tmpfs.
pub(crate) fn disk_dir() -> tempfile::TempDir {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-files");
    std::fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target).unwrap()
}
