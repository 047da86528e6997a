//! Knowledge about programs by their names.

use pagekeeper_catalog::streaming_programs;

/// Streaming programs that no library can be preloaded into: they are statically linked, and make
/// their own system calls.
pub(crate) const STATIC_PROGRAMS: [&str; 5] = ["restic", "rclone", "kopia", "wal-g", "duplicacy"];

/// Whether pagekeeper knows the program as a stream by its name.
pub(crate) fn usual(name: &str) -> bool {
    streaming_programs().iter().any(|glob| glob.is_match(name))
}
