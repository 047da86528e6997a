//! Knowledge about programs by their names.

use pagekeeper_catalog::streaming_programs;
use pagekeeper_text::shell_quoted;

use crate::fix::{Confidence, Fix, Terms};

/// Streaming programs that no library can be preloaded into: they are statically linked, and make
/// their own system calls.
pub(crate) const STATIC_PROGRAMS: [&str; 5] = ["restic", "rclone", "kopia", "wal-g", "duplicacy"];

/// Whether pagekeeper knows the program as a stream by its name.
pub(crate) fn usual(name: &str) -> bool {
    streaming_programs().iter().any(|glob| glob.is_match(name))
}

/// Returns the fix that starts a program as a stream under `pagekeeper run`; `None` if no library
/// can be preloaded into it.
pub(crate) fn run_as_stream(name: &str, confidence: Confidence, evidence: impl Into<String>) -> Option<Fix> {
    if STATIC_PROGRAMS.contains(&name) {
        return None;
    }
    let role = if usual(name) { "" } else { "--as stream " };
    let costs = "the pages it brought in are read from the disk by their next reader";
    Some(Fix::command(
        format!("pagekeeper run {role}-- {} ...", shell_quoted(name)),
        "start it this way next time: it continuously releases the pages it brought into the page \
             cache, and none that were there before",
        Terms::anywhere(confidence, evidence, costs, "start it as before"),
    ))
}

/// Returns the guard's command and configuration by which it follows a program from outside.
pub(crate) fn guard_follows(name: &str) -> String {
    if usual(name) {
        return "`pagekeeper guard --streams`".to_owned();
    }
    let processes = serde_json::Value::from(name);
    format!("`pagekeeper guard` with `processes = [{processes}]` under `[streams]` in its configuration")
}
