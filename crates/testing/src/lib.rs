//! What the tests of several crates need: directories on disks, random numbers that repeat, real servers under a load, and a
//! message for what can't be run. Not published.
//!
//! All of it panics where it fails, as tests do.

mod forks;
mod hanging;
pub mod http;
mod mounted;
mod opens;
mod processes;
mod rng;
pub mod servers;

use std::fmt::Display;
use std::path::PathBuf;

use tempfile::TempDir;

pub use forks::{ChildEnd, Forked, forked, forked_past_libc};
pub use hanging::Hanging;
pub use mounted::{Mounted, unmount};
pub use opens::Opens;
pub use processes::fake_process;
pub use rng::{Rng, Seed};

/// A directory for test files, without links in its path: under the build's own target directory, since /tmp may be a tmpfs.
///
/// # Panics
///
/// Where it can't be made.
pub fn disk_dir() -> TempDir {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-files");
    std::fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target.canonicalize().unwrap()).unwrap()
}

/// The newest file with such a name in the directory of this test program, where cargo builds a package's libraries beside its tests.
/// Older ones are of other features, or of sources before a change.
///
/// # Panics
///
/// Where there is none.
pub fn built_beside(prefix: &str, suffix: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(program.parent().unwrap()).unwrap().map(|entry| entry.unwrap());
    let named = files.filter(|file| {
        let name = file.file_name();
        name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(suffix))
    });
    let newest = named.max_by_key(|file| file.metadata().and_then(|found| found.modified()).unwrap());
    newest.unwrap_or_else(|| panic!("{prefix}*{suffix} is not beside {}", program.display())).path()
}

/// Says that a test, or a part of it, can't be run here.
///
/// # Panics
///
/// Where `PAGEKEEPER_REQUIRE_ALL=1` is set: where nothing may be left out.
pub fn skip(why: impl Display) {
    let message = format!("SKIPPED: {why}");
    assert!(std::env::var_os("PAGEKEEPER_REQUIRE_ALL").is_none_or(|value| value != "1"), "{message}");
    eprintln!("{message}");
}

/// Runs `what` in a thread of the user nobody. Only root may: identity is per thread on Linux, so the rest of the
/// process stays as it is.
///
/// # Panics
///
/// Where that may not be, and where `what` panics.
pub fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let nobody = rustix::process::Uid::from_raw(65534);
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            what()
        });
        stranger.join().unwrap()
    })
}
