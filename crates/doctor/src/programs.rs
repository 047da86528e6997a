//! What is known of programs by their names.

use pagekeeper_catalog::streaming_programs;

/// Streaming programs that no library can be preloaded into: they are linked statically, and make their own system calls.
pub(crate) const STATIC: [&str; 5] = ["restic", "rclone", "kopia", "wal-g", "duplicacy"];

/// Whether pagekeeper knows it for a stream by its name.
pub(crate) fn usual(name: &str) -> bool {
    streaming_programs().iter().any(|glob| glob.is_match(name))
}
