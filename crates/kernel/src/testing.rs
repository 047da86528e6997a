//! Helpers of this crate's own tests: real files on the file system of the temporary directory.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::{InspectedFile, Links, residency};

/// A directory for test files: under the build's own target directory, since /tmp may be a tmpfs.
pub(crate) fn disk_dir() -> TempDir {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-files");
    std::fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target).unwrap()
}

/// A synced file of `len` bytes, all resident.
pub(crate) fn file_of(len: usize) -> (TempDir, InspectedFile) {
    let dir = disk_dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![0x5a; len]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let file = InspectedFile::open(&path, Links::Refuse).unwrap();
    (dir, file)
}

/// Says that a test, or a part of it, can't be run here. Panics where `PAGEKEEPER_REQUIRE_ALL=1` is set: where
/// nothing may be left out.
pub(crate) fn skip(why: impl std::fmt::Display) {
    let message = format!("SKIPPED: {why}");
    assert!(std::env::var_os("PAGEKEEPER_REQUIRE_ALL").is_none_or(|value| value != "1"), "{message}");
    eprintln!("{message}");
}

/// Runs `what` in a thread of the user nobody. Only root may: identity is per thread on Linux, so the rest of the
/// process stays as it is.
pub(crate) fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let nobody = rustix::process::Uid::from_raw(65534);
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            what()
        });
        stranger.join().unwrap()
    })
}

/// Drops all pages of a clean file. Pages that the kernel holds itself just then (it moves them, or looks for some to reclaim)
/// stay, so it is told until none is left.
pub(crate) fn evict_all(file: &InspectedFile) {
    for _ in 0..1000 {
        evict_once(file);
        if residency(file, 0..u64::MAX).unwrap().resident == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Drops what pages of a clean file can be dropped, by the bare system call.
pub(crate) fn evict_once(file: &InspectedFile) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}
