//! Helpers for the tests of several crates: directories on disks, reproducible random numbers, real
//! servers under a load, and a message for tests that cannot run here. Not published.
//!
//! All helpers panic on failure, as tests do.

mod faults;
mod forks;
mod grandchild;
mod hanging;
pub mod http;
mod mounted;
mod opens;
mod processes;
mod rng;
pub mod servers;
mod throttled;

use std::fmt::Display;
use std::path::PathBuf;

use tempfile::TempDir;

pub use faults::expect_found;
pub use forks::{ChildEnd, ForkedChild, fork_often, forked, forked_past_libc};
pub use grandchild::Grandchild;
pub use hanging::HangingMount;
pub use mounted::{FrozenFileSystem, Mounted, is_out_of_space, unmount};
pub use opens::OpenCounter;
pub use processes::fake_process;
pub use rng::{Rng, Seed};
pub use throttled::{LowDirtyLimits, ThrottledDisk};

/// Creates a directory for test files whose path has no links. It lies under the build's target
/// directory, since /tmp may be a tmpfs.
///
/// # Panics
///
/// If it cannot be created.
pub fn disk_dir() -> TempDir {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../target/test-files");
    std::fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target.canonicalize().unwrap()).unwrap()
}

/// Finds the newest file with this prefix and suffix beside the running test program, where cargo
/// puts a package's libraries. Older files were built with other features or from older sources.
///
/// # Panics
///
/// If there is none.
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

/// Reports that a test, or a part of it, cannot run here.
///
/// # Panics
///
/// If `PAGEKEEPER_REQUIRE_ALL=1` is set, which forbids skipping.
pub fn skip(why: impl Display) {
    let message = format!("SKIPPED: {why}");
    assert!(std::env::var_os("PAGEKEEPER_REQUIRE_ALL").is_none_or(|value| value != "1"), "{message}");
    eprintln!("{message}");
}

/// Runs `what` in a thread of the user nobody. Needs root. On Linux each thread has its own
/// identity, so the rest of the process is not affected.
///
/// # Panics
///
/// If the thread cannot become nobody, or if `what` panics.
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
